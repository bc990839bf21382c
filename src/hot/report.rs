//! The hot keys of all workers together.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::keys::{HotKeys, Measure};

/// The most keys of a report.
pub const MAX_KEYS: usize = 1000;

/// The hottest keys by one measure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HotReport {
    /// Over about how many seconds they were counted.
    pub seconds: f64,
    /// One of so many requests is counted, on the busiest worker.
    pub counted_one_of: u32,
    /// Keys in descending order of the measure.
    pub keys: Vec<HotKey>,
}

/// A key and how much happens to it per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HotKey {
    /// The key, as `log.keys` permits.
    pub key: Box<[u8]>,
    /// The index of its rule.
    pub rule: usize,
    /// By the index of the [`Measure`]. `None`: too little to be among the heaviest of its rule.
    pub rates: [Option<Rate>; Measure::ALL.len()],
}

/// An amount per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// Estimate of the true rate.
    pub value: f64,
    /// By how much the true amount differs at most: because the sketch has few counters, and, but for one case in a hundred,
    /// because requests are sampled.
    pub error: f64,
}

/// In how many standard deviations of a sum of samples the true amount is. More than three, because the variance of a few samples is an
/// estimate itself.
const DEVIATIONS: f64 = 4.0;

/// What is known of a key while the workers are added up.
#[derive(Default)]
struct Sum {
    key: HotKey,
    /// By the index of the [`Measure`].
    variances: [f64; Measure::ALL.len()],
}

impl Sum {
    /// The key with the error of sampling in its errors.
    fn with_errors(mut self) -> HotKey {
        for (rate, variance) in self.key.rates.iter_mut().zip(self.variances) {
            if let Some(rate) = rate {
                rate.error += DEVIATIONS * variance.sqrt();
            }
        }
        self.key
    }
}

