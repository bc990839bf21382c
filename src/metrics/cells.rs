//! The memory that counters are in, and the buckets of the histograms.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Two 64-byte cache lines. Processors prefetch lines in pairs, so the blocks of two workers must not share a pair.
#[derive(Default)]
#[repr(align(128))]
struct Lines([AtomicU64; 16]);

/// An array of counters that shares no pair of cache lines with anything else. Clones are the same counters.
#[derive(Clone)]
pub(super) struct Block(Arc<[Lines]>);

impl Block {
    /// `cells` counters, all 0.
    pub(super) fn new(cells: usize) -> Block {
        Block((0..cells.div_ceil(16)).map(|_| Lines::default()).collect())
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.0[at / 16].0[at % 16]
    }

    /// Adds without a locked instruction. Only one thread may call this for a block, otherwise counts are lost.
    pub(super) fn add_exclusive(&self, at: usize, by: u64) {
        let cell = self.cell(at);
        cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// Adds; may be called by any thread.
    pub(super) fn add(&self, at: usize, by: u64) {
        self.cell(at).fetch_add(by, Relaxed);
    }

    /// Subtracts 1; may be called by any thread. The cell wraps below 0, because what began on one worker may end on another:
    /// only the sum over all workers is meaningful.
    pub(super) fn subtract(&self, at: usize) {
        self.cell(at).fetch_sub(1, Relaxed);
    }

    /// Overwrites the value; for the thread that may call [`Block::add_exclusive`].
    pub(super) fn set(&self, at: usize, to: u64) {
        self.cell(at).store(to, Relaxed);
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        self.cell(at).load(Relaxed)
    }
}

/// The upper bounds of a histogram's buckets, and the unit of the bounds and the sum.
pub(super) struct Buckets {
    /// Ascending, in units.
    pub(super) bounds: &'static [u64],
    /// Units per second; divides 1,000,000,000.
    pub(super) per_second: u64,
}

/// Durations of requests, in nanoseconds: from about 50 µs over loopback to above `cold_wait` (2 s by default).
pub(super) const LATENCY: Buckets = Buckets {
    bounds: &[
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
        2_500_000_000,
        5_000_000_000,
    ],
    per_second: 1_000_000_000,
};

/// Durations of rebuilds, in milliseconds: from a database query to above `max_rebuild` (60 s by default).
pub(super) const REBUILD: Buckets = Buckets {
    bounds: &[1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000],
    per_second: 1_000,
};

/// Ages of stale values, in milliseconds. memcached's resolution is one second. A sum in nanoseconds could wrap within an hour on
/// a busy sidecar.
pub(super) const AGE: Buckets = Buckets {
    bounds: &[
        1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 900_000, 3_600_000, 86_400_000,
    ],
    per_second: 1_000,
};

impl Buckets {
    /// The number of cells of a histogram: one per bucket, one for larger values, one for the sum.
    pub(super) const fn width(&self) -> usize {
        self.bounds.len() + 2
    }

    /// A duration in units, rounded down.
    pub(super) fn units(&self, took: Duration) -> u64 {
        let part = u64::from(took.subsec_nanos()) / (1_000_000_000 / self.per_second);
        took.as_secs().saturating_mul(self.per_second).saturating_add(part)
    }

    /// The index of the bucket that a value is counted in.
    pub(super) fn bucket(&self, units: u64) -> usize {
        self.bounds.partition_point(|&bound| units > bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_includes_its_upper_bound() {
        for buckets in [&LATENCY, &REBUILD, &AGE] {
            assert!(buckets.bounds.is_sorted_by(|a, b| a < b));
            for (i, &bound) in buckets.bounds.iter().enumerate() {
                assert_eq!(buckets.bucket(bound), i);
                assert_eq!(buckets.bucket(bound + 1), i + 1);
            }
        }
        assert_eq!(LATENCY.bucket(0), 0);
    }

    #[test]
    fn durations_are_rounded_down_to_the_unit_and_never_overflow() {
        assert_eq!(LATENCY.units(Duration::new(2, 7)), 2_000_000_007);
        assert_eq!(REBUILD.units(Duration::from_micros(1_999)), 1);
        assert_eq!(LATENCY.units(Duration::MAX), u64::MAX);
    }

    #[test]
    fn the_metrics_page_shows_exactly_these_buckets() {
        let page = include_str!("../../docs/metrics.md");
        for (of, buckets) in
            [("requests, upstream requests", LATENCY), ("rebuilds", REBUILD), ("stale age", AGE)]
        {
            let bounds = buckets.bounds.iter().map(|&b| (b as f64 / buckets.per_second as f64).to_string());
            let row = format!("\n| {of} | {} |\n", bounds.collect::<Vec<_>>().join(", "));
            assert!(page.contains(&row), "docs/metrics.md should say:{row}");
        }
    }

    #[test]
    fn blocks_of_two_workers_share_no_pair_of_cache_lines() {
        let blocks = [Block::new(17), Block::new(1)];
        for block in &blocks {
            assert_eq!(std::ptr::from_ref(block.cell(0)) as usize % 128, 0);
        }
        assert_eq!(blocks[0].0.len(), 2);
        assert_eq!(size_of::<Lines>(), 128);
    }
}
