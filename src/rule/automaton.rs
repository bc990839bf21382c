//! Many patterns in one pass over a key.
//!
//! The patterns are a tree: those that begin alike share their beginning, so that ten thousand that begin with a `*` share that one
//! star. A pass keeps the nodes that the bytes so far lead to, and goes from each of them along the next byte. It is the definition
//! of a pattern, run for all patterns at once, and looks at each byte once for each node that it keeps: few, as a text of the tree is
//! kept only while the key goes on as it does, a capture until the next `:`, and a star until the end.
//! docs/decisions/0022 says why this and no DFA.

use std::cell::RefCell;
use std::collections::HashMap;

use super::pattern::{KEY_MAX, Pattern, Segment};

/// No node, and no pattern.
const NONE: u32 = u32::MAX;
/// Up to so many bytes lead on from a node before they are searched by halves.
const FEW: usize = 8;

/// A set of patterns, none longer than a key.
#[derive(Debug, Clone, Default)]
pub(super) struct Automaton {
    /// The root is the first. Those that one byte leads to from the same node stand side by side.
    nodes: Vec<Node>,
    /// For each node, the byte that leads to it.
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The first of those that one byte leads to.
    first: u32,
    count: u32,
    /// Where a `*` leads from here.
    star: u32,
    /// Where one byte of a capture leads from here.
    capture: u32,
    /// The first pattern that ends here.
    ends: u32,
    /// The first pattern of all that go on from here, or end here.
    least: u32,
}

/// What a pass needs, kept from one to the next.
#[derive(Default)]
struct Pass {
    texts: Vec<u32>,
    next: Vec<u32>,
    captures: Vec<u32>,
    stars: Vec<u32>,
    /// For each node that is a star or a capture, when it was last kept: by the number of the pass or of the stretch without a `:`.
    kept: Vec<u64>,
    stretch: u64,
}

thread_local! {
    /// One for each worker, so that nothing is allocated for a key.
    static PASS: RefCell<Pass> = RefCell::default();
}

/// A tree while it grows.
#[derive(Default)]
struct Growing {
    nodes: Vec<Node>,
    children: HashMap<(u32, Step), u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    Byte(u8),
    Star,
    Capture,
}

const LEAF: Node = Node { first: 0, count: 0, star: NONE, capture: NONE, ends: NONE, least: NONE };

impl Growing {
    fn step(&mut self, from: u32, step: Step, pattern: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let to = *self.children.entry((from, step)).or_insert(next);
        if to == next {
            self.nodes.push(LEAF);
        }
        let least = &mut self.nodes[to as usize].least;
        *least = pattern.min(*least);
        to
    }

    fn add(&mut self, pattern: &Pattern, index: u32) {
        let mut at = 0;
        let least = &mut self.nodes[0].least;
        *least = index.min(*least);
        for (i, block) in pattern.blocks.iter().enumerate() {
            if i > 0 {
                at = self.step(at, Step::Star, index);
            }
            for segment in block {
                match segment {
                    Segment::Literal(text) => {
                        for byte in text {
                            at = self.step(at, Step::Byte(*byte), index);
                        }
                    }
                    Segment::Capture(_) => at = self.step(at, Step::Capture, index),
                }
            }
        }
        let ends = &mut self.nodes[at as usize].ends;
        *ends = index.min(*ends);
    }

    /// Numbers the nodes anew, so that those that one byte leads to from the same node stand side by side.
    fn settle(self) -> Automaton {
        let mut steps: Vec<(u32, Step, u32)> =
            self.children.into_iter().map(|((from, step), to)| (from, step, to)).collect();
        steps.sort_unstable();
        let of = |node: u32| {
            let from = steps.partition_point(|(from, ..)| *from < node);
            let to = steps.partition_point(|(from, ..)| *from <= node);
            &steps[from..to]
        };
        let mut nodes = vec![self.nodes[0]];
        let (mut bytes, mut before) = (vec![0], vec![0]);
        let mut at = 0;
        while at < nodes.len() {
            let steps = of(before[at]);
            let first = nodes.len() as u32;
            for (_, step, to) in steps {
                let new = nodes.len() as u32;
                match step {
                    Step::Byte(_) => {
                        nodes[at].first = first;
                        nodes[at].count += 1;
                    }
                    Step::Star => nodes[at].star = new,
                    Step::Capture => nodes[at].capture = new,
                }
                nodes.push(self.nodes[*to as usize]);
                before.push(*to);
                bytes.push(if let Step::Byte(byte) = step { *byte } else { 0 });
            }
            at += 1;
        }
        Automaton { nodes, bytes }
    }
}

