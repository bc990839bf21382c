//! Which hits a sidecar may serve again without a read: for at most the rule's `near`.
//!
//! ```text
//!  lookup ──a stored value that is still valid───▶ Hit
//!    │ another request is reading the key ───────▶ Join ──SharedResult──▶ the same value, or a read of its own
//!    └ Read ──▶ the read is sent ──▶ end_read ──fresh──▶ stored, with the counts of Changes from before the read
//! ```
//!
//! A value's age counts from the moment its read was *sent*: the read has seen everything that another sidecar
//! acknowledged before that. Changes made through this sidecar are counted in [`Changes`], which all its workers share: a
//! value is served only while the counts of its key and tags are those from before its read was sent. Each worker stores
//! its own values.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};

use bytes::Bytes;

use crate::error::Failure;
use crate::looked_at;

use super::envelope::{Header, Opened, TagName};
use super::expiry::sure_ms;
use super::freshness::Hit;
use super::inputs::Now;
use super::read::ReadEnd;
use changes::{ANY_TAG, EVERYTHING, Slots, slot};

mod changes;

pub use changes::{Changed, Changes};

/// The most readers that join one read. Further ones read on their own.
const MAX_JOINED: usize = 4096;
/// The longest wait of a joined reader, in milliseconds. The client of the read itself may not accept its
/// data, in which case the reply is not processed.
const MAX_JOINED_MS: u64 = 100;
/// A value larger than this fraction (1/n) of the memory is not stored.
const LARGEST_PART: usize = 4;
/// An insertion, or one step of the sweep, removes at most this many expired entries.
const MAX_REMOVED: usize = 16;
/// Memory for an entry besides its key and its value, in bytes: in the tables, and overhead of the allocator.
const ENTRY_BYTES: usize = 320;

/// A value that was read, and until when it may be served again.
#[derive(Debug)]
pub struct NearValue {
    hit: Hit,
    reading: u64,
    /// On the monotonic clock, in ms.
    until: u64,
    slots: Slots,
    sum: u64,
    fences: u64,
}

impl NearValue {
    /// The hit to serve: without the stored header, and with the TTL at the time of the read.
    pub fn hit(&self) -> &Hit {
        &self.hit
    }

    /// Whether a request that arrives now may be served this value.
    fn is_active(&self, fences: u64, now: Now, changes: &Changes) -> bool {
        now.mono < self.until && self.fences == fences && changes.sum(&self.slots) == self.sum
    }
}

/// A read that is about to be sent, with the change counts at that time.
#[derive(Debug)]
pub struct NearRead<B> {
    /// Number of the read. Numbers ascend.
    number: u64,
    sent: u64,
    slots: Slots,
    sum: u64,
    bumps: u64,
    fences: u64,
    in_flight: Option<Rc<InFlightRead<B>>>,
}

/// The newest read of each key that other requests may join.
type InFlightReads<B> = Rc<RefCell<HashMap<Rc<[u8]>, Weak<InFlightRead<B>>>>>;

/// A read in progress that other requests may join. Dropped with its [`NearRead`], together with the wakers.
#[derive(Debug)]
pub struct InFlightRead<B> {
    key: Rc<[u8]>,
    among: InFlightReads<B>,
    until: u64,
    slots: Slots,
    sum: u64,
    fences: u64,
    wakers: RefCell<Vec<B>>,
}

impl<B> Drop for InFlightRead<B> {
    fn drop(&mut self) {
        let mut among = self.among.borrow_mut();
        if among.get(&self.key).is_some_and(|newest| std::ptr::eq(newest.as_ptr(), self)) {
            among.remove(&self.key);
        }
    }
}

impl<B> InFlightRead<B> {
    /// Joins the read: [`NearValues::end_read`] returns the waker.
    pub fn join(&self, waker: B) {
        self.wakers.borrow_mut().push(waker);
    }

    /// When to stop waiting, on the monotonic clock in ms.
    pub fn until(&self) -> u64 {
        self.until
    }
}

/// A read of a key under a rule with `near`.
#[derive(Debug, Clone, Copy)]
pub struct NearRequest<'a> {
    /// Key that is read.
    pub key: &'a [u8],
    /// The tags that the rule names for the key.
    pub tags: &'a [TagName],
    /// The rule's `near`, in ms.
    pub near: u64,
    /// Stands for the fences of the places of the key and of its tags. A value is served only under those it was read under.
    pub fences: u64,
}

/// How a request proceeds.
#[derive(Debug)]
pub enum NearLookup<B> {
    /// A kept value that may be served.
    Hit(Rc<NearValue>),
    /// Wait for the result of this read.
    Join(Rc<InFlightRead<B>>),
    /// Read, and report the end to [`NearValues::end_read`].
    Read(NearRead<B>),
}

/// The result of a read for the requests that have joined it.
#[derive(Debug, Clone)]
pub enum SharedResult {
    /// A value, if [`NearValues::may_serve`] permits it.
    Fresh(Rc<NearValue>),
    /// The key's server did not reply.
    Failed(Failure),
    /// No result that can be shared: each request must read on its own.
    Nothing,
}

