//! `kennel check --connect FILE`: what each server of a configuration is, and whether it can guard keys.

use std::fmt::Write as _;
use std::io;

use tokio::runtime;
use tokio::task::{JoinSet, LocalSet};

use crate::clock::unix_ms;
use crate::config::units::show_address;
use crate::config::{Config, RuleKind};
use crate::random::Random;
use crate::upstream::capabilities::Capabilities;
use crate::upstream::server::Server;
use crate::upstream::{Address, PoolSpec, ServerSpec, probe};

/// What was found: lines about servers that are as they should be, and about those that are not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// A line each.
    pub(super) good: String,
    /// A line each; empty if there is nothing to mend.
    pub(super) bad: String,
}

/// Connects to every server once, to all at the same time.
///
/// # Errors
/// The system gives no runtime, or no thread for an embedded server.
pub(super) fn connect(config: &Config) -> io::Result<Found> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let found = LocalSet::new().block_on(&runtime, ask_all(config));
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    found
}

async fn ask_all(config: &Config) -> io::Result<Found> {
    let mut asked = JoinSet::new();
    for (at, (pool, spec)) in servers(config).enumerate() {
        // Here it is this very Kennel's own.
        let is_embedded = matches!(spec.address, Address::Embedded { .. });
        if !is_embedded {
            let server = Server::new(at, spec, pool.connect_timeout, pool.request_timeout, unix_ms)?;
            asked.spawn_local(async move {
                let opened = probe::open(&server, &mut Random::from_entropy()).await;
                (at, opened.map(|(_, found)| found).map_err(|broken| broken.to_string()))
            });
        }
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    let mut answers = answers.into_iter().peekable();
    let mut found = Found::default();
    for (at, (pool, spec)) in servers(config).enumerate() {
        let answer = answers.next_if(|(of, _)| *of == at).map(|(_, answer)| answer);
        let (good, text) = tell(answer, guards(config, pool));
        let lines = if good { &mut found.good } else { &mut found.bad };
        let _ = writeln!(lines, "pool {}: {}: {text}", pool.name, show_address(&spec.address));
    }
    Ok(found)
}

fn servers(config: &Config) -> impl Iterator<Item = (&PoolSpec, &ServerSpec)> {
    config.pools.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)))
}

/// Whether guarded keys or tags that anything depends on live in a pool.
fn guards(config: &Config, pool: &PoolSpec) -> bool {
    let is = |index: usize| config.pools.get(index).is_some_and(|other| other.name == pool.name);
    config.rules.iter().any(|rule| {
        let (guarded, tagged) = match &rule.kind {
            RuleKind::Raw => (false, false),
            RuleKind::Guarded { tags, tags_in_key, .. } => (true, *tags_in_key || !tags.is_empty()),
        };
        guarded && is(rule.pool) || (tagged || !rule.invalidates.is_empty()) && is(config.tags.pool)
    })
}

/// Whether all is well with a server, and what to say of it. `None`: it is embedded.
fn tell(answer: Option<Result<Capabilities, String>>, must_guard: bool) -> (bool, String) {
    match answer {
        None => (true, "inside this process, can guard keys".to_owned()),
        Some(Err(why)) => (false, format!("cannot be reached: {why}")),
        Some(Ok(Capabilities { version, missing_feature: None, .. })) => {
            (true, format!("memcached {version}, can guard keys"))
        }
        Some(Ok(Capabilities { version, missing_feature: Some(missing_feature), .. })) => {
            let need = if must_guard { "" } else { ", and need not" };
            (!must_guard, format!("memcached {version}, cannot guard keys: {missing_feature}{need}"))
        }
    }
}
