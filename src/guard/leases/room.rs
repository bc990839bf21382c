//! Removes entries that have expired, and those that others need the room of.

use std::ops::Bound;

use crate::guard::inputs::Now;
use crate::looked_at;
use crate::metrics::LeaseEnd;

use super::entry::{Entry, EntryKind};
use super::limits::MAX_ENTRIES_PER_KEY;
use super::table::{Ended, KeyState, Leases};

/// How many keys one step of the sweep looks at: clients must not wait for a sweep of the whole table.
pub(super) const SWEPT_AT_ONCE: usize = 256;

impl<W> Leases<W> {
    /// Removes expired entries of the next few keys. Must be called periodically, each time until it returns false: then it has
    /// come to the last key.
    pub fn sweep(&mut self, now: Now) -> bool {
        let is_over = |entry: &Entry| !entry.is_lease() && entry.ends() <= now.mono;
        let forgets = |state: &KeyState<W>| state.unfilled > 0 && state.remember_until <= now.mono;
        let mut over = Vec::new();
        let (mut seen, mut last) = (0, Box::default());
        let behind = (Bound::Excluded(&*self.swept), Bound::Unbounded);
        for (key, state) in self.keys.range::<[u8], _>(behind).take(SWEPT_AT_ONCE) {
            looked_at::entry();
            if state.entries.is_empty() || forgets(state) || state.entries.iter().any(is_over) {
                over.push(key.clone());
            }
            seen += 1;
            if seen == SWEPT_AT_ONCE {
                last = key.clone();
            }
        }
        for key in over {
            self.remove_where(&key, is_over);
            if let Some(state) = self.keys.get_mut(&key).filter(|state| forgets(state)) {
                state.unfilled = 0;
            }
            self.remove_if_idle(&key);
        }
        self.swept = last;
        seen == SWEPT_AT_ONCE
    }

    /// Removes the oldest plain miss of a key that has as many entries as it may.
    pub(super) fn make_room_of(&mut self, key: &[u8]) {
        let state = self.keys.get(key).filter(|state| state.entries.len() >= MAX_ENTRIES_PER_KEY);
        let mut entries = state.into_iter().flat_map(|state| &state.entries);
        if let Some(id) = entries.find(|entry| !entry.is_lease()).map(|entry| entry.id) {
            self.evicted += 1;
            self.remove_where(key, |entry| entry.id == id);
        }
    }

    /// Ends leases and removes tokens until the table is within its limits. A lease that is ended becomes a
    /// plain miss, whose `set` is stored if the key has not changed since.
    pub(super) fn make_room(&mut self, ended: &mut Vec<Ended>) {
        while let Some((key, id)) = self.owners.excess_lease() {
            let Some(entry) = self.find(&key, id) else { return };
            let (owner, mut commands, fence, plan) =
                (entry.owner, entry.release(), entry.token.fence, entry.token.plan);
            // The renewal in progress changes the CAS. The stub or lock will expire on its own.
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
            ended.push(Ended { key, end: LeaseEnd::Limit, commands, fence, plan });
        }
        while let Some((key, id)) = self.owners.excess_token() {
            let entries = self.keys.get(&key).map(|state| &state.entries[..]).unwrap_or_default();
            if let Some(entry) = entries.iter().find(|entry| entry.id == id && entry.is_lease()) {
                let (commands, fence, plan) = (entry.release(), entry.token.fence, entry.token.plan);
                ended.push(Ended { key: key.clone(), end: LeaseEnd::Limit, commands, fence, plan });
            }
            self.evicted += 1;
            self.remove_where(&key, |entry| entry.id == id);
            self.remove_if_idle(&key);
        }
    }

    /// How many tokens have been removed for lack of room since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }
}
