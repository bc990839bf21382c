//! Random numbers: for jitter, early refresh, and everything else that must not be synchronous across a fleet. No other file
//! generates them.
//!
//! Not for secrets: the generator is fast, and predictable from its output.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Hashes what clients send: differently in each process, so that none of them can choose keys with the same hash.
pub(crate) type ClientHasher = RandomState;

/// A random number generator. The same seed gives the same numbers, so that a failure can be reproduced.
#[derive(Debug, Clone)]
pub struct Random {
    rng: fastrand::Rng,
}

thread_local! {
    /// The next seed of a simulation.
    static SIMULATED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on, each generator of this thread is seeded by the one before, the first one by `seed`, and none by the operating system.
pub fn simulate(seed: u64) {
    SIMULATED.set(Some(seed));
}

impl Random {
    /// A generator seeded by the operating system, differently in each process and for each call. fastrand's default seed is
    /// derived from the uptime and a thread number, which may be the same for sidecars started together on equal machines. In a
    /// simulation, the seed of the simulation decides.
    pub fn from_entropy() -> Random {
        if let Some(seed) = SIMULATED.get() {
            let mut random = Random::seeded(seed);
            SIMULATED.set(Some(random.any()));
            return random;
        }
        Random::seeded(RandomState::new().hash_one(std::process::id()))
    }

    /// A generator with a fixed seed.
    pub fn seeded(seed: u64) -> Random {
        Random { rng: fastrand::Rng::with_seed(seed) }
    }

    /// A uniformly distributed number in (0, 1]. Never 0, so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        1.0 - self.rng.f64()
    }

    /// A uniformly distributed number in 0..n; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.rng.u64(0..n) }
    }

    /// A number with 64 random bits.
    pub fn any(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// Shortens `full` by a uniformly distributed part, at most `fraction` of it (clamped to 0–1). The result is never longer
    /// than `full`, so that a limit stays a limit.
    pub fn jitter(&mut self, full: Duration, fraction: f64) -> Duration {
        let keep = 1.0 - fraction.clamp(0.0, 1.0) * (1.0 - self.unit());
        Duration::try_from_secs_f64(full.as_secs_f64() * keep).map_or(full, |short| short.min(full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_different_seeds_do_not() {
        let draw = |seed| {
            let mut random = Random::seeded(seed);
            (0..32).map(|_| random.below(1_000_000)).collect::<Vec<_>>()
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
    fn a_unit_is_never_zero_and_covers_its_range() {
        let mut random = Random::seeded(1);
        let drawn: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(drawn.iter().all(|&u| u > 0.0 && u <= 1.0));
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn below_returns_every_number_under_its_limit_and_no_other() {
        let mut random = Random::seeded(2);
        let mut seen = [0u32; 5];
        for _ in 0..1_000 {
            seen[random.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn jitter_shortens_by_at_most_its_fraction_and_never_lengthens() {
        let mut random = Random::seeded(3);
        let full = Duration::from_millis(100);
        let drawn: Vec<Duration> = (0..1_000).map(|_| random.jitter(full, 0.25)).collect();
        assert!(drawn.iter().all(|&d| d >= Duration::from_millis(75) && d <= full));
        assert!(drawn.iter().min() < Some(&Duration::from_millis(77)));
        assert!(drawn.iter().max() > Some(&Duration::from_millis(98)));
        assert_eq!(random.jitter(full, 0.0), full);
        assert!(random.jitter(full, 9.0) <= full);
        assert_eq!(random.jitter(Duration::MAX, 0.0), Duration::MAX);
        assert_eq!(random.jitter(full, f64::NAN), full);
    }
}
