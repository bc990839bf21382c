//! Who builds a key whose server gives no answer, and what readers get meanwhile (decision 0012).
//!
//! Without an answer there is no stub to decide who builds, so this table decides for the clients of one sidecar. The first
//! reader receives the miss, the others wait, and are served what the builder's `set` carries. It is then kept for a short
//! time. Nothing that is kept is ever served to a read that a server has answered.
//!
//! A server answers again while a client still builds, or a client has begun before the server failed. Neither may lead to a
//! second build: the reader that a server answers with a miss waits for the first build too ([`Outages::await_build`]), and the
//! first reader without an answer waits for one that has begun before ([`Outages::give_way`]).
//!
//! Under a rule that serves nothing stale, a value is handed only to those who waited before its build began: it is as new as
//! their reads. The others wait for the next build, and nothing is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::envelope::TagName;
use super::inputs::Now;
use super::leases::{KnownMiss, MAX_WAITERS_PER_KEY, NO_WAIT_MS, Owner, Writer};
use super::policy::{Policy, millis};
use waiters::Waiters;

/// The most keys in the table. Readers of further keys receive misses at once.
pub const MAX_OUTAGE_KEYS: usize = 16_384;
/// The most builders of one key that are remembered. The `set` of a further one is not served to others.
const MAX_BUILDERS: usize = 64;
/// A value that is larger than this fraction of the memory is handed to waiting readers, and not kept.
const LARGEST_PART: usize = 4;
/// Memory for a value besides its bytes and its key.
const VALUE_BYTES: usize = 256;
/// A read that finds the table full removes at most this many keys that are over.
const MAX_REMOVED: usize = 8;

/// A value built while no server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutageValue {
    /// Value that a client has built.
    pub payload: Bytes,
    /// Client flags of the value.
    pub flags: u32,
}

/// How a read goes on whose server gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutageRead {
    /// Serve this value, as stale.
    Serve(OutageValue),
    /// The client receives a miss: it is the only builder that the table knows. See [`Outages::give_way`].
    Miss,
    /// The client receives a miss although another one builds, because it must not wait.
    SecondMiss,
    /// Another client builds the value.
    Wait {
        /// For [`Outages::stop_waiting`].
        waiter: u64,
        /// When to ask [`Outages::let_through`], on the monotonic clock in ms.
        let_through_at: u64,
    },
    /// The client receives a miss, because too many wait.
    Full,
}

/// What a reader asks for.
#[derive(Debug, Clone, Copy)]
pub struct OutageRequest<'a> {
    /// Key whose server gives no answer.
    pub key: &'a [u8],
    /// Names of the key's tags.
    pub tags: &'a [TagName],
    /// Connection that asks.
    pub owner: Owner,
    /// Whether it may wait: see [`Inputs::may_wait`](super::Inputs::may_wait).
    pub may_wait: bool,
    /// The number under which this read has waited before.
    pub waited: Option<u64>,
}

/// The readers that a `set` ends the wait of.
#[derive(Debug, PartialEq, Eq)]
pub struct Awaited<W> {
    /// They are handed the value.
    pub served: Vec<W>,
    /// They began to wait after its build had begun, and it may be too old for them: the first of them builds.
    pub freed: Vec<W>,
}

/// A key, which the table and its indexes share.
type SharedKey = Arc<[u8]>;

/// The keys without a server that clients of this sidecar build or wait for. `W` wakes a waiting reader.
///
/// What a request costs does not depend on how many keys there are: `due` finds what is over, `by_owner` what a connection
/// builds, and `by_tag` what a bump affects.
#[derive(Debug)]
pub struct Outages<W> {
    keys: BTreeMap<SharedKey, KeyState<W>>,
    by_owner: BTreeMap<Owner, BTreeSet<SharedKey>>,
    by_tag: BTreeMap<TagName, BTreeSet<SharedKey>>,
    /// When something of each key is over next, see [`KeyState::next_due`].
    due: BTreeSet<(u64, SharedKey)>,
    /// The keys whose values are kept, by the number of the value: the oldest first.
    oldest: BTreeMap<u64, SharedKey>,
    memory: usize,
    bytes: usize,
    evicted: u64,
    next: u64,
}

