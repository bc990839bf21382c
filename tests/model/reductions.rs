//! Checks that the states that are not explored would show nothing new, in plans that can be explored without the reductions.

use std::collections::{HashMap, HashSet, VecDeque};

use super::checker::goods_of;
use super::plan::{EVICTIONS, Fault, Plan};
use super::steps::Kind;
use super::world::World;

/// What may follow from a state: the kind of each step, where it leads and what is good there; or a violation.
type Future = Vec<(Option<Kind>, u128, u8)>;

fn future(world: &World, plan: &Plan) -> (Future, Vec<World>) {
    let (mut future, mut worlds) = (Future::new(), Vec::new());
    for label in world.labels(plan) {
        match world.after(label, plan) {
            Ok(next) => {
                let (print, flipped) = next.fingerprint(plan);
                future.push((Some(label.kind()), print, goods_of(&next, flipped)));
                worlds.push(next);
            }
            Err(_) => future.push((None, 0, 0)),
        }
    }
    future.sort_unstable_by_key(|(kind, print, _)| (*print, kind.map(|kind| kind as u32)));
    future.dedup();
    (future, worlds)
}

/// Reaches states repeatedly, on every path that leads there, and compares what may follow. Explores about `most` states.
fn equal_fingerprints_have_equal_futures(plan: &Plan, most: usize) {
    let mut known: HashMap<u128, Future> = HashMap::new();
    let first = World::start(plan);
    let (its, frontier) = future(&first, plan);
    let mut frontier = VecDeque::from(frontier);
    known.insert(first.fingerprint(plan).0, its);
    let mut again = 0;
    while let Some(world) = frontier.pop_front() {
        let (its, next) = future(&world, plan);
        match known.get(&world.fingerprint(plan).0) {
            Some(before) => {
                again += 1;
                assert_eq!(*before, its, "{}: {}", plan.name, world.summary());
            }
            None if known.len() < most => {
                known.insert(world.fingerprint(plan).0, its);
                frontier.extend(next);
            }
            None => {}
        }
    }
    println!("{}: {} states, met again {again} times", plan.name, known.len());
    assert!(again > known.len() / 10);
}

#[test]
fn states_that_are_called_the_same_have_the_same_future() {
    let most = if super::in_full() { 200_000 } else { 1_000 };
    let whole = |plan: Plan| Plan { whole_rounds: true, renews: false, expiries: 0, ..plan };
    let faults = Plan::apart("apart, two faults", 0, 2);
    let elsewhere = Plan { tags_elsewhere: true, kinds: &[Fault::Restart], ..faults.clone() };
    for plan in [
        whole(faults.clone()),
        Plan { kinds: EVICTIONS, ..whole(Plan::apart("apart, invalidated, evictions", 1, 2)) },
        whole(Plan::apart("apart, invalidated, a fault", 1, 1)),
        whole(Plan { name: "apart, tags elsewhere, restarts", ..elsewhere }),
        Plan { renews: true, expiries: 1, ..whole(Plan::apart("apart, renewed, an expiry, a fault", 0, 1)) },
        Plan { whole_rounds: false, ..whole(Plan::apart("apart, a fault, command by command", 0, 1)) },
        Plan { expiries: 1, ..whole(Plan::together("together, invalidated, an expiry, a fault", 1, 1)) },
    ] {
        equal_fingerprints_have_equal_futures(&plan, most);
    }
}

/// The states in which nothing is on its way, without the fields that only the checks use. `named`: the plan that determines
/// their fingerprints.
fn at_rest(plan: &Plan, named: &Plan) -> HashMap<u128, String> {
    let (mut known, mut rests) = (HashSet::new(), HashMap::new());
    let mut frontier = VecDeque::from([World::start(plan)]);
    while let Some(world) = frontier.pop_front() {
        if !known.insert(world.fingerprint(plan).0) {
            continue;
        }
        if world.is_at_rest() {
            rests.entry(world.without_checks(named)).or_insert_with(|| world.summary());
        }
        let after = |label| world.after(label, plan).unwrap_or_else(|broken| panic!("{broken:?}"));
        frontier.extend(world.labels(plan).into_iter().map(after));
    }
    println!("{}: {} states, {} of them at rest", plan.name, known.len(), rests.len());
    rests
}

#[test]
fn every_state_at_rest_is_reached_with_the_reductions_too() {
    let whole = |plan: Plan| Plan { whole_rounds: true, renews: false, expiries: 0, ..plan };
    let mut plans = vec![
        whole(Plan::apart("apart, invalidated", 1, 0)),
        Plan { renews: true, expiries: 1, ..whole(Plan::apart("apart, renewed, an expiry", 0, 0)) },
        Plan { kinds: &[Fault::Kill], ..whole(Plan::apart("apart, a sidecar killed", 0, 1)) },
    ];
    if super::in_full() {
        plans.push(whole(Plan::apart("apart, a fault", 0, 1)));
        plans.push(Plan { kinds: EVICTIONS, ..whole(Plan::apart("apart, two evictions", 0, 2)) });
        plans.push(whole(Plan::apart("apart, invalidated, a fault", 1, 1)));
    }
    for plan in plans {
        let all = at_rest(&Plan { reduced: false, ..plan.clone() }, &plan);
        let reduced = at_rest(&plan, &plan);
        for (some, others) in [(&all, &reduced), (&reduced, &all)] {
            let only: Vec<_> = some.iter().filter(|(print, _)| !others.contains_key(print)).collect();
            assert!(only.is_empty(), "{}: {only:#?}", plan.name);
        }
    }
}
