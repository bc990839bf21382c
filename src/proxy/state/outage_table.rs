//! The keys without a server that all workers of the process build or wait for. `guard/outage.rs` decides.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::guard::Now;
use crate::guard::outage::{OutageLook, OutageValue, Outages};
use crate::metrics::{Limit, WorkerMetrics};
use crate::proxy::state::key_hash::KeyHasher;

/// Wakes one waiting reader: with the value, or without one because the reader may build it.
pub(crate) type OutageSender = oneshot::Sender<Option<OutageValue>>;

/// For how many groups of keys and tags the last change is remembered.
const CHANGES: usize = 4096;

/// The table. Only reads without an answer, and changes while it has a key, use its mutex.
#[derive(Debug)]
pub struct OutageTable {
    outages: Mutex<Outages<OutageSender>>,
    keys: AtomicUsize,
    /// When a key or tag of each group was last changed through this sidecar, on the monotonic clock in ms.
    changes: Box<[AtomicU64]>,
    hasher: KeyHasher,
}

impl OutageTable {
    /// An empty table that keeps up to `memory` bytes of values.
    pub fn new(memory: usize) -> OutageTable {
        let changes = (0..CHANGES).map(|_| AtomicU64::new(0)).collect();
        let (outages, keys) = (Mutex::new(Outages::new(memory)), AtomicUsize::new(0));
        OutageTable { outages, keys, changes, hasher: KeyHasher::new() }
    }

    /// From now on, it keeps up to `memory` bytes of values.
    pub fn set_memory(&self, memory: usize) {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner).set_memory(memory);
    }

    fn last_change_of(&self, name: &[u8]) -> &AtomicU64 {
        &self.changes[self.hasher.hash(name) as usize % CHANGES]
    }

    /// A change of this key or tag begins.
    pub(crate) fn note_change(&self, name: &[u8], now: u64) {
        self.last_change_of(name).fetch_max(now, Ordering::SeqCst);
    }

    /// Whether this key or tag has been changed at this time or later. May be true for one that has not.
    pub(crate) fn is_changed_since(&self, name: &[u8], time: u64) -> bool {
        self.last_change_of(name).load(Ordering::SeqCst) >= time
    }

    /// What is known of this key, for operators. Changes nothing.
    pub(crate) fn look(&self, key: &[u8], now: Now) -> Option<OutageLook> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner).look(key, now)
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
