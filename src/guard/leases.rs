//! Who in this process may rebuild a key, and whose `set` is whose.
//!
//! Every miss that a client is told leaves a *ticket*: what was seen at that moment. A later `set` of the same client is
//! stored only over exactly that, and so cannot undo an invalidation that came between. A ticket that carries the right to
//! rebuild is a *lease*: it is renewed while its client's connection lives, and released when that closes.
//!
//! The table has bounds (`bounds.rs`). A ticket that is forgotten breaks no promise: each connection remembers of which keys it was
//! told a miss ([`KnownMiss`]), and a `set` whose miss is known and whose ticket is not is dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use smallvec::SmallVec;

use super::command::{Cas, Commands, ItemRef, Now, delete};
use super::stub::{Stub, StubId};
use super::tags::Versions;
use super::{Inputs, Policy, TagName, TagNames};
use crate::metrics::LeaseEnd;

mod attribution;
mod limits;
mod pool_detection;
mod renewal;
mod waiters;

pub use attribution::{Attribution, KnownMiss, Observed, StoreCondition, Writer};
pub use limits::{MAX_LEASES, MAX_LEASES_PER_OWNER};
pub use pool_detection::{PairedMiss, PoolDetection};
pub use renewal::Due;
pub use waiters::{Admission, PollRate, PollResult};

/// What was seen when a client was told a miss.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MissToken {
    /// The CAS of what stood there; `None`: nothing is known, so nothing may be stored on the strength of it.
    pub base: Option<Cas>,
    /// Which stub it was, if it was one: renewals give a stub another CAS. Where a value stood that nobody is to see: by which number
    /// all know it again ([`StubId::of_unseen`]).
    pub stub: Option<StubId>,
    /// The base is a value that was stored since the miss, over the very stub that was seen.
    pub filled: bool,
    /// The lock's CAS, when the right to rebuild is a lock and not the stub itself.
    pub lock: Option<Cas>,
    /// Versions of the rule's tags, and behind them of those in `learnt`. The fill is sealed with these, so that a bump that
    /// lands during the rebuild still kills it.
    pub versions: Versions,
    /// The tags that the old value had beyond those of the rule.
    pub learnt: TagNames,
    /// The moment.
    pub at: Now,
    /// Until when (monotonic ms) the stale value is sure to stand. After it another client would find nothing there and
    /// begin a second rebuild, so before it the lease puts a stub in its place.
    pub vanishes: Option<u64>,
}

impl MissToken {
    /// What is seen at the scene.
    pub fn seen(base: Option<Cas>, versions: Versions, scene: &Inputs<'_>) -> MissToken {
        let learnt = scene.tags.iter().take(versions.len()).skip(scene.own().len()).cloned().collect();
        MissToken { base, versions, learnt, ..MissToken::nothing(scene.now) }
    }

    /// The same, where a stub stood.
    pub(super) fn of_stub(base: Cas, stub: StubId, versions: Versions, scene: &Inputs<'_>) -> MissToken {
        MissToken { stub: Some(stub), ..MissToken::seen(Some(base), versions, scene) }
    }

    /// No server answered.
    pub fn nothing(at: Now) -> MissToken {
        let (versions, learnt) = (Versions::new(), TagNames::new());
        let (base, stub, lock, vanishes) = (None, None, None, None);
        MissToken { base, stub, filled: false, lock, versions, learnt, at, vanishes }
    }

    /// Of a lease whose right is a stub.
    fn stub_id(&self) -> Option<StubId> {
        self.stub.or_else(|| Some(StubId::of(self.base?.number)))
    }

    /// What gives the lease back that it is.
    pub fn release(&self, policy: &Policy) -> Commands {
        self.release_within(millis(policy.max_rebuild))
    }

