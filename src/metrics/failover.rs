//! The failover of the servers, as metrics show it.

/// Where the state of the servers comes from. It is called for each scrape, on the thread that serves it, and must not block.
pub trait FailoverSource: Send + Sync {
    /// The state of a server; `None` if its pool does not fail over.
    fn state(&self, server: usize) -> Option<FailoverState>;
    /// The placements in use of each pool of which they are known.
    fn placements(&self) -> Vec<PlacementsState>;
    /// The repair of copies in each pool that has some.
    fn repairs(&self) -> Vec<RepairState>;
}

/// The repair of the copies of one pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairState {
    /// The pool's name.
    pub pool: String,
    /// Servers that may lack copies.
    pub servers_due: u64,
    /// Copies that are known to be missing.
    pub missing: u64,
    /// Copies stored again since the start.
    pub repaired: u64,
}

/// The placements of a pool's keys that the sidecars of the fleet use at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacementsState {
    /// Name of the pool.
    pub pool: String,
    /// How many different ones there are, that of this sidecar included.
    pub in_use: usize,
    /// Those of them that are not adjacent to that of this sidecar.
    pub unknown: usize,
    /// How many sets of rules other sidecars have that differ from each other and from that of this one.
    pub other_rules: usize,
}

/// The failover of one server at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailoverState {
    /// Whether its keys are on their standby servers, by the latest view; `None` before the first one.
    pub standby: Option<bool>,
    /// Whether that is because an operator has drained it.
    pub drained: bool,
    /// Whether a view is valid.
    pub view_valid: bool,
    /// Whether this sidecar has had no reply lately, although another one has.
    pub unreachable_here: bool,
    /// Views that moved the keys to the standby servers.
    pub moved_to_standby: u64,
    /// Views that moved them back.
    pub moved_back: u64,
    /// Times that this sidecar began to suspect the server.
    pub suspicions: u64,
}
