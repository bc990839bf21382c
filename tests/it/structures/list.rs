//! Lists.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use super::{Ends, Fleet, fleet, rule, store, text, with_one_copy_and_two};
use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, direct, eventually, sidecar_toml, without_failover};

with_one_copy_and_two!(
    a_list_has_what_was_added_and_not_removed_since,
    a_malformed_line_or_another_command_is_refused_and_changes_nothing,
);

const COMMANDS: &str = "CLIENT_ERROR a list has only the commands append, get, get KEY@ELEMENT, delete";
const NO_LINES: &str = "CLIENT_ERROR each line of a list must be + or - and an element, without a carriage return or a backslash at its end";

fn append(client: &mut Client, key: &str, lines: &str) -> String {
    store(client, &format!("append {key} 0 0"), lines)
}

/// The elements, sorted.
fn elements(client: &mut Client, key: &str) -> Vec<String> {
    let mut elements: Vec<_> = text(client, key).unwrap_or_default().lines().map(str::to_owned).collect();
    elements.sort();
    elements
}

/// The number of bytes in the items of a list, and their TTLs.
fn stored(servers: &[Memcached], key: &str) -> (usize, Vec<i64>) {
    let (mut size, mut ttls) = (0, Vec::new());
    for mut server in servers.iter().map(direct) {
        for item in (0..8).map(|shard| format!("{key}@kennel:e{shard}")) {
            size += server.get(&item).map_or(0, |data| data.len());
            ttls.extend(server.ttl(&item));
        }
    }
    (size, ttls)
}