/// The values of one worker. `B` wakes a waiting request.
#[derive(Debug)]
pub struct NearValues<B> {
    /// Limit in bytes.
    budget: usize,
    bytes: usize,
    /// How many reads have begun.
    reads_begun: u64,
    /// How many values were removed early since the last report.
    evicted: u64,
    keys: HashMap<Rc<[u8]>, Entry>,
    /// By the number of the read: the oldest first.
    order: BTreeMap<u64, Rc<[u8]>>,
    in_flight: InFlightReads<B>,
}

#[derive(Debug)]
enum Entry {
    Value(Rc<NearValue>),
    /// The read with this number returned nothing to store. Until then no request joins a read of the key,
    /// which would probably not help it.
    Empty {
        reading: u64,
        until: u64,
    },
}

impl Entry {
    fn reading(&self) -> u64 {
        match self {
            Entry::Value(value) => value.reading,
            Entry::Empty { reading, .. } => *reading,
        }
    }

    fn until(&self) -> u64 {
        match self {
            Entry::Value(value) => value.until,
            Entry::Empty { until, .. } => *until,
        }
    }

    /// Length of the value in bytes.
    fn size(&self) -> usize {
        match self {
            Entry::Value(value) => value.hit.payload.len(),
            Entry::Empty { .. } => 0,
        }
    }
}

fn cost(key: &[u8], value: usize) -> usize {
    ENTRY_BYTES + key.len() + value
}

impl<B> NearValues<B> {
    /// A store with a limit of `budget` bytes.
    pub fn new(budget: usize) -> NearValues<B> {
        NearValues {
            budget,
            bytes: 0,
            reads_begun: 0,
            evicted: 0,
            keys: HashMap::new(),
            order: BTreeMap::new(),
            in_flight: InFlightReads::default(),
        }
    }

    /// For how many milliseconds the value of a key may be served again; `None` if it may not. For operators; changes nothing.
    pub fn look(&self, key: &[u8], fences: u64, now: Now, changes: &Changes) -> Option<u64> {
        match self.keys.get(key)? {
            Entry::Value(value) if value.is_active(fences, now, changes) => Some(value.until - now.mono),
            Entry::Value(_) | Entry::Empty { .. } => None,
        }
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many values were removed early for lack of memory since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// The number of the last read. A request that arrives now precedes all later ones.
    pub fn last_read(&self) -> u64 {
        self.reads_begun
    }

    /// How a request that arrives now proceeds.
    pub fn lookup(&mut self, request: &NearRequest<'_>, now: Now, changes: &Changes) -> NearLookup<B> {
        let NearRequest { key, near, fences, .. } = *request;
        match self.keys.get(key) {
            Some(Entry::Value(value)) if value.is_active(fences, now, changes) => {
                return NearLookup::Hit(Rc::clone(value));
            }
            Some(Entry::Empty { until, .. }) if now.mono < *until => {
                return NearLookup::Read(self.start_read(request, now, changes));
            }
            _ => {}
        }
        let in_flight = self.in_flight.borrow().get(key).and_then(Weak::upgrade);
        if let Some(in_flight) = in_flight
            && now.mono < in_flight.until
            && in_flight.fences == fences
            && changes.sum(&in_flight.slots) == in_flight.sum
            && in_flight.wakers.borrow().len() < MAX_JOINED
        {
            return NearLookup::Join(in_flight);
        }
        let mut reading = self.start_read(request, now, changes);
        let NearRead { sent, ref slots, sum, .. } = reading;
        let (slots, until) = (slots.clone(), sent + near.min(MAX_JOINED_MS));
        let (key, among) = (Rc::from(key), Rc::clone(&self.in_flight));
        let wakers = RefCell::default();
        let in_flight = Rc::new(InFlightRead { key, among, until, slots, sum, fences, wakers });
        self.in_flight.borrow_mut().insert(Rc::clone(&in_flight.key), Rc::downgrade(&in_flight));
        reading.in_flight = Some(in_flight);
        NearLookup::Read(reading)
    }

    /// Begins a read that no other request may join.
    pub fn start_read(&mut self, request: &NearRequest<'_>, now: Now, changes: &Changes) -> NearRead<B> {
        let NearRequest { key, tags, fences, .. } = *request;
        self.reads_begun += 1;
        let tags = tags.iter().map(|tag| slot(Changed::Tag(tag)));
        let slots: Slots = [EVERYTHING, slot(Changed::Key(key))].into_iter().chain(tags).collect();
        let sum = changes.sum(&slots);
        let bumps = changes.sum(&[ANY_TAG]);
        NearRead { number: self.reads_begun, sent: now.mono, slots, sum, bumps, fences, in_flight: None }
    }

    /// Whether a request that arrived at `moment` may be served the result of another's read: either that
    /// read was sent after the request arrived, or the value is still valid.
    pub fn may_serve(
        &self,
        value: &NearValue,
        moment: u64,
        fences: u64,
        now: Now,
        changes: &Changes,
    ) -> bool {
        value.reading > moment || value.is_active(fences, now, changes)
    }

    /// A read has ended. Returns the requests that have joined it, and their result. `end` is `None` if the
    /// read continues but waits for another client, which no joined request should do.
    pub fn end_read(
        &mut self,
        request: &NearRequest<'_>,
        reading: NearRead<B>,
        end: Option<&ReadEnd>,
        now: Now,
        changes: &Changes,
    ) -> (Vec<B>, SharedResult) {
        let NearRequest { key, tags, near, .. } = *request;
        let NearRead { number, sent, slots, sum, bumps, fences, in_flight } = reading;
        let wakers = in_flight.map(|in_flight| in_flight.wakers.take());
        let result = match end {
            Some(ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit)) => {
                // A slice of the server's reply would keep all of that reply in memory.
                let payload = match self.is_small_enough(key, hit.payload.len()) {
                    true => Bytes::copy_from_slice(&hit.payload),
                    false => hit.payload.clone(),
                };
                let mut value = NearValue {
                    hit: Hit { payload, header: Bytes::new(), ..hit.clone() },
                    reading: number,
                    until: sent + near,
                    slots,
                    sum,
                    fences,
                };
                if let Some(ttl) = hit.ttl {
                    value.until = value.until.min(sent + sure_ms(ttl));
                }
                if !value.add_tags(&hit.header, tags, bumps, changes) {
                    value.until = 0;
                }
                let value = Rc::new(value);
                self.insert(key, Entry::Value(Rc::clone(&value)), now);
                SharedResult::Fresh(value)
            }
            Some(ReadEnd::Failed(failure)) => SharedResult::Failed(*failure),
            // An early refresh does not invalidate the stored value.
            Some(ReadEnd::Won { early: true, .. }) => SharedResult::Nothing,
            Some(ReadEnd::Won { .. } | ReadEnd::Stale(_) | ReadEnd::Missed { .. }) | None => {
                self.insert(key, Entry::Empty { reading: number, until: sent + near }, now);
                SharedResult::Nothing
            }
        };
        (wakers.unwrap_or_default(), result)
    }

