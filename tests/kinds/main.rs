//! The kinds of `src/kinds` in simulated time: three to six clients, two sidecars with clocks that move, and two servers, or three for
//! what has copies, run in one thread, one schedule per seed. Connections stall, lose segments and are made anew, and what was sent on
//! the former one arrives late up to some place, or never; replies arrive after the timeout; servers stop, restart empty, and evict. A
//! promise about a server that lives applies to an item until it is evicted or its server restarts.
//!
//! With copies, only the servers of one of them (the seed says which) restart and evict, and only its place moves; the others stop, and
//! connections to them stall. So nothing acknowledged may be lost. Raw values and counters also run with losses on all servers. The
//! module of each kind says what is checked; `every_order.rs` explores small schedules to their end.
//!
//! `KENNEL_SIM_SEEDS=100000` runs seeds 0 to 99999, `KENNEL_SIM_SEEDS=5000..9000` this range, `KENNEL_SIM_SEED=17` one seed, with
//! its trace if it fails. `KENNEL_SIM_RATE=1000` prints how many of 1000 seeds catch each mutant.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod executor;
mod mutants;
mod plan;
mod server;
mod network;
mod places;
mod world;
mod members;
mod copies;
mod values;
mod counter;
mod list;
mod log;
mod table;
mod lock;
mod window;
mod seeds;
mod orders;
mod every_order;

use mutants::Mutant;
use plan::Plan;
use seeds::{every_seed_keeps_the_promise, every_seed_of, is_caught, is_caught_in};

#[test]
fn an_acknowledged_count_is_in_every_later_number_and_none_is_counted_twice() {
    every_seed_keeps_the_promise(counter::begin, 60);
}

#[test]
fn a_counter_needs_each_of_its_defences_caught() {
    is_caught(Mutant::FailedCountIsSentAgain, counter::begin, 20);
    is_caught(Mutant::FailedCountIsAcknowledged, counter::begin, 20);
}

#[test]
fn a_sum_has_every_acknowledged_count_of_its_window_and_none_that_has_left_it() {
    every_seed_keeps_the_promise(window::begin, 60);
}

#[test]
fn no_visitor_counts_twice_in_a_window() {
    every_seed_keeps_the_promise(window::begin_unique, 60);
}

#[test]
fn a_window_needs_each_of_its_defences_caught() {
    is_caught(Mutant::FailedCountIsSentAgain, window::begin, 50);
    is_caught(Mutant::NextSlotIsNotRead, window::begin, 50);
    is_caught(Mutant::OldestSlotIsNotRead, window::begin, 50);
    is_caught(Mutant::SlotEndsWithItsWindow, window::begin, 50);
    is_caught(Mutant::MarkerEndsEarly, window::begin_unique, 50);
    is_caught(Mutant::MarkerWithoutCompare, window::begin_unique, 50);
}

#[test]
fn a_lock_has_one_holder_while_its_server_lives() {
    every_seed_keeps_the_promise(lock::begin, 100);
}

#[test]
fn the_numbers_of_successive_holds_only_grow() {
    every_seed_keeps_the_promise(lock::begin_fenced, 80);
}

#[test]
fn a_lock_needs_each_of_its_defences_caught() {
    is_caught(Mutant::SetForAdd, lock::begin, 50);
    is_caught(Mutant::LockWithoutMargin, lock::begin, 50);
    is_caught(Mutant::RenewalWithoutCompare, lock::begin, 200);
    is_caught(Mutant::ReleaseWithoutCompare, lock::begin, 50);
    is_caught(Mutant::TokenNotCompared, lock::begin, 200);
    is_caught_in(Mutant::HeldFromTheReply, lock::begin, 300, Plan::far);
    is_caught_in(Mutant::NoEpochCheck, lock::begin, 100, Plan::restarting);
    is_caught(Mutant::FenceBeginsWithOne, lock::begin_fenced, 50);
}

#[test]
fn a_list_has_what_its_last_acknowledged_commands_say() {
    every_seed_keeps_the_promise(list::begin, 20);
    every_seed_of(list::begin, 20, Plan::lossy);
}

#[test]
fn a_list_needs_each_of_its_defences_caught() {
    is_caught(Mutant::FoldWithoutCompare, list::begin, 50);
}

#[test]
fn a_log_has_every_acknowledged_entry_once_and_a_tail_sees_each_once() {
    every_seed_keeps_the_promise(log::begin, 40);
    every_seed_of(log::begin, 40, Plan::lossy);
}

#[test]
fn a_log_needs_each_of_its_defences_caught() {
    is_caught(Mutant::FailedAppendIsSentAgain, log::begin, 50);
    is_caught(Mutant::NextSlotIsNotRead, log::begin, 50);
    is_caught(Mutant::OldestSlotIsNotRead, log::begin, 50);
    is_caught(Mutant::SlotEndsWithItsWindow, log::begin, 50);
}

#[test]
fn a_listing_of_a_table_has_the_elements_that_are_stored_and_no_others() {
    every_seed_keeps_the_promise(table::begin, 40);
    every_seed_of(table::begin, 40, Plan::lossy);
}

#[test]
fn a_table_needs_each_of_its_defences_caught() {
    is_caught(Mutant::FoldWithoutCompare, table::begin, 50);
    is_caught(Mutant::NameIsNotAppendedAgain, table::begin, 100);
    is_caught_in(Mutant::NameGoesAtOnce, table::begin, 100, Plan::lossy);
}

