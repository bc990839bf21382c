use smallvec::smallvec;

use super::renewal::CLEARING_MARGIN_MS;
use super::waiters::{MAX_KEYS, MAX_WAITERS_PER_KEY, NO_WAIT_MS};
use super::*;
use crate::error::Failure;
use crate::guard::command::{Cas, Commands, Item, ItemRef, ServerReply, delete};
use crate::guard::envelope::TagName;
use crate::guard::fixtures::{cas, item};
use crate::guard::inputs::Now;
use crate::guard::policy::Policy;
use crate::guard::stub::{Stub, StubId};
use crate::guard::tag_version::Versions;
use crate::metrics::LeaseEnd;

const KEY: &[u8] = b"k";
const NOW: Now = Now { wall: 1_000_000, mono: 1_000 };

fn token(observed_cas: u64) -> MissToken {
    let stub = Some(StubId::of(observed_cas));
    let observed_cas = Some(cas(observed_cas));
    MissToken { observed_cas, stub, ..MissToken::unanswered(NOW) }
}

/// A table in which connection 1 holds a lease over CAS 7.
fn leased() -> Leases<u32> {
    let mut leases = Leases::default();
    leases.grant(KEY, 1.into(), token(7), &Policy::default()).0.unwrap();
    leases
}

/// A `set` of a connection that remembers exactly the misses that the table has.
fn set(leases: &mut Leases<u32>, connection: u64, pooled: bool) -> Attribution {
    let owner = connection.into();
    let known_miss = if leases.entry_of(KEY, owner).is_some() { KnownMiss::Yes } else { KnownMiss::No };
    leases.attribute(KEY, Writer { owner, known_miss, pooled }, NOW)
}

/// The same with connection pools.
fn pooled(leases: &mut Leases<u32>, connection: u64) -> Attribution {
    set(leases, connection, true)
}

/// What the `set` is stored over, whether it ends a lease, and whether that was stored since the miss.
fn fill(leases: &mut Leases<u32>, connection: u64) -> (Option<u64>, bool, bool) {
    match pooled(leases, connection) {
        Attribution::Fill { token, lease, .. } => {
            (token.observed_cas.map(|cas| cas.number), lease, token.filled)
        }
        other => panic!("{other:?}"),
    }
}

fn filled(leases: &mut Leases<u32>, number: u64, token: &MissToken, owner: u64) {
    leases.filled(KEY, cas(number), token, Some(owner.into()));
}

mod by_cas;
mod followed;
mod let_through;
mod limits;
mod replaced;
mod withheld;

#[test]
fn a_set_fills_the_lease_of_its_own_connection_and_only_once() {
    let mut leases = leased();
    assert_eq!(fill(&mut leases, 1), (Some(7), true, false));
    assert_eq!(pooled(&mut leases, 1), Attribution::NoMiss);
}

#[test]
fn with_pools_a_set_of_another_connection_fills_the_lease_and_the_winners_own_is_stored_only_over_that() {
    let mut leases = leased();
    assert_eq!(fill(&mut leases, 2), (Some(7), true, false));
    assert_eq!(pooled(&mut leases, 3), Attribution::NoMiss);
    filled(&mut leases, 8, &token(7), 1);
    assert_eq!(fill(&mut leases, 1), (Some(8), false, true));
}

#[test]
fn without_pools_a_set_of_another_connection_neither_ends_a_miss_nor_is_dropped() {
    let mut leases = leased();
    leases.record_miss(KEY, 2.into(), token(7), &Policy::default());
    assert_eq!(set(&mut leases, 3, false), Attribution::NoMiss);
    leases.invalidate(KEY, 9.into());
    assert_eq!(set(&mut leases, 3, false), Attribution::NoMiss);
    assert_eq!(
        [1, 2].map(|own| set(&mut leases, own, false)),
        [Attribution::Invalidated, Attribution::Invalidated]
    );
}

