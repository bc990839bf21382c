//! A worker: a thread with its own runtime, listening sockets and connections to the servers. It accepts clients and serves each
//! in a task, which never moves to another thread.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{self, LocalOptions};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::guard::leases::Owner;
use crate::handshake::{ClientStream, HandshakeLimits, RateLimitedLog, log_name};
use crate::listener::{ListenerInfo, WorkerSockets};
use crate::metrics::WorkerMetrics;
use crate::proxy::connection_use::ListenerClients;
use crate::proxy::{Proxy, Shared};
use crate::random::Random;
use crate::session::{self, ClientProtocol, PendingCall};
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pool::{Pool, UnconnectedPool};

/// How long requests in flight may take once the worker stops. Then their connections are closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(4);
/// The pause after the system could not accept a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// The interval at which unused buffers are freed.
const FREE_INTERVAL: Duration = Duration::from_secs(1);
/// The most addresses that are remembered to log each client of the binary protocol once. Further ones are not logged.
const MAX_LOGGED_ADDRESSES: usize = 1024;
/// How to select the text protocol in client libraries.
const USE_TEXT: &str = "php-memcached: Memcached::OPT_BINARY_PROTOCOL => false, for sessions \
    memcached.sess_binary_protocol = 0; Symfony: binary_protocol=false; libmemcached: MEMCACHED_BEHAVIOR_BINARY_PROTOCOL \
    off, in a configuration string no --BINARY-PROTOCOL; pylibmc: binary=False; spymemcached: \
    ConnectionFactoryBuilder.setProtocol(Protocol.TEXT); Enyim: Protocol = Text; Dalli before 5: protocol: :meta; memjs \
    has no such option: use the package memcached";
/// The most clients of one worker that are being sent [`TOO_MANY`]. No further client is accepted meanwhile.
pub(crate) const MAX_REFUSING: usize = 8;
/// memcached's reply to a client beyond `-c`.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Limits and numbers the connections of clients. Shared by all workers.
pub struct ConnectionLimit {
    max: usize,
    open: AtomicUsize,
    next: AtomicU64,
    /// The addresses of the clients whose use of the binary protocol has been logged. `None`: Unix sockets.
    logged: Mutex<HashSet<Option<IpAddr>>>,
}

impl ConnectionLimit {
    /// Allows `max` connections at a time.
    pub fn new(max: usize) -> ConnectionLimit {
        let (open, next) = (AtomicUsize::new(0), AtomicU64::new(1));
        ConnectionLimit { max, open, next, logged: Mutex::default() }
    }

    /// Whether a client of the binary protocol at this address must be logged: only the first one, and only while fewer than
    /// [`MAX_LOGGED_ADDRESSES`] are known.
    fn log_once(&self, from: Option<IpAddr>) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_LOGGED_ADDRESSES && logged.insert(from)
    }

    /// The number of a new connection, unless the limit is reached.
    fn open(&self) -> Option<u64> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.close();
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn close(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The parts of one worker.
pub struct Worker {
    /// Its listening sockets.
    pub sockets: WorkerSockets,
    /// The state that all workers share.
    pub shared: Shared,
    /// The pools, without connections.
    pub pools: Vec<UnconnectedPool>,
    /// The limit of client connections.
    pub connection_limit: Arc<ConnectionLimit>,
    /// The connection of a client that is idle for this long is closed. Zero: never.
    pub idle_timeout: Duration,
    /// The memory budget in bytes of requests and replies, for all clients of this worker together.
    pub max_buffered: usize,
    /// The metrics of this worker.
    pub metrics: Arc<WorkerMetrics>,
    /// Clients are accepted once it is cancelled. Before, they wait in the queues of the listening sockets.
    pub open: CancellationToken,
    /// Stops the worker when it is cancelled.
    pub stop: CancellationToken,
}

impl Worker {
    /// Runs the worker on this thread until `stop` is cancelled and then until the requests in flight are answered.
    pub fn run(self) -> io::Result<()> {
        runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?
            .block_on(self.work())
    }

    async fn work(self) -> io::Result<()> {
        let Worker {
            sockets,
            shared,
            pools,
            connection_limit: limit,
            idle_timeout,
            max_buffered,
            metrics,
            open,
            stop,
        } = self;
        let budget = MemoryBudget::new(max_buffered, Arc::clone(&metrics));
        let pools = pools.into_iter().map(|pool| Pool::new(pool, &metrics)).collect();
        let proxy = Rc::new(Proxy::new(shared, pools, Random::from_entropy(), metrics));
        proxy.drive_connections();
        spawn_local(Rc::clone(&proxy).renew_leases());
        spawn_local(free_unused(Rc::clone(&budget)));
        if !idle_timeout.is_zero() {
            spawn_local(close_idle(Rc::clone(&proxy), Rc::clone(&budget), idle_timeout));
        }
        if stop.run_until_cancelled(open.cancelled()).await.is_none() {
            return Ok(());
        }
        let clients = TaskTracker::new();
        let acceptor = Rc::new(ClientAcceptor {
            proxy,
            budget,
            limit,
            stop: stop.clone(),
            clients: clients.clone(),
            accept_errors: RateLimitedLog::default(),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING)),
            handshake_limits: HandshakeLimits::default(),
            queue_pool: QueuePool::default(),
        });
        for (socket, listener) in sockets.tcp {
            let socket = TcpListener::from_std(socket)?;
            spawn_local(Rc::clone(&acceptor).accept_tcp(socket, listener));
        }
        for (socket, listener) in sockets.unix {
            let socket = UnixListener::from_std(socket)?;
            spawn_local(Rc::clone(&acceptor).accept_unix(socket, listener));
        }
        stop.cancelled().await;
        clients.close();
        if timeout(DRAIN_TIMEOUT, clients.wait()).await.is_err() {
            warn!(left = clients.len(), "drain timed out: closing connections with requests in flight");
        }
        Ok(())
    }
}

