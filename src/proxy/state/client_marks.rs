//! On which raw keys clients of this process use memcached's own leases and marks (`N`, `R`, `I`). An empty item that such a client has
//! won looks like the stub of a sidecar with other rules, and a read that looks closer may take the win of a marked one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The most keys that are remembered. A further one replaces the oldest.
const MAX_MARKED: usize = 4096;

/// What clients have done with a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// One has won an item, for longer than a stub lasts.
    pub(crate) is_won: bool,
    /// One has marked the item stale.
    pub(crate) stale: Option<Stale>,
}

/// Which item has been marked stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stale {
    /// That with this CAS.
    Cas(u64),
    Unknown,
}

/// The marks of these keys, by their hashes.
#[derive(Debug, Default)]
pub struct ClientMarks(Mutex<Marked>);

#[derive(Debug, Default)]
struct Marked {
    keys: HashMap<u64, Marks>,
    /// Each key once, the oldest first.
    order: VecDeque<u64>,
}

impl ClientMarks {
    /// Adds marks of a key.
    pub(crate) fn add(&self, key: u64, marks: Marks) {
        let Marked { keys, order } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keys.entry(key).or_insert_with(|| {
            order.push_back(key);
            Marks::default()
        });
        known.is_won |= marks.is_won;
        known.stale = marks.stale.or(known.stale);
        if order.len() > MAX_MARKED
            && let Some(oldest) = order.pop_front()
        {
            keys.remove(&oldest);
        }
    }

    /// The marks of a key.
    pub(crate) fn of(&self, key: u64) -> Marks {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.get(&key).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_key_replaces_the_oldest() {
        let marks = ClientMarks::default();
        let (most, won) = (MAX_MARKED as u64, Marks { is_won: true, stale: None });
        (0..most).chain([0, most]).for_each(|key| marks.add(key, won));
        let none = Marks::default();
        assert_eq!([0, 1, most, most + 1].map(|key| marks.of(key)), [none, won, won, none]);
        marks.add(1, Marks { is_won: false, stale: Some(Stale::Cas(5)) });
        marks.add(1, won);
        assert_eq!(marks.of(1), Marks { is_won: true, stale: Some(Stale::Cas(5)) });
    }
}
