//! Which placements of keys the processes of a fleet use: two that are not steps of one change miss each other's invalidations.
//!
//! Each server of a pool has a record with one *mark* for each placement in use: the placement's hash, and a number that its
//! processes change every few seconds. No clocks are compared: a process counts a mark as in use while it sees its number
//! change. All processes of a placement share a mark, so a fleet of any size writes it once per interval.

use std::collections::BTreeMap;

/// Marks in a record. Beyond that, the one whose number has not changed for the longest time is replaced.
pub const MAX_MARKS: usize = 16;
/// A mark is renewed if its number has not changed for this long, in ms.
pub const RENEW_AFTER_MS: u64 = 2_000;
/// A mark is no longer in use if its number has not changed for this long, in ms. Longer than the pause of a process that is
/// stopped and resumed, or whose server does not answer for a moment.
pub const UNUSED_AFTER_MS: u64 = 15_000;

/// What one process knows about the placements in use, and what it writes to the records.
#[derive(Debug, Clone)]
pub struct Placements {
    own: u64,
    adjacent: Vec<u64>,
    marks: BTreeMap<(usize, u64), Observed>,
}

#[derive(Debug, Clone, Copy)]
struct Observed {
    number: u64,
    /// When this number was first seen, in ms.
    since: u64,
    /// When its number was last seen to change, in ms.
    changed: Option<u64>,
}

impl Placements {
    /// `own` is the hash of the placement by which the process reads; `adjacent` are those of its `next` or `previous`.
    pub fn new(own: u64, adjacent: &[u64]) -> Placements {
        Placements { own, adjacent: adjacent.to_vec(), marks: BTreeMap::new() }
    }

    /// Takes the record of a server as it was read at `now_ms` of a monotonic clock; empty, if there was none. Returns the
    /// record that must replace it by compare-and-swap, if it must change. `random` must not have been passed before. If the
    /// swap fails, another process has written: nothing is to be repeated before the next read.
    pub fn observe(&mut self, server: usize, record: &[u8], now_ms: u64, random: u64) -> Option<Vec<u8>> {
        let mut read = parse(record);
        self.marks.retain(|(at, hash), _| *at != server || read.contains_key(hash));
        for (hash, number) in &read {
            let first = Observed { number: *number, since: now_ms, changed: None };
            let seen = self.marks.entry((server, *hash)).or_insert(first);
            if seen.number != *number {
                *seen = Observed { number: *number, since: now_ms, changed: Some(now_ms) };
            }
        }
        let age = |hash: u64| {
            let seen = self.marks.get(&(server, hash));
            seen.map(|seen| now_ms.saturating_sub(seen.since))
        };
        let before = read.len();
        read.retain(|hash, _| *hash == self.own || age(*hash).is_none_or(|age| age < UNUSED_AFTER_MS));
        let renews = age(self.own).is_none_or(|age| age >= RENEW_AFTER_MS);
        if !renews && read.len() == before {
            return None;
        }
        if renews {
            let oldest = read.keys().copied().filter(|hash| *hash != self.own).max_by_key(|hash| age(*hash));
            if let (true, Some(oldest)) = (read.len() >= MAX_MARKS && !read.contains_key(&self.own), oldest) {
                read.remove(&oldest);
            }
            read.insert(self.own, random);
        }
        Some(encode(&read))
    }

