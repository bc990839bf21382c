//! Where the fleet keeps an item: on the server that the ring names or, while that is away, on its standby.
//!
//! An operation looks once, when it begins, and remembers the fence. Each command is sent only while the place still has that
//! fence, and a change is acknowledged only if it has it at the end.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::time::Instant;

use super::key::{GuardedKey, Place, TagPlaces};
use super::pipeline::Proxy;
use crate::failover::{View, Views};
use crate::guard::{Operation, TagName, TagNames};

/// What has become of a place since the operation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has the same fence.
    Valid,
    /// It has another fence.
    Replaced,
    /// There is no valid view.
    Unknown,
}

/// Returns once the records of where keys are have all their copies. False if that cannot be.
pub(crate) async fn restored(views: &[Arc<Views>]) -> bool {
    let mut all = true;
    for views in views {
        if let Some(number) = views.restore() {
            all &= poll_fn(|cx| views.poll_restored(number, cx)).await;
        }
    }
    all
}

impl Proxy {
    /// Where a key of this pool is kept now. `home`: where the ring puts it.
    pub(crate) fn place_of_key(&self, pool: usize, key: &[u8], home: usize) -> Place {
        self.place(pool, home, || self.pools[pool].standby_index(key, home))
    }

    /// Where an item of this pool is kept now. `home`: where the ring puts it; `standby`: where, while that server is away.
    fn place(&self, pool: usize, home: usize, standby: impl FnOnce() -> usize) -> Place {
        if self.views[pool].is_none() {
            return Place::fixed(home);
        }
        match self.view(pool, home) {
            Some(View { fence, standby: is_standby, inherited }) => {
                let server = if is_standby { standby() } else { home };
                Place { server, home, fence: Some(fence), inherited }
            }
            None => Place { server: home, home, fence: None, inherited: 0 },
        }
    }

    /// Whether the servers of this pool fail over.
    pub(crate) fn fails_over(&self, pool: usize) -> bool {
        self.views[pool].is_some()
    }

    /// Where the keys of this server are; `None` if no view is valid, or if the pool does not fail over.
    pub(super) fn view(&self, pool: usize, server: usize) -> Option<View> {
        // The time of the turn may be before a request of this turn was sent.
        self.views[pool].as_ref()?.get(server, self.mono(Instant::now()))
    }

    /// What has become of this place.
    pub(crate) fn standing(&self, pool: usize, place: &Place) -> Standing {
        if self.views[pool].is_none() {
            return Standing::Valid;
        }
        match (self.view(pool, place.home), place.fence) {
            (Some(view), Some(fence)) if view.fence == fence => Standing::Valid,
            (Some(_), Some(_)) => Standing::Replaced,
            _ => Standing::Unknown,
        }
    }

    /// Whether the key is in another place now.
    pub(crate) fn is_replaced(&self, key: &GuardedKey) -> bool {
        self.standing(self.plan.guards[key.guard].pool, &key.place) == Standing::Replaced
    }

    /// The same key with the places as they are now.
    pub(crate) fn placed_again(&self, key: &GuardedKey) -> GuardedKey {
        let pool = self.plan.guards[key.guard].pool;
        let place = self.place_of_key(pool, &key.key, key.place.home);
        GuardedKey { place, tag_places: self.tag_places(&key.tags), ..key.clone() }
    }

    /// The key with further tags that its rule does not name.
    pub(crate) fn with_tags(&self, key: &GuardedKey, tags: TagNames) -> GuardedKey {
        let mut key = key.clone();
        match (&mut key.tag_places, self.tag_places(&tags)) {
            (Some(known), Some(more)) => {
                known.places.extend(more.places);
                known.fences.extend(more.fences);
                known.inherited.extend(more.inherited);
            }
            (known, more) => *known = more,
        }
        key.explicit_tags += tags.len();
        key.tags.extend(tags);
        key
    }

    /// Where these tags are kept now; `None` if their pool does not fail over.
    pub(crate) fn tag_places(&self, tags: &[TagName]) -> Option<Box<TagPlaces>> {
        self.views[self.plan.tag_pool].as_ref()?;
        let mut found = Box::<TagPlaces>::default();
        for tag in tags {
            let key = self.key_of_tag(tag);
            let first = self.tag_place(&key, false);
            found.push([first, if self.plan.tag_copies { self.tag_place(&key, true) } else { first }]);
        }
        Some(found)
    }

    /// Where the tag with this key, or its copy, is kept now.
    pub(crate) fn tag_place(&self, key: &[u8], copy: bool) -> Place {
        let pool = &self.pools[self.plan.tag_pool];
        let home = if copy { pool.second_server_index(key) } else { pool.server_index(key) };
        self.place(self.plan.tag_pool, home, || match self.plan.tag_copies {
            true => pool.standby_of_copy(key, copy),
            false => pool.standby_index(key, home),
        })
    }

    /// Where the two copies of the value of a key in this pool are kept now.
    pub(crate) fn places_of_copies(&self, pool: usize, key: &[u8]) -> [Place; 2] {
        let of = &self.pools[pool];
        [false, true].map(|copy| {
            let home = if copy { of.second_server_index(key) } else { of.server_index(key) };
            self.place(pool, home, || of.standby_of_copy(key, copy))
        })
    }

    /// Whether a change of this key may be acknowledged: it was carried out where the key, or the tag that is bumped, still is.
    pub(crate) fn is_in_place(&self, key: &GuardedKey) -> bool {
        let is_valid = |pool, place| self.standing(pool, place) == Standing::Valid;
        if key.guard != self.plan.tag_guard {
            return is_valid(self.plan.guards[key.guard].pool, &key.place);
        }
        let copies = 1 + usize::from(self.plan.tag_copies);
        let places = key.tag_places.iter().flat_map(|tags| &tags.places);
        places.flat_map(|places| &places[..copies]).all(|place| is_valid(self.plan.tag_pool, place))
    }

    /// On a standby, a tag must not live longer than the values there. The policy limits these.
    pub(crate) fn limit_ttl(&self, operation: &Operation) -> Operation {
        let mut operation = operation.clone();
        if let Operation::Store { exptime: exptime @ 0, .. } = &mut operation {
            let ttl = self.pools[self.plan.tag_pool].standby_ttl().as_secs();
            *exptime = i64::try_from(ttl).unwrap_or(i64::MAX).max(1);
        }
        operation
    }
}
