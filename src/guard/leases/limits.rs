//! Limits how many tokens and leases the table holds, in total and for each connection.
//!
//! The connection that holds most gives up its oldest. A client that never fills its misses thus makes room for those that
//! do, and a connection that holds few loses none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Entry, MissTokenId, Owner};
use super::miss_token::MissToken;

/// The most leases in one table. Each costs its server a renewal every third of `lock_ttl`.
pub const MAX_LEASES: usize = 256;
/// The most leases of one connection in one table.
pub const MAX_LEASES_PER_OWNER: usize = 32;
/// The most miss tokens of one connection in one table.
pub(super) const MAX_TOKENS_PER_OWNER: usize = 512;
/// The most entries of one key: the oldest that is no lease makes room, and its `set` is dropped.
pub(super) const MAX_ENTRIES_PER_KEY: usize = 256;
/// What concerns all misses of a connection looks at this many of them at most, the latest first.
pub(super) const LATEST: usize = 64;
/// Memory for an entry besides its names, in bytes: in the table, in the index by owner, and among the
/// pending renewals.
const TOKEN_BYTES: usize = size_of::<Entry>() + 192;

/// What each connection holds in a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PerOwner {
    max_bytes: usize,
    pub(super) bytes: usize,
    holdings: BTreeMap<Owner, Holdings>,
    by_tokens: BTreeSet<Rank>,
    by_leases: BTreeSet<Rank>,
    by_peers: BTreeMap<u64, OfPeers>,
    leases: usize,
}

/// What the connections hold that may belong to one client.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct OfPeers {
    leases: usize,
    /// Those that hold anything.
    owners: BTreeSet<Owner>,
}

/// How many tokens or leases an owner has. Of owners with the same number, the one with the oldest is last.
type Rank = (usize, Reverse<MissTokenId>, Owner);

/// IDs ascend: the first is the oldest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Holdings {
    tokens: BTreeMap<MissTokenId, Box<[u8]>>,
    leases: BTreeSet<MissTokenId>,
}

impl Holdings {
    /// By number of tokens, and by number of leases.
    fn ranks(&self, owner: Owner) -> (Rank, Rank) {
        let oldest = |id: Option<&MissTokenId>| Reverse(id.copied().unwrap_or_default());
        let tokens = (self.tokens.len(), oldest(self.tokens.keys().next()), owner);
        (tokens, (self.leases.len(), oldest(self.leases.first()), owner))
    }
}

impl PerOwner {
    pub(super) fn new(max_bytes: usize) -> PerOwner {
        let (holdings, by_tokens, by_leases) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let by_peers = BTreeMap::new();
        PerOwner { max_bytes, bytes: 0, holdings, by_tokens, by_leases, by_peers, leases: 0 }
    }

    pub(super) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    fn bytes_of(key: &[u8], entry: &Entry) -> usize {
        let added_tags: usize =
            entry.token.added_tags.iter().map(|name| size_of_val(name) + name.len()).sum();
        // The key is stored in the table and here, and that of a lease once more.
        TOKEN_BYTES + 3 * key.len() + added_tags
    }

    pub(super) fn add(&mut self, key: &[u8], entry: &Entry) {
        self.bytes += PerOwner::bytes_of(key, entry);
        self.change(entry.owner, |holdings| {
            holdings.tokens.insert(entry.id, key.into());
            if entry.is_lease() {
                holdings.leases.insert(entry.id);
            }
        });
    }

    pub(super) fn remove(&mut self, key: &[u8], entry: &Entry) {
        self.bytes -= PerOwner::bytes_of(key, entry);
        self.change(entry.owner, |holdings| {
            holdings.tokens.remove(&entry.id);
            holdings.leases.remove(&entry.id);
        });
    }

    /// Changes the token of an entry.
    pub(super) fn update_token(
        &mut self,
        key: &[u8],
        entry: &mut Entry,
        change: impl FnOnce(&mut MissToken),
    ) {
        self.bytes -= PerOwner::bytes_of(key, entry);
        change(&mut entry.token);
        self.bytes += PerOwner::bytes_of(key, entry);
    }

