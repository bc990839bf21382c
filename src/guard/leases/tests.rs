use super::renewal::CLEARING_MARGIN_MS;
use super::*;
use crate::metrics::LeaseEnd as End;

const KEY: &[u8] = b"k";
const NOW: Now = Now { wall: 1_000_000, mono: 1_000 };

fn ticket(base: u64) -> Ticket {
    let base = Some(Cas { number: base, epoch: 1 });
    Ticket { base, ..Ticket::nothing(NOW) }
}

/// A table in which connection 1 holds a lease over CAS 7.
fn leased() -> Leases<u32> {
    let mut leases = Leases::default();
    leases.grant(KEY, 1, ticket(7), &Policy::default()).0.unwrap();
    leases
}

fn fill(leases: &mut Leases<u32>, owner: Owner) -> (Option<u64>, bool, bool) {
    match leases.attribute(KEY, owner) {
        Attribution::Fill { ticket, lease, wary, .. } => (ticket.base.map(|cas| cas.number), lease, wary),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_fills_the_lease_of_its_own_connection_and_only_once() {
    let mut leases = leased();
    assert_eq!(fill(&mut leases, 1), (Some(7), true, false));
    assert_eq!(leases.attribute(KEY, 1), Attribution::Blind);
}

#[test]
fn a_set_of_another_connection_fills_it_too_and_the_winners_own_set_is_wary_then() {
    let mut leases = leased();
    assert_eq!(fill(&mut leases, 2), (Some(7), true, false));
    assert_eq!(leases.attribute(KEY, 3), Attribution::Blind);
    leases.filled(KEY, Cas { number: 8, epoch: 1 }, Some((1, ticket(7))), &Policy::default());
    assert_eq!(fill(&mut leases, 1), (Some(8), false, true));
}

#[test]
fn a_delete_of_another_connection_dooms_the_winners_set_wherever_it_comes() {
    for pooled in [false, true] {
        let mut leases = leased();
        assert_eq!(leases.invalidate(KEY, 9), 1);
        assert_eq!(leases.attribute(KEY, if pooled { 2 } else { 1 }), Attribution::Doomed);
        assert_eq!(leases.attribute(KEY, 3), Attribution::Blind, "one miss dooms one set");
    }
}

#[test]
fn a_winners_own_set_stays_doomed_when_a_pooled_one_was_taken_for_it() {
    let mut leases = leased();
    leases.invalidate(KEY, 9);
    assert_eq!(leases.attribute(KEY, 2), Attribution::Doomed);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Doomed);
}

#[test]
fn what_is_set_behind_a_delete_on_the_same_connection_is_newer_than_it() {
    let mut leases = leased();
    leases.invalidate(KEY, 9);
    assert_eq!(leases.attribute(KEY, 9), Attribution::Blind);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Doomed);
    let mut leases = leased();
    assert_eq!(leases.invalidate(KEY, 1), 1, "the winner gives it up");
    assert_eq!(leases.attribute(KEY, 1), Attribution::Blind);
}

#[test]
fn whoever_holds_a_lease_rebuilds_until_it_has_ended_and_nobody_else_does() {
    let mut leases = leased();
    leases.saw(b"other", 2, ticket(1), &Policy::default());
    assert_eq!([1, 2, 3].map(|owner| leases.rebuilds(owner)), [true, false, false]);
    leases.attribute(KEY, 1);
    assert!(!leases.rebuilds(1));
    let mut leases = leased();
    leases.invalidate(KEY, 9);
    assert!(!leases.rebuilds(1), "what it builds cannot be kept");
}

#[test]
fn so_many_may_wait_for_a_key_and_no_more() {
    let mut leases = leased();
    for waiter in 0..MAX_WAITERS_PER_KEY as u32 {
        assert!(matches!(leases.wait(KEY, NOW, &Policy::default(), waiter), Admission::Waits { .. }));
    }
    assert_eq!(leases.wait(KEY, NOW, &Policy::default(), 0), Admission::Full);
    leases.wake(KEY);
    assert!(matches!(leases.wait(KEY, NOW, &Policy::default(), 0), Admission::Waits { .. }));
}