#[test]
fn a_set_fills_only_a_miss_of_the_same_pool_that_is_younger_than_max_rebuild() {
    let peer = |connection, peers| Owner { connection, peers };
    let mut leases: Leases<u32> = Leases::default();
    leases.record_miss(KEY, peer(1, 5), token(7), &Policy::default());
    let mut set = |owner, mono| {
        let writer = Writer { owner, known_miss: KnownMiss::No, pooled: true };
        leases.attribute(KEY, writer, Now { mono, ..NOW })
    };
    assert_eq!(set(peer(2, 6), NOW.mono), Attribution::NoMiss);
    assert_eq!(set(peer(2, 5), NOW.mono + 60_000), Attribution::NoMiss);
    assert!(matches!(set(peer(2, 5), NOW.mono + 59_999), Attribution::Fill { lease: false, .. }));
}

#[test]
fn a_set_whose_token_was_removed_is_dropped_and_one_with_an_unknown_miss_is_refused() {
    for (known_miss, expected) in [
        (KnownMiss::No, Attribution::NoMiss),
        (KnownMiss::Yes, Attribution::Invalidated),
        (KnownMiss::Unknown, Attribution::Unknown),
    ] {
        let mut leases: Leases<u32> = Leases::default();
        let writer = Writer { owner: 1.into(), known_miss, pooled: false };
        assert_eq!(leases.attribute(KEY, writer, NOW), expected);
        let condition = match known_miss {
            KnownMiss::No => StoreCondition::Unconditional,
            KnownMiss::Yes => StoreCondition::Observed(Observed::none()),
            KnownMiss::Unknown => StoreCondition::Unknown,
        };
        assert_eq!(leases.store_condition(KEY, 1.into(), known_miss), condition);
    }
}

#[test]
fn a_miss_is_filled_until_max_rebuild_and_no_longer() {
    for (later, dropped) in [(59_999, false), (60_000, true)] {
        let mut leases = leased();
        leases.record_miss(KEY, 2.into(), token(7), &Policy::default());
        for owner in [1, 2] {
            let writer = Writer { owner: owner.into(), known_miss: KnownMiss::Yes, pooled: false };
            let now = Now { mono: NOW.mono + later, ..NOW };
            assert_eq!(leases.attribute(KEY, writer, now) == Attribution::Invalidated, dropped);
        }
    }
}

#[test]
fn only_a_miss_over_the_stub_that_was_filled_may_store_over_the_value() {
    let mut leases = leased();
    // The winner has renewed the stub, which has another CAS now.
    leases.record_miss(
        KEY,
        2.into(),
        MissToken { stub: Some(StubId::of(7)), ..token(6) },
        &Policy::default(),
    );
    leases.record_miss(KEY, 3.into(), token(5), &Policy::default());
    // A tag had changed before this miss: storing over the value would make it older.
    leases.record_miss(KEY, 4.into(), MissToken { versions: smallvec![5], ..token(7) }, &Policy::default());
    leases.filled(KEY, cas(8), &token(7), None);
    assert_eq!(fill(&mut leases, 2), (Some(8), false, true));
    assert_eq!(fill(&mut leases, 3), (Some(5), false, false));
    assert_eq!(fill(&mut leases, 4), (Some(7), false, false));
}

#[test]
fn a_connection_that_has_ended_its_miss_is_not_restricted_by_the_fill_that_used_it() {
    let mut leases: Leases<u32> = Leases::default();
    leases.record_miss(KEY, 1.into(), token(7), &Policy::default());
    let Attribution::Fill { token, owner: Some(owner), .. } = pooled(&mut leases, 2) else {
        panic!("not attributed")
    };
    let mut deletes = leases.clone();
    deletes.invalidate(KEY, 1.into());
    for leases in [&mut leases, &mut deletes] {
        leases.filled(KEY, cas(8), &token, Some(owner));
    }
    assert_eq!(fill(&mut leases, 1), (Some(8), false, true));
    assert_eq!(deletes.store_condition(KEY, 1.into(), KnownMiss::No), StoreCondition::Unconditional);
    assert_eq!(pooled(&mut deletes, 1), Attribution::NoMiss);
}

