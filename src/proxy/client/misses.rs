//! The keys that a connection has missed and has not stored, deleted or read since.
//!
//! The lease table evicts misses. This does not, until a miss is so old that a later `set` counts as new. A `set` whose miss is
//! known here but has no token in the lease table is dropped. A connection with more misses than fit here has its sets refused
//! if their keys may be among those that were removed.

use std::collections::HashMap;

use crate::guard::Policy;
use crate::guard::leases::KnownMiss;

/// The most keys of one connection.
const MAX_MISSES: usize = 256 * 1024;
/// A miss is kept for this many times `max_rebuild`,
const REBUILDS: u32 = 10;
/// but at least for this many seconds.
const SHORTEST: u32 = 60;
/// The memory of one miss in bytes, in a table of which one eighth is kept free.
const ENTRY_BYTES: usize = 8 * (size_of::<(u64, Miss)>() + 1) / 7;

/// One miss.
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
    misses: HashMap<u64, Miss>,
    /// Until then, any key may be one whose miss was removed too early.
    unsure_until: u32,
}

impl Misses {
    /// Records a miss. Returns true if the limit was reached and all earlier misses were removed.
    pub(super) fn note(&mut self, key: u64, policy: &Policy, now: u32) -> bool {
        let max_rebuild = u32::try_from(policy.max_rebuild.as_secs()).unwrap_or(u32::MAX);
        let until = now.saturating_add(max_rebuild.saturating_mul(REBUILDS).max(SHORTEST));
        if self.misses.len() == self.misses.capacity() {
            self.misses.retain(|_, miss| miss.until > now);
        }
        let is_full = self.misses.len() >= MAX_MISSES;
        if is_full {
            let last = self.misses.values().map(|miss| miss.until).max().unwrap_or(now);
            self.unsure_until = self.unsure_until.max(last);
            self.misses = HashMap::new();
        }
        self.misses.insert(key, Miss { until, refused: false });
        is_full
    }

    /// Ends the miss of this key. Returns true if there was one.
    pub(super) fn end(&mut self, key: u64) -> bool {
        let ended = self.misses.remove(&key).is_some();
        if ended && self.misses.is_empty() && self.misses.capacity() > 64 {
            self.misses = HashMap::new();
        }
        ended
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

    /// Ends all misses.
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
        let known = self.misses.iter().filter(|(_, miss)| miss.until > now);
        let moved =
            |(&key, miss): (&u64, &Miss)| MovedMiss { key, seconds: miss.until - now, refused: miss.refused };
        let moved: Vec<_> = known.map(moved).take(most + 1).collect();
        (moved.len() <= most && self.unsure_until <= now).then_some(moved)
    }

    /// Adds those that another process knows.
    pub(super) fn add(&mut self, moved: &[MovedMiss], now: u32) {
        for &MovedMiss { key, seconds, refused } in moved {
            self.misses.insert(key, Miss { until: now.saturating_add(seconds), refused });
        }
    }

    /// Whether no key may have a miss.
    pub(super) fn is_empty(&self) -> bool {
        self.misses.is_empty() && self.unsure_until == 0
    }

    /// About how many bytes the misses use.
    pub(super) fn bytes(&self) -> usize {
        self.misses.capacity() * ENTRY_BYTES
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
        assert!(misses.note(MAX_MISSES as u64, &policy(60), 10));
        assert_eq!(
            [7, MAX_MISSES as u64, u64::MAX].map(|key| misses.known_miss(key, 11)),
            [KnownMiss::Unknown, KnownMiss::Yes, KnownMiss::Unknown]
        );
        assert_eq!(misses.known_miss(7, 600), KnownMiss::No);
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

    #[test]
    fn expired_misses_do_not_count_towards_the_limit() {
        let mut misses = Misses::default();
        for key in 0..4 * MAX_MISSES as u64 {
            // 100 misses a second that never end are removed after ten minutes.
            assert!(!misses.note(key, &policy(60), (key / 100) as u32));
        }
        assert!(misses.misses.len() < 2 * 600 * 100 + 1000, "{}", misses.misses.len());
    }
}
