//! What a sidecar may serve without asking a server again: its own hits, for their rule's `near` at most.
//!
//! ```text
//!  look ──a value that still stands───────────────────▶ Hit
//!    │ somebody reads the key at this moment ─────────▶ Join ──Landing──▶ the same answer, or look again
//!    └ Read ──▶ (Changes are noted, the read is sent) ──▶ ended ──fresh──▶ kept
//! ```
//!
//! A value's age counts from the moment its read was *sent*: whatever another sidecar acknowledged before that, the read has
//! seen. What this sidecar itself has changed is counted in [`Changes`], which all its workers share: a value is served only
//! while the counts of its key and its tags are what they were before its read was sent. Each worker keeps values of its own.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Failure;

use super::command::Now;
use super::envelope::{Header, Opened};
use super::freshness::Hit;
use super::{ReadEnd, TagName};

/// Counters: two keys or tags that share one only make each other be read again.
const SLOTS: u64 = 1 << 16;
/// The most readers that wait for another's answer; the next one reads for itself.
const MAX_ABOARD: usize = 4096;
/// The longest that a reader waits for another's answer, in ms: its client may be one that does not take what it is sent, and
/// then the answer is not looked at.
const MAX_JOINED_MS: u64 = 100;
/// A value that takes more than this part of the memory is not kept.
const LARGEST_PART: usize = 4;
/// What an entry takes beside its key and its value, in bytes: its places in the tables, and what the allocator adds.
const ENTRY: usize = 320;

/// How often something was changed through this sidecar. Shared by its workers.
///
/// A change counts when it begins and again before it is acknowledged. The second is what keeps the promise: a read that was
/// sent in between may have been answered before the change was carried out.
pub struct Changes {
    /// Empty: nothing is kept near, so nothing is counted.
    counts: Box<[AtomicU64]>,
}

