//! The counters of all workers together.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use super::failover::FailoverSource;
use super::layout::Layout;
use super::worker::WorkerMetrics;

/// A server, as labels name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerName {
    /// The name of its pool.
    pub pool: String,
    /// Its own name, or its address.
    pub server: String,
}

/// The counters of all workers, and the names of what they count.
pub(super) struct Counts {
    /// The configured names, then `none`.
    pub(super) rules: Vec<String>,
    pub(super) servers: Vec<ServerName>,
    pub(super) workers: Vec<Arc<WorkerMetrics>>,
    /// 0: no configuration read yet; 1: the last attempt failed; 2: it succeeded.
    pub(super) reload: AtomicU64,
    /// When the configuration in force was read, in milliseconds of Unix time; 0: never.
    pub(super) reloaded_ms: AtomicU64,
    /// Empty if no pool fails over.
    pub(super) failover: OnceLock<Arc<dyn FailoverSource>>,
}

impl Counts {
    /// The sum over the workers of a cell of their own block.
    pub(super) fn own(&self, cell: impl Fn(&Layout) -> usize) -> u64 {
        self.workers.iter().fold(0, |sum, w| sum.wrapping_add(w.own.get(cell(&w.layout))))
    }

    /// The sum over the workers of a cell of their shared block.
    pub(super) fn shared(&self, cell: impl Fn(&Layout) -> usize) -> u64 {
        self.workers.iter().fold(0, |sum, w| sum.wrapping_add(w.shared.get(cell(&w.layout))))
    }

    /// The state of a server, of which each worker sets a cell of its own block to 1 for no or 2 for yes: no if any worker has
    /// set no, `None` if no worker has set it.
    pub(super) fn all_agree(&self, cell: impl Fn(&Layout) -> usize) -> Option<bool> {
        let set = self.workers.iter().map(|w| w.own.get(cell(&w.layout))).filter(|&value| value != 0);
        set.min().map(|value| value == 2)
    }
}

/// The value of a gauge from its sum over the workers. The workers are read one after the other, so the sum can be negative for
/// a moment if something began on a worker that was read earlier and ended on one that was read later.
pub(super) fn gauge(sum: u64) -> u64 {
    sum.cast_signed().max(0).cast_unsigned()
}
