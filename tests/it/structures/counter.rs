//! Counters.

use std::thread;

use super::{fleet, impatient_fleet, rule, store, text};
use crate::client::Client;
use crate::world::{direct, eventually, holder};

const COMMANDS: &str = "CLIENT_ERROR a counter has only the commands incr, decr, get, set, add, delete";

#[test]
fn a_counter_is_created_by_its_first_count_and_read_without_padding() {
    let (servers, [a, b]) = fleet(&[rule("hits", "hits:*", "counter", "ttl = \"1h\"")]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(text(&mut a, "hits:1"), None);
    assert_eq!(a.execute("incr hits:1 7"), "7");
    assert_eq!(b.execute("incr hits:1 3"), "10");
    assert_eq!(a.execute("decr hits:1 1"), "9");
    assert_eq!(text(&mut b, "hits:1").as_deref(), Some("9"), "memcached has \"9 \"");
    assert_eq!(a.execute("decr hits:1 100"), "0");
    assert_eq!(a.execute("decr hits:2 5"), "0", "a counter is never below 0");
    let ttl = |key: &str| direct(&servers[holder(&servers, key)]).ttl(key).unwrap();
    assert!((3_590..=3_600).contains(&ttl("hits:1")) && (3_590..=3_600).contains(&ttl("hits:2")));
    assert_eq!(store(&mut a, "set hits:1 5 0", "41"), "STORED");
    assert!((3_590..=3_600).contains(&ttl("hits:1")), "the rule's ttl");
    assert_eq!(store(&mut a, "set hits:3 5 100", "41"), "STORED");
    assert!((90..=100).contains(&ttl("hits:3")), "the client's exptime");
    assert_eq!(b.get_many(&["hits:1"])[0].flags, 5);
    assert_eq!(store(&mut a, "add hits:1 0 0", "1"), "NOT_STORED");
    assert_eq!(store(&mut a, "add hits:4 0 0", "1"), "STORED");
    assert_eq!((a.delete("hits:1"), b.delete("hits:1")), ("DELETED".into(), "NOT_FOUND".into()));
    let (_, cas) = a.gets("hits:4").unwrap();
    assert!(cas > 0);
}

#[test]
fn a_count_wraps_as_memcached_does_and_a_value_that_is_no_number_is_refused() {
    let (servers, [a, _b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let mut client = a.client();
    assert_eq!(store(&mut client, "set hits:1 0 0", "18446744073709551615"), "STORED");
    assert_eq!(client.execute("incr hits:1 2"), "1");
    let refused = "CLIENT_ERROR a counter can only be set to a number from 0 to 18446744073709551615";
    for value in ["", "x", "-1", "1.0", "18446744073709551616"] {
        assert_eq!(store(&mut client, "set hits:1 0 0", value), refused, "{value:?}");
    }
    assert_eq!(client.execute("incr hits:1 x"), "CLIENT_ERROR invalid numeric delta argument");
    assert_eq!(text(&mut client, "hits:1").as_deref(), Some("1"));
    // What somebody has stored past Kennel.
    direct(&servers[holder(&servers, "hits:1")]).store("hits:1", b"words", 0);
    let number = "CLIENT_ERROR cannot increment or decrement non-numeric value";
    assert_eq!(client.execute("incr hits:1 1"), number);
    assert_eq!(client.execute("ma hits:1"), number);
    assert_eq!(text(&mut client, "hits:1").as_deref(), Some("words"));
}

#[test]
fn commands_that_a_counter_does_not_have_are_refused_with_those_that_it_has() {
    let (_servers, [a, _b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let mut client = a.client();
    assert_eq!(client.execute("incr hits:1 1"), "1");
    for verb in ["append", "prepend", "replace"] {
        assert_eq!(store(&mut client, &format!("{verb} hits:1 0 0"), "1"), COMMANDS, "{verb}");
    }
    client.send(b"cas hits:1 0 0 1 1\r\n1\r\n");
    assert_eq!(client.line(), COMMANDS);
    for command in ["touch hits:1 1", "gat 1 hits:1", "gats 1 r hits:1"] {
        assert_eq!(client.execute(command), COMMANDS, "{command}");
    }
    for mode in ["MA", "MP", "MR"] {
        client.send(format!("ms hits:1 1 {mode}\r\n1\r\n").as_bytes());
        assert_eq!(client.line(), COMMANDS, "{mode}");
    }
    for command in
        ["mg hits:1 v N30", "mg hits:1 T1", "mg hits:1 v R1", "md hits:1 I", "md hits:1 C1", "ma hits:1 T1"]
    {
        let refused = "CLIENT_ERROR a flag does not apply to the key of a structure";
        assert_eq!(client.execute(command), refused, "{command}");
    }
    assert_eq!(text(&mut client, "hits:1").as_deref(), Some("1"));
    let metrics = a.metrics();
    let refused = metrics.sum("kennel_requests_total", &["rule=\"hits\"", "outcome=\"client_error\""]);
    assert_eq!(
        refused,
        14.0,
        "{:?}",
        metrics.0.keys().filter(|k| k.contains("client_error")).collect::<Vec<_>>()
    );
    assert_eq!(metrics.sum("kennel_requests_total", &["rule=\"hits\"", "outcome=\"counted\""]), 1.0);
}

#[test]
fn meta_clients_have_the_same_commands() {
    let (_servers, [a, b]) = fleet(&[rule("hits", "hits:*", "counter", "ttl = \"1m\"")]);
    let (mut a, mut b) = (a.client(), b.client());
    a.send(b"ma hits:1 v t k Oabc\r\n");
    a.expect(b"VA 1 t60 khits:1 Oabc\r\n1\r\n");
    a.send(b"ma hits:1 D5 v\r\n");
    a.expect(b"VA 1\r\n6\r\n");
    a.send(b"ma hits:1 MD D2\r\n");
    a.expect(b"HD\r\n");
    // base64 of hits:1
    b.send(b"mg aGl0czox b v k s f\r\n");
    b.expect(b"VA 1 kaGl0czox b s1 f0\r\n4\r\n");
    // base64 of "hits 1", a key that no rule matches, and of "hits:1 ", which is no text.
    assert_eq!(b.execute("mg aGl0cyAx b v"), "EN");
    assert_eq!(b.execute("mg aGl0czoxIA== b v"), "CLIENT_ERROR the key of a structure must be text");
    a.send(b"ma hits:2 N0 J100 D5 v t\r\n");
    a.expect(b"VA 3 t-1\r\n100\r\n");
    a.send(b"ms hits:2 2 F7 T50 c\r\n99\r\n");
    assert!(a.line().starts_with("HD c"));
    b.send(b"mg hits:2 v f t\r\n");
    b.expect(b"VA 2 f7 t50\r\n99\r\n");
    assert_eq!((a.execute("md hits:2"), b.execute("md hits:2")), ("HD".into(), "NF".into()));
    assert_eq!(b.execute("mg hits:2 v k"), "EN khits:2");
    assert_eq!(a.execute("me hits:1").split(' ').next(), Some("ME"));
}

#[test]
fn no_acknowledged_count_is_lost_or_counted_twice_by_many_clients_of_two_sidecars() {
    const CLIENTS: usize = 8;
    const COUNTS: usize = 400;
    const COUNTERS: usize = 6;
    let (_servers, sidecars) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let count = |mut client: Client, seed: usize| {
        for n in 0..COUNTS {
            let key = (seed + n) % COUNTERS;
            let reply = client.execute(&format!("incr hits:{key} {}", n % 3 + 1));
            assert!(reply.parse::<u64>().is_ok(), "{reply}");
        }
    };
    thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let client = sidecars[seed % 2].client();
            scope.spawn(move || count(client, seed));
        }
    });
    let mut expected = [0; COUNTERS];
    for seed in 0..CLIENTS {
        (0..COUNTS).for_each(|n| expected[(seed + n) % COUNTERS] += n % 3 + 1);
    }
    let mut client = sidecars[1].client();
    for (key, expected) in expected.iter().enumerate() {
        assert_eq!(text(&mut client, &format!("hits:{key}")), Some(expected.to_string()));
    }
}

#[test]
fn a_count_that_timed_out_is_an_error_and_was_sent_once() {
    let (servers, [a, b]) = impatient_fleet(&[rule("hits", "hits:*", "counter", "")]);
    let (mut client, mut other) = (a.client(), b.client());
    assert_eq!(client.execute("incr hits:1 1"), "1");
    let server = &servers[holder(&servers, "hits:1")];
    server.stop();
    assert!(client.execute("incr hits:1 1").starts_with("SERVER_ERROR"), "whether it counts is unknown");
    assert_eq!(text(&mut client, "hits:1"), None, "on_error = \"miss\"");
    server.cont();
    // The server has received it, so it counts once.
    eventually("the count arrives", || text(&mut other, "hits:1").as_deref() == Some("2"));
    eventually("the server is used again", || client.execute("incr hits:1 1") == "3");
}

#[test]
fn counters_of_a_killed_server_begin_anew_and_those_of_others_are_exact() {
    let (mut servers, [a, b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let (mut client, mut other) = (a.client(), b.client());
    let keys: Vec<String> = (0..30).map(|n| format!("hits:{n}")).collect();
    keys.iter().for_each(|key| assert_eq!(client.execute(&format!("incr {key} 5")), "5"));
    let lost: Vec<bool> = keys.iter().map(|key| holder(&servers, key) == 0).collect();
    assert!(lost.iter().any(|lost| *lost) && !lost.iter().all(|lost| *lost));
    servers[0].kill();
    for (key, lost) in keys.iter().zip(&lost) {
        let reply = client.execute(&format!("incr {key} 1"));
        assert_eq!(reply, if *lost { "SERVER_ERROR server is down" } else { "6" }, "{key}");
        assert_eq!(text(&mut other, key).is_none(), *lost);
    }
    servers[0].restart();
    for (key, lost) in keys.iter().zip(&lost) {
        let expected = if *lost { "1" } else { "7" };
        eventually("the server is used again", || {
            let reply = client.execute(&format!("incr {key} 1"));
            assert!(reply == expected || reply.starts_with("SERVER_ERROR"), "{key}: {reply}");
            reply == expected
        });
    }
}