#[test]
fn a_winners_value_is_as_new_as_its_last_miss() {
    let mut leases = leased();
    let later = Now { wall: NOW.wall + 5_000, mono: NOW.mono + 5_000 };
    let added_tags = vec![TagName::from_slice(b"added")];
    let again = MissToken { versions: smallvec![5], added_tags, at: later, ..token(7) };
    assert!(leases.record_miss(KEY, 1.into(), again, &Policy::default()).is_empty());
    let mut left = leases.clone();
    left.disconnect(1.into());
    assert!(left.owners.is_empty(), "the count of bytes is exact");
    let Attribution::Fill { token, lease: true, .. } = set(&mut leases, 1, false) else {
        panic!("not its lease")
    };
    assert_eq!(token.versions[..], [5]);
    assert_eq!(token.at, Now { wall: later.wall, ..NOW }, "it expires no later");
}

#[test]
fn what_a_winner_reads_or_bumps_later_counts_for_its_own_connection_only() {
    let reads = |leases: &mut Leases<u32>| {
        let again = MissToken { versions: smallvec![5], ..token(7) };
        assert!(leases.record_miss(KEY, 1.into(), again, &Policy::default()).is_empty());
    };
    let bumps = |leases: &mut Leases<u32>| {
        let tag = TagName::from_slice(b"a");
        leases.record_bump(1.into(), &tag, (4, 5), |_| [tag.clone()]);
    };
    let peers = |connection| Owner { connection, peers: 5 };
    let won = MissToken { versions: smallvec![4], ..token(7) };
    for later in [&reads as &dyn Fn(&mut Leases<u32>), &bumps] {
        let mut leases = Leases::default();
        leases.grant(KEY, 1.into(), won.clone(), &Policy::default());
        later(&mut leases);
        let mut others = leases.clone();
        // The client that read this CAS with its own miss may have done so before the bump, through another sidecar.
        for (leases, by, versions) in [(&mut leases, 1, 5), (&mut others, 2, 0)] {
            let Attribution::Fill { token, lease: true, .. } =
                leases.attribute_by_cas(KEY, 7, by.into(), false)
            else {
                panic!("not its lease")
            };
            assert_eq!(token.versions[..], [versions]);
        }
        let mut pooled: Leases<u32> = Leases::default();
        pooled.grant(KEY, peers(1), won.clone(), &Policy::default());
        pooled.record_miss(
            KEY,
            peers(1),
            MissToken { versions: smallvec![5], ..token(7) },
            &Policy::default(),
        );
        let writer = Writer { owner: peers(2), known_miss: KnownMiss::No, pooled: true };
        let Attribution::Fill { token, lease: true, .. } = pooled.attribute(KEY, writer, NOW) else {
            panic!("not the lease of its pool")
        };
        assert_eq!(token.versions[..], [0]);
    }
}

#[test]
fn a_connection_that_empties_the_servers_ends_all_misses_and_its_next_set_is_new() {
    let mut leases = leased();
    leases.record_miss(b"other", 2.into(), token(9), &Policy::default());
    assert_eq!(leases.flush(2.into()), [Box::from(KEY)]);
    assert_eq!(set(&mut leases, 2, false), Attribution::NoMiss);
    assert_eq!(set(&mut leases, 1, false), Attribution::Invalidated);
    assert!(leases.keys.is_empty() && leases.owners.is_empty());
}

#[test]
fn a_set_after_a_bump_of_the_same_connection_is_newer_than_that_bump_only() {
    let policy = Policy::default();
    let tag = |name: &[u8]| TagName::from_slice(name);
    let versions = |seen: &[u64]| Versions::from_slice(seen);
    let mut leases: Leases<u32> = Leases::default();
    let token = MissToken { versions: versions(&[5, 6, 7]), added_tags: vec![tag(b"c")], ..token(7) };
    leases.grant(KEY, 1.into(), token.clone(), &policy);
    leases.record_miss(KEY, 2.into(), token, &policy);
    // Another client had bumped the second from 6 to 60 before.
    for (name, step) in [(&b"a"[..], (5, 50)), (b"b", (60, 61)), (b"c", (7, 70)), (b"d", (5, 80))] {
        leases.record_bump(1.into(), &tag(name), step, |_| [tag(b"a"), tag(b"b")]);
    }
    let sealed = |leases: &mut Leases<u32>, own| match set(leases, own, false) {
        Attribution::Fill { token, .. } => token.versions,
        other => panic!("{other:?}"),
    };
    assert_eq!(sealed(&mut leases, 1), versions(&[50, 6, 70]));
    assert_eq!(sealed(&mut leases, 2), versions(&[5, 6, 7]), "that of another is as old as before");
}

