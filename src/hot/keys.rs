//! One worker's hot keys: a sketch for each measure and rule, over about the last ten seconds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use super::sketch::{Added, Sketch};

/// The most rules with sketches of their own. The keys of further rules share one group.
pub const MAX_GROUPS: usize = 64;
/// After this time, what was counted counts half.
pub const HALF_LIFE: Duration = Duration::from_secs(5);
/// The weights below which a counter is forgotten, by the index of the [`Measure`]: requests, bytes, misses, seconds, builds.
const LEAST: [f64; Measure::ALL.len()] = [0.05, 5.0, 0.05, 0.000_05, 0.05];

/// By what keys are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// How often a key is requested.
    Requests,
    /// Bytes of values, read and written.
    Bytes,
    /// How many of the requests miss.
    Misses,
    /// Time that clients spent on building the value, in seconds.
    Rebuild,
    /// Builds of an observed key that a guard would have spared.
    Spared,
}

impl Measure {
    /// All, in the order of their indices.
    pub const ALL: [Measure; 5] =
        [Measure::Requests, Measure::Bytes, Measure::Misses, Measure::Rebuild, Measure::Spared];

    /// Its name in queries.
    pub fn word(self) -> &'static str {
        match self {
            Measure::Requests => "requests",
            Measure::Bytes => "bytes",
            Measure::Misses => "misses",
            Measure::Rebuild => "rebuild",
            Measure::Spared => "spared",
        }
    }
}

/// One worker's hot keys.
#[derive(Debug, Clone, Default)]
pub struct HotKeys {
    /// By the index of the rule, at most [`MAX_GROUPS`]; then those of all further rules.
    groups: BTreeMap<usize, Group>,
    others: Group,
    /// When counting began, and up to when the counters have decayed.
    times: Option<Times>,
    /// How many requests the last one that was counted stands for.
    weight: f64,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    began: Instant,
    decayed: Instant,
    /// When they decay next.
    next: Instant,
}

/// The keys of one rule.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    sketches: [Sketch; Measure::ALL.len()],
}

impl Group {
    pub(super) fn sketch(&self, measure: Measure) -> &Sketch {
        &self.sketches[measure as usize]
    }
}

/// What is counted for a key.
#[derive(Debug, Clone, Copy)]
pub struct HotSample<'a> {
    /// The hash of the key, the same on each worker.
    pub hash: u64,
    /// The index of the rule.
    pub rule: usize,
    /// How many requests it stands for.
    pub weight: f64,
    /// The length of the value in bytes, for one request.
    pub bytes: usize,
    /// Whether the request, if it is one, was a miss.
    pub miss: bool,
    /// Key of the sampled request.
    pub key: &'a [u8],
}

impl HotKeys {
    /// Counts a request. `shown` returns what is remembered of the key.
    pub fn request(&mut self, sample: &HotSample<'_>, now: Instant, shown: impl Fn() -> Box<[u8]>) {
        self.decay(now);
        let HotSample { hash, rule, weight, bytes, miss, .. } = *sample;
        self.weight = weight;
        let sketches = &mut self.group(rule).sketches;
        sketches[Measure::Requests as usize].add(hash, rule, Added::sampled(1.0, weight), &shown);
        if bytes > 0 {
            sketches[Measure::Bytes as usize].add(hash, rule, Added::sampled(bytes as f64, weight), &shown);
        }
        if miss {
            sketches[Measure::Misses as usize].add(hash, rule, Added::sampled(1.0, weight), &shown);
        }
    }

    /// Counts a rebuild that has taken so long.
    pub fn rebuild(
        &mut self,
        hash: u64,
        rule: usize,
        took: Duration,
        now: Instant,
        shown: impl Fn() -> Box<[u8]>,
    ) {
        self.decay(now);
        self.group(rule).sketches[Measure::Rebuild as usize].add(
            hash,
            rule,
            Added::exactly(took.as_secs_f64()),
            shown,
        );
    }

    /// Counts a build that a guard would have spared.
    pub fn spared(&mut self, hash: u64, rule: usize, now: Instant, shown: impl Fn() -> Box<[u8]>) {
        self.decay(now);
        self.group(rule).sketches[Measure::Spared as usize].add(hash, rule, Added::exactly(1.0), shown);
    }

    /// Forgets everything: rules have other indices, or keys are shown differently.
    pub fn clear(&mut self) {
        *self = HotKeys::default();
    }