impl Automaton {
    /// Of these patterns, each with its place in the order of precedence.
    pub(super) fn new<'p>(patterns: impl IntoIterator<Item = (usize, &'p Pattern)>) -> Automaton {
        let mut growing = Growing { nodes: vec![LEAF], ..Growing::default() };
        for (index, pattern) in patterns {
            growing.add(pattern, index as u32);
        }
        growing.settle()
    }

    /// The first of the patterns that matches.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        if key.len() > KEY_MAX {
            return None;
        }
        PASS.with_borrow_mut(|pass| self.pass(key, pass))
    }

    fn pass(&self, key: &[u8], pass: &mut Pass) -> Option<usize> {
        let Pass { texts, next, captures, stars, kept, stretch } = pass;
        if kept.len() < self.nodes.len() {
            kept.resize(self.nodes.len(), 0);
        }
        *stretch += 1;
        let began = *stretch;
        for list in [&mut *texts, &mut *next, &mut *captures, &mut *stars] {
            list.clear();
        }
        let mut best = NONE;
        // A `*` may take nothing, so it begins where it stands.
        let begin_star = |node: &Node, stars: &mut Vec<u32>, kept: &mut [u64], best: &mut u32| {
            if let Some(star) = self.nodes.get(node.star as usize)
                && star.least < *best
                && kept[node.star as usize] < began
            {
                kept[node.star as usize] = began;
                // What ends with it takes whatever comes.
                *best = star.ends.min(*best);
                if star.count > 0 {
                    stars.push(node.star);
                }
            }
        };
        texts.push(0);
        begin_star(self.nodes.first()?, stars, kept, &mut best);
        for &byte in key {
            let (was_captures, was_stars) = (captures.len(), stars.len());
            for at in 0..texts.len() + was_captures + was_stars {
                let node = match at.checked_sub(texts.len()) {
                    None => texts[at],
                    Some(at) if at < was_captures => captures[at],
                    Some(at) => stars[at - was_captures],
                };
                let node = &self.nodes[node as usize];
                if node.least >= best {
                    continue;
                }
                if let Some(to) = self.lead(node, byte) {
                    next.push(to);
                    begin_star(&self.nodes[to as usize], stars, kept, &mut best);
                }
                if byte != b':' && node.capture != NONE && kept[node.capture as usize] < *stretch {
                    kept[node.capture as usize] = *stretch;
                    captures.push(node.capture);
                    begin_star(&self.nodes[node.capture as usize], stars, kept, &mut best);
                }
            }
            if byte == b':' {
                captures.clear();
                *stretch += 1;
            }
            std::mem::swap(texts, next);
            next.clear();
            if texts.is_empty() && captures.is_empty() && stars.is_empty() {
                break;
            }
        }
        let ends = texts.iter().chain(&*captures).map(|node| self.nodes[*node as usize].ends);
        best = ends.fold(best, u32::min);
        (best != NONE).then_some(best as usize)
    }

    /// Where a byte leads from a node.
    fn lead(&self, node: &Node, byte: u8) -> Option<u32> {
        let (first, count) = (node.first as usize, node.count as usize);
        let bytes = &self.bytes[first..first + count];
        let at = match count {
            0..=FEW => bytes.iter().position(|b| *b == byte),
            _ => bytes.binary_search(&byte).ok(),
        }?;
        Some((first + at) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::tests::{random_key, random_pattern};
    use super::*;
    use crate::rule::Captures;

    fn first(patterns: &[Pattern], key: &[u8]) -> Option<usize> {
        patterns.iter().position(|pattern| pattern.matches(key, &mut Captures::default()))
    }

    fn of(patterns: &[Pattern]) -> Automaton {
        Automaton::new(patterns.iter().enumerate())
    }

    #[test]
    fn one_pass_finds_what_one_pattern_after_the_other_finds() {
        let mut rng = fastrand::Rng::with_seed(22);
        let (mut found, mut none, mut later) = (0, 0, 0);
        for round in 0..3_000 {
            let count = if round % 10 == 0 { 200 } else { rng.usize(1..12) };
            let patterns: Vec<Pattern> = (0..count).filter_map(|_| random_pattern(&mut rng)).collect();
            let automaton = of(&patterns);
            for most in [1, 6, 12, 40, 250] {
                let key = random_key(&mut rng, most);
                let want = first(&patterns, &key);
                let texts: Vec<&str> = patterns.iter().map(Pattern::text).collect();
                let shown = String::from_utf8_lossy(&key);
                assert_eq!(automaton.find(&key), want, "{shown} under {texts:?}");
                *(if want.is_some() { &mut found } else { &mut none }) += 1;
                later += usize::from(want > Some(0));
            }
        }
        assert!(
            found > 2_000 && none > 2_000 && later > 2_000,
            "{found} {none} {later}: this tests too little"
        );
    }

    #[test]
    fn hostile_keys_find_what_one_pattern_after_the_other_finds() {
        let mut rng = fastrand::Rng::with_seed(23);
        let parts = ["a", "aa", "aaa", "ab", ":", "a:", ":a", "*", "*", "{x}", "{y}"];
        let keys = [
            b"a".repeat(250),
            b"a:".repeat(125),
            b":".repeat(250),
            [b"a".repeat(249), b"b".to_vec()].concat(),
            b"a".repeat(251),
            b"ab".repeat(125),
            vec![0xff; 250],
            b"a".to_vec(),
            Vec::new(),
        ];
        let mut found = 0;
        for _ in 0..400 {
            let text = |rng: &mut fastrand::Rng| {
                let count = rng.usize(1..14);
                (0..count).map(|_| parts[rng.usize(..parts.len())]).collect::<String>()
            };
            let patterns: Vec<Pattern> =
                (0..60).filter_map(|_| Pattern::parse(&text(&mut rng)).ok()).collect();
            let automaton = of(&patterns);
            for key in &keys {
                let want = first(&patterns, key);
                assert_eq!(automaton.find(key), want);
                found += usize::from(want.is_some());
            }
        }
        assert!(found > 500, "{found}");
    }

    #[test]
    fn ten_thousand_patterns_with_a_star_in_front_share_it_and_what_a_pass_keeps_is_little() {
        let patterns: Vec<Pattern> =
            (0..10_000).map(|i| Pattern::parse(&format!("*x{i}")).unwrap()).collect();
        let automaton = of(&patterns);
        // The root, the star, the x and a tree of digits.
        assert_eq!(automaton.nodes.len(), 3 + 10 + 100 + 1_000 + 10_000 - 1_110);
        let key = [b"x1234".repeat(49), b"x9999".to_vec()].concat();
        assert_eq!(automaton.find(&key), Some(9_999));
        PASS.with_borrow(|pass| {
            assert_eq!(pass.stars.len(), 1);
            assert!(pass.texts.capacity() <= 64 && pass.captures.is_empty());
        });
        assert_eq!(automaton.find(&[b'x'; 250]), None);
    }
}
