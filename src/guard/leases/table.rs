//! The table of miss tokens and leases, by key.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::guard::command::{Cas, Commands};
use crate::guard::envelope::TagName;
use crate::guard::inputs::Now;
use crate::guard::policy::Policy;
use crate::metrics::LeaseEnd;

use super::entry::{Entry, EntryKind, MissTokenId, Owner};
use super::limits::PerOwner;
use super::miss_token::{MissToken, millis};

/// The table. `W` is what wakes a waiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leases<W> {
    pub(super) keys: BTreeMap<Box<[u8]>, KeyState<W>>,
    pub(super) owners: PerOwner,
    evicted: u64,
    pub(super) next: u64,
}

impl<W> Default for Leases<W> {
    fn default() -> Self {
        Leases::new(usize::MAX)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KeyState<W> {
    pub(super) entries: SmallVec<[Entry; 1]>,
    pub(super) waiters: Vec<(u64, W)>,
    /// Fills that wait for the renewal of their lease to end.
    pub(super) waiting_fills: Vec<W>,
    /// Somebody commands the server now and then whether the key has changed.
    pub(super) polled: bool,
    /// How often in a row it was claimed and not filled; from twice on, nobody waits for it.
    pub(super) unfilled: u8,
    /// Until when (monotonic ms) that is remembered.
    pub(super) remember_until: u64,
}

impl<W> Default for KeyState<W> {
    fn default() -> Self {
        KeyState {
            entries: SmallVec::new(),
            waiters: Vec::new(),
            waiting_fills: Vec::new(),
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

impl<W> Leases<W> {
    /// A table whose tickets may take so many bytes.
    pub fn new(max_bytes: usize) -> Leases<W> {
        Leases { keys: BTreeMap::new(), owners: PerOwner::new(max_bytes), evicted: 0, next: 0 }
    }

    /// A lease for `owner`. An older one of this sidecar must be dead, or this one could not have been won: it is a miss like others from
    /// now on, whose `set` is stored if nothing has happened to the key since. It, and what makes room for the new one, is to be
    /// given back. `None`: the client holds nothing, because this one is the older.
    pub fn grant(
        &mut self,
        key: &[u8],
        owner: Owner,
        token: MissToken,
        policy: &Policy,
    ) -> (Option<MissTokenId>, Vec<Ended>) {
        // A server's CAS numbers only grow: of two wins the higher one came later, though it may be heard of first.
        let won = |token: &MissToken| token.lock.or(token.base).map(|cas| (cas.epoch, cas.number));
        let is_later = |entry: &Entry| entry.is_lease() && won(&entry.token) > won(&token);
        if self.keys.get(key).is_some_and(|state| state.entries.iter().any(is_later)) {
            return (None, self.record_miss(key, owner, token, policy));
        }
        let mut ended = Vec::new();
        let state = self.keys.get_mut(key);
        for entry in state.into_iter().flat_map(|state| &mut state.entries) {
            if entry.is_lease() {
                entry.kind = EntryKind::Miss;
                self.owners.remove_lease(entry.owner, entry.id);
                let commands = entry.release();
                ended.push(Ended { key: key.into(), end: LeaseEnd::Superseded, asks: commands });
            }
        }
        let kind = EntryKind::Lease { renewing: false, orphan: false };
        let id = self.insert(key, owner, kind, token, millis(policy.max_rebuild));
        self.make_room(&mut ended);
        (Some(id), ended)
    }

    /// A miss without the right to rebuild. A lease of the same owner stays, unless something else stands there by now: whoever
    /// reads again what they are rebuilding has not given it up. What they build from now on is as new as this miss. Returns the leases
    /// that have ended: that one, or what made room.
    pub fn record_miss(&mut self, key: &[u8], owner: Owner, token: MissToken, policy: &Policy) -> Vec<Ended> {
        let mut ended = Vec::new();
        if let Some(entry) = self.entry_of(key, owner).filter(|entry| entry.is_lease()) {
            let same_stub = token.stub.is_some() && token.stub == entry.token.stub;
            if token.base.is_none() {
                return ended;
            }
            if same_stub || token.base == entry.token.base {
                let MissToken { versions, learnt, at: Now { wall, .. }, .. } = token;
                self.update_token(key, owner, |entry| {
                    (entry.versions, entry.learnt, entry.at.wall) = (versions, learnt, wall);
                });
                return ended;
            }
            ended.push(Ended { key: key.into(), end: LeaseEnd::Lost, asks: entry.token.unlock() });
        }
        self.insert(key, owner, EntryKind::Miss, token, millis(policy.max_rebuild));
        self.make_room(&mut ended);
        ended
    }

    pub(super) fn insert(
        &mut self,
        key: &[u8],
        owner: Owner,
        kind: EntryKind,
        token: MissToken,
        max_rebuild: u64,
    ) -> MissTokenId {
        self.remove_where(key, |entry| entry.owner == owner);
        self.next += 1;
        let id = self.next;
        let shown_cas = match kind {
            // Nobody was shown what it knows.
            EntryKind::Taken { .. } => None,
            _ => token.base.map(|cas| cas.number),
        };
        let entry = Entry { id, owner, kind, token, shown_cas, clearing: false, max_rebuild, paired: false };
        self.owners.add(key, &entry);
        self.keys.entry(key.into()).or_default().entries.push(entry);
        id
    }

    pub(super) fn remove_where(&mut self, key: &[u8], gone: impl Fn(&Entry) -> bool) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let owners = &mut self.owners;
        state.entries.retain(|entry| {
            let gone = gone(entry);
            if gone {
                owners.remove(key, entry);
            }
            !gone
        });
    }

    /// Whether it holds a lease: it has been told that it is the one who builds, and neither filled nor given up.
    pub fn rebuilds(&self, connection: u64) -> bool {
        self.owners.has_lease(connection)
    }

    pub(super) fn state(&mut self, key: &[u8]) -> Option<&mut KeyState<W>> {
        self.keys.get_mut(key)
    }

    pub(super) fn entry_of(&self, key: &[u8], owner: Owner) -> Option<&Entry> {
        self.keys.get(key)?.entries.iter().find(|entry| entry.owner == owner)
    }

    pub(super) fn entry_of_mut(&mut self, key: &[u8], owner: Owner) -> Option<&mut Entry> {
        self.state(key)?.entries.iter_mut().find(|entry| entry.owner == owner)
    }

    fn update_token(&mut self, key: &[u8], owner: Owner, change: impl FnOnce(&mut MissToken)) {
        let entries = self.keys.get_mut(key).into_iter().flat_map(|state| &mut state.entries);
        if let Some(entry) = entries.into_iter().find(|entry| entry.owner == owner) {
            self.owners.update_token(key, entry, change);
        }
    }

    /// `owner` was served a fresh value, which has this CAS: what it sends from now on is no fill for a miss that it was told
    /// before.
    pub fn hit(&mut self, key: &[u8], owner: Owner, cas: u64) -> AfterHit {
        let entry = self.entry_of(key, owner);
        let lease = entry.filter(|entry| entry.is_lease());
        if lease.is_some_and(|entry| entry.token.base.is_some_and(|base| base.number == cas)) {
            return AfterHit::Refreshes;
        }
        let ended =
            lease.map(|entry| Ended { key: key.into(), end: LeaseEnd::Lost, asks: entry.token.unlock() });
        self.remove_where(key, |entry| entry.owner == owner);
        self.remove_if_idle(key);
        AfterHit::Over(ended.into_iter().collect())
    }

    /// `owner` has created the value by counting: whatever it was told a miss for, what it sends from now on is new, as behind an
    /// `add`. Returns its lease, if it had one, and who waits; the lock of a stale value ends by itself.
    pub fn created(&mut self, key: &[u8], owner: Owner) -> (Option<MissToken>, Vec<W>) {
        let lease =
            self.entry_of(key, owner).filter(|entry| entry.is_lease()).map(|entry| entry.token.clone());
        self.remove_where(key, |entry| entry.owner == owner);
        (lease, self.wake(key))
    }

    /// A fill was stored under `cas`, over what `ticket` saw. `spent`: whose ticket it was, if another connection's. Whoever else was
    /// told a miss over the same stub may store over this value: nothing has been invalidated between their miss and it, if they
    /// saw the same versions. Returns who waits.
    pub fn filled(&mut self, key: &[u8], cas: Cas, token: &MissToken, taken_from: Option<Owner>) -> Vec<W> {
        // Whoever has ended that miss itself meanwhile, or was told another, has nothing to do with it any more.
        let is_taken = |entry: &&Entry| matches!(entry.kind, EntryKind::Taken { .. });
        if let Some(owner) = taken_from.filter(|owner| self.entry_of(key, *owner).filter(is_taken).is_some())
        {
            let token = MissToken { base: Some(cas), lock: None, filled: true, ..token.clone() };
            self.update_token(key, owner, |entry| *entry = token);
        }
        if let Some(state) = self.keys.get_mut(key) {
            state.unfilled = 0;
            let same = |seen: &MissToken| {
                let epoch = |token: &MissToken| token.base.map(|base| base.epoch);
                !seen.filled
                    && seen.stub.is_some()
                    && seen.stub == token.stub
                    && seen.versions == token.versions
                    && epoch(seen) == epoch(token)
            };
            for entry in
                state.entries.iter_mut().filter(|entry| entry.kind == EntryKind::Miss && same(&entry.token))
            {
                (entry.token.base, entry.token.filled) = (Some(cas), true);
            }
        }
        self.wake(key)
    }

    /// `owner` invalidates the key through this sidecar. Whoever else builds it builds in vain, and must not be mistaken for
    /// somebody who does not; `owner` itself gives up what it was building. Returns how many leases that ended.
    pub fn invalidate(&mut self, key: &[u8], owner: Owner) -> usize {
        let Some(state) = self.keys.get_mut(key) else { return 0 };
        let mut ended = 0;
        for entry in &mut state.entries {
            if entry.is_lease() {
                ended += 1;
                self.owners.remove_lease(entry.owner, entry.id);
            }
            entry.kind = match entry.kind {
                // Its set has most likely come; it must not cast doubt on what others store.
                EntryKind::Taken { .. } => EntryKind::Taken { invalidated: true },
                _ => EntryKind::Invalidated { by: owner },
            }
        }
        self.remove_where(key, |entry| entry.owner == owner);
        ended
    }

    /// `owner` empties all servers: it invalidates every key. Returns those of the leases that this ended.
    pub fn flush(&mut self, owner: Owner) -> Vec<Box<[u8]>> {
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.retain(|key| {
            let ended = self.invalidate(key, owner);
            self.remove_if_idle(key);
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
            let Some(Entry { token, .. }) = self.entry_of_mut(&key, owner) else { continue };
            let own = tags(&key);
            let names = own.as_ref().iter().chain(&token.learnt);
            for (_, seen) in
                names.zip(&mut token.versions).filter(|(name, seen)| *name == tag && **seen == from)
            {
                *seen = to;
            }
        }
    }

    /// A client's connection has closed. Returns its leases, to be given back.
    pub fn disconnect(&mut self, owner: Owner) -> Vec<Ended> {
        let mut ended = Vec::new();
        for key in self.owners.keys_of(owner) {
            if let Some(Entry { kind: EntryKind::Lease { renewing: true, orphan }, .. }) =
                self.entry_of_mut(&key, owner)
            {
                *orphan = true;
                continue;
            }
            if let Some(entry) = self.entry_of(&key, owner).filter(|entry| entry.is_lease()) {
                ended.push(Ended { key: key.clone(), end: LeaseEnd::Disconnected, asks: entry.release() });
            }
            self.remove_where(&key, |entry| entry.owner == owner);
            self.remove_if_idle(&key);
        }
        ended
    }

    /// Forgets what is older than anything may refer to. To be called now and then.
    pub fn sweep(&mut self, now: Now) {
        let Leases { keys, owners, .. } = self;
        keys.retain(|key, state| {
            state.entries.retain(|entry| {
                let keep = entry.is_lease() || entry.ends() > now.mono;
                if !keep {
                    owners.remove(key, entry);
                }
                keep
            });
            let remembers = state.unfilled > 0 && state.remember_until > now.mono;
            let awaited = !state.waiters.is_empty() || !state.waiting_fills.is_empty() || state.polled;
            !state.entries.is_empty() || awaited || remembers
        });
    }

    /// Whether this is a lease that has not ended.
    pub fn is_active(&self, key: &[u8], id: MissTokenId) -> bool {
        let mut entry = self.keys.get(key).into_iter().flat_map(|state| &state.entries);
        entry.any(|entry| entry.id == id && entry.is_lease())
    }

    /// Leases and waiters there are now.
    pub fn census(&self) -> (usize, usize) {
        (self.owners.leases(), self.keys.values().map(|state| state.waiters.len()).sum())
    }

    pub(super) fn find(&mut self, key: &[u8], id: MissTokenId) -> Option<&mut Entry> {
        self.state(key)?.entries.iter_mut().find(|entry| entry.id == id)
    }

    pub(super) fn remove_if_idle(&mut self, key: &[u8]) {
        let idle = self.keys.get(key).is_some_and(|state| {
            state.entries.is_empty()
                && state.waiters.is_empty()
                && state.waiting_fills.is_empty()
                && !state.polled
                && state.unfilled == 0
        });
        if idle {
            self.keys.remove(key);
        }
    }
}

impl<W> Leases<W> {
    /// Ends leases and forgets tickets until the rest is within the bounds. The winner of a lease that ended so was told a miss like
    /// others: its `set` is stored if nothing has happened to the key since.
    pub(super) fn make_room(&mut self, ended: &mut Vec<Ended>) {
        while let Some((key, id)) = self.owners.excess_lease() {
            let Some(entry) = self.find(&key, id) else { return };
            let (owner, mut commands) = (entry.owner, entry.release());
            // What is being renewed has another CAS in a moment: what stands there then ends by itself.
            if let EntryKind::Lease { renewing: true, orphan } = entry.kind {
                commands.clear();
                if orphan {
                    self.remove_where(&key, |entry| entry.id == id);
                    self.remove_if_idle(&key);
                    continue;
                }
            }
            entry.kind = EntryKind::Miss;
            self.owners.remove_lease(owner, id);
            ended.push(Ended { key, end: LeaseEnd::Limit, asks: commands });
        }
        while let Some((key, id)) = self.owners.excess_token() {
            let entries = self.keys.get(&key).map(|state| &state.entries[..]).unwrap_or_default();
            if let Some(entry) = entries.iter().find(|entry| entry.id == id && entry.is_lease()) {
                ended.push(Ended { key: key.clone(), end: LeaseEnd::Limit, asks: entry.release() });
            }
            self.evicted += 1;
            self.remove_where(&key, |entry| entry.id == id);
            self.remove_if_idle(&key);
        }
    }

    /// How many tickets have been forgotten since this was asked last.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }
}