    /// The lock is deleted if it is still this one. A stub is marked as free for whoever reads it next, and stays for as long as anybody
    /// who was told a miss over it may build: so they can tell that nothing has been stored or deleted since.
    fn release_within(&self, max_rebuild: u64) -> Commands {
        if self.lock.is_some() {
            return give_back_lock(self);
        }
        let seconds = u32::try_from(max_rebuild.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        let stub = self.stub_id().map(|id| Stub { id, age: 0, is_free: true });
        stub.map(|stub| stub.ask(self.base, seconds)).into_iter().collect()
    }

    /// What may be stored over on the strength of it.
    pub(super) fn over(&self) -> Observed {
        Observed { cas: self.base.unwrap_or(Cas::NONE), stub: self.stub, versions: self.versions.clone() }
    }
}

/// A client's connection, for as long as the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Its number.
    pub connection: u64,
    /// Which connections may belong to one client with a pool: those with the same number.
    pub peers: u64,
}

impl From<u64> for Owner {
    fn from(connection: u64) -> Self {
        Owner { connection, peers: 0 }
    }
}

/// One ticket, for as long as the process lives.
pub type MissTokenId = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// The right to rebuild. `renewing`: a renewal is on its way. `orphan`: its client left meanwhile.
    Lease { renewing: bool, orphan: bool },
    /// A miss without that right.
    Seen,
    /// Whoever builds it builds in vain, for it was invalidated through this sidecar: the `set` is dropped. `by`: whose delete that was.
    Doomed { by: Owner },
    /// A miss whose `set` came on another connection, or so it seemed: its own client may come yet, and must not pass for
    /// one that was told no miss. `doomed`: that `set` is dropped.
    Spent { doomed: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    id: MissTokenId,
    owner: Owner,
    kind: Kind,
    ticket: MissToken,
    /// The CAS number that the client may have been shown with its miss; renewals move the ticket's.
    shown: Option<u64>,
    /// The renewal on its way puts a stub in the stale value's place.
    clearing: bool,
    /// How long its rule lets a rebuild take, in ms.
    max_rebuild: u64,
    /// A `set` of another connection that could be its fill has been counted.
    paired: bool,
}

impl Held {
    fn is_lease(&self) -> bool {
        matches!(self.kind, Kind::Lease { .. })
    }

    fn release(&self) -> Commands {
        self.ticket.release_within(self.max_rebuild)
    }

    /// When (monotonic ms) it is too late to be filled.
    fn ends(&self) -> u64 {
        self.ticket.at.mono.saturating_add(self.max_rebuild)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct KeyState<W> {
    tickets: SmallVec<[Held; 1]>,
    waiters: Vec<(u64, W)>,
    /// Fills that wait for the renewal of their lease to end.
    fills: Vec<W>,
    /// Somebody asks the server now and then whether the key has changed.
    polled: bool,
    /// How often in a row it was claimed and not filled; from twice on, nobody waits for it.
    unfilled: u8,
    /// Until when (monotonic ms) that is remembered.
    remember_until: u64,
}

impl<W> Default for KeyState<W> {
    fn default() -> Self {
        KeyState {
            tickets: SmallVec::new(),
            waiters: Vec::new(),
            fills: Vec::new(),
            polled: false,
            unfilled: 0,
            remember_until: 0,
        }
    }
}

/// What a fresh hit means for the miss that its reader was told before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterHit {
    /// Its lease is to refresh this very value: it goes on.
    Refreshes,
    /// The miss is over, and so is its lease, if it was one: that is to be given back.
    Over(Vec<Ended>),
}

/// A lease that ended though its client did not end it, and what gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its key.
    pub key: Box<[u8]>,
    /// How it ended.
    pub end: LeaseEnd,
    /// One round to the key's server.
    pub asks: Commands,
}

/// The table. `W` is what wakes a waiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leases<W> {
    keys: BTreeMap<Box<[u8]>, KeyState<W>>,
    owners: limits::PerOwner,
    forgotten: u64,
    next: u64,
}

impl<W> Default for Leases<W> {
    fn default() -> Self {
        Leases::new(usize::MAX)
    }
}

impl<W> Leases<W> {
    /// A table whose tickets may take so many bytes.
    pub fn new(max_bytes: usize) -> Leases<W> {
        Leases { keys: BTreeMap::new(), owners: limits::PerOwner::new(max_bytes), forgotten: 0, next: 0 }
    }

