//! Where the items lie: found by key in constant time, ordered by last use, counted in bytes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// What an item costs beyond its key and value: about what memcached's own header takes.
const OVERHEAD: u64 = 50;

/// One stored item.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) key: Arc<[u8]>,
    pub(super) value: Vec<u8>,
    /// The client's flags.
    pub(super) flags: u32,
    pub(super) cas: u64,
    /// The tick at which it is gone; 0 for never.
    pub(super) exptime: u32,
    /// The tick of its last use, which `flush_all` compares with.
    pub(super) time: u32,
    /// Marked by `md I` (or by `ms I` with an older CAS): replies carry `X`.
    pub(super) stale: bool,
    /// Somebody has been told `W`: the others are told `Z`.
    pub(super) won: bool,
    /// Has been read.
    pub(super) fetched: bool,
    /// Was stored with the flag `b`: replies give its key in base64.
    pub(super) binary: bool,
}

impl Item {
    /// What it counts against the limit, in bytes.
    pub(super) fn cost(&self) -> u64 {
        OVERHEAD + self.key.len() as u64 + self.value.len() as u64
    }

    /// What memcached 1.6 on a 64-bit machine takes for it, in bytes: header, CAS, key with its NUL, flags if any,
    /// value with its CRLF. Its limit of 1 MiB is on this.
    pub(super) fn total(key: &[u8], flags: u32, value: usize) -> usize {
        48 + 8 + key.len() + 1 + if flags == 0 { 0 } else { 4 } + value + 2
    }
}

/// Where an item lies, valid until that item is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(usize);

#[derive(Debug, Clone)]
struct Slot {
    /// `None` while the slot is free.
    item: Option<Item>,
    /// The one used more recently.
    newer: Option<usize>,
    /// The one used less recently.
    older: Option<usize>,
}

/// All items, in one doubly linked list from the most to the least recently used.
///
/// The hasher has no random key, so that a simulation replays; nothing ever iterates over the map.
#[derive(Debug, Clone, Default)]
pub(super) struct Items {
    places: HashMap<Arc<[u8]>, usize, BuildHasherDefault<DefaultHasher>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    newest: Option<usize>,
    oldest: Option<usize>,
    bytes: u64,
}

impl Items {
    /// Where the item of `key` lies.
    pub(super) fn find(&self, key: &[u8]) -> Option<Place> {
        self.places.get(key).copied().map(Place)
    }

    pub(super) fn at(&self, place: Place) -> &Item {
        self.slots[place.0].item.as_ref().expect("a place is given for a linked item only")
    }

    /// The key and the value's length must not be changed through this.
    pub(super) fn at_mut(&mut self, place: Place) -> &mut Item {
        self.slots[place.0].item.as_mut().expect("a place is given for a linked item only")
    }

    /// Adds an item as the most recently used. Its key must be absent.
    pub(super) fn insert(&mut self, item: Item) -> Place {
        self.bytes += item.cost();
        let key = Arc::clone(&item.key);
        let slot = Slot { item: Some(item), newer: None, older: None };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        let before = self.places.insert(key, index);
        debug_assert!(before.is_none(), "the key was absent");
        self.link(index);
        Place(index)
    }

    pub(super) fn remove(&mut self, place: Place) -> Item {
        self.unlink(place.0);
        let item = self.slots[place.0].item.take().expect("a place is given for a linked item only");
        self.free.push(place.0);
        self.places.remove(&item.key);
        self.bytes -= item.cost();
        item
    }

    /// Removes what was last used at this tick or later.
    pub(super) fn remove_since(&mut self, tick: u32) {
        for index in 0..self.slots.len() {
            if self.slots[index].item.as_ref().is_some_and(|item| item.time >= tick) {
                self.remove(Place(index));
            }
        }
    }

    /// Makes it the most recently used.
    pub(super) fn promote(&mut self, place: Place) {
        if self.newest != Some(place.0) {
            self.unlink(place.0);
            self.link(place.0);
        }
    }

    /// The least recently used.
    pub(super) fn oldest(&self) -> Option<Place> {
        self.oldest.map(Place)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The sum of the items' costs.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn link(&mut self, index: usize) {
        self.slots[index].newer = None;
        self.slots[index].older = self.newest;
        match self.newest {
            Some(newest) => self.slots[newest].newer = Some(index),
            None => self.oldest = Some(index),
        }
        self.newest = Some(index);
    }

    fn unlink(&mut self, index: usize) {
        let Slot { newer, older, .. } = self.slots[index];
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(key: &str) -> Item {
        Item {
            key: key.as_bytes().into(),
            value: vec![b'x'; 10],
            flags: 0,
            cas: 1,
            exptime: 0,
            time: 1,
            stale: false,
            won: false,
            fetched: false,
            binary: false,
        }
    }

    fn drained(items: &mut Items) -> String {
        let mut order = String::new();
        while let Some(place) = items.oldest() {
            order.push_str(&String::from_utf8_lossy(&items.remove(place).key));
        }
        order
    }

    #[test]
    fn items_leave_in_the_order_of_their_last_use() {
        let mut items = Items::default();
        for key in ["a", "b", "c", "d"] {
            items.insert(item(key));
        }
        items.promote(items.find(b"b").unwrap());
        items.promote(items.find(b"d").unwrap());
        items.promote(items.find(b"a").unwrap());
        assert_eq!(drained(&mut items), "cbda");
    }

    #[test]
    fn a_freed_slot_is_used_again_and_the_bytes_add_up() {
        let mut items = Items::default();
        items.insert(item("a"));
        let b = items.insert(item("b"));
        assert_eq!(items.bytes(), 2 * 61);
        items.remove(b);
        assert_eq!(items.bytes(), 61);
        assert!(items.find(b"b").is_none());
        items.insert(item("c"));
        assert_eq!((items.slots.len(), items.len()), (2, 2));
        assert_eq!(drained(&mut items), "ac");
        assert_eq!((items.bytes(), items.len()), (0, 0));
    }
}
