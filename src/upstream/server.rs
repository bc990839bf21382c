//! One memcached server, shared by all workers.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_util::either::Either;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::capabilities::Capabilities;
use super::health::Health;
use super::spec::{Address, HealthSpec, ServerSpec};
use crate::embedded::Embedded;

/// A connection's socket.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// memcached's default item size limit (`-I`), in bytes.
const DEFAULT_ITEM_SIZE: usize = 1024 * 1024;

/// One memcached server.
///
/// Its *epoch* counts the connections that all workers have made to it. A CAS number read at epoch n is valid over a connection
/// made at epoch n or earlier: while that connection is open, the server has not restarted, and so has not reset its CAS
/// counter.
pub struct Server {
    /// Its index among the servers of all pools, for the metrics.
    pub index: usize,
    label: String,
    address: Address,
    embedded: Option<Embedded>,
    epoch: AtomicU32,
    /// The workers' first connection attempts that have not ended.
    first_attempts: TaskTracker,
    item_size: AtomicUsize,
    /// The result of the latest probe; `None` before the first.
    capabilities: Mutex<Option<Capabilities>>,
    /// Whether it answers in time. Switched off unless [`Self::with_health`] sets it.
    pub(super) health: Health,
    created: Instant,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
}

impl Server {
    /// Creates the server of a specification, and starts it if it is embedded.
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
            label: spec.label(),
            address: spec.address.clone(),
            embedded,
            epoch: AtomicU32::new(0),
            first_attempts,
            item_size: AtomicUsize::new(DEFAULT_ITEM_SIZE),
            capabilities: Mutex::default(),
            health: Health::new(HealthSpec { enabled: false, ..HealthSpec::for_timeout(request_timeout) }),
            created: Instant::now(),
            connect_timeout,
            request_timeout,
        })
    }

    /// An embedded server of 1 MiB.
    #[cfg(test)]
    pub(super) fn embedded() -> Server {
        let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
        let spec = ServerSpec { address, weight: 1, name: None };
        Server::new(0, &spec, second, second, || 1_700_000_000_000).unwrap()
    }

    /// The same server, which becomes sick by these rules.
    pub(super) fn with_health(self, spec: HealthSpec) -> Server {
        Server { health: Health::new(spec), ..self }
    }

    /// A moment, for its [`Health`].
    pub(super) fn since_created(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.created)
    }

    /// What operators call it: see [`ServerSpec::label`].
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The number of connections made to it.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Its `item_size_max` in bytes: larger items cannot be stored.
    pub fn item_size(&self) -> usize {
        self.item_size.load(Ordering::Relaxed)
    }

    /// The largest value it stores under a key of this length, in bytes. The overhead of 512 bytes was measured: with the
    /// default of 1 MiB, memcached stores 1,048,064 bytes.
    pub fn max_value(&self, key_length: usize) -> usize {
        self.item_size().saturating_sub(512 + key_length)
    }

    /// Registers a worker's first connection attempt, which ends when the token is dropped.
    pub(super) fn first_attempt(&self) -> TaskTrackerToken {
        self.first_attempts.token()
    }

    /// Waits until all registered first attempts have ended. Each is limited by the connect timeout.
    pub(super) async fn wait_for_first_attempts(&self) {
        self.first_attempts.wait().await;
    }

    /// The result of the latest probe; `None` before the first.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a new connection. Returns the new epoch.
    pub(super) fn connected(&self) -> u32 {
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Stores the result of a probe. Returns the previous one.
    pub(super) fn set_capabilities(&self, capabilities: &Capabilities) -> Option<Capabilities> {
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
    fn a_server_that_reports_no_item_size_has_memcacheds_default() {
        let server = Server::embedded();
        let sizes = [None, Some(8 << 20), None, Some(1 << 10)].map(|item_size| {
            let before = server.item_size();
            server.set_capabilities(&Capabilities { item_size, ..Capabilities::default() });
            (before, server.item_size())
        });
        let (default, large, small) = (DEFAULT_ITEM_SIZE, 8 << 20, 1 << 10);
        // The value of one connection does not apply to the next.
        assert_eq!(sizes, [(default, default), (default, large), (large, default), (default, small)]);
        assert_eq!((server.max_value(0), server.max_value(1 << 10)), (512, 0));
    }
}
