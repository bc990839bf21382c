//! The guard in simulated time: a fleet of sidecars, servers and clients in one thread, another one for every seed.
//!
//! `KENNEL_SIM_SEEDS=100000` runs more seeds, `KENNEL_SIM_SEED=17` one, with its trace.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod plan;
mod server;
mod checker;
mod operation;
mod sidecar;
mod clients;
mod world;

use checker::Seen;
use plan::{Mutant, Plan};
use world::World;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds, or a seed"))
}

/// Runs many seeds; ends with the trace of the first that breaks a promise.
fn every_seed_keeps_the_promises(faulty: bool, seeds: u64) {
    let seeds = match number("KENNEL_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KENNEL_SIM_SEEDS").unwrap_or(seeds),
    };
    let mut seen = Seen::default();
    for seed in seeds {
        match World::run(Plan::new(seed, faulty, None), false) {
            Ok(more) => seen.add(&more),
            Err((broken, _)) => {
                let traced = World::run(Plan::new(seed, faulty, None), true);
                let Err((again, trace)) = traced else { panic!("seed {seed} does not replay: {broken:?}") };
                assert_eq!(broken, again, "seed {seed} does not replay");
                panic!("{}\n\nseed {seed} (KENNEL_SIM_SEED={seed}): {}", trace.join("\n"), broken.0);
            }
        }
    }
    println!("{seen:?}");
    if number("KENNEL_SIM_SEED").is_none() {
        let Seen { fresh, stale, won, held, dropped, blind, invalidations, .. } = seen;
        let all = [fresh, stale, won, held, dropped, blind, invalidations];
        assert!(all.iter().all(|times| *times > seen.asks / 1000), "hardly tested: {seen:?}");
    }
}

#[test]
fn without_faults_every_promise_is_kept() {
    every_seed_keeps_the_promises(false, 700);
}

#[test]
fn with_faults_no_value_is_resurrected_and_every_key_becomes_fresh_again() {
    every_seed_keeps_the_promises(true, 700);
}

/// How many seeds it takes until what is broken on purpose shows, as the breaking of this promise.
fn is_caught(mutant: Mutant, faulty: bool, seeds: u64, as_breaking: &str) {
    let shows = |seed: &u64| {
        World::run(Plan::new(*seed, faulty, Some(mutant)), false)
            .is_err_and(|(broken, _)| broken.0.starts_with(as_breaking))
    };
    match (0..seeds).find(shows) {
        Some(seed) => println!("{mutant:?}: caught by seed {seed}"),
        None => panic!("{mutant:?} was not caught by {seeds} seeds"),
    }
}

#[test]
fn a_fill_without_cas_is_caught_as_a_resurrection() {
    is_caught(Mutant::FillWithoutCas, false, 500, "promise 2");
}

#[test]
fn a_claim_without_the_double_check_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::NoDoubleCheck, false, 2000, "promise 1");
}

#[test]
fn an_unlock_without_compare_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::UnlockWithoutCompare, false, 2000, "promise 1");
}

#[test]
fn a_lost_tag_that_counts_as_unmoved_is_caught_as_a_resurrection() {
    is_caught(Mutant::LostTagIsUnmoved, true, 2000, "promise 2");
}

#[test]
fn a_fill_sealed_with_the_versions_of_its_own_moment_is_caught_as_a_resurrection() {
    is_caught(Mutant::SnapshotAtSet, false, 500, "promise 2");
}

#[test]
fn a_lease_that_is_never_renewed_is_caught_as_a_second_rebuild() {
    is_caught(Mutant::NoRenewal, false, 500, "promise 1");
}

#[test]
fn a_delete_that_spares_the_stub_is_caught_as_a_resurrection() {
    is_caught(Mutant::DeleteSparesStub, false, 500, "promise 2");
}
