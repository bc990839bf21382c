//! Structures on a server that has no memory for a further item: `memcached -M`.

use super::{rule, store};
use crate::client::Client;
use crate::world::{Kennel, Memcached, direct, sidecar_toml, without_failover};

const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";

/// Stores under new keys until the server has no memory for another item of this size.
fn fill(server: &mut Client, size: usize) {
    let value = "x".repeat(size);
    let stored = |n: &usize| store(server, &format!("set fill:{size}:{n} 0 0"), &value) == "STORED";
    assert!((0..100_000).take_while(stored).count() > 0);
}

#[test]
fn a_change_that_a_full_server_refuses_names_the_cause() {
    let rules = [
        rule("hits", "hits:*", "counter", ""),
        rule("rates", "rate:*", "window", "window = \"1h\""),
        rule("visitors", "unique:*", "window", "window = \"1h\"\nunique = true"),
        rule("events", "log:*", "log", "window = \"1h\""),
        rule("lists", "list:*", "list", ""),
        rule("tables", "table:*", "table", ""),
        rule("locks", "lock:*", "lock", ""),
        rule("fenced", "fenced:*", "lock", "fence = true"),
    ];
    for server in [Memcached::start(&["-M", "-m", "2"]), Memcached::newest(&["-M", "-m", "2"])] {
        let toml = without_failover(&sidecar_toml(&[server.address()], &rules));
        let kennel = Kennel::start(&toml);
        let mut client = kennel.client();
        // Items of all sizes that the structures have.
        let mut behind = direct(&server);
        [1000, 300, 200, 150, 100, 60, 30, 2].into_iter().for_each(|size| fill(&mut behind, size));
        for (command, value) in [
            ("incr hits:1 1", None),
            ("add hits:1 0 0", Some("1")),
            ("ma hits:1", None),
            ("incr rate:1 1", None),
            ("add unique:1:ann 0 0", Some("")),
            ("append log:1 0 0", Some("an entry")),
            ("append list:1 0 0", Some("+ann")),
            ("set table:1/name 0 0", Some("a value")),
            ("incr table:1/number 1", None),
            ("add lock:1 0 0", Some("ann")),
            ("add fenced:1 0 0", Some("ann")),
        ] {
            let reply = match value {
                Some(value) => store(&mut client, command, value),
                None => client.execute(command),
            };
            let expected = if command.starts_with("incr table") { "NOT_FOUND" } else { NO_MEMORY };
            assert_eq!(reply, expected, "{command}");
        }
        let metrics = kennel.metrics();
        assert_eq!(metrics.sum("kennel_server_errors_total", &["cause=\"no_memory\""]), 10.0);
        assert_eq!(metrics.sum("kennel_server_errors_total", &[]), 10.0);
        assert!(kennel.http("/readyz").contains("is out of memory"));
        assert_eq!(kennel.log().matches("out of memory").count(), 1, "{}", kennel.log());
    }
}
