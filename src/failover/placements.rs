//! Which placements of keys the processes of a fleet use: two that are not steps of one change miss each other's invalidations.
//!
//! Each server of a pool has a record with one *mark* for each step in use: the hashes of its placements, which of them it reads,
//! and a number that its processes change every few seconds. No clocks are compared: a process counts a mark as in use while it
//! sees its number change. All processes of a step share a mark, so a fleet of any size writes it once per interval.

use std::collections::BTreeMap;
use std::fmt;

/// Marks in a record. Beyond that, the one whose number has not changed for the longest time is replaced.
pub const MAX_MARKS: usize = 16;
/// A mark is renewed if its number has not changed for this long, in ms.
pub const RENEW_AFTER_MS: u64 = 2_000;
/// A mark is no longer in use if its number has not changed for this long, in ms. Longer than the pause of a process that is
/// stopped and resumed, or whose server does not answer for a moment.
pub const UNUSED_AFTER_MS: u64 = 15_000;

/// The configuration of a pool's servers as a step of a change: by which placement it reads, and which other one it invalidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// The hash of the placement by which it reads.
    pub reads: u64,
    /// The hash of the other one; 0 if there is none.
    pub other: u64,
    /// What the other one is.
    pub kind: Kind,
}

/// What a step does with the other placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// There is none: before and after a change.
    Only,
    /// It is the next one: invalidated, not read.
    Next,
    /// It is the previous one: invalidated, and what is missing is taken over from it.
    TakeOver,
    /// It is the previous one: invalidated, not read.
    Previous,
    /// Not a step in use: after a change from the other placement, a process has used this one alone. What is left in the other one
    /// may have missed invalidations, so no process may take over from it or read it until a change back to it begins.
    Ended,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Only, Kind::Next, Kind::TakeOver, Kind::Previous, Kind::Ended];

    fn word(self) -> &'static str {
        match self {
            Kind::Only => "only",
            Kind::Next => "next",
            Kind::TakeOver => "take_over",
            Kind::Previous => "previous",
            Kind::Ended => "ended",
        }
    }
}

impl Step {
    /// The step of a pool that does not change.
    pub fn only(placement: u64) -> Step {
        Step { reads: placement, other: 0, kind: Kind::Only }
    }

    /// Whether processes of the two steps may run side by side: each invalidates wherever one of the other reads.
    pub fn is_adjacent(&self, to: &Step) -> bool {
        let follows = |step: &Step, earlier: &Step| match (earlier.kind, step.kind) {
            (Kind::Only, Kind::Next) | (Kind::Previous, Kind::Only) => earlier.reads == step.reads,
            (Kind::Next, Kind::TakeOver) => (earlier.reads, earlier.other) == (step.other, step.reads),
            (Kind::TakeOver, Kind::Previous) => (earlier.reads, earlier.other) == (step.reads, step.other),
            _ => false,
        };
        self == to || follows(self, to) || follows(to, self)
    }

    /// Whether this is a step of a change that has [ended](Kind::Ended), in which what may have missed invalidations is read.
    fn goes_back_behind(&self, ended: &Step) -> bool {
        ended.kind == Kind::Ended
            && match self.kind {
                Kind::TakeOver => (self.reads, self.other) == (ended.reads, ended.other),
                Kind::Next => (self.other, self.reads) == (ended.reads, ended.other),
                Kind::Only | Kind::Previous | Kind::Ended => false,
            }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { reads, other, kind } = *self;
        match kind {
            Kind::Only => write!(f, "{reads:016x}"),
            Kind::Next => write!(f, "{reads:016x} with next {other:016x}"),
            Kind::TakeOver => write!(f, "{reads:016x} with previous {other:016x}"),
            Kind::Previous => write!(f, "{reads:016x} with previous {other:016x} and take_over = false"),
            Kind::Ended => write!(f, "{reads:016x} alone, after {other:016x}"),
        }
    }
}

/// What one process knows about the steps in use, and what it writes to the records.
#[derive(Debug, Clone)]
pub struct Placements {
    own: Step,
    /// By server. A mark that is no longer in the record is kept while it counts as in use, because the server may have lost the
    /// record; so there are at most `MAX_MARKS` for each poll in that time.
    marks: BTreeMap<(usize, Step), Observed>,
}

#[derive(Debug, Clone, Copy)]
struct Observed {
    number: u64,
    /// When this number was first seen, in ms.
    since: u64,
    /// When its number was last seen to change, in ms.
    changed: Option<u64>,
}

