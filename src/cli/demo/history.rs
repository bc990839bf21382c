//! What the clients have seen, and what follows from it. They see only what any memcached client sees.

use std::time::Duration;

/// What happened to a key, as a letter of its trace. The claim (`L`) and the unlock (`U`) pass between the sidecars and the
/// servers, so no client can note them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// `H`: a value.
    Hit,
    /// `S`: a value, while a newer one was already being built.
    Stale,
    /// `W`: a rebuilt value was stored.
    Fill,
    /// `M`: no value; the client that is told this rebuilds.
    Miss,
}

impl Outcome {
    /// As the trace writes it.
    pub(super) fn char(self) -> char {
        match self {
            Outcome::Hit => 'H',
            Outcome::Stale => 'S',
            Outcome::Fill => 'W',
            Outcome::Miss => 'M',
        }
    }
}

/// A letter, and when, since the start.
pub(super) type Event = (Duration, Outcome);

/// The clients' notes. All times are since the start.
pub(super) struct History {
    /// No value that was stored expires earlier than this.
    lives: Duration,
    keys: Vec<Key>,
    waits: Vec<Duration>,
    failures: usize,
}

#[derive(Default)]
struct Key {
    /// How often it was rebuilt, for each time that it had to be.
    rebuilds: Vec<usize>,
    /// When a value was last sent, since the last expiry.
    filled: Option<Duration>,
    trace: Vec<Event>,
}

impl History {
    /// For so many keys, whose values all have a TTL of `ttl` seconds. memcached lets a TTL of n live for (n−1, n] s.
    pub(super) fn new(keys: usize, ttl: u32) -> History {
        let lives = Duration::from_secs(ttl.saturating_sub(1).into());
        let keys = (0..keys).map(|_| Key::default()).collect();
        History { lives, keys, waits: Vec::new(), failures: 0 }
    }

    /// How often the key has had to be rebuilt so far; the first time, when it is cold, counts as an expiry too.
    pub(super) fn expiries(&self, key: usize) -> usize {
        self.keys[key].rebuilds.len()
    }

    /// A client was told a miss and rebuilds. Gives the number of the expiry that it rebuilds for.
    ///
    /// It is a new expiry only if the value sent last can have expired. Whoever rebuilds earlier, be it beside another or
    /// right behind it, adds to the expiry before: so a guard that lets two of them through cannot look as if it had not.
    pub(super) fn missed(&mut self, key: usize, at: Duration) -> usize {
        let lives = self.lives;
        let key = &mut self.keys[key];
        let expired = key.filled.is_some_and(|sent| at.saturating_sub(sent) >= lives);
        match key.rebuilds.last_mut() {
            Some(rebuilds) if !expired => *rebuilds += 1,
            _ => {
                key.rebuilds.push(1);
                key.filled = None;
            }
        }
        key.trace.push((at, Outcome::Miss));
        key.rebuilds.len()
    }

    /// A client is about to send the value.
    pub(super) fn sending(&mut self, key: usize, at: Duration) {
        self.keys[key].filled = Some(at);
    }

    /// The server has said that it is stored.
    pub(super) fn filled(&mut self, key: usize, at: Duration) {
        self.keys[key].trace.push((at, Outcome::Fill));
    }

    /// A client got a value that was built for the expiry `built`; when it asked, a rebuild for `latest` had begun.
    pub(super) fn hit(&mut self, key: usize, at: Duration, built: usize, latest: usize) {
        let letter = if built < latest { Outcome::Stale } else { Outcome::Hit };
        self.keys[key].trace.push((at, letter));
    }

    /// A client has its value, this long after it asked for it: rebuilt by itself, if need be.
    pub(super) fn served(&mut self, wait: Duration) {
        self.waits.push(wait);
    }

    /// A client got an error, or no answer.
    pub(super) fn failed(&mut self) {
        self.failures += 1;
    }

