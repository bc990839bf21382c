//! Promise 1: rebuilds of one key never overlap across the fleet, and there is exactly one per expiry.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::gate::gated_fleet;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, sidecar_toml, timed,
    until_disconnected, until_stale, wins,
};

const RULE: &str = "stale_for = \"10s\"\nlock_ttl = \"3s\"\ncold_wait = \"5s\"";

/// Two sidecars in front of the same three servers.
fn fleet() -> (Vec<Memcached>, [Kennel; 2]) {
    fleet_with(RULE)
}

fn fleet_with(rule: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", rule)]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    (servers, sidecars)
}

/// What the sixty clients have observed.
#[derive(Default)]
struct Observed {
    running: usize,
    /// Start and end of every rebuild.
    rebuilds: Vec<(Instant, Instant)>,
    longest_wait_for_a_value: Duration,
    overlaps: usize,
}

#[test]
fn a_hot_key_is_rebuilt_once_per_expiry_and_only_cold_losers_wait() {
    const EXPIRIES: usize = 3;
    let (_servers, sidecars) = fleet();
    let observed = Mutex::new(Observed::default());
    let start = Instant::now();
    let over = || observed.lock().unwrap().rebuilds.len() > EXPIRIES;
    let client = |n: usize| {
        let mut client = sidecars[n % 2].client();
        while !over() && start.elapsed() < Duration::from_secs(40) {
            let warm = !observed.lock().unwrap().rebuilds.is_empty();
            let (value, took) = timed(|| client.get("hot:k"));
            if value.is_some() {
                let mut observed = observed.lock().unwrap();
                if warm {
                    observed.longest_wait_for_a_value = observed.longest_wait_for_a_value.max(took);
                }
                drop(observed);
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            let began = Instant::now();
            let version = {
                let mut observed = observed.lock().unwrap();
                observed.running += 1;
                observed.overlaps += usize::from(observed.running > 1);
                observed.rebuilds.len()
            };
            std::thread::sleep(Duration::from_secs(1)); // the database
            // Before the fill: the next rebuild may begin while its reply is on the way.
            observed.lock().unwrap().running -= 1;
            client.store("hot:k", format!("version {version}").as_bytes(), 2);
            observed.lock().unwrap().rebuilds.push((began, Instant::now()));
        }
    };
    std::thread::scope(|s| (0..60).for_each(|n| drop(s.spawn(move || client(n)))));
    let observed = observed.into_inner().unwrap();
    assert_eq!(observed.overlaps, 0, "rebuilds ran at the same time");
    // One cold rebuild and one per expiry: each begins when the value before has expired, not earlier and not much later. A TTL
    // of 2 lasts for 1 to 2 s.
    assert_eq!(observed.rebuilds.len(), EXPIRIES + 1, "rebuilds: {:?}", observed.rebuilds);
    for pair in observed.rebuilds.windows(2) {
        let lived = pair[1].0.saturating_duration_since(pair[0].1);
        let allowed = Duration::from_millis(800)..Duration::from_millis(3000);
        assert!(allowed.contains(&lived), "a value with a TTL of 2 s was rebuilt {lived:?} after its fill");
    }
    // Half a rebuild: readers of the old value did not wait for the new one.
    assert!(
        observed.longest_wait_for_a_value < Duration::from_millis(500),
        "a client with a value to be served waited {:?}",
        observed.longest_wait_for_a_value
    );
}

#[test]
fn of_sixty_clients_that_miss_a_cold_key_at_once_one_wins_and_the_others_are_given_its_value() {
    let (_servers, sidecars) = fleet();
    let mut clients: Vec<_> = (0..60).map(|n| sidecars[n % 2].client()).collect();
    let barrier = std::sync::Barrier::new(clients.len());
    let winners = Mutex::new(0);
    std::thread::scope(|s| {
        for client in &mut clients {
            s.spawn(|| {
                barrier.wait();
                let value = client.get("hot:cold");
                if value.is_none() {
                    *winners.lock().unwrap() += 1;
                    std::thread::sleep(Duration::from_millis(500)); // the database
                    client.store("hot:cold", b"built", 60);
                } else {
                    assert_eq!(value.as_deref(), Some(&b"built"[..]));
                }
            });
        }
    });
    assert_eq!(*winners.lock().unwrap(), 1);
}

#[test]
fn a_stale_key_is_missed_by_one_client_of_the_fleet_and_served_old_to_all_others() {
    let (servers, sidecars) = fleet();
    let mut clients: Vec<_> = (0..60).map(|n| sidecars[n % 2].client()).collect();
    clients[0].store("hot:s", b"old", 1);
    until_stale(&servers, "hot:s", 10);
    clients.iter_mut().for_each(|c| c.send(b"get hot:s\r\n"));
    let values: Vec<_> = clients.iter_mut().map(|c| c.only_value("hot:s")).collect();
    let winners: Vec<usize> = (0..60).filter(|i| values[*i].is_none()).collect();
    assert_eq!(winners.len(), 1, "misses: {winners:?}");
    assert!(values.iter().flatten().all(|v| v == b"old"));
    let counted = |outcome: &str| -> f64 {
        let labels = ["rule=\"hot\"", "command=\"get\"", outcome];
        sidecars.iter().map(|s| s.metrics().sum("kennel_requests_total", &labels)).sum()
    };
    assert_eq!((counted("outcome=\"stale\""), counted("outcome=\"miss_won\"")), (59.0, 1.0));
    clients[winners[0]].store("hot:s", b"new", 60);
    assert!(clients.iter_mut().all(|c| c.get("hot:s").as_deref() == Some(b"new")));
}

#[test]
fn a_claim_that_a_whole_rebuild_overtook_is_no_win_and_leaves_no_lock_behind() {
    let rule = "stale_for = \"10s\"\nlock_ttl = \"30s\"";
    let (servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let (mut late, mut quick) = (sidecars[0].client(), sidecars[1].client());
    quick.store("hot:k", b"old", 1);
    until_stale(&servers, "hot:k", 10);
    gate.hold("ms @lock:hot:k");
    late.send(b"get hot:k\r\n");
    gate.until_held();
    assert_eq!(quick.get("hot:k"), None, "won while the other's claim is on its way");
    quick.store("hot:k", b"new", 2);
    gate.release();
    assert_eq!(
        late.only_value("hot:k").as_deref(),
        Some(&b"new"[..]),
        "there is nothing to rebuild any more"
    );
    until_stale(&servers, "hot:k", 10);
    assert_eq!(quick.get("hot:k"), None, "the next expiry has its rebuild");
    assert_eq!(late.get("hot:k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_stale_value_that_ends_during_its_rebuild_lets_no_second_one_begin() {
    // Won as soon as it is stale, and in the last second before it expires.
    for seconds_left in [3, 1] {
        let (servers, sidecars) = fleet_with("stale_for = \"3s\"\nlock_ttl = \"9s\"\ncold_wait = \"0ms\"");
        let (mut winner, mut other) = (sidecars[0].client(), sidecars[1].client());
        winner.store("hot:k", b"old", 1);
        until_stale(&servers, "hot:k", seconds_left);
        assert_eq!(winner.get("hot:k"), None);
        eventually("the old value ends", || other.get("hot:k").is_none());
        assert_eq!(wins(&sidecars), 1.0, "won with {seconds_left} s left");
        winner.store("hot:k", b"new", 60);
        assert_eq!(other.get("hot:k").as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn a_value_in_its_last_second_is_won_only_once_its_end_can_let_nobody_else_begin() {
    let rule = "stale_for = \"2s\"\nlock_ttl = \"9s\"\ncold_wait = \"0ms\"";
    let (servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let (mut slow, mut quick) = (sidecars[0].client(), sidecars[1].client());
    quick.store("hot:k", b"old", 1);
    until_stale(&servers, "hot:k", 1);
    // The stub that replaces it.
    gate.hold("ms hot:k 0 ");
    slow.send(b"get hot:k\r\n");
    gate.until_held();
    let mut server = direct(&servers[0]);
    eventually("the old value ends", || server.ttl("hot:k").is_none());
    assert_eq!(quick.get("hot:k"), None);
    gate.release();
    assert_eq!(slow.only_value("hot:k"), None);
    assert_eq!(wins(&sidecars), 1.0);
}

#[test]
fn a_cold_rebuild_longer_than_lock_ttl_stays_the_only_one() {
    let (_servers, sidecars) = fleet_with("lock_ttl = \"1s\"\ncold_wait = \"0ms\"");
    let (mut winner, mut other) = (sidecars[0].client(), sidecars[1].client());
    assert_eq!(winner.get("hot:k"), None);
    let won = Instant::now();
    while won.elapsed() < Duration::from_millis(3500) {
        assert_eq!(other.get("hot:k"), None);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(wins(&sidecars), 1.0, "somebody else won while the winner was building");
    winner.store("hot:k", b"new", 60);
    assert_eq!(other.get("hot:k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_bump_during_a_stale_rebuild_hands_the_key_to_the_next_reader_whose_fill_counts() {
    let (servers, sidecars) = fleet_with("stale_for = \"30s\"\nlock_ttl = \"30s\"\ntags = [\"posts\"]");
    let (mut doomed, mut second, mut reader) =
        (sidecars[0].client(), sidecars[1].client(), sidecars[0].client());
    doomed.store("hot:k", b"old", 1);
    until_stale(&servers, "hot:k", 30);
    assert_eq!(doomed.get("hot:k"), None);
    assert_eq!(second.get("hot:k").as_deref(), Some(&b"old"[..]), "held");
    assert_eq!(second.delete("@tag:posts"), "DELETED");
    assert_eq!(second.get("hot:k"), None, "what is being built is stale already");
    assert_eq!(reader.get("hot:k").as_deref(), Some(&b"old"[..]), "held again");
    doomed.store("hot:k", b"doomed", 60);
    second.store("hot:k", b"new", 60);
    for client in [&mut doomed, &mut reader] {
        assert_eq!(client.get("hot:k").as_deref(), Some(&b"new"[..]));
    }
    assert_eq!(wins(&sidecars), 2.0);
}

#[test]
fn a_delete_takes_the_lock_with_it_and_a_late_fill_does_not_take_the_next_one() {
    let (servers, sidecars) = fleet_with("stale_for = \"30s\"\nlock_ttl = \"30s\"");
    let (mut late, mut second, mut third) =
        (sidecars[0].client(), sidecars[1].client(), sidecars[1].client());
    late.store("hot:k", b"old", 1);
    until_stale(&servers, "hot:k", 30);
    assert_eq!(late.get("hot:k"), None);
    // Stale, so not found; it is removed all the same.
    assert_eq!(second.delete("hot:k"), "NOT_FOUND");
    second.store("hot:k", b"newer", 1);
    until_stale(&servers, "hot:k", 30);
    assert_eq!(second.get("hot:k"), None, "no lock of the one before stands in the way");
    late.store("hot:k", b"late", 60);
    assert_eq!(third.get("hot:k").as_deref(), Some(&b"newer"[..]), "held, by the second");
    second.store("hot:k", b"newest", 60);
    assert_eq!(third.get("hot:k").as_deref(), Some(&b"newest"[..]));
}

#[test]
fn a_winner_that_leaves_takes_no_lock_or_stub_but_its_own() {
    let rule = "stale_for = \"30s\"\nlock_ttl = \"30s\"\ncold_wait = \"0ms\"";
    let (servers, sidecars) = fleet_with(rule);
    let (mut second, mut reader) = (sidecars[1].client(), sidecars[1].client());
    // Its lock is lost, and another client's is stored in its place.
    let mut first = sidecars[0].client();
    first.store("hot:stale", b"old", 1);
    until_stale(&servers, "hot:stale", 30);
    assert_eq!(first.get("hot:stale"), None);
    let mut server = direct(&servers[holder(&servers, "hot:stale")]);
    assert_eq!(server.delete("@lock:hot:stale"), "DELETED");
    assert_eq!(second.get("hot:stale"), None);
    // Its stub is deleted, and another client's is stored in its place.
    assert_eq!(first.get("hot:cold"), None);
    second.delete("hot:cold");
    assert_eq!(second.get("hot:cold"), None);
    assert_eq!(wins(&sidecars), 4.0);
    drop(first);
    until_disconnected(&sidecars[0], 2.0);
    for _ in 0..20 {
        assert_eq!(reader.get("hot:stale").as_deref(), Some(&b"old"[..]), "held by the second");
        assert_eq!(reader.get("hot:cold"), None);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(wins(&sidecars), 4.0);
    for key in ["hot:stale", "hot:cold"] {
        second.store(key, b"new", 60);
        assert_eq!(reader.get(key).as_deref(), Some(&b"new"[..]), "{key}");
    }
}

#[test]
fn a_fill_that_arrives_while_its_stub_is_being_renewed_is_stored() {
    let rule = "lock_ttl = \"2s\"\ncold_wait = \"0ms\"";
    let (_servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let mut winner = sidecars[0].client();
    assert_eq!(winner.get("hot:k"), None);
    gate.hold("ms hot:k 0 ");
    gate.until_held();
    winner.send(b"set hot:k 0 60 5\r\nbuilt\r\n");
    winner.silent_for(Duration::from_millis(100));
    gate.release();
    assert_eq!(winner.line(), "STORED");
    assert_eq!(sidecars[1].client().get("hot:k").as_deref(), Some(&b"built"[..]));
}

#[test]
fn a_cold_build_that_takes_three_times_cold_wait_lets_one_more_client_build_per_cold_wait() {
    const COLD_WAIT: Duration = Duration::from_millis(500);
    for on_tag in ["", "tags = [\"posts\"]\non_tag = \"drop\""] {
        let (_servers, sidecars) = fleet_with(&format!("cold_wait = \"500ms\"\nlock_ttl = \"9s\"\n{on_tag}"));
        if !on_tag.is_empty() {
            // Not absent, but a value that may not be served: its lock is taken over, not a stub.
            let mut client = sidecars[0].client();
            assert_eq!(client.get("hot:k"), None);
            client.store("hot:k", b"old", 60);
            assert_eq!(client.delete("@tag:posts"), "DELETED");
        }
        let starts = Mutex::new(Vec::new());
        let began = Instant::now();
        let read = |n: usize| {
            let mut client = sidecars[n % 2].client();
            if let Some(value) = client.get("hot:k") {
                assert_eq!(value, b"built");
                return;
            }
            starts.lock().unwrap().push(began.elapsed());
            std::thread::sleep(3 * COLD_WAIT);
            client.store("hot:k", b"built", 60);
            assert_eq!(client.get("hot:k").as_deref(), Some(&b"built"[..]));
        };
        std::thread::scope(|scope| {
            for n in 0..40 {
                let read = &read;
                scope.spawn(move || read(n));
            }
        });
        let mut starts = starts.into_inner().unwrap();
        starts.sort();
        // The last may just be let through before the first value is stored.
        assert!((3..=4).contains(&starts.len()), "{on_tag}: {starts:?}");
        for pair in starts.windows(2) {
            assert!(pair[1] - pair[0] > COLD_WAIT * 9 / 10, "{on_tag}: {starts:?}");
        }
    }
}
