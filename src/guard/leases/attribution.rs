//! Whose a `set` is: the fill for which miss, if any. Decision 0010 says why it is decided like this.

use super::{Cas, Held, Kind, Leases, Owner, Ticket, TicketId};

/// What a `set` means for the leases of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribution {
    /// It ends no rebuild that this sidecar knows of.
    Blind,
    /// It is the fill for this ticket, which is taken with it.
    Fill {
        /// What was seen.
        ticket: Ticket,
        /// Whether it is a lease that ends with it.
        lease: bool,
        /// Whose it was, if somebody else's: they are remembered, because their own `set` may come yet.
        owner: Option<Owner>,
        /// It may as well belong to another ticket or none: if it cannot be stored, what stands there must go too.
        wary: bool,
    },
    /// It is the fill for a lease that an invalidation has ended: to be dropped.
    Doomed,
    /// The lease is being renewed at this moment, which changes the CAS that the fill needs: try again when woken.
    Renewing,
}

impl<W> Leases<W> {
    /// Which ticket a `set` of `owner` belongs to: the one of its own connection; else, because clients with pools read on one
    /// connection and write on another, one that this sidecar holds for the key.
    ///
    /// Then a doomed one comes first, unless this very connection doomed it: the `set` that follows a `delete` on one
    /// connection is newer than it. Where there is no lease either, somebody was told a miss without one, and this may be
    /// their value or a new one: it is stored over what the latest of them saw, or else nothing is left there.
    pub fn attribute(&mut self, key: &[u8], owner: Owner) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::Blind };
        let rank = |held: &Held| match held.kind {
            _ if held.owner == owner => Some((0, held.id)),
            Kind::Doomed { by } if by != Some(owner) => Some((1, held.id)),
            Kind::Lease { .. } => Some((2, held.id)),
            Kind::Seen => Some((3, TicketId::MAX - held.id)),
            Kind::Doomed { .. } | Kind::Spent { .. } => None,
        };
        let ranked = state.tickets.iter_mut().filter_map(|held| Some((rank(held)?, held)));
        let Some((_, held)) = ranked.min_by_key(|(rank, _)| *rank) else { return Attribution::Blind };
        let Held { id, owner: whose, kind, ticket, .. } = held.clone();
        if matches!(kind, Kind::Lease { renewing: true, .. }) {
            return Attribution::Renewing;
        }
        let doomed = matches!(kind, Kind::Doomed { .. } | Kind::Spent { doomed: true });
        if whose == owner {
            self.remove_where(key, |held| held.id == id);
        } else {
            held.kind = Kind::Spent { doomed };
            // One refusal is enough to say that misses were told while nothing was known; the next `set` counts again.
            for other in state.tickets.iter_mut().filter(|other| other.ticket.base.is_none()) {
                if ticket.base.is_none() && other.kind == Kind::Seen {
                    other.kind = Kind::Spent { doomed: false };
                }
            }
        }
        match kind {
            _ if doomed => Attribution::Doomed,
            kind => Attribution::Fill {
                ticket,
                lease: matches!(kind, Kind::Lease { .. }),
                owner: (whose != owner).then_some(whose),
                wary: matches!(kind, Kind::Spent { .. }) || (whose != owner && kind == Kind::Seen),
            },
        }
    }

    /// Which ticket a `set` of `owner` belongs to that names the CAS of its miss: the one of its own connection, else the lease,
    /// whoever holds it. [`Attribution::Blind`] if nobody was shown that CAS, or an invalidation has ended what it was shown for.
    ///
    /// The same CAS is shown to all who find the same stub: its winner, and those who are told that somebody builds. What
    /// another connection was told without a lease may have been told after a bump of which the value that comes here knows
    /// nothing, so of that only the CAS holds and no version. Nor is it taken away: that connection's own `set` may come yet,
    /// and would pass for somebody else's. `dooms`: it is a delete, behind which the winner's own `set` is dropped when it comes.
    pub fn named(&mut self, key: &[u8], cas: u64, owner: Owner, dooms: bool) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::Blind };
        let is_lease = |held: &Held| matches!(held.kind, Kind::Lease { .. });
        let shown = || state.tickets.iter().filter(|held| held.shown == Some(cas));
        let own = shown().find(|held| held.owner == owner);
        let named = own
            .or_else(|| shown().find(|held| is_lease(held)))
            .or_else(|| shown().find(|held| held.kind == Kind::Seen));
        let Some(Held { id, owner: whose, kind, mut ticket, .. }) = named.cloned() else {
            return Attribution::Blind;
        };
        let lease = match kind {
            Kind::Lease { renewing: true, .. } => return Attribution::Renewing,
            Kind::Lease { .. } => true,
            Kind::Seen => false,
            Kind::Doomed { .. } | Kind::Spent { .. } => {
                self.remove_where(key, |held| held.id == id);
                return Attribution::Blind;
            }
        };
        match whose == owner {
            true => self.remove_where(key, |held| held.id == id),
            false if lease => {
                if let Some(held) = self.find(key, id) {
                    held.kind = Kind::Spent { doomed: dooms };
                }
            }
            // Versions that no tag ever has.
            false => ticket.versions.iter_mut().for_each(|version| *version = 0),
        }
        let owner = (whose != owner && lease).then_some(whose);
        Attribution::Fill { ticket, lease, owner, wary: false }
    }

    /// What `owner` may store over, if it is no fill (a `replace`, or what a count begins with) and this connection was told a miss
    /// that still counts: what it stores may be as old as that. The ticket stays, because its `set` may come yet.
    pub fn bound(&self, key: &[u8], owner: Owner) -> Bound {
        let mut held = self.keys.get(key).into_iter().flat_map(|state| &state.tickets);
        match held.find(|held| held.owner == owner) {
            None => Bound::Free,
            Some(Held { kind: Kind::Lease { renewing: true, .. }, .. }) => Bound::Renewing,
            Some(Held { kind: Kind::Doomed { .. } | Kind::Spent { doomed: true }, .. }) => {
                Bound::Over(Cas::NONE)
            }
            Some(held) => Bound::Over(held.ticket.base.unwrap_or(Cas::NONE)),
        }
    }
}

/// What a connection may store over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Whatever the command itself allows.
    Free,
    /// Only what its miss saw; [`Cas::NONE`], which nothing has: nothing.
    Over(Cas),
    /// Its lease is being renewed at this moment, which may change what that is: try again when woken.
    Renewing,
}
