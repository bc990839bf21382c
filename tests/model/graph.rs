//! The states as fingerprints of 70 bits, and the steps between them: about fifty bytes for each. Among ten million states, the
//! probability that any two have the same fingerprint is one in twenty million.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::checker::{GOODS, Good, StepIndex, exchanged};
use super::steps::Kind;

/// Each part has its own lock and grows by itself.
const PARTS: usize = 64;
const PART_BITS: u32 = 6;
/// States are numbered below this. The next bit marks a step that exchanges the two sides; the two highest bits are its kind.
const INDEX: u32 = (1 << 29) - 1;
const FLIPPED: u32 = 1 << 29;
/// The parent of the first state.
pub const NO_PARENT: StepIndex = StepIndex::MAX;
/// In place of a kind: not a step, but the state from which the following steps start.
const FROM: u32 = 3;
const KINDS: [Kind; 3] = [Kind::Step, Kind::Aging, Kind::Patience];

/// States whose fingerprints have these bits in common.
#[derive(Default)]
struct Part {
    /// An open-addressing table: the upper half of a fingerprint, and its number in this part plus one.
    prints: Vec<u64>,
    numbers: Vec<u32>,
    parents: Vec<StepIndex>,
    goods: Vec<u8>,
}

impl Part {
    /// The slot of a fingerprint, or the free one where it belongs.
    fn slot(&self, print: u64) -> usize {
        let mask = self.prints.len() - 1;
        let mut slot = print as usize & mask;
        while self.numbers[slot] != 0 && self.prints[slot] != print {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let length = (self.prints.len() * 2).max(64);
        let prints = std::mem::replace(&mut self.prints, vec![0; length]);
        let numbers = std::mem::replace(&mut self.numbers, vec![0; length]);
        for (print, number) in prints.into_iter().zip(numbers).filter(|(_, number)| *number != 0) {
            let slot = self.slot(print);
            (self.prints[slot], self.numbers[slot]) = (print, number);
        }
    }
}

/// All states.
pub struct Graph {
    parts: Vec<Mutex<Part>>,
    states: AtomicUsize,
}

impl Default for Graph {
    fn default() -> Self {
        Graph { parts: (0..PARTS).map(|_| Mutex::default()).collect(), states: AtomicUsize::new(0) }
    }
}

/// The steps that one worker has taken: the state they start from, followed by the states they lead to.
#[derive(Default)]
pub struct Steps {
    chunks: Vec<Vec<u32>>,
    /// Their number, including faults and invalidations, which are not stored.
    pub taken: usize,
}

const CHUNK: usize = 1 << 20;

impl Steps {
    pub fn from(&mut self, at: StepIndex) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() + 256 > CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.push(at | FROM << 30);
    }

    pub fn to(&mut self, at: StepIndex, kind: Kind, flipped: bool) {
        self.taken += 1;
        if kind != Kind::Wrong {
            let flip = if flipped { FLIPPED } else { 0 };
            self.push(at | flip | (kind as u32) << 30);
        }
    }

    fn push(&mut self, word: u32) {
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(word);
        }
    }
}

impl Graph {
    fn part(&self, at: usize) -> MutexGuard<'_, Part> {
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of states.
    pub fn states(&self) -> usize {
        self.states.load(Ordering::Relaxed)
    }

    fn split(print: u128) -> (usize, u64) {
        ((print as u64 >> (64 - PART_BITS)) as usize, (print >> 64) as u64)
    }

    fn number(part: usize, number: u32) -> StepIndex {
        (number - 1) << PART_BITS | part as u32
    }

    /// Adds a state reached by a step from `parent`. Returns its number and whether it is new.
    pub fn meet(&self, print: u128, parent: StepIndex, goods: u8) -> (StepIndex, bool) {
        let (n, print) = Graph::split(print);
        let mut part = self.part(n);
        if part.parents.len() * 5 >= part.prints.len() * 4 {
            part.grow();
        }
        let slot = part.slot(print);
        if part.numbers[slot] != 0 {
            return (Graph::number(n, part.numbers[slot]), false);
        }
        part.parents.push(parent);
        part.goods.push(goods);
        let number = part.parents.len() as u32;
        (part.prints[slot], part.numbers[slot]) = (print, number);
        let at = Graph::number(n, number);
        assert!(number < INDEX >> PART_BITS, "too many states");
        self.states.fetch_add(1, Ordering::Relaxed);
        (at, true)
    }

    /// The number of a known state.
    pub fn find(&self, print: u128) -> Option<StepIndex> {
        let (n, print) = Graph::split(print);
        let part = self.part(n);
        let number = part.numbers[part.slot(print)];
        (number != 0).then(|| Graph::number(n, number))
    }

    /// From the start to a state.
    pub fn path(&self, to: StepIndex) -> Vec<StepIndex> {
        let mut path = vec![to];
        loop {
            let at = path[path.len() - 1];
            let parent = self.part(at as usize % PARTS).parents[(at >> PART_BITS) as usize];
            if parent == NO_PARENT {
                path.reverse();
                return path;
            }
            path.push(parent);
        }
    }

