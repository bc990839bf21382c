//! Servers that lack what the guard needs: `memcached -C`, 1.6.9, and 1.6.10 to 1.6.12, which return `EX` to every `md` with a
//! CAS. Kennel detects this when it connects, by the server's behaviour, and guards nothing there.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::between::{Between, Stopped, pump};
use crate::client::Client;
use crate::world::{Kennel, Memcached, direct, eventually, guarded, memcacheds, raw, sidecar_toml, temp_dir};

/// The reply to every guarded command there.
const REFUSED: &str = "SERVER_ERROR server cannot guard keys: run kennel check --connect for the reason";

/// memcached 1.6.9 of Debian 11, as unpacked by scripts/test.
const MEMCACHED_1_6_9: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/debian11/usr/bin/memcached");

fn toml(server: &str) -> String {
    let rule = guarded(
        "hot",
        "hot:*",
        "tags = [\"t\"]\nstale_for = \"3s\"\nlock_ttl = \"3s\"\noutage_ttl = \"0ms\"",
    );
    let plain = guarded("plain", "plain:*", "outage_ttl = \"0ms\"");
    sidecar_toml(&[server.to_owned()], &[rule, plain, raw("raw", "*")])
}

/// A server that does not compare the CAS of a delete, like memcached 1.6.10 to 1.6.12: a real one behind a proxy that changes
/// the CAS of every `md`.
fn deletes_under_no_cas(target: SocketAddr) -> Between {
    Between::start(target, |client, server, over| {
        let (Ok(mut client_end), Ok(mut server_end)) = (client.try_clone(), server.try_clone()) else {
            return;
        };
        let (over, of_replies): (Stopped, Stopped) = (over.clone(), over.clone());
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            pump(&mut client_end, &over, |piece| {
                rest.extend_from_slice(piece);
                let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let lines: Vec<u8> = rest.drain(..whole).collect();
                let lines = lines.split_inclusive(|byte| *byte == b'\n').map(with_another_cas);
                server_end.write_all(&lines.collect::<Vec<_>>().concat()).is_ok()
            });
            let _ = server_end.shutdown(Shutdown::Both);
        });
        let (mut from, mut to): (TcpStream, TcpStream) = (server, client);
        std::thread::spawn(move || {
            pump(&mut from, &of_replies, |piece| to.write_all(piece).is_ok());
            let _ = to.shutdown(Shutdown::Both);
        });
    })
}

fn with_another_cas(line: &[u8]) -> Vec<u8> {
    let words = line.trim_ascii_end().split(|byte| *byte == b' ');
    let changed =
        |word: &[u8]| if word[..1] == *b"C" { b"C18446744073709551615".to_vec() } else { word.to_vec() };
    match line.starts_with(b"md ") {
        true => [words.map(changed).collect::<Vec<_>>().join(&b' '), b"\r\n".to_vec()].concat(),
        false => line.to_vec(),
    }
}

/// The number of items on a server.
fn items(server: &mut Client) -> String {
    server.send(b"stats\r\n");
    let stats = String::from_utf8(server.until(b"END\r\n")).expect("ASCII");
    stats.lines().find_map(|line| line.strip_prefix("STAT curr_items ")).expect("a count").to_owned()
}

/// The record by which sidecars notice other placements.
const MARKS: &str = "@kennel:marks:main";

fn body(reply: &str) -> &str {
    reply.split_once("\r\n\r\n").expect("a header").1
}

