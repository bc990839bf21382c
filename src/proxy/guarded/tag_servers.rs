//! Which servers store a tag.

use std::rc::Rc;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;
use tracing::warn;

use crate::guard::{Item, Now, ServerReply, TagFault, TagName, tag_fault, version_of};
use crate::proxy::key::GuardedKey;
use crate::proxy::key::Place;
use crate::proxy::pipeline::Proxy;
use crate::trace::shown_key;
use crate::upstream::connection::Connection;

/// The key that a bump of this tag runs on.
pub(super) fn bump_key(name: TagName, proxy: &Proxy) -> GuardedKey {
    let guard = proxy.plan.tag_guard;
    // A bump sends commands to the tag only, so the server of the key does not matter.
    let (place, key) = (Place::fixed(0), SmallVec::from_slice(&name));
    let tags = smallvec![name];
    let tag_places = proxy.tag_places(&tags);
    GuardedKey { guard, place, key, tags, explicit_tags: 0, tag_places }
}

/// The version in the item of a tag in this place; `None` if it has none that counts there.
pub(crate) fn tag_version(item: &Item, place: &Place, now: Now) -> Option<u64> {
    let inherited = || version_of(item, place.inherited, now).filter(|_| place.inherited != 0);
    version_of(item, place.fence(), now).or_else(inherited)
}

impl Proxy {
    /// Logs that what a server has under the key of this tag is not its version. The operation that has read it replaces it.
    pub(super) fn note_tag(&self, name: &TagName, reply: &ServerReply) {
        let ServerReply::Item(item) = reply else { return };
        let Some(fault) = tag_fault(item, self.now()) else { return };
        let Some(suppressed) = self.observer.tag_log.borrow_mut().permit(Instant::now()) else { return };
        let tag = shown_key(&self.observer.settings.keys.of(name, || self.hash(name)));
        let why = match fault {
            TagFault::Malformed => "it has another form",
            TagFault::Future => "it is more than a day ahead of this machine's clock",
        };
        warn!(
            tag,
            why, suppressed, "not the version of a tag: the tag counts as lost, and what has it as stale"
        );
    }

    /// Notes that the server of a tag, or of its copy, has no memory for it.
    pub(super) fn note_full_tag(&self, name: &TagName, copy: bool) {
        let place = self.tag_place(&self.key_of_tag(name), copy);
        self.tag_connection(&place).server().note_full();
    }

    /// The labels of the servers that store a tag: one, or two with copies.
    pub fn tag_servers(&self, name: &TagName) -> SmallVec<[&str; 2]> {
        let key = self.key_of_tag(name);
        let connections = self.places_of_tag(&key).into_iter().map(|place| self.tag_connection(&place));
        connections.map(|connection| connection.server().label()).collect()
    }

    /// The key of a tag.
    pub(crate) fn key_of_tag(&self, name: &[u8]) -> SmallVec<[u8; 64]> {
        let mut key = SmallVec::from_slice(&self.plan.tag_prefix);
        key.extend_from_slice(name);
        key
    }

    /// Where the tag with this key is kept now: its servers.
    pub(crate) fn places_of_tag(&self, key: &[u8]) -> SmallVec<[Place; 2]> {
        let copies: &[bool] = if self.plan.tag_copies { &[false, true] } else { &[false] };
        copies.iter().map(|copy| self.tag_place(key, *copy)).collect()
    }

    /// The connection to the server of a tag in this place.
    pub(crate) fn tag_connection(&self, place: &Place) -> &Rc<Connection> {
        &self.pools[self.plan.tag_pool].connections()[place.server]
    }
}
