//! Detects whether clients use connection pools, from the connection on which a `set` follows a miss.
//!
//! A client with a pool reads on one connection and writes on another: its `set` fills the miss of the other connection.
//! If each client process has a single connection, the same two commands come from two clients, and the `set` is a new
//! value. The protocol does not distinguish the two cases, but a few misses do.

/// Which miss a `set` could fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairedMiss {
    /// One of its own connection.
    Own,
    /// Only one of another connection, although its own has had misses too.
    Other,
    /// None. This is frequent with clients that write at any time, and rare with a pool that fills a cache.
    None,
}

/// The counts of one listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolDetection {
    own: u32,
    other: u32,
    none: u32,
    pooled: bool,
}

/// The fewest `set`s for a decision.
const MIN_SETS: u32 = 16;
/// The fewest to find that too many of them fill no miss.
const MIN_SETS_TO_END: u32 = 64;
/// From this many on, earlier ones count half.
const HALVING_SETS: u32 = 256;

impl PoolDetection {
    /// Begins with what another process has detected.
    pub fn known(pooled: bool) -> PoolDetection {
        PoolDetection { pooled, ..PoolDetection::default() }
    }

    /// Whether the clients use connection pools. The initial state is no.
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Counts a `set`. Returns the new state if it has changed. The state becomes "pooled" when at least a
    /// quarter of the pairs are between two connections and at most a seventh of all `set`s fill no miss. It ends when less than a
    /// sixteenth of the pairs are, or, among at least 64 `set`s, more than a third fill none. A pool that writes through a tenth
    /// of its `set`s stays between the two.
    pub fn note(&mut self, paired: PairedMiss) -> Option<bool> {
        match paired {
            PairedMiss::Own => self.own += 1,
            PairedMiss::Other => self.other += 1,
            PairedMiss::None => self.none += 1,
        }
        let pairs = self.own + self.other;
        let all = pairs + self.none;
        let pooled = match self.pooled {
            _ if all < MIN_SETS => self.pooled,
            false => 4 * self.other >= pairs && 7 * self.none <= all,
            true => 16 * self.other >= pairs && (all < MIN_SETS_TO_END || 3 * self.none <= all),
        };
        if all >= HALVING_SETS {
            (self.own, self.other, self.none) = (self.own / 2, self.other / 2, self.none / 2);
        }
        (std::mem::replace(&mut self.pooled, pooled) != pooled).then_some(pooled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many pairs the state changes if every n-th is between two connections.
    fn changes(detection: &mut PoolDetection, every: u32) -> Option<(u32, bool)> {
        (1..=2000).find_map(|n| {
            let paired = if n % every == 0 { PairedMiss::Other } else { PairedMiss::Own };
            detection.note(paired).map(|pooled| (n, pooled))
        })
    }

    #[test]
    fn pools_and_their_end_are_detected_within_a_few_misses() {
        let mut detection = PoolDetection::default();
        assert_eq!(changes(&mut detection, 1), Some((MIN_SETS, true)));
        assert_eq!(changes(&mut detection, 3), None, "they have one still");
        let (after, pooled) = changes(&mut detection, u32::MAX).unwrap();
        assert!(!pooled && after < 1_000, "{after}");
    }

    #[test]
    fn a_few_sets_during_the_rebuild_of_another_connection_are_not_taken_for_a_pool() {
        for every in [5, 10, 100] {
            assert_eq!(changes(&mut PoolDetection::default(), every), None, "every {every}th");
        }
        for every in [1, 2, 3, 4] {
            assert!(changes(&mut PoolDetection::default(), every).is_some(), "every {every}th");
        }
    }

    #[test]
    fn a_pool_that_writes_through_a_tenth_of_its_sets_is_detected_and_stays_so() {
        for seed in 0..200 {
            let (mut detection, random) = (PoolDetection::default(), &mut fastrand::Rng::with_seed(seed));
            let mut changes = Vec::new();
            for n in 0..2000 {
                let paired = match random.u32(0..100) {
                    ..10 => PairedMiss::None,
                    10..20 => PairedMiss::Own,
                    _ => PairedMiss::Other,
                };
                changes.extend(detection.note(paired).map(|pooled| (n, pooled)));
            }
            let [(after, true)] = changes[..] else { panic!("seed {seed}: {changes:?}") };
            assert!(after < 512, "seed {seed}: after {after}");
        }
    }

    #[test]
    fn clients_that_write_at_any_time_are_not_taken_for_a_pool() {
        let mut detection = PoolDetection::default();
        for n in 0..2000 {
            let paired =
                [PairedMiss::Own, PairedMiss::Other, PairedMiss::Other, PairedMiss::Other, PairedMiss::None]
                    [n % 5];
            assert_eq!(detection.note(paired), None, "after {n}");
        }
        assert_eq!(changes(&mut detection, 1).map(|(_, pooled)| pooled), Some(true));
        let back = (0..200).find_map(|_| detection.note(PairedMiss::None));
        assert_eq!(back, Some(false));
    }
}
