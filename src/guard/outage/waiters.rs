//! The readers that wait for the value of a key.

use std::collections::BTreeMap;

use crate::guard::leases::Owner;

#[derive(Debug)]
pub(super) struct Waiters<W> {
    by_number: BTreeMap<u64, (Owner, W)>,
    /// How many of each connection wait.
    of_owner: BTreeMap<Owner, usize>,
}

impl<W> Default for Waiters<W> {
    fn default() -> Self {
        Waiters { by_number: BTreeMap::new(), of_owner: BTreeMap::new() }
    }
}

impl<W> Waiters<W> {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Whether this connection waits.
    pub(super) fn has(&self, owner: Owner) -> bool {
        self.of_owner.contains_key(&owner)
    }

    pub(super) fn insert(&mut self, number: u64, owner: Owner, waker: W) {
        self.remove(number);
        self.by_number.insert(number, (owner, waker));
        *self.of_owner.entry(owner).or_default() += 1;
    }

    /// Whether there was one with this number.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let Some((owner, _)) = self.by_number.remove(&number) else { return false };
        if let Some(count) = self.of_owner.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.of_owner.remove(&owner);
            }
        }
        true
    }

    /// Removes all. Returns what wakes each, by their numbers.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u64, W)> + use<W> {
        self.of_owner.clear();
        std::mem::take(&mut self.by_number).into_iter().map(|(number, (_, waker))| (number, waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_until_its_last_read_is_over() {
        let mut waiters = Waiters::default();
        let (one, two) = (Owner::from(1), Owner::from(2));
        for (number, owner) in [(1, one), (2, one), (3, two), (2, one)] {
            waiters.insert(number, owner, ());
        }
        assert!(waiters.remove(1) && !waiters.remove(1) && waiters.has(one));
        assert!(waiters.remove(2) && !waiters.has(one) && waiters.has(two));
        assert_eq!((waiters.take().collect::<Vec<_>>(), waiters.len()), (vec![(3, ())], 0));
        assert!(!waiters.has(two) && waiters.is_empty());
    }
}
