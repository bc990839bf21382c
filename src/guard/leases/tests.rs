use super::super::Leaves;
use super::*;

const KEY: &[u8] = b"k";

fn policy() -> Policy {
    Policy {
        stale_for: Duration::from_secs(10),
        lock_ttl: Duration::from_secs(2),
        max_rebuild: Duration::from_secs(20),
        stale_wait: Duration::ZERO,
        cold_wait: Duration::from_secs(1),
        on_tag: Leaves::Stale,
        on_delete: Leaves::Nothing,
        early_beta: 0.0,
        max_ttl: Duration::ZERO,
    }
}

fn cas(number: u64) -> Cas {
    Cas { number, epoch: 1 }
}

fn ticket(base: u64, mono: u64) -> Ticket {
    let at = Now { wall: 1_700_000_000_000 + mono, mono };
    Ticket { base: Some(cas(base)), lock: None, versions: Versions::new(), at, vanishes: None }
}

fn fill(leases: &mut Leases<()>, owner: Owner) -> (Option<Cas>, bool, Option<Owner>, bool) {
    match leases.attribute(KEY, owner) {
        Attribution::Fill { ticket, lease, owner, wary } => (ticket.base, lease, owner, wary),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_set_of_another_connection_ends_the_lease() {
    let mut leases = Leases::<()>::default();
    leases.grant(KEY, 1, ticket(5, 0), &policy()).unwrap();
    assert_eq!(fill(&mut leases, 2), (Some(cas(5)), true, Some(1), false));
    assert_eq!(leases.census(), (0, 0));
}

#[test]
fn a_set_that_may_be_anybodys_is_as_old_as_the_oldest_ticket() {
    let mut leases = Leases::<()>::default();
    leases.saw(KEY, 1, ticket(5, 0), &policy());
    leases.grant(KEY, 2, ticket(8, 10), &policy()).unwrap();
    assert_eq!(fill(&mut leases, 3), (Some(cas(5)), true, Some(2), true));
    // The older ticket is still there for the set that is still to come.
    assert_eq!(fill(&mut leases, 4), (Some(cas(5)), false, Some(1), true));
    assert_eq!(leases.attribute(KEY, 5), Attribution::Blind);
}

#[test]
fn a_set_that_may_belong_to_a_doomed_lease_is_never_stored() {
    let mut leases = Leases::<()>::default();
    leases.grant(KEY, 1, ticket(5, 0), &policy()).unwrap();
    leases.invalidate(KEY);
    leases.grant(KEY, 2, ticket(8, 10), &policy()).unwrap();
    assert_eq!(fill(&mut leases, 3), (None, true, Some(2), true));
}

#[test]
fn a_foreign_set_does_not_take_the_doom_from_the_one_it_belongs_to() {
    let mut leases = Leases::<()>::default();
    leases.grant(KEY, 1, ticket(5, 0), &policy()).unwrap();
    leases.invalidate(KEY);
    assert_eq!(fill(&mut leases, 2), (None, false, Some(1), true));
    let (_, _, _, wary) = fill(&mut leases, 1);
    assert!(wary, "its own set must not pass for a blind one");
}

#[test]
fn a_connection_with_a_ticket_of_its_own_fills_for_that() {
    let mut leases = Leases::<()>::default();
    leases.grant(KEY, 1, ticket(5, 0), &policy()).unwrap();
    leases.saw(KEY, 2, ticket(8, 10), &policy());
    assert_eq!(fill(&mut leases, 2), (Some(cas(8)), false, None, false));
    leases.invalidate(KEY);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Doomed);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Blind);
}

#[test]
fn an_invalidation_leaves_nothing_to_trust_of_a_spent_lease() {
    let mut leases = Leases::<()>::default();
    leases.grant(KEY, 1, ticket(5, 0), &policy()).unwrap();
    fill(&mut leases, 2);
    leases.filled(KEY, cas(6), Some((1, ticket(5, 0))), &policy());
    leases.invalidate(KEY);
    leases.grant(KEY, 3, ticket(9, 10), &policy()).unwrap();
    // It casts no doubt on the next rebuild, and its own set takes away what it cannot replace.
    assert_eq!(fill(&mut leases, 4), (Some(cas(9)), true, Some(3), false));
    assert_eq!(fill(&mut leases, 1), (None, false, None, true));
}
