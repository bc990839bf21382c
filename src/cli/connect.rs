//! `kennel check --connect FILE`: connects to each server and reports its version and whether it can guard keys.

use std::fmt::Write as _;
use std::io;

use tokio::runtime;
use tokio::task::{JoinSet, LocalSet};

use crate::clock::unix_ms;
use crate::config::{Config, Loaded, RuleKind};
use crate::discovery::{Discovery, several_addresses};
use crate::random::Random;
use crate::upstream::capabilities::Capabilities;
use crate::upstream::key_dump::{NoKeys, lists_keys};
use crate::upstream::server::Server;
use crate::upstream::{Address, PoolSpec, Security, ServerSpec, probe};

/// The results: one line per server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Servers without a problem.
    pub(super) good: String,
    /// Servers with a problem.
    pub(super) bad: String,
}

/// Looks up the servers to discover, and connects to all servers concurrently. Adds warnings of names with several addresses to the
/// configuration.
///
/// # Errors
/// The system refuses a resource for the runtime or a server.
pub(super) fn connect(config: &mut Config) -> io::Result<Found> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let found = LocalSet::new().block_on(&runtime, async {
        config.warnings.extend(several_addresses(config).await);
        let mut discovery = Discovery::new(Loaded::of(config.clone()));
        discovery.first().await;
        let mut found = probe_all(&discovery.in_force().config).await?;
        let lines = |lines: Vec<String>| lines.into_iter().map(|line| line + "\n").collect::<String>();
        found.good.insert_str(0, &lines(discovery.found()));
        found.bad.insert_str(0, &lines(discovery.unknown()));
        Ok(found)
    });
    // Do not wait for host names that are still being resolved.
    runtime.shutdown_background();
    found
}

async fn probe_all(config: &Config) -> io::Result<Found> {
    let mut probes = JoinSet::new();
    for (at, (pool, spec)) in servers(config).enumerate() {
        // An embedded server is part of this program, so it needs no probe.
        let is_probed = matches!(spec.address, Address::Tcp { .. } | Address::Unix(_));
        let has_copies = has_copies(config, pool);
        if is_probed {
            let server = Server::new(spec, pool, &Security::open(&pool.security)?, unix_ms)?;
            probes.spawn_local(async move {
                let opened = probe::open(&server, &mut Random::from_entropy()).await;
                let lists = if has_copies && opened.is_ok() { Some(lists_keys(&server).await) } else { None };
                (at, opened.map(|(_, found)| (found, lists)).map_err(|broken| broken.to_string()))
            });
        }
    }
    let mut results = probes.join_all().await;
    results.sort_by_key(|(at, _)| *at);
    let mut results = results.into_iter().peekable();
    let mut found = Found::default();
    for (at, (pool, spec)) in servers(config).enumerate() {
        if spec.lookup().is_some() {
            continue; // not found, which is reported by itself
        }
        let result = results.next_if(|(of, _)| *of == at).map(|(_, result)| result);
        let (good, text) = describe(result, must_guard(config, pool));
        let lines = if good { &mut found.good } else { &mut found.bad };
        let _ = writeln!(lines, "pool {}: {}: {text}", pool.name, spec.address);
    }
    Ok(found)
}

fn servers(config: &Config) -> impl Iterator<Item = (&PoolSpec, &ServerSpec)> {
    config.pools.iter().flat_map(|pool| pool.all_servers().map(move |server| (pool, server)))
}

/// What was found out about a server: whether it lists its keys, if a rule needs that.
type Probed = Result<(Capabilities, Option<Result<(), NoKeys>>), String>;

/// Whether a rule of this pool has copies.
fn has_copies(config: &Config, pool: &PoolSpec) -> bool {
    let is_copied = |kind: &RuleKind| matches!(kind, RuleKind::Structure(kind) if kind.is_copied());
    config.rules.iter().any(|rule| config.pools[rule.pool].name == pool.name && is_copied(&rule.kind))
}

/// Whether a pool stores guarded keys, or the tags of any rule.
fn must_guard(config: &Config, pool: &PoolSpec) -> bool {
    let is = |index: usize| config.pools.get(index).is_some_and(|other| other.name == pool.name);
    config.rules.iter().any(|rule| {
        let (guarded, tagged) = match &rule.kind {
            RuleKind::Raw | RuleKind::Observed => (false, false),
            RuleKind::Structure(_) => (true, false),
            RuleKind::Guarded { tags, tags_in_key, .. } => (true, *tags_in_key || !tags.is_empty()),
        };
        guarded && is(rule.pool) || (tagged || !rule.invalidates.is_empty()) && is(config.tags.pool)
    })
}

/// Whether a server has no problem, and its description. `None` stands for an embedded server.
fn describe(result: Option<Probed>, must_guard: bool) -> (bool, String) {
    let (lists, result) = match result {
        Some(Ok((found, lists))) => (lists, Some(Ok(found))),
        Some(Err(error)) => (None, Some(Err(error))),
        None => (None, None),
    };
    let (good, text) = describe_guard(result, must_guard);
    match lists {
        None => (good, text),
        Some(Ok(())) => (good, format!("{text}, lists its keys for the repair of copies")),
        Some(Err(why)) => (false, format!("{text}; lost copies are not stored again: {why}")),
    }
}

/// The same for what the guard needs.
fn describe_guard(result: Option<Result<Capabilities, String>>, must_guard: bool) -> (bool, String) {
    match result {
        None => (true, "inside this process, can guard keys".to_owned()),
        Some(Err(error)) => (false, format!("cannot be reached: {error}")),
        Some(Ok(Capabilities { version, missing_feature: None, .. })) => {
            (true, format!("memcached {version}, can guard keys"))
        }
        Some(Ok(Capabilities { version, missing_feature: Some(missing_feature), .. })) => {
            let need = if must_guard { "" } else { ", which no rule requires" };
            (!must_guard, format!("memcached {version}, cannot guard keys: {missing_feature}{need}"))
        }
    }
}
