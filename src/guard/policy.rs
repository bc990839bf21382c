//! What a rule configures for its guarded keys.

use std::time::Duration;

/// The durations that a rule configures for a guarded key, and what an invalidation leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// How long a value may be served after its expiry. Whole seconds.
    pub stale_for: Duration,
    /// Whether this time ends with the exptime of a value instead of beginning with it, for clients that judge the age of a value
    /// themselves: what they are served has not expired for them either.
    pub stale_before_expiry: bool,
    /// How long the lock of a sidecar that has died lasts. Whole seconds, at least one.
    pub lock_ttl: Duration,
    /// The longest rebuild: then the lease is no longer renewed and the fill is dropped.
    pub max_rebuild: Duration,
    /// How long a reader waits for the fresh value before it receives the stale one.
    pub stale_wait: Duration,
    /// How long readers without a stale value wait for a winner before one of them becomes another winner.
    pub cold_wait: Duration,
    /// How long a reader without a stale value waits in all before it receives a miss. At least `cold_wait`.
    pub cold_limit: Duration,
    /// How long a value that was built while no server answered is served to further readers. Zero: not at all.
    pub outage_ttl: Duration,
    /// What remains of a value whose tag has been bumped.
    pub on_tag: OnInvalidate,
    /// What remains of a value that has been deleted.
    pub on_delete: OnInvalidate,
    /// XFetch's β. Above zero, a fresh value is refreshed early by one client at a time.
    pub early_beta: f64,
    /// The longest soft expiry, and that of items stored with exptime 0. Zero: unlimited.
    pub max_ttl: Duration,
    /// How long a hit may be served again without a read. Zero: not at all.
    pub near: Duration,
    /// Stands for where the keys of the rule are stored, and for their tags. A miss is ended only under the plan that it was under.
    pub plan: u64,
}

impl Default for Policy {
    /// The settings of a rule that configures none of them.
    fn default() -> Self {
        Policy {
            stale_for: Duration::from_secs(60),
            stale_before_expiry: false,
            lock_ttl: Duration::from_secs(5),
            max_rebuild: Duration::from_secs(60),
            stale_wait: Duration::ZERO,
            cold_wait: Duration::from_secs(2),
            cold_limit: Duration::from_secs(10),
            outage_ttl: Duration::from_secs(1),
            on_tag: OnInvalidate::Stale,
            on_delete: OnInvalidate::Drop,
            early_beta: 0.0,
            max_ttl: Duration::ZERO,
            near: Duration::ZERO,
            plan: 0,
        }
    }
}

impl Policy {
    /// `stale_for` in seconds, memcached's unit.
    pub fn stale_seconds(&self) -> u32 {
        u32::try_from(self.stale_for.as_secs()).unwrap_or(u32::MAX)
    }

    /// For a new value that expires in so many seconds, if it does: its `stale_for`, and by how many seconds its item outlives its
    /// exptime. A value that ends with its exptime is fresh for half of its life at least.
    pub fn stale_period(&self, expires_in: Option<u64>) -> (u32, u32) {
        let longest = self.stale_seconds();
        match expires_in {
            // A value that is stored as stale has 0 seconds.
            Some(seconds @ 1..) if self.stale_before_expiry => {
                (longest.min(u32::try_from(seconds / 2).unwrap_or(u32::MAX)), 0)
            }
            _ => (longest, longest),
        }
    }

    /// The same policy for a standby server, where nothing may live longer than `ttl`.
    pub fn on_standby(&self, ttl: Duration) -> Policy {
        let seconds = ttl.as_secs().max(1);
        let stale_for = self.stale_for.min(Duration::from_secs(seconds / 2));
        let fresh_for = Duration::from_secs(seconds) - stale_for;
        let max_ttl = if self.max_ttl.is_zero() { fresh_for } else { self.max_ttl.min(fresh_for) };
        Policy { stale_for, max_ttl, ..self.clone() }
    }

    /// Whether a value may be served although it may have been invalidated.
    pub fn serves_stale(&self) -> bool {
        !self.stale_for.is_zero() && self.on_tag == OnInvalidate::Stale
    }

    /// `near` in milliseconds.
    pub fn near_ms(&self) -> u64 {
        millis(self.near)
    }

    /// The TTL of a lock or stub: `lock_ttl` plus one, because a TTL of n may end after n−1 seconds.
    pub fn lock_seconds(&self) -> u32 {
        u32::try_from(self.lock_ttl.as_secs().saturating_add(1)).unwrap_or(u32::MAX)
    }
}

/// What an invalidation leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnInvalidate {
    /// The old value, which may be served as stale.
    Stale,
    /// Nothing may be served afterwards.
    Drop,
}

/// A duration in whole milliseconds.
pub(in crate::guard) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_standby_nothing_lives_longer_than_its_limit() {
        let seconds = Duration::from_secs;
        for (stale_for, max_ttl, limit) in
            [(60, 0, 300), (3600, 0, 300), (60, 10, 300), (0, 0, 1), (60, 0, 1)]
        {
            let policy =
                Policy { stale_for: seconds(stale_for), max_ttl: seconds(max_ttl), ..Policy::default() };
            let there = policy.on_standby(seconds(limit));
            assert!(there.max_ttl >= seconds(1), "a value must be fresh for a while");
            assert!(there.max_ttl + there.stale_for <= seconds(limit));
            assert!(there.stale_for <= policy.stale_for);
            assert!(max_ttl == 0 || there.max_ttl <= policy.max_ttl);
        }
    }

    #[test]
    fn a_value_that_is_stale_before_its_exptime_is_fresh_for_half_of_its_time_at_least() {
        let after = Policy { stale_for: Duration::from_secs(60), ..Policy::default() };
        let before = Policy { stale_before_expiry: true, ..after.clone() };
        for (expires_in, periods) in [
            (Some(600), [(60, 60), (60, 0)]),
            (Some(120), [(60, 60), (60, 0)]),
            (Some(5), [(60, 60), (2, 0)]),
            (Some(1), [(60, 60), (0, 0)]),
            // Stored as stale, and without an end.
            (Some(0), [(60, 60), (60, 60)]),
            (None, [(60, 60), (60, 60)]),
        ] {
            assert_eq!(
                [&after, &before].map(|policy| policy.stale_period(expires_in)),
                periods,
                "{expires_in:?}"
            );
        }
    }
}
