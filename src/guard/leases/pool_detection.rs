//! Whether clients have pools: learnt from which connection the `set` that follows a miss comes on.
//!
//! A client with a pool reads on one connection and writes on another, and its `set` is the fill for a miss that the other was
//! told. Where each process has one connection, the same two commands are two clients', and the `set` is a new value. The protocol
//! does not say which; what clients do tells it within a few misses.

/// Which miss a `set` could end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairedMiss {
    /// One of its own connection.
    Own,
    /// Only one of another connection, though its own has been told misses too.
    Other,
    /// None. Clients that write whenever they like do so often; a pool that fills a cache hardly ever does.
    None,
}

/// The count of one listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolDetection {
    own: u32,
    other: u32,
    none: u32,
    pooled: bool,
}

/// So many are counted before anything is concluded from them.
const ENOUGH: u32 = 16;
/// Above so many, older ones count half.
const MANY: u32 = 256;

impl PoolDetection {
    /// Whether the clients have pools. As long as nothing is known, they have none.
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Counts a `set`. Returns the new state if it changes with it. Clients have pools where a quarter of the pairs are another
    /// connection's, and few sets end no miss at all; and have none any more where less than a sixteenth is, or many sets do.
    pub fn note(&mut self, paired: PairedMiss) -> Option<bool> {
        match paired {
            PairedMiss::Own => self.own += 1,
            PairedMiss::Other => self.other += 1,
            PairedMiss::None => self.none += 1,
        }
        let pairs = self.own + self.other;
        let all = pairs + self.none;
        let pooled = match self.pooled {
            _ if all < ENOUGH => self.pooled,
            false => 4 * self.other >= pairs && 10 * self.none <= all,
            true => 16 * self.other >= pairs && 4 * self.none <= all,
        };
        if all >= MANY {
            (self.own, self.other, self.none) = (self.own / 2, self.other / 2, self.none / 2);
        }
        (std::mem::replace(&mut self.pooled, pooled) != pooled).then_some(pooled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many pairs the state changes, of which every n-th is another connection's.
    fn changes(pairing: &mut PoolDetection, every: u32) -> Option<(u32, bool)> {
        (1..=2000).find_map(|n| {
            let paired = if n % every == 0 { PairedMiss::Other } else { PairedMiss::Own };
            pairing.note(paired).map(|pooled| (n, pooled))
        })
    }

    #[test]
    fn clients_with_a_pool_are_known_within_a_few_misses_and_so_is_their_end() {
        let mut pairing = PoolDetection::default();
        assert_eq!(changes(&mut pairing, 1), Some((ENOUGH, true)));
        assert_eq!(changes(&mut pairing, 3), None, "they have one still");
        let (after, pooled) = changes(&mut pairing, u32::MAX).unwrap();
        assert!(!pooled && after < 1_000, "{after}");
    }

    #[test]
    fn a_few_sets_that_come_while_somebody_else_builds_make_no_pool() {
        for every in [5, 10, 100] {
            assert_eq!(changes(&mut PoolDetection::default(), every), None, "every {every}th");
        }
        for every in [1, 2, 3, 4] {
            assert!(changes(&mut PoolDetection::default(), every).is_some(), "every {every}th");
        }
    }

    #[test]
    fn clients_that_write_whenever_they_like_have_no_pool_though_others_miss_what_they_write() {
        let mut pairing = PoolDetection::default();
        for n in 0..2000 {
            let paired =
                [PairedMiss::Own, PairedMiss::Other, PairedMiss::Other, PairedMiss::Other, PairedMiss::None]
                    [n % 5];
            assert_eq!(pairing.note(paired), None, "after {n}");
        }
        assert_eq!(changes(&mut pairing, 1).map(|(_, pooled)| pooled), Some(true));
        let back = (0..200).find_map(|_| pairing.note(PairedMiss::None));
        assert_eq!(back, Some(false));
    }
}
