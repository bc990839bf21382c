//! Finds the rule of a key, and renders the names of its tags.
//!
//! `pattern` parses and matches one pattern, `automaton` matches many patterns in one pass, [`Rules`] chooses between the two,
//! and `tag` renders the tags of a matched key.

use std::collections::HashMap;

mod pattern;
mod automaton;
mod share;
mod tag;

pub use pattern::{CAPTURES_MAX, Captures, Pattern, PatternError, PatternProblem};
pub use share::Share;
pub use tag::{Template, TemplateError, fold_tag};

use automaton::Automaton;
use pattern::Segment;

/// The most patterns that a key is matched against one by one. If its prefix allows more, the automaton matches all of them.
const MAX_TRIED: usize = 8;

/// Patterns in order of precedence.
///
/// Patterns are grouped by their literal prefix, and a key is matched only against the groups whose prefix it begins with. These
/// groups form a chain, whose first member one binary search finds: in sorted order, every text between a prefix and a key that
/// begins with it begins with the same prefix. If a chain has more than `MAX_TRIED` patterns, the automaton finds the first
/// that matches, and only that one is matched again for its captures.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    patterns: Vec<Pattern>,
    groups: Vec<Group>,
    /// The patterns in chains of more than [`MAX_TRIED`].
    automaton: Automaton,
}

/// The patterns that have the same literal prefix.
#[derive(Debug, Clone)]
struct Group {
    prefix: Box<[u8]>,
    /// The next group of the chain: the one with the longest proper prefix of this group's prefix.
    parent: Option<usize>,
    /// Indices of patterns, ascending.
    members: Vec<usize>,
    /// The number of patterns in this group and the rest of its chain.
    chain: usize,
}

impl Rules {
    /// Indexes `patterns`, which are in order of precedence.
    pub fn new(patterns: Vec<Pattern>) -> Rules {
        let mut order: Vec<usize> = (0..patterns.len()).collect();
        order.sort_by_key(|i| (patterns[*i].prefix(), *i));
        let mut groups: Vec<Group> = Vec::new();
        for i in order {
            let prefix = patterns[i].prefix();
            let mut parent = groups.len().checked_sub(1);
            while let Some(p) = parent.filter(|p| !prefix.starts_with(&groups[*p].prefix)) {
                parent = groups[p].parent;
            }
            match parent {
                Some(p) if *groups[p].prefix == *prefix => groups[p].members.push(i),
                _ => groups.push(Group { prefix: prefix.into(), parent, members: vec![i], chain: 0 }),
            }
        }
        // The index of a parent is less than those of its children.
        for i in 0..groups.len() {
            let behind = groups[i].parent.map_or(0, |parent| groups[parent].chain);
            groups[i].chain = behind + groups[i].members.len();
        }
        let mut long = vec![false; groups.len()];
        for i in (0..groups.len()).rev() {
            long[i] |= groups[i].chain > MAX_TRIED;
            if let (true, Some(parent)) = (long[i], groups[i].parent) {
                long[parent] = true;
            }
        }
        let members = groups.iter().zip(long).filter(|(_, long)| *long).flat_map(|(group, _)| &group.members);
        let automaton = Automaton::new(members.map(|i| (*i, &patterns[*i])));
        Rules { patterns, groups, automaton }
    }

    /// The pattern of this index.
    pub fn pattern(&self, index: usize) -> &Pattern {
        &self.patterns[index]
    }

    /// The index of the first pattern that matches `key`. Sets `captures` to its captures; leaves them unchanged if there is
    /// none.
    pub fn find(&self, key: &[u8], captures: &mut Captures) -> Option<usize> {
        let mut best = None;
        let mut at = self.groups.partition_point(|group| *group.prefix <= *key).checked_sub(1);
        while let Some(group) = at.map(|i| &self.groups[i]) {
            at = group.parent;
            if !key.starts_with(&group.prefix) {
                continue;
            }
            if group.chain > MAX_TRIED {
                return self.automaton.find(key).filter(|i| self.patterns[*i].matches(key, captures));
            }
            let better = group.members.iter().take_while(|i| best.is_none_or(|b| **i < b));
            if let Some(i) = better.copied().find(|i| self.patterns[*i].matches(key, captures)) {
                best = Some(i);
            }
        }
        best
    }

