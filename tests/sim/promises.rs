//! The tests: the guard as it is, and each mutant of it.

use super::checker::Coverage;
use super::mutants::Mutant;
use super::near::{plan_near, with_near_in_some};
use super::places::plan_places;
use super::plan::Plan;
use super::rare;
use super::seeds::{every_seed_keeps_the_promises, is_caught};

fn calm(seed: u64, mutant: Option<Mutant>) -> Plan {
    with_near_in_some(Plan::new(seed, false, mutant))
}

fn faulty(seed: u64, mutant: Option<Mutant>) -> Plan {
    with_near_in_some(Plan::new(seed, true, mutant))
}

fn assert_covered(coverage: Coverage) {
    let Coverage {
        fresh, stale, won, held, dropped, blind, invalidations, server_commands, fresh_hits, ..
    } = coverage;
    let often = [fresh, stale, won, held, dropped, blind, invalidations, fresh_hits];
    assert!(often.iter().all(|times| *times > server_commands / 1000), "hardly tested: {coverage:?}");
    let Coverage {
        early,
        named,
        elsewhere,
        changed,
        cached,
        large,
        no_wait,
        waited,
        added_tags,
        unmoved,
        near,
        ..
    } = coverage;
    let seldom =
        [early, named, elsewhere, changed, cached, large, no_wait, waited, added_tags, unmoved, near];
    assert!(seldom.iter().all(|times| *times > 0), "never tested: {coverage:?}");
}

#[test]
fn without_faults_every_promise_is_kept() {
    let (coverage, usual) = every_seed_keeps_the_promises(calm, 700);
    if usual {
        assert_covered(coverage);
    }
}

#[test]
fn with_faults_no_value_is_resurrected_and_every_key_becomes_fresh_again() {
    let (coverage, usual) = every_seed_keeps_the_promises(faulty, 700);
    if usual {
        assert_covered(coverage);
        let Coverage { late, copies_lost, .. } = coverage;
        assert!(late > 0 && copies_lost > 0, "never tested: {coverage:?}");
    }
}

#[test]
fn bumps_that_overtake_each_other_resurrect_nothing() {
    every_seed_keeps_the_promises(Plan::storm, 100);
}

#[test]
fn what_is_kept_near_breaks_no_promise() {
    let (coverage, usual) = every_seed_keeps_the_promises(plan_near, 300);
    assert!(
        !usual || coverage.near > coverage.fresh / 10 && coverage.joined > 10,
        "hardly tested: {coverage:?}"
    );
}

#[test]
fn what_was_given_up_and_is_carried_out_late_brings_nothing_back() {
    let (coverage, usual) = every_seed_keeps_the_promises(Plan::late, 300);
    assert!(!usual || coverage.late > 0, "never tested: {coverage:?}");
}

#[test]
fn of_two_copies_of_a_tag_one_may_be_lost_or_late() {
    let (coverage, usual) = every_seed_keeps_the_promises(Plan::copied_tags, 300);
    assert!(!usual || (coverage.late > 0 && coverage.copies_lost > 0), "never tested: {coverage:?}");
}

#[test]
fn what_is_stored_under_the_key_of_a_tag_brings_nothing_back() {
    let (coverage, usual) = every_seed_keeps_the_promises(rare::spoilt_tags, 120);
    assert!(!usual || coverage.tags_spoilt > 1000, "hardly tested: {coverage:?}");
}

#[test]
fn what_a_server_that_fails_over_once_brought_back_stays_away() {
    every_seed_keeps_the_promises(rare::found, rare::ALL_FOUND);
}

#[test]
fn a_server_that_fails_over_and_comes_back_brings_nothing_back() {
    let (coverage, usual) = every_seed_keeps_the_promises(plan_places, 300);
    assert!(
        !usual || (coverage.moves > 1000 && coverage.refused > 500 && coverage.fresh > coverage.moves),
        "hardly tested: {coverage:?}"
    );
}

