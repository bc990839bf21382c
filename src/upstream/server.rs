//! One memcached server, shared by all workers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::warn;

use super::capabilities::Capabilities;
use super::connection_error::ConnectionError;
use super::credentials::Credentials;
use super::health::Health;
use super::security::{Security, SecuritySpec};
use super::socket::Socket;
use super::spec::{Address, HealthSpec, PoolSpec, ServerSpec};
use super::tls::ServerTls;
use crate::dns;
use crate::embedded::Embedded;
use crate::metrics::ConnectFailure;
use crate::net;

/// memcached's default item size limit (`-I`), in bytes.
const DEFAULT_ITEM_SIZE: usize = 1024 * 1024;

/// For how long a server that had no memory for an item is said to be out of memory.
const FULL_FOR: Duration = Duration::from_secs(60);

/// How many servers have been created.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// One memcached server.
///
/// Its *epoch* counts the connections that all workers have made to it. A CAS number read at epoch n is valid over a connection
/// made at epoch n or earlier: while that connection is open, the server has not restarted, and so has not reset its CAS
/// counter.
pub struct Server {
    /// Unique in the process.
    number: u64,
    label: String,
    address: Address,
    /// Its name on the ring, if that is not its address.
    name: Option<String>,
    embedded: Option<Embedded>,
    epoch: AtomicU32,
    /// The workers' first connection attempts that have not ended.
    first_attempts: TaskTracker,
    item_size: AtomicUsize,
    /// The result of the latest probe; `None` before the first.
    capabilities: Mutex<Option<Capabilities>>,
    /// When it last had no memory for an item.
    full_at: Mutex<Option<Instant>>,
    /// Whether it answers in time.
    pub(super) health: Health,
    created: Instant,
    /// In ns, so that a reload can change it while connections are made.
    connect_timeout: AtomicU64,
    /// In ns, for the same reason.
    request_timeout: AtomicU64,
    security_spec: SecuritySpec,
    security: Mutex<ServerSecurity>,
    /// The DNS servers that are asked for its name; the system's resolver if there are none.
    nameservers: Vec<SocketAddr>,
}

/// With what the next connection is made.
#[derive(Clone, Default)]
struct ServerSecurity {
    tls: Option<Arc<ServerTls>>,
    credentials: Option<Arc<Credentials>>,
}

/// The time limits of a server, and when it counts as sick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ServerLimits {
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) health: HealthSpec,
}

impl ServerLimits {
    /// Those of a pool.
    pub(super) fn of(pool: &PoolSpec) -> ServerLimits {
        let PoolSpec { connect_timeout, request_timeout, health, .. } = *pool;
        ServerLimits { connect_timeout, request_timeout, health }
    }
}

impl Server {
    /// Creates the server of a specification, and starts it if it is embedded.
    ///
    /// # Errors
    /// An embedded server cannot be started, or no certificate can be for the host of its address.
    pub fn new(
        spec: &ServerSpec,
        pool: &PoolSpec,
        security: &Security,
        clock: fn() -> u64,
    ) -> io::Result<Server> {
        let server = Server::with_limits(spec, &ServerLimits::of(pool), clock)?;
        let (security_spec, nameservers) = (pool.security.clone(), pool.nameservers.clone());
        let server = Server { security_spec, nameservers, ..server };
        server.set_security(security)?;
        Ok(server)
    }

    fn with_limits(spec: &ServerSpec, limits: &ServerLimits, clock: fn() -> u64) -> io::Result<Server> {
        let embedded = match spec.address {
            Address::Embedded { limit } => Some(Embedded::start(limit, clock)?),
            _ => None,
        };
        let first_attempts = TaskTracker::new();
        first_attempts.close();
        Ok(Server {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            label: spec.label(),
            address: spec.address.clone(),
            name: spec.name.clone(),
            embedded,
            epoch: AtomicU32::new(0),
            first_attempts,
            item_size: AtomicUsize::new(DEFAULT_ITEM_SIZE),
            capabilities: Mutex::default(),
            full_at: Mutex::default(),
            health: Health::new(limits.health),
            created: Instant::now(),
            connect_timeout: AtomicU64::new(nanos(limits.connect_timeout)),
            request_timeout: AtomicU64::new(nanos(limits.request_timeout)),
            security_spec: SecuritySpec::default(),
            security: Mutex::default(),
            nameservers: Vec::new(),
        })
    }

    /// Whether this is the server of a specification in such a pool, whatever its weight. Connections with other settings of TLS or
    /// another user are those of another server, so that none remains when the settings change.
    pub(super) fn is_of(&self, spec: &ServerSpec, pool: &PoolSpec) -> bool {
        self.address == spec.address
            && self.name == spec.name
            && self.nameservers == pool.nameservers
            && self.security_spec == pool.security
    }

