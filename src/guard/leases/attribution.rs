//! Decides which miss a `set` fills, if any. Decision 0010 gives the reasons.

use crate::guard::inputs::Now;

use super::entry::{Entry, EntryKind, MissTokenId, Owner};
use super::miss_token::MissToken;
use super::observed::Observed;
use super::table::Leases;

/// What a `set` means for the leases of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribution {
    /// It ends no rebuild that this sidecar knows of.
    NoMiss,
    /// It is the fill for this ticket, which is taken with it.
    Fill {
        /// What was seen.
        ticket: MissToken,
        /// Whether it is a lease that ends with it.
        lease: bool,
        /// Whose it was, if somebody else's: they are remembered, because their own `set` may come yet.
        owner: Option<Owner>,
    },
    /// It is the fill for a miss that an invalidation, or the time, has ended: to be dropped.
    Invalidated,
    /// Its connection was told more misses than are remembered, and this key may be among them: to be refused.
    Unknown,
    /// The lease is being renewed at this moment, which changes the CAS that the fill needs: try again when woken.
    Renewing,
}

/// What a connection knows of its own misses of a key, which is more than the table does: the table forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KnownMiss {
    /// It was told none, or it has set the key, deleted it, or been served it since.
    No,
    /// It was told one.
    Yes,
    /// It was told so many that this key may be among those that are forgotten.
    Unknown,
}

/// Who sends a `set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Its connection.
    pub owner: Owner,
    /// What was told there.
    pub told: KnownMiss,
    /// Whether it may be the fill for a miss that another connection of its client was told.
    pub pooled: bool,
}

impl<W> Leases<W> {
    /// Which ticket a `set` belongs to: the one of its own connection; else, if its client has a pool, one of another connection
    /// of that client that is not too old to be filled.
    ///
    /// Then a doomed one comes first, unless this very connection doomed it: the `set` that follows a `delete` on one
    /// connection is newer than it. Then the lease, then the latest miss without one.
    pub fn attribute(&mut self, key: &[u8], writer: Writer, now: Now) -> Attribution {
        let Writer { owner, told, pooled } = writer;
        let own = self.entry_of(key, owner).map(|entry| (entry.id, entry.kind, entry.ends() <= now.mono));
        match (own, told) {
            (Some((_, EntryKind::Lease { renewing: true, .. }, _)), _) => Attribution::Renewing,
            (Some((id, kind, is_late)), _) => {
                let taken = self.take(key, id);
                match (kind, taken) {
                    (EntryKind::Invalidated { .. } | EntryKind::Taken { invalidated: true }, _)
                    | (_, None) => Attribution::Invalidated,
                    _ if is_late => Attribution::Invalidated,
                    (_, Some(token)) => {
                        let lease = matches!(kind, EntryKind::Lease { .. });
                        Attribution::Fill { ticket: token, lease, owner: None }
                    }
                }
            }
            (None, KnownMiss::Yes) => Attribution::Invalidated,
            (None, KnownMiss::Unknown) => Attribution::Unknown,
            (None, KnownMiss::No) if pooled => self.attribute_to_peers(key, owner, now),
            (None, KnownMiss::No) => Attribution::NoMiss,
        }
    }

    /// Whether a `set` without a miss of its own connection could be the fill for one of another connection, which no `set` has
    /// been counted for.
    pub fn matches_pool_miss(&mut self, key: &[u8], owner: Owner, now: Now) -> bool {
        let mut entries = self.keys.get_mut(key).into_iter().flat_map(|state| &mut state.entries);
        let pair = entries.find(|entry| !entry.paired && rank(entry, owner, now).is_some());
        pair.map(|entry| entry.paired = true).is_some()
    }

