//! What is run: the guard as it is, and each mutant of it.

use super::mutants::Mutant;
use super::seeds::{every_seed_keeps_the_promises, is_caught};

#[test]
fn without_faults_every_promise_is_kept() {
    every_seed_keeps_the_promises(false, 700);
}

#[test]
fn with_faults_no_value_is_resurrected_and_every_key_becomes_fresh_again() {
    every_seed_keeps_the_promises(true, 700);
}

/// Each with the number of seeds within which it must show, and as what.
macro_rules! mutants {
    ($($name:ident: $mutant:ident, $faulty:literal, $seeds:literal, $as_breaking:literal;)*) => {
        $(
            #[test]
            fn $name() {
                is_caught(Mutant::$mutant, $faulty, $seeds, $as_breaking);
            }
        )*
    };
}

mutants! {
    a_fill_without_cas_is_caught: FillWithoutCas, false, 20000, "";
    a_claim_without_the_double_check_is_caught: NoDoubleCheck, false, 20000, "";
    an_unlock_without_compare_is_caught: UnlockWithoutCompare, false, 20000, "";
    a_lost_tag_that_counts_as_unmoved_is_caught: LostTagIsUnmoved, true, 20000, "";
    a_fill_sealed_with_the_versions_of_its_own_moment_is_caught: SnapshotAtSet, false, 20000, "";
    a_lease_that_is_never_renewed_is_caught: NoRenewal, false, 20000, "";
    a_delete_that_spares_the_stub_is_caught: DeleteSparesStub, false, 20000, "";
    a_request_that_waits_while_it_holds_a_win_is_caught: WaitsWithWin, false, 20000, "";
    a_request_that_waits_with_another_behind_it_is_caught: WaitsThoughPipelined, false, 20000, "";
    a_bump_to_the_larger_of_old_and_now_is_caught: BumpByNow, true, 20000, "";
    a_cas_from_before_the_connection_was_remade_that_is_compared_is_caught: NoEpochCheck, true, 20000, "";
    a_poller_that_never_wakes_anybody_is_caught: PollerNeverWakes, false, 20000, "";
    a_fill_that_wakes_nobody_is_caught: FillWakesNobody, false, 20000, "";
    a_release_without_compare_is_caught: ReleaseWithoutCompare, true, 20000, "";
    a_renewal_without_compare_is_caught: RenewalWithoutCompare, false, 20000, "";
    a_delete_that_leaves_the_old_value_unmarked_is_caught: DeleteMarkLost, false, 20000, "";
    a_lock_that_is_taken_over_without_marking_the_value_is_caught: TakeOverWithoutMark, false, 20000, "";
    a_delete_that_leaves_the_lock_is_caught: DeleteKeepsLock, false, 20000, "";
    a_lock_that_everyone_gets_is_caught: LockBySet, false, 20000, "";
    a_stub_that_every_reader_wins_is_caught: EveryStubIsWon, false, 20000, "";
    a_bump_without_compare_is_caught: BumpWithoutCompare, true, 20000, "";
    a_loser_without_a_ticket_is_caught: LoserLeavesNoTicket, false, 20000, "";
    a_miss_of_a_dead_server_without_a_ticket_is_caught: UnknownLeavesNoTicket, true, 20000, "";
    a_value_that_is_stale_a_second_late_is_caught: StaleASecondLate, false, 20000, "";
    a_value_in_its_last_second_that_is_won_as_it_stands_is_caught: NoClearing, false, 20000, "";
    a_version_that_is_cached_for_good_is_caught: CacheForever, false, 20000, "";
    a_cas_sealed_with_the_versions_of_its_own_moment_is_caught: CasSealedNow, false, 20000, "";
    a_change_without_compare_is_caught: ChangeWithoutCompare, false, 20000, "";
    a_change_of_a_stale_value_is_caught: ChangesStale, false, 20000, "";
    a_fill_that_leaves_its_lock_is_caught: FillLeavesLock, false, 20000, "";
    a_claim_that_comes_too_late_and_leaves_its_lock_is_caught: ClaimLeavesLock, false, 20000, "";
}
