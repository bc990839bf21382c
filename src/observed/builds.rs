//! Which misses clients are building a value for, in a table of bounded size.
//!
//! A build is a miss and the `set` or `add` of the same key that follows it from the same client. Of the builds of one key that
//! overlap, the one that ends first is the one that a guard would have let a client do; it would have spared the others. The one that
//! missed first, which a guard would choose, may never end: many misses are followed by no store. The overlap is with that one
//! only: of A, B and C, where B overlaps both and C began after A had ended, C would have been built all the same.
//!
//! Each sidecar counts what its own clients do. Overlaps between frontends would need an entry in memcached for each miss, so the
//! number is a lower bound.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::builder::Builder;
use super::renewals::{LastStores, Renewal};

/// The most misses that are remembered. At the limit, each new one replaces an old one.
pub const MAX_OPEN: usize = 32_768;
/// The most misses of one key that are remembered. Further ones are not.
pub const MAX_AT_ONCE: usize = 1024;
/// A store that comes later than this after the miss does not end a build.
pub const MAX_BUILD: Duration = Duration::from_secs(600);
/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 16;
/// For each new miss, so many of the earlier ones are looked at.
const LOOKED_AT: usize = 2;

/// What a store has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// The build that the client's miss had begun.
    Build(Build),
    /// Nothing: only another connection of its peers has missed the key.
    MissOfOther,
    /// Nothing: no miss is known that it follows. What of the key was stored before may be known.
    NoMiss(Option<Renewal>),
}

/// A build that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// The time from the miss to the store.
    pub took: Duration,
    /// Another build of the key, which overlapped with this one, has ended before it.
    pub spared: bool,
    /// How many builds that overlap have ended so far, this one included.
    pub at_once: u64,
    /// The miss was that of another connection.
    pub of_other: bool,
}

/// The misses that may be the beginning of a build. Times are since the start of the process.
#[derive(Debug)]
pub struct OpenBuilds {
    shards: Box<[Mutex<Shard>]>,
    most: usize,
}

#[derive(Debug, Default)]
struct Shard {
    keys: HashMap<u64, KeyBuilds>,
    /// Each miss once, about in the order of their times. Those that have ended remain until they are looked at.
    order: VecDeque<(u64, u64)>,
    open: usize,
    last_stores: LastStores,
}

#[derive(Debug, Default)]
struct KeyBuilds {
    /// The oldest first.
    open: SmallVec<[Miss; 1]>,
    /// When the last build ended that a guard would have let a client do, if others that overlap with it may be open.
    kept: Option<Duration>,
    /// How many builds have ended that overlap with that one, with itself.
    at_once: u64,
}

#[derive(Debug, Clone, Copy)]
struct Miss {
    connection: u64,
    peers: u64,
    at: Duration,
}

impl Default for OpenBuilds {
    fn default() -> OpenBuilds {
        OpenBuilds::with_room(MAX_OPEN)
    }
}

