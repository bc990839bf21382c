//! Logs.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kennel::clock::unix_ms;

use super::{Fleet, fleet, rule, store, text, with_one_copy_and_two};
use crate::binary::packet::*;
use crate::client::Client;
use crate::gate::gated_fleet;
use crate::world::eventually;

with_one_copy_and_two!(
    an_append_creates_a_log_and_a_cursor_gives_what_is_new,
    commands_that_a_log_does_not_have_are_refused_with_those_that_it_has,
);

const ONLY: &str = "a log has only the commands append, get, get KEY@CURSOR, get KEY@FROM-TO";

/// The next cursor, and the entries behind this one.
fn tail(client: &mut Client, key: &str, cursor: &str) -> (String, Vec<String>) {
    let answer = text(client, &format!("{key}@{cursor}")).expect("a cursor is always answered");
    let (next, entries) = answer.split_once('\n').expect("a line");
    (next.to_owned(), entries.lines().map(str::to_owned).collect())
}

/// Appends entries by `writers` at once through both sidecars, each of `count` entries of `length` bytes and more.
fn write(sidecars: &[crate::world::Kennel; 2], key: &str, writers: usize, count: usize, length: usize) {
    let padding = "x".repeat(length);
    thread::scope(|scope| {
        for writer in 0..writers {
            let (mut client, padding) = (sidecars[writer % 2].client(), &padding);
            scope.spawn(move || {
                for n in 0..count {
                    let entry = format!("{writer} {n} {padding}\n");
                    assert_eq!(store(&mut client, &format!("append {key} 0 0"), &entry), "STORED");
                }
            });
        }
    });
}

/// Each writer's entries are all there, once and in order.
fn assert_complete(entries: &[String], writers: usize, count: usize) {
    let mut next: HashMap<usize, usize> = HashMap::new();
    for entry in entries {
        let mut fields = entry.split(' ').map(|field| field.parse::<usize>());
        let (Some(Ok(writer)), Some(Ok(n))) = (fields.next(), fields.next()) else { panic!("{entry:?}") };
        let expected = next.entry(writer).or_default();
        assert_eq!(n, *expected, "of writer {writer}");
        *expected += 1;
    }
    assert_eq!(next.len(), writers);
    assert!(next.values().all(|seen| *seen == count), "{next:?}");
}

