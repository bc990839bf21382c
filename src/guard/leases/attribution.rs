//! Decides which miss a `set` fills, if any. Decision 0005 gives the reasons.

use crate::guard::inputs::Now;
use crate::guard::tag_version::Versions;
use crate::metrics::LeaseEnd;

use super::entry::{Entry, EntryKind, MissTokenId, Owner};
use super::miss_token::MissToken;
use super::observed::Observed;
use super::table::{Ended, Leases};

/// What a `set` means for the leases of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, for one statement")]
pub enum Attribution {
    /// It ends no rebuild of this sidecar.
    NoMiss,
    /// It fills this miss, whose token is removed.
    Fill {
        /// What the miss saw.
        token: MissToken,
        /// Whether a lease ends with it.
        lease: bool,
        /// The owner, if that is another connection. Its entry is kept because its own `set` may follow.
        owner: Option<Owner>,
    },
    /// It fills a miss that was invalidated or has expired: the value is dropped.
    Invalidated,
    /// The connection has had more misses than are remembered, and this key may be among them: the `set` is
    /// refused.
    Unknown,
    /// The lease is being renewed, which changes the CAS that the fill needs. Try again when woken.
    Renewing,
}

/// What a connection remembers about its own misses of a key. The table may have removed their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KnownMiss {
    /// It had none, or has since set or deleted the key or been served a hit.
    No,
    /// It had one.
    Yes,
    /// It had so many that this key may be among the forgotten ones.
    Unknown,
}

/// The sender of a `set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Connection that writes.
    pub owner: Owner,
    /// What that connection remembers.
    pub known_miss: KnownMiss,
    /// Whether the `set` may fill a miss of another connection of the same client.
    pub pooled: bool,
}

impl<W> Leases<W> {
    /// Attributes a `set` to a miss: to that of its own connection, or, if the client has a connection pool,
    /// to one of the client's other connections that has not expired.
    ///
    /// Among the latter an invalidated one comes first, unless this connection has invalidated it: a `set`
    /// that follows a `delete` on the same connection is newer than it. Then comes the lease, then the latest
    /// plain miss.
    pub fn attribute(&mut self, key: &[u8], writer: Writer, now: Now) -> Attribution {
        let Writer { owner, known_miss, pooled } = writer;
        let own = self.entry_of(key, owner).map(|entry| (entry.id, entry.kind, entry.ends() <= now.mono));
        match (own, known_miss) {
            (Some((_, EntryKind::Lease { renewing: true, .. }, _)), _) => Attribution::Renewing,
            (Some((id, kind, is_late)), _) => {
                let taken = self.take(key, id);
                match (kind, taken) {
                    (EntryKind::Invalidated { .. } | EntryKind::Taken { invalidated: true }, _)
                    | (_, None) => Attribution::Invalidated,
                    _ if is_late => Attribution::Invalidated,
                    (_, Some(token)) => {
                        let lease = matches!(kind, EntryKind::Lease { .. });
                        Attribution::Fill { token, lease, owner: None }
                    }
                }
            }
            (None, KnownMiss::Yes) => Attribution::Invalidated,
            (None, KnownMiss::Unknown) => Attribution::Unknown,
            (None, KnownMiss::No) if pooled => self.attribute_to_peers(key, owner, now),
            (None, KnownMiss::No) => Attribution::NoMiss,
        }
    }

    /// A `set` of a pooled client was dropped because of an earlier miss. It may have been the fill of a lease that another connection
    /// of the same client holds, and then no other fill follows: nobody must wait for one. The leases become plain misses, whose own
    /// `set` is stored all the same. Returns them, to be released.
    pub fn give_up_peers(&mut self, key: &[u8], owner: Owner) -> Vec<Ended> {
        let mut ended = Vec::new();
        let state = self.keys.get_mut(key);
        for entry in state.into_iter().flat_map(|state| &mut state.entries) {
            let may_be_filled = !entry.withheld && entry.owner.peers == owner.peers;
            if !may_be_filled || !matches!(entry.kind, EntryKind::Lease { renewing: false, .. }) {
                continue;
            }
            entry.kind = EntryKind::Miss;
            self.owners.remove_lease(entry.owner, entry.id);
            let (commands, fence, plan) = (entry.release(), entry.token.fence, entry.token.plan);
            ended.push(Ended { key: key.into(), end: LeaseEnd::Dropped, commands, fence, plan });
        }
        ended
    }

    /// Whether a `set` without a miss of its own connection could fill one of another connection for which no
    /// `set` has been counted.
    pub fn matches_pool_miss(&mut self, key: &[u8], owner: Owner, now: Now) -> bool {
        let mut entries = self.keys.get_mut(key).into_iter().flat_map(|state| &mut state.entries);
        let pair = entries.find(|entry| !entry.paired && rank(entry, owner, now).is_some());
        pair.map(|entry| entry.paired = true).is_some()
    }

