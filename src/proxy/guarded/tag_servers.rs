//! Which servers store a tag.

use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use crate::guard::TagName;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::upstream::Address;
use crate::upstream::connection::Connection;

/// The key that a bump of this tag runs on.
pub(super) fn bump_key(name: TagName, proxy: &Proxy) -> GuardedKey {
    let guard = proxy.plan.tag_guard;
    // A bump sends commands to the tag only, so the server of the key does not matter.
    GuardedKey { guard, server: 0, key: SmallVec::from_slice(&name), tags: smallvec![name], explicit_tags: 0 }
}

impl Proxy {
    /// The servers that store a tag: one, or two with copies.
    pub fn tag_servers(&self, name: &TagName) -> SmallVec<[&Address; 2]> {
        let connections = self.tag_connections(&self.key_of_tag(name)).into_iter();
        connections.map(|connection| connection.server().address()).collect()
    }

    /// The key of a tag.
    pub(super) fn key_of_tag(&self, name: &[u8]) -> SmallVec<[u8; 64]> {
        let mut key = SmallVec::from_slice(&self.plan.tag_prefix);
        key.extend_from_slice(name);
        key
    }

    /// The connections to the servers that store the tag with this key.
    pub(super) fn tag_connections(&self, key: &[u8]) -> SmallVec<[&Rc<Connection>; 2]> {
        let copies: &[bool] = if self.plan.tag_copies { &[false, true] } else { &[false] };
        copies.iter().map(|copy| self.tag_connection(key, *copy)).collect()
    }

    /// The connection to the server that stores the tag with this key, or its copy.
    pub(super) fn tag_connection(&self, key: &[u8], copy: bool) -> &Rc<Connection> {
        let pool = &self.pools[self.plan.tag_pool];
        &pool.connections()[if copy { pool.second_server_index(key) } else { pool.server_index(key) }]
    }
}