#[test]
fn what_commands_are_told_could_have_been_told_by_memcached() {
    let (coverage, usual) = every_seed_keeps_the_promises(Plan::commands, 150);
    assert!(!usual || (coverage.commands > 10_000 && coverage.undecided == 0), "hardly tested: {coverage:?}");
}

#[test]
fn what_pools_are_told_could_have_been_told_by_memcached() {
    let (coverage, usual) = every_seed_keeps_the_promises(Plan::pools, 150);
    assert!(!usual || (coverage.commands > 10_000 && coverage.undecided == 0), "hardly tested: {coverage:?}");
}

#[test]
fn what_is_rare_elsewhere_breaks_no_promise_either() {
    let every = |seed, mutant| rare::ALL[seed as usize % rare::ALL.len()](seed, mutant);
    every_seed_keeps_the_promises(every, 15 * rare::ALL.len() as u64);
}

/// For each mutant: the plan, the seeds within which it must be caught, and the violation.
macro_rules! mutants {
    ($($name:ident: $mutant:ident, $plan:expr, $seeds:literal, $as_violating:literal;)*) => {
        $(
            #[test]
            fn $name() {
                is_caught(Mutant::$mutant, $plan, $seeds, $as_violating);
            }
        )*
    };
}

mutants! {
    a_fill_without_cas_is_caught: FillWithoutCas, calm, 10, "promise 2";
    a_stub_that_is_taken_over_without_compare_is_caught: TakesOverWithoutCompare, calm, 200, "promise 1";
    a_waiter_that_is_told_a_miss_after_cold_wait_is_caught: EveryWaiterIsToldAMiss, calm, 50, "promise 1";
    a_claim_without_the_double_check_is_caught: NoDoubleCheck, calm, 400, "";
    an_unlock_without_compare_is_caught: UnlockWithoutCompare, calm, 20, "";
    any_stub_taken_for_the_one_that_was_missed_is_caught: AnyStubIsTheSame, calm, 100, "promise 2";
    a_set_whose_forgotten_miss_counts_for_nothing_is_caught: ForgottenMissIsNone, rare::slow_clients, 400, "promise 2";
    a_lost_tag_that_counts_as_unmoved_is_caught: LostTagIsUnmoved, rare::lost_tags, 20, "promise 2";
    a_fill_sealed_with_the_versions_of_its_own_moment_is_caught: SnapshotAtSet, calm, 10, "promise 2";
    a_lease_that_is_never_renewed_is_caught: NoRenewal, calm, 100, "";
    a_delete_that_spares_the_stub_is_caught: DeleteSparesStub, calm, 10, "promise 2";
    a_request_that_waits_while_it_holds_a_win_is_caught: WaitsWithWin, calm, 50, "promise 4";
    a_request_that_waits_with_another_behind_it_is_caught: WaitsThoughPipelined, calm, 10, "promise 4";
    a_bump_to_the_larger_of_old_and_now_is_caught: BumpByNow, faulty, 50, "promise 2";
    a_cas_from_before_the_connection_was_remade_that_is_compared_is_caught: NoEpochCheck, Plan::restarts, 800, "promise 2";
    a_poller_that_never_wakes_anybody_is_caught: PollerNeverWakes, calm, 100, "promise 4";
    a_fill_that_wakes_nobody_is_caught: FillWakesNoWaiter, calm, 100, "promise 4";
    a_release_without_compare_is_caught: ReleaseWithoutCompare, rare::lost_leases, 100, "";
    a_renewal_without_compare_is_caught: RenewalWithoutCompare, calm, 50, "promise 2";
    a_delete_that_leaves_the_old_value_unmarked_is_caught: DeleteMarkLost, calm, 10, "promise 2";
    a_stale_value_that_is_won_without_a_mark_is_caught: WinWithoutMark, calm, 1000, "";
    a_delete_that_leaves_the_lock_is_caught: DeleteKeepsLock, calm, 200, "";
    a_lock_that_everyone_gets_is_caught: LockBySet, calm, 10, "";
    a_stub_that_every_reader_wins_is_caught: EveryStubIsWon, calm, 10, "";
    a_bump_without_compare_is_caught: BumpWithoutCompare, Plan::storm, 1000, "promise 2";
    a_loser_without_a_ticket_is_caught: LoserLeavesNoToken, calm, 10, "promise 2";
    a_miss_of_a_dead_server_without_a_ticket_is_caught: UnknownLeavesNoToken, faulty, 50, "promise 2";
    a_value_that_is_stale_a_second_late_is_caught: StaleASecondLate, calm, 10, "promise 3";
    a_value_in_its_last_second_that_is_won_as_it_stands_is_caught: NoClearing, calm, 10, "";
    a_version_that_is_cached_for_good_is_caught: CacheForever, calm, 20, "";
    a_cas_sealed_with_the_versions_of_its_own_moment_is_caught: CasSealedNow, calm, 50, "promise 2";
    a_change_without_compare_is_caught: ChangeWithoutCompare, calm, 50, "";
    a_change_without_compare_is_not_linearizable: ChangeWithoutCompare, Plan::commands, 100, "not linearizable";
    a_fill_without_cas_resurrects_what_commands_deleted: FillWithoutCas, Plan::commands, 100, "resurrection";
    a_change_of_a_stale_value_is_caught: ChangesStale, rare::changing, 1000, "";
    a_fill_that_leaves_its_lock_is_caught: FillLeavesLock, calm, 20, "";
    a_kept_hit_whose_age_counts_from_the_answer_is_caught: NearFromTheAnswer, rare::far_servers, 500, "promise 2";
    a_kept_hit_that_outlives_its_soft_expiry_is_caught: NearBeyondExpiry, plan_near, 100, "promise 3";
    changes_that_count_only_when_they_begin_are_caught: ChangesCountWhenTheyBegin, plan_near, 50, "promise 2";
    bumps_that_do_not_count_as_changes_are_caught: BumpsDoNotCount, plan_near, 50, "promise 2";
    a_claim_that_comes_too_late_and_leaves_its_lock_is_caught: ClaimLeavesLock, calm, 20, "";
    a_tag_that_is_created_without_compare_is_caught: TagCreatedWithoutCompare, calm, 100, "";
    a_set_without_cas_is_caught: SetWithoutCas, rare::late_sets, 200, "promise 2";
    a_bump_of_only_the_first_copy_is_caught: OnlyFirstCopyIsBumped, Plan::copied_tags, 50, "promise 2";
    a_smaller_copy_that_counts_is_caught: SmallerCopyCounts, Plan::copied_tags, 400, "promise 2";
    a_version_that_brought_up_a_copy_and_is_reused_is_caught: RepairIsReused, rare::late_repairs, 400, "promise 2";
    a_fence_that_is_not_compared_is_caught: FenceNotCompared, plan_places, 100, "promise 2";
    a_fill_under_another_fence_is_caught: FillUnderAnotherFence, plan_places, 1000, "promise 2";
    a_cas_number_that_counts_under_every_fence_is_caught: NumbersOfAllFences, plan_places, 2000, "promise 2";
    values_and_numbers_of_every_fence_are_caught: NoFenceOfValues, plan_places, 100, "promise 2";
    a_view_that_outlives_itself_is_caught: ViewOutlivesItself, plan_places, 200, "promise 2";
    a_tag_that_is_not_sealed_with_its_fence_is_caught: TagNotSealed, plan_places, 1000, "promise 2";
    a_lock_of_another_fence_that_counts_as_held_is_caught: LockOfAnotherFenceIsHeld, plan_places, 50, "promise 4";
    a_tag_first_named_with_the_value_that_counts_as_unmoved_is_caught: NamedTagIsUnmoved, calm, 100, "promise 2";
}
