//! What the admin server shows of the running sidecar.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::asks::Asks;
use super::lasting::Lasting;
use super::slabs::AskedSlabs;
use crate::admin::{
    self, ConfigState, ErrorRow, FleetRules, History, HistoryPage, HotQuery, KeysAt, LeaseRow, NotExplained,
    ObservedKeys, ObservedRow, Overview, Placements, PoolRow, RuleRow, ServerRow, Slabs,
};
use crate::clock::Clock;
use crate::config::Config;
use crate::failover::repair::RepairOrder;
use crate::failover::rule_marks::RulesInUse;
use crate::failover::{View, Wish};
use crate::guard::leases::LiveLease;
use crate::hot::HotReport;
use crate::log::{self, RecentError};
use crate::metrics::{DiscoveredEntry, Metrics, ObservedTotals};
use crate::monitor::Status;
use crate::observed::Families;
use crate::proxy::{Explanation, KeyHasher, LeaseTable, ObserverSettings};
use crate::takeover::ReloadMode;
use crate::trace::{Filter, Names, ShownKeys, Taps, Watcher};
use crate::upstream::pool::SharedPool;
use crate::upstream::server::Server;

/// Where a reload is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskedBy {
    Http,
    ControlSocket,
}

/// A request to reload.
pub(super) struct ReloadRequest {
    pub(super) by: AskedBy,
    pub(super) mode: ReloadMode,
    /// Who asks receives its result: what has changed, or why nothing has.
    pub(super) result: oneshot::Sender<Result<String, String>>,
}

/// Has the process read its configuration. Returns what has changed, or why nothing has.
pub(super) async fn request_reload(
    reloads: &mpsc::Sender<ReloadRequest>,
    by: AskedBy,
    mode: ReloadMode,
) -> Result<String, String> {
    let (result, received) = oneshot::channel();
    let stopping = || Err("the sidecar is stopping".to_owned());
    match reloads.send(ReloadRequest { by, mode, result }).await {
        Ok(()) => received.await.unwrap_or_else(|_| stopping()),
        Err(_) => stopping(),
    }
}

/// What the admin server shows.
pub(super) struct AdminView {
    metrics: Arc<Metrics>,
    taps: Arc<Taps>,
    leases: Arc<LeaseTable>,
    hasher: KeyHasher,
    clock: Clock,
    start: Instant,
    /// With the time of its last point.
    history: Mutex<(History, Instant)>,
    shown: RwLock<Shown>,
    reloads: mpsc::Sender<ReloadRequest>,
    asks: Asks,
    slabs: AskedSlabs,
}

/// What depends on the configuration.
pub(super) struct Shown {
    pub(super) config: Arc<Config>,
    /// Its settings as a file.
    pub(super) written: Arc<str>,
    pub(super) pools: Vec<Arc<SharedPool>>,
    pub(super) status: Arc<Status>,
    /// The reading of the configuration.
    pub(super) state: ConfigState,
    /// What is shown of requests.
    pub(super) observed: Arc<ObserverSettings>,
    /// How each pool spreads its keys; computed when the status page is first asked for.
    pub(super) spread: OnceLock<Vec<Spread>>,
}

/// How a pool spreads keys over its servers.
pub(super) struct Spread {
    /// Keys placed on each server.
    own: Vec<u32>,
    /// Of those of each server, how many each server would hold if it were away.
    standby: Vec<BTreeMap<usize, u32>>,
}

/// Keys that are placed to estimate how a pool spreads them.
const PLACED: u32 = 1 << 13;

impl Spread {
    fn of(pool: &SharedPool) -> Spread {
        let (ring, servers) = (pool.ring(), pool.servers().len());
        let mut spread = Spread { own: vec![0; servers], standby: vec![BTreeMap::new(); servers] };
        for n in 0..if servers == 0 { 0 } else { PLACED } {
            let key = n.to_string();
            let own = ring.server(key.as_bytes());
            spread.own[own] += 1;
            if servers > 1 {
                let standby = ring.server_without(key.as_bytes(), &[own]);
                *spread.standby[own].entry(standby).or_insert(0) += 1;
            }
        }
        spread
    }