    /// The hashes of the placements in use at this time, its own included.
    pub fn in_use(&self, now_ms: u64) -> Vec<u64> {
        let recent = |seen: &Observed| {
            seen.changed.is_some_and(|changed| now_ms.saturating_sub(changed) < UNUSED_AFTER_MS)
        };
        let others = self.marks.iter().filter(|(_, seen)| recent(seen)).map(|((_, hash), _)| *hash);
        let mut all: Vec<_> = others.chain([self.own]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Those in use that are neither its own nor adjacent: invalidations are lost between them and this process.
    pub fn unknown(&self, now_ms: u64) -> Vec<u64> {
        let known = |hash: &u64| *hash == self.own || self.adjacent.contains(hash);
        self.in_use(now_ms).into_iter().filter(|hash| !known(hash)).collect()
    }
}

/// One mark a line: the hash and the number, 16 hexadecimal digits each. Other lines are ignored.
fn parse(record: &[u8]) -> BTreeMap<u64, u64> {
    let hex = |text: &str| (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
    let mark = |line: &str| line.split_once(' ').and_then(|(hash, number)| Some((hex(hash)?, hex(number)?)));
    let text = std::str::from_utf8(record).unwrap_or_default();
    text.lines().filter_map(mark).take(MAX_MARKS).collect()
}

fn encode(marks: &BTreeMap<u64, u64>) -> Vec<u8> {
    let lines = marks.iter().map(|(hash, number)| format!("{hash:016x} {number:016x}\n"));
    lines.collect::<String>().into_bytes()
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

    #[test]
    fn a_change_in_one_go_is_noticed_by_both_sides_within_seconds() {
        let (mut three, mut four) = (Placements::new(3, &[]), Placements::new(4, &[]));
        let mut fleet = Fleet::new(4);
        fleet.run(5, &mut [(&mut three, 3), (&mut four, 4)]);
        assert_eq!((three.unknown(fleet.now), four.unknown(fleet.now)), (vec![4], vec![3]));
        assert_eq!(three.in_use(fleet.now), [3, 4]);
        // Once all have the same, nobody complains any longer, and the mark goes.
        fleet.run(20, &mut [(&mut four, 4)]);
        assert_eq!(four.unknown(fleet.now), [] as [u64; 0]);
        assert_eq!(four.in_use(fleet.now), [4]);
        assert!(!fleet.records.iter().any(|record| parse(record).contains_key(&3)));
    }

    #[test]
    fn the_documented_steps_are_adjacent_and_skipped_ones_are_not() {
        // The placement by which each step reads, and those that are adjacent to it.
        let steps: [(u64, &[u64]); 4] = [(3, &[]), (3, &[4]), (4, &[3]), (4, &[])];
        for (a, b, alarmed) in [
            (0, 1, [false, false]),
            (1, 2, [false, false]),
            (2, 3, [false, false]),
            (0, 2, [true, false]),
            (1, 3, [false, true]),
            (0, 3, [true, true]),
        ] {
            let of = |step: usize| Placements::new(steps[step].0, steps[step].1);
            let (mut one, mut other) = (of(a), of(b));
            let mut fleet = Fleet::new(4);
            fleet.run(6, &mut [(&mut one, 4), (&mut other, 4)]);
            let found = [one, other].map(|process| !process.unknown(fleet.now).is_empty());
            assert_eq!(found, alarmed, "steps {a} and {b}");
        }
    }

    #[test]
    fn what_a_process_left_behind_is_no_alarm() {
        let (mut gone, mut started) = (Placements::new(3, &[]), Placements::new(4, &[]));
        let mut fleet = Fleet::new(3);
        fleet.run(5, &mut [(&mut gone, 3)]);
        for _ in 0..20 {
            fleet.run(1, &mut [(&mut started, 3)]);
            assert_eq!(started.unknown(fleet.now), [] as [u64; 0]);
        }
    }

    #[test]
    fn a_large_fleet_writes_as_often_as_a_small_one() {
        let mut processes = vec![Placements::new(3, &[]); 100];
        let mut fleet = Fleet::new(1);
        let writes = fleet.run(60, &mut processes.iter_mut().map(|process| (process, 1)).collect::<Vec<_>>());
        assert!((20..=31).contains(&writes), "{writes}");
    }

    #[test]
    fn a_record_is_bounded_and_garbage_in_it_is_ignored() {
        let mut process = Placements::new(99, &[]);
        let full: BTreeMap<u64, u64> = (0..20).map(|hash| (hash, 1)).collect();
        let written = process.observe(0, &encode(&full), 0, 7).unwrap();
        assert_eq!(parse(&written).len(), MAX_MARKS);
        assert_eq!(parse(&written)[&99], 7);
        let text = b"\xff\n0000000000000003 0000000000000001\n";
        assert_eq!(parse(text), BTreeMap::new());
        assert_eq!(parse(b"garbage\n3 4\n0000000000000003 0000000000000001\n"), BTreeMap::from([(3, 1)]));
    }
}