#[test]
fn a_fresh_hit_ends_an_earlier_miss_but_not_a_lease() {
    let mut leases: Leases<u32> = Leases::default();
    leases.saw(KEY, 1, ticket(7), &Policy::default());
    leases.hit(KEY, 1);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Blind);
    let mut leases = leased();
    leases.hit(KEY, 1);
    assert_eq!(fill(&mut leases, 1), (Some(7), true, false));
}

#[test]
fn a_set_that_may_be_anybodys_is_stored_over_what_the_miss_saw_or_clears_the_key() {
    let mut leases: Leases<u32> = Leases::default();
    leases.saw(KEY, 1, ticket(7), &Policy::default());
    assert_eq!(fill(&mut leases, 1), (Some(7), false, false), "its own");
    leases.saw(KEY, 1, ticket(7), &Policy::default());
    assert_eq!(fill(&mut leases, 3), (Some(7), false, true));
    assert_eq!(leases.attribute(KEY, 3), Attribution::Blind);
}

#[test]
fn misses_of_a_dead_server_refuse_one_set_of_another_connection_in_all() {
    let mut leases: Leases<u32> = Leases::default();
    for owner in 1..=3 {
        leases.saw(KEY, owner, Ticket { base: None, ..ticket(7) }, &Policy::default());
    }
    assert_eq!(fill(&mut leases, 9).0, None);
    assert_eq!(leases.attribute(KEY, 9), Attribution::Blind);
    assert_eq!(fill(&mut leases, 1).0, None, "its own is refused too");
}

#[test]
fn two_claims_in_a_row_without_a_fill_end_all_waiting_for_a_minute() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.unfilled(KEY, NOW);
    assert!(matches!(leases.wait(KEY, NOW, &policy, 1), Admission::Waits { poll: Some(Pace::Soon), .. }));
    assert_eq!(leases.unfilled(KEY, NOW), [1]);
    assert_eq!(leases.wait(KEY, NOW, &policy, 2), Admission::Refused);
    let later = Now { mono: NOW.mono + HOPELESS_MS, ..NOW };
    assert!(matches!(leases.wait(KEY, later, &policy, 3), Admission::Waits { .. }));
}

#[test]
fn a_lease_whose_client_leaves_during_its_renewal_is_released_with_what_the_renewal_gave() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1, ticket(7), &policy).0.unwrap();
    assert!(matches!(leases.due(KEY, id, NOW, &policy, &[], 5), Due::Renew(_)));
    assert_eq!(leases.attribute(KEY, 1), Attribution::Renewing);
    assert!(leases.disconnect(1).is_empty());
    let renewed = Cas { number: 8, epoch: 1 };
    let released = leases.renewed(KEY, id, &[Answer::Stored(renewed)], NOW.mono).unwrap_err();
    assert_eq!(released, (Some(End::Disconnected), smallvec![delete(At::Item, Some(renewed))]));
}

#[test]
fn a_lease_that_is_invalidated_during_its_renewal_has_ended_once() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1, ticket(7), &policy).0.unwrap();
    assert!(matches!(leases.due(KEY, id, NOW, &policy, &[], 5), Due::Renew(_)));
    assert_eq!(leases.invalidate(KEY, 2), 1);
    let after = leases.renewed(KEY, id, &[Answer::Exists], NOW.mono).unwrap_err();
    assert_eq!(after, (None, Asks::new()));
}

#[test]
fn a_set_that_names_the_cas_of_a_miss_takes_that_ticket_and_no_other() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1, ticket(7), &policy).0.unwrap();
    leases.saw(KEY, 2, ticket(6), &policy);
    assert_eq!(leases.named(KEY, 5, 2, false), Attribution::Blind);
    assert!(matches!(leases.named(KEY, 6, 2, false), Attribution::Fill { lease: false, wary: false, .. }));
    assert_eq!(leases.named(KEY, 6, 2, false), Attribution::Blind, "it is taken");
    assert!(matches!(leases.due(KEY, id, NOW, &policy, &[], 5), Due::Renew(_)));
    assert_eq!(leases.named(KEY, 7, 1, false), Attribution::Renewing);
    let renewed = Cas { number: 8, epoch: 1 };
    leases.renewed(KEY, id, &[Answer::Stored(renewed)], NOW.mono).unwrap();
    // The client was shown 7, and knows nothing of the renewal.
    assert_eq!(leases.named(KEY, 8, 1, false), Attribution::Blind);
    let Attribution::Fill { ticket, lease: true, .. } = leases.named(KEY, 7, 1, false) else {
        panic!("it is the lease")
    };
    assert_eq!(ticket.base, Some(renewed));
}

