//! What a process keeps when it takes another configuration.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::limits::miss_token_bytes;
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::{Metrics, Totals};
use crate::observed::OpenBuilds;
use crate::proxy::{ClientMarks, KeyHasher, LeaseTable, OutageTable, TagCache};
use crate::trace::Taps;
use crate::worker::ConnectionLimit;

/// What outlives a configuration.
pub(super) struct Lasting {
    pub(super) metrics: Arc<Metrics>,
    pub(super) taps: Arc<Taps>,
    pub(super) leases: Arc<LeaseTable>,
    pub(super) outages: Arc<OutageTable>,
    pub(super) tag_cache: TagCache,
    /// Held by whoever flushes servers.
    pub(super) flushing: Arc<tokio::sync::Mutex<()>>,
    /// Held by the worker that repairs copies.
    pub(super) repairing: Arc<tokio::sync::Mutex<()>>,
    pub(super) builds: Arc<OpenBuilds>,
    pub(super) client_marks: Arc<ClientMarks>,
    pub(super) sidecar: u64,
    pub(super) hasher: KeyHasher,
    pub(super) clock: Clock,
    pub(super) start: Instant,
    pub(super) baseline: Arc<Mutex<Option<Totals>>>,
    pub(super) connection_limit: Arc<ConnectionLimit>,
    /// The limit on open files.
    pub(super) open_files: Option<u64>,
}

impl Lasting {
    /// Takes the limits of another configuration.
    pub(super) fn take(&self, config: &Config, max_connections: usize) {
        self.leases.set_max_bytes(miss_token_bytes(config));
        self.outages.set_memory(config.near.memory);
        self.connection_limit.set(max_connections);
    }
}
