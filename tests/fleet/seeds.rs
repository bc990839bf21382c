//! Which seeds a test runs, and how far a long run has come.
//!
//! `KENNEL_FLEET_SEED=17` runs one, `KENNEL_FLEET_SEEDS=1000` or `500..900` many. With `KENNEL_FLEET_STATE=DIR`, each test notes there
//! which seed is next, and a run that was stopped goes on with it; every ten seconds it says how far it is.

use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::coverage;
use super::world::Outcome;

/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

fn seeds(count: u64) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    if let Ok(seed) = std::env::var("KENNEL_FLEET_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match std::env::var("KENNEL_FLEET_SEEDS") {
        Ok(range) => match range.split_once("..") {
            Some((from, to)) => number(from)..number(to),
            None => 0..number(&range),
        },
        Err(_) => 0..count,
    }
}

/// The time outside the simulation.
#[expect(clippy::disallowed_methods, reason = "tokio's clock is the simulated one")]
fn now() -> Instant {
    Instant::now()
}

/// The name of the test that runs.
pub fn test() -> String {
    std::thread::current().name().unwrap_or("test").replace("::", ".")
}

/// The longest pause of a client before a command: `KENNEL_FLEET_PAUSE`, in ms, or this. Without one, commands overlap.
pub fn pause(ms: u64) -> Duration {
    let given = std::env::var("KENNEL_FLEET_PAUSE").ok();
    Duration::from_millis(given.map_or(ms, |given| given.parse().expect("KENNEL_FLEET_PAUSE is a number")))
}

/// The file of a test that has the seed which is next, of these.
struct State {
    file: Option<PathBuf>,
    seeds: Range<u64>,
}

impl State {
    fn new(seeds: Range<u64>) -> State {
        let directory = std::env::var_os("KENNEL_FLEET_STATE").map(PathBuf::from);
        State { file: directory.map(|directory| directory.join(test())), seeds }
    }

    fn next(&self) -> u64 {
        let noted = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
        noted.unwrap_or(0).clamp(self.seeds.start, self.seeds.end)
    }

    fn note(&self, next: u64) {
        if let Some(file) = &self.file {
            fs::write(file, next.to_string()).expect("the state can be written");
        }
    }
}

/// Runs the seeds, and prints what they did. Fails with the seed at the first that `check` refuses or that panics.
pub fn for_each_seed(
    count: u64,
    schedule: impl Fn(u64) -> Outcome,
    check: impl Fn(&Outcome) -> Result<(), String>,
) {
    let (mut simulated, mut commands) = (Duration::ZERO, 0);
    let state = State::new(seeds(count));
    let (began, first) = (now(), state.next());
    let mut said = began;
    let rate = |simulated: Duration| simulated.as_secs_f64() / began.elapsed().as_secs_f64();
    for seed in first..state.seeds.end {
        let outcome = catch_unwind(AssertUnwindSafe(|| schedule(seed))).unwrap_or_else(|panic| {
            println!("seed {seed} panicked");
            resume_unwind(panic)
        });
        simulated += outcome.took;
        commands += outcome.history.len();
        if let Err(why) = check(&outcome) {
            panic!("seed {seed}: {why}");
        }
        state.note(seed + 1);
        if said.elapsed() >= PROGRESS {
            said = now();
            println!(
                "up to {seed} of {:?}: {commands} commands, {:.0} simulated seconds per second",
                state.seeds,
                rate(simulated)
            );
        }
    }
    println!(
        "seeds {first}..{}: {commands} commands in {} simulated seconds, {:.0} per second",
        state.seeds.end,
        simulated.as_secs(),
        rate(simulated)
    );
    coverage::note();
}
