//! The counters of all workers together.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::discovery::DiscoverySource;
use super::failover::FailoverSource;
use super::worker::WorkerMetrics;

/// A server, as labels name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerName {
    /// The name of its pool.
    pub pool: String,
    /// Its own name, or its address.
    pub server: String,
}

/// What a scrape reads.
pub(super) struct State {
    counts: RwLock<Counts>,
    /// 0: no configuration read yet; 1: the last attempt failed; 2: it succeeded.
    pub(super) reload: AtomicU64,
    /// When the configuration in force was read, in milliseconds of Unix time; 0: never.
    pub(super) reloaded_ms: AtomicU64,
    /// The servers to discover; empty if that is not known.
    pub(super) discovery: OnceLock<Arc<dyn DiscoverySource>>,
    /// How many clients watch what happens to keys.
    pub(super) watchers: Arc<AtomicUsize>,
}

impl State {
    pub(super) fn new(counts: Counts) -> State {
        let (reload, reloaded_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        let (discovery, watchers) = (OnceLock::new(), Arc::default());
        State { counts: RwLock::new(counts), reload, reloaded_ms, discovery, watchers }
    }

    pub(super) fn counts(&self) -> RwLockReadGuard<'_, Counts> {
        self.counts.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts_mut(&self) -> RwLockWriteGuard<'_, Counts> {
        self.counts.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of all workers under one configuration, and the names of what they count.
pub(super) struct Counts {
    /// The configured names, then `none`.
    pub(super) rules: Vec<String>,
    pub(super) servers: Vec<ServerName>,
    pub(super) workers: Vec<Arc<WorkerMetrics>>,
    /// `None` if no pool fails over.
    pub(super) failover: Option<Arc<dyn FailoverSource>>,
    pub(super) config: ConfigInfo,
}

/// What identifies the configuration in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigInfo {
    /// A hash of its settings; empty if unknown.
    pub hash: String,
    /// The certificates of listeners and pools: each file, and when it expires, in seconds of Unix time.
    pub certificates: Vec<(String, i64)>,
    /// The rules whose keys are structures: each name, and its kind.
    pub structures: Vec<(String, &'static str)>,
}

impl Counts {
    /// The counters of worker `at`; of the last worker if there is no such worker.
    pub(super) fn worker(&self, at: usize) -> Arc<WorkerMetrics> {
        debug_assert!(at < self.workers.len(), "worker {at} of {}", self.workers.len());
        Arc::clone(&self.workers[at.min(self.workers.len() - 1)])
    }

    /// The sum over the workers of a cell of their own blocks.
    pub(super) fn own(&self, cell: usize) -> u64 {
        self.sum(|worker| worker.own.get(cell))
    }

    /// The sum over the workers of a cell of their shared blocks.
    pub(super) fn shared(&self, cell: usize) -> u64 {
        self.sum(|worker| worker.shared.get(cell))
    }

    /// The sum over the workers of a cell of a rule's own blocks.
    pub(super) fn of_rule(&self, rule: usize, cell: usize) -> u64 {
        self.sum(|worker| worker.rules[rule].own.get(cell))
    }

    /// The largest of the workers' values of a cell of a rule's own blocks.
    pub(super) fn most_of_rule(&self, rule: usize, cell: usize) -> u64 {
        self.workers.iter().map(|worker| worker.rules[rule].own.get(cell)).max().unwrap_or(0)
    }

    /// The sum over the workers of a cell of a rule's shared blocks.
    pub(super) fn shared_of_rule(&self, rule: usize, cell: usize) -> u64 {
        self.sum(|worker| worker.rules[rule].shared.get(cell))
    }

    /// The sum over the workers of a cell of a server's blocks.
    pub(super) fn of_server(&self, server: usize, cell: usize) -> u64 {
        self.sum(|worker| worker.servers[server].0.get(cell))
    }

    fn sum(&self, cell: impl Fn(&WorkerMetrics) -> u64) -> u64 {
        self.workers.iter().fold(0, |sum, worker| sum.wrapping_add(cell(worker)))
    }

    /// The state of a server, of which each worker sets a cell to 1 for no or 2 for yes: no if any worker has set no, `None` if no
    /// worker has set it.
    pub(super) fn all_agree(&self, server: usize, cell: usize) -> Option<bool> {
        let set = self.workers.iter().map(|worker| worker.servers[server].0.get(cell));
        set.filter(|&value| value != 0).min().map(|value| value == 2)
    }
}

/// The value of a gauge from its sum over the workers. The workers are read one after the other, so the sum can be negative for
/// a moment if something began on a worker that was read earlier and ended on one that was read later.
pub(super) fn gauge(sum: u64) -> u64 {
    sum.cast_signed().max(0).cast_unsigned()
}