    /// A good, and a state from which it cannot be reached.
    ///
    /// A state reaches what its successors reach; this is propagated until nothing changes. Backwards, because most states have
    /// higher numbers than their predecessors.
    pub fn cannot_reach(&mut self, all: &[Steps]) -> Option<(Good, StepIndex)> {
        let mut reached: Vec<Vec<u8>> = Vec::new();
        for part in &mut self.parts {
            reached.push(std::mem::take(&mut part.get_mut().unwrap_or_else(PoisonError::into_inner).goods));
        }
        let place = |at: u32| ((at & INDEX) as usize % PARTS, ((at & INDEX) >> PART_BITS) as usize);
        let through = KINDS.map(|kind| {
            let goods = GOODS.iter().enumerate().filter(|(_, good)| good.may_take(kind));
            goods.fold(0_u8, |bits, (n, _)| bits | 1 << n)
        });
        loop {
            let mut changed = false;
            for chunk in all.iter().rev().flat_map(|steps| steps.chunks.iter().rev()) {
                let mut within = 0;
                for word in chunk.iter().rev() {
                    let (part, n) = place(*word);
                    match word >> 30 {
                        FROM => {
                            let known = &mut reached[part][n];
                            changed |= *known | within != *known;
                            *known |= within;
                            within = 0;
                        }
                        kind => {
                            let there = exchanged(reached[part][n], word & FLIPPED != 0);
                            within |= there & through[kind as usize];
                        }
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let every = (1_u8 << GOODS.len()) - 1;
        for (part, reached) in reached.iter().enumerate() {
            if let Some(n) = reached.iter().position(|goods| *goods != every) {
                let lost = reached[n].trailing_ones() as usize;
                return Some((GOODS[lost], Graph::number(part, n as u32 + 1)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(n: u64) -> u128 {
        u128::from(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | u128::from(n % 7) << 60
    }

    /// Makes a graph of states given by their goods, with the steps between them.
    fn graph(goods: &[u8], steps: &[(usize, usize, Kind)]) -> Option<(Good, usize)> {
        let mut graph = Graph::default();
        let mut at = Vec::new();
        for (n, goods) in goods.iter().enumerate() {
            at.push(graph.meet(print(n as u64), at.last().copied().unwrap_or(NO_PARENT), *goods).0);
        }
        let mut all = Steps::default();
        for n in 0..at.len() {
            all.from(at[n]);
            steps
                .iter()
                .filter(|(from, ..)| *from == n)
                .for_each(|(_, to, kind)| all.to(at[*to], *kind, false));
        }
        let lost = graph.cannot_reach(&[all])?;
        Some((lost.0, at.iter().position(|at| *at == lost.1)?))
    }

    #[test]
    fn what_has_been_met_is_known_again_however_many_there_are() {
        let graph = Graph::default();
        let first: Vec<_> = (0..5000).map(|n| graph.meet(print(n), 0, 0)).collect();
        assert!(first.iter().all(|(_, new)| *new));
        assert!((0..5000).all(|n| graph.meet(print(n), 0, 0) == (first[n as usize].0, false)));
        assert!((0..5000).all(|n| graph.find(print(n)) == Some(first[n as usize].0)));
        assert_eq!((graph.find(print(5000)), graph.states()), (None, 5000));
    }

    #[test]
    fn a_circle_without_a_way_to_the_good_is_found() {
        let step = Kind::Step;
        let circle = [(0, 1, step), (1, 2, step), (2, 1, step)];
        assert_eq!(graph(&[7, 0, 6], &circle), Some((Good::Fresh, 1)));
        assert_eq!(graph(&[7, 0, 7], &circle), None);
        assert_eq!(graph(&[0, 0, 6], &[(0, 1, step), (1, 2, step), (2, 0, step)]), Some((Good::Fresh, 0)));
    }

    #[test]
    fn exchanging_the_clients_does_not_make_a_good_reachable() {
        // Each state is known in one of two orientations; in each, one client is answered and the other waits.
        let answered = |flipped| {
            let mut graph = Graph::default();
            let at = graph.meet(print(0), NO_PARENT, 0b011).0;
            let mut all = Steps::default();
            all.from(at);
            all.to(at, Kind::Step, flipped);
            graph.cannot_reach(&[all]).is_none()
        };
        assert!(answered(true) && !answered(false));
    }

    #[test]
    fn what_only_patience_or_age_makes_good_is_not() {
        assert_eq!(graph(&[6, 7], &[(0, 1, Kind::Patience)]), None);
        assert_eq!(graph(&[5, 7], &[(0, 1, Kind::Patience)]), Some((Good::Answered(0), 0)));
        assert_eq!(graph(&[6, 7], &[(0, 1, Kind::Aging)]), Some((Good::Fresh, 0)));
        assert_eq!(graph(&[6, 7], &[(0, 1, Kind::Wrong)]), Some((Good::Fresh, 0)));
    }
}