    /// The entry is no longer a lease.
    pub(super) fn remove_lease(&mut self, owner: Owner, id: MissTokenId) {
        self.change(owner, |holdings| {
            holdings.leases.remove(&id);
        });
    }

    fn change(&mut self, owner: Owner, change: impl FnOnce(&mut Holdings)) {
        let holdings = self.holdings.entry(owner).or_default();
        let before = holdings.ranks(owner);
        change(holdings);
        let after = holdings.ranks(owner);
        let of_peers = self.by_peers.entry(owner.peers).or_default();
        of_peers.leases = of_peers.leases + after.1.0 - before.1.0;
        self.leases = self.leases + after.1.0 - before.1.0;
        if after.0.0 > 0 {
            of_peers.owners.insert(owner);
        } else {
            self.holdings.remove(&owner);
            of_peers.owners.remove(&owner);
            if of_peers.owners.is_empty() {
                self.by_peers.remove(&owner.peers);
            }
        }
        replace(&mut self.by_tokens, before.0, after.0);
        replace(&mut self.by_leases, before.1, after.1);
    }

    pub(super) fn has_lease_of(&self, peers: u64) -> bool {
        self.by_peers.get(&peers).is_some_and(|of_peers| of_peers.leases > 0)
    }

    pub(super) fn has_lease(&self, connection: u64) -> bool {
        let all = Owner { connection, peers: 0 }..=Owner { connection, peers: u64::MAX };
        self.holdings.range(all).any(|(_, holdings)| !holdings.leases.is_empty())
    }

    /// This owner; with `peers`, all that have an entry and may belong to the same client.
    pub(super) fn owners(&self, owner: Owner, peers: bool) -> impl Iterator<Item = Owner> {
        let of_peers = self.by_peers.get(&owner.peers).filter(|_| peers);
        let others = of_peers.into_iter().flat_map(|of_peers| &of_peers.owners).copied();
        std::iter::once(owner).chain(others.filter(move |other| *other != owner))
    }

    pub(super) fn keys_of(&self, owner: Owner) -> Vec<Box<[u8]>> {
        self.holdings
            .get(&owner)
            .map(|holdings| holdings.tokens.values().cloned().collect())
            .unwrap_or_default()
    }

    /// The keys of its tokens, the latest first.
    pub(super) fn latest(&self, owner: Owner) -> impl Iterator<Item = &Box<[u8]>> {
        self.holdings.get(&owner).into_iter().flat_map(|holdings| holdings.tokens.values().rev())
    }

    pub(super) fn leases(&self) -> usize {
        self.leases
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let indexes = self.by_tokens.is_empty() && self.by_leases.is_empty() && self.by_peers.is_empty();
        self.holdings.is_empty() && indexes && self.bytes == 0
    }

    /// The lease to end if there are too many.
    pub(super) fn excess_lease(&self) -> Option<(Box<[u8]>, MissTokenId)> {
        let (most, _, owner) = *self.by_leases.last()?;
        if self.leases <= MAX_LEASES && most <= MAX_LEASES_PER_OWNER {
            return None;
        }
        let holdings = self.holdings.get(&owner)?;
        let id = *holdings.leases.first()?;
        Some((holdings.tokens.get(&id)?.clone(), id))
    }

    /// The token to remove if there are too many.
    pub(super) fn excess_token(&self) -> Option<(Box<[u8]>, MissTokenId)> {
        let (most, _, owner) = *self.by_tokens.last()?;
        if self.bytes <= self.max_bytes && most <= MAX_TOKENS_PER_OWNER {
            return None;
        }
        let (id, key) = self.holdings.get(&owner)?.tokens.first_key_value()?;
        Some((key.clone(), *id))
    }
}

fn replace(ranks: &mut BTreeSet<Rank>, before: Rank, after: Rank) {
    if before != after {
        ranks.remove(&before);
        if after.0 > 0 {
            ranks.insert(after);
        }
    }
}
