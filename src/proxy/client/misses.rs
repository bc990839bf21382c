//! The keys that a connection has missed and has not stored, deleted or read since.
//!
//! The lease table evicts misses. This does not, until a miss is so old that a later `set` counts as new. A `set` whose miss is
//! known here but has no token in the lease table is dropped. A connection with more misses than fit here has its sets refused
//! if their keys may be among those that were removed.

use std::collections::{BTreeMap, BTreeSet};

use crate::guard::Policy;
use crate::guard::leases::KnownMiss;
use crate::looked_at;

/// The most keys of one connection.
const MAX_MISSES: usize = 256 * 1024;
/// A miss is kept for this many times `max_rebuild`,
const REBUILDS: u32 = 10;
/// but at least for this many seconds.
const SHORTEST: u32 = 60;
/// A further miss removes at most this many that have expired.
const MAX_REMOVED: usize = 8;
/// The memory of one miss in bytes, in two trees whose nodes are three quarters full.
const ENTRY_BYTES: usize = 4 * (size_of::<(u64, Miss)>() + size_of::<(u32, u64)>()) / 3;

#[derive(Debug, Clone, Copy)]
struct Miss {
    /// When it is removed.
    until: u32,
    /// An `add` has been refused because of it; the next is not.
    refused: bool,
}

/// A miss that is known in one process and is to be known in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedMiss {
    /// The hash of the key.
    pub key: u64,
    /// When it is removed, from now.
    pub seconds: u32,
    /// An `add` has been refused because of it.
    pub refused: bool,
}

/// The misses of one connection, by the hash of the key. Times are in seconds.
#[derive(Debug, Default)]
pub(super) struct Misses {
    misses: BTreeMap<u64, Miss>,
    /// The same, the first to expire first: what a miss costs does not depend on how many there are.
    by_expiry: BTreeSet<(u32, u64)>,
    /// Until then, any key may be one whose miss was removed too early.
    unsure_until: u32,
}

impl Misses {
    /// Records a miss. Returns true if the limit was reached and another one was removed too early.
    pub(super) fn note(&mut self, key: u64, policy: &Policy, now: u32) -> bool {
        let max_rebuild = u32::try_from(policy.max_rebuild.as_secs()).unwrap_or(u32::MAX);
        let until = now.saturating_add(max_rebuild.saturating_mul(REBUILDS).max(SHORTEST));
        self.remove_expired(now);
        let is_full = self.misses.len() >= MAX_MISSES && !self.misses.contains_key(&key);
        if is_full && let Some((until, first)) = self.by_expiry.pop_first() {
            self.unsure_until = self.unsure_until.max(until);
            self.misses.remove(&first);
        }
        self.insert(key, Miss { until, refused: false });
        is_full
    }

    fn remove_expired(&mut self, now: u32) {
        for _ in 0..MAX_REMOVED {
            looked_at::entry();
            let Some((_, key)) = self.by_expiry.first().filter(|(until, _)| *until <= now).copied() else {
                return;
            };
            self.end(key);
        }
    }

    fn insert(&mut self, key: u64, miss: Miss) {
        self.end(key);
        self.misses.insert(key, miss);
        self.by_expiry.insert((miss.until, key));
    }

    /// Ends the miss of this key. Returns true if there was one.
    pub(super) fn end(&mut self, key: u64) -> bool {
        let ended = self.misses.remove(&key);
        ended.is_some_and(|miss| self.by_expiry.remove(&(miss.until, key)))
    }

    /// Records that an `add` was refused because of the miss of this key.
    pub(super) fn refuse(&mut self, key: u64) {
        if let Some(miss) = self.misses.get_mut(&key) {
            miss.refused = true;
        }
    }

    /// Whether an `add` was refused because of the miss of this key.
    pub(super) fn was_refused(&self, key: u64) -> bool {
        self.misses.get(&key).is_some_and(|miss| miss.refused)
    }

    pub(super) fn end_all(&mut self) {
        *self = Misses::default();
    }

    /// What is known of this key.
    pub(super) fn known_miss(&self, key: u64, now: u32) -> KnownMiss {
        match self.misses.get(&key) {
            Some(miss) if miss.until > now => KnownMiss::Yes,
            _ if self.unsure_until > now => KnownMiss::Unknown,
            _ => KnownMiss::No,
        }
    }

    /// All that are known at this time, if they are no more than `most`, and none was removed too early.
    pub(super) fn known(&self, now: u32, most: usize) -> Option<Vec<MovedMiss>> {
        let known = self.by_expiry.range((now.saturating_add(1), 0)..).take(most + 1);
        let moved = |&(until, key): &(u32, u64)| {
            looked_at::entry();
            MovedMiss { key, seconds: until - now, refused: self.was_refused(key) }
        };
        let moved: Vec<_> = known.map(moved).collect();
        (moved.len() <= most && self.unsure_until <= now).then_some(moved)
    }

