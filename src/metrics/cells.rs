//! Where counting happens: plain numbers that one worker writes and a scrape reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Two 64-byte cache lines: processors fetch them in pairs, so blocks of two workers never share one.
#[derive(Default)]
#[repr(align(128))]
struct Lines([AtomicU64; 16]);

/// A run of counters that shares no cache line with anything else.
pub(super) struct Block(Box<[Lines]>);

impl Block {
    /// `cells` counters, all 0.
    pub(super) fn new(cells: usize) -> Block {
        Block((0..cells.div_ceil(16)).map(|_| Lines::default()).collect())
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.0[at / 16].0[at % 16]
    }

    /// Adds without a locked instruction. Only one thread may do this to a block; a second one would lose counts.
    pub(super) fn bump(&self, at: usize, by: u64) {
        let cell = self.cell(at);
        cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// Adds from any thread.
    pub(super) fn add(&self, at: usize, by: u64) {
        self.cell(at).fetch_add(by, Relaxed);
    }

    /// Takes one from any thread. A single block may so fall below 0 (it wraps): what was begun on one worker may end on
    /// another, and only the sum over all workers is a number of things.
    pub(super) fn take(&self, at: usize) {
        self.cell(at).fetch_sub(1, Relaxed);
    }

    /// Overwrites; for the thread that may [`Block::bump`].
    pub(super) fn set(&self, at: usize, to: u64) {
        self.cell(at).store(to, Relaxed);
    }

    /// Reads.
    pub(super) fn get(&self, at: usize) -> u64 {
        self.cell(at).load(Relaxed)
    }
}

/// The upper bounds of a histogram's buckets, and the unit that they and its sum are kept in.
pub(super) struct Buckets {
    /// Ascending, in units.
    pub(super) bounds: &'static [u64],
    /// Units per second; divides 1,000,000,000.
    pub(super) per_second: u64,
}

/// A request's time, in nanoseconds: loopback takes some 50 µs, `cold_wait` is 2 s by default.
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

/// A rebuild's time, in milliseconds: a database query, up to `max_rebuild` (60 s by default).
pub(super) const REBUILD: Buckets = Buckets {
    bounds: &[1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000],
    per_second: 1_000,
};

/// A stale value's age, in milliseconds: memcached counts in whole seconds, so nothing below one. Kept coarse also because
/// a sum in nanoseconds could wrap within the hour on a busy sidecar.
pub(super) const AGE: Buckets = Buckets {
    bounds: &[
        1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 900_000, 3_600_000, 86_400_000,
    ],
    per_second: 1_000,
};

impl Buckets {
    /// How many cells a histogram takes: one a bucket, one for what is above them all, one for the sum.
    pub(super) const fn width(&self) -> usize {
        self.bounds.len() + 2
    }

    /// The duration in units, rounded down.
    pub(super) fn units(&self, took: Duration) -> u64 {
        let part = u64::from(took.subsec_nanos()) / (1_000_000_000 / self.per_second);
        took.as_secs().saturating_mul(self.per_second).saturating_add(part)
    }

    /// Which bucket a value falls in.
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
