//! SIGTERM: pending requests get their replies, leases are released, and the process ends within five seconds.

use std::time::Duration;

use crate::gate::gated_fleet;
use crate::world::{
    Kennel, addresses, eventually, guarded, memcacheds, sidecar_toml, timed, until_stale, within,
};

#[test]
fn sigterm_exits_with_0_within_five_seconds_though_clients_stay_connected() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[]));
    let mut clients: Vec<_> = (0..20).map(|_| kennel.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.store(&format!("k{n}"), b"v", 0);
    }
    let (status, took) = kennel.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    for mut client in clients {
        assert_eq!(client.rest(), b"", "nothing but the end of the connection");
    }
}

#[test]
fn sigterm_releases_the_leases_so_that_another_sidecars_client_wins_at_once() {
    let servers = memcacheds(3);
    let rule = "stale_for = \"30s\"\nlock_ttl = \"60s\"\nmax_rebuild = \"120s\"\ncold_wait = \"10s\"";
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", rule)]);
    let (first, second) = (Kennel::start(&toml), Kennel::start(&toml));
    let (mut stale, mut cold, mut other) = (first.client(), first.client(), second.client());
    stale.store("hot:stale", b"old", 1);
    until_stale(&servers, "hot:stale", 30);
    assert_eq!(stale.get("hot:stale"), None);
    assert_eq!(cold.get("hot:cold"), None);
    assert_eq!(other.get("hot:stale").as_deref(), Some(&b"old"[..]), "held by the first sidecar");
    let (status, took) = first.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    // Far within lock_ttl: released, not expired.
    let freed = Duration::from_secs(2);
    within(freed, "the stale key is won", || other.get("hot:stale").is_none());
    let (value, took) = timed(|| other.get("hot:cold"));
    assert_eq!(value, None, "the cold key is won");
    assert!(took < freed, "waited {took:?} for a winner that was gone");
}

#[test]
fn a_draining_sidecar_reports_that_it_is_not_ready_or_has_already_ended() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[]));
    assert!(kennel.http("/readyz").contains(" 200 "));
    let _held_open = kennel.client();
    kennel.ask_to_terminate();
    eventually("/readyz stops saying 200", || !kennel.http("/readyz").contains(" 200 "));
}

#[test]
fn what_is_under_way_at_sigterm_is_answered() {
    let rules = [guarded("hot", "hot:*", "cold_wait = \"0ms\""), crate::world::raw("raw", "*")];
    let (_servers, gate, [kennel, other]) = gated_fleet(&rules);
    let (mut raw, mut hot) = (other.client(), other.client());
    raw.store("raw:k", b"raw", 0);
    hot.store("hot:k", b"hot", 0);
    let (mut raw, mut hot) = (kennel.client(), kennel.client());
    gate.hold_replies();
    raw.send(b"get raw:k\r\n");
    hot.send(b"get hot:k\r\n");
    gate.until_held();
    kennel.ask_to_terminate();
    eventually("/readyz stops saying 200", || !kennel.http("/readyz").contains(" 200 "));
    gate.release();
    assert_eq!(raw.only_value("raw:k").as_deref(), Some(&b"raw"[..]));
    assert_eq!(hot.only_value("hot:k").as_deref(), Some(&b"hot"[..]));
    assert_eq!((raw.rest(), hot.rest()), (vec![], vec![]));
}
