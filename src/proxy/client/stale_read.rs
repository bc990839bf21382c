//! What a connection was last served as stale. A client that deletes or sets it at once judges the age of a value itself.

use std::cell::Cell;

/// What a client does within this time, in milliseconds, and twice the time of a build, follows from what it was served.
const REACTION_MS: u64 = 1_000;

/// The last stale value: the hash of its key, and until when a change of it follows from it, on the monotonic clock in milliseconds.
#[derive(Default)]
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
}
