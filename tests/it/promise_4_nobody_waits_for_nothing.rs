//! Promise 4: added waiting is at most `cold_limit`, and a key that is never filled stops causing waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::gate::Gate;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, sidecar_toml, timed,
    until_disconnected,
};

/// What counts as immediate: far below every `cold_wait` here, far above a round trip on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(500);

/// How soon a sidecar detects, by a renewal, that its lease was ended through another sidecar: lock_ttl / 3 and a margin.
const LEASE_CHECKED: Duration = Duration::from_millis(2500);

fn fleet(cold_wait: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    fleet_with(&format!("stale_for = \"10s\"\nlock_ttl = \"5s\"\ncold_wait = \"{cold_wait}\""))
}

fn fleet_with(rule: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let rule = guarded("hot", "hot:*", rule);
    let toml = sidecar_toml(&addresses(&servers), &[rule]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    (servers, sidecars)
}

/// A client that has won `key`.
fn winner(sidecar: &Kennel, key: &str) -> Client {
    let mut client = sidecar.client();
    let (value, took) = timed(|| client.get(key));
    assert_eq!(value, None, "the winner of {key}");
    assert!(took < AT_ONCE, "the winner of {key} waited {took:?}");
    client
}

#[test]
fn cold_losers_wait_for_the_fill_through_the_same_sidecar_and_through_another() {
    let (_servers, sidecars) = fleet("8s");
    let mut winner = winner(&sidecars[0], "hot:k");
    let mut losers = [sidecars[0].client(), sidecars[1].client()];
    losers.iter_mut().for_each(|l| l.send(b"get hot:k\r\n"));
    losers.iter_mut().for_each(|l| l.silent_for(Duration::from_millis(300)));
    winner.store("hot:k", b"built", 60);
    for loser in &mut losers {
        let (value, took) = timed(|| loser.only_value("hot:k"));
        assert_eq!(value.as_deref(), Some(&b"built"[..]));
        assert!(took < Duration::from_secs(1), "{took:?} after the fill");
    }
}

#[test]
fn a_cold_loser_waits_for_cold_wait_and_no_longer() {
    let (_servers, sidecars) = fleet("1s");
    for sidecar in &sidecars {
        let key = format!("hot:{}", sidecar.address().port());
        let _winner = winner(&sidecars[0], &key);
        let (value, took) = timed(|| sidecar.client().get(&key));
        assert_eq!(value, None);
        assert!(took > Duration::from_millis(500), "waited only {took:?}: nothing is being waited for");
        assert!(took < Duration::from_secs(1) + AT_ONCE, "waited {took:?}, cold_wait is 1 s");
    }
}

#[test]
fn a_key_that_is_claimed_and_not_filled_twice_in_a_row_stops_causing_waits() {
    let (_servers, sidecars) = fleet("8s");
    let first = winner(&sidecars[0], "hot:never");
    let mut second = sidecars[0].client();
    second.send(b"get hot:never\r\n");
    second.silent_for(Duration::from_millis(200));
    drop(first);
    assert_eq!(second.only_value("hot:never"), None, "the winner's going wakes the loser, who wins");
    drop(second);
    let mut third = sidecars[0].client();
    assert_eq!(third.get("hot:never"), None);
    for _ in 0..3 {
        let (value, took) = timed(|| sidecars[0].client().get("hot:never"));
        assert_eq!(value, None);
        assert!(took < AT_ONCE, "waited {took:?} for a key that is never filled");
    }
}

#[test]
fn that_a_key_was_given_up_elsewhere_counts_too_for_those_who_waited_for_it() {
    let (_servers, sidecars) = fleet("8s");
    let first = winner(&sidecars[0], "hot:never");
    let mut second = sidecars[1].client();
    second.send(b"get hot:never\r\n");
    second.silent_for(Duration::from_millis(200));
    drop(first);
    assert_eq!(second.only_value("hot:never"), None, "the winner's going wakes the loser, who wins");
    drop(second);
    until_disconnected(&sidecars[1], 1.0);
    let mut third = sidecars[1].client();
    assert_eq!(third.get("hot:never"), None);
    let (value, took) = timed(|| sidecars[1].client().get("hot:never"));
    assert_eq!(value, None);
    assert!(took < AT_ONCE, "waited {took:?} for a key that was given up twice");
}

#[test]
fn a_get_with_requests_pipelined_behind_it_never_waits() {
    let (_servers, sidecars) = fleet("8s");
    let mut other = sidecars[0].client();
    other.store("hot:there", b"v", 60);
    let _winner = winner(&sidecars[0], "hot:k");
    let ((), took) = timed(|| {
        other.send(b"get hot:k\r\nget hot:there\r\n");
        other.expect(b"END\r\nVALUE hot:there 0 1\r\nv\r\nEND\r\n");
    });
    assert!(took < AT_ONCE, "waited {took:?} with a request behind it");
    // The guard is not involved in the requests after these.
    for behind in ["verbosity 1", "get raw", "get raw1 raw2"] {
        let reply = if behind.starts_with("get") { "END" } else { "OK" };
        let ((), took) = timed(|| {
            other.send(format!("get hot:k\r\n{behind}\r\n").as_bytes());
            other.expect(format!("END\r\n{reply}\r\n").as_bytes());
        });
        assert!(took < AT_ONCE, "waited {took:?} with {behind} behind it");
        other.send(b"get hot:k\r\n");
        other.silent_for(Duration::from_millis(50));
        let ((), took) = timed(|| {
            other.send(format!("{behind}\r\n").as_bytes());
            other.expect(format!("END\r\n{reply}\r\n").as_bytes());
        });
        assert!(took < AT_ONCE, "went on waiting for {took:?} though {behind} came behind it");
    }
}

#[test]
fn a_get_never_waits_with_anything_at_all_behind_it() {
    let (_servers, sidecars) = fleet("8s");
    let _winner = winner(&sidecars[0], "hot:k");
    for sidecar in &sidecars {
        let mut other = sidecar.client();
        // Served without a server, by one server, and not a request at all.
        for (behind, reply) in [("mn", "MN\r\n"), ("get raw:none", "END\r\n"), ("nonsense", "ERROR\r\n")] {
            let ((), took) = timed(|| {
                other.send(format!("get hot:k\r\n{behind}\r\n").as_bytes());
                other.expect(format!("END\r\n{reply}").as_bytes());
            });
            assert!(took < AT_ONCE, "waited {took:?} with {behind} behind it");
        }
    }
}

#[test]
fn a_get_does_not_wait_with_an_answer_behind_it_that_came_earlier_than_its_own() {
    let servers = memcacheds(2);
    let gate = Gate::start(servers[0].address);
    let rule = guarded("hot", "hot:*", "stale_for = \"10s\"\nlock_ttl = \"30s\"\ncold_wait = \"8s\"");
    let toml = sidecar_toml(&[gate.address(), servers[1].address()], &[rule]);
    let sidecar = Kennel::start(&toml.replace("request_timeout = \"500ms\"", "request_timeout = \"20s\""));
    let mut client = sidecar.client();
    let mut keys = [const { String::new() }; 2];
    for n in 0..1000 {
        let key = format!("hot:{n}");
        client.store(&key, b"v", 60);
        let at = holder(&servers, &key);
        keys[at] = key;
        if keys.iter().all(|key| !key.is_empty()) {
            break;
        }
    }
    let [slow, quick] = keys;
    assert_eq!(client.delete(&slow), "DELETED");
    let _winner = winner(&sidecar, &slow);
    gate.hold_replies();
    let hits = || sidecar.metrics().sum("kennel_requests_total", &["outcome=\"hit\""]);
    let before = hits();
    client.send(format!("get {slow}\r\nget {quick}\r\n").as_bytes());
    eventually("the second reply is here", || hits() > before);
    gate.release();
    let (value, took) = timed(|| client.only_value(&slow));
    assert_eq!(value, None);
    assert!(took < AT_ONCE, "waited {took:?} with a reply behind it");
    assert_eq!(client.only_value(&quick).as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_multi_get_that_holds_a_win_never_waits() {
    let (_servers, sidecars) = fleet("8s");
    let _winner = winner(&sidecars[0], "hot:held");
    for (sidecar, own) in sidecars.iter().zip(["hot:own1", "hot:own2"]) {
        let (items, took) = timed(|| sidecar.client().get_many(&[own, "hot:held"]));
        assert_eq!(items, []);
        assert!(took < AT_ONCE, "waited {took:?} while others may wait for {own}");
    }
}

#[test]
fn of_two_multi_gets_for_each_others_keys_neither_waits_for_the_other_to_end() {
    let (_servers, sidecars) = fleet("8s");
    for round in 0..20 {
        let keys = [format!("hot:{round}:a"), format!("hot:{round}:b")];
        let get_both = |sidecar: &Kennel, first: &str, second: &str| {
            let mut client = sidecar.client();
            let items = client.get_many(&[first, second]);
            let missing = [first, second].into_iter().filter(|k| items.iter().all(|i| i.key != *k));
            missing.for_each(|k| client.store(k, b"built", 60));
        };
        let ((), took) = timed(|| {
            std::thread::scope(|s| {
                s.spawn(|| get_both(&sidecars[0], &keys[0], &keys[1]));
                s.spawn(|| get_both(&sidecars[1], &keys[1], &keys[0]));
            });
        });
        assert!(
            took < Duration::from_secs(4),
            "round {round} took {took:?}: each waited for the other's fill"
        );
    }
}

#[test]
fn behind_a_winner_who_has_had_longer_than_cold_wait_one_is_let_through_at_once_and_the_next_waits() {
    let (servers, sidecars) = fleet_with("lock_ttl = \"9s\"\ncold_wait = \"2s\"");
    let _winner = winner(&sidecars[0], "hot:k");
    // Initially lock_ttl + 1. A second of what is lost may not have passed.
    let mut server = direct(&servers[holder(&servers, "hot:k")]);
    eventually("the stub is over two seconds old", || server.ttl("hot:k").expect("its winner lives") <= 7);
    let mut through = sidecars[1].client();
    let (value, took) = timed(|| through.get("hot:k"));
    assert_eq!(value, None);
    assert!(took < AT_ONCE, "waited {took:?} for a winner of three seconds ago");
    let mut next = sidecars[0].client();
    let (value, took) = timed(|| next.get("hot:k"));
    assert_eq!(value, None);
    let allowed = Duration::from_secs(1)..Duration::from_secs(2) + AT_ONCE;
    assert!(allowed.contains(&took), "waited {took:?} for whoever was just let through");
}

#[test]
fn a_winners_age_is_known_to_other_sidecars_though_its_stub_is_renewed() {
    // Renewed three times a second, so its TTL never falls by more than a second.
    let (_servers, sidecars) = fleet_with("lock_ttl = \"1s\"\ncold_wait = \"2s\"");
    let _winner = winner(&sidecars[0], "hot:k");
    std::thread::sleep(Duration::from_secs(3));
    let mut through = sidecars[1].client();
    let (value, took) = timed(|| through.get("hot:k"));
    assert_eq!(value, None);
    assert!(took < AT_ONCE, "waited {took:?} for a winner of three seconds ago");
}

#[test]
fn whoever_waits_is_let_through_after_cold_wait_or_told_a_miss_after_cold_limit() {
    let (_servers, sidecars) = fleet_with("lock_ttl = \"9s\"\ncold_wait = \"1s\"\ncold_limit = \"1500ms\"");
    let _winner = winner(&sidecars[0], "hot:k");
    let mut losers: Vec<_> = (0..10).map(|n| sidecars[n % 2].client()).collect();
    let began = Instant::now();
    losers.iter_mut().for_each(|loser| loser.send(b"get hot:k\r\n"));
    let told = std::thread::scope(|scope| {
        let tell = |loser: &mut Client| {
            assert_eq!(loser.only_value("hot:k"), None);
            began.elapsed()
        };
        let told: Vec<_> = losers.iter_mut().map(|loser| scope.spawn(move || tell(loser))).collect();
        told.into_iter().map(|told| told.join().unwrap()).collect::<Vec<_>>()
    });
    let early = told.iter().filter(|took| **took < Duration::from_millis(1400)).count();
    assert_eq!(early, 1, "one in the fleet is let through: {told:?}");
    assert!(told.iter().all(|took| *took < Duration::from_millis(1500) + AT_ONCE), "{told:?}");
}

#[test]
fn a_loser_that_loses_again_does_not_wait_anew() {
    let (_servers, sidecars) = fleet_with("lock_ttl = \"9s\"\ncold_wait = \"2s\"\ncold_limit = \"2s\"");
    let first = winner(&sidecars[0], "hot:k");
    let mut losers = [sidecars[0].client(), sidecars[0].client()];
    let ((), took) = timed(|| {
        losers.iter_mut().for_each(|l| l.send(b"get hot:k\r\n"));
        losers[0].silent_for(Duration::from_millis(1200));
        drop(first);
        // One of them wins and does not fill; the other one waits for it.
        losers.iter_mut().for_each(|l| assert_eq!(l.only_value("hot:k"), None));
    });
    assert!(took < Duration::from_secs(2) + AT_ONCE, "waited {took:?} in all; cold_limit is 2 s");
}

#[test]
fn a_delete_wakes_those_who_wait_for_what_it_has_ended() {
    let (_servers, sidecars) = fleet("9s");
    for sidecar in &sidecars {
        let key = format!("hot:{}", sidecar.address().port());
        let _winner = winner(&sidecars[0], &key);
        let mut loser = sidecars[0].client();
        loser.send(format!("get {key}\r\n").as_bytes());
        loser.silent_for(Duration::from_millis(200));
        let (value, took) = timed(|| {
            sidecar.client().delete(&key);
            loser.only_value(&key)
        });
        assert_eq!(value, None, "it wins");
        assert!(took < LEASE_CHECKED, "freed after {took:?}");
    }
}

#[test]
fn those_with_an_old_value_to_be_served_wait_for_stale_wait_and_no_longer() {
    let rule = "stale_for = \"30s\"\nlock_ttl = \"9s\"\ncold_wait = \"9s\"";
    for (stale_wait, least, most) in [("0ms", 0, 500), ("1s", 600, 1500)] {
        let (servers, sidecars) = fleet_with(&format!("{rule}\nstale_wait = \"{stale_wait}\""));
        let mut first = sidecars[0].client();
        first.store("hot:k", b"old", 1);
        crate::world::until_stale(&servers, "hot:k", 30);
        assert_eq!(first.get("hot:k"), None);
        for sidecar in &sidecars {
            let (value, took) = timed(|| sidecar.client().get("hot:k"));
            assert_eq!(value.as_deref(), Some(&b"old"[..]));
            let allowed = Duration::from_millis(least)..Duration::from_millis(most);
            assert!(allowed.contains(&took), "waited {took:?}; stale_wait is {stale_wait}");
        }
    }
}

#[test]
fn those_with_an_old_value_do_not_wait_for_a_winner_of_their_sidecar_who_has_had_longer_than_cold_wait() {
    let rule = "stale_for = \"30s\"\nlock_ttl = \"9s\"\ncold_wait = \"1s\"\nstale_wait = \"1s\"";
    let (servers, sidecars) = fleet_with(rule);
    let mut first = sidecars[0].client();
    first.store("hot:k", b"old", 1);
    crate::world::until_stale(&servers, "hot:k", 30);
    assert_eq!(first.get("hot:k"), None);
    let (value, took) = timed(|| sidecars[0].client().get("hot:k"));
    assert_eq!(value.as_deref(), Some(&b"old"[..]));
    assert!(took > AT_ONCE, "waited only {took:?}: nothing is being waited for");
    let (value, took) = timed(|| sidecars[0].client().get("hot:k"));
    assert_eq!(value.as_deref(), Some(&b"old"[..]));
    assert!(took < AT_ONCE, "waited {took:?}, and one had waited a second already");
}
