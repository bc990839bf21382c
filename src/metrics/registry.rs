//! The metrics of the process: where workers get their counters, and what a scrape reads.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use prometheus::{Registry, TextEncoder};

use super::cells::REBUILD;
use super::collect::{Collect, without_rules};
use super::counts::{ConfigInfo, Counts, ServerName, State, gauge};
use super::discovery::{DiscoveredPool, DiscoverySource};
use super::failover::FailoverSource;
use super::labels::{Command, LeaseEnd, Outcome, WaitEnd};
use super::layout;
use super::sample::Sample;
use super::totals::Totals;
use super::worker::{RuleCells, ServerMetrics, WorkerMetrics};

/// The `Content-Type` of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// All metrics, for the rules and servers of the configuration in force.
pub struct Metrics {
    state: Arc<State>,
    registry: Registry,
}

/// The counters under the next configuration, until it is in force.
pub struct NextMetrics(Counts);

impl NextMetrics {
    /// The counters of worker `at`.
    pub fn worker(&self, at: usize) -> Arc<WorkerMetrics> {
        self.0.worker(at)
    }

    /// Shows the failover of the servers too.
    pub fn show_failover(&mut self, source: Option<Arc<dyn FailoverSource>>) {
        self.0.failover = source;
    }
}

/// The counts of one rule since the start, summed over the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleTotals {
    /// Value of the label `rule`.
    pub rule: String,
    /// Keys answered with a fresh value.
    pub hits: u64,
    /// Keys answered with a stale value.
    pub stale: u64,
    /// Keys answered with a miss of any kind.
    pub misses: u64,
    /// Commands that have stored, counted or deleted something.
    pub writes: u64,
    /// Keys answered with an error.
    pub errors: u64,
    /// Leases that ended with a stored fill.
    pub rebuilds: u64,
    /// Keys answered with a value that was built while no server answered.
    pub outage: u64,
    /// Waits that ended with another client's fill.
    pub waits_filled: u64,
    /// Builds that ended with a fill, stored or dropped.
    pub builds: u64,
    /// Their duration together, in milliseconds.
    pub build_ms: u64,
    /// What clients have built for observed keys.
    pub observed: ObservedTotals,
}

/// What clients have built for the observed keys of a rule, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObservedTotals {
    /// Builds, overlapping ones included.
    pub builds: u64,
    /// Those that a guard would have spared.
    pub spared: u64,
    /// The time that the builds took, in microseconds.
    pub build_micros: u64,
    /// The time that those took which a guard would have spared.
    pub spared_micros: u64,
    /// The most builds of one key that overlapped.
    pub at_once: u64,
    /// Builds of its guarded keys, if it has a share.
    pub guarded: u64,
    /// Those of them that overlapped.
    pub guarded_overlapping: u64,
}

impl Metrics {
    /// Takes the rules and servers, in the order of their indices, and the number of workers (at least one). A repeated name, or
    /// a rule named `none`, gets a number appended, because a duplicate series would make the whole scrape invalid.
    pub fn new(rules: Vec<String>, servers: Vec<ServerName>, workers: usize) -> Metrics {
        let (rules, servers) = (unique_rules(rules), unique_servers(servers));
        let worker = || Arc::new(WorkerMetrics::new(rules.len(), servers.len()));
        let workers = (0..workers.max(1)).map(|_| worker()).collect();
        let counts = Counts { rules, servers, workers, failover: None, config: ConfigInfo::default() };
        let state = Arc::new(State::new(counts));
        let registry = Registry::new();
        registry
            .register(Box::new(Collect::new(Arc::clone(&state))))
            .expect("the table's names are legal and distinct, which every test that renders proves");
        Metrics { state, registry }
    }