    fn attribute_to_peers(&mut self, key: &[u8], owner: Owner, now: Now) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::NoMiss };
        let ranked = state.entries.iter_mut().filter_map(|entry| Some((rank(entry, owner, now)?, entry)));
        let Some((_, entry)) = ranked.min_by_key(|(rank, _)| *rank) else { return Attribution::NoMiss };
        let Entry { id, owner: whose, kind, token, .. } = entry.clone();
        if matches!(kind, EntryKind::Lease { renewing: true, .. }) {
            return Attribution::Renewing;
        }
        let invalidated = matches!(kind, EntryKind::Invalidated { .. });
        entry.kind = EntryKind::Taken { invalidated };
        // One refusal is enough to say that misses were told while nothing was known; the next `set` counts again.
        for other in state.entries.iter_mut().filter(|other| other.token.base.is_none()) {
            if token.base.is_none() && other.kind == EntryKind::Miss {
                other.kind = EntryKind::Taken { invalidated: false };
            }
        }
        let lease = matches!(kind, EntryKind::Lease { .. });
        if lease {
            self.owners.remove_lease(whose, id);
        }
        if invalidated {
            Attribution::Invalidated
        } else {
            Attribution::Fill { ticket: token, lease, owner: Some(whose) }
        }
    }

    /// Which ticket a `set` of `owner` belongs to that names the CAS of its miss: the one of its own connection, else the lease,
    /// whoever holds it. [`Attribution::NoMiss`] if nobody was shown that CAS, or an invalidation has ended what it was shown for.
    ///
    /// The same CAS is shown to all who find the same stub: its winner, and those who are told that somebody builds. What
    /// another connection was told without a lease may have been told after a bump of which the value that comes here knows
    /// nothing, so of that only the CAS holds and no version. Nor is it taken away: that connection's own `set` may come yet,
    /// and would pass for somebody else's. `dooms`: it is a delete, behind which the winner's own `set` is dropped when it comes.
    pub fn attribute_by_cas(&mut self, key: &[u8], cas: u64, owner: Owner, is_delete: bool) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::NoMiss };
        let shown = || state.entries.iter().filter(|entry| entry.shown_cas == Some(cas));
        let own = shown().find(|entry| entry.owner == owner);
        let named = own
            .or_else(|| shown().find(|entry| entry.is_lease()))
            .or_else(|| shown().find(|entry| entry.kind == EntryKind::Miss));
        let Some(Entry { id, owner: whose, kind, mut token, .. }) = named.cloned() else {
            return Attribution::NoMiss;
        };
        let lease = match kind {
            EntryKind::Lease { renewing: true, .. } => return Attribution::Renewing,
            EntryKind::Lease { .. } => true,
            // The value that has been stored since has another CAS than the one that is named.
            EntryKind::Miss if token.filled => return Attribution::NoMiss,
            EntryKind::Miss => false,
            EntryKind::Invalidated { .. } | EntryKind::Taken { .. } => {
                self.take(key, id);
                return Attribution::NoMiss;
            }
        };
        match whose == owner {
            true => drop(self.take(key, id)),
            false if lease => {
                if let Some(entry) = self.find(key, id) {
                    entry.kind = EntryKind::Taken { invalidated: is_delete };
                    self.owners.remove_lease(whose, id);
                }
            }
            // Versions that no tag ever has.
            false => token.versions.iter_mut().for_each(|version| *version = 0),
        }
        let owner = (whose != owner && lease).then_some(whose);
        Attribution::Fill { ticket: token, lease, owner }
    }

    /// Whether this is the CAS that `owner` was shown with the miss that it was told.
    pub fn is_cas_of_miss(&self, key: &[u8], cas: u64, owner: Owner) -> bool {
        self.entry_of(key, owner).is_some_and(|entry| entry.shown_cas == Some(cas))
    }

    /// What `owner` may store over, if it is no fill (a `replace`, or what a count begins with) and this connection was told a miss
    /// that still counts: what it stores may be as old as that. The ticket stays, because its `set` may come yet.
    pub fn bound(&self, key: &[u8], owner: Owner, told: KnownMiss) -> StoreCondition {
        match (self.entry_of(key, owner), told) {
            (None, KnownMiss::No) => StoreCondition::Unconditional,
            (None, KnownMiss::Yes) => StoreCondition::Observed(Observed::none()),
            (None, KnownMiss::Unknown) => StoreCondition::Unknown,
            (Some(Entry { kind: EntryKind::Lease { renewing: true, .. }, .. }), _) => {
                StoreCondition::Renewing
            }
            (
                Some(Entry {
                    kind: EntryKind::Invalidated { .. } | EntryKind::Taken { invalidated: true },
                    ..
                }),
                _,
            ) => StoreCondition::Observed(Observed::none()),
            (Some(entry), _) => StoreCondition::Observed(entry.token.observed()),
        }
    }

    fn take(&mut self, key: &[u8], id: MissTokenId) -> Option<MissToken> {
        let token = self.find(key, id)?.token.clone();
        self.remove_where(key, |entry| entry.id == id);
        self.remove_if_idle(key);
        Some(token)
    }
}

/// In which order the tickets of other connections are taken for what a `set` fills; `None`: not at all.
fn rank(entry: &Entry, owner: Owner, now: Now) -> Option<(u8, MissTokenId)> {
    if entry.owner == owner || entry.owner.peers != owner.peers || entry.ends() <= now.mono {
        return None;
    }
    match entry.kind {
        EntryKind::Invalidated { by } if by != owner => Some((1, entry.id)),
        EntryKind::Lease { .. } => Some((2, entry.id)),
        EntryKind::Miss => Some((3, MissTokenId::MAX - entry.id)),
        EntryKind::Invalidated { .. } | EntryKind::Taken { .. } => None,
    }
}

/// What a connection may store over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreCondition {
    /// Whatever the command itself allows.
    Unconditional,
    /// Only what its miss saw; [`Observed::none()`], which nothing is: nothing.
    Observed(Observed),
    /// Its lease is being renewed at this moment, which may change what that is: try again when woken.
    Renewing,
    /// Nobody knows: as [`Attribution::Unknown`].
    Unknown,
}
