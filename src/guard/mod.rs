//! What guarding a key means: the decisions, without I/O, clock or randomness.

use std::time::Duration;

pub mod envelope;

/// How long a guarded key's rule lets things last, and what it does when they end.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// How long after its expiry a value may still be served. Whole seconds.
    pub stale_for: Duration,
    /// How long a dead sidecar's lock lasts. Whole seconds, at least one.
    pub lock_ttl: Duration,
    /// How long a winner may take: renewal ends here and a later fill is dropped.
    pub max_rebuild: Duration,
    /// How long a reader waits for the fresh value before it is served the stale one.
    pub stale_wait: Duration,
    /// How long a reader without a value to serve waits for the winner before it is told a miss.
    pub cold_wait: Duration,
    /// What a bumped tag leaves.
    pub on_tag: Leaves,
    /// What a delete leaves.
    pub on_delete: Leaves,
    /// XFetch's β: above zero, a fresh value is refreshed early by one client at a time.
    pub early_beta: f64,
    /// The longest soft expiry, and the one of items stored with exptime 0. Zero: none.
    pub max_ttl: Duration,
}

/// What an invalidation leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leaves {
    /// The old value, servable as stale.
    Stale,
    /// Nothing.
    Nothing,
}
