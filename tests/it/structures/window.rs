//! Windows.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::{Fleet, fleet, rule, store, text, with_one_copy_and_two};
use crate::client::Client;
use crate::world::{Memcached, direct, eventually};

with_one_copy_and_two!(
    a_count_returns_the_sum_of_the_window_with_itself,
    a_visitor_is_counted_once_a_window,
    many_clients_that_count_the_same_visitors_count_each_once,
);

fn sum(client: &mut Client, key: &str) -> u64 {
    text(client, key).expect("a sum").parse().expect("a number")
}

fn a_count_returns_the_sum_of_the_window_with_itself(fleet: Fleet) {
    let (_servers, [a, b]) = fleet(&[rule("rate", "rate:*", "window", "window = \"1h\"\nslots = 10")]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(text(&mut a, "rate:1").as_deref(), Some("0"), "a sum of nothing");
    assert_eq!(a.execute("incr rate:1 3"), "3");
    assert_eq!(b.execute("incr rate:1 4"), "7");
    assert_eq!(sum(&mut a, "rate:1"), 7);
    b.send(b"ma rate:1 D2 v k\r\n");
    b.expect(b"VA 1 krate:1\r\n9\r\n");
    b.send(b"mg rate:1 v s t f\r\n");
    b.expect(b"VA 1 s1 t-1 f0\r\n9\r\n");
    a.send(b"incr rate:1 1 noreply\r\nma rate:1 q\r\nmn\r\n");
    assert_eq!(a.line(), "MN");
    assert_eq!(sum(&mut b, "rate:1"), 11);
    assert_eq!(a.delete("rate:1"), "DELETED");
    assert_eq!((sum(&mut b, "rate:1"), b.delete("rate:1")), (0, "NOT_FOUND".into()));
    assert_eq!(a.execute("incr rate:1 1"), "1");
}

#[test]
fn a_count_is_in_every_sum_of_its_window_and_then_in_none() {
    let (_servers, [a, b]) = fleet(&[rule("rate", "rate:*", "window", "window = \"2s\"\nslots = 10")]);
    let (mut client, mut other) = (a.client(), b.client());
    for round in 1..=3 {
        let key = format!("rate:{round}");
        let before = Instant::now();
        assert_eq!(client.execute(&format!("incr {key} 5")), "5");
        let after = Instant::now();
        loop {
            let asked = after.elapsed();
            let found = sum(&mut other, &key);
            // It may be in it for a slot longer.
            assert!(
                found == 5 || before.elapsed() > Duration::from_secs(2),
                "lost after {:?}",
                before.elapsed()
            );
            assert!(found == 0 || asked < Duration::from_millis(2_400), "in it after {asked:?}");
            if found == 0 {
                break;
            }
        }
    }
}

#[test]
fn no_acknowledged_count_is_missing_in_a_later_sum() {
    const CLIENTS: u64 = 8;
    const COUNTS: u64 = 150;
    let (servers, sidecars) = fleet(&[rule("rate", "rate:*", "window", "window = \"1h\"\nslots = 60")]);
    thread::scope(|scope| {
        for n in 0..CLIENTS {
            let mut client = sidecars[n as usize % 2].client();
            scope.spawn(move || {
                let mut last = 0;
                for count in 1..=COUNTS {
                    let sum: u64 = client.execute("incr rate:1 1").parse().unwrap();
                    assert!(sum > last && sum >= count, "{sum} after {last}");
                    last = sum;
                }
            });
        }
    });
    assert_eq!(sum(&mut sidecars[0].client(), "rate:1"), CLIENTS * COUNTS);
    // All slots are on the server of the window's key. Each server has other items too, such as the pool's mark.
    eventually("one server has the slots", || {
        servers.iter().filter(|server| has_slots(server, "rate:1")).count() == 1
    });
}

fn a_visitor_is_counted_once_a_window(fleet: Fleet) {
    let unique = "window = \"1h\"\nunique = true";
    let (_servers, [a, b]) = fleet(&[rule("online", "online:*", "window", unique)]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(store(&mut a, "add online:page:7:ann 0 0", ""), "STORED");
    assert_eq!(store(&mut b, "add online:page:7:ann 0 0", "x"), "NOT_STORED");
    assert_eq!(store(&mut b, "add online:page:7:bob 0 0", "x"), "STORED");
    assert_eq!((sum(&mut a, "online:page:7"), sum(&mut a, "online:page:8")), (2, 0));
    b.send(b"ms online:page:7:bob 1 ME\r\nx\r\nms online:page:7:cat 1 ME\r\nx\r\n");
    assert_eq!((b.line(), b.line().as_str()), ("NS".into(), "HD"));
    assert_eq!(sum(&mut a, "online:page:7"), 3);
    // After a delete, everybody is new.
    assert_eq!(a.delete("online:page:7"), "DELETED");
    assert_eq!(sum(&mut b, "online:page:7"), 0);
    assert_eq!(store(&mut b, "add online:page:7:ann 0 0", ""), "STORED");
    assert_eq!(store(&mut a, "add online:page:7:ann 0 0", ""), "NOT_STORED");
    assert_eq!(sum(&mut a, "online:page:7"), 1);
    let only = "CLIENT_ERROR a window with unique has only the commands add KEY:VISITOR, get, delete";
    assert_eq!(a.execute("incr online:page:7 1"), only);
    assert_eq!(store(&mut a, "set online:page:7:ann 0 0", "x"), only);
    let visitor = "CLIENT_ERROR the key must be that of the window, ':' and a visitor";
    assert_eq!(store(&mut a, "add online: 0 0", "x"), visitor);
}

fn many_clients_that_count_the_same_visitors_count_each_once(fleet: Fleet) {
    const VISITORS: u64 = 60;
    let unique = "window = \"1h\"\nunique = true";
    let (_servers, sidecars) = fleet(&[rule("online", "online:*", "window", unique)]);
    let stored: u64 = thread::scope(|scope| {
        let count = |mut client: Client, seed: u64| {
            let add =
                |n: u64| store(&mut client, &format!("add online:1:v{} 0 0", (n + seed) % VISITORS), "");
            let replies: Vec<String> = (0..VISITORS).map(add).collect();
            assert!(replies.iter().all(|reply| reply == "STORED" || reply == "NOT_STORED"), "{replies:?}");
            replies.iter().filter(|reply| *reply == "STORED").count() as u64
        };
        let threads: Vec<_> = (0..6)
            .map(|n| {
                let client = sidecars[n as usize % 2].client();
                scope.spawn(move || count(client, n * 7))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).sum()
    });
    assert_eq!((stored, sum(&mut sidecars[1].client(), "online:1")), (VISITORS, VISITORS));
}

#[test]
fn a_visitor_who_comes_again_in_a_later_window_counts_again() {
    let unique = "window = \"1s\"\nslots = 10\nunique = true";
    let (_servers, [a, b]) = fleet(&[rule("online", "online:*", "window", unique)]);
    let (mut a, mut b) = (a.client(), b.client());
    for _ in 0..3 {
        assert_eq!(store(&mut a, "add online:1:ann 0 0", ""), "STORED");
        eventually("the visit leaves the window", || {
            let again = store(&mut b, "add online:1:ann 0 0", "");
            assert!(sum(&mut a, "online:1") <= 1, "a visitor counts twice");
            again == "STORED"
        });
        eventually("the visit leaves the window", || sum(&mut a, "online:1") == 0);
    }
}

#[test]
fn commands_that_a_window_does_not_have_are_refused_with_those_that_it_has() {
    let (_servers, [a, _b]) = fleet(&[rule("rate", "rate:*", "window", "window = \"1h\"")]);
    let mut client = a.client();
    let only = "CLIENT_ERROR a window has only the commands incr, get, delete";
    for verb in ["set", "add", "append", "replace"] {
        assert_eq!(store(&mut client, &format!("{verb} rate:1 0 0"), "1"), only, "{verb}");
    }
    assert_eq!(client.execute("touch rate:1 1"), only);
    assert_eq!(client.execute("gat 1 rate:1"), only);
    assert_eq!(client.execute("decr rate:1 1"), "CLIENT_ERROR the window has only counts that increase");
    let long = "k".repeat(240);
    let too_long = "CLIENT_ERROR the key of a structure is too long for the items below it";
    assert_eq!(client.execute(&format!("incr rate:{long} 1")), too_long);
    assert_eq!(client.execute(&format!("get rate:1 rate:{long}")), too_long);
    assert_eq!(client.execute("incr rate:1 1"), "1");
}

/// Whether this server has a slot of this window.
fn has_slots(server: &Memcached, key: &str) -> bool {
    let mut client = direct(server);
    client.send(b"lru_crawler metadump all\r\n");
    let items = String::from_utf8_lossy(&client.until(b"END\r\n")).into_owned();
    items.contains(&format!("key={}%40kennel%3Aw", key.replace(':', "%3A")))
}

#[test]
fn a_window_of_a_dead_server_is_an_error_to_count_and_a_miss_to_read() {
    let (mut servers, [a, b]) = fleet(&[rule("rate", "rate:*", "window", "window = \"1h\"")]);
    let (mut client, mut other) = (a.client(), b.client());
    assert_eq!(client.execute("incr rate:1 2"), "2");
    let mut at = None;
    eventually("one server has the window", || {
        at = servers.iter().position(|server| has_slots(server, "rate:1"));
        at.is_some()
    });
    servers[at.expect("just found")].kill();
    eventually("the server is known to be down", || {
        client.execute("incr rate:1 1").starts_with("SERVER_ERROR")
    });
    // A miss, which is no sum of 0.
    eventually("reads are misses", || text(&mut other, "rate:1").is_none());
    assert!(other.delete("rate:1").starts_with("SERVER_ERROR"));
}
