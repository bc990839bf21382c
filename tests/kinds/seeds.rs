//! Runs many seeds on all cores, and replays the first that fails.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mutants::Mutant;
use super::plan::Plan;
use super::world::World;

/// Begins the clients of a schedule.
pub type Begin = fn(&Rc<World>);

fn setting(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number of seeds"))
}

/// The seeds to run; 0 to `seeds` unless configured.
fn seeds_to_run(seeds: u64) -> Range<u64> {
    if let Ok(text) = std::env::var("KENNEL_SIM_SEED") {
        let seed = setting(&text);
        return seed..seed + 1;
    }
    match std::env::var("KENNEL_SIM_SEEDS") {
        Err(_) => 0..seeds,
        Ok(text) => match text.split_once("..") {
            Some((from, to)) => setting(from)..setting(to),
            None => 0..setting(&text),
        },
    }
}

/// Runs the seeds on all cores until `enough` have failed. Returns how often something was seen, how many faults there were, and
/// the seeds that failed.
fn run_all(
    seeds: Range<u64>,
    enough: usize,
    begin: Begin,
    plan: impl Fn(u64) -> Plan + Sync,
) -> ((u64, u64), Vec<(u64, String)>) {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(((0, 0), Vec::new()));
    let work = || {
        let mut all = (0, 0);
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                break;
            }
            match World::run(plan(seed), false, begin) {
                Ok((seen, faults)) => all = (all.0 + seen, all.1 + faults),
                Err((why, _)) => {
                    let mut found = found.lock().expect("no thread panics while it holds the lock");
                    found.1.push((seed, why));
                    if found.1.len() >= enough {
                        next.store(seeds.end, Relaxed);
                    }
                }
            }
        }
        let mut found = found.lock().expect("no thread panics while it holds the lock");
        found.0 = (found.0.0 + all.0, found.0.1 + all.1);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (all, mut failed) = found.into_inner().expect("no thread panicked while it held the lock");
    failed.sort();
    (all, failed)
}

/// Runs many seeds. Panics with the trace of the first that breaks a promise.
pub fn every_seed_keeps_the_promise(begin: Begin, seeds: u64) {
    every_seed_of(begin, seeds, |plan| plan);
}

/// The same with schedules of a special sort.
pub fn every_seed_of(begin: Begin, seeds: u64, sort: fn(Plan) -> Plan) {
    let plan = |seed| sort(Plan::drawn(seed, None));
    let seeds = seeds_to_run(seeds);
    let count = seeds.end - seeds.start;
    let ((seen, faults), failed) = run_all(seeds, 8, begin, plan);
    if let Some((seed, why)) = failed.first() {
        let Err((again, trace)) = World::run(plan(*seed), true, begin) else {
            panic!("seed {seed} does not replay: {why}")
        };
        assert_eq!(*why, again, "seed {seed} does not replay");
        let all: Vec<String> = failed.iter().map(|(seed, why)| format!("seed {seed}: {why}")).collect();
        panic!(
            "{}\n\nKENNEL_SIM_SEED={seed} replays the first of these:\n{}",
            trace.join("\n"),
            all.join("\n")
        );
    }
    println!("{count} schedules, {seen} checked replies, {faults} faults");
    assert!(seen >= 10 * count, "hardly anything happened");
    assert!(faults >= count || !plan(0).faults, "hardly anything failed");
}

/// Whether one of the first `seeds` seeds catches the mutant.
pub fn is_caught(mutant: Mutant, begin: Begin, seeds: u64) {
    is_caught_in(mutant, begin, seeds, |plan| plan);
}

/// The same with schedules of a special sort.
pub fn is_caught_in(mutant: Mutant, begin: Begin, seeds: u64, sort: fn(Plan) -> Plan) {
    let plan = |seed| sort(Plan::drawn(seed, Some(mutant)));
    if let Ok(text) = std::env::var("KENNEL_SIM_RATE") {
        let (_, caught) = run_all(0..setting(&text), usize::MAX, begin, plan);
        let first: Vec<u64> = caught.iter().map(|(seed, _)| *seed).take(5).collect();
        return println!("{mutant:?}: caught by {} of {text} seeds, first by {first:?}", caught.len());
    }
    let (_, caught) = run_all(0..seeds, 1, begin, plan);
    let Some((seed, why)) = caught.first() else { panic!("{mutant:?} was not caught by {seeds} seeds") };
    println!("{mutant:?}: caught by seed {seed}: {why}");
}
