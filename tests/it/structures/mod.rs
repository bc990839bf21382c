//! Keys with a kind, through two sidecars with real servers: one file per kind, and what all kinds have in common.

mod binary;
mod clients;
mod common;
mod copies;
mod counter;
mod full;
mod list;
mod lock;
mod log;
mod recipes;
mod refused;
mod table;
mod seen;
mod window;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::world::{Kennel, Memcached, addresses, memcacheds, sidecar_toml, without_failover};

/// A rule with this kind for [`sidecar_toml`]; `more` are additional lines of TOML.
fn rule(name: &str, pattern: &str, kind: &str, more: &str) -> String {
    format!("[[rules]]\nname = {name:?}\nmatch = {pattern:?}\nkind = {kind:?}\n{more}\n")
}

/// Three servers and two sidecars with these rules. Structures are the same with and without failover, which would delay the start.
/// No command times out because the machine is busy.
fn fleet(rules: &[String]) -> (Vec<Memcached>, [Kennel; 2]) {
    fleet_with(rules, "request_timeout = \"10s\"")
}

/// What starts servers and sidecars with some rules.
type Fleet = fn(&[String]) -> (Vec<Memcached>, [Kennel; 2]);

/// Tests of what is the same if every structure has two copies. Each takes what starts its fleet.
macro_rules! with_one_copy_and_two {
    ($($test:ident,)*) => {
        mod one_copy {
            $(#[test] fn $test() { super::$test(super::super::fleet) })*
        }
        mod two_copies {
            $(#[test] fn $test() { super::$test(super::super::copies::fleet_with_copies) })*
        }
    };
}
use with_one_copy_and_two;

/// The same with the short time limits of [`sidecar_toml`].
fn impatient_fleet(rules: &[String]) -> (Vec<Memcached>, [Kennel; 2]) {
    fleet_with(rules, "request_timeout = \"500ms\"")
}

fn fleet_with(rules: &[String], timeout: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let toml = without_failover(&sidecar_toml(&addresses(&servers), rules));
    let toml = toml.replace("request_timeout = \"500ms\"", timeout);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    (servers, sidecars)
}

/// Sends a command with a value, and returns the first line of the reply.
fn store(client: &mut crate::client::Client, command: &str, value: &str) -> String {
    client.send(format!("{command} {}\r\n{value}\r\n", value.len()).as_bytes());
    client.line()
}

/// Ends the threads of a test, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What a `get` of a key says: its value as text, that there is none, or the error line.
fn answer(client: &mut crate::client::Client, key: &str) -> Result<Option<String>, String> {
    client.send(format!("get {key}\r\n").as_bytes());
    let items = client.items()?;
    assert!(items.len() <= 1 && items.iter().all(|item| item.key == key), "get {key}: {items:?}");
    Ok(items.into_iter().next().map(|item| String::from_utf8(item.value).expect("text")))
}

/// The value of a key as text.
fn text(client: &mut crate::client::Client, key: &str) -> Option<String> {
    client.get(key).map(|value| String::from_utf8(value).expect("text"))
}
