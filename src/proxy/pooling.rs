//! Whether the clients of a listener have pools of connections, and which connections may be of one pool.
//!
//! What that decides is in `guard/leases/attribution.rs`, how it is learnt in `guard/leases/pairing.rs`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tracing::info;

use crate::guard::leases::{Owner, PairedMiss, PoolDetection};
use crate::metrics::{PairedWith, WorkerMetrics};

/// What the configuration says of a listener's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionUse {
    /// What they do tells.
    #[default]
    Auto,
    /// Each reads and writes on one connection.
    Single,
    /// They take any connection of a pool for a command.
    Pooled,
}

impl ConnectionUse {
    /// As in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            ConnectionUse::Auto => "auto",
            ConnectionUse::Single => "single",
            ConnectionUse::Pooled => "pooled",
        }
    }
}

/// One listener's clients. Shared by all workers.
#[derive(Debug)]
pub struct ListenerClients {
    number: u32,
    listener: String,
    declared: ConnectionUse,
    learnt: Mutex<PoolDetection>,
    /// What was learnt, for those who only want to know.
    pooled: AtomicBool,
}

impl ListenerClients {
    /// Those of the listener with this number and name.
    pub fn new(number: u32, listener: String, declared: ConnectionUse) -> ListenerClients {
        let pooled = AtomicBool::new(declared == ConnectionUse::Pooled);
        ListenerClients { number, listener, declared, learnt: Mutex::default(), pooled }
    }

    /// A new connection. `process`: of the client, where that is known: then only connections of the same one may be of one pool.
    pub fn owner(&self, connection: u64, process: Option<u32>) -> Owner {
        let peers = u64::from(self.number) << 32 | u64::from(process.unwrap_or(0));
        Owner { connection, peers }
    }

    /// Whether a `set` may end the miss of another connection. `reads`: its own connection has been told misses too. One that only
    /// ever writes is taken for none of a pool, unless the configuration says so.
    pub(super) fn is_pooled(&self, reads: bool) -> bool {
        self.pooled.load(Relaxed) && (reads || self.declared == ConnectionUse::Pooled)
    }

    /// Whether [`ListenerClients::note`] has any use.
    pub(super) fn learns(&self) -> bool {
        self.declared == ConnectionUse::Auto
    }

    /// A `set` has come that may end a miss.
    pub(super) fn note(&self, paired: PairedMiss, metrics: &WorkerMetrics) {
        metrics.set_paired(match paired {
            PairedMiss::Own => PairedWith::Own,
            PairedMiss::Other => PairedWith::Other,
            PairedMiss::None => PairedWith::None,
        });
        let changed = self.learnt.lock().unwrap_or_else(PoisonError::into_inner).note(paired);
        if let Some(pooled) = changed {
            self.pooled.store(pooled, Relaxed);
            metrics.clients_changed(pooled);
            let clients = if pooled { ConnectionUse::Pooled } else { ConnectionUse::Single }.word();
            info!(listener = self.listener, clients, "learnt how clients use their connections");
        }
    }
}
