//! Promise 5: the winner's death frees the key, at once when its connection closes, within `lock_ttl` when its sidecar dies; and
//! whatever else happens to a lock costs at most one more rebuild.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::gate::gated_fleet;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, sidecar_toml, timed,
    until_stale, within,
};

fn fleet(more: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", more)]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    (servers, sidecars)
}

/// Stores "old" under `key`, waits until it is stale (stale_for = 30 s) and wins it.
fn stale_winner(servers: &[Memcached], sidecar: &Kennel, key: &str) -> Client {
    let mut client = sidecar.client();
    client.store(key, b"old", 1);
    until_stale(servers, key, 30);
    assert_eq!(client.get(key), None, "the winner of {key}");
    client
}

const QUICK: &str = "stale_for = \"30s\"\nlock_ttl = \"2s\"\nmax_rebuild = \"60s\"\ncold_wait = \"9s\"";

#[test]
fn a_winner_of_a_stale_key_that_closes_its_connection_frees_it_at_once() {
    let (servers, sidecars) = fleet("stale_for = \"30s\"\nlock_ttl = \"9s\"");
    for other in &sidecars {
        let key = format!("hot:{}", other.address().port());
        let winner = stale_winner(&servers, &sidecars[0], &key);
        let mut other = other.client();
        assert_eq!(other.get(&key).as_deref(), Some(&b"old"[..]));
        drop(winner);
        within(Duration::from_secs(4), "another client wins", || other.get(&key).is_none());
    }
}

#[test]
fn a_winner_of_a_cold_key_that_closes_its_connection_lets_one_waiting_loser_win_at_once() {
    let (_servers, sidecars) = fleet("stale_for = \"30s\"\nlock_ttl = \"9s\"\ncold_wait = \"9s\"");
    for other in &sidecars {
        let key = format!("hot:{}", other.address().port());
        let mut winner = sidecars[0].client();
        assert_eq!(winner.get(&key), None);
        let mut loser = other.client();
        loser.send(format!("get {key}\r\n").as_bytes());
        loser.silent_for(Duration::from_millis(200));
        let (value, took) = timed(|| {
            drop(winner);
            loser.only_value(&key)
        });
        assert_eq!(value, None);
        assert!(took < Duration::from_secs(1), "freed after {took:?}");
        loser.store(&key, b"built", 60);
        assert_eq!(sidecars[0].client().get(&key).as_deref(), Some(&b"built"[..]));
    }
}

