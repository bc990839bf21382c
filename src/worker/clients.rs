//! The clients of one worker: accepts them, and serves each in a task.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::connection_limit::{ConnectionLimit, Opened};
use crate::handshake::{
    Accepted, ClientStream, HandshakeLimits, PlainSocket, RateLimitedLog, SimulatedClient,
};
use crate::listener::{ListenSocket, ListenerInfo, WorkerListener};
use crate::metrics::Limit;
use crate::net::{self, Network};
use crate::proxy::{Current, Leaving, MovedMiss};
use crate::session::{self, ClientProtocol, End, NewClient, PendingCall};
use crate::trace::Peer;
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pending_replies::PendingReplies;

/// How often clients that are to move to another process are looked at.
const LEAVE_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after the system could not accept a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// The most clients of one worker that are being sent [`TOO_MANY`]. No further client is accepted meanwhile.
pub(crate) const MAX_REFUSING: usize = 8;
/// memcached's reply to a client beyond `-c`.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// A client's connection between two requests, on its way from one process to another.
#[derive(Debug)]
pub struct MovingClient {
    /// The number of its listener in the process that holds it.
    pub listener: u32,
    /// The client's socket, without TLS.
    pub socket: PlainSocket,
    /// The protocol that it has begun to speak. One that speaks the binary protocol where passwords are required is authenticated.
    pub protocol: Option<ClientProtocol>,
    /// What it has missed.
    pub misses: Vec<MovedMiss>,
}

/// Accepts the clients of one worker.
pub(super) struct ClientAcceptor {
    pub(super) current: Rc<Current>,
    pub(super) budget: Rc<MemoryBudget>,
    limit: Arc<ConnectionLimit>,
    stop: CancellationToken,
    pub(super) clients: TaskTracker,
    /// Receives clients that move to another process.
    moving: RefCell<Option<mpsc::UnboundedSender<MovingClient>>>,
    accept_errors: RateLimitedLog,
    /// One permit for each client that is being sent [`TOO_MANY`].
    refusing: Arc<Semaphore>,
    handshake_limits: HandshakeLimits,
    /// Unused queues of sessions.
    queue_pool: QueuePool<PendingCall>,
}

/// A listener of one worker that accepts clients.
pub(super) struct Accepting {
    info: RefCell<ListenerInfo>,
    /// When it is cancelled, no further client is accepted, and those that are connected are closed once their requests in flight are
    /// answered.
    stop: CancellationToken,
    /// When it is cancelled, no further client is accepted.
    accept: CancellationToken,
}

impl Accepting {
    fn new(info: ListenerInfo, stop: CancellationToken) -> Accepting {
        let accept = stop.child_token();
        Accepting { info: RefCell::new(info), stop, accept }
    }
}

