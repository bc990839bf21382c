//! What the admin server knows of a connection: when it was last used, and whether it reads a stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// When a connection received its last request, was accepted, or was ready for more of a stream. Clones share the state.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<State>);

#[derive(Debug)]
struct State {
    last: Mutex<Instant>,
    streams: AtomicBool,
    /// Cancelled once a request has come.
    asked: CancellationToken,
}

impl Activity {
    /// That of a connection that has just been accepted.
    pub(super) fn now() -> Activity {
        let (last, streams) = (Mutex::new(Instant::now()), AtomicBool::new(false));
        Activity(Arc::new(State { last, streams, asked: CancellationToken::new() }))
    }

    /// When it was last active.
    pub(super) fn last(&self) -> Instant {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is active now.
    pub(super) fn update(&self) {
        self.0.asked.cancel();
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns once its first request has come.
    pub(super) async fn asked(&self) {
        self.0.asked.cancelled().await;
    }

    /// From now on, it reads a stream, which ends with the connection.
    pub(super) fn begin_stream(&self) {
        self.0.streams.store(true, Ordering::Relaxed);
    }

    /// Whether it reads a stream.
    pub(super) fn is_stream(&self) -> bool {
        self.0.streams.load(Ordering::Relaxed)
    }
}