    /// Adds those that another process knows.
    pub(super) fn add(&mut self, moved: &[MovedMiss], now: u32) {
        for &MovedMiss { key, seconds, refused } in moved {
            self.insert(key, Miss { until: now.saturating_add(seconds), refused });
        }
    }

    /// Whether no key may have a miss.
    pub(super) fn is_empty(&self) -> bool {
        self.misses.is_empty() && self.unsure_until == 0
    }

    /// About how many bytes the misses use.
    pub(super) fn bytes(&self) -> usize {
        self.misses.len() * ENTRY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn policy(max_rebuild: u64) -> Policy {
        Policy { max_rebuild: Duration::from_secs(max_rebuild), ..Policy::default() }
    }

    #[test]
    fn a_miss_is_known_until_it_ends_or_ten_times_max_rebuild_have_passed() {
        let mut misses = Misses::default();
        assert_eq!(misses.known_miss(1, 0), KnownMiss::No);
        for (key, max_rebuild, until) in [(1, 60, 600), (2, 2, 60)] {
            misses.note(key, &policy(max_rebuild), 0);
            assert_eq!(
                [0, until - 1, until].map(|now| misses.known_miss(key, now)),
                [KnownMiss::Yes, KnownMiss::Yes, KnownMiss::No]
            );
        }
        assert!(misses.end(1) && !misses.end(1));
        assert_eq!(
            [1, 2, 3].map(|key| misses.known_miss(key, 0)),
            [KnownMiss::No, KnownMiss::Yes, KnownMiss::No]
        );
        misses.end_all();
        assert!(misses.is_empty());
    }

    #[test]
    fn keys_whose_misses_were_removed_too_early_are_unknown_for_as_long() {
        let mut misses = Misses::default();
        for key in 0..MAX_MISSES as u64 {
            assert!(!misses.note(key, &policy(60), 0));
        }
        assert!(misses.bytes() < 16 << 20);
        assert!(!misses.note(7, &policy(60), 9), "known already");
        assert!(misses.note(MAX_MISSES as u64, &policy(60), 10));
        assert_eq!(
            [0, 1, MAX_MISSES as u64, u64::MAX].map(|key| misses.known_miss(key, 11)),
            [KnownMiss::Unknown, KnownMiss::Yes, KnownMiss::Yes, KnownMiss::Unknown]
        );
        assert_eq!(misses.known_miss(0, 600), KnownMiss::No);
    }

    #[test]
    fn at_the_limit_a_miss_looks_at_no_more_than_a_few() {
        let mut misses = Misses::default();
        let begin = |misses: &mut Misses, key: u64, now| misses.note(key, &policy(6), now);
        for key in 0..MAX_MISSES as u64 {
            begin(&mut misses, key, key as u32 / 4096);
        }
        // First none has expired, then all of one second, then all.
        for (n, now) in [59, 60, 60, 61, 1000].into_iter().enumerate() {
            let key = u64::MAX - n as u64;
            let cost = looked_at::during(|| begin(&mut misses, key, now));
            assert!(cost <= MAX_REMOVED as u64, "{cost} at {now}");
        }
        assert!(looked_at::during(|| misses.known(61, 10)) <= 11);
    }

    #[test]
    fn only_misses_that_have_not_expired_count_towards_the_limit() {
        let mut misses = Misses::default();
        for key in 0..MAX_MISSES as u64 / 2 {
            assert!(!misses.note(key, &policy(6), 0));
        }
        for key in 0..MAX_MISSES as u64 {
            assert!(!misses.note(u64::MAX - key, &policy(6), 60), "{key}");
            assert!(misses.misses.len() <= MAX_MISSES && misses.misses.len() == misses.by_expiry.len());
        }
        assert!(misses.note(7, &policy(6), 61));
    }

    #[test]
    fn misses_that_move_to_another_process_are_known_there_for_as_long() {
        let mut misses = Misses::default();
        misses.note(1, &policy(60), 0);
        misses.note(2, &policy(60), 100);
        misses.refuse(2);
        let moved = misses.known(650, 2).unwrap();
        assert_eq!(moved, [MovedMiss { key: 2, seconds: 50, refused: true }]);
        let mut there = Misses::default();
        there.add(&moved, 7);
        assert_eq!([56, 57].map(|now| there.known_miss(2, now)), [KnownMiss::Yes, KnownMiss::No]);
        assert!(there.was_refused(2));
        assert_eq!(misses.known(100, 1), None, "too many");
    }
}
