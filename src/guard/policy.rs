//! What a rule configures for its guarded keys.

use std::time::Duration;

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
    pub on_tag: OnInvalidate,
    /// What a delete leaves.
    pub on_delete: OnInvalidate,
    /// XFetch's β: above zero, a fresh value is refreshed early by one client at a time.
    pub early_beta: f64,
    /// The longest soft expiry, and the one of items stored with exptime 0. Zero: none.
    pub max_ttl: Duration,
    /// For how long a hit may be served again without asking its server. Zero: not at all.
    pub near: Duration,
}

impl Default for Policy {
    /// What a rule says that says nothing.
    fn default() -> Self {
        Policy {
            stale_for: Duration::from_secs(60),
            lock_ttl: Duration::from_secs(5),
            max_rebuild: Duration::from_secs(60),
            stale_wait: Duration::ZERO,
            cold_wait: Duration::from_secs(2),
            on_tag: OnInvalidate::Stale,
            on_delete: OnInvalidate::Drop,
            early_beta: 0.0,
            max_ttl: Duration::ZERO,
            near: Duration::ZERO,
        }
    }
}

impl Policy {
    /// `stale_for` as memcached counts.
    pub fn stale_seconds(&self) -> u32 {
        u32::try_from(self.stale_for.as_secs()).unwrap_or(u32::MAX)
    }

    /// `near` in milliseconds.
    pub fn near_ms(&self) -> u64 {
        u64::try_from(self.near.as_millis()).unwrap_or(u64::MAX)
    }

    /// The TTL of a lock or stub: one more than `lock_ttl`, because a TTL of n may end after n−1 seconds.
    pub fn lock_seconds(&self) -> u32 {
        u32::try_from(self.lock_ttl.as_secs().saturating_add(1)).unwrap_or(u32::MAX)
    }
}

/// What an invalidation leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnInvalidate {
    /// The old value, servable as stale.
    Stale,
    /// Nothing.
    Drop,
}
