//! The guard under a model checker: every reachable state of two sidecars, two clients, one server, one key and one tag. The state
//! machines of `src/guard/` run as they are (`Read`, `Fill`, `Set`, `Delete`, `Bump`, `Leases`).
//!
//! Each client reads the key, builds it after a miss, and sets it, without end. One client may change the source and then delete the
//! key or bump the tag. Each client has its own sidecar (*apart*), or both share one and invalidate through either (*together*). A
//! sidecar's commands reach the server in order; between two of them any command of the other may run (*command by command*), or a
//! round runs as a unit (*whole rounds*). In *together* runs a reply may be received later than it is sent, and in any order. In
//! *apart* runs that makes no difference: no other client of the sidecar could observe it. `plan.rs` has the faults.
//!
//! # What is left out, and why that is sound
//!
//! - Time does not pass: the end of a soft expiry, a lock, a stub or a wait is a step that may happen at any moment. That is more than
//!   real time allows, except for what it rules out: a lock or stub does not end while its holder lives and renews it, nor between
//!   being granted and being known, nor while its fill is in flight (`request_timeout` is far below `lock_ttl`); and a value whose
//!   lock is held does not expire before the stub replaces it.
//! - All wall clocks are equal and advance with each invalidation and each loss of the tag, so two sidecars that find the tag missing
//!   create it with the same number.
//! - The stub of a missing tag does not expire: that has the effect of its eviction, which is a fault.
//! - After a restart, the first CAS number may be one that is still in use; the later ones are new.
//! - The number of retries of a state machine is not part of a state, so giving up after 16 attempts is not covered.
//! - A value reaches its soft expiry at most as often as the plan says. Clients and renewals have no such limit.
//! - A client whose sidecar dies abandons its rebuild: to set the value elsewhere would be a `set` without a miss.
//! - `stale_wait`, `early_beta`, `on_delete = "stale"`, `on_tag = "drop"`, `near`, meta commands and `Modify` are not modelled.
//!
//! `canon.rs` and `steps.rs` say which states and orders are not explored, and why; `reductions.rs` tests that.
//!
//! `KENNEL_MODEL=full` explores the plans that take minutes to the end and needs an optimised build; otherwise only their first
//! states are explored. It explores states with the fewest remaining faults, invalidations and expiries first, which keeps the queue
//! short; a trace is then not the shortest.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod plan;
mod server;
mod canon;
mod operation;
mod background;
mod mutants;
mod world;
mod steps;
mod suspicion;
mod faults;
mod same;
mod graph;
mod checker;
mod reductions;
mod failover;

use checker::{Explored, explore};
use plan::{EVICTIONS, Fault, Invalidation, Mutant, Plan};

fn keeps_the_promises(plan: &Plan) {
    let began = tokio::time::Instant::now();
    match explore(plan) {
        Ok(Explored { states, steps }) => println!(
            "{}: {states} states, {steps} steps in {:?}; at most {} in memory so far",
            plan.name,
            began.elapsed(),
            memory()
        ),
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

/// The peak memory of this process.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("?".into(), |line| line.trim().to_owned())
}

/// Whether `KENNEL_MODEL=full`; panics on any other value.
fn in_full() -> bool {
    match std::env::var("KENNEL_MODEL") {
        Err(_) => false,
        Ok(text) if text == "full" => true,
        Ok(text) => panic!("KENNEL_MODEL is {text:?}, and only \"full\" means something"),
    }
}

#[test]
fn two_sidecars_keep_the_promises_however_their_commands_meet() {
    keeps_the_promises(&Plan { expiries: 1, renews: false, ..Plan::apart("apart", 0, 0) });
}

#[test]
fn two_sidecars_keep_the_promises_while_one_invalidates() {
    keeps_the_promises(&whole(Plan::apart("apart, invalidated", 1, 0)));
}

#[test]
fn two_clients_of_one_sidecar_are_kept_the_promises() {
    keeps_the_promises(&whole(Plan::together("together", 0, 0)));
}

#[test]
fn two_sidecars_keep_the_promises_though_something_is_evicted() {
    let plan = whole(Plan::apart("apart, something lost", 0, 1));
    keeps_the_promises(&Plan { kinds: EVICTIONS, ..plan });
}

#[test]
fn two_sidecars_keep_the_promises_though_a_tag_is_written_past_them() {
    keeps_the_promises(&Plan {
        kinds: &[Fault::SpoilTag],
        ..whole(Plan::apart("apart, a tag spoilt", 0, 1))
    });
    let bumped = Plan {
        kinds: &[Fault::SpoilTag],
        invalidation_kinds: &[Invalidation::Bump],
        ..whole(Plan::apart("apart, a tag spoilt and bumped", 1, 1))
    };
    keeps_the_promises_in_full(&bumped);
}

/// Up to millions of states: only the nearest two thousand unless `KENNEL_MODEL=full`.
fn keeps_the_promises_in_full(plan: &Plan) {
    let plan = match in_full() {
        true => Plan { workers: workers(), long: true, ..plan.clone() },
        false => Plan { most: Some(2_000), ..plan.clone() },
    };
    keeps_the_promises(&plan);
}

/// `KENNEL_MODEL_THREADS`, or one thread per core.
fn workers() -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let configured = std::env::var("KENNEL_MODEL_THREADS").ok();
    configured.map_or_else(cores, |text| text.parse().expect("KENNEL_MODEL_THREADS is a number"))
}