    /// The counters under the next configuration. A rule or server that has the name of one of the configuration in force goes on
    /// with its counters.
    pub fn next(&self, rules: Vec<String>, servers: Vec<ServerName>) -> NextMetrics {
        let (rules, servers) = (unique_rules(rules), unique_servers(servers));
        let counts = self.state.counts();
        let known_rules: HashMap<_, _> = counts.rules.iter().zip(0..).collect();
        let known_servers: HashMap<_, _> = counts.servers.iter().zip(0..).collect();
        let worker = |worker: &Arc<WorkerMetrics>| {
            let rule = |name| {
                known_rules.get(name).map_or_else(RuleCells::new, |&at: &usize| worker.rules[at].clone())
            };
            let server = |name| {
                known_servers
                    .get(name)
                    .map_or_else(ServerMetrics::new, |&at: &usize| worker.servers[at].clone())
            };
            Arc::new(WorkerMetrics {
                own: worker.own.clone(),
                shared: worker.shared.clone(),
                rules: rules.iter().map(rule).collect(),
                servers: servers.iter().map(server).collect(),
            })
        };
        let workers = counts.workers.iter().map(worker).collect();
        // Until the next one is shown, so that no scrape finds none.
        let config = counts.config.clone();
        NextMetrics(Counts { rules, servers, workers, failover: None, config })
    }

    /// The next configuration is in force.
    pub fn switch_to(&self, NextMetrics(next): NextMetrics) {
        *self.state.counts_mut() = next;
    }

    /// The counters of worker `at`; of the last worker if there is no such worker.
    pub fn worker(&self, at: usize) -> Arc<WorkerMetrics> {
        self.state.counts().worker(at)
    }

    /// Shows the failover of the servers too.
    pub fn show_failover(&self, source: Arc<dyn FailoverSource>) {
        self.state.counts_mut().failover = Some(source);
    }

    /// Shows the discovery of servers from now on. A second source is ignored.
    pub fn show_discovery(&self, source: Arc<dyn DiscoverySource>) {
        let _ = self.state.discovery.set(source);
    }

    /// The pools with servers to discover.
    pub fn discovery(&self) -> Vec<DiscoveredPool> {
        self.state.discovery.get().map(|source| source.pools()).unwrap_or_default()
    }

