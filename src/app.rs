//! How the sidecar starts, takes another configuration, and stops.
//!
//! ```text
//!  control     signals, changes of the file and requests to reload: what the process does next
//!     │
//!   this file  threads, and the switch from one configuration to the next
//!     │
//!  in_force    what belongs to one configuration: pools, their monitors, listeners
//!   ╱   ╲
//! plan   view  for the pipeline, for the admin server
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{self, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::{self, ConfigState, Readiness};
use crate::clock::{Clock, unix_ms};
use crate::config::{Config, Loaded};
use crate::guard::near::Changes;
use crate::listener::{self, AdminSocket, FlushAll, ListenAddress, WorkerListener};
use crate::log;
use crate::metrics::{FailoverSource, Metrics, Totals, WorkerMetrics};
use crate::open_files::{self, Budget};
use crate::proxy::{KeyHasher, LeaseTable, OutageTable, ServerInfo, Shared, TagCache};
use crate::random::Random;
use crate::upstream::pool::SharedPool;
use crate::worker::{Configured, ConnectionLimit, Switch, Worker};
use errors::StartError;
use in_force::{InForce, Monitors};
use view::{AdminView, ReloadRequest};

pub mod control;
mod errors;
mod in_force;
mod plan;
mod view;

/// The most workers with `workers = 0`, which otherwise means one per core. The machine is mainly for the application.
const MAX_AUTOMATIC_WORKERS: usize = 4;
/// Miss tokens may use 1/8 of `max_buffered`.
const MISS_TOKENS_SHARE: usize = 8;
/// How long a reload waits until no request uses the former configuration.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests to reload over HTTP that may wait. Further ones wait to wait.
const RELOADS: usize = 8;

/// A running sidecar. When dropped, it stops without waiting.
pub struct App {
    in_force: InForce,
    lasting: Lasting,
    workers: Vec<mpsc::UnboundedSender<Switch>>,
    monitors: Monitors,
    admin: Option<AdminServer>,
    view: Arc<AdminView>,
    reloads: mpsc::Receiver<ReloadRequest>,
    stop: CancellationToken,
    readiness: Readiness,
    threads: Vec<JoinHandle<()>>,
}

/// What outlives a configuration.
struct Lasting {
    metrics: Arc<Metrics>,
    leases: Arc<LeaseTable>,
    outages: Arc<OutageTable>,
    tag_cache: TagCache,
    sidecar: u64,
    hasher: KeyHasher,
    clock: Clock,
    start: Instant,
    baseline: Arc<Mutex<Option<Totals>>>,
    connection_limit: Arc<ConnectionLimit>,
    /// The limit on open files.
    open_files: Option<u64>,
}

/// A running admin server.
struct AdminServer {
    configured: ListenAddress,
    bound: SocketAddr,
    stop: CancellationToken,
}

impl App {
    /// Starts all threads. When this returns, clients can connect. They are served once it is known where the keys of the servers
    /// are.
    ///
    /// # Errors
    /// A listener cannot be bound, or the system refuses a resource.
    pub fn start(loaded: Loaded) -> Result<App, StartError> {
        let config = &loaded.config;
        let workers = workers(config);
        let open_files = open_files::raise();
        let max_connections = max_connections(config, workers, open_files)?;
        let (listeners, of_workers) = listener::BoundListeners::default().bind(&config.listen, workers)?;
        let admin = config.admin.as_ref().map(listener::bind_admin).transpose()?;
        let metrics = Metrics::new(plan::rule_names(config), plan::server_names(config), workers);
        metrics.config_read(true, unix_ms());
        let mut random = Random::from_entropy();
        let start = Instant::now();
        let lasting = Lasting {
            metrics: Arc::new(metrics),
            leases: Arc::new(LeaseTable::new(miss_token_bytes(config))),
            outages: Arc::new(OutageTable::new(config.near.memory)),
            tag_cache: TagCache::new(config.tags.cache),
            sidecar: random.below(u64::MAX),
            hasher: KeyHasher::new(),
            clock: Clock::system(),
            start,
            baseline: Arc::default(),
            connection_limit: Arc::new(ConnectionLimit::new(max_connections)),
            open_files,
        };
        let (jobs, mut to_monitor) = mpsc::unbounded_channel();
        let monitors = Monitors::new(jobs, start, lasting.clock.clone());
        let in_force = InForce::new(loaded, listeners, &[], &monitors)?;
        lasting.metrics.show_config(in_force.info());
        lasting.metrics.show_failover(Arc::clone(&in_force.status) as Arc<dyn FailoverSource>);
        log::set_level(&in_force.config.log.level);
        let (stop, readiness) = (CancellationToken::new(), Readiness::new());
        let (to_reload, reloads) = mpsc::channel(RELOADS);
        let shown = in_force.shown(ConfigState { read_ms: unix_ms(), ..ConfigState::default() });
        let view = AdminView::new(Arc::clone(&lasting.metrics), start, shown, to_reload);
        let mut app = App {
            in_force,
            lasting,
            workers: Vec::new(),
            monitors,
            admin: None,
            view: Arc::new(view),
            reloads,
            stop,
            readiness,
            threads: Vec::new(),
        };
        let open = CancellationToken::new();
        // All are created before the first one starts, because workers wait for each other's first connections.
        let metrics: Vec<_> = (0..workers).map(|at| app.lasting.metrics.worker(at)).collect();
        let mut all = Vec::new();
        for configured in
            app.configure(of_workers, metrics, max_connections, &Arc::new(AtomicBool::new(true)))
        {
            let (switch, switches) = mpsc::unbounded_channel();
            app.workers.push(switch);
            let connection_limit = Arc::clone(&app.lasting.connection_limit);
            let (open, stop) = (open.clone(), app.stop.child_token());
            all.push(Worker { configured, switches, connection_limit, open, stop });
        }
        for (at, worker) in all.into_iter().enumerate() {
            app.spawn(format!("kennel-{at}"), move || worker.run())?;
        }
        if let Some(socket) = admin {
            app.start_admin(socket)?;
        }
        let stop = app.stop.clone();
        app.spawn("kennel-monitor".into(), move || {
            let mut runtime = runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build_local(LocalOptions::default())?;
            runtime.block_on(stop.run_until_cancelled(async {
                while let Some(job) = to_monitor.recv().await {
                    job();
                }
            }));
            Ok(())
        })?;
        let readiness = app.readiness.clone();
        app.monitors.when_known(app.in_force.known(), move || {
            open.cancel();
            readiness.ready();
        });
        Ok(app)
    }

    /// Takes another configuration. Requests in flight end under the one that they began with; this waits for them for some seconds.
    /// Nothing changes if it returns an error. Returns what has changed, one line for each key of the configuration.
    ///
    /// # Errors
    /// A listener cannot be bound, a file cannot be loaded, or the system refuses a resource.
    pub async fn switch_to(&mut self, loaded: Loaded) -> Result<Vec<String>, StartError> {
        let (config, workers) = (&loaded.config, self.workers.len());
        let max_connections = max_connections(config, workers, self.lasting.open_files)?;
        let (listeners, of_workers) = self.in_force.listeners.bind(&config.listen, workers)?;
        let new_admin = config.admin.as_ref().filter(|admin| !self.has_admin(admin));
        let new_admin = new_admin.map(listener::bind_admin).transpose()?;
        let next = InForce::new(loaded, listeners, &self.in_force.pools, &self.monitors)?;
        // The former configuration serves until it is known where the next one's keys are.
        for known in next.known() {
            known.cancelled().await;
        }
        let config = Arc::clone(&next.config);
        let mut metrics = self.lasting.metrics.next(plan::rule_names(&config), plan::server_names(&config));
        metrics.show_failover(Some(Arc::clone(&next.status) as Arc<dyn FailoverSource>));
        let changes = self.in_force.changes(&next);
        let former = std::mem::replace(&mut self.in_force, next);
        log::set_level(&config.log.level);
        self.lasting.take(&config, max_connections);
        self.in_force.apply_to_shared();
        // A change under the former configuration is not counted for the near cache of the next one.
        let may_keep = Arc::new(AtomicBool::new(false));
        let of_worker = (0..workers).map(|at| metrics.worker(at)).collect();
        let switches = self.configure(of_workers, of_worker, max_connections, &may_keep);
        let (mut switching, mut retiring) = (Vec::new(), Vec::new());
        for (worker, to) in self.workers.iter().zip(switches) {
            let ((done, is_done), (retired, is_retired)) = (oneshot::channel(), oneshot::channel());
            // A worker that has ended serves no client.
            let _ = worker.send(Switch { to, done, retired });
            switching.push(is_done);
            retiring.push(is_retired);
        }
        self.lasting.metrics.switch_to(metrics);
        self.lasting.metrics.show_config(self.in_force.info());
        for is_done in switching {
            let _ = is_done.await;
        }
        drop(former);
        if config.admin.as_ref().is_none_or(|admin| !self.has_admin(admin))
            && let Some(former) = self.admin.take()
        {
            former.stop.cancel();
        }
        if let Some(socket) = new_admin
            && let Err(error) = self.start_admin(socket)
        {
            error!(%error, "the admin server cannot be started");
        }
        let state = ConfigState { read_ms: unix_ms(), ..ConfigState::default() };
        self.view.show(self.in_force.shown(state));
        let retired = tokio::spawn(async move {
            for is_retired in retiring {
                let _ = is_retired.await;
            }
            may_keep.store(true, Ordering::Release);
        });
        if timeout(RETIRE_TIMEOUT, retired).await.is_err() {
            warn!("some requests that began under the former configuration are still in flight");
        }
        Ok(changes)
    }

    /// Whether the admin server listens at this address.
    fn has_admin(&self, configured: &ListenAddress) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.configured == *configured)
    }

    /// What the configuration in force gives each worker.
    fn configure(
        &self,
        listeners: Vec<Vec<WorkerListener>>,
        metrics: Vec<Arc<WorkerMetrics>>,
        max_connections: usize,
        may_keep: &Arc<AtomicBool>,
    ) -> Vec<Configured> {
        let workers = metrics.len();
        let InForce { config, pools, listeners: bound, .. } = &self.in_force;
        let lasting = &self.lasting;
        let shared_pools: Vec<_> = pools.iter().map(|running| Arc::clone(&running.pool)).collect();
        let server_info = ServerInfo {
            metrics: Arc::clone(&lasting.metrics),
            max_connections,
            workers,
            tcp: bound.tcp().first().map(|address| (address.ip().to_string(), address.port())),
            unix: bound.unix().first().map(|path| path.display().to_string()),
            unix_mode: config.listen.unix_mode,
            flush_all: config.listen.flush_all == FlushAll::Allow,
            baseline: Arc::clone(&lasting.baseline),
        };
        let shared = Shared {
            plan: Arc::new(plan::plan(config, &shared_pools)),
            leases: Arc::clone(&lasting.leases),
            outages: Arc::clone(&lasting.outages),
            tag_cache: lasting.tag_cache.with_keep(config.tags.cache),
            changes: Arc::new(Changes::new(config.uses_near_cache())),
            may_keep: Arc::clone(may_keep),
            near_memory: config.near.memory / workers,
            sidecar: lasting.sidecar,
            hasher: lasting.hasher,
            clock: lasting.clock.clone(),
            start: lasting.start,
            server_info: Arc::new(server_info),
            views: pools.iter().map(|running| running.views()).collect(),
            other_views: pools.iter().map(|running| running.other_views()).collect(),
        };
        let configured = |(listeners, metrics)| Configured {
            shared: shared.clone(),
            pools: shared_pools.iter().map(SharedPool::for_worker).collect(),
            listeners,
            idle_timeout: config.listen.idle_timeout,
            max_buffered: (config.listen.max_buffered - miss_token_bytes(config)) / workers,
            metrics,
            in_use: pools.iter().filter_map(|running| running.in_use()).collect(),
        };
        listeners.into_iter().zip(metrics).map(configured).collect()
    }

    fn start_admin(&mut self, AdminSocket { address: bound, socket }: AdminSocket) -> io::Result<()> {
        let Some(configured) = self.in_force.config.admin.clone() else { return Ok(()) };
        let stop = self.stop.child_token();
        self.admin = Some(AdminServer { configured, bound, stop: stop.clone() });
        let (view, readiness) = (Arc::clone(&self.view) as Arc<dyn admin::View>, self.readiness.clone());
        self.spawn("kennel-admin".into(), move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(admin::run(socket, view, readiness, stop.cancelled()))
        })
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let body = {
            let name = name.clone();
            move || {
                if let Err(error) = run() {
                    error!(thread = name, %error, "thread ended");
                }
            }
        };
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.push(thread::Builder::new().name(name).spawn(body)?);
        Ok(())
    }

    /// The TCP addresses of the listeners, with the ports that the system chose.
    pub fn tcp(&self) -> Vec<SocketAddr> {
        self.in_force.listeners.tcp()
    }

    /// The paths of the Unix sockets.
    pub fn unix(&self) -> Vec<PathBuf> {
        self.in_force.listeners.unix()
    }

    /// The admin address.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.bound)
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.lasting.metrics
    }

    /// Stops accepting clients, completes requests in flight and releases leases. Returns when this is done or has timed out.
    pub fn stop(mut self) {
        info!("stopping");
        self.readiness.drain();
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // An error means that the thread panicked, which has been reported.
            let _ = thread.join();
        }
        info!("stopped");
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Lasting {
    /// Takes the limits of another configuration.
    fn take(&self, config: &Config, max_connections: usize) {
        self.leases.set_max_bytes(miss_token_bytes(config));
        self.outages.set_memory(config.near.memory);
        self.connection_limit.set(max_connections);
    }
}

