//! The limits of the table.

use super::super::limits::*;
use super::super::room::SWEPT_AT_ONCE;
use super::*;
use crate::looked_at;

const NOW: Now = Now { wall: 1_000_000, mono: 1_000 };

fn token() -> MissToken {
    MissToken { observed_cas: Some(cas(7)), stub: Some(StubId::of(7)), ..MissToken::unanswered(NOW) }
}

fn win(leases: &mut Leases<u32>, key: u32, connection: u64) -> Vec<Ended> {
    leases.grant(&key.to_le_bytes(), connection.into(), token(), &Policy::default()).1
}

fn miss(leases: &mut Leases<u32>, key: u32, connection: u64) {
    let ended = leases.record_miss(&key.to_le_bytes(), connection.into(), token(), &Policy::default());
    assert!(ended.is_empty());
}

fn set(leases: &mut Leases<u32>, key: u32, connection: u64) -> Attribution {
    let writer = Writer { owner: connection.into(), known_miss: KnownMiss::Yes, pooled: false };
    leases.attribute(&key.to_le_bytes(), writer, NOW)
}

#[test]
fn a_connection_that_never_fills_loses_its_oldest_leases_and_can_still_fill_them() {
    let mut leases: Leases<u32> = Leases::default();
    win(&mut leases, 0, 1);
    for key in 1..=1000 {
        let ended = win(&mut leases, key, 2);
        let oldest = key.checked_sub(MAX_LEASES_PER_OWNER as u32).filter(|oldest| *oldest > 0);
        let keys: Vec<_> = ended.iter().map(|ended| ended.key.clone()).collect();
        assert_eq!(keys, Vec::from_iter(oldest.map(|oldest| Box::from(oldest.to_le_bytes()))));
        assert!(ended.iter().all(|ended| ended.end == LeaseEnd::Limit && ended.commands.len() == 1));
    }
    assert_eq!(leases.census().0, 1 + MAX_LEASES_PER_OWNER);
    assert!(leases.rebuilds(1), "a connection that holds one lease keeps it");
    assert!(matches!(set(&mut leases, 900, 2), Attribution::Fill { lease: false, .. }));
    assert!(matches!(set(&mut leases, 1000, 2), Attribution::Fill { lease: true, .. }));
}

#[test]
fn of_connections_with_as_many_leases_the_one_with_the_oldest_makes_room() {
    let mut leases: Leases<u32> = Leases::default();
    for client in 1..=MAX_LEASES as u32 {
        assert!(win(&mut leases, client, client.into()).is_empty());
    }
    let ended = win(&mut leases, 9999, 9999);
    assert_eq!(ended.iter().map(|ended| &ended.key[..]).collect::<Vec<_>>(), [1_u32.to_le_bytes()]);
    assert!(leases.rebuilds(9999));
}

#[test]
fn the_connection_with_most_misses_loses_tokens_and_the_table_stays_within_its_bytes() {
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
    assert_eq!(set(&mut leases, 100, 2), Attribution::Invalidated, "its connection remembers the miss");
    assert!(matches!(set(&mut leases, 10_099, 2), Attribution::Fill { .. }));
    for client in 2..5 {
        leases.disconnect(Owner::from(client));
    }
    assert!(leases.owners.is_empty() && leases.keys.is_empty());
}

#[test]
fn one_connection_has_no_more_than_its_share_even_if_there_is_room() {
    let mut leases: Leases<u32> = Leases::default();
    for key in 0..2 * MAX_TOKENS_PER_OWNER as u32 {
        miss(&mut leases, key, 1);
    }
    assert_eq!(leases.owners.keys_of(1.into()).len(), MAX_TOKENS_PER_OWNER);
    let (first, last) = (0, 2 * MAX_TOKENS_PER_OWNER as u32 - 1);
    assert_eq!(set(&mut leases, first, 1), Attribution::Invalidated, "its connection remembers the miss");
    assert!(matches!(set(&mut leases, last, 1), Attribution::Fill { .. }));
}

