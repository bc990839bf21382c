//! What belongs to one configuration while it is in force: the pools with their monitors, and the listeners.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use super::errors::StartError;
use super::plan;
use super::view::Shown;
use crate::admin::ConfigState;
use crate::clock::{Clock, unix_ms};
use crate::config::{Config, KeyValues, Loaded, ReadFiles, Rule, RuleKind};
use crate::failover::Views;
use crate::failover::repair::RepairStatus;
use crate::listener::{self, BoundListeners};
use crate::metrics::ConfigInfo;
use crate::monitor::{Monitor, Published, Status};
use crate::proxy::ObserverSettings;
use crate::random::Random;
use crate::upstream::pool::SharedPool;
use crate::upstream::{PoolSpec, Security};

/// What runs on the monitors' thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Starts the monitors of pools, on their thread.
pub(super) struct Monitors {
    jobs: mpsc::UnboundedSender<Job>,
    start: Instant,
    clock: Clock,
}

/// What belongs to one configuration.
pub(super) struct InForce {
    pub(super) config: Arc<Config>,
    key_values: KeyValues,
    /// The settings as a file.
    written: Arc<str>,
    /// The files that it names, as they were read.
    files: ReadFiles,
    pub(super) pools: Vec<RunningPool>,
    pub(super) listeners: BoundListeners,
    pub(super) status: Arc<Status>,
    /// What is shown of requests.
    pub(super) observed: Arc<ObserverSettings>,
}

#[derive(Clone)]
pub(super) struct RunningPool {
    spec: PoolSpec,
    /// As the files of the specification are now.
    security: Arc<Security>,
    pub(super) pool: Arc<SharedPool>,
    /// `None` if all its servers are embedded.
    monitor: Option<RunningMonitor>,
}

/// The monitor of a pool.
#[derive(Clone)]
struct RunningMonitor {
    published: Arc<Published>,
    /// Cancelled once it is known where the keys are.
    known: CancellationToken,
    /// The monitor ends with the last of these.
    in_use: Arc<DropGuard>,
}

impl Monitors {
    /// `jobs` leads to their thread; `start` is zero of the monotonic clock.
    pub(super) fn new(jobs: mpsc::UnboundedSender<Job>, start: Instant, clock: Clock) -> Monitors {
        Monitors { jobs, start, clock }
    }

    fn start(&self, spec: &PoolSpec, pool: &Arc<SharedPool>) -> Option<RunningMonitor> {
        let monitor = Monitor::new(spec, pool, self.start, self.clock.clone())?;
        let (published, known) = (Arc::clone(monitor.published()), CancellationToken::new());
        let stop = CancellationToken::new();
        let in_use = Arc::new(stop.clone().drop_guard());
        let knows = known.clone();
        self.run(move || {
            let running = monitor.run(Random::from_entropy(), knows);
            spawn_local(async move { stop.run_until_cancelled(running).await });
        });
        Some(RunningMonitor { published, known, in_use })
    }

    /// Calls `then` once all of these are cancelled: at once if there are none.
    pub(super) fn when_known(&self, all: Vec<CancellationToken>, then: impl FnOnce() + Send + 'static) {
        if all.is_empty() {
            return then();
        }
        self.run(move || {
            spawn_local(async move {
                for known in all {
                    known.cancelled().await;
                }
                then();
            });
        });
    }

    fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The thread ends only when the process stops.
        let _ = self.jobs.send(Box::new(job));
    }
}

impl InForce {
    /// The parts of a configuration. What it has in common with `former` pools goes on: a pool that has not changed, and the
    /// servers of one that has.
    ///
    /// # Errors
    /// The system refuses a resource for an embedded server, or a file of a pool cannot be used.
    pub(super) fn new(
        loaded: Loaded,
        listeners: BoundListeners,
        former: &[RunningPool],
        monitors: &Monitors,
    ) -> Result<InForce, StartError> {
        let Loaded { config, key_values, written, files } = loaded;
        let pool = |spec: &PoolSpec| RunningPool::new(spec, former, monitors);
        let pools = config.pools.iter().map(pool).collect::<Result<Vec<_>, StartError>>()?;
        let published = |running: &RunningPool| running.monitor.clone().map(|monitor| monitor.published);
        let published: Vec<_> = pools.iter().map(published).collect();
        let servers = config.pools.iter().map(|spec| spec.all_servers().count());
        let status = Status::new(monitors.start, servers.zip(published.iter().map(Option::as_ref)));
        let (observed, status) = (Arc::new(plan::observed(&config)), Arc::new(status));
        let config = Arc::new(config);
        Ok(InForce { config, key_values, written, files, pools, listeners, status, observed })
    }

    /// What it was made of.
    pub(super) fn loaded(&self) -> Loaded {
        Loaded {
            config: (*self.config).clone(),
            key_values: self.key_values.clone(),
            written: Arc::clone(&self.written),
            files: self.files.clone(),
        }
    }

    /// The hash of its settings.
    pub(super) fn hash(&self) -> String {
        self.key_values.hash()
    }

