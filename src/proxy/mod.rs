//! The pipeline: from a request to its rule, through the guard, to the servers, and back.
//!
//! ```text
//!  session ──▶ calls::begin ──raw──────────▶ upstream ──▶ raw ─────┐
//!                 │                              ▲                 ├──▶ bytes for the client
//!                 └──guarded──▶ operation ◀──────┴──▶ read, guarded ─▶ wording
//!                                 │   the guard's machines
//!                              keeper (renewal, polling), desk (leases of all workers)
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

#[doc(hidden)] // for tests/sim, which speaks to its servers as production does
pub mod wire;
mod desk;
mod hash;
mod tag_cache;
mod operation;
mod keeper;
mod client;
mod calls;
mod scope;
mod large;
mod misses;
pub mod pooling;
mod raw;
mod fills;
mod gets;
mod tag_reads;
mod read;
mod meta_get;
mod near;
mod guarded;
mod stats;
mod wording;
mod invalidation;
pub mod explicit_tags;
mod tags;

pub use calls::{AccessSet, Call, LongGetState, QueuePosition};
pub use client::Client;
pub use desk::LeaseTable;
pub use large::LargeReply;
pub use stats::ServerInfo;
pub use tag_cache::TagCache;
pub use wording::MetaWinner;

use crate::clock::Clock;
use crate::guard::near::Changes;
use crate::guard::{Now, Policy, TagName};
use crate::metrics::{NO_RULE, WorkerMetrics};
use crate::random::Random;
use crate::rule::{Captures, Rules, Template};
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::PendingReplies;
use crate::upstream::pool::Pool;
use hash::KeyHasher;
use operation::GuardedKey;

/// What the configuration says, as the pipeline needs it. The same for all workers.
pub struct Plan {
    /// Which rule a key falls under.
    rules: Rules,
    /// What each rule says, in the same order.
    routes: Vec<RulePlan>,
    /// The guards that they refer to.
    guards: Vec<GuardPlan>,
    /// Where a key goes that no rule matches: the index of the pool `main`.
    main_pool: usize,
    /// What the keys of tags begin with.
    tag_prefix: Vec<u8>,
    /// Which pool holds the tags.
    tag_pool: usize,
    /// Whether two of its servers keep each.
    tag_copies: bool,
    /// The guard under which tags are bumped: none of any rule's.
    tag_guard: usize,
    /// Whether any rule has tags that its keys' changes bump.
    invalidates: bool,
    /// Whether under any rule keys may begin with tags.
    tags_in_key: bool,
}

impl Plan {
    /// A plan.
    pub fn new(
        rules: Rules,
        routes: Vec<RulePlan>,
        mut guards: Vec<GuardPlan>,
        main_pool: usize,
        tag_prefix: Vec<u8>,
        tag_pool: usize,
        tag_copies: bool,
    ) -> Plan {
        let tag_guard = guards.len();
        let tags_in_key = guards.iter().any(|guard| guard.tags_in_key);
        guards.push(GuardPlan {
            rule: NO_RULE,
            pool: tag_pool,
            policy: Policy::default(),
            tags: Vec::new(),
            tags_in_key: false,
            meta_winner: MetaWinner::Miss,
        });
        let invalidates = routes.iter().any(|route: &RulePlan| !route.invalidates.is_empty());
        Plan {
            rules,
            routes,
            guards,
            main_pool,
            tag_prefix,
            tag_pool,
            tag_copies,
            tag_guard,
            invalidates,
            tags_in_key,
        }
    }
}

/// What one rule says.
pub struct RulePlan {
    /// Where its keys go.
    pub pool: usize,
    /// How they are guarded, as an index into the plan's guards; `None`: not at all.
    pub guard: Option<usize>,
    /// What the tags are called that a change of such a key bumps.
    pub invalidates: Vec<Template>,
}

/// How the keys of one rule are guarded.
pub struct GuardPlan {
    /// The rule's index.
    pub rule: usize,
    /// Where its keys go.
    pub pool: usize,
    /// How long things last.
    pub policy: Policy,
    /// What its tags are called.
    pub tags: Vec<Template>,
    /// Whether classic clients may name more of them in the keys of what they store.
    pub tags_in_key: bool,
    /// What a winning `mg` without `N` and `R` is told.
    pub meta_winner: MetaWinner,
}

/// One worker's pipeline.
pub struct Proxy {
    plan: Arc<Plan>,
    pools: Vec<Pool>,
    desk: Arc<LeaseTable>,
    tag_cache: TagCache,
    sidecar: u64,
    clock: Clock,
    start: Instant,
    front: Arc<ServerInfo>,
    chance: RefCell<Random>,
    keeper: keeper::RenewalQueue,
    near: near::NearCache,
    hashes: KeyHasher,
    /// Where the names of tags are put together.
    tag: RefCell<Vec<u8>>,
    metrics: Arc<WorkerMetrics>,
}

/// What all workers of a process share.
#[derive(Clone)]
pub struct Shared {
    /// What the configuration says.
    pub plan: Arc<Plan>,
    /// Leases and waiters.
    pub desk: Arc<LeaseTable>,
    /// Versions of tags.
    pub tag_cache: TagCache,
    /// What was changed through any of them.
    pub changes: Arc<Changes>,
    /// How many bytes of what was read each of them may keep.
    pub near_memory: usize,
    /// This process among the fleet: a number drawn at its start.
    pub sidecar: u64,
    /// The wall clock.
    pub clock: Clock,
    /// When the process started: the zero of the monotonic clock, which all workers must share.
    pub start: Instant,
    /// What Kennel is to its clients.
    pub front: Arc<ServerInfo>,
}

