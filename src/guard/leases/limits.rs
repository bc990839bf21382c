//! How much the table holds, for whom, and who makes room when it is too much.
//!
//! Whoever holds most gives up the oldest of it. So a client that is told misses and never answers them makes room for those who
//! do, and nobody who holds few loses any.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Ended, Held, Kind, Leases, MissTokenId, Owner};
use crate::metrics::LeaseEnd;

/// The most leases in one table. Each costs its server a renewal every third of `lock_ttl`.
pub const MAX_LEASES: usize = 256;
/// The most of them of one connection.
pub const MAX_LEASES_PER_OWNER: usize = 32;
/// The most tickets of one connection in one table.
const MAX_TICKETS_PER_OWNER: usize = 512;
/// What a ticket takes besides its names, in bytes: in the table, in the index by owner, and among what is to be renewed.
const TICKET_BYTES: usize = size_of::<Held>() + 192;

/// What each connection holds in a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PerOwner {
    max_bytes: usize,
    bytes: usize,
    held: BTreeMap<Owner, Holdings>,
    by_tickets: BTreeSet<Rank>,
    by_leases: BTreeSet<Rank>,
    leases: usize,
}

/// How many of something an owner has. Of those who have as many, the one with the oldest comes last.
type Rank = (usize, Reverse<MissTokenId>, Owner);

/// Numbers rise with time: the first is the oldest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Holdings {
    tickets: BTreeMap<MissTokenId, Box<[u8]>>,
    leases: BTreeSet<MissTokenId>,
}

impl Holdings {
    /// By tickets, and by leases.
    fn ranks(&self, owner: Owner) -> (Rank, Rank) {
        let oldest = |id: Option<&MissTokenId>| Reverse(id.copied().unwrap_or_default());
        let tickets = (self.tickets.len(), oldest(self.tickets.keys().next()), owner);
        (tickets, (self.leases.len(), oldest(self.leases.first()), owner))
    }
}

impl PerOwner {
    pub(super) fn new(max_bytes: usize) -> PerOwner {
        let (held, by_tickets, by_leases) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        PerOwner { max_bytes, bytes: 0, held, by_tickets, by_leases, leases: 0 }
    }

    fn weigh(key: &[u8], held: &Held) -> usize {
        let learnt: usize = held.ticket.learnt.iter().map(|name| size_of_val(name) + name.len()).sum();
        // The key stands in the table and here, and a lease's once more.
        TICKET_BYTES + 3 * key.len() + learnt
    }

    pub(super) fn add(&mut self, key: &[u8], held: &Held) {
        self.bytes += PerOwner::weigh(key, held);
        self.change(held.owner, |holdings| {
            holdings.tickets.insert(held.id, key.into());
            if held.is_lease() {
                holdings.leases.insert(held.id);
            }
        });
    }

    pub(super) fn remove(&mut self, key: &[u8], held: &Held) {
        self.bytes -= PerOwner::weigh(key, held);
        self.change(held.owner, |holdings| {
            holdings.tickets.remove(&held.id);
            holdings.leases.remove(&held.id);
        });
    }

    /// A ticket changes.
    pub(super) fn amend(&mut self, key: &[u8], held: &mut Held, change: impl FnOnce(&mut super::MissToken)) {
        self.bytes -= PerOwner::weigh(key, held);
        change(&mut held.ticket);
        self.bytes += PerOwner::weigh(key, held);
    }

    /// One of its tickets is no lease any more.
    pub(super) fn leases_less(&mut self, owner: Owner, id: MissTokenId) {
        self.change(owner, |holdings| {
            holdings.leases.remove(&id);
        });
    }

    fn change(&mut self, owner: Owner, change: impl FnOnce(&mut Holdings)) {
        let holdings = self.held.entry(owner).or_default();
        let before = holdings.ranks(owner);
        change(holdings);
        let after = holdings.ranks(owner);
        if after.0.0 == 0 {
            self.held.remove(&owner);
        }
        self.leases = self.leases + after.1.0 - before.1.0;
        replace(&mut self.by_tickets, before.0, after.0);
        replace(&mut self.by_leases, before.1, after.1);
    }