#[derive(Debug)]
struct KeyState<W> {
    key: SharedKey,
    tags: SmallVec<[TagName; 2]>,
    builders: SmallVec<[Builder; 1]>,
    waiters: Waiters<W>,
    kept: Option<Kept>,
    /// From when a waiting reader may be let through.
    let_through_at: u64,
    /// How many builders in a row have gone without a value. From two on, no reader waits.
    unfilled: u8,
    /// Until when `unfilled` counts.
    remember_until: u64,
    /// Its place in [`Outages::due`]; `None` if it has none.
    due: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Builder {
    owner: Owner,
    /// Whoever waits under a smaller number has waited since before its build began.
    since: u64,
    /// When its `set` is too late.
    until: u64,
    /// Nobody waits for it any more once it has had `cold_wait` and another reader was let through.
    is_overdue: bool,
}

#[derive(Debug)]
struct Kept {
    value: OutageValue,
    until: u64,
    number: u64,
    bytes: usize,
}

impl<W> KeyState<W> {
    fn new(key: SharedKey, tags: &[TagName]) -> KeyState<W> {
        KeyState {
            key,
            tags: SmallVec::from(tags),
            builders: SmallVec::new(),
            waiters: Waiters::default(),
            kept: None,
            let_through_at: 0,
            unfilled: 0,
            remember_until: 0,
            due: None,
        }
    }

    /// The builders that readers wait for.
    fn awaited(&self, now: u64) -> impl Iterator<Item = &Builder> {
        self.builders.iter().filter(move |builder| !builder.is_overdue && now < builder.until)
    }

    /// Whether a read must wait because another client builds the value.
    fn must_wait(&self, request: &OutageRequest<'_>, now: u64, policy: &Policy) -> bool {
        let mut current = self.builders.iter().filter(|builder| now < builder.until);
        let builds = current.any(|builder| builder.owner == request.owner);
        let often_unfilled = self.unfilled >= 2 && now < self.remember_until;
        self.awaited(now).next().is_some()
            && request.may_wait
            && !builds
            && !often_unfilled
            && !policy.cold_wait.is_zero()
    }

    fn wait(&mut self, number: u64, owner: Owner, waker: W) -> OutageRead {
        if self.waiters.len() >= MAX_WAITERS_PER_KEY {
            return OutageRead::Full;
        }
        self.waiters.insert(number, owner, waker);
        OutageRead::Wait { waiter: number, let_through_at: self.let_through_at }
    }

    fn is_idle(&self, now: u64) -> bool {
        let remembers = self.unfilled > 0 && self.remember_until > now;
        self.builders.is_empty() && self.waiters.is_empty() && self.kept.is_none() && !remembers
    }
}

impl<W> Outages<W> {
    /// From now on, it keeps up to `memory` bytes of values. What it has already is evicted when the next value is kept.
    pub fn set_memory(&mut self, memory: usize) {
        self.memory = memory;
    }

    /// A table that keeps up to `memory` bytes of values.
    pub fn new(memory: usize) -> Outages<W> {
        Outages {
            keys: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            by_tag: BTreeMap::new(),
            due: BTreeSet::new(),
            oldest: BTreeMap::new(),
            memory,
            bytes: 0,
            evicted: 0,
            next: 0,
        }
    }

    /// The number of keys in the table.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of values that are kept, and the bytes that they use.
    pub fn kept(&self) -> (usize, usize) {
        (self.oldest.len(), self.bytes)
    }

    /// How many values have been removed early for lack of room since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// A read whose server gave no answer. `waiter` makes the wakeup of a reader that waits.
    pub fn read(
        &mut self,
        request: OutageRequest<'_>,
        now: Now,
        policy: &Policy,
        waiter: impl FnOnce() -> W,
    ) -> OutageRead {
        let OutageRequest { key, tags, owner, waited, .. } = request;
        let now = now.mono;
        if !self.keys.contains_key(key) {
            if self.keys.len() >= MAX_OUTAGE_KEYS {
                self.remove_due(now, MAX_REMOVED);
                if self.keys.len() >= MAX_OUTAGE_KEYS {
                    return OutageRead::Full;
                }
            }
            let key = SharedKey::from(key);
            self.keys.insert(Arc::clone(&key), KeyState::new(Arc::clone(&key), &[]));
            self.add_tags(&key, tags);
        }
        let id = waited.unwrap_or_else(|| self.number());
        let Some(state) = self.keys.get_mut(key) else { return OutageRead::Full };
        if let Some(kept) = state.kept.as_ref().filter(|kept| now < kept.until) {
            return OutageRead::Serve(kept.value.clone());
        }
        if state.must_wait(&request, now, policy) {
            return state.wait(id, owner, waiter());
        }
        let is_first = state.awaited(now).next().is_none();
        self.begin_build(key, owner, now, policy);
        if is_first { OutageRead::Miss } else { OutageRead::SecondMiss }
    }

