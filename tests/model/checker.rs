//! All states, and what must hold of them.
//!
//! Safety is checked on every step. Liveness needs the whole graph: from every state, without any further fault or
//! invalidation, a good one must be within reach. The graph is finite, so that is the same as: whoever keeps taking, from
//! the states that come again and again, every step that is possible there again and again, comes to a good one.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::plan::Plan;
use super::world::{Broken, Kind, World};

/// What must be within reach from everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Good {
    /// The key is fresh.
    Fresh,
    /// This client is owed no answer.
    Answered(usize),
}

const GOODS: [Good; 3] = [Good::Fresh, Good::Answered(0), Good::Answered(1)];

impl Good {
    /// Whether a step may lead there. What only the end of the old value or of a reader's patience makes good is not.
    fn may_take(self, kind: Kind) -> bool {
        match kind {
            Kind::Step => true,
            Kind::Aging => false,
            Kind::Patience => self == Good::Fresh,
            Kind::Wrong => false,
        }
    }
}

/// What was explored.
#[derive(Debug, Default, Clone, Copy)]
pub struct Explored {
    pub states: usize,
    pub steps: usize,
    /// Steps from the beginning to the farthest state, by the shortest way.
    pub depth: usize,
}

/// A broken promise, with the steps that lead to it.
#[derive(Debug)]
pub struct Found {
    pub broken: Broken,
    pub states: usize,
    pub trace: Vec<String>,
}

/// The fingerprint is the hash.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

struct Graph {
    known: HashMap<u64, u32, BuildHasherDefault<Same>>,
    parents: Vec<u32>,
    goods: Vec<u8>,
    /// Steps without faults: where those of each state begin, and their ends with their kind in the two highest bits.
    begins: Vec<usize>,
    ends: Vec<u32>,
}

const INDEX: u32 = (1 << 30) - 1;

/// Explores everything.
pub fn explore(plan: &Plan) -> Result<Explored, Found> {
    let mut graph = Graph {
        known: HashMap::default(),
        parents: vec![0],
        goods: Vec::new(),
        begins: Vec::new(),
        ends: Vec::new(),
    };
    let mut explored = Explored::default();
    let first = World::start(plan);
    graph.known.insert(first.fingerprint(), 0);
    let mut frontier = VecDeque::from([(first, 0)]);
    while let Some((world, depth)) = frontier.pop_front() {
        if plan.most.is_some_and(|most| graph.parents.len() >= most) {
            explored.states = graph.parents.len();
            return Ok(explored);
        }
        let at = graph.begins.len() as u32;
        explored.depth = depth;
        graph.begins.push(graph.ends.len());
        graph.goods.push(goods_of(&world));
        for label in world.labels(plan) {
            explored.steps += 1;
            let next = match world.after(label, plan) {
                Ok(next) => next,
                Err(broken) => {
                    let mut trace = graph.trace(at, plan);
                    trace.push(format!("{label:?}"));
                    return Err(Found { broken, states: graph.parents.len(), trace });
                }
            };
            let count = graph.parents.len() as u32;
            let to = *graph.known.entry(next.fingerprint()).or_insert(count);
            if to == count {
                assert!(to < INDEX, "too many states");
                graph.parents.push(at);
                frontier.push_back((next, depth + 1));
            }
            match label.kind() {
                Kind::Wrong => {}
                kind => graph.ends.push(to | (kind as u32) << 30),
            }
        }
    }
    graph.begins.push(graph.ends.len());
    explored.states = graph.parents.len();
    for good in GOODS {
        if let Some(lost) = graph.cannot_reach(good) {
            let broken = Broken(format!("liveness: {good:?} is out of reach"));
            return Err(Found { broken, states: explored.states, trace: graph.trace(lost, plan) });
        }
    }
    Ok(explored)
}

fn goods_of(world: &World) -> u8 {
    GOODS.iter().enumerate().fold(0, |bits, (n, good)| bits | u8::from(world.is(*good)) << n)
}

impl Graph {
    /// The first state from which a good one is out of reach.
    fn cannot_reach(&self, good: Good) -> Option<u32> {
        const KINDS: [Kind; 3] = [Kind::Step, Kind::Aging, Kind::Patience];
        let bit = GOODS.iter().position(|known| *known == good).unwrap_or(0);
        let count = self.goods.len();
        let allowed = |end: &u32| good.may_take(KINDS[(end >> 30) as usize]);
        // The same steps, from their ends.
        let mut begins = vec![0_usize; count + 1];
        for end in self.ends.iter().filter(|end| allowed(end)) {
            begins[(end & INDEX) as usize + 1] += 1;
        }
        for at in 0..count {
            begins[at + 1] += begins[at];
        }
        let mut filled = begins.clone();
        let mut sources = vec![0_u32; begins[count]];
        for from in 0..count {
            for end in self.ends[self.begins[from]..self.begins[from + 1]].iter().filter(|end| allowed(end)) {
                let to = (end & INDEX) as usize;
                sources[filled[to]] = from as u32;
                filled[to] += 1;
            }
        }
        let mut reached: Vec<bool> = self.goods.iter().map(|goods| goods >> bit & 1 == 1).collect();
        let mut queue: Vec<u32> = (0..count as u32).filter(|at| reached[*at as usize]).collect();
        while let Some(at) = queue.pop() {
            for from in &sources[begins[at as usize]..begins[at as usize + 1]] {
                if !std::mem::replace(&mut reached[*from as usize], true) {
                    queue.push(*from);
                }
            }
        }
        reached.iter().position(|reached| !reached).map(|at| at as u32)
    }

    /// The steps from the beginning to a state, found again by taking them.
    fn trace(&self, to: u32, plan: &Plan) -> Vec<String> {
        let mut path = vec![to];
        while let Some(&at) = path.last().filter(|at| **at != 0) {
            path.push(self.parents[at as usize]);
        }
        let mut world = World::start(plan);
        let mut trace = vec![world.summary()];
        for at in path.iter().rev().skip(1) {
            let is_next = |next: &World| self.known.get(&next.fingerprint()) == Some(at);
            let step = world.labels(plan).into_iter().find_map(|label| {
                let next = world.after(label, plan).ok().filter(is_next)?;
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