impl HotReport {
    /// The `limit` hottest keys by a measure, of the rules that `is_wanted` selects, whose shown key `matches`.
    pub fn new(
        workers: &mut [HotKeys],
        now: Instant,
        by: Measure,
        is_wanted: impl Fn(usize) -> bool,
        matches: impl Fn(&[u8]) -> bool,
        limit: usize,
    ) -> HotReport {
        workers.iter_mut().for_each(|hot| hot.decay(now));
        let mut found: HashMap<u64, Sum> = HashMap::new();
        for hot in workers.iter() {
            let seconds = hot.seconds(now).max(1.0);
            for (group, measure) in
                hot.groups().flat_map(|group| Measure::ALL.map(|measure| (group, measure)))
            {
                for (hash, counter) in group.sketch(measure).iter() {
                    if !is_wanted(counter.rule) || !matches(&counter.key) {
                        continue;
                    }
                    let sum = found.entry(hash).or_insert_with(|| Sum {
                        key: HotKey {
                            key: counter.key.clone(),
                            rule: counter.rule,
                            rates: [None; Measure::ALL.len()],
                        },
                        variances: [0.0; Measure::ALL.len()],
                    });
                    let rate = sum.key.rates[measure as usize].get_or_insert_default();
                    rate.value += counter.weight / seconds;
                    rate.error += counter.error / seconds;
                    sum.variances[measure as usize] += counter.variance / (seconds * seconds);
                }
            }
        }
        let rate = |key: &HotKey| key.rates[by as usize].map_or(0.0, |rate| rate.value);
        let keys = found.into_iter().map(|(hash, sum)| (hash, sum.with_errors()));
        let mut keys: Vec<(u64, HotKey)> = keys.filter(|(_, key)| rate(key) > 0.0).collect();
        keys.sort_by(|(_, a), (_, b)| rate(b).total_cmp(&rate(a)).then_with(|| a.key.cmp(&b.key)));
        keys.truncate(limit);
        // What a worker has not among its heaviest keys may have been counted there all the same.
        for hot in workers.iter() {
            let seconds = hot.seconds(now).max(1.0);
            for measure in Measure::ALL {
                let known: HashSet<u64> = hot
                    .groups()
                    .flat_map(|group| group.sketch(measure).iter().map(|(hash, _)| hash))
                    .collect();
                for (hash, key) in &mut keys {
                    let unseen = hot.group_of(key.rule).sketch(measure).unseen() / seconds;
                    if let Some(rate) = key.rates[measure as usize].as_mut().filter(|_| !known.contains(hash))
                    {
                        (rate.value, rate.error) = (rate.value + unseen, rate.error + unseen);
                    }
                }
            }
        }
        let seconds = workers.iter().map(|hot| hot.seconds(now)).fold(0.0, f64::max);
        let counted_one_of = workers.iter().map(HotKeys::counted_one_of).max().unwrap_or(1);
        HotReport { seconds, counted_one_of, keys: keys.into_iter().map(|(_, key)| key).collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hot::{HotSample, Sampler};
    use crate::random::Random;

    fn request(
        hot: &mut HotKeys,
        key: &str,
        rule: usize,
        times: u32,
        bytes: usize,
        miss: bool,
        now: Instant,
    ) {
        (0..times).for_each(|_| sampled(hot, key, rule, 1.0, bytes, miss, now));
    }

    /// One request, which stands for so many.
    fn sampled(
        hot: &mut HotKeys,
        key: &str,
        rule: usize,
        weight: f64,
        bytes: usize,
        miss: bool,
        now: Instant,
    ) {
        let hash = key.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
        let sample = HotSample { hash, rule, weight, bytes, miss, key: key.as_bytes() };
        hot.request(&sample, now, || key.as_bytes().into());
    }

    #[test]
    fn the_error_contains_that_of_sampling() {
        // Requests for one key among others, of which the sampler chooses some: the estimate is as close as it says.
        let (share, runs) = (20, 1_000);
        let mut outside = 0;
        for seed in 0..runs {
            let sampler = Sampler::new(Random::seeded(seed));
            let mut random = Random::seeded(seed + runs);
            let (mut hot, start) = (HotKeys::default(), Instant::now());
            hot.decay(start);
            let (requests, mut own) = (4_000, 0);
            for n in 0..requests {
                let is_own = random.below(share) == 0;
                own += u32::from(is_own);
                if sampler.is_due() {
                    let now = start + Duration::from_secs(1).mul_f64(f64::from(n) / f64::from(requests));
                    let weight = sampler.next(now);
                    sampled(&mut hot, if is_own { "own" } else { "other" }, 0, weight, 0, false, now);
                }
            }
            let end = start + Duration::from_secs(1);
            let report = HotReport::new(
                std::slice::from_mut(&mut hot),
                end,
                Measure::Requests,
                |_| true,
                |key| key == b"own",
                1,
            );
            assert!(report.counted_one_of > 1);
            let rate = report.keys[0].rates[0].unwrap();
            assert!(rate.error > 0.0);
            outside += u32::from((rate.value - f64::from(own)).abs() > rate.error);
        }
        assert!(outside <= 20, "{outside} of {runs}");
    }

    #[test]
    fn keys_are_added_over_the_workers_and_sorted_by_any_measure() {
        let (mut workers, start) = ([HotKeys::default(), HotKeys::default()], Instant::now());
        workers.iter_mut().for_each(|hot| hot.decay(start));
        let now = start + Duration::from_secs(2);
        request(&mut workers[0], "a", 0, 20, 10, false, now);
        request(&mut workers[1], "a", 0, 20, 10, false, now);
        request(&mut workers[0], "big", 1, 2, 10_000, false, now);
        request(&mut workers[1], "cold", 1, 10, 0, true, now);
        let hash = 1;
        workers[0].rebuild(hash, 1, Duration::from_secs(4), now, || b"slow"[..].into());
        let mut report = |by, rule: Option<usize>| {
            let report =
                HotReport::new(&mut workers, now, by, |of| rule.is_none_or(|rule| rule == of), |_| true, 2);
            report
                .keys
                .into_iter()
                .map(|key| {
                    let rate = key.rates[by as usize].unwrap();
                    (String::from_utf8(key.key.into()).unwrap(), rate.value, rate.error)
                })
                .collect::<Vec<_>>()
        };
        let row = |key: &str, value| (key.to_owned(), value, 0.0);
        assert_eq!(report(Measure::Requests, None), [row("a", 20.0), row("cold", 5.0)]);
        assert_eq!(report(Measure::Requests, Some(1)), [row("cold", 5.0), row("big", 1.0)]);
        assert_eq!(report(Measure::Bytes, None), [row("big", 10_000.0), row("a", 200.0)]);
        assert_eq!(report(Measure::Misses, None), [row("cold", 5.0)]);
        assert_eq!(report(Measure::Rebuild, None), [row("slow", 2.0)]);
    }

    #[test]
    fn a_key_that_one_worker_may_have_forgotten_has_a_larger_error() {
        let (mut workers, start) = ([HotKeys::default(), HotKeys::default()], Instant::now());
        workers.iter_mut().for_each(|hot| hot.decay(start));
        let now = start + Duration::from_secs(1);
        request(&mut workers[0], "a", 0, 1000, 0, false, now);
        for n in 0..crate::hot::COUNTERS {
            request(&mut workers[1], &format!("other{n}"), 0, 3, 0, false, now);
        }
        let report = HotReport::new(&mut workers, now, Measure::Requests, |_| true, |_| true, 1);
        assert_eq!(report.keys[0].rates[0], Some(Rate { value: 1003.0, error: 3.0 }));
    }
}
