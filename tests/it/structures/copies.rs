//! Values on two servers, of which one is killed, restarts empty, or hangs.

mod commands;
mod faults;
mod ledger;
mod repair;
mod together;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use super::seen::explain;
use super::{rule, store, text};
use crate::client::Client;
use crate::libraries::root;
use crate::world::{
    Kennel, Memcached, addresses, eventually, memcacheds, sidecar_toml, timed, with_long_windows,
};

/// Enough keys that each server has both first and second copies.
const KEYS: usize = 24;
/// Short durations of failover.
const SHORT: &str = "window = \"1s\"\nfail_after = \"1s\"\nrecover_after = \"2s\"\n";

/// A rule whose values have two copies.
fn copied(name: &str, pattern: &str, kind: &str, more: &str) -> String {
    rule(name, pattern, kind, &format!("{more}\ncopies = 2"))
}

/// Three servers and two sidecars.
fn fleet() -> (Vec<Memcached>, [Kennel; 2]) {
    fleet_that(SHORT)
}

/// The same with these keys of the pool.
fn fleet_that(pool: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    fleet_of(&[copied("counts", "count:*", "counter", "")], |toml| {
        toml.replace("[pools.main]\n", &format!("[pools.main]\n{pool}"))
    })
}

/// The same with two copies of every structure of these rules, and with durations and a timeout that a busy machine does not exceed.
pub(super) fn fleet_with_copies(rules: &[String]) -> (Vec<Memcached>, [Kennel; 2]) {
    let has_copies =
        |rule: &String| !["raw", "guarded"].iter().any(|kind| rule.contains(&format!("kind = {kind:?}")));
    let add = |rule: &String| if has_copies(rule) { format!("{rule}copies = 2\n") } else { rule.clone() };
    let rules: Vec<_> = rules.iter().map(add).collect();
    fleet_of(&rules, |toml| {
        with_long_windows(&toml.replace("request_timeout = \"500ms\"", "request_timeout = \"10s\""))
    })
}

/// Three servers and two sidecars that know all places, with a rule of sessions before these.
fn fleet_of(rules: &[String], with: impl Fn(String) -> String) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let sessions = copied("sessions", "session:*", "raw", "");
    let rules: Vec<_> = std::iter::once(sessions).chain(rules.iter().cloned()).collect();
    let toml = with(sidecar_toml(&addresses(&servers), &rules));
    let sidecars = [(); 2].map(|()| Kennel::start(&toml));
    for sidecar in &sidecars {
        until_writable(&mut sidecar.client(), "new");
    }
    (servers, sidecars)
}

/// Waits until every session can be stored, and stores them.
fn until_writable(client: &mut Client, value: &str) {
    let mut stored = |n| store(client, &format!("set session:{n} 0 0"), value) == "STORED";
    for n in 0..KEYS {
        eventually("a session is stored", || stored(n));
    }
}

/// The counts that were acknowledged, and those that were tried.
#[derive(Default)]
struct Counts {
    acknowledged: [u64; KEYS],
    tried: [u64; KEYS],
}

impl Counts {
    /// Counts once under each key.
    fn count(&mut self, client: &mut Client) {
        for n in 0..KEYS {
            self.tried[n] += 1;
            let reply = client.execute(&format!("incr count:{n} 1"));
            self.acknowledged[n] += u64::from(reply.parse::<u64>().is_ok());
        }
    }

    /// Counts until each key has been counted once more.
    fn count_until_acknowledged(&mut self, client: &mut Client) {
        let before = self.acknowledged;
        eventually("each count is acknowledged", || {
            self.count(client);
            (0..KEYS).all(|n| self.acknowledged[n] > before[n])
        });
    }

    fn check(&self, client: &mut Client, when: &str) {
        for n in 0..KEYS {
            let number =
                text(client, &format!("count:{n}")).map_or(0, |number| number.parse().expect("a number"));
            let right = self.acknowledged[n]..=self.tried[n];
            assert!(right.contains(&number), "{when}: count:{n} is {number}, not in {right:?}");
        }
    }
}

