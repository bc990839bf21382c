//! Which requests are counted for the hot keys. Few requests: all of them. Many: some, at random, each of which stands for several.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::Instant;

use crate::random::Random;

/// One of at most so many requests is counted.
pub const MAX_STEP: u32 = 64;
/// About as many requests per second and worker are counted, unless that is fewer than one of [`MAX_STEP`].
pub const SAMPLES_PER_SECOND: u32 = 256;
/// The period for which a step is chosen.
const PERIOD: Duration = Duration::from_secs(1);

/// Chooses the requests of one worker.
#[derive(Debug)]
pub struct Sampler {
    /// Requests until the next one that is counted.
    left: Cell<u32>,
    /// How many requests the next one stands for, on average.
    step: Cell<u32>,
    random: RefCell<Random>,
    /// When the period began, and how many requests it has seen, and counted.
    period: Cell<(Option<Instant>, u32, u32)>,
}

impl Sampler {
    /// At first, all requests are counted.
    pub fn new(random: Random) -> Sampler {
        Sampler {
            left: Cell::new(1),
            step: Cell::new(1),
            random: RefCell::new(random),
            period: Cell::default(),
        }
    }

    /// Whether this request is counted: then [`Sampler::next`] must be called.
    #[inline]
    pub fn is_due(&self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        left == 0
    }

    /// Whether the present request is counted, which [`Sampler::is_due`] has found.
    pub fn is_at_zero(&self) -> bool {
        self.left.get() == 0
    }

    /// Chooses the next request. Returns how many requests the present one stands for.
    pub fn next(&self, now: Instant) -> f64 {
        let step = self.step.get();
        let (began, seen, counted) = self.period.get();
        let began = began.unwrap_or(now);
        let (seen, counted) = (seen.saturating_add(step), counted + 1);
        let passed = now.saturating_duration_since(began);
        if passed >= PERIOD {
            let per_second = f64::from(seen) / passed.as_secs_f64();
            let next = (per_second / f64::from(SAMPLES_PER_SECOND)).round();
            self.step.set((next as u32).clamp(1, MAX_STEP));
            self.period.set((Some(now), 0, 0));
        } else if counted > SAMPLES_PER_SECOND {
            // More than in the period before.
            self.step.set((step * 2).min(MAX_STEP));
            self.period.set((Some(began), seen, 0));
        } else {
            self.period.set((Some(began), seen, counted));
        }
        let next = self.step.get();
        // Uniform from 1 to 2 × next − 1, whose mean is `next`, so that no pattern of requests escapes.
        let skip = self.random.borrow_mut().below(u64::from(2 * next - 1));
        self.left.set(1 + skip as u32);
        f64::from(step)
    }

    /// How many requests a counted one stands for now.
    pub fn step(&self) -> u32 {
        self.step.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each second: the requests that were counted, and those that they stand for.
    fn counted(per_second: u32, seconds: u32) -> Vec<(u32, f64)> {
        let (sampler, start) = (Sampler::new(Random::seeded(1)), Instant::now());
        let mut all = Vec::new();
        for second in 0..seconds {
            let (mut counted, mut stand_for) = (0, 0.0);
            for request in 0..per_second {
                if sampler.is_due() {
                    let passed = f64::from(second) + f64::from(request) / f64::from(per_second);
                    (counted, stand_for) =
                        (counted + 1, stand_for + sampler.next(start + Duration::from_secs_f64(passed)));
                }
            }
            all.push((counted, stand_for));
        }
        all
    }

    #[test]
    fn few_requests_are_all_counted() {
        for (counted, stand_for) in counted(SAMPLES_PER_SECOND, 5) {
            assert_eq!((counted, stand_for), (SAMPLES_PER_SECOND, f64::from(SAMPLES_PER_SECOND)));
        }
    }

    #[test]
    fn of_many_requests_few_are_counted_and_stand_for_all_of_them() {
        for per_second in [10_000, 100_000] {
            for (second, (counted, stand_for)) in counted(per_second, 5).into_iter().enumerate() {
                let most = if second == 0 { 8 * SAMPLES_PER_SECOND } else { SAMPLES_PER_SECOND * 3 };
                assert!(counted <= most.max(per_second / MAX_STEP * 2), "{counted} of {per_second}");
                let share = stand_for / f64::from(per_second);
                assert!((0.6..1.5).contains(&share), "{share} of {per_second} in second {second}");
            }
        }
    }
}
