//! Connects and reconnects, and finds out which features the server has.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{Connection, DeferredCommand, DeferredCommands, PendingRequest, Phase};
use crate::error::Failure;
use crate::metrics::{TlsSession, UpstreamOutcome};
use crate::random::Random;
use crate::upstream::capabilities::{Capabilities, MissingFeature};
use crate::upstream::connection_error::ConnectionError;
use crate::upstream::probe;
use crate::upstream::reply::Reply;
use crate::upstream::socket::Socket;

/// The first and the longest pause between connection attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// The first and the longest pause before an inconclusive probe is repeated.
const PROBE_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// A connection that is closed sooner after it was made was not closed because it was idle.
const SHORTEST_IDLE: Duration = BACKOFF.1;
/// The shortest time between two log lines about different connection errors.
const LOG_AGAIN: Duration = Duration::from_secs(10);

impl Connection {
    /// Connects, serves and reconnects, until it is dropped.
    pub async fn drive(self: Rc<Self>, mut random: Random) {
        let (first, longest) = BACKOFF;
        let mut pause = first;
        // The error logged last, and when.
        let mut logged: Option<(String, Instant)> = None;
        let mut first_attempt = self.first_attempt.take();
        let mut was_idle = false;
        loop {
            let opened = self.open(&mut random, std::mem::take(&mut was_idle)).await;
            let opened = opened.map(|(socket, found)| (socket, self.server.connected(), found));
            let was_first = first_attempt.take().is_some();
            let error = match opened {
                Ok((mut socket, epoch, found)) => {
                    if let Some(resumed) = socket.resumed() {
                        self.metrics.tls_session(if resumed {
                            TlsSession::Resumed
                        } else {
                            TlsSession::Full
                        });
                    }
                    // A CAS is valid over connections made before it was read, and a client of one worker may fill a miss over
                    // another worker's connection. So nothing is read before every worker has made its first connection.
                    if was_first {
                        self.server.wait_for_first_attempts().await;
                    }
                    self.opened(epoch, &found);
                    (pause, logged) = (first, None);
                    let since = Instant::now();
                    let error = if self.is_unknown() {
                        tokio::select! {
                            biased;
                            error = self.serve(&mut socket) => error,
                            never = self.probe_until_known(&mut random) => match never {},
                        }
                    } else {
                        self.serve(&mut socket).await
                    };
                    was_idle = matches!(error, ConnectionError::Idle) && since.elapsed() >= SHORTEST_IDLE;
                    error
                }
                Err(error) => {
                    self.metrics.connect_failed(error.reason());
                    error
                }
            };
            if was_idle {
                info!(server = self.server.label(), "an idle connection was closed: connecting again");
                self.hold();
                continue;
            }
            self.metrics.up(false);
            let why = error.to_string();
            // Attempts are made several times a second. A different error may follow the first, and is logged too, but later.
            let skip = logged.as_ref().is_some_and(|(last, at)| *last == why || at.elapsed() < LOG_AGAIN);
            if !skip {
                warn!(server = self.server.label(), address = %self.server.address(), why, "not connected");
                logged = Some((why, Instant::now()));
            }
            self.fail_all(&error);
            sleep(random.jitter(pause, 0.5)).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Connects. If commands wait for the connection, for `connect_timeout` at most: then they fail, and the attempt goes on.
    async fn open(
        &self,
        random: &mut Random,
        awaited: bool,
    ) -> Result<(Socket, Capabilities), ConnectionError> {
        let mut opening = pin!(probe::open(&self.server, random));
        if awaited {
            match timeout(self.server.connect_timeout(), &mut opening).await {
                Ok(opened) => return opened,
                Err(_) => self.fail_all(&ConnectionError::timed_out()),
            }
        }
        opening.await
    }

    /// A connection was made at this epoch, and the probe has found these capabilities. Sends the deferred commands, or fails
    /// them.
    pub(super) fn opened(&self, epoch: u32, found: &Capabilities) {
        let server = &self.server;
        info!(server = server.label(), address = %server.address(), version = %found.version, "connected");
        self.metrics.connected(found.missing_feature.is_none());
        self.set_capabilities(found);
        let mut state = self.state.borrow_mut();
        (state.phase, state.epoch) = (Phase::Up, epoch);
        let DeferredCommands { mut output, commands } = std::mem::take(&mut state.deferred);
        if found.missing_feature.is_some() {
            drop(state);
            let requests = commands.into_iter().map(|command| command.request).collect();
            return self.fail_each(requests, Failure::Unguarded, UpstreamOutcome::Unguarded);
        }
        // They are timed from now on: a request must not time out before one that is ahead of it.
        let (sent, current) = (Instant::now(), self.server.epoch());
        for DeferredCommand { request, length, cas_epoch } in commands {
            let command = output.split_to(length);
            if let Some((replies, id)) = &request.requester
                && cas_epoch.is_some_and(|cas_epoch| epoch > cas_epoch)
            {
                self.metrics.withdrawn();
                replies.deliver(*id, Reply::StaleCas);
            } else {
                state.output.extend_from_slice(&command);
                state.pending.push_back(PendingRequest { sent, epoch: current, ..request });
            }
        }
    }

    /// Stores what a probe found, and logs it if it changed.
    pub(super) fn set_capabilities(&self, found: &Capabilities) {
        let (server, version) = (self.server.label(), &found.version);
        // Logged once, though every worker probes the server, and repeats inconclusive probes.
        let before = self.server.set_capabilities(found).and_then(|before| before.missing_feature);
        match (before, found.missing_feature) {
            (before, Some(missing_feature)) if before != Some(missing_feature) => {
                warn!(
                    server, %version, why = %missing_feature,
                    "cannot guard: its guarded keys are misses and cannot be stored; its raw keys are served"
                );
            }
            (Some(_), None) => info!(server, %version, "can guard again"),
            _ => {}
        }
        self.metrics.guards(found.missing_feature.is_none());
        self.state.borrow_mut().missing_feature = found.missing_feature;
    }

    fn is_unknown(&self) -> bool {
        matches!(self.missing_feature(), Some(MissingFeature::Unknown(_)))
    }

    /// Repeats an inconclusive probe while the connection serves raw keys. Each probe uses a connection of its own, because the
    /// replies to a probe may not be valid replies. Does not return.
    async fn probe_until_known(&self, random: &mut Random) -> Infallible {
        let (mut pause, longest) = PROBE_AGAIN;
        while self.is_unknown() {
            sleep(random.jitter(pause, 0.5)).await;
            pause = (pause * 2).min(longest);
            // An error here needs no handling: the connection that serves will notice it too.
            if let Ok((_, found)) = probe::open(&self.server, random).await {
                self.set_capabilities(&found);
            }
        }
        pending().await
    }
}
