//! Which hits a sidecar may serve again without a read: for at most the rule's `near`.
//!
//! ```text
//!  look ──a stored value that is still valid──────────▶ Hit
//!    │ another request is reading the key ────────────▶ Join ──SharedResult──▶ the same value, or look again
//!    └ Read ──▶ (Changes are noted, the read is sent) ──▶ ended ──fresh──▶ stored
//! ```
//!
//! A value's age counts from the moment its read was *sent*: the read has seen everything that another sidecar
//! acknowledged before that. Changes made through this sidecar are counted in [`Changes`], which all its workers share: a
//! value is served only while the counts of its key and tags are those from before its read was sent. Each worker stores
//! its own values.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use bytes::Bytes;

use crate::error::Failure;

use super::envelope::{Header, Opened, TagName};
use super::freshness::Hit;
use super::inputs::Now;
use super::read::ReadEnd;
use changes::{ANY_TAG, EVERYTHING, Slots, slot};

mod changes;

pub use changes::{Changed, Changes};

/// The most readers that wait for another's answer; the next one reads for itself.
const MAX_JOINED: usize = 4096;
/// The longest that a reader waits for another's answer, in ms: its client may be one that does not take what it is sent, and
/// then the answer is not looked at.
const MAX_JOINED_MS: u64 = 100;
/// A value that takes more than this part of the memory is not kept.
const LARGEST_PART: usize = 4;
/// What an entry takes beside its key and its value, in bytes: its places in the tables, and what the allocator adds.
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
}

impl NearValue {
    /// What is to be served: without the header that it was stored with, and with the TTL of the moment it was read.
    pub fn hit(&self) -> &Hit {
        &self.hit
    }

    /// Whether a request of this moment may be answered with it.
    fn is_active(&self, now: Now, changes: &Changes) -> bool {
        now.mono < self.until && changes.sum(&self.slots) == self.sum
    }
}

/// A read that is about to be sent, with what had been counted by then.
#[derive(Debug)]
pub struct NearRead<B> {
    /// Its number: one that begins later has a larger one.
    number: u64,
    sent: u64,
    slots: Slots,
    sum: u64,
    bumps: u64,
    in_flight: Option<Rc<InFlightRead<B>>>,
}

/// A read on its way whose answer others wait for. Gone with its [`NearRead`], and the bells with it.
#[derive(Debug)]
pub struct InFlightRead<B> {
    until: u64,
    slots: Slots,
    sum: u64,
    wakers: RefCell<Vec<B>>,
}

impl<B> InFlightRead<B> {
    /// Waits for the answer: `bell` is among those that [`NearValues::ended`] gives back.
    pub fn join(&self, waker: B) {
        self.wakers.borrow_mut().push(waker);
    }

    /// When to stop waiting, on the monotonic clock in ms.
    pub fn until(&self) -> u64 {
        self.until
    }
}

/// What is read.
#[derive(Debug, Clone, Copy)]
pub struct NearRequest<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The tags that its rule names for it.
    pub tags: &'a [TagName],
    /// The rule's `near`, in ms.
    pub near: u64,
}

/// What a reader is to do.
#[derive(Debug)]
pub enum NearLookup<B> {
    /// Serve this.
    Hit(Rc<NearValue>),
    /// Wait for the answer of this one.
    Join(Rc<InFlightRead<B>>),
    /// Read, and say how it ended.
    Read(NearRead<B>),
}

/// What those are told who waited for another's answer.
#[derive(Debug, Clone)]
pub enum SharedResult {
    /// A value, for [`NearValues::serves`] to judge.
    Fresh(Rc<NearValue>),
    /// The key's server did not answer.
    Failed(Failure),
    /// Nothing that is anybody else's: read for yourself.
    Nothing,
}

/// One worker's values. `B` wakes one who waits.
#[derive(Debug)]
pub struct NearValues<B> {
    /// In bytes.
    budget: usize,
    bytes: usize,
    /// How many reads have begun.
    reads_begun: u64,
    /// How many values were forgotten before their time.
    evicted: u64,
    keys: HashMap<Rc<[u8]>, Entry>,
    /// The oldest first, by the number of the reading; one whose entry has another number by now is to be skipped.
    order: VecDeque<(u64, Rc<[u8]>)>,
    in_flight: HashMap<Rc<[u8]>, Weak<InFlightRead<B>>>,
}

#[derive(Debug)]
enum Entry {
    Value(Rc<NearValue>),
    /// There was nothing to keep, says the reading with this number: until that moment nobody waits for another's answer, which
    /// would likely be none for them.
    Empty {
        reading: u64,
        until: u64,
    },
}

