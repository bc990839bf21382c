//! Which keys a connection was told a miss of and has not set, deleted or been served since.
//!
//! The table of leases forgets; this does not, until a miss is so old that what is set then counts as new. So a `set` whose miss is
//! known here, and has no ticket in the table, is dropped. Where one connection is told more misses than fit, its sets are refused
//! if their keys may be among those that were forgotten.

use std::collections::HashMap;

use crate::guard::Policy;
use crate::guard::leases::KnownMiss;

/// The most keys of one connection.
const MAX_MISSES: usize = 256 * 1024;
/// A miss is remembered for so many times `max_rebuild`,
const REBUILDS: u32 = 10;
/// but for so many seconds at least.
const SHORTEST: u32 = 60;
/// What a key takes, in bytes: itself, and a part of the table, of which an eighth is kept free.
const ENTRY_BYTES: usize = 8 * (size_of::<(u64, Miss)>() + 1) / 7;

/// One of them.
#[derive(Debug, Clone, Copy)]
struct Miss {
    /// When it is forgotten.
    until: u32,
    /// An `add` behind it was refused, though nothing stood there: the next is not.
    refused: bool,
}

/// The misses of one connection. Keys are known by their hashes; moments are in seconds.
#[derive(Debug, Default)]
pub(super) struct Misses {
    told: HashMap<u64, Miss>,
    /// Until then, any key may be one that was forgotten too early.
    unsure_until: u32,
}

impl Misses {
    /// A miss of this key is told. True if it is one too many, and all are forgotten.
    pub(super) fn note(&mut self, key: u64, policy: &Policy, now: u32) -> bool {
        let max_rebuild = u32::try_from(policy.max_rebuild.as_secs()).unwrap_or(u32::MAX);
        let until = now.saturating_add(max_rebuild.saturating_mul(REBUILDS).max(SHORTEST));
        if self.told.len() == self.told.capacity() {
            self.told.retain(|_, miss| miss.until > now);
        }
        let is_full = self.told.len() >= MAX_MISSES;
        if is_full {
            let last = self.told.values().map(|miss| miss.until).max().unwrap_or(now);
            self.unsure_until = self.unsure_until.max(last);
            self.told = HashMap::new();
        }
        self.told.insert(key, Miss { until, refused: false });
        is_full
    }

    /// The key has been set, deleted or served: its miss is over. True if one was known.
    pub(super) fn end(&mut self, key: u64) -> bool {
        let ended = self.told.remove(&key).is_some();
        if ended && self.told.is_empty() && self.told.capacity() > 64 {
            self.told = HashMap::new();
        }
        ended
    }

    /// An `add` is refused for its miss of this key.
    pub(super) fn refuse(&mut self, key: u64) {
        if let Some(miss) = self.told.get_mut(&key) {
            miss.refused = true;
        }
    }

    /// Whether an `add` was refused for its miss of this key.
    pub(super) fn was_refused(&self, key: u64) -> bool {
        self.told.get(&key).is_some_and(|miss| miss.refused)
    }

    /// All keys have been deleted.
    pub(super) fn end_all(&mut self) {
        *self = Misses::default();
    }

    /// What was told of this key.
    pub(super) fn known_miss(&self, key: u64, now: u32) -> KnownMiss {
        match self.told.get(&key) {
            Some(miss) if miss.until > now => KnownMiss::Yes,
            _ if self.unsure_until > now => KnownMiss::Unknown,
            _ => KnownMiss::No,
        }
    }

    /// Whether there may be none.
    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty() && self.unsure_until == 0
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> usize {
        self.told.capacity() * ENTRY_BYTES
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
    fn a_miss_is_remembered_until_it_is_over_or_ten_times_max_rebuild_have_passed() {
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
    fn what_is_forgotten_because_there_are_too_many_is_known_to_be_unknown_for_as_long() {
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
    fn misses_that_are_over_take_no_room_from_others() {
        let mut misses = Misses::default();
        for key in 0..4 * MAX_MISSES as u64 {
            // Each second brings a hundred that nobody ever sets, and they are forgotten after ten minutes.
            assert!(!misses.note(key, &policy(60), (key / 100) as u32));
        }
        assert!(misses.told.len() < 2 * 600 * 100 + 1000, "{}", misses.told.len());
    }
}
