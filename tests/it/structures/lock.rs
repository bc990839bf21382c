//! Locks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{Fleet, fleet, rule, store, text, with_one_copy_and_two};
use crate::client::Client;
use crate::world::{direct, eventually, holder};

with_one_copy_and_two!(
    a_lock_has_one_holder_and_only_its_connection_frees_it,
    a_lock_is_free_as_soon_as_the_connection_of_its_holder_closes,
    no_two_clients_of_two_sidecars_hold_a_lock_at_the_same_time,
    pipelined_commands_on_a_lock_take_effect_in_order,
);

const COMMANDS: &str = "CLIENT_ERROR a lock has only the commands add, get, delete";

fn add(client: &mut Client, key: &str, owner: &str) -> String {
    store(client, &format!("add {key} 0 0"), owner)
}

fn a_lock_has_one_holder_and_only_its_connection_frees_it(fleet: Fleet) {
    let (_servers, [a, b]) = fleet(&[rule("locks", "lock:*", "lock", "")]);
    let (mut first, mut second, mut same) = (a.client(), b.client(), a.client());
    assert_eq!(text(&mut second, "lock:1"), None);
    assert_eq!(add(&mut first, "lock:1", "ann"), "STORED");
    assert_eq!(add(&mut second, "lock:1", "bob"), "NOT_STORED");
    assert_eq!(add(&mut first, "lock:1", "ann"), "NOT_STORED", "it is not taken twice");
    assert_eq!(text(&mut second, "lock:1").as_deref(), Some("ann"));
    // Also not through the same sidecar.
    for other in [&mut second, &mut same] {
        assert_eq!(other.delete("lock:1"), "NOT_FOUND");
    }
    assert_eq!(text(&mut first, "lock:1").as_deref(), Some("ann"));
    assert_eq!(first.delete("lock:1"), "DELETED");
    assert_eq!(first.delete("lock:1"), "NOT_FOUND");
    assert_eq!(add(&mut second, "lock:1", "bob"), "STORED");
    assert_eq!(text(&mut first, "lock:1").as_deref(), Some("bob"));
    assert_eq!(a.metrics().sum("kennel_locks_held", &[]), 0.0);
    assert_eq!(b.metrics().sum("kennel_locks_held", &[]), 1.0);
    assert_eq!(a.metrics().sum("kennel_locks_total", &["rule=\"locks\"", "end=\"released\""]), 1.0);
}

fn a_lock_is_free_as_soon_as_the_connection_of_its_holder_closes(fleet: Fleet) {
    let (_servers, [a, b]) = fleet(&[rule("locks", "lock:*", "lock", "ttl = \"1h\"")]);
    let mut second = b.client();
    let mut first = a.client();
    for n in 0..20 {
        assert_eq!(add(&mut first, &format!("lock:{n}"), "ann"), "STORED");
    }
    // Also one that is being taken when the connection closes.
    first.send(b"add lock:20 0 0 3\r\nann\r\n");
    drop(first);
    for n in 0..21 {
        eventually("the lock is free", || add(&mut second, &format!("lock:{n}"), "bob") == "STORED");
    }
    eventually("the locks are counted", || a.metrics().sum("kennel_locks_held", &[]) == 0.0);
    let ends = a.metrics().sum("kennel_locks_total", &["end=\"disconnected\""]);
    assert!((20.0..=21.0).contains(&ends), "{ends}");
    // So is it when the sidecar is stopped.
    assert!(b.terminate().0.success());
    let mut client = a.client();
    assert_eq!(add(&mut client, "lock:1", "cat"), "STORED");
}

#[test]
fn a_lock_is_renewed_while_its_sidecar_lives_and_ends_by_itself_when_it_is_killed() {
    let (servers, [a, b]) = fleet(&[rule("locks", "lock:*", "lock", "ttl = \"2s\"")]);
    let (mut first, mut second) = (a.client(), b.client());
    assert_eq!(add(&mut first, "lock:1", "ann"), "STORED");
    let mut server = direct(&servers[holder(&servers, "lock:1")]);
    let mut least = 3;
    let mut renewals = 0;
    eventually("the lock is renewed three times", || {
        let ttl = server.ttl("lock:1").expect("a lock that is held is there");
        renewals += u32::from(ttl > least);
        least = ttl;
        assert_eq!(add(&mut second, "lock:1", "bob"), "NOT_STORED");
        renewals >= 3
    });
    a.kill();
    eventually("the lock ends", || add(&mut second, "lock:1", "bob") == "STORED");
    assert_eq!(second.delete("lock:1"), "DELETED");
}

