//! How many clients are connected to the whole process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Limits and numbers the connections of clients. Shared by all workers.
pub struct ConnectionLimit {
    max: AtomicUsize,
    open: AtomicUsize,
    next: AtomicU64,
}

impl ConnectionLimit {
    /// Allows `max` connections at a time.
    pub fn new(max: usize) -> ConnectionLimit {
        let (open, next) = (AtomicUsize::new(0), AtomicU64::new(1));
        ConnectionLimit { max: AtomicUsize::new(max), open, next }
    }

    /// From now on, this many connections. Those above it are not closed.
    pub fn set(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// The number of a new connection, unless the limit is reached.
    pub(super) fn open(&self) -> Option<u64> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max.load(Ordering::Relaxed) {
            self.close();
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts a client that another process has accepted, whatever the limit.
    pub fn count_adopted(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of such a client's connection.
    pub(super) fn number_adopted(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many clients are connected.
    pub fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
