//! Promise 3: nothing is served later than its own expiry + `stale_for`.

use std::time::Duration;

use tokio::time::Instant;

use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, sidecar_toml, until_stale,
    within,
};

fn fleet(more: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(3);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", more)]);
    let kennel = Kennel::start(&toml);
    (servers, kennel)
}

#[test]
fn an_old_value_is_served_until_its_expiry_and_stale_for_are_over_and_no_longer() {
    let (servers, kennel) = fleet("stale_for = \"3s\"\nlock_ttl = \"5s\"\ncold_wait = \"0ms\"");
    let (mut winner, mut reader) = (kennel.client(), kennel.client());
    let stored = Instant::now();
    winner.store("hot:k", b"old", 1);
    until_stale(&servers, "hot:k", 3);
    assert_eq!(winner.get("hot:k"), None);
    assert_eq!(reader.get("hot:k").as_deref(), Some(&b"old"[..]), "served while the winner rebuilds");
    // The winner stays connected, its lock is renewed, and it never fills.
    let mut last = Instant::now();
    within(Duration::from_secs(8), "the old value ends", || {
        let served = reader.get("hot:k").is_some();
        if served {
            last = Instant::now();
        }
        !served
    });
    let (lived, limit) = (last - stored, Duration::from_secs(4));
    // memcached takes up to a second off a TTL; half a second allows for a busy machine.
    let allowed = limit - Duration::from_millis(1500)..limit + Duration::from_millis(500);
    assert!(allowed.contains(&lived), "a value of TTL 1 s and stale_for 3 s was served for {lived:?}");
}

#[test]
fn before_its_expiry_a_value_is_stale_for_half_of_its_time_at_most_and_ends_with_it() {
    let (servers, kennel) = fleet("stale_for = \"60s\"\nstale_before_expiry = true\ncold_wait = \"0ms\"");
    let (mut winner, mut reader) = (kennel.client(), kennel.client());
    let ttl = |key: &str| direct(&servers[holder(&servers, key)]).ttl(key).expect("it is there");
    for (exptime, touched) in [(100, 250), (1000, 260)] {
        winner.store("hot:t", b"v", exptime);
        assert!((exptime - 5..=exptime).contains(&ttl("hot:t")), "it ends with its exptime");
        assert_eq!(winner.execute("touch hot:t 200"), "TOUCHED");
        assert!(
            (touched - 5..=touched).contains(&ttl("hot:t")),
            "its own stale time follows, not the rule's"
        );
    }
    winner.store("hot:k", b"old", 4);
    until_stale(&servers, "hot:k", 2);
    assert_eq!(winner.get("hot:k"), None);
    assert_eq!(reader.get("hot:k").as_deref(), Some(&b"old"[..]), "served while the winner rebuilds");
}

#[test]
fn exptime_0_never_goes_stale_unless_the_rule_says_so() {
    let (servers, kennel) = fleet("stale_for = \"5s\"");
    let mut client = kennel.client();
    client.store("hot:k", b"v", 0);
    assert_eq!(direct(&servers[holder(&servers, "hot:k")]).ttl("hot:k"), Some(-1));
    assert_eq!(client.get("hot:k").as_deref(), Some(&b"v"[..]));
    let (servers, kennel) = fleet("stale_for = \"5s\"\nmax_ttl = \"1s\"");
    let (mut client, mut other) = (kennel.client(), kennel.client());
    client.store("hot:k", b"v", 0);
    until_stale(&servers, "hot:k", 5);
    assert_eq!(client.get("hot:k"), None, "with max_ttl it goes stale after that");
    assert_eq!(other.get("hot:k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_negative_exptime_leaves_nothing_to_serve() {
    let (_servers, kennel) = fleet("stale_for = \"60s\"\ncold_wait = \"0ms\"");
    let mut client = kennel.client();
    client.store("hot:k", b"v", 60);
    client.store("hot:k", b"v", -1);
    assert_eq!(client.get("hot:k"), None);
    assert_eq!(kennel.client().get("hot:k"), None);
}

#[test]
fn an_exptime_of_30_days_stays_relative_to_the_client_though_stale_for_takes_it_over_the_limit() {
    let (servers, kennel) = fleet("stale_for = \"60s\"");
    let mut client = kennel.client();
    client.store("hot:k", b"v", 2_592_000);
    let ttl = direct(&servers[holder(&servers, "hot:k")]).ttl("hot:k").expect("just stored");
    assert!((2_592_050..=2_592_061).contains(&ttl), "stored with a TTL of {ttl} s");
    assert_eq!(client.get("hot:k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn no_command_that_changes_a_value_moves_its_end() {
    let (servers, kennel) = fleet("stale_for = \"60s\"");
    let mut client = kennel.client();
    client.store("hot:k", b"5", 60);
    let mut server = direct(&servers[holder(&servers, "hot:k")]);
    for (command, reply) in [
        ("incr hot:k 1", "6"),
        ("decr hot:k 2", "4"),
        ("append hot:k 0 0 1\r\n1", "STORED"),
        ("prepend hot:k 0 0 1\r\n1", "STORED"),
    ] {
        assert_eq!(client.execute(command), reply, "{command}");
        let ttl = server.ttl("hot:k").expect("just changed");
        assert!((100..=120).contains(&ttl), "{command}: {ttl} s, of 60 s and stale_for 60 s");
    }
    assert_eq!(client.get("hot:k").as_deref(), Some(&b"141"[..]));
}

#[test]
fn a_delete_that_leaves_the_old_value_leaves_it_no_longer_than_it_had() {
    let (servers, kennel) = fleet("stale_for = \"5s\"\non_delete = \"stale\"\ncold_wait = \"0ms\"");
    let mut client = kennel.client();
    client.store("hot:k", b"old", 1);
    let mut server = direct(&servers[holder(&servers, "hot:k")]);
    eventually("two seconds are left of it", || server.ttl("hot:k").expect("it stands for 6 s") <= 2);
    assert_eq!(client.delete("hot:k"), "NOT_FOUND");
    let left = server.ttl("hot:k");
    assert!(left.is_none_or(|left| left <= 2), "{left:?} s, and there were two");
    client.store("hot:fresh", b"old", 600);
    assert_eq!(client.delete("hot:fresh"), "DELETED");
    let mut server = direct(&servers[holder(&servers, "hot:fresh")]);
    let left = server.ttl("hot:fresh").expect("stale, and there");
    assert!(left <= 5, "{left} s after the delete, stale_for is 5 s");
}