/// The most clients at a time, as far as the limit on open files allows.
fn max_connections(config: &Config, workers: usize, open_files: Option<u64>) -> Result<usize, StartError> {
    let budget = Budget::new(open_files, config, workers);
    let max_connections = budget.clients().map_err(StartError::OpenFiles)?;
    if let Some(warning) = budget.warning() {
        warn!("{warning}");
    }
    Ok(max_connections)
}

fn miss_token_bytes(config: &Config) -> usize {
    config.listen.max_buffered / MISS_TOKENS_SHARE
}

/// The number of workers of a configuration on this machine.
pub(crate) fn workers(config: &Config) -> usize {
    workers_of(config.listen.workers, thread::available_parallelism().map_or(1, usize::from))
}

/// The number of workers for a value of `listen.workers`.
fn workers_of(configured: usize, cores: usize) -> usize {
    match configured {
        0 => cores.min(MAX_AUTOMATIC_WORKERS),
        workers => workers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cores_get_no_more_workers_unless_the_configuration_says_so() {
        let automatic =
            [1, MAX_AUTOMATIC_WORKERS, MAX_AUTOMATIC_WORKERS + 1, 96].map(|cores| workers_of(0, cores));
        assert_eq!(automatic, [1, MAX_AUTOMATIC_WORKERS, MAX_AUTOMATIC_WORKERS, MAX_AUTOMATIC_WORKERS]);
        assert_eq!([1, 96].map(|cores| workers_of(8, cores)), [8, 8]);
    }
}