fn a_list_has_what_was_added_and_not_removed_since(fleet: Fleet) {
    let (_servers, [a, b]) = fleet(&[rule("friends", "f:*", "list", "ttl = \"1h\"")]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(text(&mut a, "f:1"), None);
    assert_eq!(append(&mut a, "f:1", "+ann\n+bob\n+Cid Caesar\n"), "STORED");
    assert_eq!(append(&mut b, "f:1", "-bob\n+dan\n-nobody\n"), "STORED");
    assert_eq!(elements(&mut a, "f:1"), ["Cid Caesar", "ann", "dan"]);
    assert!(text(&mut a, "f:1").expect("a listing").ends_with('\n'), "each element ends with a line feed");
    for (asked, expected) in [("ann", Some("1")), ("bob", None), ("dan", Some("1")), ("nobody", None)] {
        assert_eq!(text(&mut b, &format!("f:1@{asked}")).as_deref(), expected, "{asked}");
    }
    let found: Vec<_> =
        b.get_many(&["f:1@ann", "f:1@bob", "f:2", "f:1@dan"]).into_iter().map(|item| item.key).collect();
    assert_eq!(found, ["f:1@ann", "f:1@dan"]);
    // Meta commands, and quiet ones.
    a.send(b"ms f:1 5 MA\r\n+eve\n\r\nms f:1 5 MA q\r\n-ann\n\r\nappend f:1 0 0 4 noreply\r\n+fy\n\r\nmg f:1@eve v k\r\nmn\r\n");
    a.expect(b"HD\r\nVA 1 kf:1@eve\r\n1\r\nMN\r\n");
    assert_eq!(elements(&mut b, "f:1"), ["Cid Caesar", "dan", "eve", "fy"]);
    b.send(b"mg f:1@ann v\r\nmg f:1 s f t\r\n");
    assert_eq!((b.line(), b.line()), ("EN".into(), "HD s22 f0 t3600".into()));
    assert_eq!((a.delete("f:1"), b.delete("f:1")), ("DELETED".into(), "NOT_FOUND".into()));
    assert_eq!(text(&mut b, "f:1@dan"), None);
    assert_eq!(append(&mut b, "f:1", "-dan\n"), "STORED");
    assert_eq!(text(&mut b, "f:1"), None);
}

fn a_malformed_line_or_another_command_is_refused_and_changes_nothing(fleet: Fleet) {
    let (_servers, [a, _b]) = fleet(&[rule("friends", "f:*", "list", "")]);
    let mut client = a.client();
    assert_eq!(append(&mut client, "f:1", "+ann\n"), "STORED");
    for bad in
        ["", "bob", "+bob\n+", "+bob\nx\n", "+bob\n+\n", "+bob\r\n", "\n", "-ann\n\n", "+bob\\\n", "+bob\\"]
    {
        assert_eq!(append(&mut client, "f:1", bad), NO_LINES, "{bad:?}");
    }
    let long = "x".repeat(246);
    let too_long = "CLIENT_ERROR the key of a list and an element have at most 249 bytes together";
    assert_eq!(append(&mut client, "f:1", &format!("-ann\n+x{long}\n")), too_long);
    let large = "CLIENT_ERROR one append to a list has at most 65536 bytes";
    assert_eq!(append(&mut client, "f:1", &"-ann\n".repeat(13_108)), large);
    let no_at = "CLIENT_ERROR the key of a list that is changed must not contain @";
    assert_eq!(append(&mut client, "f:1@ann", "-ann\n"), no_at);
    assert_eq!(client.delete("f:1@ann"), no_at);
    for command in ["set", "add", "replace", "prepend"] {
        assert_eq!(store(&mut client, &format!("{command} f:1 0 0"), "-ann\n"), COMMANDS);
    }
    for command in ["incr f:1 1", "touch f:1 1", "gat 1 f:1", "ma f:1", "cas f:1 0 0 1 1\r\n1"] {
        assert_eq!(client.execute(command), COMMANDS, "{command}");
    }
    assert_eq!(client.execute("get f:1@"), "CLIENT_ERROR what follows the @ of a list must be an element");
    assert_eq!(elements(&mut client, "f:1"), ["ann"]);
    // The longest element can be asked for.
    assert_eq!(append(&mut client, "f:1", &format!("+{long}\n")), "STORED");
    assert_eq!(text(&mut client, &format!("f:1@{long}")).as_deref(), Some("1"));
}

#[test]
fn a_list_lives_on_as_a_whole_with_each_append() {
    let (servers, [a, b]) = fleet(&[rule("friends", "f:*", "list", "ttl = \"10s\"")]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(append(&mut a, "f:1", "+ann\n+bob\n+cid\n+dan\n"), "STORED");
    let (_, before) = stored(&servers, "f:1");
    assert!(before.len() > 2, "{before:?}");
    eventually("the items have aged", || stored(&servers, "f:1").1.iter().all(|ttl| *ttl <= 8));
    assert_eq!(append(&mut b, "f:1", "-ann\n"), "STORED");
    let (_, ttls) = stored(&servers, "f:1");
    assert!(ttls.len() == before.len() && ttls.iter().all(|ttl| *ttl >= 9), "{ttls:?}");
}

#[test]
fn no_acknowledged_element_is_lost_to_writers_and_folds_through_two_sidecars() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 120;
    let (servers, sidecars) = fleet(&[rule("friends", "f:*", "list", "")]);
    let is_over = AtomicBool::new(false);
    // Each writer has elements of its own, so it knows what the list has of them.
    let kept: HashSet<String> = thread::scope(|scope| {
        let is_over = &is_over;
        let _ends = Ends(is_over);
        for sidecar in &sidecars {
            let mut client = sidecar.client();
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    let found = elements(&mut client, "f:1");
                    assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len(), "each once");
                }
            });
        }
        let write = |n: usize| {
            let (mut client, mut other) = (sidecars[n % 2].client(), sidecars[(n + 1) % 2].client());
            move || {
                let mut kept = HashSet::new();
                for round in 0..ROUNDS {
                    let names = [round % 5, (round * 7 + 1) % 5].map(|k| format!("w{n}-{k}"));
                    let adds = [round % 3 != 0, round % 2 != 0];
                    let lines: String = names
                        .iter()
                        .zip(adds)
                        .map(|(name, adds)| format!("{}{name}\n", if adds { '+' } else { '-' }))
                        .collect();
                    assert_eq!(append(&mut client, "f:1", &lines), "STORED");
                    for (name, adds) in names.iter().zip(adds) {
                        if adds {
                            kept.insert(name.clone())
                        } else {
                            kept.remove(name)
                        };
                    }
                    let found = elements(&mut other, "f:1");
                    let own: HashSet<_> =
                        found.into_iter().filter(|name| name.starts_with(&format!("w{n}-"))).collect();
                    assert_eq!(own, kept, "round {round}");
                    let has = text(&mut other, &format!("f:1@{}", names[0])).is_some();
                    assert_eq!(has, kept.contains(&names[0]));
                }
                kept
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(write(n))).collect();
        writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
    });
    let found: HashSet<_> = elements(&mut sidecars[0].client(), "f:1").into_iter().collect();
    assert_eq!(found, kept);
    let (size, _) = stored(&servers, "f:1");
    assert!(size <= 2 * 6 * (found.len() + 8), "{size} bytes for {} elements", found.len());
}

