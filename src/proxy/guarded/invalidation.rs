//! Keys whose changes bump tags. A change is acknowledged once both are done.
//!
//! The bump follows the change. A client that rebuilds a tagged value between the two may have read the old data, and the bump
//! makes its value stale.

use std::task::{Context, Poll};

use bytes::BytesMut;
use smallvec::SmallVec;

use super::elsewhere::TagBump;
use super::misses::tag_bumped;
use crate::error::Failure;
use crate::guard::TagName;
use crate::metrics::{Command, Outcome};
use crate::proxy::client::Client;
use crate::proxy::pipeline::Proxy;
use crate::proxy::scope::CallScope;

/// The bumps after one change, all in flight together.
pub(crate) struct Invalidation {
    /// The reply to the change.
    reply: BytesMut,
    bumps: SmallVec<[(TagName, Option<TagBump>); 2]>,
    failure: Option<Failure>,
}

/// Whether this outcome of a command is a change of its key. A delete that finds no item counts: the cache has lost the value,
/// but the client knows that it has changed. A dropped fill counts too, because its reply is `STORED`.
pub(crate) fn changes(command: Command, outcome: Outcome) -> bool {
    match command {
        Command::Delete => matches!(outcome, Outcome::Deleted | Outcome::NotFound),
        // Of a raw command only the status is known: `HD`, `VA`, `NF`, or none if it is quiet.
        Command::MetaDelete => {
            matches!(outcome, Outcome::Deleted | Outcome::NotFound | Outcome::Ok)
        }
        Command::MetaSet | Command::MetaArith => {
            matches!(
                outcome,
                Outcome::Stored | Outcome::FillDropped | Outcome::Counted | Outcome::Ok | Outcome::Hit
            )
        }
        _ => matches!(outcome, Outcome::Stored | Outcome::FillDropped | Outcome::Counted),
    }
}

impl Invalidation {
    pub(crate) fn begin(
        tags: SmallVec<[TagName; 2]>,
        reply: BytesMut,
        proxy: &Proxy,
        client: &Client,
    ) -> Invalidation {
        let bump = |name: TagName| {
            proxy.outage_bump(&name);
            let bump = TagBump::begin(name.clone(), proxy, &client.pending);
            (name, Some(bump))
        };
        Invalidation { reply, bumps: tags.into_iter().map(bump).collect(), failure: None }
    }

    pub(crate) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        let CallScope { proxy, client, .. } = scope;
        let mut pending = false;
        for (name, bump) in &mut self.bumps {
            let Some(running) = bump else { continue };
            match running.poll(proxy, &client.pending, cx) {
                Poll::Pending => {
                    pending = true;
                    continue;
                }
                Poll::Ready(Ok(bumped)) => {
                    proxy.metrics.tag_bumped();
                    proxy.observe_bump(name, &scope.request());
                    tag_bumped(name, bumped, proxy, client);
                }
                Poll::Ready(Err(failure)) => self.failure = Some(failure),
            }
            *bump = None;
        }
        if pending {
            return Poll::Pending;
        }
        match self.failure {
            None => out.extend_from_slice(&self.reply),
            Some(failure) => out.extend_from_slice(failure.line()),
        }
        Poll::Ready(())
    }
}