impl ClientAcceptor {
    /// Accepts no client yet. `stop` ends it, and the sessions of its clients.
    pub(super) fn new(
        current: Rc<Current>,
        budget: Rc<MemoryBudget>,
        limit: Arc<ConnectionLimit>,
        stop: CancellationToken,
    ) -> ClientAcceptor {
        ClientAcceptor {
            current,
            budget,
            limit,
            stop,
            clients: TaskTracker::new(),
            moving: RefCell::default(),
            accept_errors: RateLimitedLog::default(),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING)),
            handshake_limits: HandshakeLimits::default(),
            queue_pool: QueuePool::default(),
        }
    }

    /// Begins to accept clients of these listeners, by their number, with what they need now, and ends the others.
    pub(super) fn listen(
        self: &Rc<Self>,
        listeners: Vec<WorkerListener>,
        accepting: &mut HashMap<u32, Rc<Accepting>>,
    ) -> io::Result<()> {
        let mut former = std::mem::take(accepting);
        for WorkerListener { number, sockets, info } in listeners {
            let listener = match former.remove(&number) {
                Some(known) => {
                    *known.info.borrow_mut() = info;
                    known
                }
                None => Rc::new(Accepting::new(info, self.stop.child_token())),
            };
            for socket in sockets {
                let (acceptor, shared) = (Rc::clone(self), Rc::clone(&listener));
                if let (ListenSocket::Tcp(socket), Some(network)) = (&socket, net::simulated()) {
                    spawn_local(acceptor.accept_simulated(network, socket.local_addr()?, shared));
                    continue;
                }
                match socket {
                    ListenSocket::Tcp(socket) => {
                        spawn_local(acceptor.accept_tcp(TcpListener::from_std(socket)?, shared));
                    }
                    ListenSocket::Unix(socket) => {
                        spawn_local(acceptor.accept_unix(UnixListener::from_std(socket)?, shared));
                    }
                }
            }
            accepting.insert(number, listener);
        }
        former.values().for_each(|gone| gone.stop.cancel());
        Ok(())
    }

    async fn accept_tcp(self: Rc<Self>, socket: TcpListener, listener: Rc<Accepting>) {
        while let Some(accepted) = listener.accept.run_until_cancelled(socket.accept()).await {
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
        while let Some(accepted) = listener.accept.run_until_cancelled(socket.accept()).await {
            match accepted {
                Ok((socket, _)) => {
                    let process = process_of(&socket);
                    self.admit(socket, None, process, &listener).await;
                }
                Err(error) => self.accept_failed(error).await,
            }
        }
    }

    async fn accept_simulated(
        self: Rc<Self>,
        network: Arc<dyn Network>,
        address: SocketAddr,
        listener: Rc<Accepting>,
    ) {
        while let Some(Ok((socket, from))) =
            listener.accept.run_until_cancelled(network.accept(address)).await
        {
            self.admit(SimulatedClient(socket), Some(from), None, &listener).await;
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
        let stranger = handshake.is_some().then(|| listener.stop.child_token());
        let Some(Opened { number, displaces }) = self.limit.open(stranger.as_ref()) else {
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
        if displaces {
            proxy.metrics().limit_reached(Limit::Unauthenticated);
        }
        let permit = ConnectionPermit(Rc::clone(self));
        let (owner, peer) = (clients.owner(number, process), from.map_or(Peer::Unix(process), Peer::Tcp));
        let (protocol, sasl, misses) = (None, None, Vec::new());
        let client = NewClient { owner, peer, listener: clients, protocol, sasl, misses };
        let stop = listener.stop.clone();
        self.clients.spawn_local(async move {
            let ConnectionPermit(acceptor) = &permit;
            let (Some(handshake), Some(stop_stranger)) = (handshake, stranger) else {
                return acceptor.serve(socket, client, &stop).await;
            };
            let metrics = acceptor.current.proxy().shared_metrics();
            let limits = &acceptor.handshake_limits;
            let accepted = {
                let _stranger = Stranger { limit: &acceptor.limit, number };
                let memory = StrangersMemory::new(&acceptor.budget, number);
                handshake.accept(socket, from, limits, &metrics, &memory.pending, &stop_stranger).await
            };
            if let Some(Accepted { stream, sasl }) = accepted {
                let protocol = sasl.is_some().then_some(ClientProtocol::Binary);
                acceptor.serve(stream, NewClient { protocol, sasl, ..client }, &stop).await;
            }
        });
    }

    /// Serves a client that another process has accepted and authenticated. Closes its connection if its listener is gone.
    pub(super) fn adopt(self: &Rc<Self>, client: MovingClient, accepting: &HashMap<u32, Rc<Accepting>>) {
        let MovingClient { listener, socket, protocol, misses } = client;
        let Some(listener) = accepting.get(&listener) else { return self.limit.close() };
        let metrics = self.current.proxy().shared_metrics();
        metrics.client_received();
        let permit = ConnectionPermit(Rc::clone(self));
        let ListenerInfo { handshake, clients } = listener.info.borrow().clone();
        let sasl = handshake.filter(|_| protocol == Some(ClientProtocol::Binary));
        let sasl = sasl.and_then(|handshake| handshake.adopted_sasl());
        let (number, stop) = (self.limit.number_adopted(), listener.stop.clone());
        match socket {
            PlainSocket::Tcp(socket) => {
                let Ok(socket) = TcpStream::from_std(socket) else { return };
                // This fails if the client has disconnected.
                let Ok(from) = socket.peer_addr() else { return };
                let (owner, peer) = (clients.owner(number, None), Peer::Tcp(from));
                let client = NewClient { owner, peer, listener: clients, protocol, sasl, misses };
                self.clients.spawn_local(async move { permit.0.serve(socket, client, &stop).await });
            }
            PlainSocket::Unix(socket) => {
                let Ok(socket) = UnixStream::from_std(socket) else { return };
                let process = process_of(&socket);
                let (owner, peer) = (clients.owner(number, process), Peer::Unix(process));
                let client = NewClient { owner, peer, listener: clients, protocol, sasl, misses };
                self.clients.spawn_local(async move { permit.0.serve(socket, client, &stop).await });
            }
        }
    }

    /// Accepts no further client, and sends those that it has to another process when they may move.
    pub(super) fn leave(
        &self,
        leaving: Leaving,
        to: mpsc::UnboundedSender<MovingClient>,
        accepting: &HashMap<u32, Rc<Accepting>>,
    ) {
        accepting.values().for_each(|listener| listener.accept.cancel());
        self.current.set_leaving(leaving);
        self.budget.wake_all();
        if self.moving.replace(Some(to)).is_some() {
            return;
        }
        let budget = Rc::clone(&self.budget);
        spawn_local(async move {
            loop {
                // A lease ends without a request of its client, for example.
                sleep(LEAVE_INTERVAL).await;
                budget.wake_all();
            }
        });
    }

    /// Runs the session of an authenticated client.
    async fn serve<S: ClientStream>(&self, mut socket: S, client: NewClient, stop: &CancellationToken) {
        let ClientAcceptor { current, budget, queue_pool, .. } = self;
        let listener = client.listener.number();
        let ended = session::serve(&mut socket, client, current, budget, queue_pool, stop).await;
        let End::Leaves { protocol, misses } = ended else { return };
        match (Box::new(socket).into_plain(), &*self.moving.borrow()) {
            (Some(Ok(socket)), Some(moving)) => {
                // The receiver exists for as long as the process runs.
                let _ = moving.send(MovingClient { listener, socket, protocol, misses });
            }
            (Some(Err(error)), _) => warn!(%error, "a client cannot move to the new process"),
            (None, _) | (_, None) => {}
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

/// A client that has not authenticated, until this is dropped.
struct Stranger<'a> {
    limit: &'a ConnectionLimit,
    number: u64,
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.limit.no_stranger(self.number);
    }
}

/// What is counted of the memory of a client that has not authenticated, until this is dropped.
struct StrangersMemory<'a> {
    budget: &'a MemoryBudget,
    number: u64,
    pending: Rc<PendingReplies>,
}

impl<'a> StrangersMemory<'a> {
    fn new(budget: &'a Rc<MemoryBudget>, number: u64) -> StrangersMemory<'a> {
        StrangersMemory { budget, number, pending: PendingReplies::for_client(budget, number) }
    }
}

impl Drop for StrangersMemory<'_> {
    fn drop(&mut self) {
        self.budget.leave(self.number);
    }
}

/// The process id of a client of a Unix socket. Without one, all clients count as one process.
fn process_of(socket: &UnixStream) -> Option<u32> {
    let process = socket.peer_cred().ok().and_then(|peer| peer.pid());
    process.and_then(|pid| u32::try_from(pid).ok())
}
