//! `flush_all`: sent to every server of every pool, and acknowledged only if all of them succeed.
//!
//! In a pool that fails over, the servers keep the records of where their keys are, and whatever empties all of them at once costs
//! guarded keys a window ([decision 0011](../../../docs/decisions/0011-how-is-the-place-of-a-server-agreed-on.md)). So these are
//! flushed one after the other, and before the next one the copies that one has lost are restored from the two others.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Mutex, oneshot};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::error::Failure;
use crate::failover::Views;
use crate::guard::near::Changed;
use crate::metrics::{LeaseEnd, NO_RULE, Outcome};
use crate::protocol::reply::Shape;
use crate::proxy::client::Client;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::place::restored;
use crate::proxy::scope::CallScope;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};

/// The reply of each server, and of Kennel if all of them succeed.
const OK: &[u8] = b"OK\r\n";
/// How long a flush waits for copies to be restored, and before that for another flush. Whoever restores them gives up after one window.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A `flush_all` in flight.
pub(crate) struct FlushAll {
    /// Its end, with the first failure.
    end: oneshot::Receiver<Option<Failure>>,
}

/// The servers of a flush, with the ids of the replies of those that are flushed at once.
struct Flush {
    delay: i64,
    pending: Rc<PendingReplies>,
    sent: Vec<ReplyId>,
    one_by_one: Vec<Rc<Connection>>,
    views: Vec<Arc<Views>>,
    flushing: Arc<Mutex<()>>,
}

impl FlushAll {
    /// Begins it at all servers. A positive `delay` is in seconds.
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
        let (sender, end) = oneshot::channel();
        let flush = Flush::begin(delay, proxy);
        // It goes on if the client leaves.
        spawn_local(async move {
            let _ = sender.send(flush.run().await);
        });
        FlushAll { end }
    }

    pub(crate) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        let Poll::Ready(end) = Pin::new(&mut self.end).poll(cx) else { return Poll::Pending };
        scope.proxy.near.changed(Changed::Everything);
        let failure = end.unwrap_or(Some(Failure::Down));
        match failure {
            Some(failed) => out.extend_from_slice(failed.line()),
            None => out.extend_from_slice(OK),
        }
        let outcome = if failure.is_some() { Outcome::ServerError } else { Outcome::Ok };
        scope.count(NO_RULE, outcome, SeenKey::none);
        Poll::Ready(())
    }
}

impl Flush {
    fn begin(delay: i64, proxy: &Proxy) -> Flush {
        let views = proxy.all_views();
        let (sent, one_by_one, flushing) = (Vec::new(), Vec::new(), Arc::clone(&proxy.flushing));
        let mut flush = Flush { delay, pending: Rc::default(), sent, one_by_one, views, flushing };
        for (connection, fails_over) in proxy.all_connections() {
            // A delayed flush takes effect everywhere at the same moment.
            if fails_over && delay <= 0 {
                flush.one_by_one.push(Rc::clone(connection));
            } else {
                flush.sent.push(flush.send(connection));
            }
        }
        flush
    }

    fn send(&self, connection: &Connection) -> ReplyId {
        let line = format!("flush_all {}\r\n", self.delay);
        connection.send(&self.pending, Shape::Line, |out| out.extend_from_slice(line.as_bytes()))
    }

    /// Returns the first failure.
    async fn run(mut self) -> Option<Failure> {
        let flushing = Arc::clone(&self.flushing);
        // In vain only if the other one waits for a server that does not answer; then the places are lost anyway.
        let _turn = match self.one_by_one.is_empty() {
            true => None,
            false => timeout(RESTORE_TIMEOUT, flushing.lock()).await.ok(),
        };
        // Two copies must be left when the first server has lost its own.
        let mut is_whole = self.one_by_one.len() < 2 || self.restore().await;
        let mut failure = None;
        let one_by_one = std::mem::take(&mut self.one_by_one);
        for (left, connection) in (0..one_by_one.len()).rev().zip(&one_by_one) {
            let id = self.send(connection);
            if !is_whole {
                self.sent.push(id);
                continue;
            }
            let failed = failed(self.pending.receive(id).await);
            failure = failure.or(failed);
            is_whole = failed.is_none() && (left == 0 || self.restore().await);
        }
        if is_whole {
            self.restore().await;
        }
        for id in std::mem::take(&mut self.sent) {
            let failed = failed(self.pending.receive(id).await);
            failure = failure.or(failed);
        }
        failure
    }

    /// Returns once the records have all their copies. False if that cannot be.
    async fn restore(&self) -> bool {
        timeout(RESTORE_TIMEOUT, restored(&self.views)).await.unwrap_or(false)
    }
}

/// Why this is no acknowledgement.
fn failed(reply: Reply) -> Option<Failure> {
    match reply {
        Reply::Answered { bytes, .. } if bytes == OK => None,
        Reply::Answered { .. } | Reply::Part { .. } => Some(Failure::Refused),
        Reply::Failed(failed) => Some(failed),
        Reply::StaleCas => Some(Failure::Down),
    }
}
