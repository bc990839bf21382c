//! Which rules the processes of a fleet use: a mark for each set of rules, beside the marks of `placements` in the same record.
//!
//! A mark has a fingerprint of the rules, the version of Kennel, when it was first left, and a number that its processes change every few
//! seconds. As with placements, a process counts a mark as in use while it sees its number change. A process that knows nothing of these
//! marks ignores their lines, and drops them when it renews its own: they are then left again.

use std::collections::BTreeMap;

use super::placements::{MAX_MARKS, RENEW_AFTER_MS, UNUSED_AFTER_MS};

/// The first word of such a line.
const WORD: &str = "rules";

/// The rules of some processes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleMark {
    /// The fingerprint of their rules.
    pub fingerprint: u64,
    /// Their version of Kennel, without spaces.
    pub version: String,
}

/// A mark that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesInUse {
    /// Rules and version that the mark names.
    pub mark: RuleMark,
    /// When it was first left, in ms since 1970, by the clock of whoever left it.
    pub since_ms: u64,
}

/// What one process knows about the marks.
#[derive(Debug, Clone, Default)]
pub struct RuleMarks {
    /// Its own mark; `None` until its rules are known.
    own: Option<RulesInUse>,
    marks: BTreeMap<(usize, RuleMark), Observed>,
}

#[derive(Debug, Clone, Copy)]
struct Observed {
    number: u64,
    since_ms: u64,
    /// When this number was first seen, in ms of the monotonic clock.
    seen: u64,
    /// When the number was last seen to change.
    changed: Option<u64>,
}

/// A line of the record: its number, and when the mark was first left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    since_ms: u64,
    number: u64,
}

impl Observed {
    fn is_in_use(&self, now_ms: u64) -> bool {
        self.changed.is_some_and(|changed| now_ms.saturating_sub(changed) < UNUSED_AFTER_MS)
    }
}

impl RuleMarks {
    /// The rules of this process from `wall_ms` on, in ms since 1970.
    pub fn set_own(&mut self, mark: RuleMark, wall_ms: u64) {
        if self.own.as_ref().is_some_and(|own| own.mark == mark) {
            return;
        }
        // Only what others do from now on says that the former rules are still in use.
        if let Some(former) = self.own.replace(RulesInUse { mark, since_ms: wall_ms }) {
            self.marks.retain(|(_, mark), _| *mark != former.mark);
        }
    }

    /// Takes the record of a server as it was read at `now_ms` of a monotonic clock. Returns the lines of this kind that must be in it, if
    /// they must change. `random` must not have been passed before.
    pub fn observe(&mut self, server: usize, record: &[u8], now_ms: u64, random: u64) -> Option<Vec<u8>> {
        let mut read = parse(record);
        // One that is missing may have been dropped, and is then left again with another number.
        let is_recent = |seen: &Observed| now_ms.saturating_sub(seen.seen) < UNUSED_AFTER_MS;
        self.marks.retain(|(at, mark), seen| *at != server || read.contains_key(mark) || is_recent(seen));
        for (mark, Line { since_ms, number }) in &read {
            let (since_ms, number) = (*since_ms, *number);
            let first = Observed { number, since_ms, seen: now_ms, changed: None };
            let seen = self.marks.entry((server, mark.clone())).or_insert(first);
            if seen.number != number {
                *seen = Observed { number, since_ms, seen: now_ms, changed: Some(now_ms) };
            }
        }
        let own = self.own.as_ref()?;
        let age = |mark: &RuleMark| {
            let seen = self.marks.get(&(server, mark.clone()));
            seen.map(|seen| now_ms.saturating_sub(seen.seen))
        };
        let before = read.len();
        read.retain(|mark, _| *mark == own.mark || age(mark).is_none_or(|age| age < UNUSED_AFTER_MS));
        let marked = read.get(&own.mark).copied();
        let renews = marked.is_none() || age(&own.mark).is_none_or(|age| age >= RENEW_AFTER_MS);
        if !renews && read.len() == before {
            return None;
        }
        if renews {
            let oldest = read.keys().filter(|mark| **mark != own.mark).max_by_key(|mark| age(mark)).cloned();
            if let (true, Some(oldest)) = (read.len() >= MAX_MARKS && marked.is_none(), oldest) {
                read.remove(&oldest);
            }
            // The mark of the process that was first; a server may have lost it meanwhile.
            let known =
                self.marks.iter().filter(|((_, mark), _)| *mark == own.mark).map(|(_, seen)| seen.since_ms);
            let since_ms = known.chain(marked.map(|line| line.since_ms)).min().unwrap_or(own.since_ms);
            read.insert(own.mark.clone(), Line { since_ms, number: random });
        }
        Some(encode(&read))
    }

