//! What a connection was last served as stale, and what those of a pool were. A client that deletes or sets it at once judges the age of
//! a value itself.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a client does within this time, in milliseconds, and twice the time of a build, follows from what it was served.
const REACTION_MS: u64 = 1_000;

/// The last stale value: the hash of its key, and until when a change of it follows from it, on the monotonic clock in milliseconds.
#[derive(Debug, Default)]
pub(super) struct StaleRead(Cell<Option<(u64, u64)>>);

impl StaleRead {
    /// A stale value is served whose last build took so many milliseconds.
    pub(super) fn note(&self, hash: u64, build_ms: u32, now: u64) {
        self.0.set(Some((hash, now + REACTION_MS + 2 * u64::from(build_ms))));
    }

    /// Whether a change of this key follows from it. Once.
    pub(super) fn is_followed_by(&self, hash: u64, now: u64) -> bool {
        match self.0.get() {
            Some((of, until)) if of == hash => {
                self.0.set(None);
                now <= until
            }
            _ => false,
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}

/// How many stale values that the connections of a pool were served are kept. One replaces another one in its place.
const MAX_POOLED: usize = 256;

/// The same of a pool, whose client answers on any of its connections.
#[derive(Debug, Default)]
pub(super) struct PooledStaleReads(Mutex<Vec<StaleRead>>);

impl PooledStaleReads {
    /// A stale value is served whose last build took so many milliseconds.
    pub(super) fn note(&self, hash: u64, build_ms: u32, now: u64) {
        let mut reads = self.lock();
        reads.resize_with(MAX_POOLED, StaleRead::default);
        reads[place(hash)].note(hash, build_ms, now);
    }

    /// Whether a change of this key follows from one of them. Once.
    pub(super) fn are_followed_by(&self, hash: u64, now: u64) -> bool {
        self.lock().get(place(hash)).is_some_and(|read| read.is_followed_by(hash, now))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StaleRead>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(hash: u64) -> usize {
    hash as usize % MAX_POOLED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_same_key_within_its_time_follows_once() {
        let stale = StaleRead::default();
        assert!(!stale.is_followed_by(7, 0));
        for (hash, now, follows) in [(7, 1_400, true), (7, 1_401, false), (8, 0, false)] {
            stale.note(7, 200, 0);
            assert_eq!(stale.is_followed_by(hash, now), follows, "{hash} {now}");
        }
        assert!(stale.is_followed_by(7, 0), "another key leaves it");
        assert!(!stale.is_followed_by(7, 0), "it is counted already");
    }

    #[test]
    fn a_stale_read_of_a_pool_is_followed_once_and_replaces_another_one_in_its_place() {
        let (reads, most) = (PooledStaleReads::default(), MAX_POOLED as u64);
        assert!(!reads.are_followed_by(7, 0));
        (0..=most).for_each(|hash| reads.note(hash, 200, 0));
        assert!(reads.are_followed_by(7, 1_400) && !reads.are_followed_by(7, 0), "once");
        assert!(!reads.are_followed_by(8, 1_401), "too late");
        assert!(reads.are_followed_by(most, 0) && !reads.are_followed_by(0, 0), "it is in its place");
        assert_eq!(reads.lock().len(), MAX_POOLED);
    }
}
