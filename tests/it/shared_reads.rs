//! Identical reads that wait to be sent are sent once, and no client receives anything older than permitted.

use crate::client::set_command;
use crate::world::{Kennel, Memcached, addresses, eventually, guarded, memcacheds, sidecar_toml};

const SHARED: &str = "kennel_upstream_shared_reads_total";
const SENT: &str = "kennel_upstream_requests_total";

/// With one worker: only reads on one connection can be shared.
fn sidecar(rule: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:{name}", rule)]);
    (servers, Kennel::start(&toml.replace("workers = 2", "workers = 1")))
}

#[test]
fn gets_of_one_key_that_arrive_together_are_one_read_upstream() {
    let (_servers, sidecar) = sidecar("tags = [\"posts\"]");
    let mut clients: Vec<_> = (0..20).map(|_| sidecar.client()).collect();
    clients[0].store("hot:k", b"value", 60);
    clients.iter_mut().for_each(|client| assert!(client.get("hot:k").is_some()));
    let counted = |name| sidecar.metrics().sum(name, &[]);
    let (sent, shared) = (counted(SENT), counted(SHARED));
    sidecar.standing_still(|| clients.iter_mut().for_each(|client| client.send(b"get hot:k\r\n")));
    for client in &mut clients {
        assert_eq!(client.only_value("hot:k").as_deref(), Some(&b"value"[..]));
    }
    // Every get reads the key and its tag.
    let (sent, shared) = (counted(SENT) - sent, counted(SHARED) - shared);
    assert_eq!(sent + shared, 40.0);
    assert!(sent <= 4.0, "{sent} reads were sent");
}

#[test]
fn the_keys_of_a_get_share_the_tags_that_they_have_in_common() {
    let (_servers, sidecar) = sidecar("tags = [\"posts\", \"all\"]");
    let mut client = sidecar.client();
    let keys: Vec<String> = (0..20).map(|i| format!("hot:{i}")).collect();
    keys.iter().for_each(|key| client.store(key, b"value", 60));
    let sent = || sidecar.metrics().sum(SENT, &[]);
    let (before, keys) = (sent(), keys.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(client.get_many(&keys).len(), 20);
    assert_eq!(sent() - before, 22.0);
}

#[test]
fn of_cold_gets_that_share_a_read_one_is_to_rebuild_and_the_others_wait_for_it() {
    let (_servers, sidecar) = sidecar("cold_wait = \"10s\"");
    let mut clients: Vec<_> = (0..16).map(|_| sidecar.client()).collect();
    // Reads are shared only once the connection to the server is established.
    clients.iter_mut().for_each(|client| assert_eq!(client.execute("get elsewhere"), "END"));
    let counted = |name| sidecar.metrics().sum(name, &[]);
    sidecar.standing_still(|| clients.iter_mut().for_each(|client| client.send(b"get hot:k\r\n")));
    eventually("all but one wait", || counted("kennel_waiters") == 15.0);
    assert!(counted(SHARED) > 0.0);
    // A `set` on another connection of the winner's pool.
    let mut next = sidecar.client();
    assert_eq!(next.set("hot:k", b"value", 60), "STORED");
    let values: Vec<_> = clients.iter_mut().map(|client| client.only_value("hot:k")).collect();
    assert_eq!(values.iter().filter(|value| value.is_none()).count(), 1, "{values:?}");
    assert!(values.iter().flatten().all(|value| value == b"value"));
}

#[test]
fn a_get_after_a_clients_own_set_does_not_share_the_reply_of_the_get_before_it() {
    let (_servers, sidecar) = sidecar("");
    let (mut client, mut other) = (sidecar.client(), sidecar.client());
    client.store("hot:k", b"v0", 60);
    for round in 1..50 {
        let (old, new) = (format!("v{}", round - 1), format!("v{round}"));
        let mut all = b"get hot:k\r\nget hot:k\r\n".to_vec();
        all.extend(set_command("hot:k", new.as_bytes(), 60));
        all.extend(b"get hot:k\r\n");
        sidecar.standing_still(|| {
            other.send(b"get hot:k\r\n");
            client.send(&all);
        });
        assert_eq!(client.only_value("hot:k").as_deref(), Some(old.as_bytes()));
        assert_eq!(client.only_value("hot:k").as_deref(), Some(old.as_bytes()));
        assert_eq!(client.line(), "STORED");
        assert_eq!(client.only_value("hot:k").as_deref(), Some(new.as_bytes()));
        assert!(other.only_value("hot:k").is_some());
    }
}
