//! A table of bounded size that keeps what was put last.
//!
//! When the younger of two generations is full, it becomes the older one, and what was in that is removed piece by piece. So an
//! entry costs the same at the limit as below it.

use std::borrow::Borrow;
use std::collections::hash_map::{HashMap, IntoIter};
use std::hash::{BuildHasher, Hash};

use crate::looked_at;
use crate::random::ClientHasher;

/// For each further entry, so many of the former older generation are removed. It is gone before the next one follows.
const REMOVED: usize = 2;

/// The table. `S` hashes keys.
#[derive(Debug)]
pub(crate) struct Generations<K, V, S = ClientHasher> {
    /// The most entries of each generation.
    most: usize,
    young: HashMap<K, V, S>,
    old: HashMap<K, V, S>,
    removed: IntoIter<K, V>,
}

impl<K: Hash + Eq, V: Copy> Generations<K, V> {
    /// A table of two generations, with up to `most` entries each.
    pub(crate) fn new(most: usize) -> Self {
        Generations::with_hasher(most, ClientHasher::new())
    }
}

impl<K: Hash + Eq, V: Copy, S: BuildHasher + Clone> Generations<K, V, S> {
    /// The same, which hashes keys with this.
    pub(crate) fn with_hasher(most: usize, hasher: S) -> Self {
        let empty = || HashMap::with_hasher(hasher.clone());
        Generations { most, young: empty(), old: empty(), removed: empty().into_iter() }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Puts a value. `merge` makes one of the value that is there and the new one.
    pub(crate) fn put<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, new: V, merge: impl FnOnce(V, V) -> V)
    where
        K: Borrow<Q> + for<'a> From<&'a Q>,
    {
        if let Some(value) = self.young.get_mut(key) {
            *value = merge(*value, new);
            return;
        }
        let value = self.old.remove(key).map_or(new, |old| merge(old, new));
        for _ in 0..REMOVED {
            looked_at::entry();
            self.removed.next();
        }
        if self.young.len() >= self.most {
            let room = HashMap::with_capacity_and_hasher(self.most, self.young.hasher().clone());
            let young = std::mem::replace(&mut self.young, room);
            self.removed = std::mem::replace(&mut self.old, young).into_iter();
        }
        self.young.insert(key.into(), value);
    }

    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000;

    #[test]
    fn at_the_limit_an_entry_costs_the_same_and_what_is_in_use_is_kept() {
        let mut table: Generations<Box<[u8]>, usize> = Generations::new(MOST);
        table.put(&b"used"[..], 7, |_, new| new);
        for n in 0..10 * MOST {
            let key = n.to_string();
            let cost = looked_at::during(|| table.put(key.as_bytes(), n, |_, new| new));
            assert_eq!(cost, REMOVED as u64);
            table.put(&b"used"[..], n, |known, _| known);
            let kept = table.young.len() + table.old.len();
            assert!(kept <= 2 * MOST && kept >= n.min(MOST), "{kept}");
            // What was removed is gone before the next generation follows.
            assert!(table.young.len() < MOST || table.removed.len() == 0);
        }
        assert_eq!((table.get(&b"used"[..]), table.get(&b"0"[..])), (Some(&7), None));
        table.remove(&b"used"[..]);
        assert_eq!(table.get(&b"used"[..]), None);
    }
}
