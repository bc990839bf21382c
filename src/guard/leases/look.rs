//! What the table knows, for operators.

use crate::guard::inputs::Now;

use super::entry::EntryKind;
use super::table::Leases;

/// What the table knows of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyLook {
    /// The leases that clients of this sidecar hold.
    pub leases: Vec<LeaseLook>,
    /// The misses without a lease that still count.
    pub misses: usize,
    /// The requests that wait for another client's build.
    pub waiters: usize,
    /// How often in a row it was claimed and not filled.
    pub unfilled: u8,
    /// For how many milliseconds no reader waits for it, because it was claimed and not filled twice in a row.
    pub no_wait_ms: u64,
}

/// What an explanation shows of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLook {
    /// The number of the client's connection.
    pub connection: u64,
    /// The wall-clock millisecond at which it was granted.
    pub since: u64,
    /// Milliseconds until it ends unless it is filled.
    pub ends_in_ms: u64,
    /// Whether a renewal is in progress.
    pub renewing: bool,
    /// The client has disconnected, and the lease ends with the renewal in progress.
    pub orphan: bool,
}

/// A key whose value is being built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLease {
    /// Key that is leased.
    pub key: Box<[u8]>,
    /// When the lease was granted, on the monotonic clock in ms.
    pub since: u64,
    /// The requests that wait for the build.
    pub waiters: usize,
}

impl<W> Leases<W> {
    /// The leases that clients hold, `limit` at most: those that were granted first. Changes nothing.
    pub fn live(&self, limit: usize) -> Vec<LiveLease> {
        // Copies only the keys that are returned.
        let mut found = Vec::new();
        for (key, state) in &self.keys {
            for entry in state.entries.iter().filter(|entry| entry.is_lease()) {
                found.push((entry.token.at.mono, &**key, state.waiters.len()));
            }
        }
        found.sort_unstable_by_key(|(since, ..)| *since);
        found.truncate(limit);
        let live = |(since, key, waiters): (u64, &[u8], usize)| LiveLease { key: key.into(), since, waiters };
        found.into_iter().map(live).collect()
    }

    /// What is known of this key. Changes nothing.
    pub fn look(&self, key: &[u8], now: Now) -> KeyLook {
        let Some(state) = self.keys.get(key) else { return KeyLook::default() };
        let mut look = KeyLook { waiters: state.waiters.len(), ..KeyLook::default() };
        if state.remember_until > now.mono {
            look.unfilled = state.unfilled;
            look.no_wait_ms = if state.unfilled >= 2 { state.remember_until - now.mono } else { 0 };
        }
        for entry in &state.entries {
            match entry.kind {
                EntryKind::Lease { renewing, orphan } => look.leases.push(LeaseLook {
                    connection: entry.owner.connection,
                    since: entry.token.at.wall,
                    ends_in_ms: entry.ends().saturating_sub(now.mono),
                    renewing,
                    orphan,
                }),
                EntryKind::Miss if entry.ends() > now.mono => look.misses += 1,
                _ => {}
            }
        }
        look
    }
}