#[test]
fn a_lock_is_renewed_while_the_winner_lives_and_freed_within_its_ttl_when_the_sidecar_is_killed() {
    let (servers, [first, second]) = fleet(QUICK);
    let mut winner = stale_winner(&servers, &first, "hot:k");
    let won = Instant::now();
    let mut other = second.client();
    while won.elapsed() < Duration::from_secs(5) {
        assert_eq!(
            other.get("hot:k").as_deref(),
            Some(&b"old"[..]),
            "the lock was lost after {:?}",
            won.elapsed()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(winner.execute("version").split(' ').next(), Some("VERSION"), "the winner is still connected");
    first.kill();
    within(Duration::from_secs(4), "another wins within lock_ttl + 2 s", || other.get("hot:k").is_none());
    other.store("hot:k", b"new", 60);
    assert_eq!(second.client().get("hot:k").as_deref(), Some(&b"new"[..]));
}

/// Whether the item is a stub with a builder: docs/wire-format.md describes its flags.
fn is_held(server: &mut crate::client::Client, key: &str) -> bool {
    let shown = server.execute(&format!("mg {key} s f"));
    let flags = shown.strip_prefix("HD s0 f").and_then(|rest| rest.split(' ').next());
    let flags = flags.map(|flags| flags.parse::<u32>().expect("a number"));
    flags.is_some_and(|flags| flags & 1 << 30 == 0)
}

#[test]
fn a_server_that_does_not_answer_does_not_delay_what_a_winner_frees_on_the_others() {
    let (servers, [first, _]) = fleet("lock_ttl = \"30s\"\ncold_wait = \"0ms\"");
    let keys: Vec<String> = (0..60).map(|n| format!("hot:{n}")).collect();
    let mut winner = first.client();
    assert_eq!(winner.get_many(&keys.iter().map(String::as_str).collect::<Vec<_>>()), []);
    let mut healthy: Vec<_> = servers[1..].iter().map(direct).collect();
    let held = |servers: &mut Vec<crate::client::Client>| {
        servers.iter_mut().any(|server| keys.iter().any(|key| is_held(server, key)))
    };
    assert!(held(&mut healthy));
    servers[0].stop();
    drop(winner);
    within(Duration::from_secs(8), "what the other servers hold is free", || !held(&mut healthy));
}

#[test]
fn a_winner_that_reads_again_keeps_the_key_until_it_closes_its_connection() {
    let (servers, [first, second]) = fleet("lock_ttl = \"2s\"\ncold_wait = \"100ms\"");
    let mut winner = first.client();
    assert_eq!(winner.get("hot:k"), None);
    assert_eq!(winner.get("hot:k"), None, "its own stub");
    let mut server = direct(&servers[holder(&servers, "hot:k")]);
    let read_again = Instant::now();
    while read_again.elapsed() < Duration::from_secs(5) {
        assert!(server.ttl("hot:k").is_some(), "renewal ended after {:?}", read_again.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(winner);
    within(Duration::from_millis(500), "the key is free", || !is_held(&mut server, "hot:k"));
    assert_eq!(second.client().get("hot:k"), None);
    assert_eq!(first.metrics().sum("kennel_leases_live", &[]), 0.0);
}

#[test]
fn a_lock_that_was_not_renewed_once_is_freed_within_its_ttl_when_the_sidecar_is_killed() {
    let (servers, [first, second]) = fleet(QUICK);
    let _winner = stale_winner(&servers, &first, "hot:k");
    first.kill();
    let mut other = second.client();
    assert_eq!(other.get("hot:k").as_deref(), Some(&b"old"[..]), "the lock remains, without a holder");
    within(Duration::from_secs(4), "another wins within lock_ttl + 2 s", || other.get("hot:k").is_none());
}

#[test]
fn a_stub_is_freed_within_lock_ttl_when_the_sidecar_that_made_it_is_killed() {
    let (_servers, [first, second]) = fleet(QUICK);
    let mut winner = first.client();
    assert_eq!(winner.get("hot:k"), None);
    let mut other = second.client();
    other.send(b"get hot:k\r\n");
    other.silent_for(Duration::from_millis(300));
    first.kill();
    let (value, took) = timed(|| other.only_value("hot:k"));
    assert_eq!(value, None);
    assert!(took < Duration::from_secs(4), "a miss after {took:?}; lock_ttl is 2 s");
    other.store("hot:k", b"new", 60);
    assert_eq!(second.client().get("hot:k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_rebuild_longer_than_max_rebuild_loses_the_key_and_its_fill_is_dropped() {
    let (servers, sidecars) = fleet("stale_for = \"30s\"\nlock_ttl = \"1s\"\nmax_rebuild = \"2s\"");
    let mut winner = stale_winner(&servers, &sidecars[0], "hot:k");
    let mut other = sidecars[1].client();
    within(Duration::from_secs(6), "another wins after max_rebuild", || other.get("hot:k").is_none());
    winner.store("hot:k", b"late", 60);
    assert_eq!(sidecars[1].client().get("hot:k").as_deref(), Some(&b"old"[..]));
    other.store("hot:k", b"new", 60);
    assert_eq!(winner.get("hot:k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_fill_is_dropped_when_its_server_came_back_empty_since_the_claim() {
    let (mut servers, sidecars) = fleet("stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"0ms\"");
    let mut winner = sidecars[0].client();
    assert_eq!(winner.get("hot:k"), None);
    let at = holder(&servers, "hot:k");
    servers[at].restart();
    let mut other = sidecars[1].client();
    let mut server = direct(&servers[at]);
    // A miss because of a dead server grants nothing: a client has won only once the stub is stored again.
    eventually("the key is won anew", || {
        assert_eq!(other.get("hot:k"), None);
        server.ttl("hot:k").is_some()
    });
    // Dropped in either case; whether its sidecar has reconnected varies.
    let reply = winner.set("hot:k", b"late", 60);
    assert!(reply == "STORED" || reply.starts_with("SERVER_ERROR"), "{reply}");
    assert_eq!(sidecars[1].client().get("hot:k"), None, "built before the server was lost");
    other.store("hot:k", b"new", 60);
    eventually("both sidecars serve the new value", || {
        sidecars.iter().all(|s| s.client().get("hot:k").as_deref() == Some(b"new"))
    });
}

#[test]
fn a_lock_deleted_behind_kennels_back_costs_one_more_rebuild_and_no_wrong_value() {
    let (servers, sidecars) = fleet("stale_for = \"30s\"\nlock_ttl = \"9s\"");
    let mut first = stale_winner(&servers, &sidecars[0], "hot:k");
    let mut server = direct(&servers[holder(&servers, "hot:k")]);
    assert_eq!(server.delete("@lock:hot:k"), "DELETED", "the lock lives beside its key");
    let mut readers: Vec<_> = (0..10).map(|n| sidecars[n % 2].client()).collect();
    let values: Vec<_> = readers.iter_mut().map(|r| r.get("hot:k")).collect();
    assert_eq!(values.iter().filter(|v| v.is_none()).count(), 1, "one lock lost, one more win: {values:?}");
    let second = values.iter().position(Option::is_none).unwrap();
    first.store("hot:k", b"first", 60);
    readers[second].store("hot:k", b"second", 60);
    let served = sidecars[0].client().get("hot:k");
    assert!([&b"first"[..], b"second"].contains(&served.as_deref().unwrap_or_default()), "served {served:?}");
    let again: Vec<_> = readers.iter_mut().map(|r| r.get("hot:k")).collect();
    assert!(again.iter().all(|v| *v == served), "{again:?}");
}

#[test]
fn a_tag_deleted_behind_kennels_back_makes_everything_tagged_stale_once() {
    let (servers, sidecars) = fleet("stale_for = \"30s\"\nlock_ttl = \"9s\"\ntags = [\"posts\"]");
    let (mut a, mut b) = (sidecars[0].client(), sidecars[1].client());
    for key in ["hot:1", "hot:2"] {
        a.store(key, b"old", 60);
        assert_eq!(b.get(key).as_deref(), Some(&b"old"[..]));
    }
    let mut server = direct(&servers[holder(&servers, "@tag:posts")]);
    assert_eq!(server.delete("@tag:posts"), "DELETED");
    for key in ["hot:1", "hot:2"] {
        assert_eq!(a.get(key), None, "{key}: a lost version counts as moved");
        assert_eq!(b.get(key).as_deref(), Some(&b"old"[..]), "{key} is stale, not gone");
        a.store(key, b"new", 60);
        assert_eq!(b.get(key).as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn a_winner_that_leaves_while_its_lock_is_being_renewed_frees_the_key_when_that_is_done() {
    let rule = "stale_for = \"30s\"\nlock_ttl = \"9s\"";
    let (servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let winner = stale_winner(&servers, &sidecars[0], "hot:k");
    gate.hold("ms @lock:hot:k");
    gate.until_held();
    drop(winner);
    eventually("the sidecar notices that its client has left", || {
        sidecars[0].metrics().sum("kennel_client_connections", &[]) == 0.0
    });
    gate.release();
    let mut other = sidecars[1].client();
    within(Duration::from_secs(4), "another client wins", || other.get("hot:k").is_none());
}

#[test]
fn a_client_that_is_cut_off_before_it_hears_that_it_won_frees_the_key_too() {
    let rule = "stale_for = \"30s\"\nlock_ttl = \"60s\"\nmax_rebuild = \"90s\"";
    let (servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let mut client = sidecars[0].client();
    gate.hold_replies();
    client.send(b"get hot:k\r\n");
    let mut server = direct(&servers[0]);
    eventually("the server has made the stub", || server.ttl("hot:k").is_some());
    client.reset();
    // There is no signal that the sidecar has noticed. If it notices later than this, it frees the key like any other.
    std::thread::sleep(Duration::from_millis(200));
    gate.release();
    within(Duration::from_secs(2), "the stub is free", || !is_held(&mut server, "hot:k"));
}

#[test]
fn a_touch_that_a_delete_overtakes_does_not_make_the_next_winners_stub_outlive_its_sidecar() {
    let rule = "stale_for = \"30s\"\nlock_ttl = \"3s\"";
    let (servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let (mut slow, mut quick) = (sidecars[0].client(), sidecars[1].client());
    quick.store("hot:k", b"v", 60);
    gate.hold("mg hot:k t f c s T");
    slow.send(b"touch hot:k 1000\r\n");
    gate.until_held();
    assert_eq!(quick.delete("hot:k"), "DELETED");
    assert_eq!(quick.get("hot:k"), None);
    gate.release();
    assert_eq!(slow.line(), "NOT_FOUND");
    let left = direct(&servers[0]).ttl("hot:k").expect("the stub");
    assert!(left <= 4, "{left} s; lock_ttl is 3 s");
}
