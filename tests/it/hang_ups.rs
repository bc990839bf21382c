//! Clients whose read timeout is shorter than `cold_wait`: they hang up while they wait, and the next ones wait less.

use std::time::Duration;

use crate::world::{Kennel, addresses, eventually, guarded, memcacheds, sidecar_toml};

/// A wait that ends by one of its limits ends the test: a client reads no reply for that long.
const RULE: &str = "cold_wait = \"50s\"\ncold_limit = \"55s\"\nlock_ttl = \"5s\"";

#[test]
fn clients_that_hang_up_while_they_wait_teach_a_listener_to_let_them_wait_less() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", RULE)]));
    let waits = |end: &str| kennel.metrics().sum("kennel_waits_total", &[&format!("end=\"{end}\"")]);
    let mut builder = kennel.client();
    assert_eq!(builder.get("hot:k"), None);
    for hung_up in [1.0, 2.0] {
        let mut client = kennel.client();
        client.send(b"get hot:k\r\n");
        // The read timeout of this client.
        client.silent_for(Duration::from_secs(1));
        drop(client);
        eventually("the hang-up is counted", || waits("hung_up") == hung_up);
    }
    eventually("it is logged", || kennel.log().contains("clients hang up while they wait for a build"));
    let mut client = kennel.client();
    assert_eq!(client.get("hot:k"), None, "it would have waited for 50 s");
    assert_eq!((waits("shortened"), waits("timed_out")), (1.0, 0.0));
    // A build that is quicker is still waited for.
    client.send(b"get hot:k\r\n");
    client.silent_for(Duration::from_millis(50));
    builder.store("hot:k", b"built", 60);
    assert_eq!(client.only_value("hot:k").as_deref(), Some(&b"built"[..]));
}
