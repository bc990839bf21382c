//! The other placement of pools whose servers change: the pipeline over the other lists of servers.
//!
//! While the servers change, a key has two places, and processes of adjacent steps read different ones. What is invalidated is
//! therefore invalidated in both, in the previous one first (docs/decisions/0026).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::key::{GuardedKey, Place};
use super::pipeline::{Proxy, Shared};
use super::state::lease_table::LeaseTable;
use super::state::outage_table::OutageTable;
use super::state::tag_cache::TagCache;
use crate::guard::near::Changes;
use crate::metrics::WorkerMetrics;
use crate::random::Random;
use crate::upstream::OtherKind;
use crate::upstream::pool::Pool;

/// The pipeline over the other lists.
pub(crate) struct Other {
    /// A pool that does not change is the same here.
    pub(crate) proxy: Rc<Proxy>,
    /// What the other list of each pool is; `None` if it has none.
    kinds: Vec<Option<OtherKind>>,
}

impl Other {
    /// `None` if no pool changes.
    pub(super) fn new(
        shared: &Shared,
        pools: &[Pool],
        random: Random,
        metrics: &Arc<WorkerMetrics>,
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
            ..shared.clone()
        };
        let pool = |(pool, other): (&Pool, Option<(OtherKind, Pool)>)| match other {
            Some((_, other)) => other,
            None => pool.same(),
        };
        let (tag_pool, here) = (shared.plan.tag_pool, pools[shared.plan.tag_pool].placement());
        let pools: Vec<Pool> = pools.iter().zip(others).map(pool).collect();
        let is_larger = pools[tag_pool].placement() > here;
        let mut proxy = Proxy::new(shared, pools, random, Arc::clone(metrics));
        proxy.odd_versions = kinds[tag_pool].map(|_| is_larger);
        Some(Other { proxy: Rc::new(proxy), kinds })
    }

    /// Whether new versions of tags are odd where they are read. Every process of the change decides alike.
    pub(super) fn odd_versions(&self) -> Option<bool> {
        self.proxy.odd_versions.map(|odd| !odd)
    }
}

impl Proxy {
    /// The pipeline over the other list of servers of this pool, and what that list is. `None` if the pool has none.
    pub(crate) fn other(&self, pool: usize) -> Option<(&Rc<Proxy>, OtherKind)> {
        let other = self.other.as_ref()?;
        Some((&other.proxy, other.kinds[pool]?))
    }

    /// The key in the other placement. `None` if its pool does not change. Its tags are of no use there.
    pub(crate) fn elsewhere(&self, key: &GuardedKey) -> Option<GuardedKey> {
        let pool = self.plan.guards[key.guard].pool;
        let (other, _) = self.other(pool)?;
        let place = other.place_of_key(pool, &key.key, other.pools[pool].server_index(&key.key));
        let (guard, key) = (key.guard, key.key.clone());
        Some(GuardedKey { guard, place, key, tags: Default::default(), explicit_tags: 0, tag_places: None })
    }

    /// Whether a place here and one of the other placement are the same server.
    pub(crate) fn is_same_server(&self, pool: usize, here: &Place, elsewhere: &Place) -> bool {
        self.other(pool).is_some_and(|(other, _)| {
            let connections = (self.pools[pool].connections(), other.pools[pool].connections());
            Rc::ptr_eq(&connections.0[here.server], &connections.1[elsewhere.server])
        })
    }
}
