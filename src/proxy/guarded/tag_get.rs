//! `mg` of the key of a tag in a pool with failover: the item in the tag's place, without the fence. Other pools forward the
//! command.

use std::task::Poll;

use bytes::BytesMut;

use super::tag_servers::tag_version;
use super::wire;
use crate::error::Failure;
use crate::guard::{GetFlags, Hit, Operation, ServerReply, TagName, version_millis};
use crate::metrics::{NO_RULE, Outcome};
use crate::protocol::request::Meta;
use crate::proxy::client::Client;
use crate::proxy::key::Place;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::plan::MetaWinner;
use crate::proxy::replies::meta::MetaDialect;
use crate::proxy::replies::outcome::{ItemMarks, ReadOutcome};
use crate::proxy::scope::CallScope;
use crate::upstream::pending_replies::ReplyId;

/// The `mg` of a tag in flight.
pub(crate) struct TagGet {
    name: TagName,
    dialect: MetaDialect,
    operation: Operation,
    /// `None`: where the tag is kept is not known.
    id: Option<ReplyId>,
    place: Place,
}

impl TagGet {
    pub(crate) fn new(
        meta: &Meta<'_>,
        name: &TagName,
        dialect: MetaDialect,
        proxy: &Proxy,
        client: &Client,
    ) -> TagGet {
        let flags = GetFlags {
            value: true,
            usage: meta.options().usage,
            unseen: meta.options().unseen,
            ..GetFlags::default()
        };
        let place = proxy.tag_place(&proxy.key_of_tag(name), false);
        let ids = proxy.request_tag(name, &[place], flags, &client.pending);
        let (operation, id) = (Operation::Get(flags), ids.and_then(|ids| ids.first().copied()));
        TagGet { name: name.clone(), dialect, operation, id, place }
    }

    /// Whether the reply has not arrived.
    pub(crate) fn waits(&self, client: &Client) -> bool {
        self.id.is_some_and(|id| !client.pending.has_arrived(id))
    }

    /// Once the reply has arrived, appends that of the `mg` to `out`.
    pub(crate) fn poll(&mut self, scope: &CallScope<'_>, out: &mut BytesMut) -> Poll<()> {
        let reply = match self.id.map(|id| scope.client.pending.take(id)) {
            Some(None) => return Poll::Pending,
            Some(Some(reply)) => wire::decode_reply(&self.operation, reply),
            None => ServerReply::Failed(Failure::NoView),
        };
        let misses = scope.proxy.pools[scope.proxy.plan.tag_pool].on_error().is_miss();
        let (read, outcome) = match reply {
            ServerReply::Item(item) => match tag_version(&item, &self.place, scope.proxy.now()) {
                Some(version) => {
                    let payload = version_millis(version).to_string().into();
                    let marks = ItemMarks::of(item.cas.number);
                    let hit = Hit {
                        payload,
                        flags: item.flags,
                        ttl: item.ttl,
                        usage: item.usage,
                        ..Hit::nothing()
                    };
                    (ReadOutcome::Value(hit, marks), Outcome::Hit)
                }
                // It counts as lost, or is the stub of a tag that is being created.
                None => (ReadOutcome::Miss(None), Outcome::Miss),
            },
            ServerReply::Failed(failure) if !misses => (ReadOutcome::Failed(failure), Outcome::ServerError),
            _ => (ReadOutcome::Miss(None), Outcome::Miss),
        };
        scope.count(NO_RULE, outcome, || SeenKey::tag(&self.name));
        // It is short.
        let _ = self.dialect.write_read(&read, MetaWinner::Miss, 0, out);
        Poll::Ready(())
    }
}