impl Entry {
    fn reading(&self) -> u64 {
        match self {
            Entry::Value(kept) => kept.reading,
            Entry::Empty { reading, .. } => *reading,
        }
    }

    fn until(&self) -> u64 {
        match self {
            Entry::Value(kept) => kept.until,
            Entry::Empty { until, .. } => *until,
        }
    }

    /// Bytes of its value.
    fn size(&self) -> usize {
        match self {
            Entry::Value(kept) => kept.hit.payload.len(),
            Entry::Empty { .. } => 0,
        }
    }
}

fn cost(key: &[u8], value: usize) -> usize {
    ENTRY_BYTES + key.len() + value
}

impl<B> NearValues<B> {
    /// One that keeps so many bytes at most.
    pub fn new(budget: usize) -> NearValues<B> {
        NearValues {
            budget,
            bytes: 0,
            reads_begun: 0,
            evicted: 0,
            keys: HashMap::new(),
            order: VecDeque::new(),
            in_flight: HashMap::new(),
        }
    }

    /// How many bytes it keeps.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many values it had to forget before their time, for want of memory, since this was asked last.
    pub fn take_crowded(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// The number of the last reading: whoever commands at this moment has asked before all later ones.
    pub fn moment(&self) -> u64 {
        self.reads_begun
    }

    /// What a request of this moment is to do.
    pub fn look(&mut self, wanted: &NearRequest<'_>, now: Now, changes: &Changes) -> NearLookup<B> {
        let NearRequest { key, near, .. } = *wanted;
        match self.keys.get(key) {
            Some(Entry::Value(kept)) if kept.is_active(now, changes) => {
                return NearLookup::Hit(Rc::clone(kept));
            }
            Some(Entry::Empty { until, .. }) if now.mono < *until => {
                return NearLookup::Read(self.alone(wanted, now, changes));
            }
            _ => {}
        }
        if let Some(in_flight) = self.in_flight.get(key).and_then(Weak::upgrade)
            && now.mono < in_flight.until
            && changes.sum(&in_flight.slots) == in_flight.sum
            && in_flight.wakers.borrow().len() < MAX_JOINED
        {
            return NearLookup::Join(in_flight);
        }
        let mut reading = self.alone(wanted, now, changes);
        let NearRead { sent, ref slots, sum, .. } = reading;
        let (slots, until) = (slots.clone(), sent + near.min(MAX_JOINED_MS));
        let in_flight = Rc::new(InFlightRead { until, slots, sum, wakers: RefCell::default() });
        self.in_flight.insert(Rc::from(key), Rc::downgrade(&in_flight));
        reading.in_flight = Some(in_flight);
        NearLookup::Read(reading)
    }

    /// Begins a read that nobody else waits for.
    pub fn alone(&mut self, wanted: &NearRequest<'_>, now: Now, changes: &Changes) -> NearRead<B> {
        let NearRequest { key, tags, .. } = *wanted;
        self.reads_begun += 1;
        let tags = tags.iter().map(|tag| slot(Changed::Tag(tag)));
        let slots: Slots = [EVERYTHING, slot(Changed::Key(key))].into_iter().chain(tags).collect();
        let sum = changes.sum(&slots);
        let bumps = changes.sum(&[ANY_TAG]);
        NearRead { number: self.reads_begun, sent: now.mono, slots, sum, bumps, in_flight: None }
    }

    /// Whether whoever asked at `moment` may be answered with what another's read has brought: it was sent after they had asked,
    /// or it still stands.
    pub fn serves(&self, kept: &NearValue, moment: u64, now: Now, changes: &Changes) -> bool {
        kept.reading > moment || kept.is_active(now, changes)
    }

    /// A read has ended: who waits for it, and what they are told. `None` for the end: it goes on, but it waits for another
    /// client, and nobody should wait for that.
    pub fn ended(
        &mut self,
        wanted: &NearRequest<'_>,
        reading: NearRead<B>,
        end: Option<&ReadEnd>,
        now: Now,
        changes: &Changes,
    ) -> (Vec<B>, SharedResult) {
        let NearRequest { key, tags, near } = *wanted;
        let NearRead { number, sent, slots, sum, bumps, in_flight } = reading;
        let wakers = in_flight.map(|in_flight| {
            if self.in_flight.get(key).is_some_and(|newest| std::ptr::eq(newest.as_ptr(), &*in_flight)) {
                self.in_flight.remove(key);
            }
            in_flight.wakers.take()
        });
        let result = match end {
            Some(ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit)) => {
                // A slice of what came from the server would keep all of that in memory.
                let payload = match self.has_room_for(key, hit.payload.len()) {
                    true => Bytes::copy_from_slice(&hit.payload),
                    false => hit.payload.clone(),
                };
                let mut kept = NearValue {
                    hit: Hit { payload, header: Bytes::new(), ..hit.clone() },
                    reading: number,
                    until: sent + near,
                    slots,
                    sum,
                };
                if let Some(ttl) = hit.ttl {
                    // A TTL of n lives (n−1, n] seconds.
                    kept.until = kept.until.min(sent + u64::from(ttl.saturating_sub(1)) * 1000);
                }
                if !kept.add_tags(&hit.header, tags, bumps, changes) {
                    kept.until = 0;
                }
                let kept = Rc::new(kept);
                self.keep(key, Entry::Value(Rc::clone(&kept)), now);
                SharedResult::Fresh(kept)
            }
            Some(ReadEnd::Failed(failure)) => SharedResult::Failed(*failure),
            // Whoever refreshes it early knows nothing against what is kept.
            Some(ReadEnd::Won { early: true, .. }) => SharedResult::Nothing,
            Some(ReadEnd::Won { .. } | ReadEnd::Stale(_) | ReadEnd::Missed { .. }) | None => {
                self.keep(key, Entry::Empty { reading: number, until: sent + near }, now);
                SharedResult::Nothing
            }
        };
        (wakers.unwrap_or_default(), result)
    }

