//! What the clients observe, and the figures computed from it. They observe only what any memcached client does.

use std::time::Duration;

/// An event of a key, shown as a letter in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// `H`: a client received a value.
    Hit,
    /// `S`: a client received a value while a newer one was being built.
    Stale,
    /// `W`: a client stored a rebuilt value.
    Fill,
    /// `M`: a client received a miss, and rebuilds.
    Miss,
}

impl Outcome {
    pub(super) fn char(self) -> char {
        match self {
            Outcome::Hit => 'H',
            Outcome::Stale => 'S',
            Outcome::Fill => 'W',
            Outcome::Miss => 'M',
        }
    }
}

/// The time since the start, and what happened.
pub(super) type Event = (Duration, Outcome);

/// What all clients observed. All times are since the start.
pub(super) struct History {
    /// The shortest time from storing a value to its expiry.
    min_lifetime: Duration,
    keys: Vec<Key>,
    waits: Vec<Duration>,
    failures: usize,
    refused: usize,
}

#[derive(Default)]
struct Key {
    /// The number of rebuilds for each expiry.
    rebuilds: Vec<usize>,
    /// When a value was last sent since the last expiry.
    sent: Option<Duration>,
    trace: Vec<Event>,
}

impl History {
    /// An empty history of `keys` keys, whose values have a TTL of `ttl` seconds. In memcached, a TTL of n ends after (n−1, n] s.
    pub(super) fn new(keys: usize, ttl: u32) -> History {
        let min_lifetime = Duration::from_secs(ttl.saturating_sub(1).into());
        let keys = (0..keys).map(|_| Key::default()).collect();
        History { min_lifetime, keys, waits: Vec::new(), failures: 0, refused: 0 }
    }

    /// The number of expiries of the key so far. The cold start counts as one.
    pub(super) fn expiries(&self, key: usize) -> usize {
        self.keys[key].rebuilds.len()
    }

    /// A client received a miss and rebuilds. Returns the number of the expiry that it rebuilds for.
    ///
    /// This is a new expiry only if the last value can have expired. An earlier rebuild, concurrent with another or directly
    /// after it, counts for the previous expiry. Therefore a guard that allows two rebuilds cannot appear to allow one.
    pub(super) fn missed(&mut self, key: usize, at: Duration) -> usize {
        let min_lifetime = self.min_lifetime;
        let key = &mut self.keys[key];
        let expired = key.sent.is_some_and(|sent| at.saturating_sub(sent) >= min_lifetime);
        match key.rebuilds.last_mut() {
            Some(rebuilds) if !expired => *rebuilds += 1,
            _ => {
                key.rebuilds.push(1);
                key.sent = None;
            }
        }
        key.trace.push((at, Outcome::Miss));
        key.rebuilds.len()
    }

    /// A client is about to send the value.
    pub(super) fn sending(&mut self, key: usize, at: Duration) {
        self.keys[key].sent = Some(at);
    }

    /// The server acknowledged that the value is stored.
    pub(super) fn stored(&mut self, key: usize, at: Duration) {
        self.keys[key].trace.push((at, Outcome::Fill));
    }

    /// A rebuilt value was not stored: the sidecar said so.
    pub(super) fn refused(&mut self) {
        self.refused += 1;
    }

    /// A client received a value built for the expiry `built`. When it sent its request, a rebuild for `latest` had begun.
    pub(super) fn hit(&mut self, key: usize, at: Duration, built: usize, latest: usize) {
        let outcome = if built < latest { Outcome::Stale } else { Outcome::Hit };
        self.keys[key].trace.push((at, outcome));
    }

    /// A client has its value, received or rebuilt by itself, `wait` after its request.
    pub(super) fn served(&mut self, wait: Duration) {
        self.waits.push(wait);
    }

    /// A client received an error, or no reply.
    pub(super) fn failed(&mut self) {
        self.failures += 1;
    }

    pub(super) fn figures(mut self) -> Figures {
        self.waits.sort_unstable();
        let rebuilds = || self.keys.iter().flat_map(|key| &key.rebuilds);
        Figures {
            requests: self.waits.len(),
            failures: self.failures,
            refused: self.refused,
            expiries: rebuilds().count(),
            rebuilds: rebuilds().sum(),
            most_rebuilds: rebuilds().copied().max().unwrap_or(0),
            p50: percentile(&self.waits, 50.0),
            p99: percentile(&self.waits, 99.0),
            slowest: percentile(&self.waits, 100.0),
            trace: self.keys.into_iter().next().map(|key| key.trace).unwrap_or_default(),
        }
    }
}

