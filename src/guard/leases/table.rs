//! The table of miss tokens and leases, by key.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::guard::command::{Cas, Commands};
use crate::guard::envelope::TagName;
use crate::guard::inputs::Now;
use crate::guard::policy::{Policy, millis};
use crate::looked_at;
use crate::metrics::LeaseEnd;

use super::entry::{Entry, EntryKind, MissTokenId, Owner};
use super::limits::{LATEST, PerOwner};
use super::miss_token::MissToken;

/// The table. `W` wakes a waiting request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leases<W> {
    pub(super) keys: BTreeMap<Box<[u8]>, KeyState<W>>,
    pub(super) owners: PerOwner,
    pub(super) evicted: u64,
    pub(super) next: u64,
    /// The last key of the sweep in progress; empty if there is none.
    pub(super) swept: Box<[u8]>,
}

impl<W> Default for Leases<W> {
    fn default() -> Self {
        Leases::new(usize::MAX)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KeyState<W> {
    pub(super) entries: SmallVec<[Entry; 1]>,
    /// By their numbers.
    pub(super) waiters: BTreeMap<u64, W>,
    /// Fills that wait for the renewal of their lease to end.
    pub(super) waiting_fills: Vec<W>,
    /// A task polls the server for changes of the key.
    pub(super) polled: bool,
    /// How many times in a row the key was claimed and not filled. From two on, no reader waits for it.
    pub(super) unfilled: u8,
    /// Until when `unfilled` counts, on the monotonic clock in ms.
    pub(super) remember_until: u64,
    /// When the next waiting request of this sidecar may be let through, on the monotonic clock in ms.
    pub(super) next_let_through: u64,
}

impl<W> Default for KeyState<W> {
    fn default() -> Self {
        KeyState {
            entries: SmallVec::new(),
            waiters: BTreeMap::new(),
            waiting_fills: Vec::new(),
            polled: false,
            unfilled: 0,
            remember_until: 0,
            next_let_through: 0,
        }
    }
}

/// What a fresh hit means for an earlier miss of the same connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterHit {
    /// The connection has a lease to refresh this very value: the lease remains.
    Refreshes,
    /// The miss is over, and so is its lease, which must be released.
    Ended(Vec<Ended>),
}

/// A lease that was not ended by its client, and the commands that release it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Key of the lease.
    pub key: Box<[u8]>,
    /// Why the lease ended, as its metric's label says.
    pub end: LeaseEnd,
    /// Commands of one round trip to the key's server.
    pub commands: Commands,
    /// The fence of the place that they are for. They must not be sent to another.
    pub fence: u64,
    /// The [`Policy::plan`] that they are for.
    pub plan: u64,
}

impl<W> Leases<W> {
    /// A table whose entries may take `max_bytes`.
    pub fn new(max_bytes: usize) -> Leases<W> {
        let (keys, owners, swept) = (BTreeMap::new(), PerOwner::new(max_bytes), Box::default());
        Leases { keys, owners, evicted: 0, next: 0, swept }
    }

