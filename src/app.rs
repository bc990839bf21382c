//! How the sidecar starts, takes another configuration, and stops.
//!
//! ```text
//!  control     signals, changes of the file and requests to reload: what the process does next
//!     │   │
//!     │   handing_over, taking_over, control_server, adopter: one process after another
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{self, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::{AdminSpec, ConfigState, Readiness, View};
use crate::clock::{Clock, unix_ms};
use crate::config::Loaded;
use crate::guard::near::Changes;
use crate::listener::{BoundListeners, FlushAll, Inherited, WorkerListener};
use crate::log;
use crate::metrics::{DiscoverySource, FailoverSource, Metrics, WorkerMetrics};
use crate::open_files;
use crate::proxy::{LeaseTable, OutageTable, ServerInfo, Shared, TagCache};
use crate::random::Random;
use crate::takeover::{Channel, ControlSocket};
use crate::trace::Taps;
use crate::upstream::Address;
use crate::upstream::pool::SharedPool;
use crate::worker::{Configured, ConnectionLimit, Heartbeat, Order, Switch, Worker};
use admin_server::{AdminServer, BoundAdmin, admin_access, bind_admin};
use adopter::Adopter;
use asks::Asks;
use control_server::{ControlRequests, ControlServer};
use in_force::{InForce, Monitors};
use lasting::Lasting;
use limits::{max_connections, miss_token_bytes};
use view::{AdminView, ReloadRequest};

mod admin_server;
mod adopter;
pub mod control;
mod control_server;
mod errors;
mod asks;
mod handing_over;
mod in_force;
mod lasting;
mod limits;
pub(crate) mod plan;
mod service;
mod slabs;
mod start;
mod taking_over;
mod view;

pub use errors::StartError;
pub(crate) use limits::workers;
pub use service::Service;
pub use start::Start;
pub use taking_over::start;

/// How long a reload waits until no request uses the former configuration.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests to reload that may wait. Further ones wait to wait.
const RELOADS: usize = 8;

/// A running sidecar. When dropped, it stops without waiting.
pub struct App {
    in_force: InForce,
    lasting: Lasting,
    workers: Vec<mpsc::UnboundedSender<Order>>,
    adopter: Arc<Adopter>,
    monitors: Monitors,
    /// The admin server, until it is started.
    bound_admin: Option<BoundAdmin>,
    admin: Option<AdminServer>,
    control: Option<ControlServer>,
    /// Processes that ask to take over.
    takeovers: mpsc::Receiver<Channel>,
    control_requests: ControlRequests,
    heartbeats: Vec<Heartbeat>,
    /// Cancelled when clients are served.
    opened: CancellationToken,
    view: Arc<AdminView>,
    reloads: mpsc::Receiver<ReloadRequest>,
    stop: CancellationToken,
    readiness: Readiness,
    threads: Vec<JoinHandle<()>>,
}

impl App {
    /// Starts all threads. When this returns, clients can connect. They are served once it is known where the keys of the servers
    /// are.
    ///
    /// # Errors
    /// A listener cannot be bound, or the system refuses a resource.
    pub fn start(loaded: Loaded) -> Result<App, StartError> {
        let (mut app, _) = App::prepare(loaded, Start::default())?;
        app.open(None)?;
        Ok(app)
    }

    /// Starts all threads. Clients wait until [`App::open`]. Returns the inherited sockets that the configuration does not have, too.
    ///
    /// # Errors
    /// A listener cannot be bound, or the system refuses a resource.
    pub fn prepare(loaded: Loaded, with: Start) -> Result<(App, Inherited), StartError> {
        let Start { mut inherited, hasher, heartbeat, simulated } = with;
        let config = &loaded.config;
        let workers = workers(config);
        let open_files = open_files::raise();
        let max_connections = max_connections(config, workers, open_files)?;
        let unbound = BoundListeners::default();
        let (listeners, of_workers) = unbound.bind(&config.listen, workers, &mut inherited)?;
        let admin = config.admin.as_ref().map(|spec| bind_admin(spec, &mut inherited)).transpose()?;
        let metrics = Metrics::new(plan::rule_names(config), plan::server_names(config), workers);
        metrics.config_read(true, unix_ms());
        let mut random = Random::from_entropy();
        let start = Instant::now();
        let lasting = Lasting {
            taps: Taps::new(workers, metrics.trace_watchers()),
            metrics: Arc::new(metrics),
            leases: Arc::new(LeaseTable::new(miss_token_bytes(config))),
            outages: Arc::new(OutageTable::new(config.near.memory)),
            tag_cache: TagCache::new(config.tags.cache),
            flushing: Arc::default(),
            repairing: Arc::default(),
            builds: Arc::default(),
            client_marks: Arc::default(),
            sidecar: random.below(u64::MAX),
            hasher: hasher.unwrap_or_default(),
            clock: simulated.clone().unwrap_or_else(Clock::system),
            start,
            baseline: Arc::default(),
            connection_limit: Arc::new(ConnectionLimit::new(max_connections)),
            open_files,
        };
        let (jobs, mut to_monitor) = mpsc::unbounded_channel();
        let monitors = Monitors::new(jobs, start, lasting.clock.clone());
        let in_force = InForce::new(loaded, listeners, &[], &monitors)?;
        in_force.mark_rules();
        lasting.metrics.show_failover(Arc::clone(&in_force.status) as Arc<dyn FailoverSource>);
        log::set_level(&in_force.config.log.level);
        let (stop, readiness) = (CancellationToken::new(), Readiness::new());
        let (to_reload, reloads) = mpsc::channel(RELOADS);
        let shown = in_force.shown(ConfigState { read_ms: unix_ms(), ..ConfigState::default() });
        let (orders, received): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        let asks = Asks::new(orders.clone());
        let view = Arc::new(AdminView::new(&lasting, shown, to_reload.clone(), asks));
        let adopter = Arc::new(Adopter::new(orders.clone(), Arc::clone(&lasting.connection_limit)));
        adopter.set_listeners(in_force.listeners.numbers());
        let (taker, takeovers) = mpsc::channel(1);
        let requests = ControlRequests { takeovers: taker, reloads: to_reload, view: Arc::clone(&view) };
        // One for each worker, and one for the monitors.
        let heartbeats: Vec<_> = (0..=workers).filter_map(|_| heartbeat.map(Heartbeat::new)).collect();
        let mut app = App {
            in_force,
            lasting,
            workers: orders,
            adopter,
            monitors,
            bound_admin: admin,
            admin: None,
            control: None,
            takeovers,
            control_requests: requests,
            heartbeats,
            opened: CancellationToken::new(),
            view,
            reloads,
            stop,
            readiness,
            threads: Vec::new(),
        };
        // All are created before the first one starts, because workers wait for each other's first connections.
        let metrics: Vec<_> = (0..workers).map(|at| app.lasting.metrics.worker(at)).collect();
        let mut all = Vec::new();
        let configured =
            app.configure(of_workers, metrics, max_connections, &Arc::new(AtomicBool::new(true)));
        for (at, (configured, orders)) in configured.into_iter().zip(received).enumerate() {
            let connection_limit = Arc::clone(&app.lasting.connection_limit);
            let (open, stop) = (app.opened.clone(), app.stop.child_token());
            let heartbeat = app.heartbeats.get(at).cloned();
            all.push(Worker { configured, orders, heartbeat, connection_limit, open, stop });
        }
        let (stop, heartbeat) = (app.stop.clone(), app.heartbeats.get(workers).cloned());
        let monitoring = async move {
            if let Some(heartbeat) = heartbeat {
                spawn_local(heartbeat.run());
            }
            while let Some(job) = to_monitor.recv().await {
                job();
            }
        };
        if simulated.is_some() {
            all.into_iter().for_each(|worker| drop(spawn_local(worker.work())));
            spawn_local(async move { stop.run_until_cancelled(monitoring).await });
            return Ok((app, inherited));
        }
        for (at, worker) in all.into_iter().enumerate() {
            app.spawn(format!("kennel-{at}"), move || worker.run())?;
        }
        app.spawn("kennel-monitor".into(), move || {
            let mut runtime = runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build_local(LocalOptions::default())?;
            runtime.block_on(stop.run_until_cancelled(monitoring));
            Ok(())
        })?;
        Ok((app, inherited))
    }

    /// Serves clients and operators, once it is known where the keys of the servers are. `control` is the control socket. Must be
    /// called in a runtime if there is one.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn open(&mut self, control: Option<ControlSocket>) -> io::Result<()> {
        if let Some(admin) = self.bound_admin.take() {
            self.start_admin(admin)?;
        }
        self.show_config();
        self.control =
            control.map(|socket| ControlServer::start(socket, &self.adopter, &self.control_requests));
        let (open, readiness) = (self.opened.clone(), self.readiness.clone());
        self.monitors.when_known(self.in_force.known(), move || {
            open.cancel();
            readiness.ready();
        });
        Ok(())
    }

    /// Takes another configuration. Requests in flight end under the one that they began with; this waits for them for some seconds.
    /// Nothing changes if it returns an error. Returns what has changed, one line for each key of the configuration.
    ///
    /// # Errors
    /// A listener cannot be bound, a file cannot be loaded, or the system refuses a resource.
    pub async fn switch_to(&mut self, loaded: Loaded) -> Result<Vec<String>, StartError> {
        let mut none = Inherited::default();
        let listeners = self.in_force.listeners.bind(&loaded.config.listen, self.workers.len(), &mut none)?;
        let state = ConfigState { read_ms: unix_ms(), ..ConfigState::default() };
        self.switch(loaded, listeners, state, true).await
    }

    /// Takes the configuration in force with other servers, in the same way. No file is read again.
    ///
    /// # Errors
    /// The system refuses a resource.
    pub async fn switch_servers(&mut self, loaded: Loaded) -> Result<(), StartError> {
        let listeners = self.in_force.listeners.again(self.workers.len());
        let state = self.view.state();
        self.switch(loaded, listeners, state, false).await.map(|_| ())
    }

    async fn switch(
        &mut self,
        loaded: Loaded,
        (listeners, of_workers): (BoundListeners, Vec<Vec<WorkerListener>>),
        state: ConfigState,
        with_access: bool,
    ) -> Result<Vec<String>, StartError> {
        let (config, workers) = (&loaded.config, self.workers.len());
        let max_connections = max_connections(config, workers, self.lasting.open_files)?;
        let mut none = Inherited::default();
        let access =
            with_access.then(|| config.admin.as_ref().map(admin_access).transpose()).transpose()?.flatten();
        let new_admin = config.admin.as_ref().filter(|admin| !self.has_admin(admin));
        let new_admin = new_admin.map(|spec| bind_admin(spec, &mut none)).transpose()?;
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
        self.adopter.set_listeners(self.in_force.listeners.numbers());
        if former.observed != self.in_force.observed {
            self.lasting.taps.clear_hot();
        }
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
            let _ = worker.send(Order::Switch(Box::new(Switch { to, done, retired })));
            switching.push(is_done);
            retiring.push(is_retired);
        }
        self.lasting.metrics.switch_to(metrics);
        self.show_config();
        for is_done in switching {
            let _ = is_done.await;
        }
        drop(former);
        if config.admin.as_ref().is_none_or(|admin| !self.has_admin(admin))
            && let Some(former) = self.admin.take()
        {
            former.stop.cancel();
        }
        if let Some(admin) = new_admin
            && let Err(error) = self.start_admin(admin)
        {
            error!(%error, "the admin server cannot be started");
        } else if let (Some(running), Some(access)) = (&self.admin, access) {
            running.access.replace(access);
        }
        // The certificate of the admin address is another one now.
        self.show_config();
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

    /// Shows the configuration in the metrics.
    fn show_config(&self) {
        let mut info = self.in_force.info();
        if let Some(admin) = &self.admin {
            admin.add_certificate(&mut info);
        }
        self.lasting.metrics.show_config(info);
    }

    /// Whether the admin server listens at this address.
    fn has_admin(&self, spec: &AdminSpec) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.configured == spec.listen)
    }

    fn start_admin(&mut self, bound: BoundAdmin) -> io::Result<()> {
        let Some(spec) = &self.in_force.config.admin else { return Ok(()) };
        let shown = (Arc::clone(&self.view) as Arc<dyn View>, self.readiness.clone());
        let (server, run) = AdminServer::new(spec.listen.clone(), bound, shown, self.stop.child_token())?;
        self.admin = Some(server);
        self.spawn("kennel-admin".into(), run)
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
            flushing: Arc::clone(&lasting.flushing),
            changes: Arc::new(Changes::new(config.uses_near_cache())),
            may_keep: Arc::clone(may_keep),
            near_memory: config.near.memory / workers,
            sidecar: lasting.sidecar,
            observed: Arc::clone(&self.in_force.observed),
            builds: Arc::clone(&lasting.builds),
            client_marks: Arc::clone(&lasting.client_marks),
            hasher: lasting.hasher,
            clock: lasting.clock.clone(),
            start: lasting.start,
            server_info: Arc::new(server_info),
            views: pools.iter().map(|running| running.views()).collect(),
            other_views: pools.iter().map(|running| running.other_views()).collect(),
            repairs: pools.iter().map(|running| running.repair()).collect(),
            repairing: Arc::clone(&lasting.repairing),
        };
        let configured = |(at, (listeners, metrics))| Configured {
            shared: shared.clone(),
            pools: shared_pools.iter().map(SharedPool::for_worker).collect(),
            listeners,
            idle_timeout: config.listen.idle_timeout,
            max_buffered: (config.listen.max_buffered - miss_token_bytes(config)) / workers,
            metrics,
            tap: lasting.taps.worker(at),
            in_use: pools.iter().filter_map(|running| running.in_use()).collect(),
        };
        listeners.into_iter().zip(metrics).enumerate().map(configured).collect()
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

    /// Address that the admin listener is bound to, also if the configuration has port 0.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.bound)
    }

    /// Whether all servers are inside this process.
    pub fn stores_inside(&self) -> bool {
        let mut servers = self.in_force.config.pools.iter().flat_map(|pool| pool.all_servers());
        servers.all(|server| matches!(server.address, Address::Embedded { .. }))
    }

    /// The URL of the status page.
    pub fn admin_url(&self) -> Option<String> {
        self.admin.as_ref().map(AdminServer::url)
    }

    /// What `/metrics` exports.
    pub fn metrics(&self) -> &Metrics {
        &self.lasting.metrics
    }

    /// Shows the discovery of servers in the metrics, on the status page and in `/readyz`.
    pub fn show_discovery(&self, source: Arc<dyn DiscoverySource>) {
        self.lasting.metrics.show_discovery(source);
    }

    /// Stops accepting clients, completes requests in flight and releases leases. Returns when this is done or has timed out.
    pub fn stop(mut self) {
        info!("stopping");
        self.readiness.drain();
        self.in_force.listeners.close();
        drop((self.control.take(), self.admin.take()));
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
