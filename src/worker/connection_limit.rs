//! How many clients are connected to the whole process, and how many of them have not authenticated yet.
//!
//! Those that have not may use a quarter of the connections. At that limit, and when all connections are in use, a new client takes the
//! place of the one that has had the longest time to authenticate: so neither those that have authenticated nor those that are
//! about to can be kept out by connections that send nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// One of this many connections may belong to a client that has not authenticated.
const STRANGERS: usize = 4;

/// Limits and numbers the connections of clients. Shared by all workers.
pub struct ConnectionLimit {
    max: AtomicUsize,
    open: AtomicUsize,
    next: AtomicU64,
    /// Those that have not authenticated, by the number of their connection, and what closes them.
    strangers: Mutex<BTreeMap<u64, CancellationToken>>,
}

/// A connection that may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opened {
    /// Which tells it from every other connection since the start.
    pub(super) number: u64,
    /// Whether a client that had not authenticated is disconnected for it.
    pub(super) displaces: bool,
}

impl ConnectionLimit {
    /// Allows `max` connections at a time.
    pub fn new(max: usize) -> ConnectionLimit {
        let (open, next) = (AtomicUsize::new(0), AtomicU64::new(1));
        ConnectionLimit { max: AtomicUsize::new(max), open, next, strangers: Mutex::default() }
    }

    /// From now on, this many connections. Those above it are not closed.
    pub fn set(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// A new connection, unless the limit is reached. `stranger`: closes it, if it must authenticate first.
    pub(super) fn open(&self, stranger: Option<&CancellationToken>) -> Option<Opened> {
        let max = self.max.load(Ordering::Relaxed);
        let too_many = stranger.is_some() && self.strangers().len() >= (max / STRANGERS).max(1);
        let is_full = self.open.fetch_add(1, Ordering::Relaxed) >= max;
        // The connection that gives way is counted until it has been closed.
        let displaces = (too_many || is_full) && self.displace();
        if is_full && !displaces {
            self.close();
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(close) = stranger {
            self.strangers().insert(number, close.clone());
        }
        Some(Opened { number, displaces })
    }

    /// The client has authenticated, or its connection is closed.
    pub(super) fn no_stranger(&self, number: u64) {
        self.strangers().remove(&number);
    }

    /// Closes the connection that has had the longest time to authenticate. Returns whether there was one.
    fn displace(&self) -> bool {
        let oldest = self.strangers().pop_first();
        oldest.map(|(_, close)| close.cancel()).is_some()
    }

    /// Counts a client that another process has accepted, whatever the limit.
    pub fn count_adopted(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of such a client's connection.
    pub(super) fn number_adopted(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many clients are connected.
    pub fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeMap<u64, CancellationToken>> {
        // No panic leaves a change half done.
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(limit: &ConnectionLimit) -> (Option<Opened>, CancellationToken) {
        let close = CancellationToken::new();
        (limit.open(Some(&close)), close)
    }

    #[test]
    fn strangers_take_a_quarter_and_the_oldest_gives_way_to_the_next() {
        let limit = ConnectionLimit::new(8);
        let [first, second, third] = [(); 3].map(|()| stranger(&limit));
        assert_eq!(third.0.map(|opened| opened.displaces), Some(true));
        assert!(first.1.is_cancelled() && !second.1.is_cancelled() && !third.1.is_cancelled());
        // One that has authenticated is no stranger any longer.
        limit.no_stranger(second.0.unwrap().number);
        let fourth = stranger(&limit);
        assert_eq!(fourth.0.map(|opened| opened.displaces), Some(false));
        assert!(!third.1.is_cancelled());
    }

    #[test]
    fn when_all_connections_are_in_use_only_a_stranger_gives_way() {
        let limit = ConnectionLimit::new(2);
        let (_, close) = stranger(&limit);
        assert_eq!(limit.open(None).map(|opened| opened.displaces), Some(false));
        assert_eq!(limit.open(None).map(|opened| opened.displaces), Some(true));
        assert!(close.is_cancelled());
        limit.close();
        assert_eq!(limit.open(None), None);
        assert_eq!((stranger(&limit).0, limit.count()), (None, 2));
    }
}