#[test]
fn a_late_delete_frees_no_lock_of_another_holder() {
    let (servers, [a, b]) = fleet(&[rule("locks", "lock:*", "lock", "ttl = \"1h\"")]);
    let (mut first, mut second) = (a.client(), b.client());
    assert_eq!(add(&mut first, "lock:1", "same name"), "STORED");
    // It is lost, and the sidecar has not noticed.
    assert_eq!(direct(&servers[holder(&servers, "lock:1")]).delete("lock:1"), "DELETED");
    assert_eq!(add(&mut second, "lock:1", "same name"), "STORED");
    assert_eq!(first.delete("lock:1"), "NOT_FOUND");
    assert_eq!(text(&mut first, "lock:1").as_deref(), Some("same name"));
    assert_eq!(second.delete("lock:1"), "DELETED");
    assert_eq!(a.metrics().sum("kennel_locks_total", &["end=\"lost\""]), 1.0);
}

#[test]
fn a_lock_that_is_lost_is_noticed_when_it_is_renewed() {
    let (servers, [a, _b]) = fleet(&[rule("locks", "lock:*", "lock", "ttl = \"1s\"")]);
    let mut client = a.client();
    assert_eq!(add(&mut client, "lock:1", "ann"), "STORED");
    direct(&servers[holder(&servers, "lock:1")]).delete("lock:1");
    eventually("the loss is counted", || a.metrics().sum("kennel_locks_total", &["end=\"lost\""]) == 1.0);
    assert_eq!(client.delete("lock:1"), "NOT_FOUND");
    assert_eq!(add(&mut client, "lock:1", "ann"), "STORED");
    assert_eq!(client.delete("lock:1"), "DELETED");
}