/// The figures of one run.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// Requests for a value that succeeded, possibly after a rebuild.
    pub(super) requests: usize,
    /// Requests for a value that failed.
    pub(super) failures: usize,
    /// Rebuilt values that could not be stored.
    pub(super) refused: usize,
    /// Times that a key had to be rebuilt: at the cold start, then after expiries.
    pub(super) expiries: usize,
    pub(super) rebuilds: usize,
    /// The most rebuilds for one expiry.
    pub(super) most_rebuilds: usize,
    /// The median time until a client had its value.
    pub(super) p50: Duration,
    /// The 99th percentile.
    pub(super) p99: Duration,
    pub(super) slowest: Duration,
    /// The events of the first key.
    pub(super) trace: Vec<Event>,
}

impl Figures {
    /// The average; 0 without expiries.
    pub(super) fn rebuilds_per_expiry(&self) -> f64 {
        if self.expiries == 0 { 0.0 } else { self.rebuilds as f64 / self.expiries as f64 }
    }
}

/// The nearest-rank percentile of `sorted`; zero if it is empty.
fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

/// Draws a trace in `columns` equal parts of the time from the start to `until`. A column shows the rarest event in it, so that
/// one miss is visible among many hits, or a space if there is none.
pub(super) fn timeline(trace: &[Event], until: Duration, columns: usize) -> String {
    let mut drawn = vec![None; columns];
    for &(at, outcome) in trace {
        let column = (at.as_secs_f64() / until.as_secs_f64() * columns as f64) as usize;
        if let Some(drawn) = drawn.get_mut(column) {
            *drawn = (*drawn).max(Some(outcome));
        }
    }
    drawn.into_iter().map(|outcome| outcome.map_or(' ', Outcome::char)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn percentiles_are_measured_values() {
        let hundred: Vec<Duration> = (1..=100).map(ms).collect();
        assert_eq!(percentile(&hundred, 50.0), ms(50));
        assert_eq!(percentile(&hundred, 99.0), ms(99));
        assert_eq!(percentile(&hundred, 100.0), ms(100));
        assert_eq!(percentile(&[ms(1), ms(2), ms(9)], 50.0), ms(2));
        assert_eq!(percentile(&[ms(7)], 1.0), ms(7));
        assert_eq!(percentile(&[], 99.0), Duration::ZERO);
    }

    #[test]
    fn concurrent_rebuilds_belong_to_one_expiry() {
        let mut history = History::new(1, 2);
        assert_eq!(
            [history.missed(0, ms(0)), history.missed(0, ms(5)), history.missed(0, ms(249))],
            [1, 1, 1]
        );
        history.sending(0, ms(250));
        history.sending(0, ms(499));
        // Long after the first value was sent, but not after the last.
        assert_eq!(history.missed(0, ms(1498)), 1);
        let figures = history.figures();
        assert_eq!((figures.expiries, figures.rebuilds, figures.most_rebuilds), (1, 4, 4));
    }

    #[test]
    fn a_second_rebuild_directly_after_the_first_is_not_another_expiry() {
        let mut history = History::new(2, 2);
        history.missed(0, ms(0));
        history.sending(0, ms(250));
        assert_eq!(history.missed(0, ms(251)), 1);
        history.sending(0, ms(501));
        assert_eq!((history.missed(0, ms(1501)), history.missed(1, ms(1502))), (2, 1));
        // No value was sent since the second expiry.
        assert_eq!(history.missed(0, ms(9000)), 2);
        assert_eq!((history.expiries(0), history.expiries(1)), (2, 1));
        let figures = history.figures();
        assert_eq!((figures.expiries, figures.rebuilds, figures.most_rebuilds), (3, 5, 2));
        assert!((figures.rebuilds_per_expiry() - 5.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_hit_is_stale_only_if_a_rebuild_for_a_later_expiry_had_begun_at_the_request() {
        let mut history = History::new(1, 2);
        history.hit(0, ms(1), 3, 3);
        history.hit(0, ms(2), 3, 4);
        // Stored between the request and the reply.
        history.hit(0, ms(3), 4, 3);
        history.stored(0, ms(4));
        history.served(ms(30));
        history.served(ms(10));
        history.failed();
        history.refused();
        let figures = history.figures();
        let letters: String = figures.trace.iter().map(|event| event.1.char()).collect();
        assert_eq!(letters, "HSHW");
        assert_eq!((figures.requests, figures.failures, figures.refused), (2, 1, 1));
        assert_eq!((figures.p50, figures.p99, figures.slowest), (ms(10), ms(30), ms(30)));
    }

    #[test]
    fn one_miss_is_visible_among_many_hits() {
        let mut trace: Vec<Event> = (0..300).map(|t| (ms(t), Outcome::Hit)).collect();
        trace.extend([(ms(150), Outcome::Miss), (ms(151), Outcome::Fill), (ms(250), Outcome::Stale)]);
        trace.push((ms(400), Outcome::Fill));
        trace.push((ms(500), Outcome::Miss));
        assert_eq!(timeline(&trace, ms(500), 5), "HMS W");
    }
}
