//! The metrics of the process: where workers get their counters, and what a scrape reads.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use prometheus::{Registry, TextEncoder};

use super::collect::Collect;
use super::counts::{Counts, ServerName, gauge};
use super::failover::FailoverSource;
use super::labels::{Command, LeaseEnd, Outcome};
use super::totals::Totals;
use super::worker::WorkerMetrics;

/// The `Content-Type` of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// All metrics, for the rules and servers of one configuration.
pub struct Metrics {
    counts: Arc<Counts>,
    registry: Registry,
}

/// The counts of one rule since the start, summed over the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleTotals {
    /// Its name.
    pub rule: String,
    /// Keys answered with a fresh value.
    pub hits: u64,
    /// Keys answered with a stale value.
    pub stale: u64,
    /// Keys answered with a miss of any kind.
    pub misses: u64,
    /// Leases that ended with a stored fill.
    pub rebuilds: u64,
}

impl Metrics {
    /// Takes the rules and servers, in the order of their indices, and the number of workers (at least one). A repeated name, or
    /// a rule named `none`, gets a number appended, because a duplicate series would make the whole scrape invalid.
    pub fn new(rules: Vec<String>, servers: Vec<ServerName>, workers: usize) -> Metrics {
        let mut taken = HashSet::from(["none".to_owned()]);
        let mut rules: Vec<String> =
            rules.into_iter().map(|rule| unique(&mut taken, rule, String::clone)).collect();
        rules.push("none".to_owned());
        let mut taken = HashSet::new();
        let servers: Vec<ServerName> = servers
            .into_iter()
            .map(|ServerName { pool, server }| {
                let server = unique(&mut taken, server, |server| (pool.clone(), server.clone()));
                ServerName { pool, server }
            })
            .collect();
        let worker = || Arc::new(WorkerMetrics::new(rules.len(), servers.len()));
        let workers = (0..workers.max(1)).map(|_| worker()).collect();
        let counts = Counts {
            rules,
            servers,
            workers,
            reload: AtomicU64::new(0),
            reloaded_ms: AtomicU64::new(0),
            failover: OnceLock::new(),
        };
        let counts = Arc::new(counts);
        let registry = Registry::new();
        registry
            .register(Box::new(Collect::new(Arc::clone(&counts))))
            .expect("the table's names are legal and distinct, which every test that renders proves");
        Metrics { counts, registry }
    }

    /// The counters of worker `at`; of the last worker if there is no such worker.
    pub fn worker(&self, at: usize) -> Arc<WorkerMetrics> {
        debug_assert!(at < self.counts.workers.len(), "worker {at} of {}", self.counts.workers.len());
        Arc::clone(&self.counts.workers[at.min(self.counts.workers.len() - 1)])
    }

    /// Shows the failover of the servers too. Only the first source counts.
    pub fn show_failover(&self, source: Arc<dyn FailoverSource>) {
        // An error means that there is one.
        let _ = self.counts.failover.set(source);
    }

    /// Records an attempt to read the configuration, including the first one. `unix_ms` is ignored unless it succeeded.
    pub fn config_read(&self, successful: bool, unix_ms: u64) {
        self.counts.reload.store(1 + u64::from(successful), Relaxed);
        if successful {
            self.counts.reloaded_ms.store(unix_ms, Relaxed);
        }
    }

    /// Renders all metrics in Prometheus's text format 0.0.4 ([`CONTENT_TYPE`]). Labelled series that are 0 are omitted. Reads
    /// /proc, which takes a fraction of a millisecond.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("writing to a String cannot fail, and the registry has pruned the empty families")
    }

    /// The totals of each rule, in the configuration's order, with `none` last.
    pub fn rule_totals(&self) -> Vec<RuleTotals> {
        let counts = &*self.counts;
        let totals = |rule: usize, name: &String| {
            let answered = |outcome| {
                Command::ALL.iter().map(|&c| counts.own(|at| at.request(rule, c, outcome))).sum::<u64>()
            };
            RuleTotals {
                rule: name.clone(),
                hits: answered(Outcome::Hit),
                stale: answered(Outcome::Stale),
                misses: answered(Outcome::Miss) + answered(Outcome::MissWon) + answered(Outcome::MissHeld),
                rebuilds: counts.shared(|at| at.lease(rule, LeaseEnd::Filled)),
            }
        };
        counts.rules.iter().enumerate().map(|(rule, name)| totals(rule, name)).collect()
    }

    /// The totals over all rules. The cost is independent of the number of rules: some hundred cells per worker, and a few per
    /// server.
    pub fn totals(&self) -> Totals {
        Totals::of(&self.counts)
    }

    /// Whether the server of this index is sick or returning.
    pub fn is_sick(&self, server: usize) -> bool {
        gauge(self.counts.own(|layout| layout.unhealthy(server))) != 0
    }

    /// The servers, in the order given, and whether each is up; `None` before any worker has connected.
    pub fn servers_up(&self) -> Vec<(ServerName, Option<bool>)> {
        let up = |(at, server): (usize, &ServerName)| {
            (server.clone(), self.counts.all_agree(|layout| layout.up(at)))
        };
        self.counts.servers.iter().enumerate().map(up).collect()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("rules", &self.counts.rules).finish_non_exhaustive()
    }
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
