//! A memcached's memory, and the operations that its commands consist of.
//!
//! A pure state machine: the time is passed to every call, and nothing is random, so that the process, the simulation and the
//! model checker can use the same store. It behaves as memcached 1.6.45 does, which the integration test
//! `embedded_is_faithful` checks.

use std::sync::Arc;

use super::counters::Counters;
use super::items::{Item, ItemIndex, Items};
use super::number;
use crate::protocol::request::Verb;

/// The reply to `version`. Clients such as libmemcached parse it to choose the commands they send.
pub const VERSION: &str = "1.6.45";

/// The largest item by memcached's own count (with header and key), in bytes.
pub(super) const MAX_ITEM: usize = 1 << 20;

/// The largest relative exptime, in seconds. Larger ones are Unix time.
const MAX_RELATIVE: i32 = 60 * 60 * 24 * 30;

/// The tick at which a store starts, as in memcached, so that an exptime can be in the past. In seconds.
const FIRST_TICK: i64 = 60;

/// The tick of an exptime that has passed already.
const LONG_AGO: u32 = 1;

/// A memcached's memory. Cloning it gives an independent copy in the same state.
#[derive(Debug, Clone)]
pub struct Store {
    items: Items,
    /// The most bytes that all items may take together.
    limit: u64,
    /// The last CAS number. CAS numbers increase across all keys.
    cas: u64,
    /// The Unix time of tick 0, in seconds.
    origin: i64,
    /// `flush_all`: from this tick on, items last used at or before it are gone; 0 for none.
    oldest_live: u32,
    /// Whether it has the command that lists its keys.
    lists_keys: bool,
    pub(super) counters: Counters,
}

/// The outcome of a storage command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreOutcome {
    /// The CAS of the stored item.
    Stored(u64),
    NotStored,
    Exists,
    NotFound,
    TooLarge,
    OutOfMemory,
}

/// A value to store, and the conditions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put<'a> {
    pub(super) verb: Verb,
    pub(super) key: &'a [u8],
    pub(super) data: &'a [u8],
    pub(super) flags: u32,
    pub(super) exptime: u32,
    /// A CAS to compare with, in addition to the verb's own (`ms MA C5`); 0 for none.
    pub(super) compare: u64,
    /// With a CAS below the item's, the value is stored too, but marked stale (`ms I`).
    pub(super) invalidate: bool,
    pub(super) binary: bool,
    /// The CAS of the new item, instead of the next number (`ms E`).
    pub(super) new_cas: Option<u64>,
}

impl<'a> Put<'a> {
    /// A value without conditions, flags or exptime.
    pub(super) fn new(verb: Verb, key: &'a [u8], data: &'a [u8]) -> Put<'a> {
        Put {
            verb,
            key,
            data,
            flags: 0,
            exptime: 0,
            compare: 0,
            invalidate: false,
            binary: false,
            new_cas: None,
        }
    }
}

/// The outcome of an `incr`, `decr` or `ma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArithOutcome {
    /// The new value was written over the old one.
    InPlace(ItemIndex, u64),
    /// The new value was longer than the old one. It is in a new item, without the stale mark.
    Moved(ItemIndex, u64),
    NotFound,
    NotNumeric,
    Exists,
}

impl Store {
    /// An empty store, started at `now` (Unix ms). It evicts above `limit` bytes of items (key + value + 50 each).
    pub fn new(limit: u64, now: u64) -> Store {
        Store {
            items: Items::default(),
            limit,
            // The first CAS number of memcached is 2.
            cas: 1,
            origin: seconds(now) - FIRST_TICK,
            oldest_live: 0,
            lists_keys: false,
            counters: Counters::default(),
        }
    }

    /// The same with `lru_crawler metadump hash`, which an embedded server does not have, for one that stands for a memcached.
    #[must_use]
    pub fn listing_keys(mut self) -> Store {
        self.lists_keys = true;
        self
    }

    /// Carries out `lru_crawler metadump hash` at `now`, if it has it. Returns whether it does.
    pub(super) fn list_keys(&self, now: u64, out: &mut Vec<u8>) -> bool {
        let tick = self.tick(now);
        if self.lists_keys {
            for item in self.items.all().filter(|item| self.is_live(item, tick)) {
                out.extend_from_slice(b"key=");
                item.key.iter().for_each(|byte| out.extend_from_slice(format!("%{byte:02X}").as_bytes()));
                out.extend_from_slice(b" exp=-1\n");
            }
            out.extend_from_slice(b"END\r\n");
        }
        self.lists_keys
    }

