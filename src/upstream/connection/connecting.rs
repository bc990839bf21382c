//! How a connection is made and made again, and what is known of the server meanwhile.

use std::convert::Infallible;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{Connection, DeferredCommand, DeferredCommands, PendingRequest, Phase};
use crate::error::Failure;
use crate::metrics::UpstreamOutcome;
use crate::random::Random;
use crate::upstream::capabilities::{Capabilities, MissingFeature};
use crate::upstream::pending_replies::Reply;
use crate::upstream::probe;

/// The first and the longest pause between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// The first and the longest pause before a server is probed again of which it is not known what it can do.
const PROBE_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// Another reason why a server cannot be connected to is logged that much later at the soonest.
const SAY_AGAIN: Duration = Duration::from_secs(10);

impl Connection {
    /// Connects, serves, and connects again, for as long as it is polled.
    pub async fn drive(self: Rc<Self>, mut chance: Random) {
        let (first, longest) = BACKOFF;
        let mut pause = first;
        // What was last said of why there is no connection, and when.
        let mut said: Option<(String, Instant)> = None;
        let mut first_attempt = self.first_attempt.take();
        loop {
            let opened = probe::open(&self.server, &mut chance).await;
            let opened = opened.map(|(socket, found)| (socket, self.server.connected(), found));
            let was_first = first_attempt.take().is_some();
            let broken = match opened {
                Ok((mut socket, made, found)) => {
                    // A CAS holds over connections that were made before it was read, and a client of one worker may fill
                    // what it missed over that of another: so nothing is read before every worker has its first.
                    if was_first {
                        self.server.first_attempts().await;
                    }
                    self.opened(made, &found);
                    (pause, said) = (first, None);
                    if self.is_unknown() {
                        tokio::select! {
                            biased;
                            broken = self.serve(&mut socket) => broken,
                            never = self.probe_until_known(&mut chance) => match never {},
                        }
                    } else {
                        self.serve(&mut socket).await
                    }
                }
                Err(broken) => broken,
            };
            self.metrics.upstream_up(self.server.index, false);
            let why = broken.to_string();
            // The first reason may not be the one that stays, and it is tried several times a second.
            let is_known = said.as_ref().is_some_and(|(last, at)| *last == why || at.elapsed() < SAY_AGAIN);
            if !is_known {
                warn!(server = %self.server.address(), why, "not connected");
                said = Some((why, Instant::now()));
            }
            self.fail_all(&broken);
            sleep(chance.jitter(pause, 0.5)).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// A connection was made at this epoch, to a server that can do this.
    pub(super) fn opened(&self, made: u32, found: &Capabilities) {
        info!(server = %self.server.address(), version = %found.version, "connected");
        self.metrics.upstream_connected(self.server.index, found.missing_feature.is_none());
        self.found(found);
        let mut state = self.state.borrow_mut();
        (state.phase, state.made) = (Phase::Up, made);
        let DeferredCommands { mut out, asked } = std::mem::take(&mut state.early);
        if found.missing_feature.is_some() {
            drop(state);
            let owed = asked.into_iter().map(|early| early.owed).collect();
            return self.fail_each(owed, Failure::Unguarded, UpstreamOutcome::Unguarded);
        }
        // Their time begins when they are sent: what waits behind another must not time out before it.
        let (since, epoch) = (Instant::now(), self.server.epoch());
        for DeferredCommand { owed, length, seen } in asked {
            let command = out.split_to(length);
            if let Some((inbox, ticket)) = &owed.asker
                && seen.is_some_and(|seen| made > seen)
            {
                self.metrics.upstream_withdrawn(self.server.index);
                inbox.deliver(*ticket, Reply::Moved);
            } else {
                state.out.extend_from_slice(&command);
                state.owed.push_back(PendingRequest { since, epoch, ..owed });
            }
        }
    }

    /// This was found of the server.
    pub(super) fn found(&self, found: &Capabilities) {
        let (address, version) = (self.server.address(), &found.version);
        // Once, though every worker asks, and those that do not know yet again and again.
        match (self.server.found(found).and_then(|before| before.missing_feature), found.missing_feature) {
            (before, Some(missing_feature)) if before != Some(missing_feature) => {
                warn!(
                    server = %address, %version, why = %missing_feature,
                    "cannot guard: its guarded keys are misses and cannot be stored; its raw keys are served"
                );
            }
            (Some(_), None) => info!(server = %address, %version, "guards again"),
            _ => {}
        }
        self.metrics.upstream_guards(self.server.index, found.missing_feature.is_none());
        self.state.borrow_mut().missing_feature = found.missing_feature;
    }

    fn is_unknown(&self) -> bool {
        matches!(self.missing_feature(), Some(MissingFeature::Unknown(_)))
    }

    /// Asks over connections of its own what the server can do, while it serves what clients ask: an answer to a probe need not
    /// be a reply that can be found among others. Does not return.
    async fn probe_until_known(&self, chance: &mut Random) -> Infallible {
        let (mut pause, longest) = PROBE_AGAIN;
        while self.is_unknown() {
            sleep(chance.jitter(pause, 0.5)).await;
            pause = (pause * 2).min(longest);
            // A server that cannot be connected to is noticed by the connection that serves.
            if let Ok((_, found)) = probe::open(&self.server, chance).await {
                self.found(&found);
            }
        }
        pending().await
    }
}