/// Nothing is guarded on this server, for this reason: nothing is stored, nothing acknowledged; raw keys still work.
fn guards_nothing(address: &str, mut behind: Client, why: &str) {
    let kennel = Kennel::start(&toml(address));
    let mut client = kennel.client();
    for key in ["hot:k", "plain:k"] {
        for _ in 0..2 {
            assert_eq!(client.get(key), None);
            assert_eq!(client.set(key, b"value", 60), REFUSED);
        }
        for command in [
            "delete",
            "incr KEY 1",
            "touch KEY 9",
            "md",
            "ms KEY 1 T9\r\nx",
            "ma KEY N9",
            "add KEY 0 9 1\r\nx",
        ] {
            let command_of_key = if command.contains("KEY") {
                command.replace("KEY", key)
            } else {
                format!("{command} {key}")
            };
            assert_eq!(client.execute(&command_of_key), REFUSED, "{command_of_key}");
        }
    }
    for bump in ["delete @tag:t", "incr @tag:t 1"] {
        assert_eq!(client.execute(bump), REFUSED);
    }
    assert_eq!(items(&mut behind), "0", "neither stubs nor locks nor values nor tags, and no probe");
    client.store("raw", b"value", 60);
    assert_eq!(client.get("raw").as_deref(), Some(&b"value"[..]));
    assert_eq!(client.delete("raw"), "DELETED");
    let ready = kennel.http("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 ") || ready.starts_with("HTTP/1.0 200 "), "{ready}");
    let (first, rest) = body(&ready).split_once('\n').expect("a second line");
    assert_eq!(first, "ready");
    assert!(rest.contains(address) && rest.contains("main") && rest.contains(why), "{rest}");
    let log = kennel.log();
    assert_eq!(log.matches("cannot guard").count(), 1, "once for all workers: {log}");
    assert!(log.contains(why), "{log}");
    let metrics = kennel.metrics();
    let name = "kennel_upstream_guards";
    assert!(metrics.0.keys().any(|series| series.starts_with(name)) && metrics.sum(name, &[]) == 0.0);
    assert!(metrics.sum("kennel_upstream_requests_total", &["outcome=\"unguarded\""]) > 0.0);
}

#[test]
fn on_a_server_without_cas_nothing_is_guarded_and_raw_keys_go_on() {
    let server = Memcached::start(&["-C"]);
    guards_nothing(&server.address(), direct(&server), "it has no CAS: it was started with -C");
}

#[test]
fn on_a_server_that_deletes_under_no_cas_nothing_is_guarded_and_raw_keys_go_on() {
    let server = Memcached::start(&[]);
    let old = deletes_under_no_cas(server.address);
    guards_nothing(&old.address(), direct(&server), "its md does not compare CAS values");
}

#[test]
fn on_memcached_1_6_9_nothing_is_guarded_and_raw_keys_go_on() {
    let server = Memcached::start_program(Path::new(MEMCACHED_1_6_9), &[]);
    guards_nothing(&server.address(), direct(&server), "its ms has the syntax of memcached 1.6.9 and older");
}

#[test]
fn a_server_that_can_guard_is_reported_ready_and_no_probe_item_is_left_on_it() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&toml(&servers[0].address()));
    eventually("both workers are connected", || {
        kennel.metrics().sum("kennel_upstream_connections_total", &[]) == 2.0
    });
    assert_eq!(body(&kennel.http("/readyz")), "ready");
    assert_eq!(kennel.metrics().sum("kennel_upstream_guards", &[]), 1.0);
    eventually("only the sidecar's mark is there", || {
        let mut server = direct(&servers[0]);
        server.get(MARKS).is_some() && items(&mut server) == "1"
    });
    assert!(!kennel.log().contains("cannot guard"), "{}", kennel.log());
    assert!(kennel.log().contains("version=1.6."), "{}", kennel.log());
}

#[test]
fn a_server_that_is_replaced_by_one_that_can_guard_guards_again_and_the_other_way_round() {
    let mut server = Memcached::start(&["-C"]);
    let kennel = Kennel::start(&toml(&server.address()));
    let mut client = kennel.client();
    assert_eq!(client.set("hot:k", b"1", 60), REFUSED);
    server.restart_with(&[]);
    eventually("it guards", || client.set("hot:k", b"2", 60) == "STORED");
    assert_eq!(client.get("hot:k").as_deref(), Some(&b"2"[..]));
    eventually("and says so", || body(&kennel.http("/readyz")) == "ready");
    server.restart_with(&["-C"]);
    eventually("it guards no more", || client.set("hot:k", b"3", 60) == REFUSED);
    assert_eq!(client.get("hot:k"), None);
    assert_eq!(kennel.metrics().sum("kennel_upstream_guards", &[]), 0.0);
}

