//! The search for an order in which the model could have executed the operations.
//!
//! Wing and Gong's search with Lowe's cache of visited states, as in Porcupine: from each state it tries every operation that no
//! other one must precede. A configuration (the set of executed operations and the resulting state) is tried once.

use std::collections::{HashMap, HashSet};

use super::history::{Command, Invocation, Response};
use super::model::{Allowances, Horizon, State};

/// The number of states after which a history counts as undecided.
const MAX_STATES: usize = 100_000;

/// The result of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// An order exists.
    Linearizable,
    /// No order exists. `longest`: the longest prefix of an order, as indexes into the history.
    Violated { longest: Vec<usize> },
    /// There were too many states.
    Undecided,
}

/// The operations executed so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Done {
    /// All operations before this one, in the order of invocations.
    before: usize,
    /// And these after it, sorted.
    beyond: Vec<usize>,
}

impl Done {
    fn has(&self, at: usize) -> bool {
        at < self.before || self.beyond.binary_search(&at).is_ok()
    }

    fn with(&self, at: usize) -> Done {
        let mut done = self.clone();
        if let Err(index) = done.beyond.binary_search(&at) {
            done.beyond.insert(index, at);
        }
        while done.beyond.first() == Some(&done.before) {
            done.beyond.remove(0);
            done.before += 1;
        }
        done
    }
}

/// A node of the search: its successors that have not been tried.
struct Node {
    /// The operation that led here; none at the start.
    by: Option<usize>,
    next: Vec<(usize, Done, State)>,
}

/// Whether these operations on one key are linearizable. Those of one connection take effect in the order in which they were
/// sent, or if they were sent at the same time, in the order of the history.
pub(crate) fn check(history: &[Invocation], allowances: &Allowances) -> Verdict {
    let search = Search::new(history, allowances);
    search.run()
}

struct Search<'a> {
    allowances: &'a Allowances,
    /// In the order of their invocations, with connections numbered from 0.
    operations: Vec<Invocation>,
    /// The index of each in the history.
    origin: Vec<usize>,
    /// The client of each connection.
    clients: Vec<usize>,
    /// For each, the operation of the same connection that must take effect before it.
    follows: Vec<Option<usize>>,
    /// For each, its priority among candidates: its deadline, or the last read of what it stores.
    best: Vec<u64>,
    /// Which are misses, and which are deletes.
    misses: Vec<usize>,
    deletes: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(history: &[Invocation], allowances: &'a Allowances) -> Search<'a> {
        let mut origin: Vec<usize> = (0..history.len()).collect();
        origin.sort_by_key(|at| history[*at].invoked);
        let (mut connections, mut clients): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut operations: Vec<Invocation> = Vec::new();
        let mut follows = Vec::new();
        for &at in &origin {
            let mut operation = history[at].clone();
            let known = connections.iter().position(|connection| *connection == operation.connection);
            operation.connection = known.unwrap_or_else(|| {
                connections.push(operation.connection);
                clients.push(operation.client);
                connections.len() - 1
            });
            // An operation without a response may take effect at any later time.
            let earlier = |other: &Invocation| {
                other.connection == operation.connection && other.response != Response::Unknown
            };
            follows.push(operations.iter().rposition(earlier));
            operations.push(operation);
        }
        let mut read = HashMap::new();
        for operation in &operations {
            if let Response::Hit { value, .. } = &operation.response {
                let last = read.entry(value.clone()).or_insert(0);
                *last = operation.invoked.max(*last);
            }
        }
        let best = |operation: &Invocation| {
            let read = operation.stores().and_then(|value| read.get(&value)).copied();
            operation.deadline().max(read.unwrap_or(0))
        };
        let best = operations.iter().map(best).collect();
        let deletes = (0..operations.len()).filter(|at| operations[*at].command == Command::Delete).collect();
        let misses = (0..operations.len()).filter(|at| operations[*at].missed()).collect();
        Search { allowances, operations, origin, clients, follows, best, misses, deletes }
    }

    fn run(&self) -> Verdict {
        let mut seen = HashSet::new();
        let start = Done { before: 0, beyond: Vec::new() };
        let state = State::absent(self.clients.len());
        let mut path = vec![Node { by: None, next: self.next(&start, &state) }];
        let mut longest = Vec::new();
        if self.is_complete(&start) {
            return Verdict::Linearizable;
        }
        while let Some(node) = path.last_mut() {
            let Some((by, done, state)) = node.next.pop() else {
                path.pop();
                continue;
            };
            if self.is_complete(&done) {
                return Verdict::Linearizable;
            }
            let next = self.next(&done, &state);
            if !seen.insert((done, state)) {
                continue;
            }
            if seen.len() > MAX_STATES {
                return Verdict::Undecided;
            }
            path.push(Node { by: Some(by), next });
            if path.len() > longest.len() + 1 {
                longest = path.iter().filter_map(|node| Some(self.origin[node.by?])).collect();
            }
        }
        Verdict::Violated { longest }
    }

    /// Whether every operation with a response has been executed. Those without one may never take effect.
    fn is_complete(&self, done: &Done) -> bool {
        let left = &self.operations[done.before..];
        let mut left = left.iter().enumerate().filter(|(at, _)| !done.has(done.before + at));
        left.all(|(_, operation)| operation.response == Response::Unknown)
    }

    /// The possible successors: operations that were invoked before the first response among those that are left. The most likely
    /// comes last, because it is tried first.
    fn next(&self, done: &Done, state: &State) -> Vec<(usize, Done, State)> {
        let (mut candidates, mut deadline) = (Vec::new(), u64::MAX);
        for at in (done.before..self.operations.len()).filter(|at| !done.has(*at)) {
            let operation = &self.operations[at];
            if operation.invoked > deadline {
                break;
            }
            deadline = deadline.min(operation.deadline());
            candidates.push(at);
        }
        let first = |of: &[usize]| {
            let later = &of[of.partition_point(|at| *at < done.before)..];
            let first = later.iter().find(|at| !done.has(**at));
            first.map_or(u64::MAX, |at| self.operations[*at].invoked)
        };
        let horizon = Horizon { miss: first(&self.misses), delete: first(&self.deletes) };
        candidates.retain(|at| self.follows[*at].is_none_or(|before| done.has(before)));
        candidates.sort_by_key(|at| std::cmp::Reverse((self.best[*at], *at)));
        let mut next = Vec::new();
        for at in candidates {
            let operation = &self.operations[at];
            let states = state.after(operation, &self.clients, self.allowances, horizon);
            // A refusal uses up the miss that it is attributed to, and may be explained by a later value instead. With pools, the
            // stores of others may be attributed to the reader's miss, which a later miss replaces.
            let is_its_own = operation.command == Command::Get && self.allowances.pooled.is_none();
            let reader = is_its_own.then_some(operation.connection);
            let is_change = operation.command == Command::Touch && self.allowances.touch_changes;
            if operation.is_read_only()
                && !is_change
                && let [after] = &states[..]
                && after.differs_only_in_misses_of(state, reader)
            {
                // It changes nothing for the others: if there is an order, there is one in which it comes now.
                return vec![(at, done.with(at), after.clone())];
            }
            // The first state is what memcached does; it is tried first.
            next.extend(states.into_iter().rev().map(|state| (at, done.with(at), state)));
        }
        next
    }
}