    /// What it comes to.
    pub(super) fn figures(mut self) -> Figures {
        self.waits.sort_unstable();
        let rebuilds = || self.keys.iter().flat_map(|key| &key.rebuilds);
        Figures {
            requests: self.waits.len(),
            failures: self.failures,
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

/// One side of the demo, as its clients saw it.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// How often a client wanted a value and got it in the end.
    pub(super) requests: usize,
    /// How often it did not.
    pub(super) failures: usize,
    /// How often a key had to be rebuilt: cold at first, then expired.
    pub(super) expiries: usize,
    /// How often one was rebuilt.
    pub(super) rebuilds: usize,
    /// The most rebuilds that one expiry has caused.
    pub(super) most_rebuilds: usize,
    /// Half the clients had their value within this.
    pub(super) p50: Duration,
    /// Ninety-nine in a hundred had.
    pub(super) p99: Duration,
    /// All had.
    pub(super) slowest: Duration,
    /// What happened to the first key.
    pub(super) trace: Vec<Event>,
}

impl Figures {
    /// On average; 0 if nothing had to be rebuilt.
    pub(super) fn rebuilds_per_expiry(&self) -> f64 {
        if self.expiries == 0 { 0.0 } else { self.rebuilds as f64 / self.expiries as f64 }
    }
}

/// The nearest-rank percentile of `sorted`: the least of them that `percent` of a hundred do not exceed. Zero of none.
fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

/// A trace drawn in `columns` equal parts of the time from the start to `until`: of each part the rarest thing that happened,
/// so that one miss is seen among a hundred hits; a space where nothing did.
pub(super) fn timeline(trace: &[Event], until: Duration, columns: usize) -> String {
    let mut drawn = vec![None; columns];
    for &(at, letter) in trace {
        let column = (at.as_secs_f64() / until.as_secs_f64() * columns as f64) as usize;
        if let Some(drawn) = drawn.get_mut(column) {
            *drawn = (*drawn).max(Some(letter));
        }
    }
    drawn.into_iter().map(|letter| letter.map_or(' ', Outcome::char)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<Duration> = (1..=100).map(ms).collect();
        assert_eq!(percentile(&hundred, 50.0), ms(50));
        assert_eq!(percentile(&hundred, 99.0), ms(99));
        assert_eq!(percentile(&hundred, 100.0), ms(100));
        assert_eq!(percentile(&[ms(1), ms(2), ms(9)], 50.0), ms(2));
        assert_eq!(percentile(&[ms(7)], 1.0), ms(7));
        assert_eq!(percentile(&[], 99.0), Duration::ZERO);
    }

    #[test]
    fn rebuilds_beside_one_another_belong_to_one_expiry() {
        let mut ledger = History::new(1, 2);
        assert_eq!([ledger.missed(0, ms(0)), ledger.missed(0, ms(5)), ledger.missed(0, ms(249))], [1, 1, 1]);
        ledger.sending(0, ms(250));
        ledger.sending(0, ms(499));
        // Long after the first was sent, but not after the last.
        assert_eq!(ledger.missed(0, ms(1498)), 1);
        let figures = ledger.figures();
        assert_eq!((figures.expiries, figures.rebuilds, figures.most_rebuilds), (1, 4, 4));
    }

    #[test]
    fn a_second_rebuild_right_behind_the_first_is_not_another_expiry() {
        let mut ledger = History::new(2, 2);
        ledger.missed(0, ms(0));
        ledger.sending(0, ms(250));
        assert_eq!(ledger.missed(0, ms(251)), 1);
        ledger.sending(0, ms(501));
        assert_eq!((ledger.missed(0, ms(1501)), ledger.missed(1, ms(1502))), (2, 1));
        // Nothing has been sent since the second expiry, however long that takes.
        assert_eq!(ledger.missed(0, ms(9000)), 2);
        assert_eq!((ledger.expiries(0), ledger.expiries(1)), (2, 1));
        let figures = ledger.figures();
        assert_eq!((figures.expiries, figures.rebuilds, figures.most_rebuilds), (3, 5, 2));
        assert!((figures.rebuilds_per_expiry() - 5.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_hit_is_stale_only_if_a_rebuild_for_a_later_expiry_had_begun_when_it_was_asked_for() {
        let mut ledger = History::new(1, 2);
        ledger.hit(0, ms(1), 3, 3);
        ledger.hit(0, ms(2), 3, 4);
        // Filled between the question and the answer.
        ledger.hit(0, ms(3), 4, 3);
        ledger.filled(0, ms(4));
        ledger.served(ms(30));
        ledger.served(ms(10));
        ledger.failed();
        let figures = ledger.figures();
        let letters: String = figures.trace.iter().map(|event| event.1.char()).collect();
        assert_eq!(letters, "HSHW");
        assert_eq!((figures.requests, figures.failures), (2, 1));
        assert_eq!((figures.p50, figures.p99, figures.slowest), (ms(10), ms(30), ms(30)));
    }

    #[test]
    fn one_miss_is_seen_in_its_column_among_many_hits() {
        let mut trace: Vec<Event> = (0..300).map(|t| (ms(t), Outcome::Hit)).collect();
        trace.extend([(ms(150), Outcome::Miss), (ms(151), Outcome::Fill), (ms(250), Outcome::Stale)]);
        trace.push((ms(400), Outcome::Fill));
        trace.push((ms(500), Outcome::Miss));
        assert_eq!(timeline(&trace, ms(500), 5), "HMS W");
    }
}
