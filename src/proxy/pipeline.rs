//! One worker's pipeline: what it is built from, and the class of a key.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::key::{GuardedKey, KeyClass, StructureKey};
use super::observer::{Observer, ObserverSettings};
use super::plan::{GuardPlan, Plan, RulePlan};
use super::reserved;
use super::state::client_marks::ClientMarks;
use super::state::key_hash::KeyHasher;
use super::state::lease_table::LeaseTable;
use super::state::near_cache::NearCache;
use super::state::outage_table::OutageTable;
use super::state::renewal_queue::{DueLease, RenewalQueue};
use super::state::server_info::ServerInfo;
use super::state::tag_cache::TagCache;
use super::state::unfinished::Unfinished;
use crate::clock::Clock;
use crate::failover::Views;
use crate::failover::repair::RepairStatus;
use crate::guard::leases::Owner;
use crate::guard::near::Changes;
use crate::guard::{Now, Policy, TagName};
use crate::kinds;
use crate::metrics::{LeaseEnd, NO_RULE, WorkerMetrics};
use crate::observed::OpenBuilds;
use crate::random::Random;
use crate::rule::{Captures, Template};
use crate::trace::Tap;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::PendingReplies;
use crate::upstream::pool::Pool;
use crate::upstream::{Address, OtherKind};

/// The pipeline of one worker.
pub struct Proxy {
    pub(super) plan: Arc<Plan>,
    pub(super) pools: Vec<Pool>,
    pub(super) leases: Arc<LeaseTable>,
    pub(super) outages: Arc<OutageTable>,
    pub(super) tag_cache: TagCache,
    pub(super) flushing: Arc<Mutex<()>>,
    pub(super) sidecar: u64,
    pub(super) server_info: Arc<ServerInfo>,
    pub(super) random: RefCell<Random>,
    pub(super) renewals: RenewalQueue,
    pub(super) unfinished: Rc<Unfinished>,
    pub(super) near: NearCache,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) observer: Observer,
    pub(super) builds: Arc<OpenBuilds>,
    pub(super) client_marks: Arc<ClientMarks>,
    pub(super) clock: Clock,
    pub(super) start: Instant,
    /// Where the keys of each server are, for each pool that fails over.
    pub(super) views: Vec<Option<Arc<Views>>>,
    /// The repair of copies, for each pool that fails over.
    pub(super) repairs: Vec<Option<Arc<RepairStatus>>>,
    pub(super) repairing: Arc<Mutex<()>>,
    /// The other placement; `None` if no pool's servers change.
    pub(super) other: Option<Other>,
    /// The policies of the guards for keys on a standby server.
    standby_policies: Vec<Policy>,
    hasher: KeyHasher,
    /// Buffer in which tag names are rendered.
    tag: RefCell<Vec<u8>>,
}

/// What all workers of a process share.
#[derive(Clone)]
pub struct Shared {
    /// What the configuration means.
    pub plan: Arc<Plan>,
    /// Leases and waiters, shared with the other workers.
    pub leases: Arc<LeaseTable>,
    /// Keys whose server gives no answer.
    pub outages: Arc<OutageTable>,
    /// Versions of tags that `tags.cache` lets it reuse.
    pub tag_cache: TagCache,
    /// Held by whoever flushes servers one after the other: two at once would take two of a record's three copies.
    pub flushing: Arc<Mutex<()>>,
    /// Counts of the changes made through any worker.
    pub changes: Arc<Changes>,
    /// Whether near values may be kept: not while requests are in flight that began under an earlier configuration.
    pub may_keep: Arc<AtomicBool>,
    /// Bytes that each worker may use for near values.
    pub near_memory: usize,
    /// Random number that identifies this process in the fleet.
    pub sidecar: u64,
    /// What is shown of requests.
    pub observed: Arc<ObserverSettings>,
    /// Misses of observed keys.
    pub builds: Arc<OpenBuilds>,
    /// Raw keys whose clients create and mark items themselves.
    pub client_marks: Arc<ClientMarks>,
    /// Hashes keys for what outlives a configuration.
    pub hasher: KeyHasher,
    /// Wall clock, which tests replace.
    pub clock: Clock,
    /// When the process started: zero of the monotonic clock that all workers share.
    pub start: Instant,
    /// What `stats` reports of Kennel itself.
    pub server_info: Arc<ServerInfo>,
    /// Where the keys of each server are, for each pool; `None` if the pool does not fail over. The times in them are on the
    /// clock that begins at `start`.
    pub views: Vec<Option<Arc<Views>>>,
    /// The same for the other list of servers of each pool.
    pub other_views: Vec<Option<Arc<Views>>>,
    /// The repair of the copies of each pool; `None` if it does not fail over.
    pub repairs: Vec<Option<Arc<RepairStatus>>>,
    /// Held by the worker that repairs copies.
    pub repairing: Arc<Mutex<()>>,
}

