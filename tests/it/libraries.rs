//! Client libraries as their users use them, against the real thing and against a sidecar. A library that is missing
//! fails: `scripts/test` installs it.

use std::net::SocketAddr;
use std::process::Command;

use crate::world::{Kennel, Memcached, addresses, guarded, memcacheds, raw, sidecar_toml};

/// What py/pymemcache_users.py must report, in order.
const DONE: [&str; 12] = [
    "set and get",
    "multi-get",
    "counters",
    "touch",
    "big value",
    "cas",
    "add, replace, append, prepend",
    "delete",
    "key_prefix",
    "noreply by default",
    "non-ASCII",
    "pool and version",
];

/// Runs the script against `address` with keys of this prefix.
fn pymemcache(address: SocketAddr, prefix: &str) {
    let python = std::env::var("KENNEL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/py/pymemcache_users.py");
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let output = Command::new(&python).args([script, &host, &port, prefix]).output();
    let output = output.unwrap_or_else(|e| panic!("run {python}: {e}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{prefix} {}\n{stdout}\n{stderr}", output.status);
    let expected: String = DONE.iter().map(|d| format!("OK {d}\n")).collect();
    assert_eq!(stdout, expected, "{stderr}");
}

fn sidecar(servers: &[Memcached]) -> Kennel {
    let hot = "stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"100ms\"\ntags = [\"posts\"]";
    Kennel::start(&sidecar_toml(&addresses(servers), &[guarded("hot", "hot:*", hot), raw("raw", "*")]))
}

#[test]
fn what_pymemcaches_users_do_works_on_memcached_itself() {
    let memcached = Memcached::start(&[]);
    pymemcache(memcached.address, "raw:");
}

#[test]
fn what_pymemcaches_users_do_works_through_a_raw_rule() {
    let servers = memcacheds(3);
    pymemcache(sidecar(&servers).address(), "raw:");
}

#[test]
fn what_pymemcaches_users_do_works_through_a_guarded_rule() {
    let servers = memcacheds(3);
    pymemcache(sidecar(&servers).address(), "hot:");
}