    /// A lease for `owner`. An older one of this sidecar must be dead, or this one could not have been won: it is a miss like others from
    /// now on, whose `set` is stored if nothing has happened to the key since. It, and what makes room for the new one, is to be
    /// given back. `None`: the client holds nothing, because this one is the older.
    pub fn grant(
        &mut self,
        key: &[u8],
        owner: Owner,
        ticket: MissToken,
        policy: &Policy,
    ) -> (Option<MissTokenId>, Vec<Ended>) {
        // A server's CAS numbers only grow: of two wins the higher one came later, though it may be heard of first.
        let won = |ticket: &MissToken| ticket.lock.or(ticket.base).map(|cas| (cas.epoch, cas.number));
        let is_later = |held: &Held| held.is_lease() && won(&held.ticket) > won(&ticket);
        if self.keys.get(key).is_some_and(|state| state.tickets.iter().any(is_later)) {
            return (None, self.record_miss(key, owner, ticket, policy));
        }
        let mut ended = Vec::new();
        let state = self.keys.get_mut(key);
        for held in state.into_iter().flat_map(|state| &mut state.tickets) {
            if held.is_lease() {
                held.kind = Kind::Seen;
                self.owners.leases_less(held.owner, held.id);
                let asks = held.release();
                ended.push(Ended { key: key.into(), end: LeaseEnd::Superseded, asks });
            }
        }
        let kind = Kind::Lease { renewing: false, orphan: false };
        let id = self.insert(key, owner, kind, ticket, millis(policy.max_rebuild));
        self.make_room(&mut ended);
        (Some(id), ended)
    }

    /// A miss without the right to rebuild. A lease of the same owner stays, unless something else stands there by now: whoever
    /// reads again what they are rebuilding has not given it up. What they build from now on is as new as this miss. Returns the leases
    /// that have ended: that one, or what made room.
    pub fn record_miss(
        &mut self,
        key: &[u8],
        owner: Owner,
        ticket: MissToken,
        policy: &Policy,
    ) -> Vec<Ended> {
        let mut ended = Vec::new();
        if let Some(held) = self.own(key, owner).filter(|held| held.is_lease()) {
            let same_stub = ticket.stub.is_some() && ticket.stub == held.ticket.stub;
            if ticket.base.is_none() {
                return ended;
            }
            if same_stub || ticket.base == held.ticket.base {
                let MissToken { versions, learnt, at: Now { wall, .. }, .. } = ticket;
                self.amend(key, owner, |held| {
                    (held.versions, held.learnt, held.at.wall) = (versions, learnt, wall);
                });
                return ended;
            }
            ended.push(Ended { key: key.into(), end: LeaseEnd::Lost, asks: give_back_lock(&held.ticket) });
        }
        self.insert(key, owner, Kind::Seen, ticket, millis(policy.max_rebuild));
        self.make_room(&mut ended);
        ended
    }

    fn insert(
        &mut self,
        key: &[u8],
        owner: Owner,
        kind: Kind,
        ticket: MissToken,
        max_rebuild: u64,
    ) -> MissTokenId {
        self.remove_where(key, |held| held.owner == owner);
        self.next += 1;
        let id = self.next;
        let shown = match kind {
            // Nobody was shown what it knows.
            Kind::Spent { .. } => None,
            _ => ticket.base.map(|cas| cas.number),
        };
        let held = Held { id, owner, kind, ticket, shown, clearing: false, max_rebuild, paired: false };
        self.owners.add(key, &held);
        self.keys.entry(key.into()).or_default().tickets.push(held);
        id
    }