#[test]
fn what_a_loser_was_told_is_its_own_though_another_names_the_same_cas() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.grant(KEY, 1, ticket(7), &policy);
    leases.saw(KEY, 2, Ticket { versions: Versions::from_slice(&[50]), ..ticket(7) }, &policy);
    assert!(matches!(leases.named(KEY, 7, 1, false), Attribution::Fill { lease: true, owner: None, .. }));
    let Attribution::Fill { ticket, lease: false, owner: None, .. } = leases.named(KEY, 7, 3, false) else {
        panic!("the CAS is what it is")
    };
    assert_eq!(ticket.versions[..], [0], "what 2 was told may be newer than what 3 has built");
    assert!(matches!(
        leases.attribute(KEY, 2),
        Attribution::Fill { lease: false, wary: false, owner: None, .. }
    ));
}

#[test]
fn a_lease_that_was_filled_by_its_cas_on_another_connection_is_remembered_for_its_own() {
    let mut leases: Leases<u32> = Leases::default();
    leases.grant(KEY, 1, ticket(7), &Policy::default());
    assert!(matches!(leases.named(KEY, 7, 2, false), Attribution::Fill { lease: true, owner: Some(1), .. }));
    assert!(matches!(leases.attribute(KEY, 1), Attribution::Fill { lease: false, wary: true, .. }));
}

#[test]
fn a_winner_whose_lease_another_connection_filled_is_remembered_though_it_takes_longer_than_max_rebuild() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.grant(KEY, 1, ticket(7), &policy);
    let Attribution::Fill { ticket, owner: Some(1), .. } = leases.attribute(KEY, 2) else {
        panic!("it is the fill")
    };
    leases.filled(KEY, Cas { number: 8, epoch: 1 }, Some((1, ticket)), &policy);
    leases.sweep(Now { mono: NOW.mono + 90_000, ..NOW });
    assert!(matches!(leases.attribute(KEY, 1), Attribution::Fill { wary: true, .. }));
}

#[test]
fn what_is_remembered_of_a_lease_that_was_filled_from_elsewhere_makes_no_later_one_unclear() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.grant(KEY, 1, ticket(7), &policy);
    let Attribution::Fill { ticket: first, owner: Some(1), .. } = leases.named(KEY, 7, 2, false) else {
        panic!("it is the lease")
    };
    leases.filled(KEY, Cas { number: 8, epoch: 1 }, Some((1, first)), &policy);
    leases.grant(KEY, 3, ticket(8), &policy);
    assert!(matches!(leases.named(KEY, 8, 2, false), Attribution::Fill { lease: true, owner: Some(3), .. }));
}

#[test]
fn of_several_who_were_shown_the_same_cas_each_names_their_own_and_the_lease_comes_before_a_mere_miss() {
    let policy = Policy::default();
    for (winner, named) in [(2, true), (9, true), (1, false)] {
        let mut leases = Leases::<u32>::default();
        // Both read the same value, which may not be served; the second one got its lock later on.
        leases.saw(KEY, 1, ticket(7), &policy);
        leases.grant(KEY, 2, ticket(7), &policy).0.unwrap();
        let Attribution::Fill { lease, .. } = leases.named(KEY, 7, winner, false) else {
            panic!("it is named")
        };
        assert_eq!(lease, named, "{winner}");
        assert_eq!(leases.rebuilds(2), !named);
    }
    // The first took longer than max_rebuild, and the second won the same value.
    let mut leases = leased();
    leases.grant(KEY, 2, ticket(7), &policy).0.unwrap();
    assert!(matches!(leases.named(KEY, 7, 2, false), Attribution::Fill { lease: true, .. }));
    assert_eq!(leases.named(KEY, 7, 1, false), Attribution::Blind);
}