/// Fills a server that was started with `-M` until it has no room for another item of the size of a probe's; returns the number
/// of items.
fn fill(server: &mut Client) -> usize {
    let stored = |n: &usize| server.execute(&format!("set {} 0 0 2\r\nab", filler(*n))) == "STORED";
    (0..100_000).take_while(stored).count()
}

fn filler(n: usize) -> String {
    format!("@fill:{n:017}")
}

/// One worker, so that it alone determines what Kennel knows of the server.
fn toml_of_one_worker(server: &str) -> String {
    toml(server).replace("workers = 2", "workers = 1")
}

/// If a server has no room for a probe, its capabilities are unknown: nothing is guarded there, and raw keys are served.
fn is_full(kennel: &Kennel, client: &mut Client, taken: usize) {
    for key in ["hot:k", "plain:k"] {
        assert_eq!(client.get(key), None);
        assert_eq!(client.set(key, b"value", 60), REFUSED);
        assert_eq!(client.delete(key), REFUSED);
    }
    assert_eq!(client.get(&filler(taken - 1)).as_deref(), Some(&b"ab"[..]), "a raw key");
    assert_eq!(kennel.metrics().sum("kennel_upstream_guards", &[]), 0.0);
    let ready = kennel.http("/readyz");
    let why = "it is out of memory: its features are not known yet";
    assert!(body(&ready).starts_with("ready\n") && ready.contains(why), "{ready}");
    assert!(kennel.log().contains(why), "{}", kennel.log());
}

const FULL: &[&str] = &["-M", "-m", "2"];

#[test]
fn a_server_that_cannot_guard_is_not_taken_for_one_that_can_because_it_is_full() {
    let server = Memcached::start(FULL);
    let old = deletes_under_no_cas(server.address);
    let mut behind = direct(&server);
    let taken = fill(&mut behind);
    // Room for the first item of a probe, and not for the second.
    assert_eq!(behind.delete(&filler(0)), "DELETED");
    let kennel = Kennel::start(&toml_of_one_worker(&old.address()));
    let mut client = kennel.client();
    is_full(&kennel, &mut client, taken);
    (1..taken).for_each(|n| assert_eq!(behind.delete(&filler(n)), "DELETED"));
    eventually("it learns what the server lacks", || {
        kennel.http("/readyz").contains("its md does not compare CAS values")
    });
    assert_eq!(client.set("hot:k", b"value", 60), REFUSED);
    assert_eq!(kennel.metrics().sum("kennel_upstream_guards", &[]), 0.0);
    assert_eq!(items(&mut behind), "0");
}

#[test]
fn a_server_that_is_full_when_it_is_connected_to_guards_as_soon_as_it_has_room() {
    for server in [Memcached::start(FULL), Memcached::newest(FULL)] {
        let mut behind = direct(&server);
        let taken = fill(&mut behind);
        let kennel = Kennel::start(&toml_of_one_worker(&server.address()));
        let mut client = kennel.client();
        is_full(&kennel, &mut client, taken);
        (0..taken - 1).for_each(|n| assert_eq!(behind.delete(&filler(n)), "DELETED"));
        eventually("it guards", || kennel.metrics().sum("kennel_upstream_guards", &[]) == 1.0);
        assert_eq!(body(&kennel.http("/readyz")), "ready");
        let mut client = kennel.client();
        assert_eq!(client.set("hot:k", b"value", 60), "STORED");
        assert_eq!(client.get("hot:k").as_deref(), Some(&b"value"[..]));
        assert_eq!(client.execute("delete @tag:t"), "DELETED");
        // Client requests still use the existing connection.
        let metrics = kennel.metrics();
        assert_eq!(metrics.sum("kennel_upstream_connections_total", &[]), 1.0);
        assert_eq!(metrics.sum("kennel_upstream_in_flight", &[]), 0.0);
    }
}