#[test]
fn a_winner_that_misses_over_another_stub_has_lost_its_lease() {
    for (stub, kept) in [(7, true), (9, false)] {
        let mut leases = leased();
        // A renewal has changed the CAS of the same stub.
        let seen = MissToken { stub: Some(StubId::of(stub)), ..token(9) };
        let ended = leases.record_miss(KEY, 1.into(), seen, &Policy::default());
        assert_eq!((ended.is_empty(), leases.rebuilds(1)), (kept, kept));
        assert_eq!(fill(&mut leases, 1), (Some(if kept { 7 } else { 9 }), kept, false));
    }
}

#[test]
fn a_set_after_a_value_that_the_client_has_created_is_new() {
    for (invalidated, had_lease) in [(false, true), (true, false)] {
        let mut leases = leased();
        if invalidated {
            leases.invalidate(KEY, 9.into());
        }
        assert_eq!(leases.created(KEY, 1.into()).0.is_some(), had_lease);
        assert_eq!(set(&mut leases, 1, false), Attribution::NoMiss);
    }
}

#[test]
fn a_connection_does_not_wait_for_its_own_rebuild() {
    let mut leases = leased();
    assert_eq!(leases.wait(KEY, 1.into(), NOW, &Policy::default(), true, 5), Admission::Refused);
    assert!(matches!(leases.wait(KEY, 2.into(), NOW, &Policy::default(), true, 6), Admission::Waits { .. }));
}

#[test]
fn a_delete_of_another_connection_drops_the_winners_set_on_any_connection() {
    for elsewhere in [false, true] {
        let mut leases = leased();
        assert_eq!(leases.invalidate(KEY, 9.into()), 1);
        assert_eq!(pooled(&mut leases, if elsewhere { 2 } else { 1 }), Attribution::Invalidated);
        assert_eq!(pooled(&mut leases, 3), Attribution::NoMiss, "one miss drops one set");
    }
}

#[test]
fn a_winners_own_set_is_dropped_even_if_a_pooled_one_was_dropped_in_its_place() {
    let mut leases = leased();
    leases.invalidate(KEY, 9.into());
    assert_eq!(pooled(&mut leases, 2), Attribution::Invalidated);
    assert_eq!(pooled(&mut leases, 1), Attribution::Invalidated);
}

#[test]
fn a_set_after_a_delete_on_the_same_connection_is_newer_than_the_delete() {
    let mut leases = leased();
    leases.invalidate(KEY, 9.into());
    assert_eq!(pooled(&mut leases, 9), Attribution::NoMiss);
    assert_eq!(pooled(&mut leases, 1), Attribution::Invalidated);
    let mut leases = leased();
    assert_eq!(leases.invalidate(KEY, 1.into()), 1, "the winner gives it up");
    assert_eq!(pooled(&mut leases, 1), Attribution::NoMiss);
}

#[test]
fn only_the_holder_of_a_lease_rebuilds_until_the_lease_ends() {
    let mut leases = leased();
    leases.record_miss(b"other", 2.into(), token(1), &Policy::default());
    assert_eq!([1, 2, 3].map(|owner| leases.rebuilds(owner)), [true, false, false]);
    pooled(&mut leases, 1);
    assert!(!leases.rebuilds(1));
    let mut leases = leased();
    leases.invalidate(KEY, 9.into());
    assert!(!leases.rebuilds(1), "what it builds cannot be kept");
}

