//! One worker: a thread with its own runtime, listeners and connections to the servers. Tasks never migrate.

use std::cell::Cell;
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
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::guard::leases::Owner;
use crate::handshake::{ClientStream, HandshakeLimits};
use crate::listener::{ListenerInfo, WorkerSockets};
use crate::metrics::WorkerMetrics;
use crate::proxy::connection_use::ListenerClients;
use crate::proxy::{Proxy, Shared};
use crate::random::Random;
use crate::session::{self, ClientProtocol, PendingCall};
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pool::{Pool, UnconnectedPool};

/// How long clients may take to be answered once Kennel is told to stop.
const DRAIN: Duration = Duration::from_secs(4);
/// How long to wait when the system has no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(50);
/// How often buffers are freed that nobody has needed meanwhile.
const SLIM: Duration = Duration::from_secs(1);
/// How often that is logged.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// The most addresses of which it is remembered that a client there spoke the binary protocol.
const MAX_TOLD: usize = 1024;
/// How to make a client library speak text.
const SPEAK_TEXT: &str = "php-memcached: Memcached::OPT_BINARY_PROTOCOL => false, for sessions \
    memcached.sess_binary_protocol = 0; Symfony: binary_protocol=false; libmemcached: MEMCACHED_BEHAVIOR_BINARY_PROTOCOL \
    off, in a configuration string no --BINARY-PROTOCOL; pylibmc: binary=False; spymemcached: \
    ConnectionFactoryBuilder.setProtocol(Protocol.TEXT); Enyim: Protocol = Text; Dalli before 5: protocol: :meta; memjs \
    has no such option: use the package memcached";
/// So many clients of one worker are being told at a time that there is no room for them. Further ones are not accepted meanwhile.
pub(crate) const MAX_REFUSING: usize = 8;
/// memcached's words.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// How many clients there are, and may be. Shared by all workers.
pub struct ConnectionLimit {
    max: usize,
    present: AtomicUsize,
    next: AtomicU64,
    /// Where a client spoke the binary protocol, which has been said. `None`: at a Unix socket.
    told: Mutex<HashSet<Option<IpAddr>>>,
}

impl ConnectionLimit {
    /// Lets so many in at a time.
    pub fn new(max: usize) -> ConnectionLimit {
        let (present, next) = (AtomicUsize::new(0), AtomicU64::new(1));
        ConnectionLimit { max, present, next, told: Mutex::default() }
    }

    /// Whether this is the first time that a client from there speaks the binary protocol. Once so many addresses are known,
    /// no further one is the first.
    fn is_news(&self, from: Option<IpAddr>) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < MAX_TOLD && told.insert(from)
    }

    /// A number for a new client, if there is room.
    fn enter(&self) -> Option<u64> {
        if self.present.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.leave();
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn leave(&self) {
        self.present.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one worker is made of.
pub struct Worker {
    /// Where its clients come in.
    pub sockets: WorkerSockets,
    /// What it shares with the others.
    pub shared: Shared,
    /// The pools.
    pub pools: Vec<UnconnectedPool>,
    /// How many clients there may be.
    pub door: Arc<ConnectionLimit>,
    /// After how long without doing anything a client is hung up on; zero: never.
    pub idle_timeout: Duration,
    /// How many bytes of requests and answers it may hold for its clients.
    pub max_buffered: usize,
    /// What it counts with.
    pub metrics: Arc<WorkerMetrics>,
    /// Says when to stop.
    pub stop: CancellationToken,
}

impl Worker {
    /// Works on this thread until told to stop, and then until every client has been answered.
    pub fn run(self) -> io::Result<()> {
        runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?
            .block_on(self.work())
    }

    async fn work(self) -> io::Result<()> {
        let Worker { sockets, shared, pools, door, idle_timeout, max_buffered, metrics, stop } = self;
        let roll = MemoryBudget::new(max_buffered, Arc::clone(&metrics));
        let pools = pools.into_iter().map(|pool| Pool::new(pool, &metrics)).collect();
        let proxy = Rc::new(Proxy::new(shared, pools, Random::from_entropy(), metrics));
        proxy.drive_connections();
        spawn_local(Rc::clone(&proxy).renew_leases());
        spawn_local(free_unused(Rc::clone(&roll)));
        if !idle_timeout.is_zero() {
            spawn_local(close_idle(Rc::clone(&proxy), Rc::clone(&roll), idle_timeout));
        }
        let clients = TaskTracker::new();
        let reception = Rc::new(Acceptor {
            proxy,
            roll,
            door,
            stop: stop.clone(),
            clients: clients.clone(),
            said: Cell::new(None),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING)),
            lodge: HandshakeLimits::default(),
            queues: QueuePool::default(),
        });
        for (listener, door) in sockets.tcp {
            let listener = TcpListener::from_std(listener)?;
            spawn_local(Rc::clone(&reception).accept_tcp(listener, door));
        }
        for (listener, door) in sockets.unix {
            let listener = UnixListener::from_std(listener)?;
            spawn_local(Rc::clone(&reception).accept_unix(listener, door));
        }
        stop.cancelled().await;
        clients.close();
        if timeout(DRAIN, clients.wait()).await.is_err() {
            warn!(left = clients.len(), "clients were cut off while being answered");
        }
        Ok(())
    }
}

/// Frees buffers that were needed once.
async fn free_unused(roll: Rc<MemoryBudget>) {
    loop {
        sleep(SLIM).await;
        roll.free_unused();
    }
}