#[test]
fn a_count_with_two_copies_stays_counted_while_one_of_them_lives() {
    every_seed_of(copies::begin_counter, 50, Plan::of_copies);
    every_seed_of(copies::begin_counter, 50, Plan::of_evicted_copies);
}

#[test]
fn without_a_fault_no_count_with_two_copies_fails() {
    every_seed_of(copies::begin_counter, 800, Plan::without_faults);
}

#[test]
fn a_list_with_two_copies_has_what_its_last_acknowledged_commands_say_while_one_of_them_lives() {
    every_seed_of(list::begin, 20, Plan::of_one_lost_copy);
    every_seed_of(list::begin, 20, Plan::of_one_late_copy);
}

#[test]
fn a_log_with_two_copies_has_every_acknowledged_entry_once_while_one_of_them_lives() {
    every_seed_of(log::begin, 8, Plan::of_one_lost_copy);
    every_seed_of(log::begin, 8, Plan::of_one_late_copy);
    every_seed_of(log::begin, 5, Plan::of_evicted_first_parts);
    every_seed_of(log::begin, 5, Plan::of_evicted_second_parts);
}

#[test]
fn a_listing_of_a_table_with_two_copies_has_the_stored_elements_while_one_of_them_lives() {
    every_seed_of(table::begin, 20, Plan::of_one_lost_copy);
    every_seed_of(table::begin, 20, Plan::of_one_late_copy);
}

#[test]
fn a_sum_with_two_copies_has_every_acknowledged_count_of_its_window_while_one_of_them_lives() {
    every_seed_of(window::begin, 40, Plan::of_one_lost_copy);
}

#[test]
fn no_visitor_counts_twice_in_a_window_with_two_copies_while_one_of_them_lives() {
    every_seed_of(window::begin_unique, 40, Plan::of_one_lost_copy);
}

#[test]
fn a_lock_with_two_copies_has_one_holder_while_one_of_them_lives() {
    every_seed_of(lock::begin, 50, Plan::of_one_lost_copy_of_locks);
}

#[test]
fn the_numbers_of_successive_holds_with_two_copies_only_grow_while_one_of_them_lives() {
    every_seed_of(lock::begin_fenced, 50, Plan::of_one_lost_copy_of_locks);
}

#[test]
fn a_session_with_two_copies_is_what_was_acknowledged_last_while_one_of_them_lives() {
    every_seed_of(copies::begin_session, 50, Plan::of_copies);
}

#[test]
fn every_reply_about_a_value_with_two_copies_is_that_of_one_server_while_one_of_them_lives() {
    every_seed_of(values::begin, 50, Plan::of_one_lost_copy);
    every_seed_of(values::begin, 50, Plan::of_one_late_copy);
}

#[test]
fn copies_need_each_of_their_defences_caught() {
    is_caught_in(Mutant::SecondIsNotStored, copies::begin_counter, 50, Plan::of_copies);
    is_caught_in(Mutant::NoClaim, copies::begin_counter, 600, Plan::of_evicted_copies);
    is_caught_in(Mutant::FirstWithoutCompare, copies::begin_counter, 50, Plan::of_copies);
    is_caught_in(Mutant::SecondWithoutCompare, copies::begin_counter, 100, Plan::of_copies);
    is_caught_in(Mutant::CopiesWithoutFence, copies::begin_counter, 50, Plan::of_copies);
}

#[test]
fn a_value_with_two_copies_needs_each_of_its_defences_caught() {
    is_caught_in(Mutant::SecondIsNotStored, values::begin, 20, Plan::of_one_lost_copy);
    is_caught_in(Mutant::SecondWithoutCompare, values::begin, 200, Plan::of_one_lost_copy);
    is_caught_in(Mutant::CopiesWithoutFence, values::begin, 150, Plan::of_one_lost_copy);
}

#[test]
fn each_kind_with_two_copies_needs_their_defences_caught() {
    for begin in [list::begin, log::begin, table::begin, window::begin, window::begin_unique] {
        is_caught_in(Mutant::SecondIsNotStored, begin, 20, Plan::of_one_lost_copy);
        is_caught_in(Mutant::FirstWithoutCompare, begin, 40, Plan::of_one_lost_copy);
    }
    for begin in [list::begin, log::begin, window::begin_unique] {
        is_caught_in(Mutant::SecondWithoutCompare, begin, 80, Plan::of_one_lost_copy);
    }
    is_caught_in(Mutant::CopiesWithoutFence, list::begin, 80, Plan::of_one_lost_copy);
}

#[test]
fn a_lock_with_two_copies_needs_each_of_its_defences_caught() {
    is_caught_in(Mutant::SecondIsNotStored, lock::begin, 40, Plan::of_one_lost_copy_of_locks);
    is_caught_in(Mutant::FirstWithoutCompare, lock::begin, 40, Plan::of_one_lost_copy_of_locks);
    is_caught_in(Mutant::SecondIsNotStored, lock::begin_fenced, 40, Plan::of_one_lost_copy_of_locks);
    is_caught_in(Mutant::FirstWithoutCompare, lock::begin_fenced, 80, Plan::of_one_lost_copy_of_locks);
    is_caught_in(Mutant::LockWithoutMargin, lock::begin, 40, Plan::of_one_lost_copy_of_locks);
}

#[test]
fn a_log_with_two_copies_needs_each_of_its_defences_caught() {
    is_caught_in(Mutant::FirstCopyIsEnough, log::begin, 120, Plan::of_evicted_first_parts);
}
