//! Looks up what there is to discover, and says when a pool changes.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::list::{self, Found};
use super::lookup::{Answer, look_up};
use super::pool::{Entry, Pool, log_phase};
use super::settling::{Phase, Settling, Step};
use super::status::Status;
use crate::config::{Config, Loaded};
use crate::metrics::{DiscoveredPool, DiscoverySource};
use crate::monitor::forget;
use crate::random::Random;
use crate::upstream::{Lookup, PoolSpec};

/// How long the start of the process, or a reload, waits for servers that are not known yet.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest pause between two lookups of an entry, whatever its TTL.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// By how much of it a pause is shortened at random, so that the sidecars of a fleet do not look up in step.
const JITTER: f64 = 0.1;
/// How long after a change that the process could not carry out it is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The entries of a configuration that stand for servers which are looked up, and what is known about them.
pub struct Discovery {
    written: Loaded,
    pools: Vec<Pool>,
    lookups: JoinSet<Looked>,
    /// Zero of the times of `Settling`.
    start: Instant,
    /// No change is begun before.
    not_before: Instant,
    random: Random,
    status: Arc<Status>,
}

/// The result of a lookup.
struct Looked {
    pool: usize,
    lookup: Lookup,
    result: Result<Answer, String>,
}

/// A configuration that must be put in force, because what was found has changed.
pub struct Change {
    /// Configuration to switch to, with the servers that were found.
    pub loaded: Loaded,
    phases: Vec<(usize, Phase<Found>)>,
}

impl Discovery {
    /// What there is to discover in a configuration as it is written. Nothing is looked up yet.
    pub fn new(written: Loaded) -> Discovery {
        let now = Instant::now();
        let settle = written.config.discovery.settle;
        let pool = |(at, pool): (usize, &PoolSpec)| Pool::new(at, pool, settle, now);
        let pools = written.config.pools.iter().enumerate().filter_map(pool).collect();
        Discovery {
            written,
            pools,
            lookups: JoinSet::new(),
            start: now,
            not_before: now,
            random: Random::from_entropy(),
            status: Arc::default(),
        }
    }

    /// Looks up everything once, for at most five seconds. Pools of which everything is found are in force with it.
    pub async fn first(&mut self) {
        let deadline = Instant::now() + FIRST_TIMEOUT;
        self.begin_lookups();
        while let Ok(Some(looked)) = timeout_at(deadline, self.lookups.join_next()).await {
            self.looked(looked.ok());
        }
        let now = self.now();
        for pool in &mut self.pools {
            if let (Phase::Unknown, Some(phase)) = (pool.settling.phase(), pool.settling.due(now)) {
                log_phase(&self.written.config.pools[pool.at], &phase, Duration::ZERO);
                pool.settling.begin(now, phase);
            }
        }
        self.show();
    }

    /// What the status page and the metrics show of lookups.
    pub fn status(&self) -> Arc<dyn DiscoverySource> {
        Arc::clone(&self.status) as Arc<dyn DiscoverySource>
    }

    /// The configuration as it is written.
    pub fn written(&self) -> &Config {
        &self.written.config
    }

    /// The configuration with the servers that are in force.
    pub fn in_force(&self) -> Loaded {
        self.with(&[])
    }

    /// The pools and entries of which nothing is known: `pools.main: dns+cache:11211: there is no such name`.
    pub fn unknown(&self) -> Vec<String> {
        let is_unknown = |pool: &&Pool| *pool.settling.phase() == Phase::Unknown;
        let lines = self.pools.iter().filter(is_unknown).flat_map(|pool| {
            let name = &self.written.config.pools[pool.at].name;
            let missing = pool.entries.iter().filter(|entry| entry.answer.is_none());
            missing.map(move |entry| {
                let why = entry.shown.error.as_deref().unwrap_or("no answer in time");
                format!("pools.{name}: {}: {why}", entry.lookup)
            })
        });
        lines.collect()
    }

