//! Wins that their clients are not told of yet, because another client of this sidecar still builds the key without a server
//! (`guard/outage.rs`). Such a lease is renewed as any other. It is no miss of its client yet, so no `set` fills it: the `set` of
//! the other client, which may come over another connection of the same client, was built before the stub of this win.

use crate::guard::envelope::TagNames;
use crate::guard::inputs::Now;
use crate::metrics::LeaseEnd;

use super::entry::{Entry, EntryKind, Owner};
use super::table::{Ended, Leases};

/// A build of a key, by a client that has a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Connection of the client that builds.
    pub owner: Owner,
    /// When it received its miss, on the monotonic clock in ms.
    pub began: u64,
    /// When its `set` is too late.
    pub until: u64,
    /// The tags that the old value had besides those of the rule.
    pub added_tags: TagNames,
}

impl<W> Leases<W> {
    /// The build of this key by another client than `owner` that has a lease, if it has not been invalidated.
    pub fn build(&self, key: &[u8], owner: Owner, now: Now) -> Option<Build> {
        let mut entries = self.keys.get(key)?.entries.iter();
        let entry = entries.find(|entry| {
            matches!(entry.kind, EntryKind::Lease { orphan: false, .. })
                && !entry.withheld
                && entry.owner != owner
                && now.mono < entry.ends()
        })?;
        let added_tags = entry.token.added_tags.clone();
        Some(Build { owner: entry.owner, began: entry.token.at.mono, until: entry.ends(), added_tags })
    }

    /// `owner` is not told of its win yet.
    pub fn withhold(&mut self, key: &[u8], owner: Owner) {
        if let Some(entry) = self.entry_of_mut(key, owner) {
            (entry.withheld, entry.shown_cas) = (true, None);
        }
    }

    /// `owner` is told of its win now. Returns the number of the CAS that it receives; `None`: the key has been invalidated.
    pub fn deliver(&mut self, key: &[u8], owner: Owner) -> Option<u64> {
        let counts = |entry: &&mut Entry| entry.is_lease() || entry.kind == EntryKind::Miss;
        let entry = self.entry_of_mut(key, owner).filter(counts)?;
        entry.withheld = false;
        entry.shown_cas = entry.token.observed_cas.map(|cas| cas.number);
        entry.shown_cas
    }

    /// `owner` does not need its win: it builds nothing. Returns its lease, which must be released.
    pub fn give_up(&mut self, key: &[u8], owner: Owner) -> Vec<Ended> {
        let mut ended = Vec::new();
        let Some(entry) = self.entry_of_mut(key, owner) else { return ended };
        if let EntryKind::Lease { renewing: true, orphan } = &mut entry.kind {
            // The end of the renewal releases it.
            *orphan = true;
            return ended;
        }
        if entry.is_lease() {
            let (commands, fence, plan) = (entry.release(), entry.token.fence, entry.token.plan);
            ended.push(Ended { key: key.into(), end: LeaseEnd::Released, commands, fence, plan });
        }
        self.remove_where(key, |entry| entry.owner == owner);
        self.remove_if_idle(key);
        ended
    }
}
