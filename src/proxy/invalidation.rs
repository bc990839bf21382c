//! Keys whose change bumps tags: the change is acknowledged once both are done.
//!
//! The bump comes behind the change. Whoever rebuilds a tagged value between the two may still have read the old data, and the
//! bump makes what they store stale.

use std::task::{Context, Poll};

use bytes::BytesMut;
use smallvec::SmallVec;

use super::Proxy;
use super::client::Client;
use super::guarded::{client_bumped, tag};
use super::operation::{Driver, GuardedKey};
use super::scope::CallScope;
use crate::error::Failure;
use crate::guard::{Bump, BumpEnd, TagName};
use crate::metrics::{Command, Outcome};

/// The bumps behind one change, all at once.
pub(super) struct Invalidation {
    /// What the change has to say.
    answer: BytesMut,
    bumps: SmallVec<[(GuardedKey, Option<Driver<Bump>>); 2]>,
    failure: Option<Failure>,
}

/// Whether what became of a command is a change of its key. A delete that found nothing counts: the cache had lost the value, but
/// the client knows that it has changed. So does a value that was dropped because the key was invalidated since its miss: the
/// client is told that it was stored.
pub(super) fn changes(command: Command, outcome: Outcome) -> bool {
    match command {
        Command::Delete => matches!(outcome, Outcome::Deleted | Outcome::NotFound),
        // Of a raw one only the status is known: `HD`, `VA`, `NF`, or nothing if it is quiet.
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
    pub(super) fn begin(
        tags: SmallVec<[TagName; 2]>,
        answer: BytesMut,
        proxy: &Proxy,
        client: &Client,
    ) -> Invalidation {
        let bump = |name| {
            let of = tag(name, proxy);
            let scene = proxy.scene(&of, proxy.policy(of.guard), proxy.now(), false);
            let (bump, asks) = Bump::start(&scene);
            let run = Driver::start(bump, asks, &of, proxy, &client.inbox);
            (of, Some(run))
        };
        Invalidation { answer, bumps: tags.into_iter().map(bump).collect(), failure: None }
    }

    pub(super) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        let CallScope { proxy, client, .. } = scope;
        let mut pending = false;
        for (of, bump) in &mut self.bumps {
            let Some(run) = bump else { continue };
            match run.poll(of, false, proxy, &client.inbox, cx) {
                Poll::Pending => {
                    pending = true;
                    continue;
                }
                Poll::Ready(BumpEnd::Bumped(_)) => {
                    proxy.metrics.tag_bumped();
                    client_bumped(of, run.machine(), proxy, client);
                }
                Poll::Ready(BumpEnd::Failed(failure)) => self.failure = Some(failure),
            }
            *bump = None;
        }
        if pending {
            return Poll::Pending;
        }
        match self.failure {
            None => out.extend_from_slice(&self.answer),
            Some(failure) => out.extend_from_slice(failure.line()),
        }
        Poll::Ready(())
    }
}