#[test]
fn a_set_of_the_winner_is_none_without_a_miss_when_another_has_named_its_lease() {
    let policy = Policy::default();
    // Filled by name: a delete that follows dooms the winner's own set, and without one it may be a new value.
    let mut leases = leased();
    let Attribution::Fill { owner: Some(1), ticket, .. } = leases.named(KEY, 7, 2, false) else {
        panic!("its lease")
    };
    leases.filled(KEY, Cas { number: 8, epoch: 1 }, Some((1, ticket)), &policy);
    let mut deleted = leases.clone();
    assert_eq!(fill(&mut leases, 1), (Some(8), false, true));
    deleted.invalidate(KEY, 3);
    assert_eq!(deleted.attribute(KEY, 1), Attribution::Doomed);
    // Deleted by name.
    let mut leases = leased();
    assert!(matches!(leases.named(KEY, 7, 2, true), Attribution::Fill { lease: true, .. }));
    assert!(!leases.rebuilds(1));
    assert_eq!(leases.attribute(KEY, 3), Attribution::Blind, "it dooms nobody else's");
    assert_eq!(leases.attribute(KEY, 1), Attribution::Doomed);
    // By the winner itself: what it sets behind that is newer.
    let mut leases = leased();
    leases.named(KEY, 7, 1, true);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Blind);
}

#[test]
fn a_set_that_names_a_doomed_ticket_has_been_told_and_dooms_nothing_that_follows() {
    let mut leases = leased();
    leases.invalidate(KEY, 9);
    assert_eq!(leases.named(KEY, 7, 1, false), Attribution::Blind);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Blind);
}

#[test]
fn what_is_forgotten_leaves_nothing_behind() {
    let mut leases = leased();
    leases.invalidate(KEY, 9);
    leases.unfilled(KEY, NOW);
    leases.sweep(Now { mono: NOW.mono + 10_000_000, ..NOW });
    assert!(leases.keys.is_empty() && leases.owned.is_empty() && leases.tickets == 0);
}

#[test]
fn a_renewal_that_finds_another_value_gives_the_lock_back() {
    let policy = Policy::default();
    let lock = |number| Cas { number, epoch: 1 };
    let (value, usage) = (bytes::Bytes::new(), crate::guard::Usage::default());
    let item = crate::guard::Item {
        value,
        size: 3,
        flags: 0,
        cas: lock(7),
        ttl: None,
        won: false,
        stale: true,
        usage,
    };
    let filled = crate::guard::Item { cas: lock(11), ..item.clone() };
    for (found, is_lost) in [
        (Answer::Item(item), false),
        (Answer::Item(filled), true),
        (Answer::Absent, true),
        (Answer::Failed(crate::error::Failure::TimedOut), false),
    ] {
        let mut leases: Leases<u32> = Leases::default();
        let won = Ticket { lock: Some(lock(8)), ..ticket(7) };
        let id = leases.grant(KEY, 1, won, &policy).0.unwrap();
        let Due::Renew(asks) = leases.due(KEY, id, NOW, &policy, &[], 5) else { panic!("it is renewed") };
        assert_eq!(asks.len(), 2);
        let renewed = leases.renewed(KEY, id, &[Answer::Stored(lock(10)), found.clone()], NOW.mono);
        match is_lost {
            false => assert_eq!(renewed.unwrap().lock, Some(lock(10)), "{found:?}"),
            true => {
                let back = Asks::from_iter([delete(At::Lock, Some(lock(10)))]);
                assert_eq!(renewed.unwrap_err(), (Some(End::Lost), back), "{found:?}");
                assert_eq!(leases.attribute(KEY, 1), Attribution::Doomed);
            }
        }
    }
}

#[test]
fn a_win_that_is_heard_of_late_does_not_end_the_one_that_came_after_it() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    // The stub of the first was lost, and the second won another. The first's answer was the later to be looked at.
    leases.grant(KEY, 2, ticket(9), &policy).0.unwrap();
    assert_eq!(leases.grant(KEY, 1, ticket(7), &policy), (None, Vec::new()));
    assert_eq!(fill(&mut leases, 2), (Some(9), true, false));
    // Stored over nothing but what it saw, and that is gone.
    assert_eq!(fill(&mut leases, 1), (Some(7), false, false));
}

