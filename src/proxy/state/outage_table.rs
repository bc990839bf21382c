//! The keys without a server that all workers of the process build or wait for. `guard/outage.rs` decides.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::guard::outage::{OutageValue, Outages};
use crate::metrics::{Limit, WorkerMetrics};

/// Wakes one waiting reader: with the value, or without one because the reader may build it.
pub(crate) type OutageSender = oneshot::Sender<Option<OutageValue>>;

/// The table. Only reads without an answer, and changes while it has a key, use its mutex.
#[derive(Debug)]
pub struct OutageTable {
    outages: Mutex<Outages<OutageSender>>,
    keys: AtomicUsize,
}

impl OutageTable {
    /// An empty table that keeps up to `memory` bytes of values.
    pub fn new(memory: usize) -> OutageTable {
        OutageTable { outages: Mutex::new(Outages::new(memory)), keys: AtomicUsize::new(0) }
    }

    /// Whether it has no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.load(Ordering::SeqCst) == 0
    }

    /// Uses the table, and counts what it then keeps.
    pub(crate) fn with<T>(
        &self,
        metrics: &WorkerMetrics,
        then: impl FnOnce(&mut Outages<OutageSender>) -> T,
    ) -> T {
        // No panic leaves a change to the table half done.
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        let before = outages.kept();
        let result = then(&mut outages);
        let after = outages.kept();
        self.keys.store(outages.len(), Ordering::SeqCst);
        metrics.outage_kept(before, after);
        for _ in 0..outages.take_evicted() {
            metrics.limit_reached(Limit::Outage);
        }
        result
    }
}
