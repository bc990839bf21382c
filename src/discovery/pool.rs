//! What is known about the entries of a pool.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::list::{self, Found};
use super::lookup::Answer;
use super::settling::{Phase, Settling, Step};
use crate::clock::unix_ms;
use crate::metrics::DiscoveredEntry;
use crate::upstream::{Lookup, PoolSpec};

/// A pool with such entries.
pub(super) struct Pool {
    /// Its index in the configuration.
    pub(super) at: usize,
    pub(super) settling: Settling<Found>,
    /// What was in use before the latest change, until all sidecars have completed that.
    pub(super) former: Option<(Found, Duration)>,
    pub(super) entries: Vec<Entry>,
}

/// An entry of a pool.
pub(super) struct Entry {
    pub(super) lookup: Lookup,
    /// What was found last.
    pub(super) answer: Option<Answer>,
    /// An older version of a cluster, and since when it is the answer.
    pub(super) older: Option<(u64, Instant)>,
    /// When it is looked up next; `None` while it is.
    pub(super) next: Option<Instant>,
    /// How often in a row it was not found.
    pub(super) failed: u32,
    pub(super) shown: DiscoveredEntry,
}

impl Pool {
    /// The entries of a pool as it is written, the pool of index `at`; `None` if it has none. They are looked up `now`.
    pub(super) fn new(at: usize, written: &PoolSpec, settle: Duration, now: Instant) -> Option<Pool> {
        let mut lookups: Vec<&Lookup> = Vec::new();
        written.lookups().for_each(|lookup| {
            if !lookups.contains(&lookup) {
                lookups.push(lookup);
            }
        });
        let entry = |lookup: &Lookup| Entry {
            lookup: lookup.clone(),
            answer: None,
            older: None,
            next: Some(now),
            failed: 0,
            shown: DiscoveredEntry { entry: lookup.to_string(), ..DiscoveredEntry::default() },
        };
        let entries: Vec<_> = lookups.into_iter().map(entry).collect();
        let settling = Settling::new(settle, None);
        (!entries.is_empty()).then_some(Pool { at, settling, former: None, entries })
    }

    /// What all entries stand for, if all are known.
    pub(super) fn latest(&self) -> Option<Found> {
        let known = |entry: &Entry| Some((entry.lookup.clone(), entry.answer.as_ref()?.servers.clone()));
        self.entries.iter().map(known).collect()
    }

    /// What the other entries stand for.
    pub(super) fn latest_but(&self, lookup: &Lookup) -> Found {
        let others = self.entries.iter().filter(|entry| entry.lookup != *lookup);
        let known = |entry: &Entry| Some((entry.lookup.clone(), entry.answer.as_ref()?.servers.clone()));
        others.filter_map(known).collect()
    }
}

impl Entry {
    /// The version of a cluster must not go back. If it stays there, the cluster has been made anew.
    pub(super) fn check_version(
        &mut self,
        answer: &Answer,
        now: Instant,
        settle: Duration,
    ) -> Result<(), String> {
        let known = self.answer.as_ref().and_then(|known| known.version);
        let (Some(version), Some(known)) = (answer.version, known) else { return Ok(()) };
        if version >= known {
            self.older = None;
            return Ok(());
        }
        let (_, since) = *self.older.filter(|(older, _)| *older == version).get_or_insert((version, now));
        self.older = Some((version, since));
        match now >= since + 2 * settle {
            true => Ok(()),
            false => {
                Err(format!("version {version} of the cluster is older than {known}, which was read before"))
            }
        }
    }

    pub(super) fn succeeded(&mut self, pool: &str, answer: Answer) {
        let entry = &self.shown.entry;
        if self.failed > 0 {
            info!(pool, %entry, failed = self.failed, "servers are found again");
        }
        let ignored = self.answer.as_ref().map(|known| &known.ignored);
        for why in answer.ignored.iter().filter(|why| ignored.is_none_or(|known| !known.contains(why))) {
            warn!(pool, %entry, "passed over: {why}");
        }
        debug!(pool, %entry, servers = answer.servers.len(), "looked up");
        (self.failed, self.older) = (0, None);
        self.shown.error = None;
        self.shown.servers = answer.servers.len();
        self.shown.last_success_ms = Some(unix_ms());
        self.answer = Some(answer);
    }

    pub(super) fn failed(&mut self, pool: &str, why: String) {
        let entry = &self.shown.entry;
        if self.failed == 0 {
            match &self.answer {
                Some(known) => {
                    let servers = known.servers.len();
                    warn!(pool, %entry, %why, servers, "no servers are found; those that were found last remain in use");
                }
                None => {
                    warn!(pool, %entry, %why, "no servers are found; until they are, every key of the pool is a miss")
                }
            }
        }
        self.failed = self.failed.saturating_add(1);
        self.shown.failures += 1;
        self.shown.error = Some(why);
    }
}

/// Logs a phase that is in force from now on.
pub(super) fn log_phase(written: &PoolSpec, phase: &Phase<Found>, settle: Duration) {
    let pool = &written.name;
    let compose = |found: &Found| list::compose(&written.servers, found).unwrap_or_default();
    match phase {
        Phase::Unknown => {}
        Phase::Settled(found) => {
            let servers = compose(found);
            info!(pool, servers = servers.len(), "the servers that were found are in use, and no others");
        }
        Phase::Changing(from, to, step) => {
            let (number, difference) = (step.number(), list::difference(&compose(from), &compose(to)));
            let effect = match step {
                Step::Next => "keys are read from the former servers, and invalidated in both lists",
                Step::TakeOver => {
                    "keys are read from the new servers, which take over what they lack, and invalidated in both lists"
                }
                Step::Previous => "keys are read from the new servers, and invalidated in both lists",
            };
            info!(pool, step = number, ?settle, "the servers change: {difference}; {effect}");
        }
    }
}