    pub(super) fn leads(&self, connection: u64) -> bool {
        let all = Owner { connection, peers: 0 }..=Owner { connection, peers: u64::MAX };
        self.held.range(all).any(|(_, holdings)| !holdings.leases.is_empty())
    }

    pub(super) fn keys_of(&self, owner: Owner) -> Vec<Box<[u8]>> {
        self.held.get(&owner).map(|holdings| holdings.tickets.values().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn leases(&self) -> usize {
        self.leases
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.by_tickets.is_empty() && self.by_leases.is_empty() && self.bytes == 0
    }

    /// The lease that is to end so that the others fit.
    fn lease_too_many(&self) -> Option<(Box<[u8]>, MissTokenId)> {
        let (most, _, owner) = *self.by_leases.last()?;
        if self.leases <= MAX_LEASES && most <= MAX_LEASES_PER_OWNER {
            return None;
        }
        let holdings = self.held.get(&owner)?;
        let id = *holdings.leases.first()?;
        Some((holdings.tickets.get(&id)?.clone(), id))
    }

    /// The same of tickets.
    fn ticket_too_many(&self) -> Option<(Box<[u8]>, MissTokenId)> {
        let (most, _, owner) = *self.by_tickets.last()?;
        if self.bytes <= self.max_bytes && most <= MAX_TICKETS_PER_OWNER {
            return None;
        }
        let (id, key) = self.held.get(&owner)?.tickets.first_key_value()?;
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

impl<W> Leases<W> {
    /// Ends leases and forgets tickets until the rest is within the bounds. The winner of a lease that ended so was told a miss like
    /// others: its `set` is stored if nothing has happened to the key since.
    pub(super) fn make_room(&mut self, ended: &mut Vec<Ended>) {
        while let Some((key, id)) = self.owners.lease_too_many() {
            let Some(held) = self.find(&key, id) else { return };
            let (owner, mut asks) = (held.owner, held.release());
            // What is being renewed has another CAS in a moment: what stands there then ends by itself.
            if let Kind::Lease { renewing: true, orphan } = held.kind {
                asks.clear();
                if orphan {
                    self.remove_where(&key, |held| held.id == id);
                    self.tidy(&key);
                    continue;
                }
            }
            held.kind = Kind::Seen;
            self.owners.leases_less(owner, id);
            ended.push(Ended { key, end: LeaseEnd::Limit, asks });
        }
        while let Some((key, id)) = self.owners.ticket_too_many() {
            let tickets = self.keys.get(&key).map(|state| &state.tickets[..]).unwrap_or_default();
            if let Some(held) = tickets.iter().find(|held| held.id == id && held.is_lease()) {
                ended.push(Ended { key: key.clone(), end: LeaseEnd::Limit, asks: held.release() });
            }
            self.forgotten += 1;
            self.remove_where(&key, |held| held.id == id);
            self.tidy(&key);
        }
    }

    /// How many tickets have been forgotten since this was asked last.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Attribution, Cas, KnownMiss, MissToken, Policy, StubId, Writer};
    use super::*;
    use crate::guard::command::Now;

    const NOW: Now = Now { wall: 1_000_000, mono: 1_000 };

    fn ticket() -> MissToken {
        MissToken {
            base: Some(Cas { number: 7, epoch: 1 }),
            stub: Some(StubId::of(7)),
            ..MissToken::nothing(NOW)
        }
    }

    fn win(leases: &mut Leases<u32>, key: u32, connection: u64) -> Vec<Ended> {
        leases.grant(&key.to_le_bytes(), connection.into(), ticket(), &Policy::default()).1
    }

    fn miss(leases: &mut Leases<u32>, key: u32, connection: u64) {
        let ended = leases.record_miss(&key.to_le_bytes(), connection.into(), ticket(), &Policy::default());
        assert!(ended.is_empty());
    }

    fn set(leases: &mut Leases<u32>, key: u32, connection: u64) -> Attribution {
        let setter = Writer { owner: connection.into(), told: KnownMiss::Yes, pooled: false };
        leases.attribute(&key.to_le_bytes(), setter, NOW)
    }

    #[test]
    fn who_wins_and_never_fills_gives_up_its_oldest_leases_and_can_fill_them_all_the_same() {
        let mut leases: Leases<u32> = Leases::default();
        win(&mut leases, 0, 1);
        for key in 1..=1000 {
            let ended = win(&mut leases, key, 2);
            let oldest = key.checked_sub(MAX_LEASES_PER_OWNER as u32).filter(|oldest| *oldest > 0);
            let keys: Vec<_> = ended.iter().map(|ended| ended.key.clone()).collect();
            assert_eq!(keys, Vec::from_iter(oldest.map(|oldest| Box::from(oldest.to_le_bytes()))));
            assert!(ended.iter().all(|ended| ended.end == LeaseEnd::Limit && ended.asks.len() == 1));
        }
        assert_eq!(leases.census().0, 1 + MAX_LEASES_PER_OWNER);
        assert!(leases.rebuilds(1), "who holds one keeps it");
        assert!(matches!(set(&mut leases, 900, 2), Attribution::Fill { lease: false, .. }));
        assert!(matches!(set(&mut leases, 1000, 2), Attribution::Fill { lease: true, .. }));
    }

    #[test]
    fn among_many_who_hold_as_much_the_oldest_makes_room() {
        let mut leases: Leases<u32> = Leases::default();
        for client in 1..=MAX_LEASES as u32 {
            assert!(win(&mut leases, client, client.into()).is_empty());
        }
        let ended = win(&mut leases, 9999, 9999);
        assert_eq!(ended.iter().map(|ended| &ended.key[..]).collect::<Vec<_>>(), [1_u32.to_le_bytes()]);
        assert!(leases.rebuilds(9999));
    }

    #[test]
    fn what_was_seen_is_forgotten_for_whoever_missed_most_and_the_table_stays_within_its_bytes() {
        let max_bytes = 100_000;
        let mut leases: Leases<u32> = Leases::new(max_bytes);
        for key in 0..10 {
            miss(&mut leases, key, 1);
        }
        for key in 0..10_000 {
            miss(&mut leases, 100 + key, 2 + u64::from(key % 3));
            assert!(leases.owners.bytes <= max_bytes);
        }
        assert!((0..10).all(|key| matches!(set(&mut leases, key, 1), Attribution::Fill { .. })));
        assert_eq!(
            set(&mut leases, 100, 2),
            Attribution::Invalidated,
            "its connection knows that there was a miss"
        );
        assert!(matches!(set(&mut leases, 10_099, 2), Attribution::Fill { .. }));
        for client in 2..5 {
            leases.disconnect(Owner::from(client));
        }
        assert!(leases.owners.is_empty() && leases.keys.is_empty());
    }

    #[test]
    fn one_connection_has_no_more_than_its_share_though_there_is_room() {
        let mut leases: Leases<u32> = Leases::default();
        for key in 0..2 * MAX_TICKETS_PER_OWNER as u32 {
            miss(&mut leases, key, 1);
        }
        assert_eq!(leases.owners.keys_of(1.into()).len(), MAX_TICKETS_PER_OWNER);
        let (first, last) = (0, 2 * MAX_TICKETS_PER_OWNER as u32 - 1);
        assert_eq!(
            set(&mut leases, first, 1),
            Attribution::Invalidated,
            "its connection knows that there was a miss"
        );
        assert!(matches!(set(&mut leases, last, 1), Attribution::Fill { .. }));
    }
}