#[test]
fn of_a_keys_misses_the_oldest_makes_room_and_its_lease_stays() {
    let mut leases: Leases<u32> = Leases::default();
    win(&mut leases, 0, 1);
    for connection in 2..=3 * MAX_ENTRIES_PER_KEY as u64 {
        miss(&mut leases, 0, connection);
        assert!(leases.keys[&0_u32.to_le_bytes()[..]].entries.len() <= MAX_ENTRIES_PER_KEY);
    }
    assert_eq!(leases.take_evicted(), 2 * MAX_ENTRIES_PER_KEY as u64);
    assert_eq!(set(&mut leases, 0, 2), Attribution::Invalidated, "its connection remembers the miss");
    let last = 3 * MAX_ENTRIES_PER_KEY as u64;
    assert!(matches!(set(&mut leases, 0, last), Attribution::Fill { lease: false, .. }));
    assert!(matches!(set(&mut leases, 0, 1), Attribution::Fill { lease: true, .. }));
    (2..=last).for_each(|connection| drop(leases.disconnect(connection.into())));
    assert!(leases.owners.is_empty() && leases.keys.is_empty());
}

#[test]
fn a_bump_concerns_the_latest_misses_of_its_connection_and_looks_at_no_others() {
    let tag = TagName::from_slice(b"a");
    let mut leases: Leases<u32> = Leases::default();
    for key in 0..MAX_TOKENS_PER_OWNER as u32 {
        let token = MissToken { versions: smallvec![4], ..token() };
        assert!(leases.record_miss(&key.to_le_bytes(), 1.into(), token, &Policy::default()).is_empty());
    }
    let bump = || leases.record_bump(1.into(), &tag, (4, 5), |_| [tag.clone()]);
    assert_eq!(looked_at::during(bump), LATEST as u64);
    let mut version = |key| match set(&mut leases, key, 1) {
        Attribution::Fill { token, .. } => token.versions[0],
        other => panic!("{other:?}"),
    };
    let latest = (MAX_TOKENS_PER_OWNER - LATEST) as u32;
    assert_eq!((version(latest - 1), version(latest)), (4, 5));
}

#[test]
fn whether_a_pool_awaits_a_fill_is_seen_from_its_own_latest_misses() {
    let owner = |connection, peers| Owner { connection, peers };
    let mut leases: Leases<u32> = Leases::default();
    // Clients of other pools, and many connections of this one that have misses that nobody may fill any more.
    for connection in 0..1_000 {
        let key = (connection as u32).to_le_bytes();
        let owner = owner(connection, if connection < 500 { 7 } else { 8 });
        assert!(leases.record_miss(&key, owner, token(), &Policy::default()).is_empty());
        leases.invalidate(&key, Owner::from(9_999));
    }
    let cost = |leases: &Leases<u32>, expected| {
        looked_at::during(|| assert_eq!(leases.awaits_fill(owner(5_000, 7), true, NOW), expected))
    };
    assert_eq!(cost(&leases, false), LATEST as u64);
    leases.grant(b"won", owner(600, 7), token(), &Policy::default());
    assert_eq!(cost(&leases, true), 0);
}

#[test]
fn the_sweep_looks_at_a_full_table_in_small_steps() {
    let mut leases: Leases<u32> = Leases::default();
    for key in 0..10_000 {
        miss(&mut leases, key, u64::from(key / 500));
    }
    win(&mut leases, 10_000, 99);
    let later = Now { mono: NOW.mono + 10_000_000, ..NOW };
    let mut steps = 0;
    let mut is_unfinished = true;
    while is_unfinished {
        let cost = looked_at::during(|| is_unfinished = leases.sweep(later));
        assert!(cost <= SWEPT_AT_ONCE as u64, "{cost}");
        steps += 1;
    }
    assert_eq!((leases.keys.len(), steps), (1, 10_001 / SWEPT_AT_ONCE + 1));
}

#[test]
fn each_of_as_many_waiting_requests_as_there_may_be_can_give_up() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let waits = |leases: &mut Leases<u32>| leases.wait(KEY, 99.into(), NOW, &policy, true, 7);
    let waiters: Vec<_> = (0..MAX_WAITERS_PER_KEY)
        .map(|_| match waits(&mut leases) {
            Admission::Waits { waiter, .. } => waiter,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(waits(&mut leases), Admission::Full);
    for waiter in waiters {
        assert!(leases.has_waiters(KEY));
        leases.stop_waiting(KEY, waiter);
    }
    assert!(!leases.has_waiters(KEY) && leases.keys.is_empty());
}
