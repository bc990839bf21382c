//! How many clients are connected to the whole process.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most addresses that are remembered to log each client of the binary protocol once. Further ones are not logged.
const MAX_LOGGED_ADDRESSES: usize = 1024;

/// Limits and numbers the connections of clients. Shared by all workers.
pub struct ConnectionLimit {
    max: AtomicUsize,
    open: AtomicUsize,
    next: AtomicU64,
    /// The addresses of the clients whose use of the binary protocol has been logged. `None`: Unix sockets.
    logged: Mutex<HashSet<Option<IpAddr>>>,
}

impl ConnectionLimit {
    /// Allows `max` connections at a time.
    pub fn new(max: usize) -> ConnectionLimit {
        let (open, next) = (AtomicUsize::new(0), AtomicU64::new(1));
        ConnectionLimit { max: AtomicUsize::new(max), open, next, logged: Mutex::default() }
    }

    /// From now on, this many connections. Those above it are not closed.
    pub fn set(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Whether a client of the binary protocol at this address must be logged: only the first one, and only while fewer than
    /// [`MAX_LOGGED_ADDRESSES`] are known.
    pub(super) fn log_once(&self, from: Option<IpAddr>) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_LOGGED_ADDRESSES && logged.insert(from)
    }

    /// The number of a new connection, unless the limit is reached.
    pub(super) fn open(&self) -> Option<u64> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max.load(Ordering::Relaxed) {
            self.close();
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed))
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_logged_once_and_only_so_many_are_remembered() {
        let limit = ConnectionLimit::new(1);
        let address = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        assert!(limit.log_once(address(7)) && limit.log_once(None));
        assert!(!limit.log_once(address(7)) && !limit.log_once(None));
        for n in 1000..1000 + 2 * MAX_LOGGED_ADDRESSES as u32 {
            limit.log_once(address(n));
        }
        assert_eq!(limit.logged.lock().unwrap().len(), MAX_LOGGED_ADDRESSES);
        assert!(!limit.log_once(address(8)));
    }
}