#[test]
fn the_number_of_waiting_requests_of_a_key_is_limited() {
    let mut leases = leased();
    for waiter in 0..MAX_WAITERS_PER_KEY as u32 {
        assert!(matches!(
            leases.wait(KEY, 99.into(), NOW, &Policy::default(), true, waiter),
            Admission::Waits { .. }
        ));
    }
    assert_eq!(leases.wait(KEY, 99.into(), NOW, &Policy::default(), true, 0), Admission::Full);
    leases.wake(KEY);
    assert!(matches!(leases.wait(KEY, 99.into(), NOW, &Policy::default(), true, 0), Admission::Waits { .. }));
}

#[test]
fn a_fresh_hit_ends_an_earlier_miss_and_a_lease_unless_that_refreshes_this_very_value() {
    let mut leases: Leases<u32> = Leases::default();
    leases.record_miss(KEY, 1.into(), token(7), &Policy::default());
    assert_eq!(leases.hit(KEY, 1.into(), 8), AfterHit::Ended(Vec::new()));
    assert_eq!(set(&mut leases, 1, false), Attribution::NoMiss);
    let lock = cas(9);
    let refreshes = MissToken { lock: Some(lock), stub: None, ..token(7) };
    leases.grant(KEY, 1.into(), refreshes, &Policy::default()).0.unwrap();
    assert_eq!(leases.hit(KEY, 1.into(), 7), AfterHit::Refreshes);
    let commands = Commands::from_iter([delete(ItemRef::Lock, Some(lock))]);
    let ended = Ended { key: KEY.into(), end: LeaseEnd::Lost, commands, fence: 0, plan: 0 };
    assert_eq!(leases.hit(KEY, 1.into(), 8), AfterHit::Ended(vec![ended]));
    assert_eq!(set(&mut leases, 1, false), Attribution::NoMiss);
}

#[test]
fn with_pools_a_set_may_end_any_miss_of_another_connection_and_only_one() {
    let mut leases: Leases<u32> = Leases::default();
    leases.record_miss(KEY, 1.into(), token(7), &Policy::default());
    assert_eq!(fill(&mut leases, 3), (Some(7), false, false));
    assert_eq!(pooled(&mut leases, 3), Attribution::NoMiss);
}

#[test]
fn several_misses_without_a_reply_refuse_only_one_set_of_another_connection() {
    let mut leases: Leases<u32> = Leases::default();
    for owner in 1..=3 {
        leases.record_miss(
            KEY,
            owner.into(),
            MissToken { observed_cas: None, ..token(7) },
            &Policy::default(),
        );
    }
    assert_eq!(fill(&mut leases, 9).0, None);
    assert_eq!(pooled(&mut leases, 9), Attribution::NoMiss);
    assert_eq!(fill(&mut leases, 1).0, None, "its own is refused too");
}

#[test]
fn two_claims_in_a_row_without_a_fill_stop_all_waiting_for_a_minute() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    leases.release_waiters(KEY, NOW);
    assert!(matches!(
        leases.wait(KEY, 99.into(), NOW, &policy, true, 1),
        Admission::Waits { poll: Some(PollRate::Fast), .. }
    ));
    assert_eq!(leases.release_waiters(KEY, NOW), [1]);
    assert_eq!(leases.wait(KEY, 99.into(), NOW, &policy, true, 2), Admission::Refused);
    let later = Now { mono: NOW.mono + NO_WAIT_MS, ..NOW };
    assert!(matches!(leases.wait(KEY, 99.into(), later, &policy, true, 3), Admission::Waits { .. }));
}

