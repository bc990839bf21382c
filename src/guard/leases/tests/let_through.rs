//! Waiting requests that are let through, and what that means for the lease that is taken over.

use std::time::Duration;

use super::*;

#[test]
fn of_all_that_wait_in_a_sidecar_one_is_let_through_per_cold_wait() {
    let mut leases = leased();
    let policy = Policy { cold_wait: Duration::from_secs(2), ..Policy::default() };
    let later = |ms| Now { mono: NOW.mono + ms, ..NOW };
    for waiter in 0..3 {
        let admission = leases.wait(KEY, 99.into(), NOW, &policy, true, waiter);
        assert!(matches!(admission, Admission::Waits { .. }));
    }
    assert_eq!(leases.let_through(KEY, later(2_000), &policy), Ok(()));
    assert_eq!(leases.let_through(KEY, later(2_001), &policy), Err(NOW.mono + 4_000));
    assert_eq!(leases.let_through(KEY, later(4_000), &policy), Ok(()));
}

#[test]
fn a_renewal_that_finds_the_stub_taken_over_ends_the_lease_and_keeps_the_miss() {
    let mut leases = Leases::<u32>::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1.into(), token(7), &policy).0.unwrap();
    leases.due(KEY, id, NOW, &policy, &[], 1);
    let flags = StubId::of(7).flags() | 1 << 28;
    let taken = ServerReply::Item(Item { flags, ttl: Some(6), ..item("", 9) });
    let renewed = leases.renewed(KEY, id, &[ServerReply::Exists, taken], NOW.mono);
    assert_eq!(renewed, Err((Some(LeaseEnd::Superseded), Commands::new())));
    let Attribution::Fill { token, lease: false, .. } =
        leases.attribute(KEY, Writer { owner: 1.into(), known_miss: KnownMiss::Yes, pooled: false }, NOW)
    else {
        panic!("its fill may still come first")
    };
    assert_eq!(token.stub, Some(StubId::of(7)));
}

#[test]
fn a_poll_finds_that_a_stub_or_a_lock_was_taken_over() {
    let stub = |turn: u32, number| {
        let flags = StubId::of(7).flags() | turn << 28;
        ServerReply::Item(Item { flags, ..item("", number) })
    };
    let value = |number| ServerReply::Item(item("value", number));
    for (first, second, found) in [
        ([stub(0, 7), ServerReply::Absent], [stub(0, 8), ServerReply::Absent], PollResult::Unchanged),
        ([stub(0, 7), ServerReply::Absent], [stub(1, 8), ServerReply::Absent], PollResult::TakenOver),
        ([value(7), value(1)], [value(7), value(2)], PollResult::Unchanged),
        ([value(7), value(1)], [value(8), value(2)], PollResult::TakenOver),
        ([value(7), value(1)], [value(8), ServerReply::Absent], PollResult::Filled),
    ] {
        let mut before = None;
        assert_eq!(PollResult::from_replies(&first, &mut before), PollResult::Unchanged);
        assert_eq!(PollResult::from_replies(&second, &mut before), found, "{second:?}");
    }
}
