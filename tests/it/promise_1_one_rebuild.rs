//! Promise 1: rebuilds of one key never overlap across the fleet, and there is exactly one per expiry.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::world::{Kennel, Memcached, addresses, guarded, memcacheds, sidecar_toml, timed, until_stale};

const RULE: &str = "stale_for = \"10s\"\nlock_ttl = \"3s\"\ncold_wait = \"5s\"";

/// Two sidecars in front of the same three servers.
fn fleet() -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", RULE)]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    (servers, sidecars)
}

/// What the sixty clients have seen between them.
#[derive(Default)]
struct Seen {
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
    let seen = Mutex::new(Seen::default());
    let start = Instant::now();
    let over = || seen.lock().unwrap().rebuilds.len() > EXPIRIES;
    let client = |n: usize| {
        let mut client = sidecars[n % 2].client();
        while !over() && start.elapsed() < Duration::from_secs(40) {
            let warm = !seen.lock().unwrap().rebuilds.is_empty();
            let (value, took) = timed(|| client.get("hot:k"));
            if value.is_some() {
                let mut seen = seen.lock().unwrap();
                if warm {
                    seen.longest_wait_for_a_value = seen.longest_wait_for_a_value.max(took);
                }
                drop(seen);
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            let began = Instant::now();
            let version = {
                let mut seen = seen.lock().unwrap();
                seen.running += 1;
                seen.overlaps += usize::from(seen.running > 1);
                seen.rebuilds.len()
            };
            std::thread::sleep(Duration::from_secs(1)); // the database
            // Before the fill: the next rebuild may begin while its reply is on the way.
            seen.lock().unwrap().running -= 1;
            client.store("hot:k", format!("version {version}").as_bytes(), 2);
            seen.lock().unwrap().rebuilds.push((began, Instant::now()));
        }
    };
    std::thread::scope(|s| (0..60).for_each(|n| drop(s.spawn(move || client(n)))));
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.overlaps, 0, "rebuilds ran at the same time");
    // One cold and one an expiry: each begins when the one before has expired, not earlier and not much later. A TTL
    // of 2 lives for 1 to 2 s.
    assert_eq!(seen.rebuilds.len(), EXPIRIES + 1, "rebuilds: {:?}", seen.rebuilds);
    for pair in seen.rebuilds.windows(2) {
        let lived = pair[1].0.saturating_duration_since(pair[0].1);
        let allowed = Duration::from_millis(800)..Duration::from_millis(3000);
        assert!(allowed.contains(&lived), "a value with a TTL of 2 s was rebuilt {lived:?} after its fill");
    }
    // Half a rebuild: nobody who was given the old value had to wait for the new one.
    assert!(
        seen.longest_wait_for_a_value < Duration::from_millis(500),
        "a client with a value to be served waited {:?}",
        seen.longest_wait_for_a_value
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