    /// The marks in use at this time, its own included, each once.
    pub fn in_use(&self, now_ms: u64) -> Vec<RulesInUse> {
        let mut all: BTreeMap<RuleMark, u64> = BTreeMap::new();
        let own = self.own.iter().map(|own| (&own.mark, own.since_ms));
        let is_own = |mark: &RuleMark| self.own.as_ref().is_some_and(|own| own.mark == *mark);
        let used = self.marks.iter().filter(|((_, mark), seen)| seen.is_in_use(now_ms) || is_own(mark));
        for (mark, since_ms) in used.map(|((_, mark), seen)| (mark, seen.since_ms)).chain(own) {
            let first = all.entry(mark.clone()).or_insert(since_ms);
            *first = since_ms.min(*first);
        }
        all.into_iter().map(|(mark, since_ms)| RulesInUse { mark, since_ms }).collect()
    }
}

/// Whether a line of a record is one of these marks.
pub fn is_of_rules(line: &str) -> bool {
    line.split(' ').next() == Some(WORD)
}

/// One mark a line: `rules`, the fingerprint, the version, the time and the number, separated by one space.
fn parse(record: &[u8]) -> BTreeMap<RuleMark, Line> {
    let hex = |text: &str| {
        let is_one = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    let mark = |line: &str| {
        let [WORD, fingerprint, version, since, number] = line.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let is_version =
            (1..=32).contains(&version.len()) && version.bytes().all(|byte| byte.is_ascii_graphic());
        let mark = RuleMark { fingerprint: hex(fingerprint)?, version: version.to_owned() };
        is_version.then_some((mark, Line { since_ms: since.parse().ok()?, number: hex(number)? }))
    };
    let text = std::str::from_utf8(record).unwrap_or_default();
    text.lines().filter_map(mark).take(MAX_MARKS).collect()
}

fn encode(marks: &BTreeMap<RuleMark, Line>) -> Vec<u8> {
    let line = |(RuleMark { fingerprint, version }, Line { since_ms, number }): (&RuleMark, &Line)| {
        format!("{WORD} {fingerprint:016x} {version} {since_ms} {number:016x}\n")
    };
    marks.iter().map(line).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::placements::{Placements, Step};

    fn mark(fingerprint: u64) -> RuleMark {
        RuleMark { fingerprint, version: "0.1.0".to_owned() }
    }

    fn process(fingerprint: u64, wall_ms: u64) -> RuleMarks {
        let mut marks = RuleMarks::default();
        marks.set_own(mark(fingerprint), wall_ms);
        marks
    }

    /// Each of these polls the record once a second.
    struct Fleet {
        record: Vec<u8>,
        now: u64,
        drawn: u64,
    }

    impl Fleet {
        fn new() -> Fleet {
            Fleet { record: Vec::new(), now: 0, drawn: 0 }
        }

        fn run(&mut self, seconds: u64, processes: &mut [&mut RuleMarks]) {
            for _ in 0..seconds {
                self.now += 1_000;
                for process in &mut *processes {
                    self.drawn += 1;
                    if let Some(new) = process.observe(0, &self.record, self.now, self.drawn) {
                        self.record = new;
                    }
                }
            }
        }
    }

    fn fingerprints(process: &RuleMarks, now: u64) -> Vec<u64> {
        process.in_use(now).into_iter().map(|used| used.mark.fingerprint).collect()
    }

    #[test]
    fn other_rules_are_noticed_by_both_sides_within_seconds_and_forgotten_when_they_are_gone() {
        let (mut one, mut other) = (process(1, 50), process(2, 70));
        let mut fleet = Fleet::new();
        fleet.run(6, &mut [&mut one, &mut other]);
        assert_eq!([&one, &other].map(|process| fingerprints(process, fleet.now)), [[1, 2], [1, 2]]);
        assert_eq!(one.in_use(fleet.now)[1], RulesInUse { mark: mark(2), since_ms: 70 });
        fleet.run(20, &mut [&mut one]);
        assert_eq!(fingerprints(&one, fleet.now), [1]);
        assert_eq!(parse(&fleet.record).len(), 1);
    }

    #[test]
    fn processes_with_the_same_rules_share_a_mark_and_its_time() {
        let mut first = process(1, 50);
        let mut fleet = Fleet::new();
        fleet.run(3, &mut [&mut first]);
        let mut second = process(1, 9_000);
        fleet.run(6, &mut [&mut first, &mut second]);
        assert_eq!(parse(&fleet.record).len(), 1);
        assert_eq!(second.in_use(fleet.now), [RulesInUse { mark: mark(1), since_ms: 50 }]);
    }

    #[test]
    fn a_process_that_takes_other_rules_does_not_take_its_former_mark_for_anothers() {
        let mut alone = process(1, 50);
        let mut fleet = Fleet::new();
        fleet.run(7, &mut [&mut alone]);
        alone.set_own(mark(2), 8_000);
        for _ in 0..20 {
            fleet.run(1, &mut [&mut alone]);
            assert_eq!(fingerprints(&alone, fleet.now), [2]);
        }
        // If another one goes on with them, it is seen.
        let mut other = process(1, 50);
        fleet.run(6, &mut [&mut alone, &mut other]);
        assert_eq!(fingerprints(&alone, fleet.now), [1, 2]);
    }

    #[test]
    fn a_process_that_knows_only_placements_reads_its_marks_beside_these_and_may_drop_them() {
        let (mut one, mut other) = (process(1, 50), process(2, 70));
        let mut former = Placements::new(Step::only(3));
        let mut fleet = Fleet::new();
        let mut placements = Vec::new();
        for _ in 0..12 {
            fleet.run(1, &mut [&mut one, &mut other]);
            let record = [&placements[..], &fleet.record].concat();
            fleet.drawn += 1;
            if let Some(new) = former.observe(0, &record, fleet.now, fleet.drawn) {
                // It has dropped the other lines.
                assert!(std::str::from_utf8(&new).unwrap().lines().all(|line| !is_of_rules(line)));
                (placements, fleet.record) = (new, Vec::new());
            }
            assert_eq!(former.in_use(fleet.now), [Step::only(3)]);
        }
        assert_eq!(fingerprints(&one, fleet.now), [1, 2]);
        assert_eq!(fingerprints(&other, fleet.now), [1, 2]);
    }

    #[test]
    fn a_record_is_bounded_and_garbage_in_it_is_ignored() {
        let line = |mark: u64| {
            (RuleMark { fingerprint: mark, version: "1.0".into() }, Line { since_ms: 7, number: 8 })
        };
        let full: BTreeMap<RuleMark, Line> = (0..20).map(line).collect();
        assert_eq!(parse(&encode(&full)).len(), MAX_MARKS);
        let mut marks = process(99, 5);
        let written = parse(&marks.observe(0, &encode(&full), 0, 4).unwrap());
        assert_eq!((written.len(), written[&mark(99)]), (MAX_MARKS, Line { since_ms: 5, number: 4 }));
        let good = "rules 0000000000000001 0.1.0 50 0000000000000002";
        assert_eq!(parse(good.as_bytes()).len(), 1);
        for bad in [
            "rules 1 0.1.0 50 0000000000000002",
            "rules 0000000000000001 0.1.0 x 0000000000000002",
            "rules 0000000000000001  50 0000000000000002",
            "rules 0000000000000001 0.1.0 50 0000000000000002 more",
            "0000000000000003 0000000000000000 only 0000000000000003",
        ] {
            assert_eq!(parse(bad.as_bytes()), BTreeMap::new(), "{bad}");
        }
        assert_eq!(RuleMarks::default().observe(0, good.as_bytes(), 0, 1), None);
    }
}