impl OpenBuilds {
    fn with_room(most: usize) -> OpenBuilds {
        OpenBuilds { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), most: most / SHARDS }
    }

    /// A client has missed the key with this hash. Returns whether a miss had to be forgotten for lack of room.
    pub fn missed(&self, key: u64, by: Builder, now: Duration) -> bool {
        let mut shard = self.shard(key);
        let mut forgotten = false;
        for _ in 0..LOOKED_AT {
            let Some((old, connection)) = shard.order.pop_front() else { break };
            let Some(at) = shard.miss(old, connection) else { continue };
            let is_old = now.saturating_sub(at) > MAX_BUILD;
            if is_old || shard.open >= self.most {
                forgotten |= !is_old;
                shard.forget(old, connection);
            } else {
                shard.order.push_back((old, connection));
            }
        }
        let is_full = shard.open >= self.most;
        let known = shard.keys.entry(key).or_default();
        if let Some(miss) = known.open.iter_mut().find(|miss| miss.connection == by.connection) {
            // Nothing has followed the former one.
            miss.at = now;
            return forgotten;
        }
        if is_full || known.open.len() >= MAX_AT_ONCE {
            if known.open.is_empty() {
                shard.keys.remove(&key);
            }
            return true;
        }
        known.open.push(Miss { connection: by.connection, peers: by.peers, at: now });
        shard.open += 1;
        shard.order.push_back((key, by.connection));
        forgotten
    }

    /// A client has stored the key with this hash: the command arrived at `began`, and has been carried out now.
    pub fn stored(&self, key: u64, by: Builder, began: Duration, now: Duration) -> Stored {
        let mut shard = self.shard(key);
        let renewal = shard.last_stores.stored(key, by, now);
        let Some(known) = shard.keys.get_mut(&key) else { return Stored::NoMiss(renewal) };
        let own = known.open.iter().position(|miss| miss.connection == by.connection);
        let ended = match (own, known.open.iter().position(|miss| miss.peers == by.peers)) {
            (Some(own), _) => own,
            (None, Some(other)) if by.pooled => other,
            (None, Some(_)) => return Stored::MissOfOther,
            (None, None) => return Stored::NoMiss(renewal),
        };
        let Miss { at, .. } = known.open.remove(ended);
        let spared = known.kept.is_some_and(|kept| at < kept);
        if spared {
            known.at_once += 1;
        } else {
            (known.kept, known.at_once) = (Some(now), 1);
        }
        let at_once = known.at_once;
        if known.open.is_empty() {
            shard.keys.remove(&key);
        }
        shard.open -= 1;
        let took = began.saturating_sub(at);
        match took <= MAX_BUILD {
            true => Stored::Build(Build { took, spared, at_once, of_other: own.is_none() }),
            false => Stored::NoMiss(None),
        }
    }

    /// A client has deleted the key with this hash.
    pub fn deleted(&self, key: u64, by: Builder, now: Duration) {
        self.shard(key).last_stores.deleted(key, by, now);
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// When this connection missed the key; `None` if that has ended.
    fn miss(&self, key: u64, connection: u64) -> Option<Duration> {
        let known = self.keys.get(&key)?;
        known.open.iter().find(|miss| miss.connection == connection).map(|miss| miss.at)
    }

    fn forget(&mut self, key: u64, connection: u64) {
        let Some(known) = self.keys.get_mut(&key) else { return };
        let before = known.open.len();
        known.open.retain(|miss| miss.connection != connection);
        self.open -= before - known.open.len();
        if known.open.is_empty() {
            self.keys.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(connection: u64) -> Builder {
        Builder { connection, peers: 0, pooled: false }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What has ended: the time that it took in ms, and whether it would have been spared.
    fn stored(builds: &OpenBuilds, key: u64, connection: u64, now: u64) -> Option<(u64, bool)> {
        let build = ended(builds, key, by(connection), now)?;
        Some((u64::try_from(build.took.as_millis()).unwrap(), build.spared))
    }

    fn ended(builds: &OpenBuilds, key: u64, by: Builder, now: u64) -> Option<Build> {
        match builds.stored(key, by, ms(now), ms(now)) {
            Stored::Build(build) => Some(build),
            Stored::MissOfOther | Stored::NoMiss(_) => None,
        }
    }

    #[test]
    fn a_miss_and_the_store_that_follows_it_from_the_same_client_are_a_build() {
        let builds = OpenBuilds::default();
        builds.missed(1, by(1), ms(10));
        assert_eq!(stored(&builds, 2, 1, 20), None, "another key");
        assert_eq!(stored(&builds, 1, 2, 20), None, "another client");
        assert_eq!(stored(&builds, 1, 1, 30), Some((20, false)));
        assert_eq!(stored(&builds, 1, 1, 40), None, "nothing was missed");
        // A client that misses twice began at the second time.
        builds.missed(1, by(1), ms(50));
        builds.missed(1, by(1), ms(60));
        assert_eq!(stored(&builds, 1, 1, 65), Some((5, false)));
        assert_eq!(builds.stored(1, by(1), ms(66), ms(66)), Stored::NoMiss(None));
        builds.missed(1, by(1), ms(70));
        assert_eq!(builds.stored(1, by(2), ms(80), ms(80)), Stored::MissOfOther);
    }

    #[test]
    fn all_but_one_of_the_builds_of_one_key_that_overlap_are_spared() {
        let builds = OpenBuilds::default();
        (1..=5).for_each(|client| assert!(!builds.missed(1, by(client), ms(client))));
        builds.missed(2, by(6), ms(5));
        // One client has missed and builds nothing.
        let all: Vec<_> = (1..5).map(|client| ended(&builds, 1, by(client), 100).unwrap()).collect();
        assert_eq!(all.iter().map(|build| build.spared).collect::<Vec<_>>(), [false, true, true, true]);
        assert_eq!(all.iter().map(|build| build.at_once).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(stored(&builds, 2, 6, 100), Some((95, false)), "another key");
        // The next ones begin after the value was stored.
        builds.missed(1, by(1), ms(200));
        builds.missed(1, by(2), ms(201));
        assert_eq!(stored(&builds, 1, 2, 300), Some((99, false)));
        assert_eq!(stored(&builds, 1, 1, 310), Some((110, true)));
    }

    #[test]
    fn a_store_of_a_pool_ends_the_oldest_miss_of_its_connections() {
        let builds = OpenBuilds::default();
        let of = |connection, peers| Builder { connection, peers, pooled: true };
        builds.missed(1, of(1, 7), ms(0));
        builds.missed(1, of(2, 7), ms(5));
        builds.missed(1, of(3, 8), ms(6));
        let first = ended(&builds, 1, of(4, 7), 10).unwrap();
        assert_eq!((first.took, first.of_other), (ms(10), true));
        let second = ended(&builds, 1, of(2, 7), 10).unwrap();
        assert_eq!((second.took, second.of_other), (ms(5), false));
        assert_eq!(ended(&builds, 1, of(4, 7), 12), None, "the third is of other peers");
    }

    #[test]
    fn the_table_has_a_limit_and_each_miss_at_the_limit_replaces_one() {
        let builds = OpenBuilds::with_room(64);
        let mut forgotten = 0;
        for n in 0..10_000 {
            forgotten += usize::from(builds.missed(n, by(n), ms(n)));
        }
        assert_eq!(forgotten, 10_000 - 64);
        for shard in &builds.shards {
            let shard = shard.lock().unwrap();
            assert_eq!((shard.open, shard.keys.len()), (4, 4));
            assert!(shard.order.len() <= 8, "{}", shard.order.len());
        }
        let known = (0..10_000).filter(|n| stored(&builds, *n, *n, 10_000).is_some()).count();
        assert_eq!(known, 64);
    }

    #[test]
    fn what_has_ended_or_is_too_old_makes_room() {
        let builds = OpenBuilds::with_room(64);
        for n in 0..10_000 {
            assert!(!builds.missed(n, by(1), ms(n)), "{n} is forgotten");
            assert_eq!(stored(&builds, n, 1, n), Some((0, false)));
        }
        assert!(builds.shards.iter().all(|shard| shard.lock().unwrap().order.len() <= 8));
        let late = u64::try_from(MAX_BUILD.as_millis()).unwrap() + 1;
        for round in 1..100 {
            for n in 0..32 {
                assert!(!builds.missed(1000 * round + n, by(1), ms(late * round)), "{n} in round {round}");
            }
        }
    }

    #[test]
    fn a_store_long_after_the_miss_ends_no_build() {
        let builds = OpenBuilds::default();
        builds.missed(1, by(1), ms(0));
        assert_eq!(stored(&builds, 1, 1, 600_001), None);
        assert_eq!(stored(&builds, 1, 1, 600_002), None);
    }

    #[test]
    fn so_many_misses_of_one_key_are_remembered() {
        let builds = OpenBuilds::default();
        let refused = (0..MAX_AT_ONCE as u64 + 10).filter(|n| builds.missed(1, by(*n), ms(0))).count();
        assert_eq!(refused, 10);
        let spared = (0..MAX_AT_ONCE as u64).filter(|n| stored(&builds, 1, *n, 5).unwrap().1).count();
        assert_eq!(spared, MAX_AT_ONCE - 1);
    }
}
