//! Fills and deletes that send the CAS of a miss.

use super::*;

#[test]
fn a_set_with_the_cas_of_a_miss_takes_the_token_of_that_miss() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1.into(), token(7), &policy).0.unwrap();
    leases.record_miss(KEY, 2.into(), token(6), &policy);
    assert_eq!(leases.attribute_by_cas(KEY, 5, 2.into(), false), Attribution::NoMiss);
    assert!(matches!(
        leases.attribute_by_cas(KEY, 6, 2.into(), false),
        Attribution::Fill { lease: false, .. }
    ));
    assert_eq!(leases.attribute_by_cas(KEY, 6, 2.into(), false), Attribution::NoMiss, "it is taken");
    assert!(matches!(leases.due(KEY, id, NOW, &policy, &[], 5), Due::Renew(_)));
    assert_eq!(leases.attribute_by_cas(KEY, 7, 1.into(), false), Attribution::Renewing);
    let renewed = cas(8);
    leases.renewed(KEY, id, &[ServerReply::Stored(renewed)], NOW.mono).unwrap();
    // The client received 7 and does not know of the renewal.
    assert_eq!(leases.attribute_by_cas(KEY, 8, 1.into(), false), Attribution::NoMiss);
    let Attribution::Fill { token, lease: true, .. } = leases.attribute_by_cas(KEY, 7, 1.into(), false)
    else {
        panic!("not the lease")
    };
    assert_eq!(token.observed_cas, Some(renewed));
}

#[test]
fn a_losers_miss_remains_if_another_connection_uses_the_same_cas() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.grant(KEY, 1.into(), token(7), &policy);
    leases.record_miss(
        KEY,
        2.into(),
        MissToken { versions: Versions::from_slice(&[50]), ..token(7) },
        &policy,
    );
    assert!(matches!(
        leases.attribute_by_cas(KEY, 7, 1.into(), false),
        Attribution::Fill { lease: true, owner: None, .. }
    ));
    let Attribution::Fill { token, lease: false, owner: None, .. } =
        leases.attribute_by_cas(KEY, 7, 3.into(), false)
    else {
        panic!("not attributed")
    };
    assert_eq!(token.versions[..], [0], "the miss of 2 may be newer than the value of 3");
    assert!(matches!(pooled(&mut leases, 2), Attribution::Fill { lease: false, owner: None, .. }));
}

#[test]
fn a_win_that_another_connection_fills_is_out_of_date_if_one_that_lost_has_other_versions() {
    let policy = Policy::default();
    let with = |version: u64| MissToken { versions: Versions::from_slice(&[version]), ..token(7) };
    for (loser, sender, sealed) in [(50, 3, 50), (40, 3, 0), (40, 1, 50), (40, 2, 40)] {
        let mut leases: Leases<u32> = Leases::default();
        leases.record_miss(KEY, 2.into(), with(loser), &policy);
        // The tag was bumped before the winner read it, and after the stub was left.
        leases.grant(KEY, 1.into(), with(50), &policy);
        let Attribution::Fill { token, .. } = leases.attribute_by_cas(KEY, 7, sender.into(), false) else {
            panic!("not attributed")
        };
        assert_eq!(token.versions[..], [sealed], "{loser} {sender}");
    }
}

#[test]
fn a_lease_that_another_connection_filled_by_its_cas_is_remembered_for_its_owner() {
    let mut leases: Leases<u32> = Leases::default();
    leases.grant(KEY, 1.into(), token(7), &Policy::default());
    assert!(matches!(
        leases.attribute_by_cas(KEY, 7, 2.into(), false),
        Attribution::Fill { lease: true, owner: Some(Owner { connection: 1, .. }), .. }
    ));
    assert!(matches!(pooled(&mut leases, 1), Attribution::Fill { lease: false, .. }));
}

#[test]
fn the_token_of_a_lease_that_another_connection_filled_does_not_obscure_a_later_lease() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.grant(KEY, 1.into(), token(7), &policy);
    let Attribution::Fill { token: first, owner: Some(Owner { connection: 1, .. }), .. } =
        leases.attribute_by_cas(KEY, 7, 2.into(), false)
    else {
        panic!("not the lease")
    };
    filled(&mut leases, 8, &first, 1);
    leases.grant(KEY, 3.into(), token(8), &policy);
    assert!(matches!(
        leases.attribute_by_cas(KEY, 8, 2.into(), false),
        Attribution::Fill { lease: true, owner: Some(Owner { connection: 3, .. }), .. }
    ));
}

#[test]
fn of_several_misses_with_the_same_cas_the_senders_own_comes_first_then_the_lease() {
    let policy = Policy::default();
    for (sender, is_lease) in [(2, true), (9, true), (1, false)] {
        let mut leases = Leases::<u32>::default();
        // Both read the same value, which may not be served. The second acquired its lock later.
        leases.record_miss(KEY, 1.into(), token(7), &policy);
        leases.grant(KEY, 2.into(), token(7), &policy).0.unwrap();
        let Attribution::Fill { lease, .. } = leases.attribute_by_cas(KEY, 7, sender.into(), false) else {
            panic!("not attributed")
        };
        assert_eq!(lease, is_lease, "{sender}");
        assert_eq!(leases.rebuilds(2), !is_lease);
    }
    // The first exceeded max_rebuild, and the second won the same value.
    let mut leases = leased();
    leases.grant(KEY, 2.into(), token(7), &policy).0.unwrap();
    assert!(matches!(
        leases.attribute_by_cas(KEY, 7, 2.into(), false),
        Attribution::Fill { lease: true, .. }
    ));
    assert!(matches!(
        leases.attribute_by_cas(KEY, 7, 1.into(), false),
        Attribution::Fill { lease: false, .. }
    ));
}

#[test]
fn a_winners_set_still_has_a_miss_after_another_connection_has_used_its_cas() {
    // Filled by its CAS: a later delete drops the winner's own set; without one it may be a new value.
    let mut leases = leased();
    let Attribution::Fill { owner: Some(Owner { connection: 1, .. }), token, .. } =
        leases.attribute_by_cas(KEY, 7, 2.into(), false)
    else {
        panic!("not its lease")
    };
    filled(&mut leases, 8, &token, 1);
    let mut deleted = leases.clone();
    assert_eq!(fill(&mut leases, 1), (Some(8), false, true));
    deleted.invalidate(KEY, 3.into());
    assert_eq!(pooled(&mut deleted, 1), Attribution::Invalidated);
    // Deleted by its CAS.
    let mut leases = leased();
    assert!(matches!(leases.attribute_by_cas(KEY, 7, 2.into(), true), Attribution::Fill { lease: true, .. }));
    assert!(!leases.rebuilds(1));
    assert_eq!(pooled(&mut leases, 3), Attribution::NoMiss, "it drops no set of another connection");
    assert_eq!(pooled(&mut leases, 1), Attribution::Invalidated);
    // By the winner itself: its next set is newer.
    let mut leases = leased();
    leases.attribute_by_cas(KEY, 7, 1.into(), true);
    assert_eq!(pooled(&mut leases, 1), Attribution::NoMiss);
}

#[test]
fn a_set_with_the_cas_of_an_invalidated_miss_removes_the_token_and_drops_no_later_set() {
    let mut leases = leased();
    leases.invalidate(KEY, 9.into());
    assert_eq!(leases.attribute_by_cas(KEY, 7, 1.into(), false), Attribution::NoMiss);
    assert_eq!(pooled(&mut leases, 1), Attribution::NoMiss);
}
