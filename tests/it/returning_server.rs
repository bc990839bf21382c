//! A server that was unreachable and returns with its old contents, and with commands in its sockets that timed out long ago.
//! What that may break and what not: docs/decisions/0007.

use crate::client::Client;
use crate::gate::Gate;
use crate::world::{Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, sidecar_toml};

/// One server and two sidecars with this rule: the first connects to the server through the gate, the second directly.
fn fleet(rule: &str) -> (Vec<Memcached>, Gate, [Kennel; 2]) {
    let servers = memcacheds(1);
    let gate = Gate::start(servers[0].address);
    let rules = [guarded("k", "k*", rule)];
    let start = |addresses: &[String]| Kennel::start(&sidecar_toml(addresses, &rules));
    let sidecars = [start(&[gate.address()]), start(&addresses(&servers))];
    (servers, gate, sidecars)
}

/// How many values were sent to the server to store, whatever became of them.
fn stores(server: &mut Client) -> u64 {
    server.send(b"stats\r\n");
    let mut stores = None;
    loop {
        let line = server.line();
        if line == "END" {
            return stores.expect("cmd_set");
        }
        stores = line.strip_prefix("STAT cmd_set ").map(|n| n.parse().expect("a number")).or(stores);
    }
}

/// The command fails by a timeout; then the key is deleted through the other sidecar; then the server receives the command after
/// all.
fn a_late(command: &str, rule: &str, before: Option<&[u8]>) {
    let (servers, gate, [first, second]) = fleet(rule);
    let (mut writer, mut other) = (first.client(), second.client());
    let mut server = direct(&servers[0]);
    if let Some(before) = before {
        other.store("k", before, 0);
    }
    gate.hold("ms k ");
    let refused = writer.execute(command);
    assert!(refused.starts_with("SERVER_ERROR"), "{command:?}: {refused}");
    gate.until_held();
    let deleted = other.delete("k");
    assert!(matches!(&deleted[..], "DELETED" | "NOT_FOUND"), "{deleted}");
    let given = stores(&mut server);
    gate.release();
    eventually("the server is given what was given up", || stores(&mut server) > given);
    for sidecar in [&first, &second] {
        assert_eq!(sidecar.client().get("k"), None, "{command:?} came late and was served");
    }
}

#[test]
fn what_was_refused_and_is_carried_out_late_brings_nothing_back_that_was_deleted_since() {
    let tagged = "tags = [\"t\"]\ncold_wait = \"0ms\"";
    for rule in ["cold_wait = \"0ms\"", tagged] {
        a_late("set k 0 0 3\r\nold", rule, None);
        a_late("set k 0 0 3\r\nold", rule, Some(b"older"));
        a_late("add k 0 0 3\r\nold", rule, None);
        a_late("ma k N0 J5", rule, None);
    }
}

#[test]
fn a_set_that_is_carried_out_late_does_not_replace_what_was_set_since() {
    let (servers, gate, [first, second]) = fleet("");
    let (mut writer, mut other) = (first.client(), second.client());
    let mut server = direct(&servers[0]);
    gate.hold("ms k ");
    assert!(writer.set("k", b"old", 0).starts_with("SERVER_ERROR"));
    gate.until_held();
    other.store("k", b"new", 0);
    let given = stores(&mut server);
    gate.release();
    eventually("the server is given what was given up", || stores(&mut server) > given);
    for mut client in [first.client(), second.client()] {
        assert_eq!(client.get("k").as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn of_many_concurrent_sets_of_one_key_all_return_stored_and_the_last_value_remains() {
    let servers = memcacheds(1);
    let sidecars: Vec<Kennel> = (0..2)
        .map(|_| Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("k", "k*", "")])))
        .collect();
    std::thread::scope(|scope| {
        for n in 0..40 {
            let mut client = sidecars[n % 2].client();
            scope.spawn(move || (0..5).for_each(|i| client.store("k", format!("{n}-{i}").as_bytes(), 0)));
        }
    });
    let values: Vec<_> = sidecars.iter().map(|sidecar| sidecar.client().get("k")).collect();
    assert!(values[0].is_some() && values[0] == values[1], "{values:?}");
}
