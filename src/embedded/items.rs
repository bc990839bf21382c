//! The items of a store: found by key in constant time, ordered by last use, counted in bytes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// The bytes an item counts beyond its key and value: about the size of memcached's header.
const OVERHEAD: u64 = 50;

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) key: Arc<[u8]>,
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    pub(super) cas: u64,
    /// The tick at which it expires; 0 for never.
    pub(super) exptime: u32,
    /// The tick of its last use, which `flush_all` compares.
    pub(super) time: u32,
    /// Marked by `md I`, or by `ms I` with an older CAS. Replies have the flag `X`.
    pub(super) stale: bool,
    /// One client got the flag `W`. Replies to others have the flag `Z`.
    pub(super) won: bool,
    /// The item was read.
    pub(super) fetched: bool,
    /// Stored with the flag `b`. Replies have its key in base64.
    pub(super) binary: bool,
}

impl Item {
    /// The bytes it counts against the limit.
    pub(super) fn cost(&self) -> u64 {
        OVERHEAD + self.key.len() as u64 + self.value.len() as u64
    }

    /// The bytes it takes in memcached 1.6 on a 64-bit machine: header, CAS, key with NUL, flags if any, value with CRLF.
    /// memcached's item size limit applies to this.
    pub(super) fn total(key: &[u8], flags: u32, value: usize) -> usize {
        48 + 8 + key.len() + 1 + if flags == 0 { 0 } else { 4 } + value + 2
    }
}

/// The index of an item, valid until the item is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemIndex(usize);

#[derive(Debug, Clone)]
struct Slot {
    /// `None` while the slot is free.
    item: Option<Item>,
    /// The next more recently used item.
    newer: Option<usize>,
    /// The next less recently used item.
    older: Option<usize>,
}

/// All items, in one doubly linked list from the most to the least recently used.
///
/// The hasher has no random key, so that a simulation can be replayed. Nothing iterates over the map.
#[derive(Debug, Clone, Default)]
pub(super) struct Items {
    by_key: HashMap<Arc<[u8]>, usize, BuildHasherDefault<DefaultHasher>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    newest: Option<usize>,
    oldest: Option<usize>,
    bytes: u64,
}

impl Items {
    /// The index of the item of `key`.
    pub(super) fn find(&self, key: &[u8]) -> Option<ItemIndex> {
        self.by_key.get(key).copied().map(ItemIndex)
    }

    pub(super) fn get(&self, index: ItemIndex) -> &Item {
        self.slots[index.0].item.as_ref().expect("an index is of a linked item")
    }

    /// The item. Its key and the length of its value must not be changed.
    pub(super) fn get_mut(&mut self, index: ItemIndex) -> &mut Item {
        self.slots[index.0].item.as_mut().expect("an index is of a linked item")
    }

    /// Adds an item as the most recently used one. Its key must be absent.
    pub(super) fn insert(&mut self, item: Item) -> ItemIndex {
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
        let before = self.by_key.insert(key, index);
        debug_assert!(before.is_none(), "the key was absent");
        self.link(index);
        ItemIndex(index)
    }

    pub(super) fn remove(&mut self, index: ItemIndex) -> Item {
        self.unlink(index.0);
        let item = self.slots[index.0].item.take().expect("an index is of a linked item");
        self.free.push(index.0);
        self.by_key.remove(&item.key);
        self.bytes -= item.cost();
        item
    }

    /// All items, in an order that only what was stored and removed decides.
    pub(super) fn all(&self) -> impl Iterator<Item = &Item> {
        self.slots.iter().filter_map(|slot| slot.item.as_ref())
    }

    /// Removes the items last used at this tick or later.
    pub(super) fn remove_since(&mut self, tick: u32) {
        for index in 0..self.slots.len() {
            if self.slots[index].item.as_ref().is_some_and(|item| item.time >= tick) {
                self.remove(ItemIndex(index));
            }
        }
    }

    /// Makes the item the most recently used one.
    pub(super) fn promote(&mut self, index: ItemIndex) {
        if self.newest != Some(index.0) {
            self.unlink(index.0);
            self.link(index.0);
        }
    }

    /// The least recently used item.
    pub(super) fn oldest(&self) -> Option<ItemIndex> {
        self.oldest.map(ItemIndex)
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The sum of the items' [`Item::cost`], in bytes.
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
        while let Some(index) = items.oldest() {
            order.push_str(&String::from_utf8_lossy(&items.remove(index).key));
        }
        order
    }

    #[test]
    fn items_are_removed_in_the_order_of_their_last_use() {
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
    fn a_freed_slot_is_reused_and_the_bytes_add_up() {
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
