//! What `kennel tag` does, through a pipeline without clients.
//!
//! A bump runs the same state machine on the same servers as a client's `delete` of the tag's key.

use std::future::poll_fn;
use std::rc::Rc;

use smallvec::SmallVec;

use super::elsewhere::TagBump;
use super::tag_servers::tag_version;
use super::wire;
use crate::error::Failure;
use crate::guard::{GetFlags, ItemRef, Operation, ServerCommand, ServerReply, TagName, version_millis};
use crate::proxy::key::Place;
use crate::proxy::pipeline::Proxy;
use crate::upstream::pending_replies::PendingReplies;

impl Proxy {
    /// Bumps a tag. `name` is the tag's key without the prefix, folded if it is too long. The connections must be driven
    /// meanwhile. Returns the version: this millisecond or a later one.
    ///
    /// # Errors
    /// It is unknown whether the version changed: the bump must not be acknowledged.
    pub async fn bump_tag(self: &Rc<Proxy>, name: TagName) -> Result<u64, Failure> {
        let pending = Rc::new(PendingReplies::default());
        let mut bump = TagBump::begin(name, self, &pending);
        let end = poll_fn(|cx| {
            let end = bump.poll(self, &pending, cx);
            if end.is_pending() {
                pending.wake_on_next(cx);
            }
            end
        });
        end.await.map(|bumped| bumped.version)
    }

    /// The version of a tag, the larger one if two servers store it; `None` if it has none. Writes nothing.
    ///
    /// # Errors
    /// A server did not reply, and no other has a version.
    pub async fn tag_version(&self, name: &TagName) -> Result<Option<u64>, Failure> {
        let pending = Rc::new(PendingReplies::default());
        let get = ServerCommand {
            item: ItemRef::Tag(0),
            operation: Operation::Get(GetFlags { value: true, unseen: true, ..GetFlags::default() }),
        };
        let key = self.key_of_tag(name);
        let places = self.places_of_tag(&key);
        let request = |place: &Place| {
            let connection = self.tag_connection(place);
            connection.send_guard(&pending, None, |out| wire::encode(&get.operation, &key, out))
        };
        let ids: SmallVec<[_; 2]> = places.iter().map(request).collect();
        let (mut found, mut failure) = (None, None);
        for (id, place) in ids.into_iter().zip(&places) {
            match wire::decode(&get, pending.receive(id).await) {
                _ if place.fence.is_none() => failure = Some(Failure::NoView),
                ServerReply::Item(item) => {
                    found = found.max(tag_version(&item, place, self.now()).map(version_millis))
                }
                ServerReply::Failed(failed) => failure = Some(failed),
                _ => {}
            }
        }
        match (found, failure) {
            (None, Some(failure)) => Err(failure),
            (found, _) => Ok(found),
        }
    }
}
