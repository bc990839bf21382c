//! A worker: a thread with its own runtime, listening sockets and connections to the servers. It accepts clients and serves each
//! in a task, which never moves to another thread.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{self, LocalOptions};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use crate::guard::leases::Owner;
use crate::handshake::{ClientStream, HandshakeLimits, RateLimitedLog, log_name};
use crate::listener::{ListenSocket, ListenerInfo, WorkerListener};
use crate::metrics::{ServerMetrics, WorkerMetrics};
use crate::proxy::connection_use::ListenerClients;
use crate::proxy::{Current, Proxy, Shared};
use crate::random::Random;
use crate::session::{self, ClientProtocol, PendingCall};
use crate::upstream::connection::Connection;
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pool::{Pool, UnconnectedPool};
use crate::upstream::server::Server;

/// How long requests in flight may take once the worker stops. Then their connections are closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(4);
/// How often a former pipeline is looked at until no request uses it.
const RETIRE_INTERVAL: Duration = Duration::from_millis(50);
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
    fn log_once(&self, from: Option<IpAddr>) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_LOGGED_ADDRESSES && logged.insert(from)
    }

    /// The number of a new connection, unless the limit is reached.
    fn open(&self) -> Option<u64> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max.load(Ordering::Relaxed) {
            self.close();
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn close(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a configuration gives one worker.
pub struct Configured {
    /// The state that all workers share.
    pub shared: Shared,
    /// The pools, without connections.
    pub pools: Vec<UnconnectedPool>,
    /// All listeners.
    pub listeners: Vec<WorkerListener>,
    /// The connection of a client that is idle for this long is closed. Zero: never.
    pub idle_timeout: Duration,
    /// The memory budget in bytes of requests and replies, for all clients of this worker together.
    pub max_buffered: usize,
    /// The metrics of this worker.
    pub metrics: Arc<WorkerMetrics>,
    /// What the pools need for as long as they are used.
    pub in_use: Vec<Arc<DropGuard>>,
}

/// The next configuration of a worker.
pub struct Switch {
    /// What it gives the worker.
    pub to: Configured,
    /// Told when new requests use it.
    pub done: oneshot::Sender<()>,
    /// Told when no request uses the former one.
    pub retired: oneshot::Sender<()>,
}

/// The parts of one worker.
pub struct Worker {
    /// The first configuration.
    pub configured: Configured,
    /// The next ones.
    pub switches: mpsc::UnboundedReceiver<Switch>,
    /// The limit of client connections.
    pub connection_limit: Arc<ConnectionLimit>,
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
        let Worker { configured, mut switches, connection_limit: limit, open, stop } = self;
        let budget = MemoryBudget::new(configured.max_buffered, Arc::clone(&configured.metrics));
        let connections = Rc::new(Connections::default());
        let Configured { shared, pools, listeners, idle_timeout, metrics, mut in_use, .. } = configured;
        let proxy = pipeline(shared, pools, &metrics, &connections);
        let current = Rc::new(Current::new(Rc::clone(&proxy)));
        spawn_local(free_unused(Rc::clone(&budget)));
        let mut renewing = spawn_local(proxy.renew_leases());
        let mut closing = close_idle(&current, &budget, idle_timeout);
        if stop.run_until_cancelled(open.cancelled()).await.is_none() {
            return Ok(());
        }
        let clients = TaskTracker::new();
        let acceptor = Rc::new(ClientAcceptor {
            current,
            budget,
            limit,
            stop: stop.clone(),
            clients: clients.clone(),
            accept_errors: RateLimitedLog::default(),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING)),
            handshake_limits: HandshakeLimits::default(),
            queue_pool: QueuePool::default(),
        });
        let mut accepting = HashMap::new();
        acceptor.listen(listeners, &mut accepting)?;
        while let Some(Some(Switch { to, done, retired })) = stop.run_until_cancelled(switches.recv()).await {
            let Configured { shared, pools, listeners, idle_timeout, max_buffered, metrics, in_use: next } =
                to;
            let ClientAcceptor { current, budget, .. } = &*acceptor;
            let proxy = pipeline(shared, pools, &metrics, &connections);
            let former = current.replace(Rc::clone(&proxy));
            renewing.abort();
            renewing = spawn_local(proxy.renew_leases());
            closing.abort();
            closing = close_idle(current, budget, idle_timeout);
            budget.set_budget(max_buffered);
            acceptor.listen(listeners, &mut accepting)?;
            budget.wake_all();
            // The coordinator may have stopped.
            let _ = done.send(());
            let former_in_use = std::mem::replace(&mut in_use, next);
            let (current, connections) = (Rc::clone(current), Rc::clone(&connections));
            spawn_local(async move {
                retire(former, former_in_use, current, connections).await;
                let _ = retired.send(());
            });
        }
        stop.cancelled().await;
        clients.close();
        if timeout(DRAIN_TIMEOUT, clients.wait()).await.is_err() {
            warn!(left = clients.len(), "drain timed out: closing connections with requests in flight");
        }
        Ok(())
    }
}

