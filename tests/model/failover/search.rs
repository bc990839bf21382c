//! Explores all states of a plan. A good state is one in which both sidecars have a view: it must be reachable from each state
//! without any further fault.

use std::collections::VecDeque;

use super::canon::fingerprint;
use super::plan::Plan;
use super::world::{Step, World};
use crate::checker::{Explored, Found, StepIndex};
use crate::graph::{Graph, NO_PARENT, Steps};
use crate::steps::Kind;
use crate::world::Violation;

/// All that must be reachable, as one good.
const GOOD: u8 = 7;

impl Step {
    fn kind(self) -> Kind {
        match self {
            Step::Fail(..)
            | Step::Read(_, 1..)
            | Step::ReadRefused(..)
            | Step::Refuse(_)
            | Step::Delay(..)
            | Step::Lose(_)
            | Step::Flush
            | Step::Asked(_)
            | Step::Wish(..)
            | Step::Restart(_) => Kind::Wrong,
            _ => Kind::Step,
        }
    }
}

fn start(plan: &Plan) -> Result<World, Violation> {
    if plan.is_new { Ok(World::empty(plan)) } else { World::running(plan) }
}

fn goods(world: &World) -> u8 {
    let is_over = world.guarded.as_ref().is_some_and(super::guarded::Guarded::is_over);
    let is_dead = world.asked.as_ref().is_some_and(|asked| asked.dead);
    let is_placed = |at| world.view(at).is_some_and(|view| !is_dead || view.standby);
    if is_over || (0..2).all(is_placed) { GOOD } else { 0 }
}

/// Explores everything, or as much as the plan says, the nearest states first.
pub fn explore(plan: &Plan) -> Result<Explored, Found> {
    let mut graph = Graph::default();
    let first = match start(plan) {
        Ok(first) => first,
        Err(broken) => return Err(Found { broken, states: 0, trace: Vec::new() }),
    };
    let (root, _) = graph.meet(fingerprint(&first, plan), NO_PARENT, goods(&first));
    let mut queue = VecDeque::from([(first, root)]);
    let mut steps = Steps::default();
    while let Some((world, at)) = queue.pop_front() {
        if plan.most.is_some_and(|most| graph.states() >= most) {
            return Ok(Explored { states: graph.states(), steps: steps.taken });
        }
        steps.from(at);
        for step in world.steps(plan) {
            let next = match world.after(step, plan) {
                Ok(next) => next,
                Err(broken) => {
                    let mut trace = trace(&graph, at, plan);
                    trace.push(format!("{step:?}"));
                    return Err(Found { broken, states: graph.states(), trace });
                }
            };
            let (to, is_new) = graph.meet(fingerprint(&next, plan), at, goods(&next));
            steps.to(to, step.kind(), false);
            if is_new {
                queue.push_back((next, to));
            }
        }
    }
    let (states, taken) = (graph.states(), steps.taken);
    match graph.cannot_reach(&[steps]) {
        None => Ok(Explored { states, steps: taken }),
        Some((_, lost)) => {
            let broken = Violation("liveness: no view is ever valid again".into());
            Err(Found { broken, states, trace: trace(&graph, lost, plan) })
        }
    }
}

/// The steps to a state, found by taking them again.
fn trace(graph: &Graph, to: StepIndex, plan: &Plan) -> Vec<String> {
    let Ok(mut world) = start(plan) else { return Vec::new() };
    let mut trace = Vec::new();
    for at in graph.path(to).into_iter().skip(1) {
        let found = world.steps(plan).into_iter().find_map(|step| {
            let next = world.after(step, plan).ok()?;
            (graph.find(fingerprint(&next, plan)) == Some(at)).then_some((step, next))
        });
        let Some((step, next)) = found else {
            trace.push("(the trace is lost here)".into());
            break;
        };
        trace.push(format!("{step:?}\n    {}", next.summary()));
        world = next;
    }
    trace
}

/// Takes steps at random, each walk with so many, from seeds below `walks`. Returns the first seed that breaks a promise.
pub fn walk(plan: &Plan, walks: u64, length: usize) -> Option<(u64, Violation, Vec<String>)> {
    let first = match start(plan) {
        Ok(first) => first,
        Err(broken) => return Some((0, broken, Vec::new())),
    };
    (0..walks).find_map(|seed| {
        // SplitMix64.
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut draw = |below: usize| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((mixed ^ mixed >> 31) % below as u64) as usize
        };
        let mut world = first.clone();
        let mut trace = Vec::new();
        for _ in 0..length {
            let steps = world.steps(plan);
            if steps.is_empty() {
                break;
            }
            let mut step = steps[draw(steps.len())];
            if step.kind() == Kind::Wrong && draw(3) > 0 {
                step = steps[draw(steps.len())];
            }
            trace.push(step);
            match world.after(step, plan) {
                Ok(next) => world = next,
                Err(broken) => return Some((seed, broken, again(&first, &trace, plan))),
            }
        }
        None
    })
}

/// The steps of a walk with the states between them.
fn again(first: &World, steps: &[Step], plan: &Plan) -> Vec<String> {
    let mut world = first.clone();
    let mut trace = vec![world.summary()];
    for step in steps {
        trace.push(format!("{step:?}"));
        let Ok(next) = world.after(*step, plan) else { break };
        world = next;
        trace.push(format!("    {}", world.summary()));
    }
    trace
}
