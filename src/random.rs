//! The one place of randomness: jitter, early refresh, and whatever else must not happen in step across a fleet.
//!
//! Not for secrets: the generator is fast and predictable from its output.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A stream of chance. The same seed gives the same stream, so a failure replays from its seed.
#[derive(Debug, Clone)]
pub struct Random {
    rng: fastrand::Rng,
}

impl Random {
    /// Seeded by the operating system, differently in every process and at every call. fastrand's own default seed is the
    /// uptime and a thread number, which sidecars started together on equal machines may share.
    pub fn from_entropy() -> Random {
        Random::seeded(RandomState::new().hash_one(std::process::id()))
    }

    /// The stream that belongs to `seed`.
    pub fn seeded(seed: u64) -> Random {
        Random { rng: fastrand::Rng::with_seed(seed) }
    }

    /// A number in (0, 1], evenly spread: never 0, so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        1.0 - self.rng.f64()
    }

    /// A number in 0..n, evenly spread; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.rng.u64(0..n) }
    }

    /// `full` shortened by up to `fraction` of itself (clamped to 0–1), evenly spread. Never longer than `full`, so a
    /// jittered wait keeps within its limit.
    pub fn jitter(&mut self, full: Duration, fraction: f64) -> Duration {
        let keep = 1.0 - fraction.clamp(0.0, 1.0) * (1.0 - self.unit());
        Duration::try_from_secs_f64(full.as_secs_f64() * keep).map_or(full, |short| short.min(full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_stream_and_another_seed_does_not() {
        let draw = |seed| {
            let mut chance = Random::seeded(seed);
            (0..32).map(|_| chance.below(1_000_000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn entropy_differs_from_call_to_call() {
        let first = Random::from_entropy().below(u64::MAX);
        assert_ne!(first, Random::from_entropy().below(u64::MAX));
    }

    #[test]
    fn a_unit_is_never_zero_and_fills_its_range() {
        let mut chance = Random::seeded(1);
        let drawn: Vec<f64> = (0..10_000).map(|_| chance.unit()).collect();
        assert!(drawn.iter().all(|&u| u > 0.0 && u <= 1.0));
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn below_reaches_every_number_under_its_limit_and_no_other() {
        let mut chance = Random::seeded(2);
        let mut seen = [0u32; 5];
        for _ in 0..1_000 {
            seen[chance.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
        assert_eq!(chance.below(0), 0);
    }

    #[test]
    fn jitter_shortens_by_at_most_its_fraction_and_never_lengthens() {
        let mut chance = Random::seeded(3);
        let full = Duration::from_millis(100);
        let drawn: Vec<Duration> = (0..1_000).map(|_| chance.jitter(full, 0.25)).collect();
        assert!(drawn.iter().all(|&d| d >= Duration::from_millis(75) && d <= full));
        assert!(drawn.iter().min() < Some(&Duration::from_millis(77)));
        assert!(drawn.iter().max() > Some(&Duration::from_millis(98)));
        assert_eq!(chance.jitter(full, 0.0), full);
        assert!(chance.jitter(full, 9.0) <= full);
        assert_eq!(chance.jitter(Duration::MAX, 0.0), Duration::MAX);
        assert_eq!(chance.jitter(full, f64::NAN), full);
    }
}