impl Observed {
    fn is_in_use(&self, now_ms: u64) -> bool {
        self.changed.is_some_and(|changed| now_ms.saturating_sub(changed) < UNUSED_AFTER_MS)
    }
}

impl Placements {
    /// `own` is the step of this process.
    pub fn new(own: Step) -> Placements {
        Placements { own, marks: BTreeMap::new() }
    }

    /// Takes the record of a server as it was read at `now_ms` of a monotonic clock; empty, if there was none. Returns the
    /// record that must replace it by compare-and-swap, if it must change. `random` must not have been passed before. If the
    /// swap fails, another process has written: nothing is to be repeated before the next read.
    pub fn observe(&mut self, server: usize, record: &[u8], now_ms: u64, random: u64) -> Option<Vec<u8>> {
        let mut read = parse(record);
        self.marks
            .retain(|(at, step), seen| *at != server || read.contains_key(step) || seen.is_in_use(now_ms));
        for (step, number) in &read {
            let first = Observed { number: *number, since: now_ms, changed: None };
            let seen = self.marks.entry((server, *step)).or_insert(first);
            if seen.number != *number {
                *seen = Observed { number: *number, since: now_ms, changed: Some(now_ms) };
            }
        }
        let age = |step: Step| {
            let seen = self.marks.get(&(server, step));
            seen.map(|seen| now_ms.saturating_sub(seen.since))
        };
        let before: Vec<Step> = read.keys().copied().collect();
        note_ended(&mut read, self.own);
        let stays = |step: Step| step == self.own || step.kind == Kind::Ended;
        read.retain(|step, _| stays(*step) || age(*step).is_none_or(|age| age < UNUSED_AFTER_MS));
        let is_marked = read.contains_key(&self.own);
        let renews = !is_marked || age(self.own).is_none_or(|age| age >= RENEW_AFTER_MS);
        if !renews && read.keys().eq(&before) {
            return None;
        }
        if renews {
            let oldest = read.keys().copied().filter(|step| *step != self.own).max_by_key(|step| age(*step));
            if let (true, Some(oldest)) = (read.len() >= MAX_MARKS && !is_marked, oldest) {
                read.remove(&oldest);
            }
            read.insert(self.own, random);
        }
        Some(encode(&read))
    }

