//! Explores all states and checks the guarantees. The search is our own because stateright 0.31 checks liveness on acyclic paths only,
//! and a client that repeats its get is a cycle.
//!
//! Safety is checked at every step. Liveness needs the whole graph (`graph.rs`): from every state, without any further fault or
//! invalidation, a good state must be reachable. The graph is finite, so this is equivalent to: an execution that takes, from the
//! states that recur forever, every step that is possible infinitely often, reaches a good state.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, PoisonError};

use super::graph::{Graph, NO_PARENT, Steps};
use super::plan::Plan;
use super::steps::Kind;
use super::world::{Violation, World};

/// What must be reachable from every state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Good {
    /// The key is fresh.
    Fresh,
    /// This client has no pending request.
    Answered(usize),
}

pub const GOODS: [Good; 3] = [Good::Fresh, Good::Answered(0), Good::Answered(1)];

impl Good {
    /// Whether a step of this kind may be used to reach it. A state is not good if only the expiry of the old value or the end of
    /// a reader's wait makes it so.
    pub fn may_take(self, kind: Kind) -> bool {
        match kind {
            Kind::Step => true,
            Kind::Aging => false,
            Kind::Patience => self == Good::Fresh,
            Kind::Wrong => false,
        }
    }
}

/// The size of an exploration.
#[derive(Debug, Default, Clone, Copy)]
pub struct Explored {
    pub states: usize,
    pub steps: usize,
}

/// A violation, with the steps that lead to it.
#[derive(Debug)]
pub struct Found {
    pub broken: Violation,
    pub states: usize,
    pub trace: Vec<String>,
}

/// A state's number.
pub type StepIndex = u32;

/// A state and the number by which it is known.
struct KnownState {
    world: World,
    at: StepIndex,
    /// It is known by its fingerprint with both sides exchanged.
    flipped: bool,
}

/// States whose successors have not been explored.
///
/// The nearest come first, so that a trace is the shortest. In a long run, the states with the fewest remaining faults come
/// first: each of the few others leads to few states that are not known by then, so that few have to be kept.
struct Frontier {
    by_remaining_steps: Vec<VecDeque<KnownState>>,
    /// How many workers may still find states.
    busy: usize,
    ended: Option<Result<(), (StepIndex, String, Violation)>>,
}

/// How many states a worker takes at once.
const BATCH: usize = 32;
/// How often a long run reports its progress, in states.
const REPORT_EVERY: usize = 5_000_000;

struct Search<'p> {
    plan: &'p Plan,
    graph: Graph,
    frontier: Mutex<Frontier>,
    grown: Condvar,
}

/// Explores everything.
pub fn explore(plan: &Plan) -> Result<Explored, Found> {
    let first = World::start(plan);
    let graph = Graph::default();
    let (print, flipped) = first.fingerprint(plan);
    let (root, _) = graph.meet(print, NO_PARENT, goods_of(&first, flipped));
    let frontier = Frontier { by_remaining_steps: Vec::new(), busy: plan.workers, ended: None };
    let mut search = Search { plan, graph, frontier: Mutex::new(frontier), grown: Condvar::new() };
    search.add(vec![KnownState { world: first, at: root, flipped }]);
    let all: Vec<Steps> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.workers).map(|_| scope.spawn(|| search.work())).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let states = search.graph.states();
    let ended = search.frontier.get_mut().unwrap_or_else(PoisonError::into_inner).ended.take();
    let explored = Explored { states, steps: all.iter().map(|steps| steps.taken).sum() };
    match ended {
        Some(Err((at, label, broken))) => {
            let mut trace = search.trace(at);
            trace.push(label);
            return Err(Found { broken, states, trace });
        }
        Some(Ok(())) => return Ok(explored),
        None => {}
    }
    match search.graph.cannot_reach(&all) {
        Some((good, lost)) => {
            let broken = Violation(format!("liveness: {good:?} cannot be reached"));
            Err(Found { broken, states, trace: search.trace(lost) })
        }
        None => Ok(explored),
    }
}

