//! The heaviest keys of a stream, in fixed memory: Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent
//! and Top-k Elements in Data Streams", 2005), with counters that decay.
//!
//! Of a stream of total weight N, a sketch of [`COUNTERS`] counters overestimates no key by more than N / [`COUNTERS`], and contains
//! each key whose weight is larger than that. Each counter knows its own largest error. Decay multiplies all counters, so this stays
//! true of the decayed weights. A request that stands for w others adds w(w − 1) of variance; `GET /hot` returns the counter's error and
//! four standard deviations.
//!
//! It is our own because no well-kept crate decays: `topk` 0.7 has one author, and two windows of it forget in steps; `heavykeeper` and
//! others have no bound, or were first released within a year. Count-min needs four times the memory for the same bound. To count only
//! while somebody watches would miss what was hot before. A counted request costs about 600 instructions, and few are counted: 1 % of
//! a hit from 1,000 requests per second and worker on, 0.13 % on a busy worker.

/// The counters of a sketch.
pub const COUNTERS: usize = 128;

/// The heaviest keys by one measure.
#[derive(Debug, Clone, Default)]
pub(super) struct Sketch {
    /// The hashes of the keys, apart from the rest so that a key is found quickly.
    hashes: Vec<u64>,
    counters: Vec<Counter>,
}

/// A key and its weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counter {
    pub(super) key: Box<[u8]>,
    /// The index of its rule.
    pub(super) rule: usize,
    /// At least the weight of the key.
    pub(super) weight: f64,
    /// By how much at most it is larger than the weight of the key.
    pub(super) error: f64,
    /// The variance of the weight, if the stream is a sample of another one.
    pub(super) variance: f64,
}

/// What is added to the weight of a key.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Added {
    pub(super) weight: f64,
    pub(super) variance: f64,
}

impl Added {
    /// A weight that is known.
    pub(super) fn exactly(weight: f64) -> Added {
        Added { weight, variance: 0.0 }
    }

    /// This amount of one request that was chosen at random and stands for `requests`.
    pub(super) fn sampled(amount: f64, requests: f64) -> Added {
        // Each of n requests was chosen with a probability of 1/requests: an unbiased estimate of the variance of the sum.
        Added { weight: amount * requests, variance: amount * amount * requests * (requests - 1.0).max(0.0) }
    }
}

impl Sketch {
    /// Adds to the weight of the key with this hash. `key` returns what is remembered of it.
    pub(super) fn add(&mut self, hash: u64, rule: usize, added: Added, key: impl FnOnce() -> Box<[u8]>) {
        let Added { weight, variance } = added;
        if let Some(at) = self.hashes.iter().position(|known| *known == hash) {
            self.counters[at].weight += weight;
            self.counters[at].variance += variance;
            return;
        }
        if self.counters.len() < COUNTERS {
            self.hashes.push(hash);
            self.counters.push(Counter { key: key(), rule, weight, error: 0.0, variance });
            return;
        }
        let lightest =
            self.counters.iter().enumerate().min_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight));
        if let Some((at, &Counter { weight: error, variance: replaced, .. })) = lightest {
            self.hashes[at] = hash;
            self.counters[at] =
                Counter { key: key(), rule, weight: error + weight, error, variance: replaced + variance };
        }
    }

    /// Multiplies all weights by `factor`, and forgets keys that are lighter than `least` then.
    pub(super) fn decay(&mut self, factor: f64, least: f64) {
        for counter in &mut self.counters {
            counter.weight *= factor;
            counter.error *= factor;
            counter.variance *= factor * factor;
        }
        let mut kept = self.counters.iter().map(|counter| counter.weight >= least);
        self.hashes.retain(|_| kept.next().unwrap_or_default());
        self.counters.retain(|counter| counter.weight >= least);
    }

    /// The most weight that a key which is not in the sketch may have.
    pub(super) fn unseen(&self) -> f64 {
        match self.counters.len() {
            COUNTERS => self.counters.iter().map(|counter| counter.weight).fold(f64::INFINITY, f64::min),
            _ => 0.0,
        }
    }

    /// Its keys with their hashes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Counter)> {
        self.hashes.iter().copied().zip(&self.counters)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::random::Random;

    fn key(hash: u64) -> Box<[u8]> {
        hash.to_string().into_bytes().into()
    }

    #[test]
    fn no_key_is_overestimated_by_more_than_its_error_and_no_heavy_key_is_missing() {
        let mut random = Random::seeded(1);
        let (mut sketch, mut exact, mut total) = (Sketch::default(), HashMap::new(), 0.0);
        for _ in 0..200_000 {
            // Of 5,000 keys, the n-th is drawn about 1/n as often as the first.
            let hash = (5_000_f64.powf(random.unit()) as u64).max(1);
            let weight = (1 + random.below(9)) as f64;
            sketch.add(hash, 0, Added::exactly(weight), || key(hash));
            *exact.entry(hash).or_insert(0.0) += weight;
            total += weight;
        }
        assert_eq!(sketch.iter().count(), COUNTERS);
        for (hash, counter) in sketch.iter() {
            assert_eq!(counter.key, key(hash));
            let weight = exact[&hash];
            assert!(
                weight <= counter.weight && counter.weight - counter.error <= weight,
                "{hash}: {counter:?}"
            );
            assert!(counter.error <= total / COUNTERS as f64);
        }
        for (hash, weight) in exact {
            let is_in = sketch.iter().any(|(known, _)| known == hash);
            assert!(is_in || weight <= sketch.unseen(), "{hash}");
        }
    }

    #[test]
    fn decayed_keys_make_room() {
        let mut sketch = Sketch::default();
        (0..COUNTERS as u64)
            .for_each(|hash| sketch.add(hash, 0, Added::exactly(1.0 + hash as f64), || key(hash)));
        assert_eq!(sketch.unseen(), 1.0);
        sketch.decay(0.5, 32.0);
        let left: Vec<u64> = sketch.iter().map(|(hash, _)| hash).collect();
        assert_eq!(left, (63..COUNTERS as u64).collect::<Vec<_>>());
        assert!(
            sketch.iter().all(
                |(hash, counter)| counter.key == key(hash) && counter.weight == (1.0 + hash as f64) / 2.0
            )
        );
        assert_eq!(sketch.unseen(), 0.0);
        sketch.add(63, 0, Added::exactly(1.0), || unreachable!("it is known"));
    }
}
