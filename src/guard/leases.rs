//! Who in this process may rebuild a key, who waits for it, and whose `set` is whose.
//!
//! Every miss that a client is told leaves a *ticket*: what was seen at that moment. A later `set` of the same client is
//! stored only over exactly that, and so cannot undo an invalidation that came between. A ticket that carries the right to
//! rebuild is a *lease*: it is renewed while its client's connection lives, and released when that closes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::ask::{Answer, Ask, Asks, At, Cas, Look, Now, What, delete};
use super::tags::Versions;
use super::{Policy, Scene, TagNames};

mod attribution;
mod renewal;

pub use attribution::{Attribution, Bound};
pub use renewal::Due;

/// What was seen when a client was told a miss.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The CAS of what stood there; `None`: nothing is known, so nothing may be stored on the strength of it.
    pub base: Option<Cas>,
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

impl Ticket {
    /// What is seen at the scene.
    pub fn seen(base: Option<Cas>, versions: Versions, scene: &Scene<'_>) -> Ticket {
        let learnt = scene.tags.iter().take(versions.len()).skip(scene.own().len()).cloned().collect();
        Ticket { base, lock: None, versions, learnt, at: scene.now, vanishes: None }
    }

    /// No server answered.
    pub fn nothing(at: Now) -> Ticket {
        let (versions, learnt) = (Versions::new(), TagNames::new());
        Ticket { base: None, lock: None, versions, learnt, at, vanishes: None }
    }
}

/// A client's connection, for as long as the process lives.
pub type Owner = u64;

/// One ticket, for as long as the process lives.
pub type TicketId = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// The right to rebuild. `renewing`: a renewal is on its way. `orphan`: its client left meanwhile.
    Lease { renewing: bool, orphan: bool },
    /// A miss without that right.
    Seen,
    /// A lease that ended before its client's `set` came: that `set` is dropped. `by`: whose delete ended it.
    Doomed { by: Option<Owner> },
    /// A lease whose `set` came on another connection, or so it seemed: its own client may come yet, and must not pass for
    /// one that was told no miss. `doomed`: that `set` is dropped.
    Spent { doomed: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    id: TicketId,
    owner: Owner,
    kind: Kind,
    ticket: Ticket,
    /// The CAS number that the client may have been shown with its miss; renewals move the ticket's.
    shown: Option<u64>,
    /// The renewal on its way puts a stub in the stale value's place.
    clearing: bool,
    forget_at: u64,
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

/// What becomes of a request to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It waits, under this number.
    Waits {
        /// For [`Leases::leave`].
        waiter: u64,
        /// Nobody polls yet: begin to.
        poll: Option<Pace>,
    },
    /// It would wait in vain.
    Refused,
    /// So many wait already that it may not.
    Full,
}

/// How soon somebody is to look at a key that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Another sidecar builds it, and tells nobody when it is done.
    Soon,
    /// The lease is here, and its end is heard of at once; but it may be lost, and the key built elsewhere, unnoticed.
    Seldom,
}

/// What a poller found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// The same stub or lock.
    Unchanged,
    /// A value.
    Filled,
    /// It was given up.
    Freed,
}

impl Polled {
    /// The two questions of each look.
    pub fn asks() -> Asks {
        let look = |at| Ask { at, what: What::Get(Look::default()) };
        smallvec![look(At::Item), look(At::Lock)]
    }

    /// What their answers say. `before`: the CAS of the item that was seen by the look before this one, and is to be given to
    /// the next.
    pub fn found(answers: &[Answer], before: &mut Option<u64>) -> Polled {
        let found = match answers {
            [Answer::Item(item), _] if item.size == 0 => Polled::Unchanged,
            [Answer::Item(_), Answer::Item(_)] | [Answer::Failed(_), _] => Polled::Unchanged,
            // The lock has gone, and left the value as it was.
            [Answer::Item(item), _] if *before == Some(item.cas.number) => Polled::Freed,
            [Answer::Item(_), _] => Polled::Filled,
            _ => Polled::Freed,
        };
        if let Some(Answer::Item(item)) = answers.first() {
            *before = Some(item.cas.number);
        }
        found
    }
}

