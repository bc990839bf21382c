//! The pipeline of one worker without clients, for commands that ask the servers themselves. It connects to them as a sidecar does.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::Instant;

use crate::clock::{Clock, unix_ms};
use crate::config::Config;
use crate::guard::near::Changes;
use crate::metrics::{Metrics, ServerName};
use crate::monitor::Monitor;
use crate::proxy::{KeyHasher, LeaseTable, OutageTable, Plan, Proxy, ServerInfo, Shared, TagCache};
use crate::random::Random;
use crate::rule::Rules;
use crate::upstream::connection::Connection;
use crate::upstream::pool::{Pool, SharedPool};
use crate::upstream::{HealthSpec, PoolSpec, Security, ServerSpec};

/// A pipeline, and the monitors that tell it where the keys are.
pub(super) type Pipeline = (Proxy, Vec<Monitor>);

/// A pipeline over the pool of the tags only, without rules. Must be called in a runtime.
///
/// # Errors
/// The system refuses a resource.
pub(super) fn of_tags(config: &Config) -> io::Result<Pipeline> {
    let (tags, rules) = (&config.tags, Rules::new(Vec::new()));
    let plan = |_: &[Arc<SharedPool>]| {
        Plan::new(rules, Vec::new(), Vec::new(), Vec::new(), 0, tags.prefix.clone(), 0, tags.replicas > 1)
    };
    pipeline(std::slice::from_ref(&config.pools[tags.pool]), plan)
}

/// A pipeline over all pools and rules. Must be called in a runtime.
///
/// # Errors
/// The system refuses a resource.
pub(super) fn of_config(config: &Config) -> io::Result<Pipeline> {
    pipeline(&config.pools, |pools| crate::app::plan::plan(config, pools))
}

fn pipeline(specs: &[PoolSpec], plan: impl FnOnce(&[Arc<SharedPool>]) -> Plan) -> io::Result<Pipeline> {
    let name =
        |spec: &PoolSpec, server: &ServerSpec| ServerName { pool: spec.name.clone(), server: server.label() };
    let servers = specs.iter().flat_map(|spec| spec.all_servers().map(move |server| name(spec, server)));
    let metrics = Arc::new(Metrics::new(Vec::new(), servers.collect(), 1));
    let mut random = Random::from_entropy();
    let (clock, start) = (Clock::system(), Instant::now());
    // One command is too few to judge a server by.
    let unjudged = |spec: &PoolSpec| {
        let health = HealthSpec { enabled: false, ..spec.health };
        PoolSpec { health, ..spec.clone() }
    };
    let specs: Vec<_> = specs.iter().map(unjudged).collect();
    let pool =
        |spec: &PoolSpec| SharedPool::new(spec, &Security::open(&spec.security)?, unix_ms).map(Arc::new);
    let shared = specs.iter().map(pool);
    let shared_pools = shared.collect::<io::Result<Vec<_>>>()?;
    let monitor = |(spec, pool)| Monitor::without_marks(spec, pool, start, clock.clone());
    let monitors: Vec<_> = specs.iter().zip(&shared_pools).map(monitor).collect();
    let published =
        |monitor: &Option<Monitor>| monitor.as_ref().map(|monitor| Arc::clone(monitor.published()));
    let published: Vec<_> = monitors.iter().map(published).collect();
    let shared = Shared {
        plan: Arc::new(plan(&shared_pools)),
        leases: Arc::new(LeaseTable::new(0)),
        outages: Arc::new(OutageTable::new(0)),
        tag_cache: TagCache::new(Duration::ZERO),
        flushing: Arc::default(),
        changes: Arc::new(Changes::new(false)),
        may_keep: Arc::default(),
        near_memory: 0,
        sidecar: random.below(u64::MAX),
        observed: Arc::default(),
        builds: Arc::default(),
        client_marks: Arc::default(),
        hasher: KeyHasher::new(),
        clock,
        start,
        server_info: Arc::new(ServerInfo {
            metrics: Arc::clone(&metrics),
            max_connections: 0,
            workers: 1,
            tcp: None,
            unix: None,
            unix_mode: 0,
            flush_all: false,
            baseline: Arc::default(),
        }),
        views: published.iter().map(|one| one.as_ref()?.views.clone()).collect(),
        other_views: published.iter().map(|one| one.as_ref()?.other_views.clone()).collect(),
        repairs: vec![None; published.len()],
        repairing: Arc::default(),
    };
    let counts = metrics.worker(0);
    let mut first = 0;
    let mut pools = Vec::new();
    for pool in &shared_pools {
        let unconnected = pool.for_worker();
        let of_pool = first;
        first += unconnected.servers();
        pools.push(Pool::new(unconnected, |at, server, attempt| {
            let connection = Connection::new(server, attempt, counts.server(of_pool + at));
            spawn_local(Rc::clone(&connection).drive(Random::from_entropy()));
            connection
        }));
    }
    Ok((Proxy::new(shared, pools, random, counts, Arc::default()), monitors.into_iter().flatten().collect()))
}
