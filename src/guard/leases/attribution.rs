//! Whose a `set` is: the fill for which miss, if any. Decision 0010 says why it is decided like this.

use super::{Cas, Held, Kind, Leases, MissToken, MissTokenId, Now, Owner};
use crate::guard::Inputs;
use crate::guard::command::Item;
use crate::guard::envelope::{Header, Opened};
use crate::guard::freshness::is_out_of_date;
use crate::guard::stub::{Stub, StubId};
use crate::guard::tags::Versions;

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
    pub fn attribute(&mut self, key: &[u8], setter: Writer, now: Now) -> Attribution {
        let Writer { owner, told, pooled } = setter;
        let own = self.own(key, owner).map(|held| (held.id, held.kind, held.ends() <= now.mono));
        match (own, told) {
            (Some((_, Kind::Lease { renewing: true, .. }, _)), _) => Attribution::Renewing,
            (Some((id, kind, is_late)), _) => {
                let taken = self.take(key, id);
                match (kind, taken) {
                    (Kind::Doomed { .. } | Kind::Spent { doomed: true }, _) | (_, None) => {
                        Attribution::Invalidated
                    }
                    _ if is_late => Attribution::Invalidated,
                    (_, Some(ticket)) => {
                        let lease = matches!(kind, Kind::Lease { .. });
                        Attribution::Fill { ticket, lease, owner: None }
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
        let mut tickets = self.keys.get_mut(key).into_iter().flat_map(|state| &mut state.tickets);
        let pair = tickets.find(|held| !held.paired && rank(held, owner, now).is_some());
        pair.map(|held| held.paired = true).is_some()
    }

    fn attribute_to_peers(&mut self, key: &[u8], owner: Owner, now: Now) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::NoMiss };
        let ranked = state.tickets.iter_mut().filter_map(|held| Some((rank(held, owner, now)?, held)));
        let Some((_, held)) = ranked.min_by_key(|(rank, _)| *rank) else { return Attribution::NoMiss };
        let Held { id, owner: whose, kind, ticket, .. } = held.clone();
        if matches!(kind, Kind::Lease { renewing: true, .. }) {
            return Attribution::Renewing;
        }
        let doomed = matches!(kind, Kind::Doomed { .. });
        held.kind = Kind::Spent { doomed };
        // One refusal is enough to say that misses were told while nothing was known; the next `set` counts again.
        for other in state.tickets.iter_mut().filter(|other| other.ticket.base.is_none()) {
            if ticket.base.is_none() && other.kind == Kind::Seen {
                other.kind = Kind::Spent { doomed: false };
            }
        }
        let lease = matches!(kind, Kind::Lease { .. });
        if lease {
            self.owners.leases_less(whose, id);
        }
        if doomed {
            Attribution::Invalidated
        } else {
            Attribution::Fill { ticket, lease, owner: Some(whose) }
        }
    }

    /// Which ticket a `set` of `owner` belongs to that names the CAS of its miss: the one of its own connection, else the lease,
    /// whoever holds it. [`Attribution::NoMiss`] if nobody was shown that CAS, or an invalidation has ended what it was shown for.
    ///
    /// The same CAS is shown to all who find the same stub: its winner, and those who are told that somebody builds. What
    /// another connection was told without a lease may have been told after a bump of which the value that comes here knows
    /// nothing, so of that only the CAS holds and no version. Nor is it taken away: that connection's own `set` may come yet,
    /// and would pass for somebody else's. `dooms`: it is a delete, behind which the winner's own `set` is dropped when it comes.
    pub fn attribute_by_cas(&mut self, key: &[u8], cas: u64, owner: Owner, dooms: bool) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::NoMiss };
        let shown = || state.tickets.iter().filter(|held| held.shown == Some(cas));
        let own = shown().find(|held| held.owner == owner);
        let named = own
            .or_else(|| shown().find(|held| held.is_lease()))
            .or_else(|| shown().find(|held| held.kind == Kind::Seen));
        let Some(Held { id, owner: whose, kind, mut ticket, .. }) = named.cloned() else {
            return Attribution::NoMiss;
        };
        let lease = match kind {
            Kind::Lease { renewing: true, .. } => return Attribution::Renewing,
            Kind::Lease { .. } => true,
            // The value that has been stored since has another CAS than the one that is named.
            Kind::Seen if ticket.filled => return Attribution::NoMiss,
            Kind::Seen => false,
            Kind::Doomed { .. } | Kind::Spent { .. } => {
                self.take(key, id);
                return Attribution::NoMiss;
            }
        };
        match whose == owner {
            true => drop(self.take(key, id)),
            false if lease => {
                if let Some(held) = self.find(key, id) {
                    held.kind = Kind::Spent { doomed: dooms };
                    self.owners.leases_less(whose, id);
                }
            }
            // Versions that no tag ever has.
            false => ticket.versions.iter_mut().for_each(|version| *version = 0),
        }
        let owner = (whose != owner && lease).then_some(whose);
        Attribution::Fill { ticket, lease, owner }
    }

    /// Whether this is the CAS that `owner` was shown with the miss that it was told.
    pub fn is_cas_of_miss(&self, key: &[u8], cas: u64, owner: Owner) -> bool {
        self.own(key, owner).is_some_and(|held| held.shown == Some(cas))
    }

    /// What `owner` may store over, if it is no fill (a `replace`, or what a count begins with) and this connection was told a miss
    /// that still counts: what it stores may be as old as that. The ticket stays, because its `set` may come yet.
    pub fn bound(&self, key: &[u8], owner: Owner, told: KnownMiss) -> StoreCondition {
        match (self.own(key, owner), told) {
            (None, KnownMiss::No) => StoreCondition::Unconditional,
            (None, KnownMiss::Yes) => StoreCondition::Observed(Observed::none()),
            (None, KnownMiss::Unknown) => StoreCondition::Unknown,
            (Some(Held { kind: Kind::Lease { renewing: true, .. }, .. }), _) => StoreCondition::Renewing,
            (Some(Held { kind: Kind::Doomed { .. } | Kind::Spent { doomed: true }, .. }), _) => {
                StoreCondition::Observed(Observed::none())
            }
            (Some(held), _) => StoreCondition::Observed(held.ticket.over()),
        }
    }

    fn take(&mut self, key: &[u8], id: MissTokenId) -> Option<MissToken> {
        let ticket = self.find(key, id)?.ticket.clone();
        self.remove_where(key, |held| held.id == id);
        self.tidy(key);
        Some(ticket)
    }
}

