//! The leases and waiters that all workers of the process share, in shards by key.

use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::key_hash::KeyHasher;
use crate::guard::Now;
use crate::guard::leases::{Leases, LiveLease};
use crate::metrics::WaitEnd;

/// Wakes one waiter with the reason.
pub(crate) type WaitSender = oneshot::Sender<WaitEnd>;

pub(crate) const SHARDS: usize = 16;

/// The lease table. It is sharded by key so that two workers rarely contend for a lock. Hits do not use it.
pub struct LeaseTable {
    shards: [Mutex<Leases<WaitSender>>; SHARDS],
    hasher: KeyHasher,
}

impl LeaseTable {
    /// An empty table whose miss tokens may take up to `max_bytes`.
    pub fn new(max_bytes: usize) -> LeaseTable {
        let shards = [(); SHARDS].map(|()| Mutex::new(Leases::new(max_bytes / SHARDS)));
        LeaseTable { shards, hasher: KeyHasher::new() }
    }

    /// From now on, miss tokens may take up to `max_bytes`.
    pub fn set_max_bytes(&self, max_bytes: usize) {
        self.all().for_each(|mut leases| leases.set_max_bytes(max_bytes / SHARDS));
    }

    /// The shard of this key, locked.
    pub(crate) fn shard(&self, key: &[u8]) -> MutexGuard<'_, Leases<WaitSender>> {
        let at = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.shards[at])
    }

    /// Each shard in turn, locked.
    pub(crate) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Leases<WaitSender>>> {
        self.shards.iter().map(lock)
    }

    /// Whether a connection with this [`peers`](crate::guard::leases::Owner::peers) holds a lease.
    pub(crate) fn has_lease_of(&self, peers: u64) -> bool {
        self.all().any(|leases| leases.has_lease_of(peers))
    }

    /// The leases that clients hold, those granted first, `limit` at most. Locks one shard after the other.
    pub fn live(&self, limit: usize) -> Vec<LiveLease> {
        let mut live: Vec<_> = self.all().flat_map(|leases| leases.live(limit)).collect();
        live.sort_by_key(|lease| lease.since);
        live.truncate(limit);
        live
    }

    /// Removes some of the expired entries of a shard. Returns whether it must be called again.
    pub(crate) fn sweep(&self, shard: usize, now: Now) -> bool {
        lock(&self.shards[shard]).sweep(now)
    }

    /// How many miss tokens have been evicted since the last call.
    pub(crate) fn take_evicted(&self) -> u64 {
        self.all().map(|mut leases| leases.take_evicted()).sum()
    }
}

/// Wakes these waiters. Must not be called with a shard locked: a waiter may run on this thread.
pub(crate) fn wake_all(waiters: Vec<WaitSender>, why: WaitEnd) {
    for waiter in waiters {
        // The receiver is gone if the waiter has given up.
        let _ = waiter.send(why);
    }
}

fn lock(shard: &Mutex<Leases<WaitSender>>) -> MutexGuard<'_, Leases<WaitSender>> {
    // No panic leaves a change to the table half done.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
