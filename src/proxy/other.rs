//! The other placement of pools whose servers change: the pipeline over the other lists of servers.
//!
//! While the servers change, a key has two places, and processes of adjacent steps read different ones. What is invalidated is
//! therefore invalidated in both, in the previous one first (docs/decisions/0013).

use std::rc::Rc;

use super::key::{GuardedKey, Place};
use super::pipeline::Proxy;
use crate::upstream::OtherKind;

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