    /// What each entry stands for: `pool main: dns+cache:11211: 10.0.0.1:11211, 10.0.0.2:11211`.
    pub fn found(&self) -> Vec<String> {
        let of_pool = |pool: &Pool| {
            let name = self.written.config.pools[pool.at].name.clone();
            let answered = pool.entries.iter().filter_map(|entry| Some((entry, entry.answer.as_ref()?)));
            let line = answered.map(move |(entry, answer)| {
                let servers: Vec<_> = answer.servers.iter().map(ToString::to_string).collect();
                format!("pool {name}: {}: {}", entry.lookup, servers.join(", "))
            });
            line.collect::<Vec<_>>()
        };
        self.pools.iter().flat_map(of_pool).collect()
    }

    /// Waits until another configuration must be put in force. Never returns if nothing is discovered. May be dropped at any time.
    pub async fn changed(&mut self) -> Change {
        loop {
            if self.pools.is_empty() {
                return pending().await;
            }
            self.begin_lookups();
            self.forget_former();
            self.show();
            if let Some(change) = self.change() {
                return change;
            }
            let wake = self.wakes_at();
            tokio::select! {
                Some(looked) = self.lookups.join_next() => self.looked(looked.ok()),
                () = sleep_until(wake) => {}
            }
        }
    }

    /// The change is in force.
    pub fn begin(&mut self, change: Change) {
        let now = self.now();
        for (at, phase) in change.phases {
            let spec = &self.written.config.pools[self.pools[at].at];
            let settle = self.written.config.discovery.settle;
            log_phase(spec, &phase, settle);
            let pool = &mut self.pools[at];
            if let (Phase::Changing(from, _, Step::Previous), Phase::Settled(_)) =
                (pool.settling.phase(), &phase)
            {
                pool.former = Some((from.clone(), now + settle));
            }
            pool.settling.begin(now, phase);
        }
        self.show();
    }

    /// The change cannot be put in force. It is tried again later.
    pub fn postpone(&mut self) {
        self.not_before = Instant::now() + RETRY;
    }