/// The connections of one worker to the servers of all pools.
#[derive(Default)]
struct Connections(RefCell<Vec<DrivenConnection>>);

struct DrivenConnection {
    server: Arc<Server>,
    connection: Rc<Connection>,
    driver: AbortHandle,
}

impl Connections {
    /// The connection to a server, made if there is none.
    fn to(
        &self,
        server: Arc<Server>,
        first_attempt: TaskTrackerToken,
        metrics: impl FnOnce() -> ServerMetrics,
    ) -> Rc<Connection> {
        let mut all = self.0.borrow_mut();
        if let Some(known) = all.iter().find(|known| Arc::ptr_eq(&known.server, &server)) {
            return Rc::clone(&known.connection);
        }
        let connection = Connection::new(Arc::clone(&server), first_attempt, metrics());
        let driver = spawn_local(Rc::clone(&connection).drive(Random::from_entropy())).abort_handle();
        all.push(DrivenConnection { server, connection: Rc::clone(&connection), driver });
        connection
    }

    /// Closes the connections that no pool has.
    fn close_unused(&self) {
        self.0.borrow_mut().retain(|DrivenConnection { connection, driver, .. }| {
            // One is this list's, one its driver's.
            let is_used = Rc::strong_count(connection) > 2;
            if !is_used {
                driver.abort();
            }
            is_used
        });
    }
}

/// The pipeline of a configuration, over the connections that the worker has and those that it makes.
fn pipeline(
    shared: Shared,
    pools: Vec<UnconnectedPool>,
    metrics: &Arc<WorkerMetrics>,
    connections: &Connections,
) -> Rc<Proxy> {
    let mut first = 0;
    let pool = |pool: UnconnectedPool| {
        let of_pool = first;
        first += pool.servers();
        Pool::new(pool, |at, server, attempt| {
            connections.to(server, attempt, || metrics.server(of_pool + at))
        })
    };
    let pools = pools.into_iter().map(pool).collect();
    Rc::new(Proxy::new(shared, pools, Random::from_entropy(), Arc::clone(metrics)))
}

/// Waits until no request uses a former pipeline, which keeps the pools in use meanwhile. Leases that were won under it go on.
async fn retire(
    former: Rc<Proxy>,
    in_use: Vec<Arc<DropGuard>>,
    current: Rc<Current>,
    connections: Rc<Connections>,
) {
    loop {
        current.proxy().take_over_leases(&former);
        if Rc::strong_count(&former) == 1 {
            break;
        }
        sleep(RETIRE_INTERVAL).await;
    }
    drop((former, in_use));
    connections.close_unused();
}

/// Frees buffers that have not been used recently.
async fn free_unused(budget: Rc<MemoryBudget>) {
    loop {
        sleep(FREE_INTERVAL).await;
        budget.free_unused();
    }
}