/// The pipeline over the other lists.
pub(crate) struct Other {
    /// A pool that does not change is the same here.
    pub(crate) proxy: Rc<Proxy>,
    /// What the other list of each pool is; `None` if it has none.
    pub(super) kinds: Vec<Option<OtherKind>>,
}

impl Other {
    /// `None` if no pool changes.
    pub(super) fn new(
        shared: &Shared,
        pools: &[Pool],
        random: Random,
        metrics: &Arc<WorkerMetrics>,
        tap: &Arc<Tap>,
    ) -> Option<Other> {
        let others: Vec<Option<(OtherKind, Pool)>> = pools.iter().map(Pool::other).collect();
        let kinds: Vec<_> = others.iter().map(|other| other.as_ref().map(|(kind, _)| *kind)).collect();
        if kinds.iter().all(Option::is_none) {
            return None;
        }
        let views = |at: usize| match kinds[at] {
            Some(_) => shared.other_views[at].clone(),
            None => shared.views[at].clone(),
        };
        // It only invalidates, and reads what is taken over: no client waits here, and nothing is cached.
        let shared = Shared {
            leases: Arc::new(LeaseTable::new(0)),
            outages: Arc::new(OutageTable::new(0)),
            tag_cache: TagCache::new(Duration::ZERO),
            changes: Arc::new(Changes::new(false)),
            near_memory: 0,
            views: (0..pools.len()).map(views).collect(),
            other_views: vec![None; pools.len()],
            repairs: vec![None; pools.len()],
            ..shared.clone()
        };
        let pool = |(pool, other): (&Pool, Option<(OtherKind, Pool)>)| match other {
            Some((_, other)) => other,
            None => pool.same(),
        };
        let pools = pools.iter().zip(others).map(pool).collect();
        Some(Other {
            proxy: Rc::new(Proxy::new(shared, pools, random, Arc::clone(metrics), Arc::clone(tap))),
            kinds,
        })
    }
}

impl Proxy {
    /// A worker's pipeline over its pools.
    pub fn new(
        shared: Shared,
        pools: Vec<Pool>,
        mut random: Random,
        metrics: Arc<WorkerMetrics>,
        tap: Arc<Tap>,
    ) -> Proxy {
        let other = Other::new(&shared, &pools, Random::seeded(random.below(u64::MAX)), &metrics, &tap);
        let Shared {
            plan,
            leases,
            outages,
            tag_cache,
            flushing,
            changes,
            may_keep,
            near_memory,
            sidecar,
            observed,
            builds,
            client_marks,
            hasher,
            clock,
            start,
            server_info,
            views,
            other_views: _,
            repairs,
            repairing,
        } = shared;
        let observer = Observer::new(tap, observed, &mut random);
        let slow = observer.slow_reply();
        pools.iter().flat_map(Pool::all_connections).for_each(|connection| connection.note_slow_from(slow));
        let on_standby = |guard: &GuardPlan| guard.policy.on_standby(pools[guard.pool].standby_ttl());
        let standby_policies = plan.guards.iter().map(on_standby).collect();
        Proxy {
            plan,
            pools,
            leases,
            outages,
            tag_cache,
            flushing,
            sidecar,
            server_info,
            random: RefCell::new(random),
            renewals: RenewalQueue::default(),
            unfinished: Unfinished::new(Arc::clone(&metrics)),
            near: NearCache::new(near_memory, changes, may_keep),
            metrics,
            observer,
            builds,
            client_marks,
            clock,
            start,
            views,
            repairs,
            repairing,
            other,
            standby_policies,
            hasher,
            tag: RefCell::default(),
        }
    }

    /// Counters of this worker.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// The same, for what outlives this pipeline.
    pub fn shared_metrics(&self) -> Arc<WorkerMetrics> {
        Arc::clone(&self.metrics)
    }

    /// What commands have left to do.
    pub(super) fn unfinished(&self) -> Rc<Unfinished> {
        Rc::clone(&self.unfinished)
    }

    /// The largest value that any server accepts, in bytes.
    pub fn max_value(&self) -> usize {
        self.connections().map(|connection| connection.server().item_size()).max().unwrap_or(0)
    }