#[test]
fn a_server_that_is_full_is_named_as_the_cause_of_each_error() {
    const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
    for server in [Memcached::start(FULL), Memcached::newest(FULL)] {
        let kennel = Kennel::start(&toml_of_one_worker(&server.address()));
        let mut client = kennel.client();
        client.get("hot:k");
        eventually("it guards", || client.set("hot:k", b"value", 60) == "STORED");
        let mut behind = direct(&server);
        fill(&mut behind);
        let missed = "SERVER_ERROR not stored: the server was out of memory when this key was missed";
        for (command, error) in [
            ("set hot:unseen 0 60 1\r\nx", NO_MEMORY),
            ("add hot:unseen 0 60 1\r\nx", NO_MEMORY),
            ("ms hot:unseen 1\r\nx", NO_MEMORY),
            ("delete @tag:other", NO_MEMORY),
            ("set plain:k 0 60 1\r\nx", NO_MEMORY),
        ] {
            assert_eq!(client.execute(command), error, "{command}");
        }
        assert_eq!(client.get("hot:missed"), None);
        assert_eq!(client.set("hot:missed", b"x", 60), missed);
        assert_eq!(client.get("hot:k").as_deref(), Some(&b"value"[..]), "what is stored is served");
        let ready = kennel.http("/readyz");
        assert!(body(&ready).starts_with("ready\n") && ready.contains("is out of memory"), "{ready}");
        assert_eq!(kennel.log().matches("out of memory").count(), 1, "{}", kennel.log());
    }
}

/// Exit code, stdout and stderr of `kennel check --connect`.
fn check(toml: &str) -> (Option<i32>, String, String) {
    let dir = temp_dir();
    let file = dir.join("kennel.toml");
    std::fs::write(&file, toml).expect("write the configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    command.args(["check", "--connect"]).arg(&file);
    let output = command.output().expect("run kennel check");
    let _ = std::fs::remove_dir_all(&dir);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn check_connect_reports_each_servers_version_and_whether_it_can_guard() {
    let servers = [Memcached::start(&[]), Memcached::start(&["-C"]), Memcached::start(&[])];
    let dead = {
        let mut dead = Memcached::start(&[]);
        dead.kill();
        dead.address()
    };
    let [good, old, _] = [0, 1, 2].map(|i| servers[i].address());
    let pools = |main: &[String]| toml("10.0.0.1:1").replace("[\"10.0.0.1:1\"]", &format!("{main:?}"));
    let (code, out, err) = check(&pools(std::slice::from_ref(&good)));
    assert_eq!((code, &err[..]), (Some(0), ""));
    assert!(out.contains(&format!("{good}: memcached 1.6.")) && out.contains("can guard keys"), "{out}");
    let (code, out, err) = check(&pools(&[good.clone(), old.clone(), dead.clone()]));
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains(&format!("{good}: memcached 1.6.")), "{out}");
    assert!(
        err.contains(&format!("{old}: memcached 1.6.")) && err.contains("cannot guard keys: it has no CAS")
    );
    assert!(err.contains(&format!("{dead}: ")) && err.contains("Connection refused"), "{err}");
    assert_eq!(items(&mut direct(&servers[0])), "0");
    // A pool without guarded keys needs no such server.
    let raws = sidecar_toml(std::slice::from_ref(&old), &[raw("raw", "*")]);
    let (code, out, err) = check(&raws);
    assert_eq!((code, &err[..]), (Some(0), ""), "{out}");
    assert!(
        out.contains("cannot guard keys: it has no CAS") && out.contains("which no rule requires"),
        "{out}"
    );
    // Configuration errors are reported first, without connecting.
    let (code, out, err) = check(&raws.replace("workers = 2", "workers = 100"));
    assert_eq!((code, &out[..]), (Some(1), ""));
    assert!(err.contains("listen.workers"), "{err}");
}
