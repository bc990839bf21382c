//! Misses whose value is stored although another connection has stored, marked or been dropped since.

use super::*;

#[test]
fn a_miss_before_a_win_may_be_stored_over_what_follows_the_mark_of_that_win_and_no_other() {
    for (marked, origin) in [(Some(StubId::of(7)), 9), (Some(StubId::of(6)), 7), (None, 7)] {
        let mut leases: Leases<u32> = Leases::default();
        leases.record_miss(KEY, 1.into(), token(7), &Policy::default());
        let won = MissToken { stub: None, lock: Some(cas(8)), marked, ..token(9) };
        leases.grant(KEY, 2.into(), won, &Policy::default()).0.unwrap();
        let Attribution::Fill { token, .. } = set(&mut leases, 1, false) else { panic!("no miss") };
        assert_eq!(token.origin(), Some(StubId::of(origin)));
    }
}

#[test]
fn a_lease_whose_set_may_have_been_dropped_is_given_up_and_its_own_set_is_stored_all_the_same() {
    let mut leases = leased();
    let other = Owner { connection: 4, peers: 5 };
    assert_eq!(leases.give_up_peers(KEY, other), []);
    let ended = leases.give_up_peers(KEY, 3.into());
    assert_eq!(ended.len(), 1);
    assert_eq!(
        (ended[0].end, &ended[0].commands),
        (LeaseEnd::Dropped, &token(7).release(&Policy::default()))
    );
    assert_eq!(leases.census().0, 0);
    assert_eq!(fill(&mut leases, 1), (Some(7), false, false));
}
