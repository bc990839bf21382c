//! Random ordinary commands of a few clients on one to three keys, with a checker that knows the permitted responses.
//! `tests/linearizability` has what is permitted. `KENNEL_ATTACK_SECONDS=3600` attacks for longer, `KENNEL_ATTACK_SEED=17` begins with
//! another seed, and `KENNEL_ATTACK_FAILURES=50` continues after a failure.
//!
//! Four to twenty clients use one to three keys, through one or two sidecars: each with one connection, or two to four with pools that
//! send each command on a random connection. Rules are guarded, guarded with a tag, and raw as the control, for which nothing is
//! allowed. Where clients have pools, about one schedule in 10,000 fails: a `set` or `add` is taken for the fill of another connection's
//! miss that changes the key at the same moment, and is dropped (docs/commands.md).

mod crowds;
mod draw;
mod regressions;
mod run;
mod schedule;
mod shrink;
mod together;

use std::time::Duration;

use tokio::time::Instant;

use draw::Draw;
use run::{Rule, Setting, World};
use schedule::Schedule;
use together::Clients;

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => default,
    }
}

/// The duration of an attack: `KENNEL_ATTACK_SECONDS`, otherwise short.
fn duration(default: u64) -> Duration {
    Duration::from_secs(from_environment("KENNEL_ATTACK_SECONDS", default))
}

fn first_seed() -> u64 {
    from_environment("KENNEL_ATTACK_SEED", 1)
}

/// One failure, minimised.
struct Failure {
    seed: u64,
    after: Duration,
    text: String,
}

/// `KENNEL_ATTACK_FAILURES=20` continues until this many have been found.
#[test]
fn whatever_a_few_clients_send_is_answered_as_memcached_may_answer_it() {
    let enough = from_environment("KENNEL_ATTACK_FAILURES", 1);
    let start = Instant::now();
    let (first, until) = (first_seed(), start + duration(6));
    let mut world = World::start();
    let (mut seed, mut commands, mut undecided) = (first, 0, 0);
    let mut failures = Vec::new();
    while (Instant::now() < until || seed == first) && (failures.len() as u64) < enough {
        let (setting, schedule) = (draw::setting(seed), Draw::schedule(seed));
        match world.run(&schedule, setting) {
            Ok(more) => undecided += more,
            Err(why) => {
                let after = start.elapsed();
                let text = minimised(&schedule, setting, &mut world, &why);
                failures.push(Failure { seed, after, text });
            }
        }
        commands += schedule.commands();
        seed += 1;
    }
    println!("{commands} commands, seeds {first} to {}, {undecided} histories undecided", seed - 1);
    for Failure { seed, after, text } in &failures {
        eprintln!("KENNEL_ATTACK_SEED={seed}, after {after:?}, {text}\n");
    }
    assert!(failures.is_empty(), "{} schedules of {} have failed", failures.len(), seed - first);
    assert!(commands > 0 && undecided <= commands / 1000, "hardly tested");
}

/// The smallest schedule that fails, ready to be added to `regressions.rs`, and what is wrong with its history.
fn minimised(schedule: &Schedule, setting: Setting, world: &mut World, why: &str) -> String {
    let least = shrink::shrink(schedule, setting, world);
    let again = (0..20).find_map(|_| world.run(&least, setting).err());
    let why = again.unwrap_or_else(|| format!("(not every time) {why}"));
    format!("{setting:?}:\n{least}\n{why}")
}

#[test]
fn whatever_many_clients_send_at_once_is_answered_as_memcached_may_answer_it() {
    let start = Instant::now();
    let (first, until) = (first_seed(), start + duration(4));
    let mut world = World::start();
    let rules = [Rule::Guarded, Rule::Tagged, Rule::Raw];
    let settings = rules.into_iter().flat_map(|rule| {
        [None, Some(POOLS)].into_iter().flat_map(move |pools| {
            [1, 2].map(|sidecars| (Setting { rule, pools, sidecars, exact: false }, pools.unwrap_or(CLIENTS)))
        })
    });
    let mut all: Vec<Clients> =
        settings.map(|(setting, clients)| Clients::connect(setting, clients, &world)).collect();
    let (mut seed, mut undecided) = (first, 0);
    // However slow the machine is, each setting is tested.
    while Instant::now() < until || seed - first < all.len() as u64 {
        let at = seed as usize % all.len();
        match all[at].round(seed, &mut world) {
            Ok(more) => undecided += more,
            Err(why) => panic!("seed {seed}, after {:?}: {:?}: {why}", start.elapsed(), all[at].setting),
        }
        seed += 1;
    }
    println!("{} rounds, {undecided} histories undecided", seed - first);
    assert!(undecided as u64 <= (seed - first) / 20, "hardly tested");
}

/// The number of concurrent clients: with one connection each, and with pools.
const CLIENTS: usize = 12;
const POOLS: usize = 4;

#[test]
fn a_schedule_is_read_as_it_is_printed() {
    for seed in 0..200 {
        let schedule = Draw::schedule(seed);
        let printed = schedule.to_string();
        let read = Schedule::parse(&printed);
        assert_eq!(read.to_string(), printed);
        let turns = schedule.steps.into_iter().filter(|step| !step.is_empty());
        assert_eq!(read.steps, turns.collect::<Vec<_>>(), "{printed}");
    }
}

#[test]
fn a_failure_is_found_and_reduced_to_few_commands() {
    let mut world = World::start();
    // One connection's miss, another's delete: the guard drops what the first one sets, which memcached does not.
    let least = "1 get a\n2 delete a\n1 set a 100\n3 get a\n";
    let noise = "4 set b 200 | 5 get b; get c\n6 delete c | 3 get b; set b 300\n";
    let noisy: String = least.lines().map(|line| format!("{noise}{line} | 7 incr b 1\n")).collect();
    let exact = Setting { exact: true, ..Setting::single(Rule::Guarded, 1) };
    assert_eq!(world.run(&Schedule::parse(&noisy), Setting::single(Rule::Raw, 1)), Ok(0));
    assert!(world.run(&Schedule::parse(&noisy), exact).is_err(), "the checker must see it");
    let found = shrink::shrink(&Schedule::parse(&noisy), exact, &mut world);
    assert!(found.steps.len() == 4 && found.commands() == 4, "{found}");
    assert_eq!(found.to_string(), least);
}