/// The most tickets in one table; above it misses leave none, and no lease is granted.
const MAX_TICKETS: usize = 16 * 1024;
/// The most tickets of one key.
const MAX_TICKETS_PER_KEY: usize = 64;
/// The most waiters of one key.
const MAX_WAITERS_PER_KEY: usize = 4096;
/// For how long nobody waits for a key that was claimed and not filled twice in a row, in ms.
const HOPELESS_MS: u64 = 60_000;
/// The table. `W` is what wakes a waiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leases<W> {
    keys: BTreeMap<Box<[u8]>, KeyState<W>>,
    owned: BTreeMap<Owner, BTreeSet<Box<[u8]>>>,
    tickets: usize,
    next: u64,
}

impl<W> Default for Leases<W> {
    fn default() -> Self {
        Leases { keys: BTreeMap::new(), owned: BTreeMap::new(), tickets: 0, next: 0 }
    }
}

impl<W> Leases<W> {
    /// A lease for `owner`. An older one of this sidecar must be dead, or this one could not have been won: it is doomed, and
    /// for each such what gives back its lock is returned, which may stand yet. `None`: the client holds nothing, because this
    /// one is the older, or the table is full.
    pub fn grant(
        &mut self,
        key: &[u8],
        owner: Owner,
        ticket: Ticket,
        policy: &Policy,
    ) -> (Option<TicketId>, Vec<Asks>) {
        let kind = Kind::Lease { renewing: false, orphan: false };
        // A server's CAS numbers only grow: of two wins the higher one came later, though it may be heard of first.
        let won = |ticket: &Ticket| ticket.lock.or(ticket.base).map(|cas| (cas.epoch, cas.number));
        let is_later =
            |held: &Held| matches!(held.kind, Kind::Lease { .. }) && won(&held.ticket) > won(&ticket);
        if self.keys.get(key).is_some_and(|state| state.tickets.iter().any(is_later)) {
            self.saw(key, owner, ticket, policy);
            return (None, Vec::new());
        }
        let mut superseded = Vec::new();
        let state = self.keys.get_mut(key);
        for held in state.into_iter().flat_map(|state| &mut state.tickets) {
            if matches!(held.kind, Kind::Lease { .. }) {
                held.kind = Kind::Doomed { by: None };
                superseded.push(release(&held.ticket));
            }
        }
        (self.insert(key, owner, kind, ticket, winners_keep(policy)), superseded)
    }

    /// A miss without the right to rebuild. A lease of the same owner stays: whoever reads again what they are rebuilding has
    /// not given it up.
    pub fn saw(&mut self, key: &[u8], owner: Owner, ticket: Ticket, policy: &Policy) {
        let leads = |held: &Held| held.owner == owner && matches!(held.kind, Kind::Lease { .. });
        if self.keys.get(key).is_some_and(|state| state.tickets.iter().any(leads)) {
            return;
        }
        self.insert(key, owner, Kind::Seen, ticket, millis(policy.max_rebuild));
    }

    fn insert(
        &mut self,
        key: &[u8],
        owner: Owner,
        kind: Kind,
        ticket: Ticket,
        keep: u64,
    ) -> Option<TicketId> {
        self.remove_where(key, |held| held.owner == owner);
        if self.is_full() {
            return None;
        }
        self.next += 1;
        let id = self.next;
        let forget_at = ticket.at.mono.saturating_add(keep);
        let state = self.keys.entry(key.into()).or_default();
        if state.tickets.len() >= MAX_TICKETS_PER_KEY {
            let oldest = state.tickets.iter().find(|held| !matches!(held.kind, Kind::Lease { .. }))?.id;
            self.remove_where(key, |held| held.id == oldest);
        }
        let state = self.keys.entry(key.into()).or_default();
        let shown = match kind {
            // Nobody was shown what it knows.
            Kind::Spent { .. } => None,
            _ => ticket.base.map(|cas| cas.number),
        };
        state.tickets.push(Held { id, owner, kind, ticket, shown, clearing: false, forget_at });
        self.tickets += 1;
        self.owned.entry(owner).or_default().insert(key.into());
        Some(id)
    }

