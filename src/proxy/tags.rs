//! Tags without a client: what `kennel tag` does through a proxy of its own.
//!
//! A bump is the same machine on the same servers as a client's `delete` of the tag's key, so no sidecar can tell the two apart.

use std::future::poll_fn;
use std::rc::Rc;

use smallvec::SmallVec;

use super::guarded::tag;
use super::operation::Driver;
use super::{Proxy, wire};
use crate::error::Failure;
use crate::guard::{
    Bump, BumpEnd, GetFlags, ItemRef, Operation, ServerCommand, ServerReply, TagName, parse_version,
};
use crate::upstream::Address;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::PendingReplies;

impl Proxy {
    /// Makes a tag grow. `name` is what stands behind the prefix, folded if it has to be. The connections must be driven
    /// meanwhile.
    pub async fn bump_tag(self: &Rc<Proxy>, name: TagName) -> BumpEnd {
        let of = tag(name, self);
        let inbox = Rc::new(PendingReplies::default());
        let scene = self.scene(&of, self.policy(of.guard), self.now(), false);
        let (bump, asks) = Bump::start(&scene);
        let mut run = Driver::start(bump, asks, &of, self, &inbox);
        poll_fn(|cx| {
            let end = run.poll(&of, false, self, &inbox, cx);
            if end.is_pending() {
                inbox.wake_on_next(cx);
            }
            end
        })
        .await
    }

    /// The version of a tag, the larger one if two servers keep it; `None` if it has none. Creates and repairs nothing.
    ///
    /// # Errors
    /// A server did not answer, and no other has a version.
    pub async fn tag_version(&self, name: &TagName) -> Result<Option<u64>, Failure> {
        let inbox = Rc::new(PendingReplies::default());
        let get = ServerCommand {
            at: ItemRef::Tag(0),
            what: Operation::Get(GetFlags { value: true, unseen: true, ..GetFlags::default() }),
        };
        let key = self.tag_key(name);
        let ask = |connection: &Rc<Connection>| {
            connection.ask(&inbox, None, |out| wire::encode(&get.what, &key, out))
        };
        let tickets: SmallVec<[_; 2]> = self.tag_connections(&key).into_iter().map(ask).collect();
        let (mut found, mut failure) = (None, None);
        for ticket in tickets {
            match wire::decode(&get, inbox.receive(ticket).await) {
                ServerReply::Item(item) => found = found.max(parse_version(&item.value)),
                ServerReply::Failed(failed) => failure = Some(failed),
                _ => {}
            }
        }
        match (found, failure) {
            (None, Some(failure)) => Err(failure),
            (found, _) => Ok(found),
        }
    }

    /// The servers that keep a tag: one, or with copies two.
    pub fn tag_servers(&self, name: &TagName) -> SmallVec<[&Address; 2]> {
        let connections = self.tag_connections(&self.tag_key(name)).into_iter();
        connections.map(|connection| connection.server().address()).collect()
    }

    fn tag_key(&self, name: &TagName) -> Vec<u8> {
        [&self.plan.tag_prefix[..], name].concat()
    }

    /// The connections to the servers that keep the tag with this key.
    pub(super) fn tag_connections(&self, key: &[u8]) -> SmallVec<[&Rc<Connection>; 2]> {
        let sides: &[bool] = if self.plan.tag_copies { &[false, true] } else { &[false] };
        sides.iter().map(|copy| self.tag_connection(key, *copy)).collect()
    }

    /// The connection to the server that keeps a tag, or to the second one, under this key.
    pub(super) fn tag_connection(&self, key: &[u8], copy: bool) -> &Rc<Connection> {
        let pool = &self.pools[self.plan.tag_pool];
        &pool.connections()[if copy { pool.second_place(key) } else { pool.place(key) }]
    }
}