    fn group(&mut self, rule: usize) -> &mut Group {
        let is_full = self.groups.len() >= MAX_GROUPS;
        match self.groups.entry(rule) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => &mut self.others,
            Entry::Vacant(new) => new.insert(Group::default()),
        }
    }

    /// Halves the counters for each [`HALF_LIFE`] that has passed.
    pub(super) fn decay(&mut self, now: Instant) {
        let times = self.times.get_or_insert(Times { began: now, decayed: now, next: now + HALF_LIFE });
        if now < times.next {
            return;
        }
        let halvings = now.saturating_duration_since(times.decayed).as_nanos() / HALF_LIFE.as_nanos();
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        times.decayed += HALF_LIFE.saturating_mul(halvings);
        times.next = times.decayed + HALF_LIFE;
        let factor = 0.5_f64.powf(f64::from(halvings));
        for group in self.groups.values_mut().chain([&mut self.others]) {
            group.sketches.iter_mut().zip(LEAST).for_each(|(sketch, least)| sketch.decay(factor, least));
        }
        self.groups.retain(|_, group| group.sketches.iter().any(|sketch| sketch.iter().next().is_some()));
    }

    /// Over how many seconds the counters reach, so that a weight divided by this is a rate. 0: nothing was counted.
    pub(super) fn seconds(&self, now: Instant) -> f64 {
        let Some(Times { began, decayed, .. }) = self.times else { return 0.0 };
        let half = HALF_LIFE.as_secs_f64();
        let halvings = decayed.saturating_duration_since(began).as_secs_f64() / half;
        // The sum of half, a quarter, … of a half-life, for each that has passed.
        half * (1.0 - 0.5_f64.powf(halvings)) + now.saturating_duration_since(decayed).as_secs_f64()
    }

    /// One of how many requests is counted.
    pub(super) fn counted_one_of(&self) -> u32 {
        (self.weight as u32).max(1)
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().chain([&self.others])
    }

    /// The group that has the keys of this rule.
    pub(super) fn group_of(&self, rule: usize) -> &Group {
        self.groups.get(&rule).unwrap_or(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(key: &[u8], rule: usize) -> HotSample<'_> {
        let hash = key.iter().fold(7, |hash: u64, byte| hash * 31 + u64::from(*byte));
        HotSample { hash, rule, weight: 1.0, bytes: 100, miss: false, key }
    }

    #[test]
    fn a_steady_stream_has_its_rate_however_long_it_lasts() {
        let (mut hot, start) = (HotKeys::default(), Instant::now());
        for ms in 0..60_000 {
            let now = start + Duration::from_millis(ms);
            hot.request(&sample(b"k", 0), now, || b"k"[..].into());
            if ms % 500 == 0 && ms > 2_000 {
                let weight: f64 =
                    hot.group_of(0).sketch(Measure::Requests).iter().map(|(_, k)| k.weight).sum();
                let rate = weight / hot.seconds(now);
                assert!((rate - 1000.0).abs() < 20.0, "{rate} at {ms}");
            }
        }
    }

    #[test]
    fn what_is_no_longer_requested_is_forgotten() {
        let (mut hot, start) = (HotKeys::default(), Instant::now());
        (0..100).for_each(|_| hot.request(&sample(b"k", 3), start, || b"k"[..].into()));
        let count = |hot: &HotKeys| {
            hot.groups().map(|group| group.sketch(Measure::Requests).iter().count()).sum::<usize>()
        };
        assert_eq!(count(&hot), 1);
        hot.decay(start + HALF_LIFE * 5);
        assert_eq!(count(&hot), 1);
        hot.decay(start + HALF_LIFE * 12);
        assert_eq!(count(&hot), 0);
        assert!(hot.groups.is_empty());
    }

    #[test]
    fn so_many_rules_have_sketches_of_their_own_and_the_others_share_one_group() {
        let (mut hot, now) = (HotKeys::default(), Instant::now());
        for rule in 0..MAX_GROUPS + 5 {
            let key = rule.to_string();
            hot.request(&sample(key.as_bytes(), rule), now, || key.as_bytes().into());
        }
        assert_eq!(hot.groups.len(), MAX_GROUPS);
        assert_eq!(hot.others.sketch(Measure::Requests).iter().count(), 5);
        let shared = hot.group_of(MAX_GROUPS + 1).sketch(Measure::Requests);
        assert!(shared.iter().any(|(_, counter)| counter.rule == MAX_GROUPS + 1));
    }
}
