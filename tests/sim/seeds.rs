//! Runs many seeds on all cores, and replays the first that fails.
//!
//! `KENNEL_SIM_SEEDS=100000` runs seeds 0 to 99999, `KENNEL_SIM_SEEDS=5000..9000` this range, `KENNEL_SIM_SEED=17` one seed, with
//! its trace if it fails. `KENNEL_SIM_RATE=1000` prints how many of 1000 seeds catch each mutant.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::checker::Coverage;
use super::mutants::Mutant;
use super::plan::Plan;
use super::world::World;

/// How many seeds a thread takes at once.
const CHUNK: u64 = 16;
/// The number of failures after which a run stops.
const ENOUGH: usize = 8;

fn setting<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number of seeds"))
}

/// The seeds to run; 0 to `seeds` unless configured.
fn seeds_to_run(seeds: u64) -> Range<u64> {
    match std::env::var("KENNEL_SIM_SEEDS") {
        Err(_) => 0..seeds,
        Ok(text) => match text.split_once("..") {
            Some((from, to)) => setting(from)..setting(to),
            None => 0..setting(&text),
        },
    }
}

/// Runs the seeds on all cores. Returns the coverage and the first `enough` seeds that fail.
fn run_all(
    seeds: Range<u64>,
    enough: usize,
    run: impl Fn(u64) -> Result<Coverage, String> + Sync,
) -> (Coverage, Vec<(u64, String)>) {
    let (next, done, stop) = (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicBool::new(false));
    let found = Mutex::new((Coverage::default(), Vec::new()));
    let tenth = (seeds.end - seeds.start) / 10;
    let work = || {
        let mut coverage = Coverage::default();
        while !stop.load(Relaxed) {
            let from = next.fetch_add(CHUNK, Relaxed);
            let chunk = from..(from + CHUNK).min(seeds.end);
            if chunk.is_empty() {
                break;
            }
            for seed in chunk.clone() {
                if stop.load(Relaxed) {
                    break;
                }
                match run(seed) {
                    Ok(more) => coverage.add(&more),
                    Err(why) => {
                        if enough == ENOUGH {
                            eprintln!("seed {seed}: {why}");
                        }
                        let mut found = found.lock().expect("no thread panics while it delay the lock");
                        found.1.push((seed, why));
                        stop.fetch_or(found.1.len() >= enough, Relaxed);
                    }
                }
            }
            let ran = chunk.end - chunk.start;
            let before = done.fetch_add(ran, Relaxed);
            if tenth >= 1000 && before / tenth != (before + ran) / tenth {
                eprintln!("{} of {} seeds", before + ran, seeds.end - seeds.start);
            }
        }
        found.lock().expect("no thread panics while it delay the lock").0.add(&coverage);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (coverage, mut failed) = found.into_inner().expect("no thread panicked while it held the lock");
    failed.sort();
    (coverage, failed)
}

/// Makes the plan of a seed.
pub type MakePlan = fn(u64, Option<Mutant>) -> Plan;

/// Runs many seeds. Panics with the trace of the first that violates a guarantee. Returns the coverage, and whether the usual
/// seeds were run.
pub fn every_seed_keeps_the_promises(planned: MakePlan, seeds: u64) -> (Coverage, bool) {
    let one = std::env::var("KENNEL_SIM_SEED").ok().map(|text| setting::<u64>(&text));
    let seeds = one.map_or_else(|| seeds_to_run(seeds), |seed| seed..seed + 1);
    let run = |seed| World::run(planned(seed, None), false).map_err(|(violation, _)| violation.0);
    let (coverage, failed) = run_all(seeds, ENOUGH, run);
    if let Some((seed, why)) = failed.first() {
        let traced = World::run(planned(*seed, None), true);
        let Err((again, trace)) = traced else { panic!("seed {seed} does not replay: {why}") };
        assert_eq!(*why, again.0, "seed {seed} does not replay");
        let all: Vec<String> = failed.iter().map(|(seed, why)| format!("seed {seed}: {why}")).collect();
        let (trace, all) = (trace.join("\n"), all.join("\n"));
        panic!("{trace}\n\nKENNEL_SIM_SEED={seed} replays the first of these:\n{all}");
    }
    println!("{coverage:?}");
    (coverage, one.is_none())
}

/// Whether one of the first `seeds` seeds detects the mutant, as a violation that contains `as_violating`.
pub fn is_caught(mutant: Mutant, planned: MakePlan, seeds: u64, as_violating: &str) {
    let run = |seed| match World::run(planned(seed, Some(mutant)), false) {
        // It may violate others first.
        Err((violation, _)) if !violation.0.contains(as_violating) => Ok(Coverage::default()),
        outcome => outcome.map_err(|(violation, _)| violation.0),
    };
    if let Ok(text) = std::env::var("KENNEL_SIM_RATE") {
        let (_, caught) = run_all(0..setting(&text), usize::MAX, run);
        let first: Vec<u64> = caught.iter().map(|(seed, _)| *seed).take(5).collect();
        return println!("{mutant:?}: caught by {} of {text} seeds, first by {first:?}", caught.len());
    }
    let (_, caught) = run_all(0..seeds, 1, run);
    let Some((seed, why)) = caught.first() else { panic!("{mutant:?} was not caught by {seeds} seeds") };
    println!("{mutant:?}: caught by seed {seed}: {why}");
}
