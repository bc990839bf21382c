//! One worker: a thread with its own runtime, listeners and connections to the servers. Tasks never migrate.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::chance::Chance;
use crate::listener::Sockets;
use crate::metrics::WorkerMetrics;
use crate::porter::{Lodge, Porter, Stream};
use crate::proxy::{Proxy, Shared};
use crate::session;
use crate::upstream::pool::{Pool, SharedPool};

/// How long clients may take to be answered once Kennel is told to stop.
const DRAIN: Duration = Duration::from_secs(4);
/// How long to wait when the system has no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(50);
/// How often that is logged.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// memcached's words.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// How many clients there are, and may be. Shared by all workers.
pub struct Doorkeeper {
    max: usize,
    present: AtomicUsize,
    next: AtomicU64,
}

impl Doorkeeper {
    /// Lets so many in at a time.
    pub fn new(max: usize) -> Doorkeeper {
        Doorkeeper { max, present: AtomicUsize::new(0), next: AtomicU64::new(1) }
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
    pub sockets: Sockets,
    /// What it shares with the others.
    pub shared: Shared,
    /// The pools.
    pub pools: Vec<Arc<SharedPool>>,
    /// How many clients there may be.
    pub door: Arc<Doorkeeper>,
    /// What it counts with.
    pub metrics: Arc<WorkerMetrics>,
    /// Says when to stop.
    pub stop: CancellationToken,
}

impl Worker {
    /// Works on this thread until told to stop, and then until every client has been answered.
    pub fn run(self) -> io::Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, self.work())
    }

    async fn work(self) -> io::Result<()> {
        let Worker { sockets, shared, pools, door, metrics, stop } = self;
        let pools = pools.into_iter().map(|pool| Pool::new(pool, &metrics)).collect();
        let proxy = Rc::new(Proxy::new(shared, pools, Chance::from_entropy(), metrics));
        proxy.drive_connections();
        spawn_local(Rc::clone(&proxy).keep());
        let clients = TaskTracker::new();
        let reception = Rc::new(Reception {
            proxy,
            door,
            stop: stop.clone(),
            clients: clients.clone(),
            said: Cell::new(None),
            lodge: Lodge::default(),
        });
        for (listener, porter) in sockets.tcp {
            let listener = TcpListener::from_std(listener)?;
            spawn_local(Rc::clone(&reception).accept_tcp(listener, porter));
        }
        for (listener, porter) in sockets.unix {
            let listener = UnixListener::from_std(listener)?;
            spawn_local(Rc::clone(&reception).accept_unix(listener, porter));
        }
        stop.cancelled().await;
        clients.close();
        if timeout(DRAIN, clients.wait()).await.is_err() {
            warn!(left = clients.len(), "clients were cut off while being answered");
        }
        Ok(())
    }
}

struct Reception {
    proxy: Rc<Proxy>,
    door: Arc<Doorkeeper>,
    stop: CancellationToken,
    clients: TaskTracker,
    /// When it was last said that there is no room.
    said: Cell<Option<Instant>>,
    lodge: Lodge,
}

impl Reception {
    async fn accept_tcp(self: Rc<Self>, listener: TcpListener, porter: Option<Arc<Porter>>) {
        while let Some(accepted) = self.unless_stopped(listener.accept()).await {
            match accepted {
                Ok((socket, from)) => {
                    if let Err(error) = socket.set_nodelay(true) {
                        debug!(%error, "client is gone already");
                        continue;
                    }
                    self.receive(socket, Some(from), porter.as_ref());
                }
                Err(error) => self.no_room(error).await,
            }
        }
    }

    async fn accept_unix(self: Rc<Self>, listener: UnixListener, porter: Option<Arc<Porter>>) {
        while let Some(accepted) = self.unless_stopped(listener.accept()).await {
            match accepted {
                Ok((socket, _)) => self.receive(socket, None, porter.as_ref()),
                Err(error) => self.no_room(error).await,
            }
        }
    }

    async fn unless_stopped<T>(&self, accepting: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(accepting).await
    }

    fn receive<S: Stream + 'static>(
        self: &Rc<Self>,
        mut socket: S,
        from: Option<SocketAddr>,
        porter: Option<&Arc<Porter>>,
    ) {
        let Some(owner) = self.door.enter() else {
            self.proxy.metrics().client_refused();
            if porter.is_some_and(|porter| porter.is_secret()) {
                return;
            }
            spawn_local(async move {
                // Whether they hear it or not, they are gone.
                let _ = timeout(Duration::from_secs(1), socket.write_all(TOO_MANY)).await;
            });
            return;
        };
        self.proxy.metrics().client_connected();
        let presence = Presence(Rc::clone(self));
        let Some(porter) = porter.cloned() else {
            self.clients.spawn_local(async move {
                let Presence(reception) = &presence;
                session::serve(socket, owner, Rc::clone(&reception.proxy), &reception.stop).await;
            });
            return;
        };
        self.clients.spawn_local(async move {
            let Presence(reception) = &presence;
            let Reception { proxy, lodge, stop, .. } = &**reception;
            let admitted = porter.admit(socket, from, lodge, proxy.metrics(), stop).await;
            if let Some(socket) = admitted {
                session::serve(socket, owner, Rc::clone(proxy), stop).await;
            }
        });
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
struct Presence(Rc<Reception>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.door.leave();
        self.0.proxy.metrics().client_gone();
    }
}