    /// Pairs (i, j): pattern i is never found, because pattern j before it matches every key that i matches. Only two cases are
    /// detected: j differs only in the names of its captures, or j is literal text and a `*`, and i begins with that text.
    pub fn shadowed(&self) -> Vec<(usize, usize)> {
        let (mut same, mut tails) = (HashMap::new(), HashMap::new());
        let mut pairs = Vec::new();
        for (i, pattern) in self.patterns.iter().enumerate() {
            let prefix = pattern.prefix();
            let caught = (0..=prefix.len()).filter_map(|n| tails.get(&prefix[..n]));
            if let Some(j) = caught.chain(same.get(&pattern.blocks)).min() {
                pairs.push((i, *j));
            }
            if let [head, tail] = pattern.blocks.as_slice()
                && tail.is_empty()
                && matches!(head.as_slice(), [] | [Segment::Literal(_)])
            {
                tails.entry(prefix).or_insert(i);
            }
            same.entry(&pattern.blocks).or_insert(i);
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::pattern::tests::{random_key, random_pattern};
    use super::*;

    #[test]
    fn the_index_finds_the_first_pattern_that_matches() {
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut hits, mut long) = (0, 0);
        for _ in 0..500 {
            let patterns: Vec<Pattern> = (0..30).filter_map(|_| random_pattern(&mut rng)).collect();
            let rules = Rules::new(patterns.clone());
            long += usize::from(rules.groups.iter().any(|group| group.chain > MAX_TRIED));
            for _ in 0..40 {
                let key = random_key(&mut rng, 8);
                let (mut want, mut got) = (Captures::default(), Captures::default());
                let first = patterns.iter().position(|p| p.matches(&key, &mut want));
                assert_eq!(rules.find(&key, &mut got), first);
                assert_eq!(got, want);
                hits += usize::from(first.is_some());
            }
        }
        assert!(hits > 1_000, "only {hits} keys matched anything");
        assert!((50..500).contains(&long), "{long} of 500 use the automaton");
    }

    #[test]
    fn a_pattern_behind_one_that_matches_all_its_keys_is_shadowed() {
        let of = |texts: &[&str]| {
            Rules::new(texts.iter().map(|t| Pattern::parse(t).unwrap()).collect()).shadowed()
        };
        assert_eq!(of(&["a:*", "a:{x}", "b:{x}", "b:{y}", "*", "z"]), [(1, 0), (3, 2), (5, 4)]);
        assert_eq!(of(&["a:{x}", "a:*", "a", "*:a", "b*c", "b*cc"]), []);
    }

    #[test]
    fn a_shadowed_pattern_is_never_found() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut pairs = 0;
        for _ in 0..300 {
            let rules = Rules::new((0..12).filter_map(|_| random_pattern(&mut rng)).collect());
            for (i, j) in rules.shadowed() {
                pairs += 1;
                for _ in 0..50 {
                    let (key, mut captures) = (random_key(&mut rng, 6), Captures::default());
                    assert!(
                        !rules.patterns[i].matches(&key, &mut captures)
                            || rules.patterns[j].matches(&key, &mut captures),
                        "{} behind {}",
                        rules.patterns[i],
                        rules.patterns[j]
                    );
                }
            }
        }
        assert!(pairs > 100, "only {pairs} pairs");
    }

    #[test]
    fn no_rules_match_no_key() {
        assert_eq!(Rules::new(Vec::new()).find(b"k", &mut Captures::default()), None);
    }

    #[test]
    fn a_key_is_only_matched_against_patterns_whose_literal_prefix_it_has() {
        let patterns = (0..1000).map(|i| Pattern::parse(&format!("app:{i}:{{x}}")).unwrap()).collect();
        let rules = Rules::new(patterns);
        assert_eq!(rules.groups.len(), 1000);
        assert!(rules.groups.iter().all(|g| g.members.len() == 1 && g.parent.is_none()));
        assert_eq!(rules.find(b"app:999:y", &mut Captures::default()), Some(999));
    }
}