    /// Stores an entry, unless a later read has stored one already.
    fn insert(&mut self, key: &[u8], entry: Entry, now: Now) {
        let reading = entry.reading();
        if self.keys.get(key).is_some_and(|old| old.reading() > reading) {
            return;
        }
        self.remove(key);
        if now.mono < entry.until() {
            if !self.is_small_enough(key, entry.size()) {
                self.evicted += 1;
                return;
            }
            self.bytes += cost(key, entry.size());
            let key: Rc<[u8]> = key.into();
            self.keys.insert(Rc::clone(&key), entry);
            self.order.insert(reading, key);
        }
        self.make_room(now);
    }

    fn is_small_enough(&self, key: &[u8], value: usize) -> bool {
        cost(key, value) <= self.budget / LARGEST_PART
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.keys.remove(key) {
            self.bytes -= cost(key, old.size());
            self.order.remove(&old.reading());
        }
    }

    /// Removes some of the expired entries, the oldest first, and as many others as necessary. Returns whether there may be more
    /// that have expired.
    fn make_room(&mut self, now: Now) -> bool {
        let mut removed = 0;
        while let Some((_, key)) = self.order.first_key_value() {
            looked_at::entry();
            let is_over = self.keys.get(key).is_none_or(|entry| entry.until() <= now.mono);
            if self.bytes <= self.budget && (!is_over || removed >= MAX_REMOVED) {
                return is_over;
            }
            removed += 1;
            self.evicted += u64::from(!is_over);
            let key = Rc::clone(key);
            self.order.pop_first();
            self.remove(&key);
        }
        false
    }

    /// Removes some of the expired entries, also if no request arrives. Returns whether it must be called again. Those behind one
    /// that lives longer remain until that has expired, which takes no more than the longest `near`.
    pub fn sweep(&mut self, now: Now) -> bool {
        self.make_room(now)
    }
}

impl NearValue {
    /// The value also depends on the tags in its header. They were not known when the read began. Their
    /// counts at that time are known only if no tag at all has been bumped since. Returns false otherwise.
    fn add_tags(&mut self, header: &[u8], tags: &[TagName], bumps: u64, changes: &Changes) -> bool {
        let Opened::Sealed { envelope, .. } = Header::open(header) else { return true };
        let own = |name: &[u8]| tags.iter().any(|tag| tag[..] == *name);
        let added_tags: Slots = envelope
            .tags()
            .filter(|(name, _)| !own(name))
            .map(|(name, _)| slot(Changed::Tag(name)))
            .collect();
        if added_tags.is_empty() {
            return true;
        }
        // In this order: a bump that is included in the sum was counted in ANY_TAG before.
        self.sum = self.sum.wrapping_add(changes.sum(&added_tags));
        self.slots.extend(added_tags);
        changes.sum(&[ANY_TAG]) == bumps
    }
}

#[cfg(test)]
mod tests;