    /// Whether so much is queued for a server that a large request must wait. `replies` is then woken when it has been written.
    /// The queue keeps room for small requests, which would be refused otherwise.
    pub fn is_congested(&self, replies: &Rc<PendingReplies>) -> bool {
        self.connections().any(|connection| connection.is_congested(replies))
    }

    /// Whether the first attempt to connect to a server is in progress, so that meta commands may be sent later than others.
    pub fn is_connecting(&self) -> bool {
        self.connections().any(|connection| connection.is_connecting())
    }

    /// Whether this client connection holds a lease, so that others may be waiting for its value.
    pub fn rebuilds(&self, connection: u64) -> bool {
        self.leases.all().any(|leases| leases.rebuilds(connection))
    }

    /// Whether a connection of the same client as this one builds a value. Keys whose server gives no answer are taken to be built by
    /// each client.
    pub(super) fn builds(&self, owner: Owner) -> bool {
        self.leases.has_lease_of(owner.peers) || !self.outages.is_empty()
    }

    /// Whether this connection may still fill a miss. `pooled`: or another connection of the same client.
    pub(super) fn awaits_fill(&self, owner: Owner, pooled: bool) -> bool {
        let now = self.now();
        self.leases.all().any(|leases| leases.awaits_fill(owner, pooled, now))
            || (!self.outages.is_empty() && self.outages.with(&self.metrics, |outages| outages.builds(owner)))
    }

    /// Takes over the renewal of the leases that were won under an earlier configuration. One whose key is now kept elsewhere, or has
    /// other tags, ends.
    pub fn take_over_leases(&self, former: &Proxy) {
        while let Some(DueLease { at, id, key }) = former.renewals.pop() {
            match self.guarded(&key.key) {
                Some(now) if self.policy(now.guard).plan == former.policy(key.guard).plan => {
                    self.queue_renewal(at, id, GuardedKey { guard: now.guard, ..key });
                }
                _ if self.leases.shard(&key.key).end_lease(&key.key, id) => {
                    former.metrics.lease_ended(former.rule_of(key.guard), LeaseEnd::Lost, Duration::ZERO);
                    former.observe_release(Some(&key), LeaseEnd::Lost, Duration::ZERO);
                    former.wake_without_value(&key.key);
                }
                _ => {}
            }
        }
    }

    pub(super) fn now(&self) -> Now {
        Now { wall: self.clock.now_ms(), mono: self.mono(Instant::now()) }
    }

