//! One connection that a whole process shares, as of node's memcached: with `clients = "shared"`, requests are carried out while those
//! before them wait for a build.

use std::time::Duration;

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, clients_are, direct, eventually, guarded, memcacheds, raw, sidecar_toml,
};

fn shared(rule: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let rules = [guarded("hot", "hot:*", rule), raw("raw", "raw:*")];
    let kennel = Kennel::start(&clients_are("shared", &sidecar_toml(&addresses(&servers), &rules)));
    (servers, kennel)
}

/// A wait that ends by its limit ends the test: a client reads no reply for that long.
const PATIENT: &str = "cold_wait = \"50s\"\ncold_limit = \"55s\"\nlock_ttl = \"5s\"";

fn expect_value(client: &mut Client, key: &str) {
    client.expect(format!("VALUE {key} 0 5\r\nbuilt\r\nEND\r\n").as_bytes());
}

#[test]
fn of_twenty_gets_in_one_piece_one_builds_and_the_others_receive_its_value() {
    let (_servers, kennel) = shared(PATIENT);
    for command in ["get", "gets"] {
        let (mut client, key) = (kennel.client(), format!("hot:{command}"));
        client.send(format!("{command} {key}\r\n").repeat(20).as_bytes());
        client.expect(b"END\r\n");
        eventually("the others wait", || kennel.metrics().sum("kennel_waiters", &[]) == 19.0);
        client.send(format!("set {key} 0 60 5\r\nbuilt\r\n").as_bytes());
        for _ in 1..20 {
            assert_eq!(client.only_value(&key).as_deref(), Some(&b"built"[..]));
        }
        assert_eq!(client.line(), "STORED");
    }
    let built = |end: &str| kennel.metrics().sum("kennel_leases_total", &[&format!("end=\"{end}\"")]);
    assert_eq!(
        (built("filled"), kennel.metrics().sum("kennel_waits_total", &["end=\"filled\""])),
        (2.0, 38.0)
    );
}

#[test]
fn what_follows_a_get_that_waits_is_carried_out_at_once_and_answered_in_order() {
    let (servers, kennel) = shared(PATIENT);
    let (mut builder, mut client) = (kennel.client(), kennel.client());
    assert_eq!(builder.get("hot:k"), None);
    client
        .send(b"get hot:k\r\nset raw:k 0 0 5\r\nbuilt\r\nset hot:other 0 60 5\r\nbuilt\r\nget hot:other\r\n");
    let mut server = direct(&servers[0]);
    eventually("the set behind the get is carried out", || server.get("raw:k").is_some());
    client.silent_for(Duration::from_millis(200));
    builder.store("hot:k", b"built", 60);
    expect_value(&mut client, "hot:k");
    client.expect(b"STORED\r\nSTORED\r\n");
    expect_value(&mut client, "hot:other");
}

#[test]
fn a_get_on_a_shared_connection_waits_no_longer_than_cold_wait() {
    let (_servers, kennel) = shared("cold_wait = \"300ms\"\ncold_limit = \"55s\"\nlock_ttl = \"5s\"");
    let (mut builder, mut client) = (kennel.client(), kennel.client());
    assert_eq!(builder.get("hot:k"), None);
    client.send(b"get hot:k\r\nget raw:none\r\n");
    client.expect(b"END\r\nEND\r\n");
    // Nor do those behind the one that has been let through.
    client.send(b"get hot:k\r\nget hot:k\r\nget hot:k\r\n");
    client.expect(b"END\r\nEND\r\nEND\r\n");
}