    fn remove_where(&mut self, key: &[u8], gone: impl Fn(&Held) -> bool) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let before = state.tickets.len();
        let owned = &mut self.owned;
        state.tickets.retain(|held| {
            let gone = gone(held);
            if gone && let Some(keys) = owned.get_mut(&held.owner) {
                keys.remove(key);
                if keys.is_empty() {
                    owned.remove(&held.owner);
                }
            }
            !gone
        });
        self.tickets -= before - state.tickets.len();
    }

    /// Whether it holds a lease: it has been told that it is the one who builds, and neither filled nor given up.
    pub fn rebuilds(&self, owner: Owner) -> bool {
        let keys = self.owned.get(&owner).into_iter().flatten();
        let mut held = keys.filter_map(|key| self.keys.get(key)).flat_map(|state| &state.tickets);
        held.any(|held| held.owner == owner && matches!(held.kind, Kind::Lease { .. }))
    }

    fn state(&mut self, key: &[u8]) -> Option<&mut KeyState<W>> {
        self.keys.get_mut(key)
    }

    /// Whether this connection was told a miss of the key that still counts.
    pub fn knows(&self, key: &[u8], owner: Owner) -> bool {
        let its = |held: &Held| held.owner == owner;
        self.keys.get(key).is_some_and(|state| state.tickets.iter().any(its))
    }

    /// `owner` was served a fresh value: what it sends from now on is no fill for a miss that it was told before. Its lease, if
    /// it has one, goes on.
    pub fn hit(&mut self, key: &[u8], owner: Owner) {
        self.remove_where(key, |held| held.owner == owner && !matches!(held.kind, Kind::Lease { .. }));
        self.tidy(key);
    }

    /// `owner` has created the value by counting: whatever it was told a miss for, what it sends from now on is new, as behind an
    /// `add`. But not if somebody else has invalidated the key meanwhile. Returns its lease, if it had one, and who waits; the
    /// lock of a stale value ends by itself.
    pub fn created(&mut self, key: &[u8], owner: Owner) -> (Option<Ticket>, Vec<W>) {
        let tickets = self.keys.get(key).map(|state| &state.tickets[..]).unwrap_or_default();
        let lease =
            tickets.iter().find(|held| held.owner == owner && matches!(held.kind, Kind::Lease { .. }));
        let lease = lease.map(|held| held.ticket.clone());
        self.remove_where(key, |held| {
            held.owner == owner && matches!(held.kind, Kind::Lease { .. } | Kind::Seen)
        });
        (lease, self.wake(key))
    }

    /// A fill was stored under `cas`. `spent`: whose lease it ended, if another connection's. Returns who waits.
    pub fn filled(
        &mut self,
        key: &[u8],
        cas: Cas,
        spent: Option<(Owner, Ticket)>,
        policy: &Policy,
    ) -> Vec<W> {
        let leads = |held: &Held| matches!(held.kind, Kind::Lease { .. });
        let tickets = self.keys.get(key).map(|state| &state.tickets[..]).unwrap_or_default();
        if let Some((owner, ticket)) = spent
            // It may have won again while the fill was on its way.
            && !tickets.iter().any(|held| held.owner == owner && leads(held))
        {
            let ticket = Ticket { base: Some(cas), lock: None, ..ticket };
            self.insert(key, owner, Kind::Spent { doomed: false }, ticket, winners_keep(policy));
        }
        if let Some(state) = self.state(key) {
            state.unfilled = 0;
        }
        self.wake(key)
    }

    /// A lease ended without a value. Returns who waits.
    pub fn unfilled(&mut self, key: &[u8], now: Now) -> Vec<W> {
        // Beyond the bound a key that nobody knows is not remembered; it has no waiters either.
        if self.keys.len() >= MAX_TICKETS && !self.keys.contains_key(key) {
            return Vec::new();
        }
        let state = self.keys.entry(key.into()).or_default();
        let before = if now.mono < state.remember_until { state.unfilled } else { 0 };
        state.unfilled = before.saturating_add(1);
        state.remember_until = now.mono + HOPELESS_MS;
        self.wake(key)
    }

    /// `owner` invalidates the key through this sidecar. Whoever else builds it builds in vain, and must not be mistaken for
    /// somebody who does not; `owner` itself gives up what it was building. Returns how many leases that ended.
    pub fn invalidate(&mut self, key: &[u8], owner: Owner) -> usize {
        let is_lease = |held: &Held| matches!(held.kind, Kind::Lease { .. });
        let Some(state) = self.state(key) else { return 0 };
        let ended = state.tickets.iter().filter(|held| is_lease(held)).count();
        for held in &mut state.tickets {
            held.kind = match held.kind {
                // Its set has most likely come; it must not cast doubt on what others store.
                Kind::Spent { .. } => Kind::Spent { doomed: true },
                _ => Kind::Doomed { by: Some(owner) },
            }
        }
        self.remove_where(key, |held| held.owner == owner);
        ended
    }

    /// Takes who waits for the key.
    pub fn wake(&mut self, key: &[u8]) -> Vec<W> {
        let Some(state) = self.state(key) else { return Vec::new() };
        let woken = std::mem::take(&mut state.waiters).into_iter().map(|(_, waiter)| waiter).collect();
        self.tidy(key);
        woken
    }

    /// A reader asks to wait for the key.
    pub fn wait(&mut self, key: &[u8], now: Now, policy: &Policy, waiter: W) -> Admission {
        self.next += 1;
        let id = self.next;
        let state = self.keys.entry(key.into()).or_default();
        let lease = state.tickets.iter().find(|held| matches!(held.kind, Kind::Lease { .. }));
        let too_old = lease
            .is_some_and(|held| now.mono - held.ticket.at.mono.min(now.mono) >= millis(policy.cold_wait));
        let hopeless = state.unfilled >= 2 && now.mono < state.remember_until;
        if too_old || hopeless {
            return Admission::Refused;
        }
        if state.waiters.len() >= MAX_WAITERS_PER_KEY {
            return Admission::Full;
        }
        let pace = if lease.is_some() { Pace::Seldom } else { Pace::Soon };
        let poll = (!state.polled).then_some(pace);
        state.polled = true;
        state.waiters.push((id, waiter));
        Admission::Waits { waiter: id, poll }
    }

    /// A fill waits until the renewal of its lease has ended: it is told by [`Leases::renewal_ended`].
    pub fn await_renewal(&mut self, key: &[u8], fill: W) {
        self.keys.entry(key.into()).or_default().fills.push(fill);
    }

    /// Takes the fills that wait for a renewal.
    pub fn renewal_ended(&mut self, key: &[u8]) -> Vec<W> {
        let fills = self.state(key).map(|state| std::mem::take(&mut state.fills)).unwrap_or_default();
        self.tidy(key);
        fills
    }

    /// A waiter has gone.
    pub fn leave(&mut self, key: &[u8], waiter: u64) {
        if let Some(state) = self.state(key) {
            state.waiters.retain(|(id, _)| *id != waiter);
        }
        self.tidy(key);
    }

    /// Whether anybody still waits for what a poller watches; if not, the poller ends.
    pub fn is_awaited(&mut self, key: &[u8]) -> bool {
        let Some(state) = self.state(key) else { return false };
        let awaited = !state.waiters.is_empty();
        state.polled &= awaited;
        if !awaited {
            self.tidy(key);
        }
        awaited
    }

    /// A poller has an answer. Returns whom to wake; unless it is unchanged, the poller ends.
    pub fn polled(&mut self, key: &[u8], found: Polled, now: Now) -> Vec<W> {
        if let Some(state) = self.state(key)
            && found != Polled::Unchanged
        {
            state.polled = false;
            // A lease that is here counts when it ends.
            let leased = state.tickets.iter().any(|held| matches!(held.kind, Kind::Lease { .. }));
            match found {
                Polled::Freed if !leased => return self.unfilled(key, now),
                Polled::Freed => {}
                _ => state.unfilled = 0,
            }
            return self.wake(key);
        }
        Vec::new()
    }

    /// A client's connection has closed. Returns what releases each of its leases, by key.
    pub fn disconnect(&mut self, owner: Owner) -> Vec<(Box<[u8]>, Asks)> {
        let mut released = Vec::new();
        for key in self.owned.remove(&owner).unwrap_or_default() {
            let Some(state) = self.keys.get_mut(&key) else { continue };
            let before = state.tickets.len();
            state.tickets.retain(|held| {
                let mine = held.owner == owner;
                match &mut held.kind {
                    Kind::Lease { renewing: true, orphan } if mine => {
                        *orphan = true;
                        true
                    }
                    Kind::Lease { .. } if mine => {
                        released.push((key.clone(), release(&held.ticket)));
                        false
                    }
                    _ => !mine,
                }
            });
            self.tickets -= before - state.tickets.len();
            self.tidy(&key);
        }
        released
    }

    /// Forgets what is older than anything may refer to. To be called now and then.
    pub fn sweep(&mut self, now: Now) {
        let Leases { keys, owned, tickets, .. } = self;
        keys.retain(|key, state| {
            state.tickets.retain(|held| {
                let keep = matches!(held.kind, Kind::Lease { .. }) || held.forget_at > now.mono;
                if !keep {
                    *tickets -= 1;
                    if let Some(keys) = owned.get_mut(&held.owner) {
                        keys.remove(key);
                        if keys.is_empty() {
                            owned.remove(&held.owner);
                        }
                    }
                }
                keep
            });
            let remembers = state.unfilled > 0 && state.remember_until > now.mono;
            let awaited = !state.waiters.is_empty() || !state.fills.is_empty() || state.polled;
            !state.tickets.is_empty() || awaited || remembers
        });
    }

    /// Whether this is a lease that has not ended.
    pub fn stands(&self, key: &[u8], id: TicketId) -> bool {
        let mut held = self.keys.get(key).into_iter().flat_map(|state| &state.tickets);
        held.any(|held| held.id == id && matches!(held.kind, Kind::Lease { .. }))
    }

    /// Whether there is no room for another key's ticket.
    pub fn is_full(&self) -> bool {
        self.tickets >= MAX_TICKETS
    }

    /// Leases and waiters there are now.
    pub fn census(&self) -> (usize, usize) {
        let leases = |state: &KeyState<W>| {
            state.tickets.iter().filter(|held| matches!(held.kind, Kind::Lease { .. })).count()
        };
        self.keys.values().fold((0, 0), |(l, w), state| (l + leases(state), w + state.waiters.len()))
    }

    fn find(&mut self, key: &[u8], id: TicketId) -> Option<&mut Held> {
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

/// What gives a lease back: compare-and-delete of the lock, or of the stub.
pub fn release(ticket: &Ticket) -> Asks {
    match (ticket.lock, ticket.base) {
        (Some(lock), _) => smallvec![delete(At::Lock, Some(lock))],
        (None, Some(base)) => smallvec![delete(At::Item, Some(base))],
        (None, None) => Asks::new(),
    }
}

/// For how long, in ms, a winner's `set` may still come: it is dropped after `max_rebuild`, but must not pass for a blind one.
fn winners_keep(policy: &Policy) -> u64 {
    10 * millis(policy.max_rebuild)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