    /// A time on the monotonic clock, in ms.
    pub(super) fn mono(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// The class of a key.
    pub(super) fn class(&self, key: &[u8]) -> KeyClass {
        self.class_by_md5(key, None)
    }

    /// The class of a key. `md5` holds the first eight bytes of the key's MD5 if the caller knows them.
    pub(super) fn class_by_md5(&self, key: &[u8], md5: Option<u64>) -> KeyClass {
        if let Some(name) = key.strip_prefix(&self.plan.tag_prefix[..])
            && !name.is_empty()
        {
            return KeyClass::Tag(TagName::from_slice(name));
        }
        if let Some(line) = reserved::refusal(key) {
            return KeyClass::Reserved(line);
        }
        let mut captures = Captures::default();
        match self.plan.rules.find(key, &mut captures) {
            None => KeyClass::Raw { pool: self.plan.main_pool, rule: NO_RULE },
            Some(rule) => match self.plan.rule_plans[rule] {
                RulePlan { pool, guard: None, structure: None, .. } => KeyClass::Raw { pool, rule },
                RulePlan { pool, share: Some(share), .. } if !share.contains(key) => {
                    KeyClass::Raw { pool, rule }
                }
                RulePlan { pool, structure: Some(structure), .. } => {
                    let plan = &self.plan.structures[structure];
                    let length = kinds::split(&plan.kind, plan.prefix, key);
                    // An element of a table is an item as any other, on the server of its table.
                    if length < key.len() && matches!(plan.kind, kinds::Kind::Table(_)) {
                        return KeyClass::Raw { pool, rule };
                    }
                    let md5 = md5.filter(|_| length == key.len());
                    let server = self.pools[pool].server_index_by(&key[..length], md5);
                    KeyClass::Structure(StructureKey {
                        structure,
                        server,
                        key: SmallVec::from_slice(key),
                        length,
                    })
                }
                RulePlan { pool, guard: Some(guard), .. } => {
                    let tags = self.render_tags(key, &captures, &self.plan.guards[guard].tags);
                    let home = self.pools[pool].server_index_by(key, md5);
                    KeyClass::Guarded(GuardedKey {
                        guard,
                        place: self.place_of_key(pool, key, home),
                        key: SmallVec::from_slice(key),
                        tag_places: if tags.is_empty() { None } else { self.tag_places(&tags) },
                        tags,
                        explicit_tags: 0,
                    })
                }
            },
        }
    }

    /// The key with its guard, if a rule guards it.
    pub(super) fn guarded(&self, key: &[u8]) -> Option<GuardedKey> {
        match self.class(key) {
            KeyClass::Guarded(guarded) => Some(guarded),
            _ => None,
        }
    }

    /// The tags that a change of this key bumps.
    pub(super) fn invalidated_by(&self, key: &[u8]) -> SmallVec<[TagName; 2]> {
        let mut captures = Captures::default();
        if !self.plan.invalidates
            || key.starts_with(&self.plan.tag_prefix)
            || reserved::refusal(key).is_some()
        {
            return SmallVec::new();
        }
        let rule = self.plan.rules.find(key, &mut captures);
        let templates = rule.map_or(&[][..], |rule| &self.plan.rule_plans[rule].invalidates);
        self.render_tags(key, &captures, templates)
    }

    fn render_tags(&self, key: &[u8], captures: &Captures, templates: &[Template]) -> SmallVec<[TagName; 2]> {
        let prefix = &self.plan.tag_prefix;
        let mut tag = self.tag.borrow_mut();
        let render = |template: &Template| {
            tag.clear();
            tag.extend_from_slice(prefix);
            template.render(key, captures, &mut tag);
            TagName::from_slice(&tag[prefix.len()..])
        };
        templates.iter().map(render).collect()
    }

    /// The pool of a guard's keys.
    pub(super) fn pool_of(&self, guard: usize) -> &Pool {
        &self.pools[self.plan.guards[guard].pool]
    }

    /// The connection to the server that has a guarded key.
    pub(super) fn connection_of(&self, key: &GuardedKey) -> &Rc<Connection> {
        &self.pool_of(key.guard).connections()[key.place.server]
    }

    /// The policy of a key, in its place.
    pub(super) fn policy_of(&self, key: &GuardedKey) -> &Policy {
        match key.place.is_standby() {
            true => &self.standby_policies[key.guard],
            false => self.policy(key.guard),
        }
    }

    /// The policy of a guard.
    pub(super) fn policy(&self, guard: usize) -> &Policy {
        &self.plan.guards[guard].policy
    }

    /// The index of a guard's rule in the metrics.
    pub(super) fn rule_of(&self, guard: usize) -> usize {
        self.plan.guards[guard].rule
    }

    /// The hash of a key or tag.
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// One connection to each server, even if the server is in several pools, with the name of its first pool.
    pub(super) fn distinct_servers(&self) -> impl Iterator<Item = (&str, &Rc<Connection>)> {
        let mut seen = HashSet::new();
        // Embedded servers are different servers even if their addresses are equal.
        let is_new = move |(_, connection): &(&str, &Rc<Connection>)| match connection.server().address() {
            Address::Embedded { .. } => true,
            address => seen.insert(address.clone()),
        };
        let of_pool = |pool| Pool::all_connections(pool).map(move |connection| (pool.name(), connection));
        self.pools.iter().flat_map(of_pool).filter(is_new)
    }

    /// The connections to every server of every pool, including those of the other list while the servers change.
    pub(super) fn connections(&self) -> impl Iterator<Item = &Rc<Connection>> {
        self.pools.iter().flat_map(|pool| pool.all_connections())
    }

    /// The same, each with whether its pool fails over.
    pub(super) fn all_connections(&self) -> impl Iterator<Item = (&Rc<Connection>, bool)> {
        let pools = self.pools.iter().zip(&self.views);
        pools.flat_map(|(pool, views)| pool.all_connections().map(|connection| (connection, views.is_some())))
    }

    /// Where the keys of each server are, in all pools that fail over and in both lists of their servers.
    pub(super) fn all_views(&self) -> Vec<Arc<Views>> {
        let other = self.other.iter().flat_map(|other| &other.proxy.views);
        let mut all: Vec<Arc<Views>> = Vec::new();
        for views in self.views.iter().chain(other).flatten() {
            if !all.iter().any(|known| Arc::ptr_eq(known, views)) {
                all.push(Arc::clone(views));
            }
        }
        all
    }
}