/// Where a key goes.
enum KeyClass {
    /// As it is, to this pool. With the rule's metrics index.
    Raw { pool: usize, rule: usize },
    /// Through the guard.
    Guarded(GuardedKey),
    /// It is the key of the tag with this name.
    Tag(TagName),
}

impl Proxy {
    /// A worker's pipeline over its pools.
    pub fn new(shared: Shared, pools: Vec<Pool>, chance: Random, metrics: Arc<WorkerMetrics>) -> Proxy {
        let Shared { plan, desk, tag_cache, changes, near_memory, sidecar, clock, start, front } = shared;
        Proxy {
            plan,
            pools,
            desk,
            tag_cache,
            sidecar,
            clock,
            start,
            front,
            chance: RefCell::new(chance),
            keeper: keeper::RenewalQueue::default(),
            near: near::NearCache::new(near_memory, changes),
            hashes: KeyHasher::new(),
            tag: RefCell::default(),
            metrics,
        }
    }

    /// What this worker counts with.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// The largest value that any server takes.
    pub fn max_value(&self) -> usize {
        self.everywhere().map(|connection| connection.server().item_size()).max().unwrap_or(0)
    }

    /// Whether much waits to be written to a server, so that a large request should wait too: then this inbox is woken when it
    /// has been written. What waits here must leave room for the small ones, or these would be refused.
    pub fn is_congested(&self, inbox: &Rc<PendingReplies>) -> bool {
        self.everywhere().any(|connection| connection.is_congested(inbox))
    }

    /// Whether others may be waiting for what this client builds: it holds a lease.
    pub fn rebuilds(&self, connection: u64) -> bool {
        self.desk.all().any(|leases| leases.rebuilds(connection))
    }

    /// The moment.
    fn now(&self) -> Now {
        Now { wall: self.clock.now_ms(), mono: self.mono(Instant::now()) }
    }

    /// A moment on the monotonic clock, in ms.
    fn mono(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    fn target(&self, key: &[u8]) -> KeyClass {
        self.target_by(key, None)
    }

    /// The same, for whoever may know the first eight bytes of the key's MD5 already.
    fn target_by(&self, key: &[u8], md5: Option<u64>) -> KeyClass {
        if let Some(name) = key.strip_prefix(&self.plan.tag_prefix[..])
            && !name.is_empty()
        {
            return KeyClass::Tag(TagName::from_slice(name));
        }
        let mut captures = Captures::default();
        match self.plan.rules.find(key, &mut captures) {
            None => KeyClass::Raw { pool: self.plan.main_pool, rule: NO_RULE },
            Some(rule) => match self.plan.routes[rule] {
                RulePlan { pool, guard: None, .. } => KeyClass::Raw { pool, rule },
                RulePlan { pool, guard: Some(guard), .. } => {
                    let tags = self.tags(key, &captures, &self.plan.guards[guard].tags);
                    KeyClass::Guarded(GuardedKey {
                        guard,
                        place: self.pools[pool].place_by(key, md5),
                        key: SmallVec::from_slice(key),
                        tags,
                        learnt: 0,
                    })
                }
            },
        }
    }

    fn tags(&self, key: &[u8], captures: &Captures, templates: &[Template]) -> SmallVec<[TagName; 2]> {
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

    /// The tags that a change of this key bumps.
    fn invalidated_by(&self, key: &[u8]) -> SmallVec<[TagName; 2]> {
        let mut captures = Captures::default();
        if !self.plan.invalidates || key.starts_with(&self.plan.tag_prefix) {
            return SmallVec::new();
        }
        let rule = self.plan.rules.find(key, &mut captures);
        let templates = rule.map_or(&[][..], |rule| &self.plan.routes[rule].invalidates);
        self.tags(key, &captures, templates)
    }

    /// The key as its rule guards it, if one does.
    fn guarded(&self, key: &[u8]) -> Option<GuardedKey> {
        match self.target(key) {
            KeyClass::Guarded(guarded) => Some(guarded),
            _ => None,
        }
    }

    fn pool_of(&self, guard: usize) -> &Pool {
        &self.pools[self.plan.guards[guard].pool]
    }

    /// The connection to the server that holds a guarded key.
    fn home(&self, of: &GuardedKey) -> &Rc<Connection> {
        &self.pool_of(of.guard).connections()[of.place]
    }

    fn policy(&self, guard: usize) -> &Policy {
        &self.plan.guards[guard].policy
    }

    /// The index of a guard's rule in the metrics.
    fn metric(&self, guard: usize) -> usize {
        self.plan.guards[guard].rule
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hashes.of(key)
    }

    /// The connections to every server of every pool.
    fn everywhere(&self) -> impl Iterator<Item = &Rc<Connection>> {
        self.pools.iter().flat_map(|pool| pool.connections())
    }

    /// Drives this worker's connections; to be spawned on its thread.
    pub fn drive_connections(&self) {
        for connection in self.everywhere() {
            let seed = self.chance.borrow_mut().below(u64::MAX);
            tokio::task::spawn_local(Rc::clone(connection).drive(Random::seeded(seed)));
        }
    }
}