    /// The number of clients that watch what happens to keys, which whoever serves them must keep.
    pub fn trace_watchers(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.state.watchers)
    }

    /// Shows what identifies the configuration in force.
    pub fn show_config(&self, config: ConfigInfo) {
        self.state.counts_mut().config = config;
    }

    /// Records an attempt to read the configuration, including the first one. `unix_ms` is ignored unless it succeeded.
    pub fn config_read(&self, successful: bool, unix_ms: u64) {
        self.state.reload.store(1 + u64::from(successful), Relaxed);
        if successful {
            self.state.reloaded_ms.store(unix_ms, Relaxed);
        }
    }

    /// Renders all metrics in Prometheus's text format 0.0.4 ([`CONTENT_TYPE`]). Labelled series that are 0 are omitted. Reads
    /// /proc, which takes a fraction of a millisecond.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("writing to a String cannot fail, and the registry has pruned the empty families")
    }

    /// The metrics that are not by rule, for a client's `stats`: the name with its labels, without spaces, and the value. Histograms
    /// have no buckets. The cost is independent of the number of rules.
    pub fn stats(&self) -> Vec<(String, String)> {
        let text = TextEncoder::new().encode_to_string(&without_rules(&self.state));
        let text = text.expect("writing to a String cannot fail, and no family is empty");
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
        let stat = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            // A path may have a space.
            Some((name.replace(char::is_whitespace, "_"), value.to_owned()))
        };
        lines.filter_map(stat).collect()
    }

    /// The totals of each rule, in the configuration's order, with `none` last.
    pub fn rule_totals(&self) -> Vec<RuleTotals> {
        let counts = self.state.counts();
        let totals = |rule: usize, name: &String| {
            let answered = |outcome| {
                Command::ALL.iter().map(|&c| counts.of_rule(rule, layout::request(c, outcome))).sum::<u64>()
            };
            let builds = |buckets| {
                let cells = layout::REBUILD_DURATION..layout::REBUILD_DURATION + buckets;
                cells.map(|cell| counts.shared_of_rule(rule, cell))
            };
            RuleTotals {
                rule: name.clone(),
                hits: answered(Outcome::Hit),
                stale: answered(Outcome::Stale),
                misses: answered(Outcome::Miss) + answered(Outcome::MissWon) + answered(Outcome::MissHeld),
                writes: answered(Outcome::Stored) + answered(Outcome::Counted) + answered(Outcome::Deleted),
                errors: answered(Outcome::Error)
                    + answered(Outcome::ClientError)
                    + answered(Outcome::ServerError),
                rebuilds: counts.shared_of_rule(rule, layout::lease(LeaseEnd::Filled)),
                outage: answered(Outcome::Outage),
                waits_filled: counts.shared_of_rule(rule, layout::wait(WaitEnd::Filled)),
                builds: builds(REBUILD.bounds.len() + 1).sum(),
                build_ms: counts.shared_of_rule(rule, layout::REBUILD_DURATION + REBUILD.bounds.len() + 1),
                observed: ObservedTotals {
                    builds: counts.of_rule(rule, layout::OBSERVED_BUILDS),
                    spared: counts.of_rule(rule, layout::OBSERVED_SPARED),
                    build_micros: counts.of_rule(rule, layout::OBSERVED_TIME),
                    spared_micros: counts.of_rule(rule, layout::OBSERVED_SPARED_TIME),
                    at_once: counts.most_of_rule(rule, layout::OBSERVED_AT_ONCE),
                    guarded: counts.of_rule(rule, layout::SHARE_BUILDS),
                    guarded_overlapping: counts.of_rule(rule, layout::SHARE_OVERLAPS),
                },
            }
        };
        counts.rules.iter().enumerate().map(|(rule, name)| totals(rule, name)).collect()
    }

    /// The totals over all rules. The cost is independent of the number of rules: some hundred cells per worker, and a few per
    /// server.
    pub fn totals(&self) -> Totals {
        Totals::of(&self.state.counts())
    }

    /// The counts that the status page plots. The cost grows with the number of rules and servers.
    pub fn sample(&self) -> Sample {
        Sample::of(&self.state.counts())
    }

    /// Whether the server of this index is sick or returning.
    pub fn is_sick(&self, server: usize) -> bool {
        gauge(self.state.counts().of_server(server, layout::UNHEALTHY)) != 0
    }

    /// The servers, in the order given, and whether each is up; `None` before any worker has connected.
    pub fn servers_up(&self) -> Vec<(ServerName, Option<bool>)> {
        let counts = self.state.counts();
        let up = |(at, server): (usize, &ServerName)| (server.clone(), counts.all_agree(at, layout::UP));
        counts.servers.iter().enumerate().map(up).collect()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("rules", &self.state.counts().rules).finish_non_exhaustive()
    }
}

/// The names, each once, and `none`.
fn unique_rules(rules: Vec<String>) -> Vec<String> {
    let mut taken = HashSet::from(["none".to_owned()]);
    let rules = rules.into_iter().map(|rule| unique(&mut taken, rule, String::clone));
    rules.chain(["none".to_owned()]).collect()
}

/// The servers, each once.
fn unique_servers(servers: Vec<ServerName>) -> Vec<ServerName> {
    let mut taken = HashSet::new();
    let named = |ServerName { pool, server }| {
        let server = unique(&mut taken, server, |server| (pool.clone(), server.clone()));
        ServerName { pool, server }
    };
    servers.into_iter().map(named).collect()
}

/// `name`, or the first of `name#2`, `name#3`, … for which `key` is not taken.
fn unique<K: std::hash::Hash + Eq>(
    taken: &mut HashSet<K>,
    name: String,
    key: impl Fn(&String) -> K,
) -> String {
    if taken.insert(key(&name)) {
        return name;
    }
    let numbered = (2..).map(|n: u64| format!("{name}#{n}")).find(|numbered| taken.insert(key(numbered)));
    numbered.unwrap_or(name)
}