    /// The share of a server, and of its keys that of each standby server.
    fn server(&self, at: usize) -> (f64, Vec<(usize, f64)>) {
        // A server that the pool is about to have, or no longer has, holds no key.
        let Some(&own) = self.own.get(at) else { return (0.0, Vec::new()) };
        let share = |(&server, &keys): (&usize, &u32)| (server, f64::from(keys) / f64::from(own.max(1)));
        (f64::from(own) / f64::from(PLACED), self.standby[at].iter().map(share).collect())
    }
}

/// How often it is looked whether a repair has ended.
const REPAIR_POLL: Duration = Duration::from_millis(100);

impl AdminView {
    /// Has the copies of a pool counted or repaired. Returns what was found, or why not all copies are there.
    pub(super) async fn repair(&self, pool: &str, order: RepairOrder) -> Result<String, String> {
        let find = || {
            let shown = self.shown();
            let at = shown.pools.iter().position(|of| of.name == pool);
            let at = at.ok_or_else(|| format!("there is no pool {pool:?}"))?;
            let status = shown.status.repair(at).filter(|status| status.is_used());
            status
                .cloned()
                .ok_or_else(|| format!("nothing in pool {pool} has copies, or it does not fail over"))
        };
        let status = find()?;
        let before = status.ask(order);
        loop {
            sleep(REPAIR_POLL).await;
            let last = status.last_run();
            if last.orders_done > before {
                return match last.problem {
                    None => Ok(format!("pool {pool}: {}\n", last.found)),
                    Some(why) => Err(format!("pool {pool}: {why} ({})\n", last.found)),
                };
            }
            if !find().is_ok_and(|now| Arc::ptr_eq(&now, &status)) {
                return Err(format!("pool {pool} has changed meanwhile: ask again\n"));
            }
        }
    }

    /// Shows this, and passes requests to reload on.
    pub(super) fn new(
        lasting: &Lasting,
        shown: Shown,
        reloads: mpsc::Sender<ReloadRequest>,
        asks: Asks,
    ) -> AdminView {
        AdminView {
            metrics: Arc::clone(&lasting.metrics),
            taps: Arc::clone(&lasting.taps),
            leases: Arc::clone(&lasting.leases),
            hasher: lasting.hasher,
            clock: lasting.clock.clone(),
            start: lasting.start,
            history: Mutex::new((History::default(), lasting.start)),
            shown: RwLock::new(shown),
            reloads,
            slabs: AskedSlabs::new(asks.workers(), lasting.clock.clone()),
            asks,
        }
    }

    pub(super) fn show(&self, shown: Shown) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// Shows why the configuration was refused: it has mistakes, or it would lose something.
    pub(super) fn show_errors(&self, errors: Vec<String>, would_lose: bool) {
        let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
        (shown.state.errors, shown.state.would_lose) = (errors, would_lose);
    }

    /// What is shown of the reading of the configuration.
    pub(super) fn state(&self) -> ConfigState {
        self.shown().state.clone()
    }

    fn shown(&self) -> RwLockReadGuard<'_, Shown> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn observed_row(totals: ObservedTotals) -> ObservedRow {
    let ObservedTotals { builds, spared, build_micros, spared_micros, at_once, guarded, guarded_overlapping } =
        totals;
    let seconds = |micros: u64| micros as f64 / 1e6;
    let (build_seconds, spared_seconds) = (seconds(build_micros), seconds(spared_micros));
    ObservedRow { builds, spared, at_once, build_seconds, spared_seconds, guarded, guarded_overlapping }
}

impl admin::View for AdminView {
    fn metrics(&self) -> String {
        self.metrics.render()
    }

