//! The limits of the table.

use super::super::limits::*;
use super::*;

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