#[test]
fn with_too_many_unfilled_keys_a_further_one_is_waited_for_and_its_requests_are_woken() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let waits = |leases: &mut Leases<u32>, key: &[u8], now| {
        matches!(leases.wait(key, 99.into(), now, &policy, true, 7), Admission::Waits { .. })
    };
    for key in 0..2 * MAX_KEYS as u64 {
        for _ in 0..2 {
            assert!(leases.release_waiters(&key.to_le_bytes(), NOW).is_empty());
        }
    }
    assert_eq!(leases.keys.len(), MAX_KEYS);
    let (first, further) = (0_u64.to_le_bytes(), (MAX_KEYS as u64).to_le_bytes());
    assert!(!waits(&mut leases, &first, NOW), "it is remembered");
    // As for any key, until `cold_wait` is over; its waiting requests are woken when it is given up.
    assert!(waits(&mut leases, &further, NOW));
    assert_eq!(leases.release_waiters(&further, NOW), [7]);
    assert!(!leases.has_waiters(&further), "polling ends");
    // Once the other entries have expired there is room again.
    let later = Now { mono: NOW.mono + NO_WAIT_MS, ..NOW };
    while leases.sweep(later) {}
    assert!(leases.keys.is_empty());
    (0..2).for_each(|_| assert!(leases.release_waiters(&further, later).is_empty()));
    assert!(!waits(&mut leases, &further, later));
}

#[test]
fn a_lease_whose_connection_closes_during_its_renewal_is_released_with_the_renewed_cas() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1.into(), token(7), &policy).0.unwrap();
    assert!(matches!(leases.due(KEY, id, NOW, &policy, &[], 5), Due::Renew(_)));
    assert_eq!(pooled(&mut leases, 1), Attribution::Renewing);
    assert!(leases.disconnect(1.into()).is_empty());
    let renewed = cas(8);
    let released = leases.renewed(KEY, id, &[ServerReply::Stored(renewed)], NOW.mono).unwrap_err();
    let free = Stub { id: StubId::of(7), age: 0, is_free: true, turn: 0 }.store_command(Some(renewed), 60);
    assert_eq!(released, (Some(LeaseEnd::Disconnected), smallvec![free]));
}

#[test]
fn a_lease_that_is_invalidated_during_its_renewal_ends_once() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let id = leases.grant(KEY, 1.into(), token(7), &policy).0.unwrap();
    assert!(matches!(leases.due(KEY, id, NOW, &policy, &[], 5), Due::Renew(_)));
    assert_eq!(leases.invalidate(KEY, 2.into()), 1);
    let after = leases.renewed(KEY, id, &[ServerReply::Exists], NOW.mono).unwrap_err();
    assert_eq!(after, (None, Commands::new()));
}

#[test]
fn an_expired_key_leaves_no_memory_in_use() {
    let mut leases = leased();
    leases.invalidate(KEY, 9.into());
    leases.release_waiters(KEY, NOW);
    leases.sweep(Now { mono: NOW.mono + 10_000_000, ..NOW });
    assert!(leases.keys.is_empty() && leases.owners.is_empty());
}

#[test]
fn an_earlier_win_whose_reply_is_processed_late_does_not_end_the_later_one() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    // The stub of the first was lost, and the second won another. The first reply was processed last.
    leases.grant(KEY, 2.into(), token(9), &policy).0.unwrap();
    assert_eq!(leases.grant(KEY, 1.into(), token(7), &policy), (None, Vec::new()));
    assert_eq!(fill(&mut leases, 2), (Some(9), true, false));
    // It may be stored only over what it saw, which has gone.
    assert_eq!(fill(&mut leases, 1), (Some(7), false, false));
}

#[test]
fn a_later_win_ends_the_earlier_one_and_releases_its_lock() {
    let mut leases: Leases<u32> = Leases::default();
    let policy = Policy::default();
    let lock = cas(8);
    leases.grant(KEY, 1.into(), MissToken { lock: Some(lock), ..token(7) }, &policy).0.unwrap();
    // The value was evicted, and the second found a stub instead.
    let (id, superseded) = leases.grant(KEY, 2.into(), token(9), &policy);
    let commands = Commands::from_iter([delete(ItemRef::Lock, Some(lock))]);
    let ended = Ended { key: KEY.into(), end: LeaseEnd::Superseded, commands, fence: 0, plan: 0 };
    assert!(id.is_some() && superseded == [ended]);
    assert_eq!((leases.rebuilds(1), leases.rebuilds(2)), (false, true));
    // It may be stored only over what it saw, which has gone.
    assert_eq!(fill(&mut leases, 1), (Some(7), false, false));
}