fn an_append_creates_a_log_and_a_cursor_gives_what_is_new(fleet: Fleet) {
    let (_servers, [a, b]) = fleet(&[rule("events", "log:*", "log", "window = \"1h\"\nslot = \"1m\"")]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(text(&mut a, "log:1"), None);
    let (cursor, entries) = tail(&mut a, "log:1", "0");
    assert_eq!(entries, [""; 0]);
    assert_eq!(store(&mut a, "append log:1 0 0", "one\n"), "STORED");
    assert_eq!(store(&mut b, "append log:1 0 0", "two\n"), "STORED");
    assert_eq!(text(&mut b, "log:1").as_deref(), Some("one\ntwo\n"));
    let (cursor, entries) = tail(&mut b, "log:1", &cursor);
    assert_eq!(entries, ["one", "two"]);
    a.send(b"append log:1 0 0 6 noreply\r\nthree\n\r\nms log:1 5 MA q\r\nfour\n\r\nmn\r\n");
    assert_eq!(a.line(), "MN");
    let (cursor, entries) = tail(&mut a, "log:1", &cursor);
    assert_eq!(entries, ["three", "four"]);
    assert_eq!(tail(&mut a, "log:1", &cursor).1, [""; 0]);
    let now = unix_ms() / 1000;
    let all = "one\ntwo\nthree\nfour\n";
    assert_eq!(text(&mut b, &format!("log:1@{}-{now}", now - 120)).as_deref(), Some(all));
    assert_eq!(text(&mut b, &format!("log:1@{}-{}", now - 600, now - 300)), None);
    b.send(b"mg log:1 s v k\r\n");
    b.expect(format!("VA 19 s19 klog:1\r\n{all}\r\n").as_bytes());
    a.store("other", b"raw", 0);
    let items = b.get_many(&["other", "log:none", "log:1"]);
    let keys: Vec<_> = items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(keys, ["other", "log:1"]);
}

#[test]
fn a_log_keeps_every_acknowledged_entry_once_while_its_parts_fill() {
    const WRITERS: usize = 8;
    const COUNT: usize = 40;
    let (_servers, sidecars) = fleet(&[rule("events", "log:*", "log", "window = \"1h\"\nslot = \"30m\"")]);
    // 200 KB: six parts and more.
    write(&sidecars, "log:1", WRITERS, COUNT, 600);
    let all = text(&mut sidecars[0].client(), "log:1").expect("a log");
    let entries: Vec<String> = all.lines().map(str::to_owned).collect();
    assert_complete(&entries, WRITERS, COUNT);
}

#[test]
fn two_tails_see_each_entry_exactly_once() {
    const WRITERS: usize = 6;
    const COUNT: usize = 400;
    let (_servers, sidecars) = fleet(&[rule("events", "log:*", "log", "window = \"60s\"\nslot = \"1s\"")]);
    let over = AtomicUsize::new(0);
    thread::scope(|scope| {
        let tails: Vec<_> = sidecars
            .iter()
            .map(|sidecar| {
                let (mut client, over) = (sidecar.client(), &over);
                scope.spawn(move || {
                    let (mut cursor, mut all) = ("0".to_owned(), Vec::new());
                    loop {
                        let is_over = over.load(Ordering::SeqCst) == 1;
                        let (next, entries) = tail(&mut client, "log:1", &cursor);
                        cursor = next;
                        if is_over && entries.is_empty() {
                            return all;
                        }
                        all.extend(entries);
                    }
                })
            })
            .collect();
        write(&sidecars, "log:1", WRITERS, COUNT, 60);
        over.store(1, Ordering::SeqCst);
        for tail in tails {
            assert_complete(&tail.join().expect("a tail"), WRITERS, COUNT);
        }
    });
}

#[test]
fn a_full_slot_refuses_appends_and_a_later_one_takes_them() {
    let (_servers, [a, b]) = fleet(&[rule("events", "log:*", "log", "window = \"20s\"\nslot = \"2s\"")]);
    let (mut a, mut b) = (a.client(), b.client());
    let entry = "x".repeat(32_768);
    let full = "SERVER_ERROR the slot of the log is full until the next one begins";
    let mut stored = 0;
    eventually("the slot is full", || {
        let reply = store(&mut a, "append log:1 0 0", &entry);
        stored += usize::from(reply == "STORED");
        assert!(reply == "STORED" || reply == full, "{reply}");
        reply == full
    });
    eventually("the next slot has begun", || store(&mut b, "append log:1 0 0", "last") == "STORED");
    assert_eq!(text(&mut a, "log:1").map(|all| all.len()), Some(stored * 32_768 + 4));
    let too_large = "CLIENT_ERROR an entry of a log has 1 to 32768 bytes";
    assert_eq!(store(&mut a, "append log:1 0 0", &"x".repeat(32_769)), too_large);
}

#[test]
fn a_log_that_is_too_large_for_an_answer_says_so_and_a_tail_reads_all_of_it() {
    let (_servers, [a, _b]) = fleet(&[rule("events", "log:*", "log", "window = \"100s\"\nslot = \"1s\"")]);
    let mut client = a.client();
    let entry = format!("{}\n", "x".repeat(32_767));
    let mut stored = 0;
    eventually("more than fits into an answer is stored", || {
        stored += usize::from(store(&mut client, "append log:1 0 0", &entry) == "STORED");
        stored == 40
    });
    assert!(client.execute("get log:1").starts_with("SERVER_ERROR the answer is larger than 1 MiB"));
    assert!(client.execute("get log:2 log:1").starts_with("SERVER_ERROR the answer is larger than 1 MiB"));
    let (mut cursor, mut seen) = ("0".to_owned(), 0);
    while seen < stored {
        let (next, entries) = tail(&mut client, "log:1", &cursor);
        assert!(!entries.is_empty(), "{seen} of {stored}");
        (cursor, seen) = (next, seen + entries.len());
    }
    assert_eq!((seen, tail(&mut client, "log:1", &cursor).1.len()), (stored, 0));
}

fn commands_that_a_log_does_not_have_are_refused_with_those_that_it_has(fleet: Fleet) {
    let (_servers, [a, _b]) = fleet(&[rule("events", "log:*", "log", "window = \"1h\"")]);
    let mut client = a.client();
    let only = format!("CLIENT_ERROR {ONLY}");
    for verb in ["set", "add", "prepend", "replace"] {
        assert_eq!(store(&mut client, &format!("{verb} log:1 0 0"), "1"), only, "{verb}");
    }
    for command in ["delete log:1", "incr log:1 1", "touch log:1 1", "gat 1 log:1", "md log:1", "ma log:1"] {
        assert_eq!(client.execute(command), only, "{command}");
    }
    for place in ["", "x y", "9-5", "1.2.3", "zzzzzzzz", "x"].map(|place| place.replace(' ', "!")) {
        let reply = client.execute(&format!("get log:1@{place}"));
        assert!(reply.starts_with("CLIENT_ERROR what follows the @ of a log"), "{place}: {reply}");
    }
    let no_at = "CLIENT_ERROR the key of a log that is appended to must not contain @";
    assert_eq!(store(&mut client, "append log:1@0 0 0", "1"), no_at);
    let mut binary = BinaryClient::new(a.address());
    assert_eq!(binary.ask(Packet::new(APPEND, "log:1").with_value("one\n")).status, SUCCESS);
    assert_eq!(binary.get("log:1").as_deref(), Some("one\n"));
    let answer = binary.ask(Packet::store(SET, "log:1", "1", 0));
    assert_eq!((answer.status, answer.text().as_str()), (INVALID, ONLY));
}

#[test]
fn a_late_writer_is_seen_exactly_once_or_told_that_it_is_too_late() {
    const WRITERS: usize = 4;
    let (_servers, gate, [a, b]) =
        gated_fleet(&[rule("events", "log:*", "log", "window = \"60s\"\nslot = \"1s\"")]);
    let over = AtomicUsize::new(0);
    // How much was acknowledged through the gate.
    let written = AtomicUsize::new(0);
    let slot = || unix_ms() / 1000;
    let (acknowledged, seen) = thread::scope(|scope| {
        let writer = |number: usize| {
            let mut client = if number == 0 { b.client() } else { a.client() };
            let (over, written) = (&over, &written);
            scope.spawn(move || {
                let (mut acknowledged, mut refused) = (Vec::new(), HashSet::new());
                for n in 0.. {
                    if over.load(Ordering::SeqCst) == 1 {
                        break;
                    }
                    let entry = format!("{number} {n}");
                    match store(&mut client, "append log:1 0 0", &format!("{entry}\n")).as_str() {
                        "STORED" => {
                            written.fetch_add(number, Ordering::SeqCst);
                            acknowledged.push(entry);
                        }
                        reply => drop(refused.insert(reply.to_owned())),
                    }
                }
                (acknowledged, refused)
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        let tail = scope.spawn(|| {
            let (mut client, mut cursor, mut all) = (b.client(), "0".to_owned(), Vec::new());
            loop {
                let is_over = over.load(Ordering::SeqCst) == 2;
                let (next, entries) = tail(&mut client, "log:1", &cursor);
                cursor = next;
                if is_over && entries.is_empty() {
                    return all;
                }
                all.extend(entries);
            }
        });
        for slots in [1, 1, 2] {
            // The entries have their slots, and do not reach the server.
            gate.hold("ms log:1");
            gate.until_held();
            let held = slot();
            written.store(0, Ordering::SeqCst);
            eventually("slots are over", || slot() >= held + slots);
            gate.release();
            eventually("the writers go on", || written.load(Ordering::SeqCst) > 0);
        }
        over.store(1, Ordering::SeqCst);
        let acknowledged: Vec<(Vec<String>, HashSet<String>)> =
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        over.store(2, Ordering::SeqCst);
        (acknowledged, tail.join().expect("a tail"))
    });
    let late = "SERVER_ERROR server timed out";
    assert!(acknowledged.iter().any(|(_, refused)| refused.contains(late)), "two slots are too late");
    let mut once = HashSet::new();
    for entry in &seen {
        assert!(once.insert(entry), "{entry} is seen twice");
    }
    for (number, (acknowledged, refused)) in acknowledged.iter().enumerate() {
        let full = "SERVER_ERROR the slot of the log is full until the next one begins";
        assert!(refused.iter().all(|reply| reply == full || reply == late), "{refused:?}");
        let all: HashSet<_> = acknowledged.iter().collect();
        let of_writer = seen.iter().filter(|entry| entry.starts_with(&format!("{number} ")));
        let known: Vec<_> = of_writer.filter(|entry| all.contains(entry)).collect();
        assert_eq!(known, acknowledged.iter().collect::<Vec<_>>(), "of writer {number}");
    }
}
