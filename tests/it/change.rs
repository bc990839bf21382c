//! The servers of a pool change, one sidecar after the other, while clients read and write: promise 12.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, guarded, memcacheds, raw, sidecar_toml, within};

/// The time limit of what takes seconds on a machine without other load.
const LONG: Duration = Duration::from_secs(60);
/// How many steps a change has: docs/decisions/0026.
const STEPS: usize = 5;

/// Three servers, of which the last is replaced by two others.
fn servers() -> Vec<Memcached> {
    memcacheds(5)
}

/// The configuration of a step of the change, with guarded keys `k:…`, each with a tag of its own, and raw keys.
fn toml(servers: &[Memcached], step: usize, failover: bool) -> String {
    let all = addresses(servers);
    let old = format!("{:?}", &all[..3]);
    let new = format!("{:?}", [&all[..2], &all[3..]].concat());
    let lists = [
        format!("servers = {old}"),
        format!("servers = {old}\nnext = {new}"),
        format!("servers = {new}\nprevious = {old}"),
        format!("servers = {new}\nprevious = {old}\ntake_over = false"),
        format!("servers = {new}"),
    ];
    let rules = [guarded("k", "k:{n}", "tags = [\"t:{n}\"]"), raw("rest", "*")];
    let toml = sidecar_toml(&all, &rules).replace(&format!("servers = {all:?}"), &lists[step]);
    match failover {
        true => toml,
        false => toml.replace("[pools.main]\n", "[pools.main]\nfailover = false\n"),
    }
}

fn keys() -> impl Iterator<Item = String> {
    (0..200).map(|n| format!("k:{n}"))
}

/// Reads every key twice through this sidecar, as two clients do. Builds what is missed: `value`. Returns how many keys were
/// built, and of how many of these the other client got another value meanwhile.
fn read_all(sidecar: &Kennel, value: &str) -> (usize, usize) {
    let (mut first, mut second) = (sidecar.client(), sidecar.client());
    let (mut built, mut served) = (0, 0);
    for key in keys() {
        if first.get(&key).is_none() {
            built += 1;
            second.send(format!("mg {key} v N30\r\n").as_bytes());
            let line = second.line();
            if line.starts_with("VA") {
                // A stub is empty.
                served += usize::from(!second.line().is_empty());
            }
            first.store(&key, value.as_bytes(), 600);
        }
    }
    (built, served)
}

/// How many keys the two lists of servers place differently: those that a server holds now and another one did before.
fn holders(servers: &[Memcached]) -> BTreeMap<String, Vec<usize>> {
    let mut held = BTreeMap::new();
    for (at, server) in servers.iter().enumerate() {
        let mut client = crate::world::direct(server);
        for key in keys() {
            if client.ttl(&key).is_some() {
                held.entry(key).or_insert_with(Vec::new).push(at);
            }
        }
    }
    held
}

fn walk_quietly(failover: bool) {
    let servers = servers();
    let mut sidecars: Vec<Kennel> = (0..3).map(|_| Kennel::start(&toml(&servers, 0, failover))).collect();
    assert_eq!(read_all(&sidecars[0], "v0"), (200, 0));
    let before = holders(&servers);
    let mut total = (0, 0);
    for step in 1..STEPS {
        for at in 0..sidecars.len() {
            sidecars[at] = Kennel::start(&toml(&servers, step, failover));
            for sidecar in &sidecars {
                let (built, served) = read_all(sidecar, &format!("v{step}"));
                println!("step {step}, sidecar {at}: {built} built, {served} served meanwhile");
                total = (total.0 + built, total.1 + served);
            }
        }
    }
    let after = holders(&servers);
    let moved = keys().filter(|key| !after[key].iter().all(|at| before[key].contains(at))).count();
    println!("{moved} moved; {total:?}");
    assert!(moved > 40, "{moved}");
    assert_eq!(total, (moved, moved));
}

#[test]
fn a_moved_key_costs_one_rebuild_and_its_old_value_is_served_meanwhile() {
    walk_quietly(true);
}

#[test]
fn a_moved_key_costs_one_rebuild_without_failover_too() {
    walk_quietly(false);
}