/// Looks four times an `idle_timeout` at who has done nothing. One timer for all: nothing is done for a request.
async fn close_idle(proxy: Rc<Proxy>, roll: Rc<MemoryBudget>, idle_timeout: Duration) {
    loop {
        sleep((idle_timeout / 4).max(Duration::from_millis(1))).await;
        roll.sweep(|owner| proxy.rebuilds(owner));
    }
}

struct Acceptor {
    proxy: Rc<Proxy>,
    roll: Rc<MemoryBudget>,
    door: Arc<ConnectionLimit>,
    stop: CancellationToken,
    clients: TaskTracker,
    /// When it was last said that there is no room.
    said: Cell<Option<Instant>>,
    /// Of those who are being refused.
    refusing: Arc<Semaphore>,
    lodge: HandshakeLimits,
    /// Of clients that ask nothing at the moment.
    queues: QueuePool<PendingCall>,
}

impl Acceptor {
    async fn accept_tcp(self: Rc<Self>, listener: TcpListener, door: ListenerInfo) {
        while let Some(accepted) = self.unless_stopped(listener.accept()).await {
            match accepted {
                Ok((socket, from)) => {
                    if let Err(error) = socket.set_nodelay(true) {
                        debug!(%error, "client is gone already");
                        continue;
                    }
                    self.receive(socket, Some(from), None, &door).await;
                }
                Err(error) => self.no_room(error).await,
            }
        }
    }

    async fn accept_unix(self: Rc<Self>, listener: UnixListener, door: ListenerInfo) {
        while let Some(accepted) = self.unless_stopped(listener.accept()).await {
            match accepted {
                Ok((socket, _)) => {
                    // The kernel knows; where it does not say, all are of one process.
                    let process = socket.peer_cred().ok().and_then(|peer| peer.pid());
                    self.receive(socket, None, process.and_then(|pid| u32::try_from(pid).ok()), &door).await;
                }
                Err(error) => self.no_room(error).await,
            }
        }
    }

    async fn unless_stopped<T>(&self, accepting: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(accepting).await
    }

    /// Ends once there is room for another that must be refused.
    async fn receive<S: ClientStream + 'static>(
        self: &Rc<Self>,
        mut socket: S,
        from: Option<SocketAddr>,
        process: Option<u32>,
        door: &ListenerInfo,
    ) {
        let porter = door.porter.as_ref();
        let Some(owner) = self.door.enter() else {
            self.proxy.metrics().client_refused();
            if porter.is_some_and(|porter| porter.uses_tls()) {
                return;
            }
            // It is never closed.
            let place = Arc::clone(&self.refusing).acquire_owned().await;
            spawn_local(async move {
                // Whether they hear it or not, they are gone.
                let _ = timeout(Duration::from_secs(1), socket.write_all(TOO_MANY)).await;
                drop((socket, place));
            });
            return;
        };
        self.proxy.metrics().client_connected();
        let presence = ConnectionPermit(Rc::clone(self));
        let pooling = Arc::clone(&door.pooling);
        let owner = pooling.owner(owner, process);
        let Some(porter) = porter.cloned() else {
            self.clients.spawn_local(async move {
                let ConnectionPermit(reception) = &presence;
                reception.serve(socket, owner, pooling, from).await;
            });
            return;
        };
        self.clients.spawn_local(async move {
            let ConnectionPermit(reception) = &presence;
            let Acceptor { proxy, lodge, stop, .. } = &**reception;
            let admitted = porter.accept(socket, from, lodge, proxy.metrics(), stop).await;
            if let Some(socket) = admitted {
                reception.serve(socket, owner, pooling, from).await;
            }
        });
    }

    /// Serves a client that has been let in.
    async fn serve<S: ClientStream>(
        &self,
        socket: S,
        owner: Owner,
        pooling: Arc<ListenerClients>,
        from: Option<SocketAddr>,
    ) {
        let proxy = Rc::clone(&self.proxy);
        let spoke = session::serve(socket, owner, pooling, proxy, &self.roll, &self.queues, &self.stop).await;
        let from = from.map(|from| from.ip());
        if spoke == ClientProtocol::Binary && self.door.is_news(from) {
            let from = from.map_or_else(|| "a Unix socket".to_owned(), |from| from.to_string());
            warn!(
                client = from,
                how = SPEAK_TEXT,
                "refused a client that speaks the binary protocol: make its library speak text"
            );
        }
    }

    async fn no_room(&self, error: io::Error) {
        // It may stay so for long, and is tried many times a second.
        if self.said.get().is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            self.said.set(Some(Instant::now()));
            warn!(%error, "cannot accept a client");
        }
        sleep(NO_ROOM).await;
    }
}

/// A client inside; its place is free again however it leaves.
struct ConnectionPermit(Rc<Acceptor>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.door.leave();
        self.0.proxy.metrics().client_gone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_news_once_and_no_more_are_remembered_than_there_is_room_for() {
        let door = ConnectionLimit::new(1);
        let address = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        assert!(door.is_news(address(7)) && door.is_news(None));
        assert!(!door.is_news(address(7)) && !door.is_news(None));
        for n in 1000..1000 + 2 * MAX_TOLD as u32 {
            door.is_news(address(n));
        }
        assert_eq!(door.told.lock().unwrap().len(), MAX_TOLD);
        assert!(!door.is_news(address(8)));
    }
}