#[test]
fn a_win_that_came_later_ends_the_one_before_it_and_gives_back_its_lock() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let lock = Cas { number: 8, epoch: 1 };
    leases.grant(KEY, 1, Ticket { lock: Some(lock), ..ticket(7) }, &policy).0.unwrap();
    // The value was evicted, and the second found a stub in its place.
    let (id, superseded) = leases.grant(KEY, 2, ticket(9), &policy);
    assert!(id.is_some() && superseded == [Asks::from_iter([delete(At::Lock, Some(lock))])]);
    assert_eq!(leases.attribute(KEY, 1), Attribution::Doomed);
}

#[test]
fn a_key_that_is_waited_for_is_polled_by_one_and_seldom_where_the_lease_is_here() {
    let policy = Policy::default();
    for (leased, pace) in [(false, Pace::Soon), (true, Pace::Seldom)] {
        let mut leases: Leases<u32> = Leases::default();
        if leased {
            leases.grant(KEY, 1, ticket(7), &policy).0.unwrap();
        }
        let mut begin = |waiter| match leases.wait(KEY, NOW, &policy, waiter) {
            Admission::Waits { poll, .. } => poll,
            admission => panic!("{admission:?}"),
        };
        assert_eq!([begin(1), begin(2)], [Some(pace), None]);
        assert_eq!(leases.polled(KEY, Polled::Unchanged, NOW), [] as [u32; 0]);
        assert_eq!(leases.polled(KEY, Polled::Freed, NOW), [1, 2]);
        assert!(matches!(leases.wait(KEY, NOW, &policy, 3), Admission::Waits { poll: Some(_), .. }));
    }
}

#[test]
fn what_a_poller_finds_freed_is_a_claim_in_vain_unless_the_lease_is_here_and_counts_when_it_ends() {
    let policy = Policy::default();
    for (leased, hopeless) in [(false, true), (true, false)] {
        let mut leases: Leases<u32> = Leases::default();
        if leased {
            leases.grant(KEY, 1, ticket(7), &policy).0.unwrap();
        }
        leases.polled(KEY, Polled::Filled, NOW);
        leases.wait(KEY, NOW, &policy, 1);
        leases.polled(KEY, Polled::Freed, NOW);
        leases.unfilled(KEY, NOW);
        assert_eq!(leases.wait(KEY, NOW, &policy, 2) == Admission::Refused, hopeless);
    }
}

/// A lease over the lock 8 of a stale value of CAS 7, and a look at that value.
fn stale(
    leases: &mut Leases<u32>,
    vanishes: Option<u64>,
) -> (TicketId, impl Fn(u32, Option<u32>) -> Answer + use<>) {
    let won = Ticket { lock: Some(Cas { number: 8, epoch: 1 }), vanishes, ..ticket(7) };
    let usage = crate::guard::Usage::default();
    let look = move |epoch, ttl| {
        let cas = Cas { number: 7, epoch };
        let value = bytes::Bytes::new();
        Answer::Item(crate::guard::Item {
            value,
            size: 3,
            flags: 0,
            cas,
            ttl,
            won: false,
            stale: true,
            usage,
        })
    };
    (leases.grant(KEY, 1, won, &Policy::default()).0.unwrap(), look)
}

fn renews(leases: &mut Leases<u32>, id: TicketId, now: Now) {
    let due = leases.due(KEY, id, now, &Policy::default(), &[], 5);
    assert!(matches!(due, Due::Renew(_)), "{due:?}");
}

#[test]
fn a_lease_is_not_lost_because_another_worker_has_connected_anew() {
    let mut leases: Leases<u32> = Leases::default();
    let (id, look) = stale(&mut leases, None);
    renews(&mut leases, id, NOW);
    let lock = Cas { number: 10, epoch: 2 };
    let ticket = leases.renewed(KEY, id, &[Answer::Stored(lock), look(2, None)], NOW.mono).unwrap();
    assert_eq!((ticket.lock, ticket.base), (Some(lock), Some(Cas { number: 7, epoch: 1 })));
}

#[test]
fn a_renewal_that_no_server_answers_is_tried_again_after_a_pause_though_the_value_vanishes() {
    let down = [Answer::Failed(crate::error::Failure::Down), Answer::Failed(crate::error::Failure::Down)];
    for none in [&down[..], &[]] {
        let mut leases: Leases<u32> = Leases::default();
        let (id, _) = stale(&mut leases, Some(NOW.mono + 1000));
        let (mut now, mut rounds) = (NOW, 0);
        while now.mono < NOW.mono + 5_000 {
            renews(&mut leases, id, now);
            let ticket = leases.renewed(KEY, id, none, now.mono).unwrap();
            now.mono = Leases::<u32>::due_after(&ticket, none, &Policy::default(), now);
            rounds += 1;
        }
        assert!((10..60).contains(&rounds), "{rounds} renewals in 5 s");
    }
}