/// Closes connections that are idle for this long, unless it is zero. All connections share one timer, four times per
/// `idle_timeout`, so that a request costs nothing.
fn close_idle(current: &Rc<Current>, budget: &Rc<MemoryBudget>, idle_timeout: Duration) -> JoinHandle<()> {
    let (current, budget) = (Rc::clone(current), Rc::clone(budget));
    spawn_local(async move {
        while !idle_timeout.is_zero() {
            sleep((idle_timeout / 4).max(Duration::from_millis(1))).await;
            budget.sweep(|owner| current.proxy().rebuilds(owner));
        }
    })
}

/// Accepts the clients of one worker.
struct ClientAcceptor {
    current: Rc<Current>,
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

/// A listener of one worker that accepts clients.
struct Accepting {
    info: RefCell<ListenerInfo>,
    /// When it is cancelled, no further client is accepted, and those that are connected are closed once their requests in flight are
    /// answered.
    stop: CancellationToken,
}

impl ClientAcceptor {
    /// Begins to accept clients of these listeners, by their number, with what they need now, and ends the others.
    fn listen(
        self: &Rc<Self>,
        listeners: Vec<WorkerListener>,
        accepting: &mut HashMap<u32, Rc<Accepting>>,
    ) -> io::Result<()> {
        let mut former = std::mem::take(accepting);
        for WorkerListener { number, socket, info } in listeners {
            let listener = match former.remove(&number) {
                Some(known) => {
                    *known.info.borrow_mut() = info;
                    known
                }
                None => Rc::new(Accepting { info: RefCell::new(info), stop: self.stop.child_token() }),
            };
            let (acceptor, shared) = (Rc::clone(self), Rc::clone(&listener));
            match socket {
                None => {}
                Some(ListenSocket::Tcp(socket)) => {
                    spawn_local(acceptor.accept_tcp(TcpListener::from_std(socket)?, shared));
                }
                Some(ListenSocket::Unix(socket)) => {
                    spawn_local(acceptor.accept_unix(UnixListener::from_std(socket)?, shared));
                }
            }
            accepting.insert(number, listener);
        }
        former.values().for_each(|gone| gone.stop.cancel());
        Ok(())
    }

    async fn accept_tcp(self: Rc<Self>, socket: TcpListener, listener: Rc<Accepting>) {
        while let Some(accepted) = listener.stop.run_until_cancelled(socket.accept()).await {
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

    async fn accept_unix(self: Rc<Self>, socket: UnixListener, listener: Rc<Accepting>) {
        while let Some(accepted) = listener.stop.run_until_cancelled(socket.accept()).await {
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

    /// Starts the task of a new client, or refuses the client if there are too many. Waits while [`MAX_REFUSING`] clients are
    /// being refused.
    async fn admit<S: ClientStream + 'static>(
        self: &Rc<Self>,
        mut socket: S,
        from: Option<SocketAddr>,
        process: Option<u32>,
        listener: &Accepting,
    ) {
        let ListenerInfo { handshake, clients } = listener.info.borrow().clone();
        let proxy = self.current.proxy();
        let Some(number) = self.limit.open() else {
            proxy.metrics().client_refused();
            drop(proxy);
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
        proxy.metrics().client_connected();
        let permit = ConnectionPermit(Rc::clone(self));
        let owner = clients.owner(number, process);
        let stop = listener.stop.clone();
        self.clients.spawn_local(async move {
            let ConnectionPermit(acceptor) = &permit;
            let Some(handshake) = handshake else {
                return acceptor.serve(socket, owner, clients, from, &stop).await;
            };
            let metrics = acceptor.current.proxy().shared_metrics();
            let limits = &acceptor.handshake_limits;
            if let Some(socket) = handshake.accept(socket, from, limits, &metrics, &stop).await {
                acceptor.serve(socket, owner, clients, from, &stop).await;
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
        stop: &CancellationToken,
    ) {
        let ClientAcceptor { current, budget, queue_pool, .. } = self;
        let protocol = session::serve(socket, owner, clients, current, budget, queue_pool, stop).await;
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
        self.0.current.proxy().metrics().client_disconnected();
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
