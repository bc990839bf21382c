//! An acknowledged `set` is dropped only because of an invalidation since the miss that it may belong to, never because of
//! another `set`: the last one wins, as in memcached. docs/decisions/0020-which-of-two-sets-wins.md.

use std::time::Duration;

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, clients_are, direct, eventually, guarded, memcacheds, sidecar_toml,
};

const MODES: [&str; 3] = ["auto", "single", "pooled"];

/// One server and one sidecar, whose rule has these lines.
fn one(clients: &str, rule: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let rule = guarded("hot", "hot:*", rule);
    let kennel = Kennel::start(&clients_are(clients, &sidecar_toml(&addresses(&servers), &[rule])));
    (servers, kennel)
}

const QUICK: &str = "cold_wait = \"0ms\"";

#[test]
fn a_set_behind_a_miss_wins_over_the_sets_of_others_however_many_and_by_whichever_command() {
    let others = [
        &["set hot:k 0 0 1\r\n1"][..],
        &["set hot:k 0 0 1\r\n1", "set hot:k 0 0 1\r\n2"],
        &["ms hot:k 1 T0\r\n1", "append hot:k 0 0 1\r\n2", "replace hot:k 0 0 1\r\n3"],
        &["add hot:k 0 0 1\r\n1", "incr hot:k 1", "set hot:k 0 0 1\r\n3"],
    ];
    for clients in MODES {
        for tags in ["", "tags = [\"t\"]\n"] {
            for other in others {
                for last in ["set hot:k 0 0 1\r\n9", "replace hot:k 0 0 1\r\n9", "ms hot:k 1\r\n9"] {
                    let (_servers, kennel) = one(clients, &format!("{tags}{QUICK}"));
                    let (mut first, mut second) = (kennel.client(), kennel.client());
                    assert_eq!(first.get("hot:k"), None);
                    for command in other {
                        let reply = second.execute(command);
                        assert!(["STORED", "HD", "2"].contains(&reply.as_str()), "{command}: {reply}");
                    }
                    let reply = first.execute(last);
                    assert!(reply == "STORED" || reply == "HD", "{last}: {reply}");
                    let found = kennel.client().get("hot:k");
                    assert_eq!(found.as_deref(), Some(&b"9"[..]), "{clients} {tags} {other:?} {last}");
                }
            }
        }
    }
}

#[test]
fn what_is_invalidated_after_the_miss_stays_so_whatever_others_have_set_before_and_after() {
    for clients in MODES {
        for invalidation in ["delete hot:k", "md hot:k", "delete @tag:t", "flush_all"] {
            let (servers, kennel) = one(clients, &format!("tags = [\"t\"]\n{QUICK}"));
            let toml = sidecar_toml(
                &addresses(&servers),
                &[guarded("hot", "hot:*", &format!("tags = [\"t\"]\n{QUICK}"))],
            );
            // Both through its own sidecar and through another, which has no record of the miss.
            let elsewhere = Kennel::start(&clients_are(clients, &toml));
            for invalidator in [&kennel, &elsewhere] {
                let mut late = kennel.client();
                assert_eq!(late.get("hot:k"), None);
                elsewhere.client().store("hot:k", b"before", 0);
                assert_ne!(invalidator.client().execute(invalidation), "ERROR");
                elsewhere.client().store("hot:k", b"new", 0);
                late.store("hot:k", b"old", 0);
                let found = elsewhere.client().get("hot:k");
                assert_eq!(found.as_deref(), Some(&b"new"[..]), "{clients} {invalidation}");
                assert_eq!(elsewhere.client().delete("hot:k"), "DELETED");
            }
        }
    }
}

#[test]
fn of_two_that_set_the_same_pair_of_keys_the_last_one_sets_both() {
    for clients in MODES {
        // Each key is missed by another client: as a new one, or after its value has expired.
        for had_value in [false, true] {
            let (servers, kennel) = one(clients, "stale_for = \"60s\"\ncold_wait = \"0ms\"");
            let (mut first, mut second) = (kennel.client(), kennel.client());
            if had_value {
                for key in ["hot:1", "hot:2"] {
                    kennel.client().store(key, b"old", 1);
                    let mut server = direct(&servers[0]);
                    let mut ttl = || server.execute(&format!("mg {key} t"))[4..].parse::<u64>();
                    eventually("it is stale", || ttl().is_ok_and(|ttl| ttl <= 60));
                }
            }
            assert_eq!(first.get("hot:1"), None);
            assert_eq!(second.get("hot:2"), None);
            if had_value {
                assert_eq!(first.get("hot:2").as_deref(), Some(&b"old"[..]));
                assert_eq!(second.get("hot:1").as_deref(), Some(&b"old"[..]));
            }
            for client in [(&mut first, b"A"), (&mut second, b"B")] {
                client.0.store("hot:1", client.1, 60);
                client.0.store("hot:2", client.1, 60);
            }
            let pair = ["hot:1", "hot:2"].map(|key| kennel.client().get(key));
            assert_eq!(pair, [Some(b"B".to_vec()), Some(b"B".to_vec())], "{clients}, {had_value}");
        }
    }
}

#[test]
fn a_client_on_ten_connections_that_also_writes_through_never_sees_an_older_value() {
    for clients in MODES {
        let (_servers, kennel) = one(clients, QUICK);
        let mut pool: Vec<Client> = (0..10).map(|_| kennel.client()).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let mut acknowledged = [None; 4];
        for n in 0..3_000_u32 {
            let at = random.usize(0..acknowledged.len());
            // Now and then a new key takes the place of an old one.
            if random.u8(0..12) == 0 {
                acknowledged[at] = None;
            }
            let key = format!("hot:{at}:{}", acknowledged[at].map_or(n, |(first, _)| first));
            let found = pool[random.usize(0..10)].get(&key);
            let expected = acknowledged[at].map(|(_, value): (u32, u32)| value.to_string().into_bytes());
            assert_eq!(found, expected, "{clients}: command {n} of {key}");
            let first = acknowledged[at].map_or(n, |(first, _)| first);
            if found.is_none() || random.bool() {
                pool[random.usize(0..10)].store(&key, n.to_string().as_bytes(), 0);
                acknowledged[at] = Some((first, n));
            }
        }
    }
}

#[test]
fn nobody_waits_for_a_build_whose_set_was_dropped() {
    let (_servers, kennel) = one("pooled", "cold_wait = \"9s\"");
    let mut pool: Vec<Client> = (0..4).map(|_| kennel.client()).collect();
    assert_eq!(pool[0].get("hot:k"), None);
    kennel.client().delete("hot:k");
    assert_eq!(pool[1].get("hot:k"), None, "it builds the value");
    let mut waits = kennel.client();
    waits.send(b"get hot:k\r\n");
    waits.silent_for(Duration::from_millis(100));
    // It may be the value that the first one has built, from before the delete.
    pool[2].store("hot:k", b"v", 60);
    assert_eq!(waits.line(), "END", "it builds the value now");
    waits.store("hot:k", b"new", 60);
    assert_eq!(pool[3].get("hot:k").as_deref(), Some(&b"new"[..]));
    // Should the second one fill it all the same, nothing was invalidated since its miss.
    pool[1].store("hot:k", b"last", 60);
    assert_eq!(pool[3].get("hot:k").as_deref(), Some(&b"last"[..]));
}
