//! How the sidecar starts and stops: builds its parts from a configuration, runs the threads, drains.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{self, LocalOptions};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::{self, KeysAt, Overview, Placements, PoolRow, Readiness, RuleRow, ServerRow};
use crate::clock::{Clock, unix_ms};
use crate::config::{Config, RuleKind};
use crate::failover::View;
use crate::guard::near::Changes;
use crate::listener::{self, BindError, BoundListeners, FlushAll};
use crate::metrics::{Metrics, ServerName};
use crate::monitor::{self, Monitor};
use crate::open_files::{self, Budget};
use crate::proxy::{GuardPlan, LeaseTable, OutageTable, Plan, RulePlan, ServerInfo, Shared, TagCache};
use crate::random::Random;
use crate::rule::Rules;
use crate::upstream::pool::SharedPool;
use crate::upstream::server::Server;
use crate::worker::{ConnectionLimit, Worker};

/// The most workers with `workers = 0`, which otherwise means one per core. The machine is mainly for the application.
const MAX_AUTOMATIC_WORKERS: usize = 4;
/// Miss tokens may use 1/8 of `max_buffered`.
const MISS_TOKENS_SHARE: usize = 8;

/// Why Kennel cannot start.
#[derive(Debug)]
pub enum StartError {
    /// A listener cannot be bound.
    Bind(BindError),
    /// The system refused a thread or a socket.
    Io(io::Error),
    /// The limit on open files is too low.
    OpenFiles(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(error) => error.fmt(f),
            StartError::Io(error) => write!(f, "cannot start: {error}"),
            StartError::OpenFiles(why) => write!(f, "cannot start: {why}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<BindError> for StartError {
    fn from(error: BindError) -> Self {
        StartError::Bind(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        StartError::Io(error)
    }
}

/// A running sidecar. When dropped, it stops without waiting.
pub struct App {
    bound: BoundListeners,
    admin: Option<SocketAddr>,
    stop: CancellationToken,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    threads: Vec<JoinHandle<()>>,
}

impl App {
    /// Starts all threads. When this returns, clients can connect. If a pool fails over, they are served once it is known where the
    /// keys of its servers are.
    ///
    /// # Errors
    /// A listener cannot be bound, or the system refuses a resource.
    pub fn start(config: &Config) -> Result<App, StartError> {
        let workers = workers(config);
        let budget = Budget::new(open_files::raise(), config, workers);
        let max_connections = budget.clients().map_err(StartError::OpenFiles)?;
        if let Some(warning) = budget.warning() {
            warn!("{warning}");
        }
        let (bound, sockets) = listener::bind(&config.listen, workers)?;
        let admin = config.admin.as_ref().map(listener::bind_admin).transpose()?;
        let metrics = Arc::new(new_metrics(config, workers));
        metrics.config_read(true, unix_ms());
        let pools = start_pools(config)?;
        let mut random = Random::from_entropy();
        let miss_token_bytes = config.listen.max_buffered / MISS_TOKENS_SHARE;
        let start = Instant::now();
        let monitor = Monitor::new(&config.pools, &pools, start, Clock::system());
        let status = monitor.as_ref().map(|monitor| Arc::clone(monitor.status()));
        let shared = Shared {
            plan: Arc::new(plan(config)),
            leases: Arc::new(LeaseTable::new(miss_token_bytes)),
            outages: Arc::new(OutageTable::new(config.near.memory)),
            tag_cache: TagCache::new(config.tags.cache),
            changes: Arc::new(Changes::new(config.uses_near_cache())),
            near_memory: config.near.memory / workers,
            sidecar: random.below(u64::MAX),
            clock: Clock::system(),
            start,
            server_info: Arc::new(server_info(config, &bound, workers, max_connections, &metrics)),
            views: match &monitor {
                Some(monitor) => monitor.views().to_vec(),
                None => vec![None; pools.len()],
            },
            other_views: match &monitor {
                Some(monitor) => monitor.other_views().to_vec(),
                None => vec![None; pools.len()],
            },
        };
        let mut app = App {
            bound,
            admin: admin.as_ref().map(|(address, _)| *address),
            stop: CancellationToken::new(),
            readiness: Readiness::new(),
            metrics,
            threads: Vec::new(),
        };
        let connection_limit = Arc::new(ConnectionLimit::new(max_connections));
        let open = CancellationToken::new();
        let worker = |(at, sockets)| Worker {
            sockets,
            shared: shared.clone(),
            pools: pools.iter().map(SharedPool::for_worker).collect(),
            connection_limit: Arc::clone(&connection_limit),
            idle_timeout: config.listen.idle_timeout,
            max_buffered: (config.listen.max_buffered - miss_token_bytes) / workers,
            metrics: app.metrics.worker(at),
            open: open.clone(),
            stop: app.stop.child_token(),
        };
        // All are created before the first one starts, because workers wait for each other's first connections.
        let all: Vec<Worker> = sockets.into_iter().enumerate().map(worker).collect();
        for (at, worker) in all.into_iter().enumerate() {
            app.spawn(format!("kennel-{at}"), move || worker.run())?;
        }
        if let Some(status) = &status {
            app.metrics.show_failover(Arc::<monitor::Status>::clone(status));
        }
        if let Some((_, listener)) = admin {
            let view: Arc<dyn admin::View> = Arc::new(AdminView {
                metrics: Arc::clone(&app.metrics),
                start: shared.start,
                config: config.clone(),
                pools: pools.clone(),
                monitored: status,
            });
            let (readiness, stop) = (app.readiness.clone(), app.stop.clone());
            app.spawn("kennel-admin".into(), move || {
                let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(admin::run(listener, view, readiness, stop.cancelled()))
            })?;
        }
        if config.pools.iter().all(|pool| pool.failover.is_none()) {
            open.cancel();
            app.readiness.ready();
        }
        if let Some(monitor) = monitor {
            app.spawn_monitor(monitor, random, open)?;
        }
        Ok(app)
    }

    /// Starts the monitor, which lets clients in once it knows where their keys are.
    fn spawn_monitor(&mut self, monitor: Monitor, random: Random, open: CancellationToken) -> io::Result<()> {
        let (readiness, stop) = (self.readiness.clone(), self.stop.clone());
        self.spawn("kennel-monitor".into(), move || {
            let let_in = async {
                open.cancelled().await;
                readiness.ready();
                std::future::pending::<()>().await
            };
            let running = async {
                tokio::select! {
                    () = monitor.run(random, open.clone()) => {}
                    () = let_in => {}
                }
            };
            let mut runtime = runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build_local(LocalOptions::default())?;
            runtime.block_on(stop.run_until_cancelled(running));
            Ok(())
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
        self.threads.push(thread::Builder::new().name(name).spawn(body)?);
        Ok(())
    }

    /// The TCP addresses of the listeners, with the ports that the system chose.
    pub fn tcp(&self) -> &[SocketAddr] {
        &self.bound.tcp
    }

    /// The paths of the Unix sockets.
    pub fn unix(&self) -> &[PathBuf] {
        &self.bound.unix
    }

    /// The admin address.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
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

/// Creates the pools. The servers of all pools are numbered consecutively, as in the metrics.
fn start_pools(config: &Config) -> io::Result<Vec<Arc<SharedPool>>> {
    let mut first = 0;
    let start = |spec| {
        let pool = SharedPool::new(spec, first, unix_ms)?;
        first += spec.all_servers().count();
        Ok(Arc::new(pool))
    };
    config.pools.iter().map(start).collect()
}

/// The configuration in the form that the pipeline uses.
fn plan(config: &Config) -> Plan {
    let mut guards = Vec::new();
    let mut routes = Vec::new();
    for (index, rule) in config.rules.iter().enumerate() {
        let guard = match &rule.kind {
            RuleKind::Raw => None,
            RuleKind::Guarded { policy, tags, tags_in_key, meta_winner } => {
                let (policy, tags) = (policy.clone(), tags.clone());
                let (tags_in_key, meta_winner) = (*tags_in_key, *meta_winner);
                guards.push(GuardPlan {
                    rule: index,
                    pool: rule.pool,
                    policy,
                    tags,
                    tags_in_key,
                    meta_winner,
                });
                Some(guards.len() - 1)
            }
        };
        routes.push(RulePlan { pool: rule.pool, guard, invalidates: rule.invalidates.clone() });
    }
    let rules = Rules::new(config.rules.iter().map(|rule| rule.pattern.clone()).collect());
    let main_pool = config.pools.iter().position(|pool| pool.name == "main").unwrap_or(0);
    let tags = &config.tags;
    Plan::new(rules, routes, guards, main_pool, tags.prefix.clone(), tags.pool, tags.replicas > 1)
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

fn server_info(
    config: &Config,
    bound: &BoundListeners,
    workers: usize,
    max_connections: usize,
    metrics: &Arc<Metrics>,
) -> ServerInfo {
    let listen = &config.listen;
    ServerInfo {
        metrics: Arc::clone(metrics),
        max_connections,
        workers,
        tcp: bound.tcp.first().map(|address| (address.ip().to_string(), address.port())),
        unix: bound.unix.first().map(|path| path.display().to_string()),
        unix_mode: listen.unix_mode,
        flush_all: listen.flush_all == FlushAll::Allow,
        baseline: Mutex::default(),
    }
}

fn new_metrics(config: &Config, workers: usize) -> Metrics {
    let rules = config.rules.iter().map(|rule| rule.name.clone()).collect();
    let servers = config.pools.iter().flat_map(|pool| {
        pool.all_servers().map(|server| ServerName { pool: pool.name.clone(), server: server.label() })
    });
    Metrics::new(rules, servers.collect(), workers)
}

/// What the admin server shows.
struct AdminView {
    metrics: Arc<Metrics>,
    start: Instant,
    config: Config,
    pools: Vec<Arc<SharedPool>>,
    /// `None` if all servers are embedded.
    monitored: Option<Arc<monitor::Status>>,
}

impl admin::View for AdminView {
    fn metrics(&self) -> String {
        self.metrics.render()
    }

    fn overview(&self) -> Overview {
        let keys = |server: usize| match self.monitored.as_ref()?.view(server)? {
            Some(View { standby: true, .. }) => Some(KeysAt::Standby),
            Some(View { standby: false, .. }) => Some(KeysAt::Own),
            None => Some(KeysAt::Unknown),
        };
        let mut servers = self.metrics.servers_up().into_iter().enumerate();
        let placements = |pool: usize| {
            let status = self.monitored.as_ref()?.pool(pool)?;
            let unknown = status.unknown().iter().map(ToString::to_string).collect();
            Some(Placements { own: status.own().to_string(), unknown })
        };
        let pools = self.config.pools.iter().enumerate().map(|(at, pool)| PoolRow {
            name: pool.name.clone(),
            placements: placements(at),
            servers: servers
                .by_ref()
                .take(pool.all_servers().count())
                .map(|(index, (name, up))| ServerRow {
                    name: name.server,
                    up,
                    sick: self.metrics.is_sick(index),
                    keys: keys(index),
                })
                .collect(),
        });
        let pools = pools.collect();
        let rules = self.metrics.rule_totals().into_iter().map(|totals| RuleRow {
            name: totals.rule,
            hits: totals.hits,
            stale: totals.stale,
            misses: totals.misses,
            rebuilds: totals.rebuilds,
        });
        let uptime = Duration::from_secs(self.start.elapsed().as_secs());
        Overview { version: env!("CARGO_PKG_VERSION").into(), uptime, pools, rules: rules.collect() }
    }

    fn notes(&self) -> Vec<String> {
        let servers =
            self.pools.iter().flat_map(|pool| pool.servers().iter().map(move |server| (pool, server)));
        let note = |(pool, server): (&Arc<SharedPool>, &Arc<Server>)| {
            let found = server.capabilities()?;
            let (pool, server, version) = (&pool.name, server.label(), found.version);
            let why = found.missing_feature?;
            Some(format!("server {server} of pool {pool} cannot guard keys: {why} (memcached {version})"))
        };
        let monitored = self.monitored.iter().flat_map(|status| status.notes());
        servers.filter_map(note).chain(monitored).collect()
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