#[test]
fn a_key_is_polled_by_one_task_and_slowly_if_the_lease_is_in_this_sidecar() {
    let policy = Policy::default();
    for (leased, rate) in [(false, PollRate::Fast), (true, PollRate::Slow)] {
        let mut leases: Leases<u32> = Leases::default();
        if leased {
            leases.grant(KEY, 1.into(), token(7), &policy).0.unwrap();
        }
        let mut begin = |waiter| match leases.wait(KEY, 99.into(), NOW, &policy, true, waiter) {
            Admission::Waits { poll, .. } => poll,
            admission => panic!("{admission:?}"),
        };
        assert_eq!([begin(1), begin(2)], [Some(rate), None]);
        assert_eq!(leases.polled(KEY, PollResult::Unchanged, NOW), [] as [u32; 0]);
        assert_eq!(leases.polled(KEY, PollResult::Freed, NOW), [1, 2]);
        assert!(matches!(
            leases.wait(KEY, 99.into(), NOW, &policy, true, 3),
            Admission::Waits { poll: Some(_), .. }
        ));
    }
}

#[test]
fn a_poll_that_finds_a_key_freed_counts_it_as_unfilled_unless_the_lease_is_in_this_sidecar() {
    let policy = Policy::default();
    for (leased, refused) in [(false, true), (true, false)] {
        let mut leases: Leases<u32> = Leases::default();
        if leased {
            leases.grant(KEY, 1.into(), token(7), &policy).0.unwrap();
        }
        leases.polled(KEY, PollResult::Filled, NOW);
        leases.wait(KEY, 99.into(), NOW, &policy, true, 1);
        leases.polled(KEY, PollResult::Freed, NOW);
        leases.release_waiters(KEY, NOW);
        assert_eq!(leases.wait(KEY, 99.into(), NOW, &policy, true, 2) == Admission::Refused, refused);
    }
}

/// A lease with lock 8 over a stale value with CAS 7, and the reply to a get of that value.
fn stale(
    leases: &mut Leases<u32>,
    expires_at: Option<u64>,
) -> (MissTokenId, impl Fn(u32, Option<u32>) -> ServerReply + use<>) {
    let won = MissToken { lock: Some(cas(8)), expires_at, ..token(7) };
    let found = move |epoch, ttl| {
        let cas = Cas { number: 7, epoch };
        ServerReply::Item(Item { size: 3, stale: true, ttl, cas, ..item("", 7) })
    };
    (leases.grant(KEY, 1.into(), won, &Policy::default()).0.unwrap(), found)
}

fn renews(leases: &mut Leases<u32>, id: MissTokenId, now: Now) {
    let due = leases.due(KEY, id, now, &Policy::default(), &[], 5);
    assert!(matches!(due, Due::Renew(_)), "{due:?}");
}

#[test]
fn a_lease_is_not_lost_when_another_worker_reconnects() {
    let mut leases: Leases<u32> = Leases::default();
    let (id, found) = stale(&mut leases, None);
    renews(&mut leases, id, NOW);
    let lock = Cas { number: 10, epoch: 2 };
    let token = leases.renewed(KEY, id, &[ServerReply::Stored(lock), found(2, None)], NOW.mono).unwrap();
    assert_eq!((token.lock, token.observed_cas), (Some(lock), Some(cas(7))));
}

#[test]
fn a_renewal_without_a_reply_is_repeated_after_a_pause_even_if_the_value_expires_soon() {
    let down = [ServerReply::Failed(Failure::Down), ServerReply::Failed(Failure::Down)];
    for none in [&down[..], &[]] {
        let mut leases: Leases<u32> = Leases::default();
        let (id, _) = stale(&mut leases, Some(NOW.mono + 1000));
        let (mut now, mut rounds) = (NOW, 0);
        while now.mono < NOW.mono + 5_000 {
            renews(&mut leases, id, now);
            let token = leases.renewed(KEY, id, none, now.mono).unwrap();
            now.mono = Leases::<u32>::due_after(&token, none, &Policy::default(), now);
            rounds += 1;
        }
        assert!((10..60).contains(&rounds), "{rounds} renewals in 5 s");
    }
}

