//! The recipes of docs/structures.md and of docs/clients.md. The programs are in `recipes/`.

use std::path::PathBuf;
use std::process::Command;

use super::copies::fleet_with_copies;
use super::rule;
use crate::libraries::{php, python, root, ruby};
use crate::world::{Kennel, Memcached};

/// Two copies of everything.
fn fleet() -> (Vec<Memcached>, [Kennel; 2]) {
    let copied = |name, pattern| rule(name, pattern, "raw", "copies = 2");
    fleet_with_copies(&[
        rule("hits", "hits:*", "counter", ""),
        rule("events", "log:*", "log", "window = \"100s\"\nslot = \"1s\""),
        rule("locks", "lock:*", "lock", ""),
        copied("arrays", "array:*"),
        copied("php", "memc.sess.*"),
        copied("rails", "_session_id:*"),
    ])
}

pub(super) fn here() -> PathBuf {
    root().join("tests/it/structures/recipes")
}

/// What a program prints that succeeds.
fn printed(script: &str, mut runtime: Command, sidecar: &Kennel, more: &[&str]) -> String {
    let address = sidecar.address();
    runtime.arg(here().join(script)).args([address.ip().to_string(), address.port().to_string()]).args(more);
    let output =
        runtime.output().unwrap_or_else(|e| panic!("run {script}: {e}; scripts/test installs what it needs"));
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{script} {more:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

#[test]
fn views_are_written_back_a_log_is_read_late_and_arrays_are_changed_by_many_as_the_page_says() {
    let (_servers, [a, b]) = fleet();
    let port = b.address().port().to_string();
    let printed = printed("recipes.py", python(), &a, &[&port]);
    assert_eq!(printed, "OK write back\nOK late log\nOK array by cas\nOK array under a lock\n");
}

/// Sessions that one process began are there for another one, which uses the other sidecar, when a server has been killed.
fn outlive_a_server(script: &str, runtime: fn() -> Command) {
    let (mut servers, [a, b]) = fleet();
    let begun = printed(script, runtime(), &a, &[]);
    // Of two thirds, each server has a copy.
    let ids: Vec<&str> = begun.lines().collect();
    assert_eq!(ids.len(), 20, "{begun}");
    servers[1].kill();
    printed(script, runtime(), &b, &ids);
}

#[test]
fn sessions_of_php_outlive_a_server() {
    outlive_a_server("sessions.php", php);
}

#[test]
fn sessions_of_django_outlive_a_server() {
    outlive_a_server("sessions.py", python);
}

#[test]
fn sessions_of_rails_outlive_a_server() {
    outlive_a_server("sessions.rb", ruby);
}
