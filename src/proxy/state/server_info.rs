//! What `stats` and `stats settings` report of Kennel itself. All workers share it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::{Metrics, Totals};

/// Kennel as a memcached server, seen by its clients.
pub struct ServerInfo {
    /// Counters of all workers, for `stats`.
    pub metrics: Arc<Metrics>,
    /// The maximum number of clients.
    pub max_connections: usize,
    /// The number of workers.
    pub workers: usize,
    /// Host and port of the first TCP listener, if there is one.
    pub tcp: Option<(String, u16)>,
    /// Path of the first Unix socket, if there is one.
    pub unix: Option<String>,
    /// The permission bits of Unix sockets.
    pub unix_mode: u32,
    /// Whether clients may send `flush_all`.
    pub flush_all: bool,
    /// The counters at the last `stats reset`. It does not reset the Prometheus counters.
    pub baseline: Arc<Mutex<Option<Totals>>>,
}

impl ServerInfo {
    /// The counters since the last `stats reset`.
    pub(crate) fn totals(&self) -> Totals {
        let totals = self.metrics.totals();
        match &*self.baseline.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(baseline) => totals.since(baseline),
            None => totals,
        }
    }

    /// Starts counting from zero.
    pub(crate) fn reset(&self) {
        let totals = self.metrics.totals();
        *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = Some(totals);
    }
}