/// What is good in a state, in the orientation in which it is known.
pub fn goods_of(world: &World, flipped: bool) -> u8 {
    let goods = GOODS.iter().enumerate().fold(0, |bits, (n, good)| bits | u8::from(world.is(*good)) << n);
    exchanged(goods, flipped)
}

/// The goods, with those of the two clients exchanged if `flipped`.
pub fn exchanged(goods: u8, flipped: bool) -> u8 {
    if flipped { goods & 1 | (goods & 2) << 1 | (goods & 4) >> 1 } else { goods }
}

/// Ends the search if a worker panics.
struct EndsWithAPanic<'s, 'p>(&'s Search<'p>);

impl Drop for EndsWithAPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(Ok(()));
        }
    }
}

impl Search<'_> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Frontier> {
        self.frontier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, found: Vec<KnownState>) {
        let mut frontier = self.lock();
        for met in found {
            let left = if self.plan.long { met.world.remaining_steps() } else { 0 };
            while frontier.by_remaining_steps.len() <= left {
                frontier.by_remaining_steps.push(VecDeque::new());
            }
            frontier.by_remaining_steps[left].push_back(met);
        }
        self.grown.notify_all();
    }

    /// The next states to explore; none when there will be no more.
    fn next(&self) -> Vec<KnownState> {
        let mut frontier = self.lock();
        frontier.busy -= 1;
        loop {
            if frontier.ended.is_some() {
                break Vec::new();
            }
            if let Some(queue) = frontier.by_remaining_steps.iter_mut().find(|queue| !queue.is_empty()) {
                let count = if self.plan.workers > 1 { queue.len().min(BATCH) } else { 1 };
                let batch = queue.drain(..count).collect();
                frontier.busy += 1;
                break batch;
            }
            if frontier.busy == 0 {
                self.grown.notify_all();
                break Vec::new();
            }
            frontier = self.grown.wait(frontier).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, how: Result<(), (StepIndex, String, Violation)>) {
        self.lock().ended.get_or_insert(how);
        self.grown.notify_all();
    }

    fn work(&self) -> Steps {
        let _ends_with_me = EndsWithAPanic(self);
        let mut steps = Steps::default();
        loop {
            let batch = self.next();
            if batch.is_empty() {
                return steps;
            }
            let mut found = Vec::new();
            for met in batch {
                if self.plan.most.is_some_and(|most| self.graph.states() >= most) {
                    self.end(Ok(()));
                    break;
                }
                if let Err((label, broken)) = self.explore_from(&met, &mut steps, &mut found) {
                    self.end(Err((met.at, label, broken)));
                    break;
                }
            }
            self.add(found);
        }
    }

    fn explore_from(
        &self,
        from: &KnownState,
        steps: &mut Steps,
        found: &mut Vec<KnownState>,
    ) -> Result<(), (String, Violation)> {
        steps.from(from.at);
        for label in from.world.labels(self.plan) {
            let next = from.world.after(label, self.plan).map_err(|broken| (format!("{label:?}"), broken))?;
            let (print, flipped) = next.fingerprint(self.plan);
            let (to, new) = self.graph.meet(print, from.at, goods_of(&next, flipped));
            steps.to(to, label.kind(), flipped != from.flipped);
            if new {
                found.push(KnownState { world: next, at: to, flipped });
                let states = self.graph.states();
                if states.is_multiple_of(REPORT_EVERY) {
                    eprintln!("{}: {states} states", self.plan.name);
                }
            }
        }
        Ok(())
    }

    /// The steps from the start to a state, found by taking them again.
    fn trace(&self, to: StepIndex) -> Vec<String> {
        let path = self.graph.path(to);
        let mut world = World::start(self.plan);
        let mut trace = vec![world.summary()];
        for at in path.into_iter().skip(1) {
            let is_next = |next: &World| self.graph.find(next.fingerprint(self.plan).0) == Some(at);
            let step = world.labels(self.plan).into_iter().find_map(|label| {
                let next = world.after(label, self.plan).ok().filter(is_next)?;
                Some((label, next))
            });
            let Some((label, next)) = step else {
                trace.push("(the trace is lost here)".into());
                return trace;
            };
            trace.push(format!("{label:?}\n    {}", next.summary()));
            world = next;
        }
        trace
    }
}