fn no_two_clients_of_two_sidecars_hold_a_lock_at_the_same_time(fleet: Fleet) {
    let (_servers, sidecars) = fleet(&[rule("locks", "lock:*", "lock", "fence = true\nttl = \"30s\"")]);
    let (inside, holds, highest) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
    let work = |mut client: Client, name: String| {
        while holds.load(Ordering::SeqCst) < 200 {
            if add(&mut client, "lock:1", &name) != "STORED" {
                continue;
            }
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another client holds the lock");
            let owner = text(&mut client, "lock:1").expect("the lock is held");
            let number = owner.strip_prefix(&format!("{name} ")).and_then(|number| number.parse().ok());
            let number: u64 = number.unwrap_or_else(|| panic!("{owner} is not {name}"));
            assert!(highest.swap(number, Ordering::SeqCst) < number, "{number}");
            holds.fetch_add(1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(client.delete("lock:1"), "DELETED");
        }
    };
    thread::scope(|scope| {
        for n in 0..8 {
            let client = sidecars[n % 2].client();
            scope.spawn(move || work(client, format!("c{n}")));
        }
    });
}

#[test]
fn a_fencing_number_grows_although_its_server_has_lost_the_last_one() {
    let (mut servers, [a, _b]) = fleet(&[rule("locks", "lock:*", "lock", "fence = true")]);
    let mut client = a.client();
    let mut take = || {
        let taken = add(&mut client, "lock:1", "ann");
        if taken != "STORED" {
            assert!(taken.starts_with("SERVER_ERROR") || taken == "NOT_STORED", "{taken}");
            return None;
        }
        let owner = text(&mut client, "lock:1")?;
        client.delete("lock:1");
        Some(owner.strip_prefix("ann ").unwrap().parse::<u64>().unwrap())
    };
    let (first, second) = (take().unwrap(), take().unwrap());
    assert!(first < second);
    let lost = holder(&servers, "lock:1@kennel:fence");
    servers[lost].restart();
    let mut third = None;
    eventually("the lock can be taken again", || {
        third = take();
        third.is_some()
    });
    assert!(third > Some(second), "{third:?} after {second}");
}

#[test]
fn a_lock_outlives_a_reload_of_the_configuration() {
    let (servers, [a, b]) = fleet(&[rule("locks", "lock:*", "lock", "")]);
    let (mut first, mut second) = (a.client(), b.client());
    assert_eq!(add(&mut first, "lock:1", "ann"), "STORED");
    let toml = std::fs::read_to_string(a.dir().join("kennel.toml")).unwrap();
    let (status, body) = a.reload(&format!("{toml}\n{}", rule("more", "more:*", "counter", "")));
    assert_eq!(status, 200, "{body}");
    assert_eq!(first.execute("incr more:1 1"), "1");
    assert_eq!(add(&mut second, "lock:1", "bob"), "NOT_STORED");
    assert_eq!(first.delete("lock:1"), "DELETED");
    assert_eq!(add(&mut second, "lock:1", "bob"), "STORED");
    assert_eq!(servers.len(), 3);
}

#[test]
fn a_client_names_its_own_ttl_and_has_no_other_commands() {
    let (servers, [a, b]) = fleet(&[rule("locks", "lock:*", "lock", "")]);
    let (mut client, mut other) = (a.client(), b.client());
    assert_eq!(store(&mut client, "add lock:1 7 100", "ann"), "STORED");
    let ttl = direct(&servers[holder(&servers, "lock:1")]).ttl("lock:1").unwrap();
    assert!((99..=101).contains(&ttl), "{ttl}");
    let shown = &other.get_many(&["lock:1"])[0];
    assert_eq!((shown.flags, &shown.value[..]), (7, &b"ann"[..]));
    let over = "CLIENT_ERROR the exptime of a lock must be at least a second from now";
    assert_eq!(store(&mut client, "add lock:2 0 -1", "ann"), over);
    assert_eq!(
        store(&mut client, "add lock:2 0 0", &"x".repeat(1025)),
        "CLIENT_ERROR the owner of a lock has at most 1024 bytes"
    );
    for verb in ["set", "append", "replace"] {
        assert_eq!(store(&mut client, &format!("{verb} lock:1 0 0"), "x"), COMMANDS, "{verb}");
    }
    for command in ["incr lock:1 1", "touch lock:1 1", "gat 1 lock:1", "ma lock:1"] {
        assert_eq!(client.execute(command), COMMANDS, "{command}");
    }
    // Meta commands, and noreply.
    other.send(b"ms lock:3 3 ME T60 k\r\nbob\r\n");
    assert_eq!(other.line(), "HD klock:3");
    client.send(b"ms lock:3 3 ME\r\nann\r\n");
    assert_eq!(client.line(), "NS");
    client.send(b"mg lock:3 v\r\n");
    client.expect(b"VA 3\r\nbob\r\n");
    assert_eq!((client.execute("md lock:3"), other.execute("md lock:3")), ("NF".into(), "HD".into()));
    client.send(b"add lock:4 0 0 3 noreply\r\nann\r\nmn\r\n");
    assert_eq!((client.line(), add(&mut other, "lock:4", "bob")), ("MN".into(), "NOT_STORED".into()));
    client.send(b"delete lock:4 noreply\r\nmn\r\n");
    assert_eq!((client.line(), add(&mut other, "lock:4", "bob")), ("MN".into(), "STORED".into()));
}

fn pipelined_commands_on_a_lock_take_effect_in_order(fleet: Fleet) {
    let (_servers, [a, _b]) = fleet(&[rule("locks", "lock:*", "lock", "fence = true")]);
    let mut client = a.client();
    for _ in 0..10 {
        client.send(b"add lock:1 0 0 1\r\nx\r\nadd lock:1 0 0 1\r\ny\r\ndelete lock:1\r\nget lock:1\r\ndelete lock:1\r\n");
        client.expect(b"STORED\r\nNOT_STORED\r\nDELETED\r\nEND\r\nNOT_FOUND\r\n");
    }
}

#[test]
fn a_connection_has_a_limit_of_locks_and_one_with_a_lock_is_not_idle() {
    let servers = crate::world::memcacheds(1);
    let rules = [rule("locks", "lock:*", "lock", "")];
    let toml = crate::world::sidecar_toml(&crate::world::addresses(&servers), &rules);
    let toml = toml.replace("[listen]\n", "[listen]\nidle_timeout = \"200ms\"\n");
    let sidecar = crate::world::Kennel::start(&toml.replace("\"500ms\"", "\"10s\""));
    let mut client = sidecar.client();
    let mut sent = String::new();
    (0..1024).for_each(|n| sent += &format!("add lock:{n} 0 0 1\r\nx\r\n"));
    client.send(sent.as_bytes());
    (0..1024).for_each(|_| assert_eq!(client.line(), "STORED"));
    assert_eq!(add(&mut client, "lock:1024", "x"), "SERVER_ERROR too many locks of one connection");
    assert_eq!(sidecar.metrics().sum("kennel_limit_reached_total", &["limit=\"locks\""]), 1.0);
    // Another client that is idle for as long is disconnected.
    let mut idle = sidecar.client();
    assert_eq!(idle.execute("mn"), "MN");
    assert_eq!(idle.rest(), b"");
    client.silent_for(Duration::from_millis(1));
    assert_eq!(client.delete("lock:1"), "DELETED");
    assert_eq!(add(&mut client, "lock:1024", "x"), "STORED");
}
