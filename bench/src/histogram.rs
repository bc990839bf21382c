//! Response times, in bounded memory.

/// Counts durations in ns, each with a relative error of at most 1/64.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

/// Significant bits that are kept.
const KEPT: u32 = 7;
const SLOTS: usize = (64 - KEPT as usize + 2) << (KEPT - 1);

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { counts: vec![0; SLOTS], total: 0 }
    }

    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.counts[slot(nanoseconds)] += 1;
        self.total += 1;
    }

    /// The smallest duration in ns that at least this share of all does not exceed; 0 if there are none.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let wanted = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total.max(1));
        let mut results = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            results += count;
            if results >= wanted {
                return highest(slot);
            }
        }
        0
    }
}

fn slot(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(KEPT);
    ((shift as usize) << (KEPT - 1)) + (value >> shift) as usize
}

/// The largest number of a slot.
fn highest(slot: usize) -> u64 {
    let shift = (slot >> (KEPT - 1)).saturating_sub(1);
    let lowest = (slot - (shift << (KEPT - 1))) as u64;
    (lowest << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_goes_into_a_slot_that_is_off_by_less_than_a_64th() {
        for value in (0..64)
            .flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) + (1 << bit) / 3])
            .chain([u64::MAX])
        {
            let rounded = highest(slot(value));
            assert!(rounded >= value && rounded - value <= value / 64, "{value} is rounded to {rounded}");
        }
        assert_eq!(slot(u64::MAX), SLOTS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_numbers_added() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), 0);
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        for (share, exact) in
            [(0.0, 1000), (0.5, 500_000), (0.99, 990_000), (0.999, 999_000), (1.0, 1_000_000)]
        {
            let rounded = histogram.quantile(share);
            assert!(rounded >= exact && rounded - exact <= exact / 64, "{share}: {rounded}, not {exact}");
        }
    }
}