#[test]
fn a_value_that_was_touched_since_it_was_won_is_not_replaced_by_a_stub() {
    // When the value would be replaced by a stub, and when the next renewal is due.
    let late = Now { mono: NOW.mono + 2_000, ..NOW };
    let step = NOW.mono + 1_000 + 5_000 / 3;
    for (ttl, expires_at) in
        [(Some(3600), Some(NOW.mono + 1_000 + 3_599_000)), (None, None), (Some(1), Some(late.mono))]
    {
        let mut leases: Leases<u32> = Leases::default();
        let (id, found) = stale(&mut leases, Some(late.mono));
        let soon = Now { mono: NOW.mono + 1_000, ..NOW };
        renews(&mut leases, id, soon);
        let replies = [ServerReply::Stored(cas(10)), found(1, ttl)];
        let token = leases.renewed(KEY, id, &replies, soon.mono).unwrap();
        assert_eq!(token.expires_at, expires_at);
        let due = Leases::<u32>::due_after(&token, &replies, &Policy::default(), soon);
        assert_eq!(due, if ttl == Some(1) { late.mono - CLEARING_MARGIN_MS } else { step });
    }
}

#[test]
fn only_a_connection_with_a_miss_is_restricted_to_what_the_miss_saw() {
    let over = |number| {
        StoreCondition::Observed(Observed {
            cas: cas(number),
            stub: Some(StubId::of(number)),
            origin: Some(StubId::of(number)),
            fence: 0,
            plan: 0,
            versions: Versions::new(),
        })
    };
    let mut leases = leased();
    leases.record_miss(KEY, 2.into(), token(6), &Policy::default());
    leases.record_miss(
        KEY,
        3.into(),
        MissToken { observed_cas: None, stub: None, ..token(7) },
        &Policy::default(),
    );
    let conditions = |leases: &Leases<u32>| {
        [1, 2, 3, 9].map(|owner| leases.store_condition(KEY, owner.into(), KnownMiss::No))
    };
    assert_eq!(
        conditions(&leases),
        [over(7), over(6), StoreCondition::Observed(Observed::none()), StoreCondition::Unconditional]
    );
    assert_eq!(fill(&mut leases, 1), (Some(7), true, false), "its set is the fill all the same");
    leases.invalidate(KEY, 3.into());
    assert_eq!(
        conditions(&leases),
        [
            StoreCondition::Unconditional,
            StoreCondition::Observed(Observed::none()),
            StoreCondition::Unconditional,
            StoreCondition::Unconditional
        ]
    );
    leases.hit(KEY, 2.into(), 0);
    assert_eq!(leases.store_condition(KEY, 2.into(), KnownMiss::No), StoreCondition::Unconditional);
    let id = leases.grant(KEY, 1.into(), token(7), &Policy::default()).0.unwrap();
    renews(&mut leases, id, NOW);
    assert_eq!(leases.store_condition(KEY, 1.into(), KnownMiss::No), StoreCondition::Renewing);
}

#[test]
fn a_win_whose_reply_is_processed_too_late_is_a_miss() {
    let mut leases = leased();
    assert_eq!(leases.grant(KEY, 2.into(), token(6), &Policy::default()).0, None);
    assert_eq!(fill(&mut leases, 2), (Some(6), false, false));
}

#[test]
fn the_leases_granted_first_are_listed_up_to_a_limit() {
    let mut leases = Leases::<u32>::default();
    for (n, key) in [b"c", b"a", b"b"].into_iter().enumerate() {
        let at = Now { mono: NOW.mono + n as u64, ..NOW };
        let token = MissToken { at, ..token(7) };
        leases.grant(key, 1.into(), token, &Policy::default()).0.unwrap();
    }
    let live = |limit| leases.live(limit).into_iter().map(|lease| lease.key).collect::<Vec<_>>();
    assert_eq!(live(2), [Box::from(&b"c"[..]), Box::from(&b"a"[..])]);
    assert_eq!(live(50).len(), 3);
}