    fn attribute_to_peers(&mut self, key: &[u8], owner: Owner, now: Now) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::NoMiss };
        let ranked = state.entries.iter_mut().filter_map(|entry| Some((rank(entry, owner, now)?, entry)));
        let Some((_, entry)) = ranked.min_by_key(|(rank, _)| *rank) else { return Attribution::NoMiss };
        let Entry { id, owner: token_owner, kind, mut token, raised, .. } = entry.clone();
        if raised {
            token.versions = unknown_versions(&token);
        }
        if matches!(kind, EntryKind::Lease { renewing: true, .. }) {
            return Attribution::Renewing;
        }
        let invalidated = matches!(kind, EntryKind::Invalidated { .. });
        entry.kind = EntryKind::Taken { invalidated };
        // One refusal is enough to report that a server did not reply to several misses. The next `set`
        // counts as new.
        for other in state.entries.iter_mut().filter(|other| other.token.observed_cas.is_none()) {
            if token.observed_cas.is_none() && other.kind == EntryKind::Miss {
                other.kind = EntryKind::Taken { invalidated: false };
            }
        }
        let lease = matches!(kind, EntryKind::Lease { .. });
        if lease {
            self.owners.remove_lease(token_owner, id);
        }
        if invalidated {
            Attribution::Invalidated
        } else {
            Attribution::Fill { token, lease, owner: Some(token_owner) }
        }
    }

    /// Attributes a `set` or delete of `owner` that sends the CAS of its miss: to the miss of its own
    /// connection, otherwise to the lease, which any connection may hold. [`Attribution::NoMiss`] if no client received
    /// that CAS, or if the key has been invalidated since.
    ///
    /// All who find the same stub receive the same CAS: the winner, and those that lost. A loser on another
    /// connection may have missed after a bump that the value sent here predates. Its CAS is therefore valid
    /// for this `set`, but its versions are not. Nor are those of the winner on another connection, if one that lost has
    /// others: the winner may have read the tags later than the stub, and the value may be the loser's. The same holds once the
    /// winner's connection has read the key again or bumped a tag. The loser's entry is not removed: its own `set` may follow
    /// and would count as one without a miss. `is_delete`: the winner's own `set` is dropped when it arrives.
    pub fn attribute_by_cas(&mut self, key: &[u8], cas: u64, owner: Owner, is_delete: bool) -> Attribution {
        let Some(state) = self.keys.get_mut(key) else { return Attribution::NoMiss };
        let received = || state.entries.iter().filter(|entry| entry.shown_cas == Some(cas));
        let own = received().find(|entry| entry.owner == owner);
        let matching = own
            .or_else(|| received().find(|entry| entry.is_lease()))
            .or_else(|| received().find(|entry| entry.kind == EntryKind::Miss));
        let Some(Entry { id, owner: token_owner, kind, mut token, raised, .. }) = matching.cloned() else {
            return Attribution::NoMiss;
        };
        let may_predate = raised || received().any(|entry| entry.token.versions != token.versions);
        let lease = match kind {
            EntryKind::Lease { renewing: true, .. } => return Attribution::Renewing,
            EntryKind::Lease { .. } => true,
            // The value that was stored since has another CAS.
            EntryKind::Miss if token.filled => return Attribution::NoMiss,
            EntryKind::Miss => false,
            EntryKind::Invalidated { .. } | EntryKind::Taken { .. } => {
                self.take(key, id);
                return Attribution::NoMiss;
            }
        };
        if token_owner == owner {
            self.take(key, id);
        } else if lease && let Some(entry) = self.find(key, id) {
            entry.kind = EntryKind::Taken { invalidated: is_delete };
            self.owners.remove_lease(token_owner, id);
        }
        if token_owner != owner && (!lease || may_predate) {
            token.versions = unknown_versions(&token);
        }
        let owner = (token_owner != owner && lease).then_some(token_owner);
        Attribution::Fill { token, lease, owner }
    }

    /// Whether `owner` received this CAS with its miss.
    pub fn is_cas_of_miss(&self, key: &[u8], cas: u64, owner: Owner) -> bool {
        self.entry_of(key, owner).is_some_and(|entry| entry.shown_cas == Some(cas))
    }

    /// What `owner` may store over with a command that is no fill: a `replace`, or a count or append that
    /// creates the item. If this connection has had a miss, the new value may be as old as that. The token
    /// remains, because its `set` may follow.
    pub fn store_condition(&self, key: &[u8], owner: Owner, known_miss: KnownMiss) -> StoreCondition {
        match (self.entry_of(key, owner), known_miss) {
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

/// As many versions as the token has. No tag ever has these, so the value is out of date for the next reader.
fn unknown_versions(token: &MissToken) -> Versions {
    token.versions.iter().map(|_| 0).collect()
}

/// In which order the misses of other connections are considered; `None` if not at all.
fn rank(entry: &Entry, owner: Owner, now: Now) -> Option<(u8, MissTokenId)> {
    if entry.withheld || entry.owner == owner || entry.owner.peers != owner.peers || entry.ends() <= now.mono
    {
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
    /// Any item that the command itself permits.
    Unconditional,
    /// Only what its miss saw. [`Observed::none()`] permits nothing.
    Observed(Observed),
    /// Its lease is being renewed, which may change the CAS. Try again when woken.
    Renewing,
    /// Unknown, as [`Attribution::Unknown`].
    Unknown,
}
