//! The guard under a model checker: every state that two sidecars, two clients, one key and one tag can come to, and what
//! must hold of them. docs/model.md says what is modelled, what is left out, and what that took.
//!
//! `KENNEL_MODEL=full` explores what takes minutes, and wants an optimised build.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod plan;
mod server;
mod canon;
mod operation;
mod world;
mod checker;

use checker::explore;
use plan::{Fault, Mutant, Plan};

fn keeps_the_promises(plan: &Plan) {
    let began = tokio::time::Instant::now();
    match explore(plan) {
        Ok(explored) => println!("{}: {explored:?} in {:?}", plan.name, began.elapsed()),
        Err(found) => {
            panic!(
                "{}\n\n{}: {} (found among {} states)",
                found.trace.join("\n"),
                plan.name,
                found.broken.0,
                found.states
            )
        }
    }
}

/// What is broken on purpose shows, as the breaking of this promise.
fn is_caught(mutant: Mutant, plan: Plan, as_breaking: &str) {
    let plan = Plan { mutant: Some(mutant), ..plan };
    match explore(&plan) {
        Err(found) => {
            println!("{mutant:?}: {} after {} states", found.broken.0, found.states);
            assert!(
                found.broken.0.starts_with(as_breaking),
                "{}\n{mutant:?}: {}",
                found.trace.join("\n"),
                found.broken.0
            );
        }
        Ok(explored) => panic!("{mutant:?} was not caught in {explored:?}"),
    }
}

/// Both clients apart, rounds as a whole: the smallest in which most mutants show.
fn small(expiries: u32, invalidations: u32, faults: &'static [Fault]) -> Plan {
    Plan {
        expiries,
        kinds: faults,
        whole_rounds: true,
        renews: false,
        ..Plan::apart("small", invalidations, u32::from(!faults.is_empty()))
    }
}

#[test]
fn a_fill_without_cas_is_caught_as_a_resurrection() {
    is_caught(Mutant::FillWithoutCas, small(0, 1, &[]), "promise 2");
}

#[test]
fn a_claim_without_the_double_check_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::NoDoubleCheck, small(1, 0, &[]), "promise 1");
}

#[test]
fn an_unlock_without_compare_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::UnlockWithoutCompare, small(1, 1, &[]), "promise 1");
}

#[test]
fn a_lost_tag_that_counts_as_unmoved_is_caught_as_a_resurrection() {
    is_caught(Mutant::LostTagIsUnmoved, small(0, 1, &[Fault::EvictTag]), "promise 2");
}

#[test]
fn a_fill_sealed_with_the_versions_of_its_own_moment_is_caught_as_a_resurrection() {
    is_caught(Mutant::SnapshotAtSet, small(0, 1, &[]), "promise 2");
}

#[test]
fn a_lease_that_is_never_renewed_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::NoRenewal, small(0, 0, &[]), "promise 1");
}

#[test]
fn a_delete_that_spares_the_stub_is_caught_as_an_empty_acknowledgement() {
    is_caught(Mutant::DeleteSparesStub, small(0, 1, &[]), "promise 7");
}

#[test]
fn a_lock_that_everybody_gets_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::LockIsShared, small(1, 0, &[]), "promise 1");
}

#[test]
fn a_cas_that_outlives_its_connection_is_caught_as_one_rebuild_too_many() {
    is_caught(Mutant::EpochIgnored, small(0, 1, &[Fault::Restart]), "promise 1");
}

#[test]
fn an_invalidation_acknowledged_without_knowing_is_caught() {
    is_caught(Mutant::FailureIsAcknowledged, small(0, 1, &[Fault::Lose]), "promise 7");
}

#[test]
fn a_waiter_that_nobody_wakes_is_caught_as_waiting_for_ever() {
    is_caught(Mutant::BellsAreLost, small(0, 0, &[]), "liveness: Answered");
}

#[test]
fn a_stub_without_an_end_is_caught_as_readers_that_wait_for_ever_for_a_dead_winner() {
    is_caught(Mutant::LocksNeverEnd, small(0, 0, &[Fault::Kill]), "liveness: Answered");
}

#[test]
fn a_stale_value_served_as_fresh_is_caught() {
    is_caught(Mutant::StaleIsFresh, small(1, 0, &[]), "promise 3");
}

#[test]
fn probe() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (i, f) = (number("I"), number("F"));
    let mut plan = if number("T") == 1 { Plan::together("probe", i, f) } else { Plan::apart("probe", i, f) };
    plan.renews = number("R") == 1;
    plan.whole_rounds = number("W") == 1;
    plan.expiries = number("A");
    keeps_the_promises(&plan);
}