fn whole(plan: Plan) -> Plan {
    Plan { whole_rounds: true, renews: false, expiries: 0, ..plan }
}

#[test]
fn in_full_invalidated_command_by_command() {
    let plan = Plan::apart("apart, invalidated, command by command", 1, 0);
    keeps_the_promises_in_full(&Plan { renews: false, expiries: 1, ..plan });
}

#[test]
fn in_full_renewed_and_invalidated() {
    let plan = whole(Plan::apart("apart, renewed, invalidated", 1, 0));
    keeps_the_promises_in_full(&Plan { renews: true, expiries: 1, ..plan });
}

#[test]
fn in_full_a_fault_command_by_command() {
    let plan = whole(Plan::apart("apart, a fault, command by command", 0, 1));
    keeps_the_promises_in_full(&Plan { whole_rounds: false, ..plan });
}

#[test]
fn in_full_a_fault_of_what_is_renewed() {
    keeps_the_promises_in_full(&Plan { renews: true, ..whole(Plan::apart("apart, renewed, a fault", 0, 1)) });
}

#[test]
fn in_full_a_fault_of_what_expires() {
    keeps_the_promises_in_full(&Plan {
        expiries: 1,
        ..whole(Plan::apart("apart, an expiry, a fault", 0, 1))
    });
}

#[test]
fn in_full_a_fault_and_an_invalidation() {
    keeps_the_promises_in_full(&whole(Plan::apart("apart, invalidated, a fault", 1, 1)));
}

#[test]
fn in_full_two_evictions() {
    let plan = whole(Plan::apart("apart, two evictions", 0, 2));
    keeps_the_promises_in_full(&Plan { kinds: EVICTIONS, ..plan });
}

#[test]
fn in_full_together_and_invalidated() {
    keeps_the_promises_in_full(&whole(Plan::together("together, invalidated", 1, 0)));
}

#[test]
fn in_full_together_with_what_expires() {
    keeps_the_promises_in_full(&Plan { expiries: 1, ..whole(Plan::together("together, an expiry", 0, 0)) });
}

#[test]
fn in_full_together_and_a_fault() {
    keeps_the_promises_in_full(&whole(Plan::together("together, a fault", 0, 1)));
}

#[test]
fn in_full_two_faults() {
    keeps_the_promises_in_full(&whole(Plan::apart("apart, two faults", 0, 2)));
}

#[test]
fn in_full_two_faults_of_what_expires() {
    keeps_the_promises_in_full(&Plan {
        expiries: 1,
        ..whole(Plan::apart("apart, an expiry, two faults", 0, 2))
    });
}

#[test]
fn in_full_two_faults_of_what_is_renewed() {
    keeps_the_promises_in_full(&Plan {
        renews: true,
        ..whole(Plan::apart("apart, renewed, two faults", 0, 2))
    });
}

#[test]
fn in_full_two_faults_command_by_command() {
    let plan = whole(Plan::apart("apart, two faults, command by command", 0, 2));
    keeps_the_promises_in_full(&Plan { whole_rounds: false, ..plan });
}

#[test]
fn in_full_tags_elsewhere() {
    let plan = whole(Plan::apart("apart, tags elsewhere, invalidated, a fault", 1, 1));
    keeps_the_promises_in_full(&Plan { tags_elsewhere: true, ..plan });
}

#[test]
fn in_full_together_and_two_faults() {
    keeps_the_promises_in_full(&whole(Plan::together("together, two faults", 0, 2)));
}

#[test]
fn in_full_two_faults_and_an_invalidation() {
    keeps_the_promises_in_full(&whole(Plan::apart("apart, invalidated, two faults", 1, 2)));
}

/// The mutant is detected, as a violation of this guarantee.
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

/// Each client with its own sidecar, rounds executed as a whole: the smallest plan in which most mutants are detected.
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
fn an_invalidation_acknowledged_without_knowing_is_caught() {
    is_caught(Mutant::FailureIsAcknowledged, small(0, 1, &[Fault::Lose]), "promise 7");
}

#[test]
fn a_waiter_that_is_never_woken_is_caught_as_waiting_for_ever() {
    is_caught(Mutant::WakesAreLost, small(0, 0, &[]), "liveness: Answered");
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
fn a_delete_that_spares_the_lock_is_caught_as_an_empty_acknowledgement() {
    is_caught(Mutant::DeleteSparesLock, small(1, 1, &[]), "promise 7");
}

#[test]
fn a_cas_that_outlives_its_connection_is_caught_as_a_resurrection() {
    let plan = Plan { tags_elsewhere: true, ..small(0, 1, &[Fault::Restart]) };
    is_caught(Mutant::CasOutlivesConnection, plan, "promise 2");
}