    /// From now on, its entries may take `max_bytes`. Those that take more make room for the next one.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.owners.set_max_bytes(max_bytes);
    }

    /// Grants `owner` a lease. An older lease of this sidecar must have been lost, or this one could not have
    /// been won. It becomes a plain miss, whose `set` is stored if the key has not changed since.
    ///
    /// Returns the token's ID and the leases that must be released: the older one, and those that make room.
    /// The ID is `None` if this lease is the older one.
    pub fn grant(
        &mut self,
        key: &[u8],
        owner: Owner,
        token: MissToken,
        policy: &Policy,
    ) -> (Option<MissTokenId>, Vec<Ended>) {
        // A server's CAS numbers ascend: the win with the higher one is the later, even if its reply is
        // processed first. Numbers of two places cannot be compared.
        let won = |token: &MissToken| token.lock.or(token.observed_cas).map(|cas| (cas.epoch, cas.number));
        let is_later = |entry: &Entry| {
            entry.is_lease() && entry.token.holds(token.fence, token.plan) && won(&entry.token) > won(&token)
        };
        if self.keys.get(key).is_some_and(|state| state.entries.iter().any(is_later)) {
            return (None, self.record_miss(key, owner, token, policy));
        }
        let mut ended = Vec::new();
        let state = self.keys.get_mut(key);
        for entry in state.into_iter().flat_map(|state| &mut state.entries) {
            if entry.is_lease() {
                entry.kind = EntryKind::Miss;
                self.owners.remove_lease(entry.owner, entry.id);
                let (commands, fence, plan) = (entry.release(), entry.token.fence, entry.token.plan);
                ended.push(Ended { key: key.into(), end: LeaseEnd::Superseded, commands, fence, plan });
            }
        }
        self.follow_mark(key, &token);
        let token = MissToken { marked: None, ..token };
        let kind = EntryKind::Lease { renewing: false, orphan: false };
        let id = self.insert(key, owner, kind, token, millis(policy.max_rebuild));
        self.make_room(&mut ended);
        (Some(id), ended)
    }

    /// A winner has marked the value of its win, which gives it another identity. The mark was a compare, so whoever may store over
    /// what follows the value may store over what follows the mark.
    fn follow_mark(&mut self, key: &[u8], won: &MissToken) {
        let (Some(marked), Some(state)) = (won.marked, self.keys.get_mut(key)) else { return };
        let epoch = |token: &MissToken| token.observed_cas.map(|observed_cas| observed_cas.epoch);
        for Entry { token, .. } in &mut state.entries {
            let is_same_place = token.holds(won.fence, won.plan) && epoch(token) == epoch(won);
            if is_same_place && token.origin() == Some(marked) {
                token.origin = won.origin();
            }
        }
    }

    /// Records a miss without the right to rebuild. A lease of the same owner remains if its item has not
    /// changed: the client has read again what it is rebuilding, and what it builds from now on is as new as
    /// this miss. Returns the leases that have ended: that one, or those that make room.
    pub fn record_miss(&mut self, key: &[u8], owner: Owner, token: MissToken, policy: &Policy) -> Vec<Ended> {
        let mut ended = Vec::new();
        if let Some(entry) = self.entry_of(key, owner).filter(|entry| entry.is_lease()) {
            let same_stub = token.stub.is_some() && token.stub == entry.token.stub;
            if token.observed_cas.is_none() {
                return ended;
            }
            let same_place = token.holds(entry.token.fence, entry.token.plan);
            if same_place && (same_stub || token.observed_cas == entry.token.observed_cas) {
                let MissToken { versions, added_tags, at: Now { wall, .. }, .. } = token;
                let raised = versions != entry.token.versions;
                self.update_token(key, owner, |token| {
                    (token.versions, token.added_tags, token.at.wall) = (versions, added_tags, wall);
                });
                if let Some(entry) = self.entry_of_mut(key, owner) {
                    entry.raised |= raised;
                }
                return ended;
            }
            let (commands, fence, plan) = (entry.token.unlock(), entry.token.fence, entry.token.plan);
            ended.push(Ended { key: key.into(), end: LeaseEnd::Lost, commands, fence, plan });
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
            // This client did not receive the CAS.
            EntryKind::Taken { .. } => None,
            _ => token.observed_cas.map(|cas| cas.number),
        };
        let (withheld, clearing, paired, raised) = (false, false, false, false);
        let entry =
            Entry { id, owner, kind, token, shown_cas, withheld, clearing, max_rebuild, paired, raised };
        self.make_room_of(key);
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

    /// Whether the connection holds a lease that it has neither filled nor given up.
    pub fn rebuilds(&self, connection: u64) -> bool {
        self.owners.has_lease(connection)
    }

    /// Whether one of the connections with these `peers` holds a lease.
    pub fn has_lease_of(&self, peers: u64) -> bool {
        self.owners.has_lease_of(peers)
    }

    /// Whether a miss of the connection may still be filled. `pooled`: or of another connection of the same client.
    pub fn awaits_fill(&self, owner: Owner, pooled: bool, now: Now) -> bool {
        if pooled && self.has_lease_of(owner.peers) {
            return true;
        }
        let owners = self.owners.owners(owner, pooled);
        let latest = owners.flat_map(|owner| self.owners.latest(owner).map(move |key| (key, owner)));
        latest.take(LATEST).filter_map(|(key, owner)| self.entry_of(key, owner)).any(|entry| {
            looked_at::entry();
            entry.is_lease() || (entry.kind == EntryKind::Miss && entry.ends() > now.mono)
        })
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

    /// `owner` was served a fresh value with this CAS. Its later stores no longer fill its earlier miss.
    pub fn hit(&mut self, key: &[u8], owner: Owner, cas: u64) -> AfterHit {
        let entry = self.entry_of(key, owner);
        let lease = entry.filter(|entry| entry.is_lease());
        if lease.is_some_and(|entry| {
            entry.token.observed_cas.is_some_and(|observed_cas| observed_cas.number == cas)
        }) {
            return AfterHit::Refreshes;
        }
        let ended = lease.map(|entry| {
            let (commands, fence, plan) = (entry.token.unlock(), entry.token.fence, entry.token.plan);
            Ended { key: key.into(), end: LeaseEnd::Lost, commands, fence, plan }
        });
        self.remove_where(key, |entry| entry.owner == owner);
        self.remove_if_idle(key);
        AfterHit::Ended(ended.into_iter().collect())
    }

    /// `owner` has created the value by counting. Like after an `add`, its later stores are new and fill no
    /// earlier miss. Returns its lease, if it had one, and the waiting requests. The lock of a stale value
    /// expires on its own.
    pub fn created(&mut self, key: &[u8], owner: Owner) -> (Option<MissToken>, Vec<W>) {
        let lease =
            self.entry_of(key, owner).filter(|entry| entry.is_lease()).map(|entry| entry.token.clone());
        self.remove_where(key, |entry| entry.owner == owner);
        (lease, self.wake(key))
    }

    /// A fill was stored under `cas`, over what `token` saw. `taken_from`: the owner of the token, if that is
    /// another connection.
    ///
    /// Other clients that missed over the same stub with the same versions may store over this value: nothing
    /// was invalidated between their miss and it. Returns the waiting requests.
    pub fn filled(&mut self, key: &[u8], cas: Cas, token: &MissToken, taken_from: Option<Owner>) -> Vec<W> {
        // The owner may have ended that miss or recorded another one since; then the fill does not concern
        // it.
        let is_taken = |entry: &&Entry| matches!(entry.kind, EntryKind::Taken { .. });
        if let Some(owner) = taken_from.filter(|owner| self.entry_of(key, *owner).filter(is_taken).is_some())
        {
            let origin = token.origin();
            let token =
                MissToken { observed_cas: Some(cas), origin, lock: None, filled: true, ..token.clone() };
            self.update_token(key, owner, |entry| *entry = token);
        }
        if let Some(state) = self.keys.get_mut(key) {
            state.unfilled = 0;
            let same = |seen: &MissToken| {
                let epoch = |token: &MissToken| token.observed_cas.map(|observed_cas| observed_cas.epoch);
                !seen.filled
                    && seen.stub.is_some()
                    && seen.stub == token.stub
                    && seen.versions == token.versions
                    && seen.holds(token.fence, token.plan)
                    && epoch(seen) == epoch(token)
            };
            for entry in
                state.entries.iter_mut().filter(|entry| entry.kind == EntryKind::Miss && same(&entry.token))
            {
                (entry.token.observed_cas, entry.token.filled) = (Some(cas), true);
            }
        }
        self.wake(key)
    }

    /// `owner` invalidates the key through this sidecar. What other connections build is out of date, and
    /// their `set` must not count as one without a miss. `owner` itself gives up its rebuild. Returns how
    /// many leases this ended.
    pub fn invalidate(&mut self, key: &[u8], owner: Owner) -> usize {
        let Some(state) = self.keys.get_mut(key) else { return 0 };
        let mut ended = 0;
        for entry in &mut state.entries {
            if entry.is_lease() {
                ended += 1;
                self.owners.remove_lease(entry.owner, entry.id);
            }
            entry.kind = match entry.kind {
                // Its `set` has most likely arrived already. It must not affect those of other connections.
                EntryKind::Taken { .. } => EntryKind::Taken { invalidated: true },
                _ => EntryKind::Invalidated { by: owner },
            }
        }
        self.remove_where(key, |entry| entry.owner == owner);
        ended
    }

    /// `owner` empties all servers, which invalidates every key. Returns the keys whose leases this ended.
    pub fn flush(&mut self, owner: Owner) -> Vec<Box<[u8]>> {
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.retain(|key| {
            let ended = self.invalidate(key, owner);
            self.remove_if_idle(key);
            ended > 0
        });
        keys
    }

    /// `owner` has bumped a tag from one version to the next: its later stores are newer than the bump, as
    /// after its own delete. A miss with another version than the first keeps it, because another client has
    /// bumped the tag in between. So does one before the latest few, whose `set` is stale then. `tags` returns the tags of a key's
    /// rule.
    pub fn record_bump<T: AsRef<[TagName]>>(
        &mut self,
        owner: Owner,
        tag: &TagName,
        (from, to): (u64, u64),
        tags: impl Fn(&[u8]) -> T,
    ) {
        let latest: Vec<_> = self.owners.latest(owner).take(LATEST).cloned().collect();
        for key in latest {
            looked_at::entry();
            let Some(Entry { token, raised, .. }) = self.entry_of_mut(&key, owner) else { continue };
            let own = tags(&key);
            let names = own.as_ref().iter().chain(&token.added_tags);
            for (_, seen) in
                names.zip(&mut token.versions).filter(|(name, seen)| *name == tag && **seen == from)
            {
                (*seen, *raised) = (to, true);
            }
        }
    }

    /// A connection has been closed. Returns its leases, which must be released.
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
                ended.push(Ended {
                    key: key.clone(),
                    end: LeaseEnd::Disconnected,
                    commands: entry.release(),
                    fence: entry.token.fence,
                    plan: entry.token.plan,
                });
            }
            self.remove_where(&key, |entry| entry.owner == owner);
            self.remove_if_idle(&key);
        }
        ended
    }

    /// Whether this is a lease that has not ended.
    pub fn is_active(&self, key: &[u8], id: MissTokenId) -> bool {
        let mut entry = self.keys.get(key).into_iter().flat_map(|state| &state.entries);
        entry.any(|entry| entry.id == id && entry.is_lease())
    }

    /// Ends a lease whose key is now kept elsewhere, or has other tags. It becomes a plain miss, whose `set` is dropped. Returns
    /// whether it was one.
    pub fn end_lease(&mut self, key: &[u8], id: MissTokenId) -> bool {
        let Some(entry) = self.find(key, id).filter(|entry| entry.is_lease()) else { return false };
        entry.kind = EntryKind::Miss;
        let owner = entry.owner;
        self.owners.remove_lease(owner, id);
        true
    }

    /// The number of leases and of waiting requests.
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