fn check_sessions(client: &mut Client, value: &str, when: &str) {
    for n in 0..KEYS {
        assert_eq!(text(client, &format!("session:{n}")).as_deref(), Some(value), "{when}: session:{n}");
    }
}

#[test]
fn a_value_with_two_copies_has_the_commands_of_a_raw_key() {
    let (_servers, [a, b]) = fleet();
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(store(&mut a, "add session:0 0 0", "x"), "NOT_STORED");
    assert_eq!(store(&mut a, "replace session:0 7 100", "b"), "STORED");
    assert_eq!(store(&mut b, "append session:0 0 0", "c"), "STORED");
    assert_eq!(store(&mut a, "prepend session:0 0 0", "a"), "STORED");
    let item = &b.get_many(&["session:0"])[0];
    assert_eq!((&item.value[..], item.flags), (&b"abc"[..], 7));
    let (_, cas) = b.gets("session:0").unwrap();
    assert_eq!(a.execute("touch session:0 200"), "TOUCHED");
    assert_eq!(b.execute("mg session:0 t s"), "HD t200 s3");
    let cas_is = |client: &mut Client, cas: u64| {
        client.send(format!("cas session:0 7 200 3 {cas}\r\nabc\r\n").as_bytes());
        client.line()
    };
    assert_eq!(cas_is(&mut b, cas), "EXISTS", "the touch has changed it");
    let (_, cas) = a.gets("session:0").unwrap();
    assert_eq!(cas_is(&mut b, cas), "STORED");
    let meta_cas = |client: &mut Client, key: &str, mode: &str, cas: u64| {
        client.send(format!("ms {key} 3 T200 F7 C{cas}{mode}\r\nabc\r\n").as_bytes());
        client.line()
    };
    assert_eq!(meta_cas(&mut a, "session:0", "", cas), "EX");
    assert_eq!(meta_cas(&mut a, "session:none", "", cas), "NF");
    let (_, cas) = b.gets("session:0").unwrap();
    assert_eq!(meta_cas(&mut a, "session:0", "", cas), "HD");
    let refused = "CLIENT_ERROR a flag does not apply to the key of a structure";
    assert_eq!(meta_cas(&mut a, "session:0", " MA", cas), refused);
    assert_eq!(meta_cas(&mut a, "count:0", "", cas), refused);
    assert_eq!(a.execute("incr session:0 1"), "CLIENT_ERROR cannot increment or decrement non-numeric value");
    assert_eq!(a.execute("incr session:none 1"), "NOT_FOUND");
    assert_eq!(a.execute("touch session:none 1"), "NOT_FOUND");
    assert_eq!(store(&mut a, "append session:none 0 0", "x"), "NOT_STORED");
    assert_eq!(store(&mut a, "set session:1 0 0", "9"), "STORED");
    assert_eq!((a.execute("incr session:1 5"), b.execute("decr session:1 100")), ("14".into(), "0".into()));
    assert_eq!((a.delete("session:1"), b.delete("session:1")), ("DELETED".into(), "NOT_FOUND".into()));
    assert_eq!(text(&mut b, "session:1"), None);
    let refused = b.execute("gat 10 session:0");
    assert!(
        refused.starts_with("CLIENT_ERROR a raw rule with copies has only the commands get, "),
        "{refused}"
    );
    let page = std::fs::read_to_string(root().join("docs/structures.md")).expect("the page");
    assert!(page.contains(&format!("Any other: `{refused}` |")), "{refused}");
    let refused = store(&mut b, "append count:1 0 0", "1");
    assert_eq!(refused, "CLIENT_ERROR a counter has only the commands incr, decr, get, set, add, delete");
}

