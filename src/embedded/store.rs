//! What a memcached remembers, and what each command makes of it.
//!
//! A pure state machine: the time enters with every call and chance never does, so that the same store serves the
//! process, the simulation and the model checker. It answers as memcached 1.6.45 does, oddities included; the
//! integration test `embedded_is_faithful` holds it to that.

use std::sync::Arc;

use super::items::{Item, Items, Place};
use super::number;
use super::stats::Stats;
use crate::protocol::base64;
use crate::protocol::request::{Refused, Request, Verb};

/// What `version` says. libmemcached and others parse it, and choose what they send by it.
pub const VERSION: &str = "1.6.45";

/// What one item may take by memcached's own count (header and key included), in bytes.
pub(super) const MAX_ITEM: usize = 1 << 20;

/// Relative exptimes end here, in seconds; above it they are Unix time.
const MAX_RELATIVE: i32 = 60 * 60 * 24 * 30;

/// memcached's clock starts here, in seconds, so that an item can have expired before the server was started.
const FIRST_TICK: i64 = 60;

/// An exptime that has always passed.
const LONG_AGO: u32 = 1;

/// What becomes of the connection once the reply is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next request.
    GoOn,
    /// It is closed.
    Close,
}

/// A memcached's memory. Cloning it gives an independent copy in the same state.
#[derive(Debug, Clone)]
pub struct Store {
    items: Items,
    /// How many bytes the items may cost together.
    limit: u64,
    /// The last CAS number given out; they only ever grow, across all keys.
    cas: u64,
    /// The Unix second that is tick 0.
    origin: i64,
    /// `flush_all`: from this tick on, what was last used at it or before is gone; 0 for none.
    oldest_live: u32,
    pub(super) stats: Stats,
}

/// How a storage command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Stored, with this CAS.
    Stored(u64),
    NotStored,
    Exists,
    NotFound,
    TooLarge,
    OutOfMemory,
}

/// What is to be stored, and on what condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put<'a> {
    pub(super) verb: Verb,
    pub(super) key: &'a [u8],
    pub(super) data: &'a [u8],
    pub(super) flags: u32,
    pub(super) exptime: u32,
    /// A CAS to compare with, on top of the verb's own (`ms MA C5`); 0 for none.
    pub(super) compare: u64,
    /// A CAS below the item's is taken too, but what is stored stays stale (`ms I`).
    pub(super) invalidate: bool,
    pub(super) binary: bool,
    /// The CAS it gets, instead of the next number (`ms E`).
    pub(super) new_cas: Option<u64>,
}

impl<'a> Put<'a> {
    /// Without conditions, flags or an end.
    pub(super) fn of(verb: Verb, key: &'a [u8], data: &'a [u8]) -> Put<'a> {
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

/// How an `incr`, `decr` or `ma` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Added {
    /// The new value, in the item's own place.
    InPlace(Place, u64),
    /// The new value did not fit the old one's bytes. A new item holds it, at this place, and has lost the stale mark.
    Moved(Place, u64),
    NotFound,
    NotNumeric,
    Exists,
}

impl Store {
    /// An empty one that evicts above `limit` bytes of items (key + value + 50 each), started at `now` (Unix ms).
    pub fn new(limit: u64, now: u64) -> Store {
        Store {
            items: Items::default(),
            limit,
            // memcached's first is 2.
            cas: 1,
            origin: seconds(now) - FIRST_TICK,
            oldest_live: 0,
            stats: Stats::default(),
        }
    }

    /// Appends the reply to `request` at `now` (Unix ms) to `out`; nothing if noreply or `q` asks for silence.
    ///
    /// Time counts in whole seconds from the store's start, so a TTL of n lasts (n−1, n] s. A `now` that runs
    /// backwards makes items live longer by as much.
    pub fn answer(&mut self, request: &Request<'_>, now: u64, out: &mut Vec<u8>) -> Next {
        match request {
            Request::Meta(meta) => self.answer_meta(meta, now, out),
            Request::Quit => return Next::Close,
            classic => self.answer_classic(classic, now, out),
        }
        Next::GoOn
    }