    /// What identifies it for operators.
    pub(super) fn info(&self) -> ConfigInfo {
        let mut certificates = self.listeners.certificates();
        certificates.extend(self.pools.iter().flat_map(|running| running.security.certificates()));
        certificates.sort();
        certificates.dedup_by(|a, b| a.0 == b.0);
        let kind = |rule: &Rule| match &rule.kind {
            RuleKind::Structure(kind) => Some((rule.name.clone(), kind.word())),
            RuleKind::Raw | RuleKind::Observed | RuleKind::Guarded { .. } => None,
        };
        let structures = self.config.rules.iter().filter_map(kind).collect();
        ConfigInfo { hash: self.hash(), certificates, structures }
    }

    /// What differs in the next configuration, one line for each key and each file, and what takes effect only in the next process.
    pub(super) fn changes(&self, next: &InForce) -> Vec<String> {
        let mut changes = self.key_values.changes(&next.key_values);
        changes.extend(self.files.changes(&next.files));
        if self.config.listen.workers != next.config.listen.workers {
            changes.push("listen.workers takes effect when the process is started again".to_owned());
        }
        changes
    }

    /// Each is cancelled once it is known where the keys of a pool that fails over are.
    pub(super) fn known(&self) -> Vec<CancellationToken> {
        let fails_over = self.pools.iter().filter(|pool| pool.spec.failover.is_some());
        fails_over.filter_map(|pool| Some(pool.monitor.as_ref()?.known.clone())).collect()
    }

    /// Has the marks in the pools tell of its rules.
    pub(super) fn mark_rules(&self) {
        self.status.set_rules(self.config.rules_fingerprint());
    }

    /// Changes what the former configuration uses too: the rules that the marks tell of, the time limits of servers, their certificates
    /// and passwords, and the permissions of Unix sockets.
    pub(super) fn apply_to_shared(&self) {
        self.mark_rules();
        for RunningPool { spec, security, pool, .. } in &self.pools {
            pool.apply_limits(spec);
            if let Err(error) = pool.apply_security(security) {
                warn!(pool = spec.name, %error, "the certificates of this pool cannot be used");
            }
        }
        for path in self.listeners.unix() {
            if let Err(error) = listener::set_mode(&path, self.config.listen.unix_mode) {
                warn!(path = %path.display(), %error, "the permissions of this socket cannot be set");
            }
        }
    }

    /// What the admin server shows of it.
    pub(super) fn shown(&self, state: ConfigState) -> Shown {
        let pools = self.pools.iter().map(|running| Arc::clone(&running.pool)).collect();
        let (config, status) = (Arc::clone(&self.config), Arc::clone(&self.status));
        let state = ConfigState { hash: self.hash(), set: self.key_values.shown(), ..state };
        let (observed, spread) = (Arc::clone(&self.observed), OnceLock::new());
        Shown { config, written: Arc::clone(&self.written), pools, status, state, observed, spread }
    }
}

impl RunningPool {
    fn new(spec: &PoolSpec, former: &[RunningPool], monitors: &Monitors) -> Result<RunningPool, StartError> {
        let security = Security::read(&spec.security);
        let security = Arc::new(security.map_err(|bad| StartError::Files(spec.name.clone(), bad))?);
        let same = former.iter().find(|running| running.spec.name == spec.name);
        if let Some(same) = same.filter(|same| same.spec == *spec) {
            return Ok(RunningPool { security, ..same.clone() });
        }
        let known: Vec<_> = same.iter().flat_map(|same| same.pool.all_servers().cloned()).collect();
        let pool = Arc::new(SharedPool::with_known(spec, &security, &known, unix_ms)?);
        let monitor = match same.filter(|same| is_monitored_alike(&same.spec, spec)) {
            Some(same) => same.monitor.clone(),
            None => monitors.start(spec, &pool),
        };
        Ok(RunningPool { spec: spec.clone(), security, pool, monitor })
    }

    /// Where the keys of each server are.
    pub(super) fn views(&self) -> Option<Arc<Views>> {
        self.monitor.as_ref()?.published.views.clone()
    }

    /// The same for the other list of servers.
    pub(super) fn other_views(&self) -> Option<Arc<Views>> {
        self.monitor.as_ref()?.published.other_views.clone()
    }

    /// The repair of its copies; `None` if it does not fail over.
    pub(super) fn repair(&self) -> Option<Arc<RepairStatus>> {
        self.monitor.as_ref()?.published.repair.clone()
    }

    /// The monitor runs for as long as this exists.
    pub(super) fn in_use(&self) -> Option<Arc<DropGuard>> {
        Some(Arc::clone(&self.monitor.as_ref()?.in_use))
    }
}

/// Whether two specifications of a pool differ only in what its monitor does not use.
fn is_monitored_alike(a: &PoolSpec, b: &PoolSpec) -> bool {
    let PoolSpec { on_error, health, .. } = *b;
    PoolSpec { on_error, health, ..a.clone() } == *b
}