#[test]
fn counts_of_many_clients_at_once_are_exact() {
    let (_servers, sidecars) = fleet();
    // A sidecar that gets no time to run may not know the places for a moment, and refuses a count then.
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for at in 0..6 {
            let (mut client, refused) = (sidecars[at % 2].client(), &refused);
            scope.spawn(move || {
                for _ in 0..50 {
                    let reply = client.execute("incr count:0 2");
                    if reply.starts_with("SERVER_ERROR") {
                        eprintln!("{reply}");
                        refused.fetch_add(1, Relaxed);
                    } else {
                        assert!(reply.parse::<u64>().is_ok(), "{reply}");
                    }
                }
            });
        }
    });
    let (number, refused) = (text(&mut sidecars[0].client(), "count:0"), refused.into_inner());
    let number: u64 = number.expect("a number").parse().expect("a number");
    assert!((600 - 2 * refused..=600).contains(&number), "{number}, with {refused} refused");
    assert!(refused < 60, "{refused} of 300 were refused");
}

#[test]
fn a_server_that_restarts_empty_takes_nothing_with_it() {
    let (mut servers, [a, b]) = fleet();
    let (mut a, mut b) = (a.client(), b.client());
    let mut counts = Counts::default();
    counts.count_until_acknowledged(&mut a);
    servers[0].restart();
    check_sessions(&mut a, "new", "after the restart");
    counts.count_until_acknowledged(&mut b);
    counts.check(&mut a, "after the restart");
    // What was read or counted is on both servers again.
    check_sessions(&mut b, "new", "after the values were read");
}

#[test]
fn of_a_killed_server_everything_is_readable_at_once_and_changed_once_the_fleet_has_failed_over() {
    let (mut servers, [a, b]) = fleet();
    let (mut a, mut b) = (a.client(), b.client());
    let mut counts = Counts::default();
    counts.count_until_acknowledged(&mut a);
    servers[1].kill();
    let ((), took) = timed(|| check_sessions(&mut a, "new", "with a dead server"));
    assert!(took < Duration::from_secs(3), "{took:?}");
    counts.check(&mut b, "with a dead server");
    counts.count_until_acknowledged(&mut b);
    counts.check(&mut a, "after the failover");
    until_writable(&mut a, "newer");
    check_sessions(&mut b, "newer", "after the failover");
}

/// With `on_error = "miss"`, the default. A client that is told that a session does not exist begins a new one.
#[test]
fn a_get_that_cannot_know_whether_there_is_a_value_is_an_error_and_no_miss() {
    let (mut servers, [a, _b]) = fleet_with_copies(&[]);
    let mut client = a.client();
    servers[1].kill();
    let keys: Vec<_> = (0..30).map(|n| format!("session:absent:{n}")).collect();
    let mut errors = 0;
    for key in &keys {
        let classic = client.execute(&format!("get {key}"));
        let meta = client.execute(&format!("mg {key} v"));
        if classic.starts_with("SERVER_ERROR") {
            assert_eq!(classic, meta);
            errors += 1;
        } else {
            assert_eq!([&*classic, &*meta], ["END", "EN"]);
        }
    }
    // Of two thirds of the keys, the dead server has a copy.
    assert!((5..30).contains(&errors), "{errors}");
}

#[test]
fn a_server_that_hangs_and_returns_with_old_contents_brings_nothing_back() {
    let (servers, [a, b]) = fleet();
    let (mut first, mut second) = (a.client(), b.client());
    let mut counts = Counts::default();
    counts.count_until_acknowledged(&mut first);
    servers[2].stop();
    check_sessions(&mut first, "new", "while a server hangs");
    counts.count_until_acknowledged(&mut first);
    until_writable(&mut second, "newer");
    servers[2].cont();
    let away = |sidecar: &Kennel| sidecar.metrics().sum("kennel_failover_place", &[]);
    eventually("the server is used again", || {
        counts.count(&mut second);
        counts.check(&mut first, "while the server returns");
        check_sessions(&mut first, "newer", "while the server returns");
        away(&a) + away(&b) == 0.0
    });
    counts.count_until_acknowledged(&mut first);
    counts.check(&mut second, "after the server has returned");
    check_sessions(&mut second, "newer", "after the server has returned");
}