#[test]
fn a_value_that_was_touched_since_it_was_won_gets_no_stub_in_its_place() {
    // The moment of the renewal at which it would have, and when the next is due.
    let late = Now { mono: NOW.mono + 2_000, ..NOW };
    let step = NOW.mono + 1_000 + 5_000 / 3;
    for (ttl, vanishes) in
        [(Some(3600), Some(NOW.mono + 1_000 + 3_599_000)), (None, None), (Some(1), Some(late.mono))]
    {
        let mut leases: Leases<u32> = Leases::default();
        let (id, look) = stale(&mut leases, Some(late.mono));
        let soon = Now { mono: NOW.mono + 1_000, ..NOW };
        renews(&mut leases, id, soon);
        let answers = [Answer::Stored(Cas { number: 10, epoch: 1 }), look(1, ttl)];
        let ticket = leases.renewed(KEY, id, &answers, soon.mono).unwrap();
        assert_eq!(ticket.vanishes, vanishes);
        let due = Leases::<u32>::due_after(&ticket, &answers, &Policy::default(), soon);
        assert_eq!(due, if ttl == Some(1) { late.mono - CLEARING_MARGIN_MS } else { step });
    }
}

#[test]
fn nobody_is_remembered_for_a_ticket_that_has_made_room_for_others() {
    let mut leases: Leases<u32> = Leases::default();
    for key in 0..10_u32 {
        for owner in 0..=MAX_TICKETS_PER_KEY as u64 {
            leases.saw(&key.to_le_bytes(), owner, ticket(7), &Policy::default());
        }
    }
    assert_eq!(leases.tickets, 10 * MAX_TICKETS_PER_KEY);
    leases.sweep(Now { mono: NOW.mono + 10_000_000, ..NOW });
    assert_eq!((leases.keys.len(), leases.tickets, leases.owned.len()), (0, 0, 0));
}

#[test]
fn whoever_was_told_a_miss_is_bound_to_what_it_saw_and_nobody_else_is() {
    let over = |number| Bound::Over(Cas { number, epoch: 1 });
    let mut leases = leased();
    leases.saw(KEY, 2, ticket(6), &Policy::default());
    leases.saw(KEY, 3, Ticket { base: None, ..ticket(7) }, &Policy::default());
    let bound = |leases: &Leases<u32>| [1, 2, 3, 9].map(|owner| leases.bound(KEY, owner));
    assert_eq!(bound(&leases), [over(7), over(6), Bound::Over(Cas::NONE), Bound::Free]);
    assert_eq!(fill(&mut leases, 1), (Some(7), true, false), "its set is the fill all the same");
    leases.invalidate(KEY, 3);
    assert_eq!(bound(&leases), [Bound::Free, Bound::Over(Cas::NONE), Bound::Free, Bound::Free]);
    leases.hit(KEY, 2);
    assert_eq!(leases.bound(KEY, 2), Bound::Free);
    let id = leases.grant(KEY, 1, ticket(7), &Policy::default()).0.unwrap();
    renews(&mut leases, id, NOW);
    assert_eq!(leases.bound(KEY, 1), Bound::Renewing);
}

#[test]
fn only_a_full_table_is_full_and_an_older_win_is_no_sign_of_it() {
    let mut leases: Leases<u32> = Leases::default();
    leases.grant(KEY, 1, ticket(7), &Policy::default()).0.unwrap();
    assert_eq!(leases.grant(KEY, 2, ticket(6), &Policy::default()).0, None, "it was heard of too late");
    assert!(!leases.is_full());
    for key in 0..MAX_TICKETS as u32 {
        leases.saw(&key.to_le_bytes(), 3, ticket(1), &Policy::default());
    }
    assert!(leases.is_full());
    assert_eq!(leases.grant(b"another", 2, ticket(8), &Policy::default()).0, None);
}
