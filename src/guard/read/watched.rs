//! How long a read waits for somebody else's build, and from when it may take that build over.

use crate::guard::command::Item;
use crate::guard::expiry::sure_ms;
use crate::guard::inputs::Inputs;
use crate::guard::machine::Wait;
use crate::guard::policy::{Policy, millis};

use super::claim::{BuildId, Fallback};

/// Somebody else's build, and since when it has lasted at least, on the monotonic clock in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct WatchedBuild {
    build: BuildId,
    since: u64,
    /// The CAS number and the age with which it was stored: a renewal changes both.
    stored: (u64, u64),
}

impl WatchedBuild {
    /// The build that is seen now. `before`: what the read has seen before. `age`: how long the build has lasted at least, in
    /// ms, as far as the item shows it. `stored`: the item's CAS number, and its age when it was stored.
    pub(super) fn seen(
        before: Option<WatchedBuild>,
        build: BuildId,
        age: u64,
        stored: (u64, u64),
        now: u64,
    ) -> WatchedBuild {
        let began = now.saturating_sub(age);
        let is_same = |before: &WatchedBuild| {
            before.build == build && (before.stored.0 == stored.0 || before.stored.1 < stored.1)
        };
        let since = before.filter(is_same).map_or(began, |before| before.since.min(began));
        WatchedBuild { build, since, stored }
    }

    /// From when another client may build too, on the monotonic clock in ms.
    pub(super) fn let_through_at(&self, policy: &Policy) -> u64 {
        self.since.saturating_add(millis(policy.cold_wait))
    }
}

/// How long a read that began at `began` may wait. `ttl`: the remaining TTL of the value that is served otherwise, in seconds.
pub(super) fn wait_limits(
    fallback: &Fallback,
    watched: Option<WatchedBuild>,
    began: u64,
    ttl: Option<u32>,
    inputs: &Inputs<'_>,
) -> Wait {
    let Policy { stale_wait, cold_wait, cold_limit, .. } = inputs.policy;
    let limit = match fallback {
        Fallback::Fresh(_) => 0,
        Fallback::Stale(_) => millis(*stale_wait),
        Fallback::Miss(_) if cold_wait.is_zero() => 0,
        Fallback::Miss(_) => millis(*cold_limit),
    };
    // A stale value must not expire during the wait.
    let expires = match (fallback, ttl) {
        (Fallback::Stale(_), Some(ttl)) => inputs.now.mono.saturating_add(sure_ms(ttl)),
        _ => u64::MAX,
    };
    let until = began.saturating_add(limit).min(expires);
    let let_through_at = match fallback {
        Fallback::Miss(_) => Some(watched.map_or(until, |watched| watched.let_through_at(inputs.policy))),
        Fallback::Fresh(_) | Fallback::Stale(_) => None,
    };
    Wait { until, let_through_at }
}

/// The least time since a stub was stored, in ms: what its TTL has lost, less the second that may have been about to end then.
pub(in crate::guard) fn lost_ms(item: &Item, inputs: &Inputs<'_>) -> u64 {
    let lost = inputs.policy.lock_seconds().saturating_sub(item.ttl.unwrap_or(0));
    u64::from(lost.saturating_sub(1)) * 1000
}