    /// The same for another configuration as it is written. What is known of entries that both have remains in force; entries that
    /// are new are looked up, for at most five seconds.
    ///
    /// # Errors
    /// New entries are not found, or a pool whose servers are changing would get others.
    pub async fn next(&self, written: Loaded) -> Result<Discovery, Vec<String>> {
        let mut next = Discovery::new(written);
        (next.start, next.status) = (self.start, Arc::clone(&self.status));
        let mut errors = Vec::new();
        for (name, lists) in self.changing() {
            let named = |pool: &&PoolSpec| pool.name == *name;
            let stays = next.written.config.pools.iter().find(named);
            if let Some(pool) = stays.filter(|pool| (&pool.servers, &pool.other) != lists) {
                errors.push(format!(
                    "pools.{}.servers cannot be changed while the servers that are discovered change: wait until \
                     kennel_discovery_step is 0",
                    pool.name
                ));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let settle = next.written.config.discovery.settle;
        for pool in &mut next.pools {
            let spec = &next.written.config.pools[pool.at];
            let former =
                self.pools.iter().find(|former| self.written.config.pools[former.at].name == spec.name);
            let Some(former) = former else { continue };
            for entry in &mut pool.entries {
                if let Some(known) = former.entries.iter().find(|known| known.lookup == entry.lookup) {
                    (entry.answer, entry.shown) = (known.answer.clone(), known.shown.clone());
                    (entry.older, entry.failed) = (known.older, known.failed);
                }
            }
            let before = &self.written.config.pools[former.at];
            if (&before.servers, &before.other) == (&spec.servers, &spec.other) {
                (pool.settling, pool.former) = (former.settling.clone(), former.former.clone());
                pool.settling.set_settle(settle);
            }
        }
        let is_new = |pool: &Pool, entry: &Entry| {
            let name = &next.written.config.pools[pool.at].name;
            !self.pools.iter().any(|former| {
                let is_same = self.written.config.pools[former.at].name == *name;
                is_same && former.entries.iter().any(|known| known.lookup == entry.lookup)
            })
        };
        let new: Vec<_> = next
            .pools
            .iter()
            .enumerate()
            .flat_map(|(at, pool)| pool.entries.iter().map(move |entry| (at, pool, entry)))
            .filter(|(_, pool, entry)| is_new(pool, entry))
            .map(|(at, _, entry)| (at, entry.lookup.clone()))
            .collect();
        if !new.is_empty() {
            next.first().await;
        }
        for (at, lookup) in new {
            let pool = &next.pools[at];
            let entry = pool.entries.iter().find(|entry| entry.lookup == lookup && entry.answer.is_none());
            if let Some(entry) = entry {
                let name = &next.written.config.pools[pool.at].name;
                let why = entry.shown.error.as_deref().unwrap_or("no answer in time");
                errors.push(format!("pools.{name}: {lookup} is not found: {why}"));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        next.keep_in_force(self);
        Ok(next)
    }

    /// Entries of a pool with other lists stand for what they stand for in force, not for what has been found since.
    fn keep_in_force(&mut self, former: &Discovery) {
        let (now, settle) = (self.now(), self.written.config.discovery.settle);
        for pool in &mut self.pools {
            let spec = &self.written.config.pools[pool.at];
            let same =
                former.pools.iter().find(|same| former.written.config.pools[same.at].name == spec.name);
            let Some(same) = same else { continue };
            let before = &former.written.config.pools[same.at];
            if (&before.servers, &before.other) == (&spec.servers, &spec.other) {
                continue;
            }
            let in_force = same.settling.read_by();
            let mut found = Found::new();
            for entry in &pool.entries {
                let kept = in_force.and_then(|found| found.get(&entry.lookup)).cloned();
                let servers = kept.or_else(|| Some(entry.answer.as_ref()?.servers.clone()));
                found.extend(servers.map(|servers| (entry.lookup.clone(), servers)));
            }
            let is_complete = found.len() == pool.entries.len();
            pool.settling = Settling::new(settle, is_complete.then_some(found));
            if let Some(latest) = pool.latest() {
                pool.settling.found(now, latest);
            }
        }
    }

    /// The pools whose servers change, with the lists as they are written.
    fn changing(&self) -> impl Iterator<Item = (&String, Lists<'_>)> {
        let changing = self.pools.iter().filter(|pool| matches!(pool.settling.phase(), Phase::Changing(..)));
        changing.map(|pool| {
            let spec = &self.written.config.pools[pool.at];
            (&spec.name, (&spec.servers, &spec.other))
        })
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Begins the lookups that are due.
    fn begin_lookups(&mut self) {
        let (now, since) = (Instant::now(), self.now());
        for (at, pool) in self.pools.iter_mut().enumerate() {
            let spec = &self.written.config.pools[pool.at];
            let must_look = pool.settling.must_look(since);
            for entry in &mut pool.entries {
                if entry.next.is_none_or(|next| next > now && !must_look) {
                    continue;
                }
                entry.next = None;
                let (lookup, spec) = (entry.lookup.clone(), spec.clone());
                self.lookups.spawn(async move {
                    let result = look_up(lookup.clone(), spec).await;
                    Looked { pool: at, lookup, result }
                });
            }
        }
    }

    /// Forgets the placements that no sidecar uses any longer: their servers may be used again, and have missed invalidations since.
    fn forget_former(&mut self) {
        let now = self.now();
        for pool in &mut self.pools {
            let Some((found, _)) = pool.former.take_if(|(_, at)| now >= *at) else { continue };
            let spec = &self.written.config.pools[pool.at];
            if let Ok(spec) = list::in_force(spec, &Phase::Settled(found)) {
                tokio::spawn(async move { forget(&spec).await });
            }
        }
    }

    /// Takes the result of a lookup; `None` if it has panicked.
    fn looked(&mut self, looked: Option<Looked>) {
        let Some(Looked { pool: at, lookup, result }) = looked else { return };
        let (now, since) = (Instant::now(), self.now());
        let Config { discovery, listen, pools, .. } = &self.written.config;
        let Some(pool) = self.pools.get_mut(at) else { return };
        let spec = &pools[pool.at];
        let mut with_it = pool.latest_but(&lookup);
        let Some(entry) = pool.entries.iter_mut().find(|entry| entry.lookup == lookup) else { return };
        let result = result.and_then(|answer| {
            entry.check_version(&answer, now, discovery.settle)?;
            with_it.insert(lookup.clone(), answer.servers.clone());
            let is_complete = spec.lookups().all(|lookup| with_it.contains_key(lookup));
            match list::problem(spec, &with_it, listen).filter(|_| is_complete) {
                Some(problem) => Err(problem),
                None => Ok(answer),
            }
        });
        match result {
            Ok(answer) => {
                let pause = answer.ttl.unwrap_or(discovery.interval);
                let pause = pause.clamp(SHORTEST_PAUSE.min(discovery.interval), discovery.interval);
                entry.next = Some(now + self.random.jitter(pause, JITTER));
                entry.succeeded(&spec.name, answer);
                if let Some(found) = pool.latest() {
                    pool.settling.found(since, found);
                }
            }
            Err(why) => {
                entry.failed(&spec.name, why);
                let pause = SHORTEST_PAUSE * 2_u32.saturating_pow((entry.failed - 1).min(12));
                entry.next = Some(now + self.random.jitter(pause.min(discovery.interval), JITTER));
                pool.settling.failed(since);
            }
        }
    }

    /// What must be put in force now.
    fn change(&self) -> Option<Change> {
        if Instant::now() < self.not_before {
            return None;
        }
        let now = self.now();
        let due = self.pools.iter().enumerate().filter_map(|(at, pool)| {
            // While the configuration takes steps, what is discovered does not change.
            let is_held = self.written.config.pools[pool.at].other.is_some();
            let phase = pool.settling.due(now)?;
            (!is_held || *pool.settling.phase() == Phase::Unknown).then_some((at, phase))
        });
        let phases: Vec<_> = due.collect();
        (!phases.is_empty()).then(|| Change { loaded: self.with(&phases), phases })
    }

    /// The configuration with the phases in force, or these.
    fn with(&self, phases: &[(usize, Phase<Found>)]) -> Loaded {
        let mut pools = self.written.config.pools.clone();
        for (at, pool) in self.pools.iter().enumerate() {
            let phase = phases.iter().find(|(of, _)| *of == at).map(|(_, phase)| phase);
            let written = &self.written.config.pools[pool.at];
            // What is found has been checked; without it, the pool has no server.
            let in_force = list::in_force(written, phase.unwrap_or(pool.settling.phase()))
                .or_else(|_| list::in_force(written, &Phase::Unknown));
            if let Ok(in_force) = in_force {
                pools[pool.at] = in_force;
            }
        }
        let config = list::with_pools(&self.written.config, pools);
        Loaded { config, ..self.written.clone() }
    }

    fn wakes_at(&self) -> Instant {
        let next = self.pools.iter().flat_map(|pool| &pool.entries).filter_map(|entry| entry.next).min();
        let ends = self.pools.iter().filter_map(|pool| pool.settling.ends_at()).map(|at| self.start + at);
        let now = Instant::now();
        // What has ended waits for a lookup.
        let former = self.pools.iter().filter_map(|pool| Some(self.start + pool.former.as_ref()?.1));
        let ends = ends.chain(former).filter(|at| *at > now).min();
        let later = Some(self.not_before).filter(|at| *at > now);
        let all = [next, ends, later].into_iter().flatten().min();
        all.unwrap_or(now + self.written.config.discovery.interval)
    }

    fn show(&self) {
        let pool = |pool: &Pool| DiscoveredPool {
            pool: self.written.config.pools[pool.at].name.clone(),
            step: match pool.settling.phase() {
                Phase::Changing(_, _, step) => step.number(),
                Phase::Unknown | Phase::Settled(_) => 0,
            },
            is_unknown: *pool.settling.phase() == Phase::Unknown,
            entries: pool.entries.iter().map(|entry| entry.shown.clone()).collect(),
        };
        self.status.show(self.pools.iter().map(pool).collect());
    }
}

/// The two lists of a pool, as they are written.
type Lists<'a> = (&'a Vec<crate::upstream::ServerSpec>, &'a Option<crate::upstream::OtherPlacement>);