    /// From now on, connections are made with this. TLS sessions can be resumed for as long as its certificates stay the same.
    ///
    /// # Errors
    /// No certificate can be for the host of its address.
    pub(super) fn set_security(&self, security: &Security) -> io::Result<()> {
        let mut current = self.security.lock().unwrap_or_else(PoisonError::into_inner);
        let tls = match (&security.tls, &self.address) {
            (Some(tls), _) if current.tls.as_ref().is_some_and(|current| current.is_of(tls)) => {
                current.tls.clone()
            }
            (Some(tls), Address::Tcp { host, .. }) => Some(Arc::new(tls.for_host(host)?)),
            _ => None,
        };
        *current = ServerSecurity { tls, credentials: security.credentials.clone().map(Arc::new) };
        Ok(())
    }

    /// From now on, these limits apply.
    pub(super) fn set_limits(&self, limits: &ServerLimits) {
        self.health.set_spec(limits.health);
        self.connect_timeout.store(nanos(limits.connect_timeout), Ordering::Relaxed);
        self.request_timeout.store(nanos(limits.request_timeout), Ordering::Relaxed);
    }

    /// The time limit of a connection attempt.
    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_nanos(self.connect_timeout.load(Ordering::Relaxed))
    }

    /// The time limit of one request.
    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_nanos(self.request_timeout.load(Ordering::Relaxed))
    }

    /// An embedded server of 1 MiB.
    #[cfg(test)]
    pub(super) fn embedded() -> Server {
        let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
        let spec = ServerSpec { address, weight: 1, name: None };
        Server::with_timeout(&spec, second)
    }

    /// A server with this time limit, which never becomes sick.
    #[cfg(test)]
    pub(crate) fn with_timeout(spec: &ServerSpec, limit: Duration) -> Server {
        let health = HealthSpec { enabled: false, ..HealthSpec::for_timeout(limit) };
        let limits = ServerLimits { connect_timeout: limit, request_timeout: limit, health };
        Server::with_limits(spec, &limits, || 1_700_000_000_000).unwrap()
    }

    /// A moment, for its [`Health`].
    pub(super) fn since_created(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.created)
    }

    /// Its number, unique in the process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What operators call it: see [`ServerSpec::label`].
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Address to connect to.
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

    /// It had no memory for an item. Logged once until it has had memory for a while.
    pub fn note_full(&self) {
        let before = self.full_at.lock().unwrap_or_else(PoisonError::into_inner).replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() >= FULL_FOR) {
            warn!(server = self.label, "out of memory: it stores nothing new");
        }
    }

    /// Whether it had no memory for an item recently.
    pub fn is_full(&self) -> bool {
        let full_at = *self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        full_at.is_some_and(|full_at| full_at.elapsed() < FULL_FOR)
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

    /// Makes a connection within `connect_timeout`, with TLS and the password if the pool has them.
    pub(crate) async fn connect(&self) -> Result<Socket, ConnectionError> {
        let limit = self.connect_timeout();
        let deadline = Instant::now() + limit;
        let opened = timeout_at(deadline, self.open()).await.map_err(|_| ConnectionError::timed_out())?;
        let socket = opened.map_err(ConnectionError::Unreachable)?;
        let ServerSecurity { tls, credentials } =
            self.security.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut socket = match (socket, tls) {
            (Socket::Tcp(socket), Some(tls)) => {
                let handshake = timeout_at(deadline, tls.connect(socket)).await;
                Socket::Tls(Box::new(handshake.map_err(|_| tls_timed_out(limit))??))
            }
            (socket, _) => socket,
        };
        if let Some(credentials) = credentials {
            let logging_in = timeout_at(deadline, credentials.log_in(&mut socket)).await;
            logging_in.map_err(|_| ConnectionError::timed_out())??;
        }
        Ok(socket)
    }

    async fn open(&self) -> io::Result<Socket> {
        match (&self.address, &self.embedded) {
            (_, Some(embedded)) => Ok(Socket::Unix(UnixStream::from_std(embedded.connect()?)?)),
            (Address::Unix(path), None) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
            (Address::Tcp { host, port }, None) => {
                if let Some(network) = net::simulated() {
                    return Ok(Socket::Simulated(network.connect(host, *port).await?));
                }
                let stream = match host.parse::<IpAddr>() {
                    Err(_) if !self.nameservers.is_empty() => {
                        let found =
                            dns::addresses(host, &self.nameservers).await.map_err(io::Error::other)?;
                        let all: Vec<_> =
                            found.found.into_iter().map(|ip| SocketAddr::new(ip, *port)).collect();
                        TcpStream::connect(&all[..]).await?
                    }
                    _ => TcpStream::connect((host.as_str(), *port)).await?,
                };
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            (Address::Discovered(_), None) => Err(io::Error::other("no server has been found yet")),
            (Address::Embedded { .. }, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

fn tls_timed_out(limit: Duration) -> ConnectionError {
    let what = format!(
        "the TLS handshake did not end within connect_timeout ({limit:?}): check that the server speaks TLS at this port, or \
         raise connect_timeout"
    );
    ConnectionError::insecure(ConnectFailure::TlsTimeout, what)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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
