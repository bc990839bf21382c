//! A worker: a thread with its own runtime, listening sockets and connections to the servers. It accepts clients and serves each
//! in a task, which never moves to another thread.
//!
//! `clients` accepts them, within the `connection_limit` of the process; `connections` are those to the servers; the `heartbeat`
//! proves that the thread runs.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{self, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use crate::listener::WorkerListener;
use crate::metrics::WorkerMetrics;
use crate::proxy::{Current, Leaving, Proxy, Shared};
use crate::random::Random;
use crate::trace::Tap;
use crate::upstream::memory_budget::MemoryBudget;
use crate::upstream::pool::{Pool, UnconnectedPool};
use clients::ClientAcceptor;
use connections::Connections;

mod clients;
mod connection_limit;
mod connections;
mod heartbeat;

pub(crate) use clients::MAX_REFUSING;
pub use clients::MovingClient;
pub use connection_limit::ConnectionLimit;
pub use heartbeat::Heartbeat;

/// How long requests in flight may take once the worker stops. Then their connections are closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(4);
/// How often a former pipeline is looked at until no request uses it.
const RETIRE_INTERVAL: Duration = Duration::from_millis(50);
/// The interval at which unused buffers are freed, and suppressed log lines counted.
const FREE_INTERVAL: Duration = Duration::from_secs(1);

/// What a configuration gives one worker.
pub struct Configured {
    /// The state that all workers share.
    pub shared: Shared,
    /// The pools, without connections.
    pub pools: Vec<UnconnectedPool>,
    /// Listeners of this worker.
    pub listeners: Vec<WorkerListener>,
    /// The connection of a client that is idle for this long is closed. Zero: never.
    pub idle_timeout: Duration,
    /// The memory budget in bytes of requests and replies, for all clients of this worker together.
    pub max_buffered: usize,
    /// The metrics of this worker.
    pub metrics: Arc<WorkerMetrics>,
    /// What this worker shows of its requests.
    pub tap: Arc<Tap>,
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

/// What a worker is told to do.
pub enum Order {
    /// To use another configuration.
    Switch(Box<Switch>),
    /// To call this with the pipeline in force. It runs between the requests of clients and must not block.
    Ask(Box<dyn FnOnce(Rc<Proxy>) + Send>),
    /// To accept no further client, and to send those that it has to another process when they may move.
    Leave(Leaving, mpsc::UnboundedSender<MovingClient>),
    /// To serve a client that another process has accepted. It is counted already.
    Adopt(MovingClient),
}

/// The parts of one worker.
pub struct Worker {
    /// Configuration that the worker begins with.
    pub configured: Configured,
    /// What it is told to do later.
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Proves that it runs.
    pub heartbeat: Option<Heartbeat>,
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

    /// The same in a runtime of the caller.
    pub(crate) async fn work(self) -> io::Result<()> {
        let Worker { configured, mut orders, heartbeat, connection_limit, open, stop } = self;
        let budget = MemoryBudget::new(configured.max_buffered, Arc::clone(&configured.metrics));
        let connections = Rc::new(Connections::default());
        let Configured { shared, pools, listeners, idle_timeout, metrics, tap, mut in_use, .. } = configured;
        let proxy = pipeline(shared, pools, (&metrics, tap), &connections);
        let current = Rc::new(Current::new(Rc::clone(&proxy)));
        spawn_local(tidy_up(Rc::clone(&budget), Rc::clone(&current)));
        if let Some(heartbeat) = heartbeat {
            spawn_local(heartbeat.run());
        }
        let mut repairing = spawn_local(Rc::clone(&proxy).repair());
        let mut renewing = spawn_local(proxy.renew_leases());
        let mut closing = close_idle(&current, &budget, idle_timeout);
        if stop.run_until_cancelled(open.cancelled()).await.is_none() {
            return Ok(());
        }
        let acceptor = Rc::new(ClientAcceptor::new(current, budget, connection_limit, stop.clone()));
        let mut accepting = HashMap::new();
        acceptor.listen(listeners, &mut accepting)?;
        while let Some(Some(order)) = stop.run_until_cancelled(orders.recv()).await {
            let Switch { to, done, retired } = match order {
                Order::Switch(switch) => *switch,
                Order::Ask(ask) => {
                    ask(acceptor.current.proxy());
                    continue;
                }
                Order::Leave(leaving, to) => {
                    acceptor.leave(leaving, to, &accepting);
                    continue;
                }
                Order::Adopt(client) => {
                    acceptor.adopt(client, &accepting);
                    continue;
                }
            };
            let Configured {
                shared,
                pools,
                listeners,
                idle_timeout,
                max_buffered,
                metrics,
                tap,
                in_use: next,
            } = to;
            let ClientAcceptor { current, budget, .. } = &*acceptor;
            let proxy = pipeline(shared, pools, (&metrics, tap), &connections);
            let former = current.replace(Rc::clone(&proxy));
            renewing.abort();
            repairing.abort();
            repairing = spawn_local(Rc::clone(&proxy).repair());
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
        repairing.abort();
        let clients = &acceptor.clients;
        clients.close();
        if timeout(DRAIN_TIMEOUT, clients.wait()).await.is_err() {
            warn!(left = clients.len(), "drain timed out: closing connections with requests in flight");
        }
        Ok(())
    }
}

/// The pipeline of a configuration, over the connections that the worker has and those that it makes.
fn pipeline(
    shared: Shared,
    pools: Vec<UnconnectedPool>,
    (metrics, tap): (&Arc<WorkerMetrics>, Arc<Tap>),
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
    Rc::new(Proxy::new(shared, pools, Random::from_entropy(), Arc::clone(metrics), tap))
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

/// Frees buffers that have not been used recently, and logs what the log of slow requests has suppressed.
async fn tidy_up(budget: Rc<MemoryBudget>, current: Rc<Current>) {
    loop {
        sleep(FREE_INTERVAL).await;
        budget.free_unused();
        current.proxy().log_suppressed();
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
