//! Keys whose changes bump tags. A change is acknowledged once both are done.
//!
//! The bump follows the change. A client that rebuilds a tagged value between the two may have read the old data, and the bump
//! makes its value stale.

use std::task::{Context, Poll};

use bytes::BytesMut;
use smallvec::SmallVec;

use super::driver::Driver;
use super::misses::tag_bumped;
use super::tag_servers::bump_key;
use crate::error::Failure;
use crate::guard::{Bump, BumpEnd, TagName};
use crate::metrics::{Command, Outcome};
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::scope::CallScope;

/// The bumps after one change, all in flight together.
pub(crate) struct Invalidation {
    /// The reply to the change.
    reply: BytesMut,
    bumps: SmallVec<[(GuardedKey, Option<Driver<Bump>>); 2]>,
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
        let bump = |name| {
            let key = bump_key(name, proxy);
            proxy.outage_bump(&key.tags[0]);
            let inputs = proxy.inputs(&key, proxy.policy(key.guard), proxy.now(), false);
            let (bump, commands) = Bump::start(&inputs);
            let driver = Driver::start(bump, commands, &key, proxy, &client.pending);
            (key, Some(driver))
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
        for (key, bump) in &mut self.bumps {
            let Some(driver) = bump else { continue };
            match driver.poll(key, false, proxy, &client.pending, cx) {
                Poll::Pending => {
                    pending = true;
                    continue;
                }
                Poll::Ready(BumpEnd::Bumped(_)) => {
                    proxy.metrics.tag_bumped();
                    tag_bumped(key, driver.machine(), proxy, client);
                }
                Poll::Ready(BumpEnd::Failed(failure)) => self.failure = Some(failure),
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