#[test]
fn a_list_that_nobody_reads_is_folded_by_those_who_write() {
    let (servers, [a, _b]) = fleet(&[rule("friends", "f:*", "list", "")]);
    let mut client = a.client();
    let lines = "+somebody\n-somebody\n+somebody else\n".repeat(50);
    for _ in 0..100 {
        assert_eq!(append(&mut client, "f:1", &lines), "STORED");
    }
    let (size, _) = stored(&servers, "f:1");
    assert!(size < 25_000, "{size} of 175000 bytes");
    assert_eq!(elements(&mut client, "f:1"), ["somebody else"]);
}

#[test]
fn a_listing_above_1_mib_says_so_and_cuts_nothing() {
    let (_servers, [a, b]) = fleet(&[rule("friends", "f:*", "list", "")]);
    let (mut client, mut other) = (a.client(), b.client());
    let name = |n: usize| format!("{n:0>126}");
    for first in (0..8_704).step_by(512) {
        let lines: String = (first..first + 512).map(|n| format!("+{}\n", name(n))).collect();
        assert_eq!(append(&mut client, "f:1", &lines), "STORED");
    }
    const TOO_LARGE: &str = "SERVER_ERROR the answer is larger than 1 MiB: ask for a part of it";
    assert_eq!(other.execute("get f:1"), TOO_LARGE);
    assert_eq!(other.execute("mg f:1 v"), TOO_LARGE);
    assert_eq!(other.execute("get f:2 f:1"), TOO_LARGE);
    assert_eq!(text(&mut other, &format!("f:1@{}", name(8_000))).as_deref(), Some("1"));
    for first in (0..1_024).step_by(512) {
        let lines: String = (first..first + 512).map(|n| format!("-{}\n", name(n))).collect();
        assert_eq!(append(&mut client, "f:1", &lines), "STORED");
    }
    assert_eq!(elements(&mut other, "f:1").len(), 7_680);
}

#[test]
fn a_full_list_refuses_more_with_an_error_and_keeps_what_it_has() {
    // Debian's memcached does not survive so small a limit.
    let server = Memcached::newest(&["-I", "16k", "-o", "slab_chunk_max=8"]);
    let toml = without_failover(&sidecar_toml(
        &addresses(std::slice::from_ref(&server)),
        &[rule("f", "f:*", "list", "")],
    ));
    let sidecar = Kennel::start(&toml);
    let mut client = sidecar.client();
    let mut kept = Vec::new();
    let mut refused = 0;
    for n in 0..1_600 {
        let name = format!("{n:0>100}");
        match append(&mut client, "f:1", &format!("+{name}\n")).as_str() {
            "STORED" => kept.push(name),
            reply => {
                assert_eq!(
                    reply,
                    "SERVER_ERROR the list is full: some elements of this command are not stored"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && kept.len() > 600, "{refused} refused, {} kept", kept.len());
    assert_eq!(elements(&mut client, "f:1"), kept);
    // What has no effect any more makes room.
    for name in &kept {
        assert_eq!(append(&mut client, "f:1", &format!("-{name}\n")), "STORED");
    }
    assert_eq!(text(&mut client, "f:1"), None);
    // A value that its server does not take would delete the item.
    assert_eq!(append(&mut client, "f:1", "+ann\n"), "STORED");
    assert_eq!(
        append(&mut client, "f:1", &"-ann\n".repeat(4_000)),
        "SERVER_ERROR object too large for cache"
    );
    assert_eq!(elements(&mut client, "f:1"), ["ann"]);
}