#[test]
fn an_explanation_has_both_copies_and_what_they_tell_together() {
    let (mut servers, [a, _b]) = fleet_that(&format!("{SHORT}repair.rate = 0\n"));
    let mut client = a.client();
    assert_eq!(store(&mut client, "set session:none 7 0", "four"), "STORED");
    assert_eq!(client.delete("session:none"), "DELETED");
    assert_eq!(store(&mut client, "set session:x 7 100", "four"), "STORED");
    let explained = |key| explain(&a, key);
    let of = |copies: &serde_json::Value, field: &str| [copies[0][field].clone(), copies[1][field].clone()];
    let found = explained("session:x");
    let copies = &found["structure"]["copies"];
    assert_eq!(found["summary"], "stored: 2 of 2 copies are there");
    assert_eq!(found["notes"][0], "both copies have the same change");
    assert_eq!(of(copies, "state"), ["present", "present"]);
    assert_eq!(
        (of(copies, "value_bytes"), of(copies, "flags")),
        ([4.into(), 4.into()], [7.into(), 7.into()])
    );
    assert_eq!(of(copies, "change"), [1, 1]);
    assert!(copies[0]["life"] == copies[1]["life"] && copies[0]["fence"] != copies[1]["fence"]);
    assert!(copies[0]["ends"].is_string() && found["place"].is_null() && found["item"].is_null());
    let deleted = explained("session:none");
    assert_eq!(deleted["summary"], "nothing is stored");
    assert_eq!(of(&deleted["structure"]["copies"], "state"), ["empty", "empty"]);
    assert_eq!(explained("session:never")["notes"][0], "there is no copy");
    let second = copies[1]["server"].as_str().expect("a server").to_owned();
    let second = servers.iter_mut().find(|server| server.address.to_string() == second).expect("it is one");
    second.restart();
    let note =
        "the second copy is not there: the next read or change stores it again, or the repair of the pool";
    eventually("the server is connected again", || explained("session:x")["notes"][0] == note);
    assert_eq!(explained("session:x")["summary"], "stored: 1 of 2 copies are there");
    let shown = a.http("/explain?key=session:x");
    assert!(
        shown.contains("  copies    127.0.0.1:") && shown.contains(", value 4 bytes, flags 7, until 2"),
        "{shown}"
    );
    assert_eq!(text(&mut client, "session:x").as_deref(), Some("four"));
    assert_eq!(explained("session:x")["notes"][0], "both copies have the same change");
}

#[test]
fn an_explanation_of_a_structure_with_copies_counts_the_copies_of_its_items() {
    let rules = [("lists", "list:*", "list"), ("people", "people:*", "table"), ("locks", "lock:*", "lock")];
    let (_servers, [a, b]) = fleet_with_copies(&rules.map(|(name, keys, kind)| rule(name, keys, kind, "")));
    let mut client = a.client();
    assert_eq!(store(&mut client, "append list:x 0 0", "+ann"), "STORED");
    assert_eq!(store(&mut client, "set people:x/ann 0 0", "four"), "STORED");
    assert_eq!(store(&mut client, "add lock:x 0 60", "me"), "STORED");
    for (key, kind) in [("list:x", "list"), ("people:x", "table")] {
        let found = explain(&b, key);
        assert_eq!(found["summary"], "stored: 2 of 16 items are there", "{key}");
        assert_eq!(
            (&found["structure"]["kind"], &found["structure"]["items"]["all"]),
            (&kind.into(), &16.into())
        );
        assert!(found["notes"][1].as_str().is_some_and(|note| note.contains("two copies")), "{found}");
        assert!(found["place"].is_null() && found["item"].is_null());
    }
    for (key, bytes) in [("people:x/ann", 4), ("lock:x", 19)] {
        let found = explain(&b, key);
        assert_eq!(found["summary"], "stored: 2 of 2 copies are there", "{key}");
        assert_eq!(found["structure"]["copies"][1]["value_bytes"], bytes, "{key}");
    }
    assert_eq!(explain(&b, "people:x/bob")["notes"][0], "there is no copy");
}