/// What a change may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed<'a> {
    /// One key.
    Key(&'a [u8]),
    /// All that carries one tag.
    Tag(&'a [u8]),
    /// Every key.
    Everything,
}

/// Counts all of `Changed::Everything`.
const EVERYTHING: u32 = 0;
/// Counts every bump of any tag.
const ANY_TAG: u32 = 1;
const FIRST: u64 = 2;

impl Changes {
    /// `counts`: whether anything is kept near at all. If not, this takes no memory.
    pub fn new(counts: bool) -> Changes {
        let slots = if counts { FIRST + SLOTS } else { 0 };
        Changes { counts: (0..slots).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A change begins, or has ended: before it is sent, and before it is acknowledged.
    pub fn note(&self, what: Changed<'_>) {
        if self.counts.is_empty() {
            return;
        }
        if let Changed::Tag(_) = what {
            // Before the tag's own: see `ended`.
            self.counts[ANY_TAG as usize].fetch_add(1, SeqCst);
        }
        self.counts[slot(what) as usize].fetch_add(1, SeqCst);
    }

    /// Counts only grow, so a sum of them is the same only if each is.
    fn sum(&self, slots: &[u32]) -> u64 {
        let count = |slot: &u32| self.counts.get(*slot as usize).map_or(0, |count| count.load(SeqCst));
        slots.iter().map(count).fold(0, u64::wrapping_add)
    }
}

fn slot(what: Changed<'_>) -> u32 {
    let (kind, name) = match what {
        Changed::Everything => return EVERYTHING,
        Changed::Key(key) => (0u8, key),
        Changed::Tag(name) => (1, name),
    };
    // The same in every worker.
    let mut hasher = DefaultHasher::new();
    (kind, name).hash(&mut hasher);
    (FIRST + hasher.finish() % SLOTS) as u32
}

type Slots = SmallVec<[u32; 4]>;

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
    flight: Option<Rc<InFlightRead<B>>>,
}

/// A read on its way whose answer others wait for. Gone with its [`NearRead`], and the bells with it.
#[derive(Debug)]
pub struct InFlightRead<B> {
    until: u64,
    slots: Slots,
    sum: u64,
    bells: RefCell<Vec<B>>,
}

impl<B> InFlightRead<B> {
    /// Waits for the answer: `bell` is among those that [`NearValues::ended`] gives back.
    pub fn join(&self, bell: B) {
        self.bells.borrow_mut().push(bell);
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
    readings: u64,
    /// How many values were forgotten before their time.
    crowded: u64,
    keys: HashMap<Rc<[u8]>, Entry>,
    /// The oldest first, by the number of the reading; one whose entry has another number by now is to be skipped.
    order: VecDeque<(u64, Rc<[u8]>)>,
    flights: HashMap<Rc<[u8]>, Weak<InFlightRead<B>>>,
}

#[derive(Debug)]
enum Entry {
    Kept(Rc<NearValue>),
    /// There was nothing to keep, says the reading with this number: until that moment nobody waits for another's answer, which
    /// would likely be none for them.
    Bare {
        reading: u64,
        until: u64,
    },
}

impl Entry {
    fn reading(&self) -> u64 {
        match self {
            Entry::Kept(kept) => kept.reading,
            Entry::Bare { reading, .. } => *reading,
        }
    }

    fn until(&self) -> u64 {
        match self {
            Entry::Kept(kept) => kept.until,
            Entry::Bare { until, .. } => *until,
        }
    }

    /// Bytes of its value.
    fn size(&self) -> usize {
        match self {
            Entry::Kept(kept) => kept.hit.payload.len(),
            Entry::Bare { .. } => 0,
        }
    }
}

fn cost(key: &[u8], value: usize) -> usize {
    ENTRY + key.len() + value
}

impl<B> NearValues<B> {
    /// One that keeps so many bytes at most.
    pub fn new(budget: usize) -> NearValues<B> {
        NearValues {
            budget,
            bytes: 0,
            readings: 0,
            crowded: 0,
            keys: HashMap::new(),
            order: VecDeque::new(),
            flights: HashMap::new(),
        }
    }

    /// How many bytes it keeps.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many values it had to forget before their time, for want of memory, since this was asked last.
    pub fn take_crowded(&mut self) -> u64 {
        std::mem::take(&mut self.crowded)
    }

    /// The number of the last reading: whoever asks at this moment has asked before all later ones.
    pub fn moment(&self) -> u64 {
        self.readings
    }

    /// What a request of this moment is to do.
    pub fn look(&mut self, wanted: &NearRequest<'_>, now: Now, changes: &Changes) -> NearLookup<B> {
        let NearRequest { key, near, .. } = *wanted;
        match self.keys.get(key) {
            Some(Entry::Kept(kept)) if kept.is_active(now, changes) => {
                return NearLookup::Hit(Rc::clone(kept));
            }
            Some(Entry::Bare { until, .. }) if now.mono < *until => {
                return NearLookup::Read(self.alone(wanted, now, changes));
            }
            _ => {}
        }
        if let Some(flight) = self.flights.get(key).and_then(Weak::upgrade)
            && now.mono < flight.until
            && changes.sum(&flight.slots) == flight.sum
            && flight.bells.borrow().len() < MAX_ABOARD
        {
            return NearLookup::Join(flight);
        }
        let mut reading = self.alone(wanted, now, changes);
        let NearRead { sent, ref slots, sum, .. } = reading;
        let (slots, until) = (slots.clone(), sent + near.min(MAX_JOINED_MS));
        let flight = Rc::new(InFlightRead { until, slots, sum, bells: RefCell::default() });
        self.flights.insert(Rc::from(key), Rc::downgrade(&flight));
        reading.flight = Some(flight);
        NearLookup::Read(reading)
    }

    /// Begins a read that nobody else waits for.
    pub fn alone(&mut self, wanted: &NearRequest<'_>, now: Now, changes: &Changes) -> NearRead<B> {
        let NearRequest { key, tags, .. } = *wanted;
        self.readings += 1;
        let tags = tags.iter().map(|tag| slot(Changed::Tag(tag)));
        let slots: Slots = [EVERYTHING, slot(Changed::Key(key))].into_iter().chain(tags).collect();
        let sum = changes.sum(&slots);
        let bumps = changes.sum(&[ANY_TAG]);
        NearRead { number: self.readings, sent: now.mono, slots, sum, bumps, flight: None }
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
        let NearRead { number, sent, slots, sum, bumps, flight } = reading;
        let bells = flight.map(|flight| {
            if self.flights.get(key).is_some_and(|newest| std::ptr::eq(newest.as_ptr(), &*flight)) {
                self.flights.remove(key);
            }
            flight.bells.take()
        });
        let landing = match end {
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
                if !kept.learn(&hit.header, tags, bumps, changes) {
                    kept.until = 0;
                }
                let kept = Rc::new(kept);
                self.keep(key, Entry::Kept(Rc::clone(&kept)), now);
                SharedResult::Fresh(kept)
            }
            Some(ReadEnd::Failed(failure)) => SharedResult::Failed(*failure),
            // Whoever refreshes it early knows nothing against what is kept.
            Some(ReadEnd::Won { early: true, .. }) => SharedResult::Nothing,
            Some(ReadEnd::Won { .. } | ReadEnd::Stale(_) | ReadEnd::Missed { .. }) | None => {
                self.keep(key, Entry::Bare { reading: number, until: sent + near }, now);
                SharedResult::Nothing
            }
        };
        (bells.unwrap_or_default(), landing)
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
                self.crowded += 1;
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
            let is_its = entry.is_some();
            self.crowded += u64::from(!over);
            if let Some((_, key)) = self.order.pop_front()
                && is_its
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
        self.flights.retain(|_, flight| flight.strong_count() > 0);
        self.make_room(now);
    }
}

impl NearValue {
    /// It depends on the tags that its value came with too. Nobody knew them when it was read, so what was counted of them by
    /// then is known only if no tag at all has been bumped since. False: it cannot be known.
    fn learn(&mut self, header: &[u8], tags: &[TagName], bumps: u64, changes: &Changes) -> bool {
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