    fn overview(&self) -> Overview {
        let shown = self.shown();
        let keys = |server: usize| match shown.status.view(server)? {
            Some(View { standby: true, .. }) if shown.status.is_drained(server) => Some(KeysAt::Drained),
            Some(View { standby: true, .. }) => Some(KeysAt::Standby),
            Some(View { standby: false, .. }) => Some(KeysAt::Own),
            None => Some(KeysAt::Unknown),
        };
        let spread = shown.spread.get_or_init(|| shown.pools.iter().map(|pool| Spread::of(pool)).collect());
        let mut servers = self.metrics.servers_up().into_iter().enumerate();
        let placements = |pool: usize| {
            let status = shown.status.pool(pool)?;
            let unknown = status.unknown().iter().map(ToString::to_string).collect();
            Some(Placements { own: status.own().to_string(), unknown })
        };
        let rules = |pool: usize| {
            let (own, in_use) = shown.status.pool(pool)?.rules();
            let hex = |fingerprint: u64| format!("{fingerprint:016x}");
            let row = |used: RulesInUse| FleetRules {
                fingerprint: hex(used.mark.fingerprint),
                version: used.mark.version,
                since_ms: used.since_ms,
            };
            Some((hex(own), in_use.into_iter().map(row).collect()))
        };
        let pools = shown.config.pools.iter().enumerate().map(|(at, pool)| PoolRow {
            name: pool.name.clone(),
            placements: placements(at),
            rules: rules(at),
            servers: servers
                .by_ref()
                .take(pool.all_servers().count())
                .enumerate()
                .map(|(of_pool, (index, (name, up)))| {
                    let (share, standby) =
                        spread.get(at).map_or((0.0, Vec::new()), |spread| spread.server(of_pool));
                    let view = shown.status.view(index).flatten();
                    ServerRow {
                        name: name.server,
                        up,
                        sick: self.metrics.is_sick(index),
                        keys: keys(index),
                        share,
                        standby,
                        fence: view.map(|view| view.fence),
                    }
                })
                .collect(),
        });
        let pools = pools.collect();
        let kinds = shown.observed.kinds.iter().copied().chain(std::iter::repeat("none"));
        let rules = self.metrics.rule_totals().into_iter().zip(kinds).map(|(totals, kind)| {
            let seconds = |builds: u64| totals.build_ms as f64 / 1e3 / builds as f64;
            let build_seconds = (totals.builds > 0).then(|| seconds(totals.builds));
            RuleRow {
                name: totals.rule,
                kind,
                writes: totals.writes,
                errors: totals.errors,
                hits: totals.hits,
                stale: totals.stale,
                misses: totals.misses,
                rebuilds: totals.rebuilds,
                served_meanwhile: totals.stale + totals.outage + totals.waits_filled,
                build_seconds,
                observed: observed_row(totals.observed),
            }
        });
        let uptime = Duration::from_secs(self.start.elapsed().as_secs());
        Overview {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime,
            pools,
            rules: rules.collect(),
            config: shown.state.clone(),
            discovery: self.metrics.discovery(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let shown = self.shown();
        let repairs = (0..shown.pools.len()).filter_map(|pool| shown.status.repair(pool)?.note());
        let servers =
            shown.pools.iter().flat_map(|pool| pool.servers().iter().map(move |server| (pool, server)));
        let note = |(pool, server): (&Arc<SharedPool>, &Arc<Server>)| {
            let (pool, found, is_full) = (&pool.name, server.capabilities(), server.is_full());
            let server = server.label();
            let full = || format!("server {server} of pool {pool} is out of memory: it stores nothing new");
            let Some(found) = found.filter(|found| found.missing_feature.is_some()) else {
                return is_full.then(full);
            };
            let (version, why) = (found.version, found.missing_feature?);
            Some(format!("server {server} of pool {pool} cannot guard keys: {why} (memcached {version})"))
        };
        let why = match shown.state.would_lose {
            true => "would lose something (kennel reload --dry-run tells what)",
            false => "has mistakes",
        };
        let refused = (!shown.state.errors.is_empty())
            .then(|| format!("the configuration file {why}; what was read before remains in force"));
        let unknown = self.metrics.discovery().into_iter().filter(|pool| pool.is_unknown).map(|pool| {
            let entries: Vec<_> =
                pool.entries.iter().filter(|entry| entry.last_success_ms.is_none()).collect();
            let why = |entry: &&DiscoveredEntry| match &entry.error {
                Some(why) => format!("{} ({why})", entry.entry),
                None => entry.entry.clone(),
            };
            let entries: Vec<_> = entries.iter().map(why).collect();
            format!(
                "no server of pool {} is known, so all its keys are misses: {}",
                pool.pool,
                entries.join(", ")
            )
        });
        servers
            .filter_map(note)
            .chain(shown.status.notes())
            .chain(repairs)
            .chain(unknown)
            .chain(refused)
            .collect()
    }

    fn explain(
        &self,
        key: Vec<u8>,
    ) -> Pin<Box<dyn Future<Output = Result<Explanation, NotExplained>> + Send>> {
        Box::pin(self.asks.explain(key))
    }

    fn names(&self) -> Names {
        let shown = self.shown();
        let of_pool = |pool: &Arc<SharedPool>| {
            let name = |server: &Arc<Server>| (pool.name.clone(), server.label().to_owned());
            pool.all_servers().map(name).collect::<Vec<_>>()
        };
        Names { rules: shown.observed.rules.clone(), servers: shown.pools.iter().flat_map(of_pool).collect() }
    }

    fn watch(&self, filter: Filter) -> Option<Watcher> {
        self.taps.watch(filter)
    }

    fn hot(&self, wanted: &HotQuery) -> (HotReport, Vec<Arc<str>>) {
        let rules = self.shown().observed.rules.clone();
        let name = |rule: usize| rules.get(rule).map_or("none", |rule| rule);
        let is_wanted = |rule: usize| wanted.rule.as_deref().is_none_or(|wanted| wanted == name(rule));
        let matches = |key: &[u8]| wanted.key.as_ref().is_none_or(|glob| glob.matches(key));
        let mut workers = self.taps.hot();
        let report =
            HotReport::new(&mut workers, Instant::now(), wanted.by, is_wanted, matches, wanted.limit);
        (report, rules)
    }

    fn observed(&self) -> ObservedKeys {
        let keys_are_shown = self.shown().observed.keys == ShownKeys::Full;
        let families = if keys_are_shown { self.taps.families() } else { Families::default() };
        let since = families.began().map(|began| self.start.elapsed().saturating_sub(began));
        ObservedKeys { keys_are_shown, seconds: since.unwrap_or_default().as_secs_f64(), families }
    }

    fn record(&self) {
        let (sample, now) = (self.metrics.sample(), Instant::now());
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = (now - history.1).as_secs_f64();
        history.0.record(sample, self.clock.now_ms(), seconds);
        history.1 = now;
    }

    fn history(&self, since: u64) -> HistoryPage {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).0.page(since)
    }

    fn slabs(&self) -> Pin<Box<dyn Future<Output = Option<Arc<Slabs>>> + Send>> {
        Box::pin(self.slabs.get())
    }

    fn errors(&self) -> Vec<ErrorRow> {
        let row = |line: RecentError| {
            let RecentError { at_ms, is_error, of, from, text, count } = line;
            ErrorRow { at_ms, is_error, of, from, text, count }
        };
        log::recent_errors().into_iter().map(row).collect()
    }

    fn leases(&self, limit: usize) -> Vec<LeaseRow> {
        let (now, keys) = (self.start.elapsed().as_millis() as u64, self.shown().observed.keys);
        let row = |lease: LiveLease| LeaseRow {
            key: keys.of(&lease.key, || self.hasher.hash(&lease.key)),
            held_ms: now.saturating_sub(lease.since),
            waiters: lease.waiters,
        };
        self.leases.live(limit).into_iter().map(row).collect()
    }

    fn reload(&self, mode: ReloadMode) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> {
        let reloads = self.reloads.clone();
        Box::pin(async move { request_reload(&reloads, AskedBy::Http, mode).await })
    }

    fn move_keys(
        &self,
        server: String,
        wish: Wish,
    ) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> {
        let status = Arc::clone(&self.shown().status);
        let names: Vec<String> = self.names().servers.into_iter().map(|(_, name)| name).collect();
        Box::pin(async move { status.move_keys(&server, wish, &names).await.map_err(|why| why.to_string()) })
    }

    fn written(&self) -> Arc<str> {
        Arc::clone(&self.shown().written)
    }
}