    fn remove_where(&mut self, key: &[u8], gone: impl Fn(&Held) -> bool) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let owners = &mut self.owners;
        state.tickets.retain(|held| {
            let gone = gone(held);
            if gone {
                owners.remove(key, held);
            }
            !gone
        });
    }

    /// Whether it holds a lease: it has been told that it is the one who builds, and neither filled nor given up.
    pub fn rebuilds(&self, connection: u64) -> bool {
        self.owners.leads(connection)
    }

    fn state(&mut self, key: &[u8]) -> Option<&mut KeyState<W>> {
        self.keys.get_mut(key)
    }

    fn own(&self, key: &[u8], owner: Owner) -> Option<&Held> {
        self.keys.get(key)?.tickets.iter().find(|held| held.owner == owner)
    }

    fn own_mut(&mut self, key: &[u8], owner: Owner) -> Option<&mut Held> {
        self.state(key)?.tickets.iter_mut().find(|held| held.owner == owner)
    }

    fn amend(&mut self, key: &[u8], owner: Owner, change: impl FnOnce(&mut MissToken)) {
        let tickets = self.keys.get_mut(key).into_iter().flat_map(|state| &mut state.tickets);
        if let Some(held) = tickets.into_iter().find(|held| held.owner == owner) {
            self.owners.amend(key, held, change);
        }
    }

    /// `owner` was served a fresh value, which has this CAS: what it sends from now on is no fill for a miss that it was told
    /// before.
    pub fn hit(&mut self, key: &[u8], owner: Owner, cas: u64) -> AfterHit {
        let held = self.own(key, owner);
        let lease = held.filter(|held| held.is_lease());
        if lease.is_some_and(|held| held.ticket.base.is_some_and(|base| base.number == cas)) {
            return AfterHit::Refreshes;
        }
        let ended = lease.map(|held| Ended {
            key: key.into(),
            end: LeaseEnd::Lost,
            asks: give_back_lock(&held.ticket),
        });
        self.remove_where(key, |held| held.owner == owner);
        self.tidy(key);
        AfterHit::Over(ended.into_iter().collect())
    }

    /// `owner` has created the value by counting: whatever it was told a miss for, what it sends from now on is new, as behind an
    /// `add`. Returns its lease, if it had one, and who waits; the lock of a stale value ends by itself.
    pub fn created(&mut self, key: &[u8], owner: Owner) -> (Option<MissToken>, Vec<W>) {
        let lease = self.own(key, owner).filter(|held| held.is_lease()).map(|held| held.ticket.clone());
        self.remove_where(key, |held| held.owner == owner);
        (lease, self.wake(key))
    }

    /// A fill was stored under `cas`, over what `ticket` saw. `spent`: whose ticket it was, if another connection's. Whoever else was
    /// told a miss over the same stub may store over this value: nothing has been invalidated between their miss and it, if they
    /// saw the same versions. Returns who waits.
    pub fn filled(&mut self, key: &[u8], cas: Cas, ticket: &MissToken, spent: Option<Owner>) -> Vec<W> {
        // Whoever has ended that miss itself meanwhile, or was told another, has nothing to do with it any more.
        let is_spent = |held: &&Held| matches!(held.kind, Kind::Spent { .. });
        if let Some(owner) = spent.filter(|owner| self.own(key, *owner).filter(is_spent).is_some()) {
            let ticket = MissToken { base: Some(cas), lock: None, filled: true, ..ticket.clone() };
            self.amend(key, owner, |held| *held = ticket);
        }
        if let Some(state) = self.keys.get_mut(key) {
            state.unfilled = 0;
            let same = |seen: &MissToken| {
                let epoch = |ticket: &MissToken| ticket.base.map(|base| base.epoch);
                !seen.filled
                    && seen.stub.is_some()
                    && seen.stub == ticket.stub
                    && seen.versions == ticket.versions
                    && epoch(seen) == epoch(ticket)
            };
            for held in state.tickets.iter_mut().filter(|held| held.kind == Kind::Seen && same(&held.ticket))
            {
                (held.ticket.base, held.ticket.filled) = (Some(cas), true);
            }
        }
        self.wake(key)
    }

    /// `owner` invalidates the key through this sidecar. Whoever else builds it builds in vain, and must not be mistaken for
    /// somebody who does not; `owner` itself gives up what it was building. Returns how many leases that ended.
    pub fn invalidate(&mut self, key: &[u8], owner: Owner) -> usize {
        let Some(state) = self.keys.get_mut(key) else { return 0 };
        let mut ended = 0;
        for held in &mut state.tickets {
            if held.is_lease() {
                ended += 1;
                self.owners.leases_less(held.owner, held.id);
            }
            held.kind = match held.kind {
                // Its set has most likely come; it must not cast doubt on what others store.
                Kind::Spent { .. } => Kind::Spent { doomed: true },
                _ => Kind::Doomed { by: owner },
            }
        }
        self.remove_where(key, |held| held.owner == owner);
        ended
    }

    /// `owner` empties all servers: it invalidates every key. Returns those of the leases that this ended.
    pub fn flush(&mut self, owner: Owner) -> Vec<Box<[u8]>> {
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.retain(|key| {
            let ended = self.invalidate(key, owner);
            self.tidy(key);
            ended > 0
        });
        keys
    }

    /// `owner` has bumped a tag, from one version to the next: what it stores from now on is newer than that, as behind a delete of its
    /// own. Where the tag had moved before, by somebody else, it stays as old as that. `tags` are those of a key's rule.
    pub fn record_bump<T: AsRef<[TagName]>>(
        &mut self,
        owner: Owner,
        tag: &TagName,
        (from, to): (u64, u64),
        tags: impl Fn(&[u8]) -> T,
    ) {
        for key in self.owners.keys_of(owner) {
            let Some(Held { ticket, .. }) = self.own_mut(&key, owner) else { continue };
            let own = tags(&key);
            let names = own.as_ref().iter().chain(&ticket.learnt);
            for (_, seen) in
                names.zip(&mut ticket.versions).filter(|(name, seen)| *name == tag && **seen == from)
            {
                *seen = to;
            }
        }
    }

    /// A client's connection has closed. Returns its leases, to be given back.
    pub fn disconnect(&mut self, owner: Owner) -> Vec<Ended> {
        let mut ended = Vec::new();
        for key in self.owners.keys_of(owner) {
            if let Some(Held { kind: Kind::Lease { renewing: true, orphan }, .. }) = self.own_mut(&key, owner)
            {
                *orphan = true;
                continue;
            }
            if let Some(held) = self.own(&key, owner).filter(|held| held.is_lease()) {
                ended.push(Ended { key: key.clone(), end: LeaseEnd::Disconnected, asks: held.release() });
            }
            self.remove_where(&key, |held| held.owner == owner);
            self.tidy(&key);
        }
        ended
    }

    /// Forgets what is older than anything may refer to. To be called now and then.
    pub fn sweep(&mut self, now: Now) {
        let Leases { keys, owners, .. } = self;
        keys.retain(|key, state| {
            state.tickets.retain(|held| {
                let keep = held.is_lease() || held.ends() > now.mono;
                if !keep {
                    owners.remove(key, held);
                }
                keep
            });
            let remembers = state.unfilled > 0 && state.remember_until > now.mono;
            let awaited = !state.waiters.is_empty() || !state.fills.is_empty() || state.polled;
            !state.tickets.is_empty() || awaited || remembers
        });
    }

    /// Whether this is a lease that has not ended.
    pub fn is_active(&self, key: &[u8], id: MissTokenId) -> bool {
        let mut held = self.keys.get(key).into_iter().flat_map(|state| &state.tickets);
        held.any(|held| held.id == id && held.is_lease())
    }

    /// Leases and waiters there are now.
    pub fn census(&self) -> (usize, usize) {
        (self.owners.leases(), self.keys.values().map(|state| state.waiters.len()).sum())
    }

    fn find(&mut self, key: &[u8], id: MissTokenId) -> Option<&mut Held> {
        self.state(key)?.tickets.iter_mut().find(|held| held.id == id)
    }

    fn tidy(&mut self, key: &[u8]) {
        let idle = self.keys.get(key).is_some_and(|state| {
            state.tickets.is_empty()
                && state.waiters.is_empty()
                && state.fills.is_empty()
                && !state.polled
                && state.unfilled == 0
        });
        if idle {
            self.keys.remove(key);
        }
    }
}

/// What gives back the lock of a lease whose value somebody else has stored.
fn give_back_lock(ticket: &MissToken) -> Commands {
    ticket.lock.map(|lock| delete(ItemRef::Lock, Some(lock))).into_iter().collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