    /// The steps in use at this time, its own included, each once.
    pub fn in_use(&self, now_ms: u64) -> Vec<Step> {
        let others = self.marks.iter().filter(|(_, seen)| seen.is_in_use(now_ms)).map(|((_, step), _)| *step);
        let mut all: Vec<_> = others.chain([self.own]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Those in use that are not adjacent to its own: invalidations are lost between them and this process. And the end of a change,
    /// if its own step goes back behind that.
    pub fn unknown(&self, now_ms: u64) -> Vec<Step> {
        let in_use = self.in_use(now_ms).into_iter().filter(|step| !self.own.is_adjacent(step));
        let ended = self.marks.keys().map(|(_, step)| *step).filter(|step| self.own.goes_back_behind(step));
        let mut all: Vec<_> = in_use.chain(ended).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Notes the end of a change if the record, or this process, has the step behind it and the one before. It counts until a change back to
/// the other placement begins.
fn note_ended(marks: &mut BTreeMap<Step, u64>, own: Step) {
    let steps: Vec<Step> = marks.keys().copied().chain([own]).collect();
    let is_used_alone = |placement| steps.contains(&Step::only(placement));
    for step in &steps {
        if step.kind == Kind::Previous && is_used_alone(step.reads) {
            marks.entry(Step { kind: Kind::Ended, ..*step }).or_insert(0);
        }
    }
    let begins = |other| steps.iter().any(|step| step.kind == Kind::Next && step.other == other);
    marks.retain(|step, _| step.kind != Kind::Ended || !begins(step.other));
}

/// One mark a line: the two hashes, the kind and the number, separated by one space. Hashes and numbers are 16 hexadecimal digits.
/// Other lines are ignored.
fn parse(record: &[u8]) -> BTreeMap<Step, u64> {
    let hex = |text: &str| {
        let is_one = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    let mark = |line: &str| {
        let [reads, other, word, number] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
        let step = Step { reads: hex(reads)?, other: hex(other)?, kind };
        ((step.other == 0) == (kind == Kind::Only)).then_some((step, hex(number)?))
    };
    let text = std::str::from_utf8(record).unwrap_or_default();
    text.lines().filter_map(mark).take(MAX_MARKS).collect()
}

fn encode(marks: &BTreeMap<Step, u64>) -> Vec<u8> {
    let line = |(Step { reads, other, kind }, number): (&Step, &u64)| {
        format!("{reads:016x} {other:016x} {} {number:016x}\n", kind.word())
    };
    marks.iter().map(line).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes that poll the records of the servers that they use once a second.
    struct Fleet {
        records: Vec<Vec<u8>>,
        now: u64,
        drawn: u64,
    }

    impl Fleet {
        fn new(servers: usize) -> Fleet {
            Fleet { records: vec![Vec::new(); servers], now: 0, drawn: 0 }
        }

        /// Each of these processes polls its first `servers` records, once a second. Returns the number of writes.
        fn run(&mut self, seconds: u64, processes: &mut [(&mut Placements, usize)]) -> usize {
            let mut writes = 0;
            for _ in 0..seconds {
                self.now += 1_000;
                for (placements, servers) in &mut *processes {
                    for (server, record) in self.records[..*servers].iter_mut().enumerate() {
                        self.drawn += 1;
                        if let Some(new) = placements.observe(server, record, self.now, self.drawn) {
                            *record = new;
                            writes += 1;
                        }
                    }
                }
            }
            writes
        }
    }

    const OLD: u64 = 3;
    const NEW: u64 = 4;

    /// The steps of a change from `OLD` to `NEW`.
    fn steps() -> [Step; 5] {
        [
            Step::only(OLD),
            Step { reads: OLD, other: NEW, kind: Kind::Next },
            Step { reads: NEW, other: OLD, kind: Kind::TakeOver },
            Step { reads: NEW, other: OLD, kind: Kind::Previous },
            Step::only(NEW),
        ]
    }

    #[test]
    fn a_change_in_one_go_is_noticed_by_both_sides_within_seconds() {
        let [old, .., new] = steps();
        let (mut three, mut four) = (Placements::new(old), Placements::new(new));
        let mut fleet = Fleet::new(4);
        fleet.run(5, &mut [(&mut three, 3), (&mut four, 4)]);
        assert_eq!((three.unknown(fleet.now), four.unknown(fleet.now)), (vec![new], vec![old]));
        assert_eq!(three.in_use(fleet.now), [old, new]);
        // Once all have the same, nobody complains any longer, and the mark goes.
        fleet.run(20, &mut [(&mut four, 4)]);
        assert_eq!(four.unknown(fleet.now), []);
        assert_eq!(four.in_use(fleet.now), [new]);
        assert!(!fleet.records.iter().any(|record| parse(record).contains_key(&old)));
    }

    #[test]
    fn a_mark_that_no_process_renews_stops_nobody_and_one_that_ends_no_longer_than_it_must() {
        let mut own = Placements::new(Step::only(OLD));
        let forged = |number| encode(&BTreeMap::from([(Step::only(NEW), number)]));
        // Somebody writes the same record again and again.
        for now in (0..60_000).step_by(1_000) {
            own.observe(0, &forged(7), now, now);
            assert_eq!(own.unknown(now), []);
        }
        let last = 60_000;
        own.observe(0, &forged(8), last, last);
        for now in (last..last + 60_000).step_by(1_000) {
            own.observe(0, &forged(8), now, now);
            assert_eq!(own.unknown(now).is_empty(), now - last >= UNUSED_AFTER_MS, "{now}");
        }
    }

    #[test]
    fn the_documented_steps_are_adjacent_and_skipped_ones_are_not() {
        for (a, one) in steps().into_iter().enumerate() {
            for (b, other) in steps().into_iter().enumerate() {
                let mut processes = [Placements::new(one), Placements::new(other)];
                let [first, second] = &mut processes;
                let mut fleet = Fleet::new(4);
                fleet.run(6, &mut [(first, 4), (second, 4)]);
                let alarmed = processes.map(|process| !process.unknown(fleet.now).is_empty());
                assert_eq!(alarmed, [a.abs_diff(b) > 1; 2], "steps {a} and {b}");
            }
        }
    }

    #[test]
    fn whoever_goes_back_behind_the_end_of_a_change_is_told_so() {
        let [zero, one, two, three, four] = steps();
        let mut fleet = Fleet::new(4);
        let mut run = |step: Step, seconds: u64| {
            let mut process = Placements::new(step);
            fleet.run(seconds, &mut [(&mut process, 4)]);
            process.unknown(fleet.now)
        };
        // One process alone, which is restarted in each step.
        for step in [zero, one, two, three, two, one, zero, one, two, three, four, three] {
            assert_eq!(run(step, 30), [], "{step}");
        }
        let ended = Step { kind: Kind::Ended, ..three };
        assert_eq!(ended.to_string(), "0000000000000004 alone, after 0000000000000003");
        assert_eq!(run(two, 3), [ended]);
        assert_eq!(run(one, 30), [ended]);
        // Another change, back to the old placement, and forth again.
        let back = |step: Step| Step { reads: NEW + OLD - step.reads, other: OLD + NEW - step.other, ..step };
        for step in [four, back(one), back(two), back(three), zero, one, two, three, four] {
            assert_eq!(run(step, 30), [], "{step}");
        }
        assert_eq!(run(two, 3), [ended]);
    }

    #[test]
    fn steps_of_different_changes_are_not_adjacent() {
        for step in steps() {
            for foreign in [5, 6].map(|hash| Step { reads: hash, ..step }) {
                assert!(!step.is_adjacent(&foreign) && !foreign.is_adjacent(&step), "{step} {foreign}");
            }
        }
        // The same placement is read, but another one is prepared.
        for step in &steps()[1..4] {
            let foreign = Step { other: 5, ..*step };
            assert!(steps()[1..4].iter().all(|step| !step.is_adjacent(&foreign)), "{foreign}");
        }
    }

    #[test]
    fn what_a_process_left_behind_is_no_alarm() {
        let [old, .., new] = steps();
        let (mut gone, mut started) = (Placements::new(old), Placements::new(new));
        let mut fleet = Fleet::new(3);
        fleet.run(5, &mut [(&mut gone, 3)]);
        for _ in 0..20 {
            fleet.run(1, &mut [(&mut started, 3)]);
            assert_eq!(started.unknown(fleet.now), []);
        }
    }

    #[test]
    fn a_server_that_loses_its_record_ends_no_alarm() {
        let [old, .., new] = steps();
        let (mut one, mut other) = (Placements::new(old), Placements::new(new));
        let mut fleet = Fleet::new(1);
        fleet.run(5, &mut [(&mut one, 1), (&mut other, 1)]);
        for lost in 0..8 {
            if lost % 3 == 0 {
                fleet.records[0].clear();
            }
            fleet.run(1, &mut [(&mut one, 1), (&mut other, 1)]);
            assert_eq!((one.unknown(fleet.now), other.unknown(fleet.now)), (vec![new], vec![old]));
            assert_eq!(parse(&fleet.records[0]).len(), 2, "both mark it again at once");
        }
    }

    #[test]
    fn a_large_fleet_writes_as_often_as_a_small_one() {
        let mut processes = vec![Placements::new(Step::only(OLD)); 100];
        let mut fleet = Fleet::new(1);
        let writes = fleet.run(60, &mut processes.iter_mut().map(|process| (process, 1)).collect::<Vec<_>>());
        assert!((20..=31).contains(&writes), "{writes}");
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let marks: BTreeMap<Step, u64> = steps().into_iter().zip(1..).collect();
        let record = encode(&marks);
        assert_eq!(parse(&record), marks);
        let line = "0000000000000004 0000000000000003 take_over 0000000000000003";
        assert!(std::str::from_utf8(&record).unwrap().lines().any(|found| found == line));
    }

    #[test]
    fn a_record_is_bounded_and_garbage_in_it_is_ignored() {
        let mut process = Placements::new(Step::only(99));
        let full: BTreeMap<Step, u64> = (0..20).map(|hash| (Step::only(hash), 1)).collect();
        let written = process.observe(0, &encode(&full), 0, 7).unwrap();
        assert_eq!(parse(&written).len(), MAX_MARKS);
        assert_eq!(parse(&written)[&Step::only(99)], 7);
        let [zero, three] = ["0000000000000000", "0000000000000003"];
        for garbage in [
            "".to_owned(),
            "garbage".to_owned(),
            "3 0 only 3".to_owned(),
            format!("{three} {zero} only"),
            format!("{three} {zero} only {three} {three}"),
            format!("{three} {zero} next {three}"),
            format!("{three} {three} only {three}"),
            format!("{three} {three} after {three}"),
            format!("+{} {zero} only {three}", &three[1..]),
        ] {
            assert_eq!(parse(garbage.as_bytes()), BTreeMap::new(), "{garbage}");
            let mixed = format!("{garbage}\n{three} {zero} only {three}\n");
            assert_eq!(parse(mixed.as_bytes()), BTreeMap::from([(Step::only(3), 3)]), "{garbage}");
            assert_eq!(parse(&[b"\xff", mixed.as_bytes()].concat()), BTreeMap::new(), "{garbage}");
        }
    }
}
