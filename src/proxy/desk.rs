//! The leases and waiters that all workers of the process share.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::guard::Now;
use crate::guard::leases::Leases;
use crate::metrics::WaitEnd;

/// Wakes one waiter, and says why.
pub(super) type WaitSender = oneshot::Sender<WaitEnd>;

const SHARDS: usize = 16;

/// The table of leases, cut by key so that two workers seldom want the same lock. Nothing on the hit path comes here.
pub struct LeaseTable {
    shards: [Mutex<Leases<WaitSender>>; SHARDS],
    hasher: RandomState,
}

impl LeaseTable {
    /// An empty table, whose tickets may take so many bytes.
    pub fn new(max_bytes: usize) -> LeaseTable {
        let shards = [(); SHARDS].map(|()| Mutex::new(Leases::new(max_bytes / SHARDS)));
        LeaseTable { shards, hasher: RandomState::new() }
    }

    /// The part of the table that knows this key.
    pub(super) fn of(&self, key: &[u8]) -> MutexGuard<'_, Leases<WaitSender>> {
        let at = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.shards[at])
    }

    /// Every part in turn.
    pub(super) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Leases<WaitSender>>> {
        self.shards.iter().map(lock)
    }

    /// Forgets what nothing may refer to any more. Returns how many tickets have had to make room since it was called last.
    pub fn sweep(&self, now: Now) -> u64 {
        let sweep = |mut leases: MutexGuard<'_, Leases<WaitSender>>| {
            leases.sweep(now);
            leases.take_evicted()
        };
        self.all().map(sweep).sum()
    }
}

/// Rings for those who waited. Not to be called with the table locked: they may be on this very thread.
pub(super) fn wake_all(bells: Vec<WaitSender>, why: WaitEnd) {
    for bell in bells {
        // Whoever has stopped waiting has dropped the other end.
        let _ = bell.send(why);
    }
}

fn lock(shard: &Mutex<Leases<WaitSender>>) -> MutexGuard<'_, Leases<WaitSender>> {
    // Every change to the table is whole before anything can panic.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
