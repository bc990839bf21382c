//! Values that clients store anew without having missed the key: they may have an expiry of their own, inside the value.
//!
//! A client that updates a value does so at any time. A library that judges the age of a value itself does it at about the same age
//! each time: after a hit, and Rails deletes the value first. How alike the ages are is for the reader to judge.

use std::time::Duration;

use super::builder::Builder;

/// The keys of one shard whose last store is remembered. A key replaces another one in its place.
const SLOTS: usize = 1024;
/// Stores that follow each other faster are of clients that build at the same time.
const SHORTEST: Duration = Duration::from_secs(1);

/// A value stored without a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// How long ago the value before it was stored; at least a second.
    pub age: Duration,
    /// The same client has deleted that.
    pub deleted: bool,
}

/// When keys were last stored, in a table of fixed size.
#[derive(Debug, Default)]
pub(super) struct LastStores(Vec<Option<LastStore>>);

#[derive(Debug, Clone, Copy)]
struct LastStore {
    key: u64,
    at: Duration,
    /// Who has deleted a value since, and how old it was.
    deleted: Option<(Builder, Duration)>,
}

impl LastStores {
    /// A client has stored this key.
    pub(super) fn stored(&mut self, key: u64, by: Builder, now: Duration) -> Option<Renewal> {
        self.0.resize(SLOTS, None);
        let slot = &mut self.0[place(key)];
        let Some(last) = slot.as_mut().filter(|last| last.key == key) else {
            *slot = Some(LastStore { key, at: now, deleted: None });
            return None;
        };
        let age = now.saturating_sub(last.at);
        last.at = now;
        let renewal = match last.deleted {
            Some((deleter, age)) if by.may_be(deleter) => {
                last.deleted = None;
                Renewal { age, deleted: true }
            }
            _ => Renewal { age, deleted: false },
        };
        Some(renewal).filter(|renewal| renewal.age >= SHORTEST)
    }

    /// A client has deleted this key.
    pub(super) fn deleted(&mut self, key: u64, by: Builder, now: Duration) {
        if let Some(Some(last)) =
            self.0.get_mut(place(key)).filter(|slot| slot.is_some_and(|last| last.key == key))
        {
            last.deleted = Some((by, now.saturating_sub(last.at)));
        }
    }
}

/// The lowest bits have chosen the shard.
fn place(key: u64) -> usize {
    (key >> 32) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Builder = Builder { connection: 1, peers: 7, pooled: false };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn renewal(age: u64, deleted: bool) -> Option<Renewal> {
        Some(Renewal { age: ms(age), deleted })
    }

    #[test]
    fn a_store_tells_the_age_of_the_one_before_it_if_that_is_not_of_the_same_moment() {
        let mut stores = LastStores::default();
        stores.deleted(5, ALONE, ms(0));
        assert_eq!(stores.stored(5, ALONE, ms(100)), None);
        assert_eq!(stores.stored(5, ALONE, ms(4_100)), renewal(4_000, false));
        assert_eq!(stores.stored(5, ALONE, ms(4_300)), None, "at the same time");
        assert_eq!(stores.stored(5 + (1 << 32), ALONE, ms(9_000)), None, "another key");
        assert_eq!(
            stores.stored(5 + ((SLOTS as u64) << 32), ALONE, ms(9_000)),
            None,
            "it replaces the first"
        );
        assert_eq!(stores.stored(5, ALONE, ms(9_000)), None);
    }

    #[test]
    fn a_store_after_a_delete_of_the_same_client_has_the_age_of_what_was_deleted() {
        let other = Builder { connection: 2, ..ALONE };
        let pooled = Builder { pooled: true, ..other };
        for (stores_it, expected) in
            [(ALONE, renewal(4_000, true)), (other, None), (pooled, renewal(4_000, true))]
        {
            let mut stores = LastStores::default();
            stores.stored(5, other, ms(0));
            stores.deleted(5, ALONE, ms(4_000));
            // Whoever misses the key meanwhile builds it too.
            assert_eq!(stores.stored(5, Builder { peers: 8, ..other }, ms(4_100)), renewal(4_100, false));
            assert_eq!(stores.stored(5, stores_it, ms(4_200)), expected, "{stores_it:?}");
        }
    }
}
