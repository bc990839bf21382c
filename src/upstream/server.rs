//! One memcached, as all workers know it.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::capabilities::Capabilities;
use super::{Address, ServerSpec};
use crate::embedded::Embedded;

/// A connection's socket.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// memcached's default `-I`.
const DEFAULT_ITEM_SIZE: usize = 1024 * 1024;

/// One memcached.
///
/// Its *epoch* counts the connections that any worker has made to it, and so is a clock that all of them share: a CAS number
/// read at epoch n may be relied upon over a connection that was made at or before n, because while that connection lives
/// the server has not been restarted, and so has not begun to count anew.
pub struct Server {
    /// Its place among the servers of all pools, for the metrics.
    pub index: usize,
    address: Address,
    embedded: Option<Embedded>,
    epoch: AtomicU32,
    /// The workers' first attempts to connect that are not over.
    first_attempts: TaskTracker,
    item_size: AtomicUsize,
    /// What the latest connection has found; `None` before the first.
    capabilities: Mutex<Option<Capabilities>>,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
}

impl Server {
    /// The server of a specification. An embedded one is started with it.
    pub fn new(
        index: usize,
        spec: &ServerSpec,
        connect_timeout: Duration,
        request_timeout: Duration,
        clock: fn() -> u64,
    ) -> io::Result<Server> {
        let embedded = match spec.address {
            Address::Embedded { limit } => Some(Embedded::start(limit, clock)?),
            _ => None,
        };
        let first_attempts = TaskTracker::new();
        first_attempts.close();
        Ok(Server {
            index,
            address: spec.address.clone(),
            embedded,
            epoch: AtomicU32::new(0),
            first_attempts,
            item_size: AtomicUsize::new(DEFAULT_ITEM_SIZE),
            capabilities: Mutex::default(),
            connect_timeout,
            request_timeout,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How many connections have been made to it.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Its `item_size_max`: nothing larger than this can be stored.
    pub fn item_size(&self) -> usize {
        self.item_size.load(Ordering::Relaxed)
    }

    /// The largest value that it stores under a key of this length, by its own `item_size_max`. What memcached needs
    /// besides was measured: under the default 1 MiB it takes 1,048,064 bytes.
    pub fn room(&self, key: usize) -> usize {
        self.item_size().saturating_sub(512 + key)
    }

    /// A worker's first attempt to connect, which is over when this is dropped.
    pub(super) fn first_attempt(&self) -> TaskTrackerToken {
        self.first_attempts.token()
    }

    /// Waits until all first attempts are over that have been announced: the limits of connecting are theirs.
    pub(super) async fn first_attempts(&self) {
        self.first_attempts.wait().await;
    }

    /// What it can do, as the latest connection has found; `None` before the first.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A connection was made: the new epoch.
    pub(super) fn connected(&self) -> u32 {
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// This was found; gives what was found before.
    pub(super) fn found(&self, capabilities: &Capabilities) -> Option<Capabilities> {
        self.item_size.store(capabilities.item_size.unwrap_or(DEFAULT_ITEM_SIZE), Ordering::Relaxed);
        self.capabilities.lock().unwrap_or_else(PoisonError::into_inner).replace(capabilities.clone())
    }

    pub(super) async fn connect(&self) -> io::Result<Socket> {
        match (&self.address, &self.embedded) {
            (_, Some(embedded)) => Ok(Either::Right(UnixStream::from_std(embedded.connect()?)?)),
            (Address::Unix(path), None) => Ok(Either::Right(UnixStream::connect(path).await?)),
            (Address::Tcp { host, port }, None) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Either::Left(stream))
            }
            (Address::Embedded { .. }, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_say_how_large_its_items_may_be_takes_as_much_as_memcached_does_by_itself() {
        let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
        let spec = ServerSpec { address, weight: 1, name: None };
        let server = Server::new(0, &spec, second, second, || 1_700_000_000_000).unwrap();
        let sizes = [None, Some(8 << 20), None, Some(1 << 10)].map(|item_size| {
            let before = server.item_size();
            server.found(&Capabilities { item_size, ..Capabilities::default() });
            (before, server.item_size())
        });
        let (unsaid, large, small) = (DEFAULT_ITEM_SIZE, 8 << 20, 1 << 10);
        // What the last connection said does not hold for the next.
        assert_eq!(sizes, [(unsaid, unsaid), (unsaid, large), (large, unsaid), (unsaid, small)]);
        assert_eq!((server.room(0), server.room(1 << 10)), (512, 0));
    }
}