/// In which order the tickets of other connections are taken for what a `set` fills; `None`: not at all.
fn rank(held: &Held, owner: Owner, now: Now) -> Option<(u8, MissTokenId)> {
    if held.owner == owner || held.owner.peers != owner.peers || held.ends() <= now.mono {
        return None;
    }
    match held.kind {
        Kind::Doomed { by } if by != owner => Some((1, held.id)),
        Kind::Lease { .. } => Some((2, held.id)),
        Kind::Seen => Some((3, MissTokenId::MAX - held.id)),
        Kind::Doomed { .. } | Kind::Spent { .. } => None,
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

/// What a miss saw, to be stored over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observed {
    /// Its CAS.
    pub cas: Cas,
    /// Which stub it was, if it was one, or was stored over, if nobody was to see it.
    pub stub: Option<StubId>,
    /// The versions of the rule's tags, and perhaps of others behind them.
    pub versions: Versions,
}

impl Observed {
    /// Nothing is this.
    pub fn none() -> Observed {
        Observed { cas: Cas::NONE, stub: None, versions: Versions::new() }
    }

    /// Whether an item is still what was seen. A restarted server counts its CASes anew, so a stub must have been read in the same
    /// life of the connection.
    pub(in crate::guard) fn is(&self, item: &Item) -> bool {
        let stub = self.stub.zip(Stub::of(item)).is_some_and(|(seen, stub)| seen == stub.id);
        item.cas == self.cas || (stub && item.cas.epoch == self.cas.epoch)
    }

    /// Whether what stands there was stored over the very stub of the miss, but a tag of it had moved before that miss, and none has
    /// since. Then it counts for nothing, and whoever stored or won it has deleted nothing. `now`: the versions of the scene's tags.
    ///
    /// A stub ends with every delete, so nothing was deleted between that stub and what was stored over it; nor since, for a delete
    /// that leaves the value marks it stale.
    pub(in crate::guard) fn outlives(&self, item: &Item, now: &Versions, scene: &Inputs<'_>) -> bool {
        let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return false };
        let is_same = self.stub.is_some() && self.stub == StubId::of_value(&item.value);
        if !is_same || item.stale || item.cas.epoch != self.cas.epoch {
            return false;
        }
        let own = scene.own();
        let is_current = now.get(..own.len()).is_some_and(|now| self.versions.get(..own.len()) == Some(now));
        is_current && is_out_of_date(&envelope, now, scene)
    }
}
