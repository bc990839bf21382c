//! Whether the clients of a listener use connection pools, and which connections may belong to one pool.
//!
//! `guard/leases/attribution.rs` uses it, and `guard/leases/pool_detection.rs` detects it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::info;

use crate::guard::leases::{Owner, PairedMiss, PoolDetection};
use crate::metrics::{PairedWith, WorkerMetrics};
use crate::trace::Peer;

use super::patience::Patience;
use super::process::{Membership, Processes};

/// How the clients of a listener use their connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionUse {
    /// To be detected from sets that follow misses.
    #[default]
    Auto,
    /// A client reads and writes a key on one connection.
    Single,
    /// A client takes any connection of its pool for each command.
    Pooled,
    /// All tasks of a client process send on the same connections, without waiting for the replies to the requests before.
    Shared,
}

impl ConnectionUse {
    /// Word of the configuration, such as `pooled`.
    pub fn word(self) -> &'static str {
        match self {
            ConnectionUse::Auto => "auto",
            ConnectionUse::Single => "single",
            ConnectionUse::Pooled => "pooled",
            ConnectionUse::Shared => "shared",
        }
    }
}

/// The clients of one listener. Shared by all workers.
#[derive(Debug)]
pub struct ListenerClients {
    number: u32,
    listener: String,
    declared: ConnectionUse,
    detection: Mutex<PoolDetection>,
    /// The result of the detection, without a lock.
    pooled: AtomicBool,
    processes: Processes,
    patience: Patience,
}

impl ListenerClients {
    /// The clients of the listener with this number and name.
    pub fn new(number: u32, listener: String, declared: ConnectionUse) -> ListenerClients {
        let is_pooled = matches!(declared, ConnectionUse::Pooled | ConnectionUse::Shared);
        let processes = Processes::new(fewest_shared(declared, is_pooled));
        let (detection, patience) = Default::default();
        let pooled = AtomicBool::new(is_pooled);
        ListenerClients { number, listener, declared, detection, pooled, processes, patience }
    }

    /// The same, with what another process has detected. It counts only if the clients are to be detected.
    pub fn with_detected(self, pooled: bool) -> ListenerClients {
        if self.declared != ConnectionUse::Auto {
            return self;
        }
        let detection = Mutex::new(PoolDetection::known(pooled));
        self.processes.set_fewest(fewest_shared(self.declared, pooled));
        ListenerClients { detection, pooled: AtomicBool::new(pooled), ..self }
    }

    /// Whether the clients are taken to use connection pools.
    pub fn pooled(&self) -> bool {
        self.pooled.load(Relaxed)
    }

    /// The number of the listener.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The owner of a new connection. `process`: the client's process id if known; then only connections of the same process
    /// may belong to one pool.
    pub fn owner(&self, connection: u64, process: Option<u32>) -> Owner {
        let peers = u64::from(self.number) << 32 | u64::from(process.unwrap_or(0));
        Owner { connection, peers }
    }

    /// Whether a `set` may end the miss of another connection. `reads`: its own connection has had misses. A connection that
    /// only writes does not belong to a pool, unless the configuration says so.
    pub(crate) fn is_pooled(&self, reads: bool) -> bool {
        self.pooled.load(Relaxed) && (reads || self.declared != ConnectionUse::Auto)
    }

    /// Whether requests are carried out while those before them on their connection wait for a build.
    pub(crate) fn is_shared(&self) -> bool {
        self.declared == ConnectionUse::Shared
    }

    /// The longest wait in milliseconds, if clients are known to hang up.
    pub(crate) fn patience_ms(&self) -> Option<u64> {
        self.patience.limit_ms()
    }

    /// A client has hung up when it had waited for this long.
    pub(super) fn hung_up(&self, waited: Duration) {
        if let Some(limit) = self.patience.hung_up(waited) {
            let (listener, waits) = (&self.listener, format!("{} ms", limit.as_millis()));
            info!(
                listener,
                hung_up_after = format!("{} ms", waited.as_millis()),
                waits,
                "clients hang up while they wait for a build: from now on they wait less. Raise their read timeout above cold_limit"
            );
        }
    }

    /// A connection of the client `peer` has read a key that was not fresh.
    pub(super) fn join(&self, connection: u64, peer: Peer) -> Membership {
        self.processes.join(connection, peer)
    }

    /// Whether [`ListenerClients::note`] must be called.
    pub(crate) fn is_detecting(&self) -> bool {
        self.declared == ConnectionUse::Auto
    }

    /// Records a `set` that may end a miss.
    pub(crate) fn note(&self, paired: PairedMiss, metrics: &WorkerMetrics) {
        metrics.set_paired(match paired {
            PairedMiss::Own => PairedWith::Own,
            PairedMiss::Other => PairedWith::Other,
            PairedMiss::None => PairedWith::None,
        });
        let changed = self.detection.lock().unwrap_or_else(PoisonError::into_inner).note(paired);
        if let Some(pooled) = changed {
            self.pooled.store(pooled, Relaxed);
            self.processes.set_fewest(fewest_shared(self.declared, pooled));
            metrics.clients_changed(pooled);
            let clients = if pooled { ConnectionUse::Pooled } else { ConnectionUse::Single }.word();
            info!(listener = self.listener, clients, "detected how clients use their connections");
        }
    }
}

/// The fewest connections of a process among which a builder may need one that another thread uses. A client that is known to have
/// one connection for each thread needs none of the others. The only connection of a client that is not known to have a pool may
/// wait in the middle of a build.
fn fewest_shared(declared: ConnectionUse, pooled: bool) -> usize {
    match declared {
        // A request of a shared connection does not keep those behind it from the servers.
        ConnectionUse::Single | ConnectionUse::Shared => usize::MAX,
        _ if pooled => 1,
        _ => 2,
    }
}
