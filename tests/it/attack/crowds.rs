//! Attacks with one aim each: counters, pools, a client that waits for itself, and more misses than the table holds.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use crate::client::Client;
use crate::world::{Kennel, addresses, guarded, memcacheds, sidecar_toml};

use super::run::{Rule, World};
use super::{duration, first_seed};

/// The number of clients that count, and of those that read meanwhile.
const COUNTERS: usize = 12;
const READERS: usize = 8;
/// Counts per client and round. Rounds are short, because the creation of a counter is what races.
const COUNTS: usize = 12;

/// `incr`, otherwise `add`, otherwise `incr`: how counters are kept in a cache that may lose them. Returns how many were
/// acknowledged.
fn count(client: &mut Client, key: &str) -> Result<u64, String> {
    let mut acknowledged = 0;
    for _ in 0..COUNTS {
        let first = client.execute(&format!("incr {key} 1"));
        if first.parse::<u64>().is_err() {
            let added = client.execute(&format!("add {key} 0 0 1\r\n1"));
            if added != "STORED" {
                let again = client.execute(&format!("incr {key} 1"));
                if again.parse::<u64>().is_err() {
                    return Err(format!(
                        "incr {first}, add {added}, incr {again}, but no client deletes {key}"
                    ));
                }
            }
        }
        acknowledged += 1;
    }
    Ok(acknowledged)
}

/// One counter, used by all clients at once.
fn round(counters: &mut [Client], readers: &mut [Client], key: &str) -> Result<(), String> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        for reader in readers {
            let read = move || {
                while !over.load(Ordering::SeqCst) {
                    reader.get(key);
                }
            };
            scope.spawn(read);
        }
        let counting: Vec<_> =
            counters.iter_mut().map(|client| scope.spawn(move || count(client, key))).collect();
        let counts: Vec<_> =
            counting.into_iter().map(|counter| counter.join().expect("no counter panics")).collect();
        over.store(true, Ordering::SeqCst);
        counts.into_iter().sum::<Result<u64, String>>()
    })
    .and_then(|acknowledged| {
        let found = counters[0].get(key).map(|value| String::from_utf8_lossy(&value).trim_end().to_owned());
        match found {
            Some(number) if number == acknowledged.to_string() => Ok(()),
            other => {
                Err(format!("{acknowledged} counts of {key} were acknowledged, and then it is {other:?}"))
            }
        }
    })
}

#[test]
fn every_acknowledged_count_is_in_the_number() {
    let until = Instant::now() + duration(2);
    let start = Instant::now();
    let mut world = World::start();
    let address: Vec<_> = (0..2).map(|sidecar| world.address(sidecar)).collect();
    let connect = |many: usize| (0..many).map(|n| Client::tcp(address[n % 2])).collect::<Vec<_>>();
    let (mut counters, mut readers) = (connect(COUNTERS), connect(READERS));
    let mut rounds = 0;
    while Instant::now() < until || rounds < 3 {
        let rule = [Rule::Guarded, Rule::Tagged, Rule::Raw][rounds % 3];
        let key = world.new_keys(rule).name('a');
        if let Err(why) = round(&mut counters, &mut readers, &key) {
            panic!("after {:?}, {rounds} rounds: {rule:?}: {why}", start.elapsed());
        }
        rounds += 1;
    }
    println!("{rounds} rounds");
}

/// A client that sends one command after the other, each on another connection of its pool: it gets, sets what it missed,
/// sometimes sets without a miss, and sometimes deletes. Returns the number of its sets, and how many of them its next get did
/// not find.
fn sequential_pool(pool: &mut [Client], key: &str, random: &mut fastrand::Rng) -> (u64, u64) {
    let (mut sets, mut lost, mut last) = (0, 0, None);
    for n in 0..400 {
        let mut any = |pool: &mut [Client]| random.usize(..pool.len());
        let reader = any(pool);
        let found = pool[reader].get(key);
        if let Some(last) = last.take() {
            sets += 1;
            lost += u64::from(found.as_ref() != Some(&last));
        }
        let writer = any(pool);
        match (found, n % 7) {
            (_, 3) => drop(pool[writer].delete(key)),
            (None, _) | (_, 5) => {
                let value = format!("{n}").into_bytes();
                pool[writer].store(key, &value, 0);
                last = Some(value);
            }
            _ => {}
        }
    }
    (sets, lost)
}

#[test]
fn what_a_pool_sets_is_found_by_its_next_get_unless_it_passes_for_the_fill_of_an_older_miss() {
    let mut world = World::start();
    let mut pool: Vec<Client> = (0..10).map(|_| Client::tcp(world.address(0))).collect();
    let mut random = fastrand::Rng::with_seed(first_seed());
    let mut measure = |rule| {
        let key = world.new_keys(rule).name('a');
        sequential_pool(&mut pool, &key, &mut random)
    };
    let (sets, lost) = measure(Rule::Raw);
    assert_eq!(lost, 0, "of {sets} to memcached itself");
    let (sets, lost) = measure(Rule::Guarded);
    println!("of {sets} sets of a client with ten connections, its next get did not find {lost}");
    assert!(sets > 100 && lost < sets / 2, "{lost} of {sets} sets were lost: {LOST_BY_POOLS}");
}

/// Why sets of a pool are lost: docs/decisions/0005-which-miss-a-set-fills.md.
const LOST_BY_POOLS: &str =
    "a set may pass for the fill of a miss on another connection, but not half of them";

#[test]
fn whoever_holds_the_win_does_not_wait_for_itself() {
    let servers = memcacheds(1);
    // Longer than the client's timeout: a client that waits for it fails the test.
    let rule = guarded("guarded", "g:*", "cold_wait = \"30s\"\nlock_ttl = \"60s\"\nmax_rebuild = \"300s\"\n");
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[rule]));
    for again in ["get", "gets", "gat 0", "mg"] {
        let key = format!("g:{}", again.replace(' ', ""));
        let mut client = kennel.client();
        assert_eq!(client.get(&key), None);
        let reply = client.execute(&format!("{again} {key}{}", if again == "mg" { " v" } else { "" }));
        assert!(reply == "END" || reply.starts_with("EN"), "{again} {key}: {reply}");
    }
}

/// More than the table keeps for one key.
const MISSES: usize = 80;

#[test]
fn the_first_of_eighty_misses_does_not_outlive_a_delete() {
    let world = World::start();
    for (by, after) in [(0, MISSES), (0, 1), (0, MISSES / 2), (1, MISSES), (1, 1)] {
        let key = format!("g:eighty:{by}:{after}");
        let mut clients: Vec<Client> = (0..MISSES).map(|_| Client::tcp(world.address(0))).collect();
        let mut invalidator = Client::tcp(world.address(by));
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.get(&key), None);
            if n + 1 == after {
                // The source has changed: what clients with earlier misses have read of it is old.
                assert_eq!(invalidator.delete(&key), "NOT_FOUND");
            }
        }
        clients[0].store(&key, b"old", 0);
        let found = invalidator.get(&key);
        assert_eq!(found, None, "built before the delete behind the miss {after}, through the sidecar {by}");
    }
}