    /// Remembers it, unless a later reading has been remembered already.
    fn keep(&mut self, key: &[u8], entry: Entry, now: Now) {
        let reading = entry.reading();
        if self.keys.get(key).is_some_and(|old| old.reading() > reading) {
            return;
        }
        self.remove(key);
        if now.mono < entry.until() {
            if !self.has_room_for(key, entry.size()) {
                self.evicted += 1;
                return;
            }
            self.bytes += cost(key, entry.size());
            let key: Rc<[u8]> = key.into();
            self.keys.insert(Rc::clone(&key), entry);
            self.order.push_back((reading, key));
        }
        self.make_room(now);
    }

    fn has_room_for(&self, key: &[u8], value: usize) -> bool {
        cost(key, value) <= self.budget / LARGEST_PART
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.keys.remove(key) {
            self.bytes -= cost(key, old.size());
        }
    }

    /// Forgets what is over, the oldest first, and what there is no room for.
    fn make_room(&mut self, now: Now) {
        while let Some((reading, key)) = self.order.front() {
            let entry = self.keys.get(key).filter(|entry| entry.reading() == *reading);
            let over = entry.is_none_or(|entry| entry.until() <= now.mono);
            if !over && self.bytes <= self.budget {
                break;
            }
            let is_current = entry.is_some();
            self.evicted += u64::from(!over);
            if let Some((_, key)) = self.order.pop_front()
                && is_current
            {
                self.remove(&key);
            }
        }
        // One key that is read again and again, behind one that stands for long.
        if self.order.len() > 2 * self.keys.len() + 64 {
            let NearValues { keys, order, .. } = self;
            order.retain(|(reading, key)| keys.get(key).is_some_and(|entry| entry.reading() == *reading));
        }
    }

    /// Forgets all that is over: nothing else does once nobody reads.
    pub fn sweep(&mut self, now: Now) {
        self.keys.retain(|_, entry| now.mono < entry.until());
        self.bytes = self.keys.iter().map(|(key, entry)| cost(key, entry.size())).sum();
        self.in_flight.retain(|_, in_flight| in_flight.strong_count() > 0);
        self.make_room(now);
    }
}

impl NearValue {
    /// It depends on the tags that its value came with too. Nobody knew them when it was read, so what was counted of them by
    /// then is known only if no tag at all has been bumped since. False: it cannot be known.
    fn add_tags(&mut self, header: &[u8], tags: &[TagName], bumps: u64, changes: &Changes) -> bool {
        let Opened::Sealed { envelope, .. } = Header::open(header) else { return true };
        let own = |name: &[u8]| tags.iter().any(|tag| tag[..] == *name);
        let learnt: Slots = envelope
            .tags()
            .filter(|(name, _)| !own(name))
            .map(|(name, _)| slot(Changed::Tag(name)))
            .collect();
        if learnt.is_empty() {
            return true;
        }
        // In this order: a bump that is in the sum by now was counted among all before.
        self.sum = self.sum.wrapping_add(changes.sum(&learnt));
        self.slots.extend(learnt);
        changes.sum(&[ANY_TAG]) == bumps
    }
}

#[cfg(test)]
mod tests;
