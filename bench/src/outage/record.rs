//! What the clients note, and what it says about each second.

use std::time::Duration;

/// What one client, or all of them, noted. All times are since the start.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) reads: Vec<Read>,
    pub(crate) builds: Vec<Build>,
    /// When a set was refused: an error, no reply, or no connection.
    pub(crate) refused: Vec<Duration>,
}

impl Notes {
    pub(crate) fn extend(&mut self, other: Notes) {
        self.reads.extend(other.reads);
        self.builds.extend(other.builds);
        self.refused.extend(other.refused);
    }
}

/// One get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    /// When its reply had arrived, or it had failed.
    pub(crate) end: Duration,
    pub(crate) took: Duration,
    /// Whether the key's server is one of those that do not fail.
    pub(crate) of_others: bool,
    pub(crate) outcome: Outcome,
}

/// What a get returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Hit,
    /// A value although a later build was stored before the request.
    Old,
    /// A value whose build began before a delete that was acknowledged before the request.
    Deleted,
    Miss,
    /// An error, no reply, or no connection. The client builds, as after a miss.
    Failed,
}

/// One build of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Build {
    pub(crate) key: usize,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

/// One second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Second {
    /// Gets that ended.
    pub(crate) reads: usize,
    /// Of these, with a value, including the two below.
    pub(crate) hits: usize,
    pub(crate) old: usize,
    pub(crate) deleted: usize,
    pub(crate) failed: usize,
    /// Builds that began.
    pub(crate) builds: usize,
    /// The most builds of one key that ran at once.
    pub(crate) at_once: usize,
    /// Sets that were refused.
    pub(crate) refused: usize,
    /// The 99th percentile of the gets of keys whose server does not fail.
    pub(crate) p99: Duration,
}

impl Second {
    /// The share of gets that returned a value, in percent.
    pub(crate) fn hit_ratio(&self) -> f64 {
        if self.reads == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.reads as f64 }
    }
}

/// The seconds from 0 to `total`.
pub(crate) fn by_second(notes: &Notes, total: usize) -> Vec<Second> {
    let mut seconds = vec![Second::default(); total];
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); total];
    let at = |time: Duration| time.as_secs() as usize;
    for read in &notes.reads {
        let Some(second) = seconds.get_mut(at(read.end)) else { continue };
        second.reads += 1;
        second.hits += usize::from(!matches!(read.outcome, Outcome::Miss | Outcome::Failed));
        second.old += usize::from(read.outcome == Outcome::Old);
        second.deleted += usize::from(read.outcome == Outcome::Deleted);
        second.failed += usize::from(read.outcome == Outcome::Failed);
        if read.of_others {
            times[at(read.end)].push(read.took);
        }
    }
    for refused in &notes.refused {
        if let Some(second) = seconds.get_mut(at(*refused)) {
            second.refused += 1;
        }
    }
    for build in &notes.builds {
        let running = |moment: Duration| {
            let runs = |other: &&Build| other.key == build.key && (other.begin..other.end).contains(&moment);
            notes.builds.iter().filter(runs).count()
        };
        if let Some(second) = seconds.get_mut(at(build.begin)) {
            second.builds += 1;
        }
        // The number only grows at the beginning of a build; a second begins with what runs from the one before.
        let boundaries =
            (at(build.begin) + 1..=at(build.end)).map(|second| Duration::from_secs(second as u64));
        for moment in std::iter::once(build.begin).chain(boundaries) {
            if let Some(second) = seconds.get_mut(at(moment)) {
                second.at_once = second.at_once.max(running(moment));
            }
        }
    }
    for (second, times) in seconds.iter_mut().zip(&mut times) {
        times.sort_unstable();
        let rank = (times.len() as f64 * 0.99).ceil() as usize;
        second.p99 = times.get(rank.max(1) - 1).copied().unwrap_or_default();
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn read(end: u64, took: u64, of_others: bool, outcome: Outcome) -> Read {
        Read { end: ms(end), took: ms(took), of_others, outcome }
    }

    #[test]
    fn each_second_has_the_reads_that_ended_in_it_and_the_p99_of_the_other_servers_keys() {
        let mut reads: Vec<Read> = (1..=100).map(|n| read(n, n, true, Outcome::Hit)).collect();
        reads.push(read(999, 900, false, Outcome::Failed));
        reads.extend([read(1000, 3, true, Outcome::Old), read(1500, 1, true, Outcome::Miss)]);
        reads.push(read(2000, 1, true, Outcome::Hit));
        reads.push(read(1700, 1, false, Outcome::Deleted));
        let seconds = by_second(&Notes { reads, refused: vec![ms(1999)], ..Notes::default() }, 2);
        assert_eq!((seconds[0].reads, seconds[0].hits, seconds[0].failed), (101, 100, 1));
        assert_eq!((seconds[0].p99, seconds[1].p99), (ms(99), ms(3)));
        assert_eq!((seconds[1].reads, seconds[1].hits, seconds[1].old, seconds[1].refused), (3, 2, 1, 1));
        assert_eq!((seconds[1].deleted, seconds[1].hit_ratio().round()), (1, 67.0));
    }

    #[test]
    fn builds_of_one_key_at_once_are_counted_in_every_second_in_which_they_run() {
        let build = |key, begin, end| Build { key, begin: ms(begin), end: ms(end) };
        let builds = vec![
            build(1, 100, 300),
            build(1, 250, 450),
            // Ends as the next begins.
            build(2, 100, 300),
            build(2, 300, 500),
            build(1, 900, 1100),
            build(1, 950, 2050),
            build(1, 1050, 1200),
        ];
        let seconds = by_second(&Notes { builds, ..Notes::default() }, 4);
        let counts: Vec<_> = seconds.iter().map(|second| (second.builds, second.at_once)).collect();
        assert_eq!(counts, [(6, 2), (1, 3), (0, 1), (0, 0)]);
    }
}
