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
fn every_seed_keeps_the_promises(faulty: bool, seeds: u64) -> Seen {
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
    seen
}

#[test]
fn without_faults_every_promise_is_kept() {
    every_seed_keeps_the_promises(false, 1000);
}

#[test]
fn with_faults_no_value_is_resurrected_and_every_key_becomes_fresh_again() {
    every_seed_keeps_the_promises(true, 1000);
}

/// The first of so many seeds that shows what is broken.
fn caught(mutant: Mutant, faulty: bool, seeds: u64) -> u64 {
    (0..seeds)
        .find(|seed| World::run(Plan::new(*seed, faulty, Some(mutant)), false).is_err())
        .unwrap_or_else(|| panic!("{mutant:?} was not caught by {seeds} seeds"))
}

#[test]
fn a_fill_without_cas_is_caught() {
    caught(Mutant::FillWithoutCas, false, 300);
}

#[test]
#[ignore = "a survey, for finding out"]
fn survey() {
    let faulty = std::env::var("FAULTY").is_ok();
    let mut by = std::collections::BTreeMap::<(String, bool), Vec<u64>>::new();
    for seed in 0..number("KENNEL_SIM_SEEDS").unwrap_or(1000) {
        let plan = Plan::new(seed, faulty, None);
        let pooled = plan.pooled;
        if let Err((broken, _)) = World::run(plan, false) {
            let kind = broken.0.split(':').take(2).collect::<String>().chars().take(28).collect();
            by.entry((kind, pooled)).or_default().push(seed);
        }
    }
    for (kind, seeds) in by {
        println!("{kind:?} {} {:?}", seeds.len(), &seeds[..seeds.len().min(12)]);
    }
}
