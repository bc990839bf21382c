//! `flush_all`: sent to every server of every pool, and acknowledged only if all of them succeed.

use std::task::Poll;

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::error::Failure;
use crate::guard::near::Changed;
use crate::metrics::{LeaseEnd, NO_RULE, Outcome};
use crate::protocol::reply::Shape;
use crate::proxy::client::Client;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::scope::CallScope;
use crate::upstream::pending_replies::{Reply, ReplyId};

/// The reply of each server, and of Kennel if all of them succeed.
const OK: &[u8] = b"OK\r\n";

/// A `flush_all` in flight.
pub(crate) struct FlushAll {
    ids: SmallVec<[ReplyId; 8]>,
}

impl FlushAll {
    /// Sends it to all servers. A positive `delay` is in seconds.
    pub(crate) fn begin(delay: i64, proxy: &Proxy, client: &Client) -> FlushAll {
        proxy.near.changed(Changed::Everything);
        // As with a delete, the misses end before the command is sent: what this client stores after it is new.
        // A delayed flush ends no miss now; when it takes effect, the fills fail on the server.
        if delay <= 0 {
            client.end_all_misses();
            for key in proxy.leases.all().flat_map(|mut leases| leases.flush(client.owner)) {
                proxy.count_end(&key, LeaseEnd::Released);
            }
        }
        proxy.outage_flush();
        let line = format!("flush_all {delay}\r\n");
        let send = |out: &mut BytesMut| out.extend_from_slice(line.as_bytes());
        let each = proxy.connections();
        let ids = each.map(|connection| connection.send(&client.pending, Shape::Line, send)).collect();
        FlushAll { ids }
    }

    pub(crate) fn poll(&mut self, scope: &CallScope<'_>, out: &mut BytesMut) -> Poll<()> {
        let pending = &scope.client.pending;
        if !self.ids.iter().all(|id| pending.has_arrived(*id)) {
            return Poll::Pending;
        }
        scope.proxy.near.changed(Changed::Everything);
        let mut failure = None;
        for reply in self.ids.iter().filter_map(|id| pending.take(*id)) {
            match reply {
                Reply::Answered { bytes, .. } if bytes == OK => {}
                Reply::Answered { .. } | Reply::Part { .. } => failure = failure.or(Some(Failure::Refused)),
                Reply::Failed(failed) => failure = failure.or(Some(failed)),
                Reply::StaleCas => failure = failure.or(Some(Failure::Down)),
            }
        }
        match failure {
            Some(failed) => out.extend_from_slice(failed.line()),
            None => out.extend_from_slice(OK),
        }
        let outcome = if failure.is_some() { Outcome::ServerError } else { Outcome::Ok };
        scope.count(NO_RULE, outcome, SeenKey::none);
        Poll::Ready(())
    }
}
