//! What the calls of one client that are in flight access, so that a further one is not compared with each of them.

use std::collections::BTreeMap;

use super::scope::{AccessSet, MAX_ORDERED};
use crate::looked_at;

/// The keys that several calls access.
#[derive(Debug, Default)]
pub struct InFlight {
    keys: BTreeMap<u64, OfKey>,
    /// Calls that access any key at all.
    any: Counts,
    /// Calls that access all keys.
    all: Counts,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    reads: usize,
    writes: usize,
}

/// How often a key is accessed.
#[derive(Debug, Default, PartialEq, Eq)]
struct OfKey {
    /// By reads of few keys, which are ordered among each other.
    ordered_reads: usize,
    other_reads: usize,
    writes: usize,
}

impl InFlight {
    /// A call with these accesses begins.
    pub fn add(&mut self, set: &AccessSet) {
        self.count(set, |count| *count += 1);
    }

    /// A call that was added has ended.
    pub fn remove(&mut self, set: &AccessSet) {
        self.count(set, |count| *count -= 1);
        for key in &set.keys {
            if self.keys.get(key).is_some_and(|of_key| *of_key == OfKey::default()) {
                self.keys.remove(key);
            }
        }
    }

    fn count(&mut self, set: &AccessSet, mut change: impl FnMut(&mut usize)) {
        if set.is_empty() {
            return;
        }
        let mut of =
            |counts: &mut Counts| change(if set.write { &mut counts.writes } else { &mut counts.reads });
        of(&mut self.any);
        if set.all {
            of(&mut self.all);
        }
        for key in &set.keys {
            let of_key = self.keys.entry(*key).or_default();
            change(match set.write {
                true => &mut of_key.writes,
                false if set.keys.len() <= MAX_ORDERED => &mut of_key.ordered_reads,
                false => &mut of_key.other_reads,
            });
        }
    }

    /// Whether a call with these accesses [conflicts](AccessSet::conflicts) with one in flight.
    pub fn conflicts(&self, set: &AccessSet) -> bool {
        if set.is_empty() {
            return false;
        }
        let is_ordered = set.keys.len() <= MAX_ORDERED;
        let mut keys = set.keys.iter().filter_map(|key| {
            looked_at::entry();
            self.keys.get(key)
        });
        match (set.write, set.all) {
            (true, true) => self.any != Counts::default(),
            (true, false) => self.all != Counts::default() || keys.next().is_some(),
            (false, true) => self.any.writes > 0,
            (false, false) => {
                let is_waited_for =
                    |of_key: &OfKey| of_key.writes > 0 || (is_ordered && of_key.ordered_reads > 0);
                self.all.writes > 0 || keys.any(is_waited_for)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// More keys than are compared.
    const MANY: u64 = 70;

    fn any_set(random: &mut Random) -> AccessSet {
        let write = random.below(2) == 0;
        let keys = match random.below(8) {
            0 => 0,
            1 => MANY,
            2 => 10,
            _ => 1 + random.below(3),
        };
        AccessSet::of((0..keys).map(|_| random.below(40)).collect::<Vec<_>>(), write)
    }

    #[test]
    fn a_call_conflicts_with_those_in_flight_as_with_each_of_them() {
        let mut random = Random::seeded(1);
        let (mut sets, mut in_flight, mut conflicts) = (Vec::new(), InFlight::default(), 0);
        for _ in 0..20_000 {
            let set = any_set(&mut random);
            let expected = sets.iter().any(|other: &AccessSet| other.conflicts(&set));
            assert_eq!(in_flight.conflicts(&set), expected, "{set:?} beside {sets:?}");
            conflicts += usize::from(expected);
            if sets.len() < 6 {
                in_flight.add(&set);
                sets.push(set);
            } else {
                let most = random.below(6) as usize;
                while sets.len() > most {
                    in_flight.remove(&sets.swap_remove(random.below(sets.len() as u64) as usize));
                }
            }
        }
        assert!(conflicts > 1_000 && conflicts < 19_000, "{conflicts}");
        sets.iter().for_each(|set| in_flight.remove(set));
        assert!(in_flight.keys.is_empty() && in_flight.any == Counts::default());
    }

    #[test]
    fn a_call_looks_at_its_own_keys_however_many_are_in_flight() {
        let mut in_flight = InFlight::default();
        for call in 0..1_024 {
            in_flight.add(&AccessSet::of(call * 64..call * 64 + 64, false));
        }
        for keys in [1, 64] {
            let set = AccessSet::of(1_000_000..1_000_000 + keys, true);
            assert_eq!(looked_at::during(|| assert!(!in_flight.conflicts(&set))), keys);
        }
    }
}
