//! The limits of handshakes in progress, shared by the listeners of one worker.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// A TLS handshake that takes longer than this is aborted.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most TLS handshakes in progress per worker. The connections of further clients are closed.
const MAX_HANDSHAKES: usize = 1024;
/// The time that a client has for its TLS handshake and to send a valid password, including failed attempts.
const AUTH_TIMEOUT: Duration = Duration::from_secs(10);
/// The connection of a client is closed after this many wrong passwords.
pub(crate) const MAX_WRONG: u32 = 5;
/// The connection of a client is closed after this many commands without a valid password.
pub(super) const MAX_ATTEMPTS: u32 = 32;
/// For how long the first wrong password is not answered. The time doubles with each further one of the connection.
const FIRST_DELAY: Duration = Duration::from_millis(250);
/// The least time between two messages of a [`RateLimitedLog`].
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits and counts the handshakes of one worker.
#[derive(Debug)]
pub struct HandshakeLimits {
    pub(super) handshake_timeout: Duration,
    pub(super) max_handshakes: usize,
    pub(super) auth_timeout: Duration,
    /// For how long the first wrong password is not answered.
    pub(super) first_delay: Duration,
    pub(super) in_progress: Cell<usize>,
    /// The log of failed handshakes and wrong passwords.
    pub(super) failures: RateLimitedLog,
}

impl Default for HandshakeLimits {
    fn default() -> HandshakeLimits {
        HandshakeLimits {
            handshake_timeout: HANDSHAKE_TIMEOUT,
            max_handshakes: MAX_HANDSHAKES,
            auth_timeout: AUTH_TIMEOUT,
            first_delay: FIRST_DELAY,
            in_progress: Cell::new(0),
            failures: RateLimitedLog::default(),
        }
    }
}

impl HandshakeLimits {
    /// For how long the reply to this wrong password of a connection is withheld, and everything behind it. The first is 1.
    pub(super) fn delay(&self, wrong: u32) -> Duration {
        self.first_delay * 2_u32.pow(wrong.clamp(1, MAX_WRONG) - 1)
    }

    /// Permits a handshake, unless [`MAX_HANDSHAKES`] are in progress. It is in progress until the permit is dropped.
    pub(super) fn try_begin(&self) -> Option<Permit<'_>> {
        let count = self.in_progress.get();
        (count < self.max_handshakes).then(|| {
            self.in_progress.set(count + 1);
            Permit(&self.in_progress)
        })
    }
}

/// A handshake in progress.
pub(super) struct Permit<'a>(&'a Cell<usize>);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Logs an event that may occur many times a second. Writes at most one message per [`LOG_INTERVAL`].
#[derive(Debug, Default)]
pub(crate) struct RateLimitedLog {
    pub(super) last: Cell<Option<Instant>>,
    suppressed: Cell<u64>,
}

impl RateLimitedLog {
    /// Calls `log` with the number of events that were not logged since the last call, unless that was too recent.
    pub(crate) fn log(&self, log: impl FnOnce(u64)) {
        if self.last.get().is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            self.suppressed.set(self.suppressed.get() + 1);
            return;
        }
        self.last.set(Some(Instant::now()));
        log(self.suppressed.take());
    }
}