    /// A waiting reader asks to build the value too: of all that wait for the key, one per `cold_wait` may.
    ///
    /// # Errors
    /// Another one was let through. The error is when to ask again, on the monotonic clock in ms.
    pub fn let_through(
        &mut self,
        key: &[u8],
        (owner, waiter): (Owner, u64),
        now: Now,
        policy: &Policy,
    ) -> Result<(), u64> {
        let again = self.keys.get(key).map_or(0, |state| state.let_through_at);
        if now.mono < again {
            return Err(again);
        }
        let builders = self.keys.get_mut(key).into_iter().flat_map(|state| &mut state.builders);
        builders.for_each(|builder| builder.is_overdue = true);
        self.give_up_waiting(key, (owner, waiter), now, policy);
        Ok(())
    }

    /// A waiting reader receives a miss, and becomes a builder.
    pub fn give_up_waiting(&mut self, key: &[u8], (owner, waiter): (Owner, u64), now: Now, policy: &Policy) {
        self.stop_waiting(key, waiter);
        self.begin_build(key, owner, now.mono, policy);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn begin_build(&mut self, key: &[u8], owner: Owner, now: u64, policy: &Policy) {
        let since = self.number();
        self.end_late_builds(key, now);
        let Some(state) = self.keys.get_mut(key) else { return };
        state.let_through_at = now + millis(policy.cold_wait);
        let until = now + millis(policy.max_rebuild);
        if let Some(builder) = state.builders.iter_mut().find(|builder| builder.owner == owner) {
            // Its `set` may still be that of the earlier build, so `since` remains.
            (builder.until, builder.is_overdue) = (until, false);
        } else if state.builders.len() < MAX_BUILDERS {
            state.builders.push(Builder { owner, since, until, is_overdue: false });
            self.by_owner.entry(owner).or_default().insert(Arc::clone(&state.key));
        }
        self.reschedule(key);
    }

    /// A reader no longer waits.
    pub fn stop_waiting(&mut self, key: &[u8], waiter: u64) {
        if let Some(state) = self.keys.get_mut(key)
            && state.waiters.remove(waiter)
            && state.waiters.is_empty()
        {
            self.reschedule(key);
        }
    }

    /// `writer` stores this value. If it builds the key, the value is kept for `outage_ttl` if the rule may serve stale values,
    /// and the waiting readers are returned. Otherwise `None`: [`Outages::changed`] must be called. A `set` of a client
    /// with a pool of connections may end the miss of another connection, if its own has had none.
    pub fn built(
        &mut self,
        key: &[u8],
        writer: Writer,
        value: &OutageValue,
        now: Now,
        policy: &Policy,
    ) -> Option<Awaited<W>> {
        let Writer { owner, known_miss, pooled } = writer;
        let state = self.keys.get_mut(key)?;
        let own = state.builders.iter().position(|builder| builder.owner == owner);
        // A connection with a miss of its own builds for that, although it may have been invalidated: not for a later one of a peer.
        let may_be_a_peers = pooled && known_miss == KnownMiss::No;
        let peer =
            || state.builders.iter().position(|builder| may_be_a_peers && builder.owner.peers == owner.peers);
        let builder = state.builders[own.or_else(peer)?];
        if pooled {
            // The next `set` of the same client may be that of this build.
            let peers = state.builders.iter_mut().filter(|other| other.owner.peers == builder.owner.peers);
            peers.for_each(|other| other.since = other.since.min(builder.since));
        }
        self.end_build(key, builder.owner);
        let state = self.keys.get_mut(key)?;
        let (served, freed) = state
            .waiters
            .take()
            .partition::<Vec<_>, _>(|(number, _)| policy.serves_stale() || *number < builder.since);
        if now.mono < builder.until {
            state.unfilled = 0;
            if policy.serves_stale() {
                self.keep(key, value, now.mono, policy);
            }
        }
        self.remove_or_reschedule(key, now.mono);
        Some(Awaited { served: wakers(served), freed: wakers(freed) })
    }

    fn keep(&mut self, key: &[u8], value: &OutageValue, now: u64, policy: &Policy) {
        self.forget_value(key);
        let bytes = value.payload.len() + 2 * key.len() + VALUE_BYTES;
        if policy.outage_ttl.is_zero() || bytes > self.memory / LARGEST_PART {
            return;
        }
        while self.bytes + bytes > self.memory {
            let Some((_, oldest)) = self.oldest.pop_first() else { return };
            self.forget_value(&oldest);
            self.remove_or_reschedule(&oldest, now);
            self.evicted += 1;
        }
        let number = self.number();
        let Some(state) = self.keys.get_mut(key) else { return };
        let until = now + millis(policy.outage_ttl);
        // The value may be a slice of a larger buffer, which must not be kept with it.
        let value = OutageValue { payload: Bytes::copy_from_slice(&value.payload), flags: value.flags };
        state.kept = Some(Kept { value, until, number, bytes });
        self.oldest.insert(number, Arc::clone(&state.key));
        self.bytes += bytes;
    }

    fn forget_value(&mut self, key: &[u8]) {
        if let Some(kept) = self.keys.get_mut(key).and_then(|state| state.kept.take()) {
            self.bytes -= kept.bytes;
            self.oldest.remove(&kept.number);
        }
    }

    /// The key was invalidated or written. What is kept is removed, and what is being built is out of date. Returns the waiting
    /// readers: the first of them builds.
    pub fn changed(&mut self, key: &[u8]) -> Vec<W> {
        self.forget_value(key);
        self.remove(key).map(|mut state| wakers(state.waiters.take())).unwrap_or_default()
    }

    /// The same for all keys that have this tag.
    pub fn bumped(&mut self, tag: &TagName) -> Vec<W> {
        let keys = self.by_tag.remove(tag).unwrap_or_default();
        keys.iter().flat_map(|key| self.changed(key)).collect()
    }

    /// The same for all keys.
    pub fn flushed(&mut self) -> Vec<W> {
        let keys: Vec<SharedKey> = self.keys.keys().cloned().collect();
        keys.iter().flat_map(|key| self.changed(key)).collect()
    }

    /// A value that is being stored names these further tags.
    pub fn add_tags(&mut self, key: &[u8], tags: &[TagName]) {
        let Some(state) = self.keys.get_mut(key) else { return };
        for tag in tags {
            if !state.tags.contains(tag) {
                state.tags.push(tag.clone());
                self.by_tag.entry(tag.clone()).or_default().insert(Arc::clone(&state.key));
            }
        }
    }

    /// Whether the connection builds a value.
    pub fn builds(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// A connection has been closed. Returns the readers that waited for its values: the first of each key builds.
    pub fn disconnect(&mut self, owner: Owner, now: Now) -> Vec<W> {
        let mut woken = Vec::new();
        for key in self.by_owner.remove(&owner).unwrap_or_default() {
            let Some(state) = self.keys.get_mut(&key) else { continue };
            state.builders.retain(|builder| builder.owner != owner);
            let before = if now.mono < state.remember_until { state.unfilled } else { 0 };
            state.unfilled = before.saturating_add(1);
            state.remember_until = now.mono + NO_WAIT_MS;
            if state.awaited(now.mono).next().is_none() {
                woken.extend(wakers(state.waiters.take()));
            }
            self.reschedule(&key);
        }
        woken
    }

    fn end_build(&mut self, key: &[u8], owner: Owner) {
        if let Some(state) = self.keys.get_mut(key) {
            state.builders.retain(|builder| builder.owner != owner);
        }
        self.forget_owner(key, owner);
    }

    fn forget_owner(&mut self, key: &[u8], owner: Owner) {
        if let Some(keys) = self.by_owner.get_mut(&owner) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }
}

fn wakers<W>(waiters: impl IntoIterator<Item = (u64, W)>) -> Vec<W> {
    waiters.into_iter().map(|(_, waker)| waker).collect()
}

mod expiry;
mod look;
mod overlap;
mod waiters;

pub use look::OutageLook;

#[cfg(test)]
mod tests;