    /// Appends the reply to what the parser refused, and does what it does all the same. The bytes
    /// still to be skipped are the caller's affair.
    pub fn refuse(&mut self, refused: &Refused<'_>, now: u64, out: &mut Vec<u8>) -> Next {
        if let Some(sent) = refused.deletes {
            let decoded = if refused.deletes_base64 { base64::decode(sent) } else { None };
            self.drop_unstorable(decoded.as_deref().unwrap_or(sent), self.tick(now));
        }
        if let Some((exptime, keys)) = refused.touches {
            for key in keys {
                self.answer_classic(&Request::Touch { key, exptime, noreply: true }, now, out);
            }
        }
        out.extend_from_slice(refused.reply);
        if refused.close { Next::Close } else { Next::GoOn }
    }

    /// How many items lie here, the expired ones that nobody has asked for since included.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the items cost together, in bytes: never above the limit.
    pub fn bytes(&self) -> u64 {
        self.items.bytes()
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Seconds on the store's own clock.
    pub(super) fn tick(&self, now: u64) -> u32 {
        u32::try_from((seconds(now) - self.origin).max(0)).unwrap_or(u32::MAX)
    }

    /// Seconds since the store was made.
    pub(super) fn uptime(&self, now: u64) -> u32 {
        self.tick(now).saturating_sub(FIRST_TICK as u32)
    }

    /// The tick at which something with this exptime is gone; 0 for never. Like memcached, only the lower 32 bits
    /// of the exptime count.
    pub(super) fn expiry(&self, exptime: i64, tick: u32) -> u32 {
        match exptime as i32 {
            0 => 0,
            negative if negative < 0 => LONG_AGO,
            relative if relative <= MAX_RELATIVE => tick.saturating_add(relative as u32),
            absolute => u32::try_from(i64::from(absolute) - self.origin).unwrap_or(0).max(LONG_AGO),
        }
    }

    pub(super) fn item(&self, place: Place) -> &Item {
        self.items.at(place)
    }

    pub(super) fn item_mut(&mut self, place: Place) -> &mut Item {
        self.items.at_mut(place)
    }

    pub(super) fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    /// The live item of `key`. One that has expired or was flushed is dropped here: nothing else looks for them.
    pub(super) fn find(&mut self, key: &[u8], tick: u32) -> Option<Place> {
        let place = self.items.find(key)?;
        let item = self.items.at(place);
        let flushed = item.time <= self.oldest_live && self.oldest_live <= tick;
        let expired = item.exptime != 0 && item.exptime <= tick;
        if flushed || expired {
            self.items.remove(place);
            return None;
        }
        Some(place)
    }

    /// The item of `key`, even one that is as good as gone: what was just stored under a `flush_all` that is due, or
    /// with an exptime that has passed.
    pub(super) fn stored(&self, key: &[u8]) -> Option<Place> {
        self.items.find(key)
    }

    /// Notes that it was read. As in memcached the first read marks it but leaves its time.
    pub(super) fn bump(&mut self, place: Place, tick: u32) {
        self.items.promote(place);
        let item = self.items.at_mut(place);
        if item.fetched {
            item.time = tick;
        }
        item.fetched = true;
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, place: Place) {
        self.items.remove(place);
    }

    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`.
    pub(super) fn put(&mut self, put: Put<'_>, tick: u32) -> Ending {
        if Item::total(put.key, put.flags, put.data.len()) > MAX_ITEM {
            return Ending::TooLarge;
        }
        // As in memcached, a number is used up even if nothing comes to be stored.
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
        let Some(place) = self.find(put.key, tick) else {
            return match put.verb {
                Verb::Set | Verb::Add => self.link(item),
                Verb::Cas(_) => Ending::NotFound,
                Verb::Replace | Verb::Append | Verb::Prepend => Ending::NotStored,
            };
        };
        let old = self.items.at(place);
        match put.verb {
            Verb::Set | Verb::Replace => {}
            Verb::Add => {
                self.items.at_mut(place).time = tick;
                self.items.promote(place);
                return Ending::NotStored;
            }
            Verb::Cas(expected) if expected != 0 && expected == old.cas => {}
            Verb::Cas(expected) if expected != 0 && put.invalidate && expected < old.cas => {
                item.exptime = old.exptime;
                item.stale = true;
                item.won = old.won;
            }
            Verb::Cas(_) => return Ending::Exists,
            Verb::Append | Verb::Prepend => {
                if put.compare != 0 && put.compare != old.cas {
                    return Ending::Exists;
                }
                if Item::total(put.key, old.flags, old.value.len() + put.data.len()) > MAX_ITEM {
                    return Ending::NotStored;
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
            return Ending::OutOfMemory;
        }
        self.items.remove(place);
        self.link(item)
    }

    /// Adds an item whose key is absent, and evicts what was used longest ago until it fits.
    fn link(&mut self, item: Item) -> Ending {
        if item.cost() > self.limit {
            return Ending::OutOfMemory;
        }
        while self.items.bytes() + item.cost() > self.limit {
            let Some(oldest) = self.items.oldest() else { break };
            self.items.remove(oldest);
            self.stats.evictions += 1;
        }
        let cas = item.cas;
        self.items.insert(item);
        self.stats.total_items += 1;
        Ending::Stored(cas)
    }

    /// Adds `delta`, or takes it away down to 0. `compare` of 0 compares nothing.
    pub(super) fn add(&mut self, key: &[u8], decr: bool, delta: u64, compare: u64, tick: u32) -> Added {
        let Some(place) = self.find(key, tick) else { return Added::NotFound };
        let old = self.items.at(place);
        if old.value.is_empty() {
            return Added::NotNumeric;
        }
        if compare != 0 && compare != old.cas {
            return Added::Exists;
        }
        let Some(value) = number::unsigned(&old.value) else { return Added::NotNumeric };
        let value = if decr { value.saturating_sub(delta) } else { value.wrapping_add(delta) };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        if digits.len() <= old.value.len() {
            let cas = self.next_cas();
            self.items.promote(place);
            let item = self.items.at_mut(place);
            item.cas = cas;
            item.time = tick;
            item.value.fill(b' ');
            item.value[..digits.len()].copy_from_slice(digits);
            return Added::InPlace(place, value);
        }
        let (flags, exptime) = (old.flags, old.exptime);
        let put = Put { flags, exptime, ..Put::of(Verb::Set, key, digits) };
        match (self.put(put, tick), self.stored(key)) {
            (Ending::Stored(_), Some(place)) => Added::Moved(place, value),
            // The limit is so low that twenty digits do not fit: then nothing is here.
            _ => Added::NotFound,
        }
    }

    /// `flush_all` after `delay` seconds; none or a negative one is at once.
    ///
    /// memcached's own rule: a delayed flush kills what was last used before the second in which it falls due. For
    /// `flush_all 1` that second begins at once, so whatever is stored until the next one is dead too.
    pub(super) fn flush(&mut self, delay: i64, tick: u32) {
        let delay = if (delay as i32) > 0 { delay } else { 0 };
        let due = if delay == 0 { tick } else { self.expiry(delay, tick) };
        self.oldest_live = due.saturating_sub(1);
        // What is older is found to be gone when it is asked for; what is stored from now on lives, in the same second too.
        if self.oldest_live <= tick {
            self.items.remove_since(self.oldest_live);
        }
    }
}

/// Whole seconds, as memcached counts.
fn seconds(now: u64) -> i64 {
    i64::try_from(now / 1000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::parse::parse;
    use crate::protocol::request::{Limits, Parsed};

    /// What a simulation does: bytes in at a time, bytes out.
    fn ask(store: &mut Store, now: u64, line: &str) -> String {
        let mut out = Vec::new();
        match parse(line.as_bytes(), &Limits { max_value: MAX_ITEM }) {
            Parsed::Request { request, .. } => store.answer(&request, now, &mut out),
            Parsed::Refused(refused) => store.refuse(&refused, now, &mut out),
            Parsed::Incomplete { .. } => panic!("{line:?} is not whole"),
        };
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_ttl_of_n_lives_more_than_n_minus_1_and_at_most_n_seconds() {
        for (stored_at, last) in [(10_000, 11_999), (10_999, 11_999)] {
            let mut store = Store::new(1 << 20, 0);
            ask(&mut store, stored_at, "set k 0 2 1\r\nx\r\n");
            assert_eq!(ask(&mut store, last, "mg k t\r\n"), "HD t1\r\n");
            assert_eq!(ask(&mut store, last + 1, "mg k t\r\n"), "EN\r\n");
        }
    }

    #[test]
    fn an_exptime_above_30_days_is_unix_time() {
        let start = 1_800_000_000_000;
        let mut store = Store::new(1 << 20, start);
        ask(&mut store, start + 5_000, "set k 0 1800000010 1\r\nx\r\n");
        assert_eq!(ask(&mut store, start + 5_000, "mg k t\r\n"), "HD t5\r\n");
        assert_eq!(ask(&mut store, start + 10_000, "mg k t\r\n"), "EN\r\n");
        ask(&mut store, start, "set k 0 2592001 1\r\nx\r\n");
        assert_eq!(ask(&mut store, start, "get k\r\n"), "END\r\n");
    }

    #[test]
    fn a_clock_that_starts_at_zero_works_too() {
        let mut store = Store::new(1 << 20, 0);
        ask(&mut store, 0, "set k 0 -1 1\r\nx\r\n");
        ask(&mut store, 0, "set l 0 2592000 1\r\nx\r\n");
        assert_eq!(ask(&mut store, 0, "get k l\r\n"), "VALUE l 0 1\r\nx\r\nEND\r\n");
        assert_eq!(ask(&mut store, 2_592_000_000, "get k l\r\n"), "END\r\n");
    }

    #[test]
    fn the_least_recently_used_leave_and_the_limit_holds() {
        // Each costs 50 + 2 + 48 bytes.
        let mut store = Store::new(1000, 0);
        for n in 10..20 {
            ask(&mut store, 0, &format!("set {n} 0 0 48\r\n{}\r\n", "x".repeat(48)));
        }
        assert_eq!((store.len(), store.bytes()), (10, 1000));
        ask(&mut store, 0, "get 10\r\n");
        ask(&mut store, 0, "mg 11 u\r\n");
        ask(&mut store, 0, &format!("set 20 0 0 148\r\n{}\r\n", "x".repeat(148)));
        assert_eq!((store.len(), store.bytes()), (9, 1000));
        assert_eq!(ask(&mut store, 0, "mg 10\r\n"), "HD\r\n");
        assert_eq!(ask(&mut store, 0, "mg 11\r\n"), "EN\r\n");
        assert_eq!(ask(&mut store, 0, "mg 12\r\n"), "EN\r\n");
        assert_eq!(ask(&mut store, 0, "mg 13\r\n"), "HD\r\n");
        let huge = format!("set 20 0 0 2000\r\n{}\r\n", "x".repeat(2000));
        assert_eq!(ask(&mut store, 0, &huge), "SERVER_ERROR out of memory storing object\r\n");
        assert_eq!(ask(&mut store, 0, "mg 20\r\n"), "EN\r\n");
        assert!(store.bytes() <= 1000);
    }

    #[test]
    fn a_clone_lives_on_its_own_and_answers_alike() {
        let mut store = Store::new(1 << 20, 0);
        ask(&mut store, 0, "set k 0 0 1\r\n1\r\n");
        let mut other = store.clone();
        for store in [&mut store, &mut other] {
            assert_eq!(ask(store, 0, "ma k v c\r\n"), "VA 1 c3\r\n2\r\n");
        }
    }

    #[test]
    fn a_refused_set_deletes_what_the_key_held_in_base64_too() {
        let mut store = Store::new(1 << 20, 0);
        ask(&mut store, 0, "set foo 0 0 1\r\n1\r\n");
        assert_eq!(
            ask(&mut store, 0, "ms Zm9v 2000000 b\r\n"),
            "SERVER_ERROR object too large for cache\r\n"
        );
        assert_eq!(ask(&mut store, 0, "get foo\r\n"), "END\r\n");
    }

    #[test]
    fn a_client_may_give_the_cas_itself() {
        let mut store = Store::new(1 << 20, 0);
        assert_eq!(ask(&mut store, 0, "ms k 1 E77 c\r\n1\r\n"), "HD c77\r\n");
        assert_eq!(ask(&mut store, 0, "ms k 1 C77 E99 c\r\n1\r\n"), "HD c99\r\n");
        assert_eq!(ask(&mut store, 0, "md k C99 I E100\r\n"), "HD\r\n");
        assert_eq!(ask(&mut store, 0, "mg k c\r\n"), "HD c100 X W\r\n");
        assert_eq!(ask(&mut store, 0, "ma k E200 c\r\n"), "HD c200\r\n");
    }

    #[test]
    fn md_x_keeps_the_item_and_drops_its_value() {
        let mut store = Store::new(1 << 20, 0);
        ask(&mut store, 0, "set k 5 100 1\r\n1\r\n");
        assert_eq!(ask(&mut store, 0, "md k x I T30\r\n"), "HD\r\n");
        assert_eq!(ask(&mut store, 0, "mg k t f v\r\n"), "VA 0 t30 f0 X W\r\n\r\n");
    }
}