    /// The number of items, including expired ones that were not looked up since.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the items count against the limit, never above it.
    pub fn bytes(&self) -> u64 {
        self.items.bytes()
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// The tick at `now`: seconds on the store's own clock.
    pub(super) fn tick(&self, now: u64) -> u32 {
        u32::try_from((seconds(now) - self.origin).max(0)).unwrap_or(u32::MAX)
    }

    /// Seconds since the store was started.
    pub(super) fn uptime(&self, now: u64) -> u32 {
        self.tick(now).saturating_sub(FIRST_TICK as u32)
    }

    /// The tick at which an item with this exptime expires; 0 for never. As in memcached, only the lower 32 bits of the exptime
    /// count.
    pub(super) fn expiry(&self, exptime: i64, tick: u32) -> u32 {
        match exptime as i32 {
            0 => 0,
            negative if negative < 0 => LONG_AGO,
            relative if relative <= MAX_RELATIVE => tick.saturating_add(relative as u32),
            absolute => u32::try_from(i64::from(absolute) - self.origin).unwrap_or(0).max(LONG_AGO),
        }
    }

    pub(super) fn item(&self, index: ItemIndex) -> &Item {
        self.items.get(index)
    }

    pub(super) fn item_mut(&mut self, index: ItemIndex) -> &mut Item {
        self.items.get_mut(index)
    }

    pub(super) fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    /// The live item of `key`. An item that has expired or was flushed is removed.
    pub(super) fn find(&mut self, key: &[u8], tick: u32) -> Option<ItemIndex> {
        let index = self.items.find(key)?;
        if !self.is_live(self.items.get(index), tick) {
            self.items.remove(index);
            return None;
        }
        Some(index)
    }

    /// Whether it has neither expired nor been flushed.
    fn is_live(&self, item: &Item, tick: u32) -> bool {
        let flushed = item.time <= self.oldest_live && self.oldest_live <= tick;
        let expired = item.exptime != 0 && item.exptime <= tick;
        !flushed && !expired
    }

    /// The item of `key`, even if it was just stored with an exptime that has passed, or while a `flush_all` is due.
    pub(super) fn find_stored(&self, key: &[u8]) -> Option<ItemIndex> {
        self.items.find(key)
    }

    /// Notes a read of the item. As in memcached, the first read marks it as fetched but does not set its time.
    pub(super) fn bump(&mut self, index: ItemIndex, tick: u32) {
        self.items.promote(index);
        let item = self.items.get_mut(index);
        if item.fetched {
            item.time = tick;
        }
        item.fetched = true;
    }

    pub(super) fn remove(&mut self, index: ItemIndex) {
        self.items.remove(index);
    }

    /// Removes the item of `key`, if there is one. Called when a value that was to replace it cannot be stored.
    pub(super) fn remove_key(&mut self, key: &[u8], tick: u32) {
        if let Some(index) = self.find(key, tick) {
            self.remove(index);
        }
    }

    /// Stores a value: `set`, `add`, `replace`, `append`, `prepend`, `cas` and `ms`.
    pub(super) fn put(&mut self, put: Put<'_>, tick: u32) -> StoreOutcome {
        if Item::total(put.key, put.flags, put.data.len()) > MAX_ITEM {
            return StoreOutcome::TooLarge;
        }
        // As in memcached, a CAS number is used even if nothing is stored.
        let cas = put.new_cas.unwrap_or_else(|| self.next_cas());
        let mut item = Item {
            key: Arc::from(put.key),
            value: put.data.to_vec(),
            flags: put.flags,
            cas,
            exptime: put.exptime,
            time: tick,
            stale: false,
            won: false,
            fetched: false,
            binary: put.binary,
        };
        let Some(index) = self.find(put.key, tick) else {
            return match put.verb {
                Verb::Set | Verb::Add => self.link(item),
                Verb::Cas(_) => StoreOutcome::NotFound,
                Verb::Replace | Verb::Append | Verb::Prepend => StoreOutcome::NotStored,
            };
        };
        let old = self.items.get(index);
        match put.verb {
            Verb::Set | Verb::Replace => {}
            Verb::Add => {
                self.items.get_mut(index).time = tick;
                self.items.promote(index);
                return StoreOutcome::NotStored;
            }
            Verb::Cas(expected) if expected != 0 && expected == old.cas => {}
            Verb::Cas(expected) if expected != 0 && put.invalidate && expected < old.cas => {
                item.exptime = old.exptime;
                item.stale = true;
                item.won = old.won;
            }
            Verb::Cas(_) => return StoreOutcome::Exists,
            Verb::Append | Verb::Prepend => {
                if put.compare != 0 && put.compare != old.cas {
                    return StoreOutcome::Exists;
                }
                if Item::total(put.key, old.flags, old.value.len() + put.data.len()) > MAX_ITEM {
                    return StoreOutcome::NotStored;
                }
                item.flags = old.flags;
                item.exptime = old.exptime;
                item.binary = false;
                let (front, back): (&[u8], &[u8]) =
                    if put.verb == Verb::Append { (&old.value, put.data) } else { (put.data, &old.value) };
                item.value = [front, back].concat();
            }
        }
        if item.cost() > self.limit {
            return StoreOutcome::OutOfMemory;
        }
        self.items.remove(index);
        self.link(item)
    }

    /// Adds an item whose key is absent. Evicts the least recently used items until it fits.
    fn link(&mut self, item: Item) -> StoreOutcome {
        if item.cost() > self.limit {
            return StoreOutcome::OutOfMemory;
        }
        while self.items.bytes() + item.cost() > self.limit {
            let Some(oldest) = self.items.oldest() else { break };
            self.items.remove(oldest);
            self.counters.evictions += 1;
        }
        let cas = item.cas;
        self.items.insert(item);
        self.counters.total_items += 1;
        StoreOutcome::Stored(cas)
    }

    /// Adds `delta` to a value, or subtracts it (the result is at least 0). A `compare` of 0 compares no CAS.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        decr: bool,
        delta: u64,
        compare: u64,
        tick: u32,
    ) -> ArithOutcome {
        let Some(index) = self.find(key, tick) else { return ArithOutcome::NotFound };
        let old = self.items.get(index);
        if old.value.is_empty() {
            return ArithOutcome::NotNumeric;
        }
        if compare != 0 && compare != old.cas {
            return ArithOutcome::Exists;
        }
        let Some(value) = number::unsigned(&old.value) else { return ArithOutcome::NotNumeric };
        let value = if decr { value.saturating_sub(delta) } else { value.wrapping_add(delta) };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        if digits.len() <= old.value.len() {
            let cas = self.next_cas();
            self.items.promote(index);
            let item = self.items.get_mut(index);
            item.cas = cas;
            item.time = tick;
            item.value.fill(b' ');
            item.value[..digits.len()].copy_from_slice(digits);
            return ArithOutcome::InPlace(index, value);
        }
        let (flags, exptime) = (old.flags, old.exptime);
        let put = Put { flags, exptime, ..Put::new(Verb::Set, key, digits) };
        match (self.put(put, tick), self.find_stored(key)) {
            (StoreOutcome::Stored(_), Some(index)) => ArithOutcome::Moved(index, value),
            // The limit is so low that twenty digits do not fit.
            _ => ArithOutcome::NotFound,
        }
    }

    /// `flush_all` after `delay` seconds; at once if it is 0 or negative.
    ///
    /// As in memcached, a delayed flush removes the items last used before the second in which it is due. For `flush_all 1`,
    /// that second begins at once, so items stored until the next second are removed too.
    pub(super) fn flush(&mut self, delay: i64, tick: u32) {
        let delay = if (delay as i32) > 0 { delay } else { 0 };
        let due = if delay == 0 { tick } else { self.expiry(delay, tick) };
        self.oldest_live = due.saturating_sub(1);
        // Older items are removed when they are looked up. Items stored from now on stay, even within the same second.
        if self.oldest_live <= tick {
            self.items.remove_since(self.oldest_live);
        }
    }
}

/// Whole seconds.
fn seconds(now: u64) -> i64 {
    i64::try_from(now / 1000).unwrap_or(i64::MAX)
}