/// Frees buffers that have not been used recently.
async fn free_unused(budget: Rc<MemoryBudget>) {
    loop {
        sleep(FREE_INTERVAL).await;
        budget.free_unused();
    }
}

/// Closes idle connections. All connections share one timer, four times per `idle_timeout`, so that a request costs nothing.
async fn close_idle(proxy: Rc<Proxy>, budget: Rc<MemoryBudget>, idle_timeout: Duration) {
    loop {
        sleep((idle_timeout / 4).max(Duration::from_millis(1))).await;
        budget.sweep(|owner| proxy.rebuilds(owner));
    }
}

/// Accepts the clients of one worker.
struct ClientAcceptor {
    proxy: Rc<Proxy>,
    budget: Rc<MemoryBudget>,
    limit: Arc<ConnectionLimit>,
    stop: CancellationToken,
    clients: TaskTracker,
    accept_errors: RateLimitedLog,
    /// One permit for each client that is being sent [`TOO_MANY`].
    refusing: Arc<Semaphore>,
    handshake_limits: HandshakeLimits,
    /// Unused queues of sessions.
    queue_pool: QueuePool<PendingCall>,
}

impl ClientAcceptor {
    async fn accept_tcp(self: Rc<Self>, socket: TcpListener, listener: ListenerInfo) {
        while let Some(accepted) = self.unless_stopped(socket.accept()).await {
            match accepted {
                Ok((socket, from)) => {
                    if let Err(error) = socket.set_nodelay(true) {
                        debug!(%error, "client has disconnected");
                        continue;
                    }
                    self.admit(socket, Some(from), None, &listener).await;
                }
                Err(error) => self.accept_failed(error).await,
            }
        }
    }

    async fn accept_unix(self: Rc<Self>, socket: UnixListener, listener: ListenerInfo) {
        while let Some(accepted) = self.unless_stopped(socket.accept()).await {
            match accepted {
                Ok((socket, _)) => {
                    // Without a process id, all clients count as one process.
                    let process = socket.peer_cred().ok().and_then(|peer| peer.pid());
                    let process = process.and_then(|pid| u32::try_from(pid).ok());
                    self.admit(socket, None, process, &listener).await;
                }
                Err(error) => self.accept_failed(error).await,
            }
        }
    }

    async fn unless_stopped<T>(&self, accepting: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(accepting).await
    }

    /// Starts the task of a new client, or refuses the client if there are too many. Waits while [`MAX_REFUSING`] clients are
    /// being refused.
    async fn admit<S: ClientStream + 'static>(
        self: &Rc<Self>,
        mut socket: S,
        from: Option<SocketAddr>,
        process: Option<u32>,
        listener: &ListenerInfo,
    ) {
        let handshake = listener.handshake.as_ref();
        let Some(number) = self.limit.open() else {
            self.proxy.metrics().client_refused();
            if handshake.is_some_and(|handshake| handshake.uses_tls()) {
                return;
            }
            // The semaphore is never closed, so this is no error.
            let permit = Arc::clone(&self.refusing).acquire_owned().await;
            spawn_local(async move {
                // The connection is closed even if the client does not read this.
                let _ = timeout(Duration::from_secs(1), socket.write_all(TOO_MANY)).await;
                drop((socket, permit));
            });
            return;
        };
        self.proxy.metrics().client_connected();
        let permit = ConnectionPermit(Rc::clone(self));
        let clients = Arc::clone(&listener.clients);
        let owner = clients.owner(number, process);
        let Some(handshake) = handshake.cloned() else {
            self.clients.spawn_local(async move {
                let ConnectionPermit(acceptor) = &permit;
                acceptor.serve(socket, owner, clients, from).await;
            });
            return;
        };
        self.clients.spawn_local(async move {
            let ConnectionPermit(acceptor) = &permit;
            let ClientAcceptor { proxy, handshake_limits, stop, .. } = &**acceptor;
            let accepted = handshake.accept(socket, from, handshake_limits, proxy.metrics(), stop).await;
            if let Some(socket) = accepted {
                acceptor.serve(socket, owner, clients, from).await;
            }
        });
    }

    /// Runs the session of an authenticated client.
    async fn serve<S: ClientStream>(
        &self,
        socket: S,
        owner: Owner,
        clients: Arc<ListenerClients>,
        from: Option<SocketAddr>,
    ) {
        let proxy = Rc::clone(&self.proxy);
        let protocol =
            session::serve(socket, owner, clients, proxy, &self.budget, &self.queue_pool, &self.stop).await;
        let from = from.map(|from| from.ip());
        if protocol == ClientProtocol::Binary && self.limit.log_once(from) {
            warn!(
                client = log_name(from),
                how = USE_TEXT,
                "refused a client that uses the binary protocol: configure its library to use the text protocol"
            );
        }
    }

    async fn accept_failed(&self, error: io::Error) {
        self.accept_errors.log(|_| warn!(%error, "cannot accept a connection"));
        sleep(ACCEPT_RETRY).await;
    }
}

/// An open connection of a client, counted until this is dropped.
struct ConnectionPermit(Rc<ClientAcceptor>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.limit.close();
        self.0.proxy.metrics().client_disconnected();
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
