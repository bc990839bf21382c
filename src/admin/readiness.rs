//! Whether `/readyz` reports that the sidecar accepts clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether the sidecar accepts clients. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicU8>);

const STARTING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;

impl Readiness {
    /// Says `starting` on `/readyz` until the sidecar is ready.
    pub fn new() -> Readiness {
        Readiness::default()
    }

    /// Changes "starting" to "ready": the configuration is read and the listeners are bound. Has no effect while draining.
    pub fn ready(&self) {
        // An error means that the state was ready or draining, which is kept.
        let _ = self.0.compare_exchange(STARTING, READY, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Changes the state to "draining": no further clients are accepted.
    pub fn drain(&self) {
        self.0.store(DRAINING, Ordering::SeqCst);
    }

    /// Whether the state is "ready".
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::SeqCst) == READY
    }

    /// The state, as `/readyz` returns it.
    pub(super) fn word(&self) -> &'static str {
        match self.0.load(Ordering::SeqCst) {
            STARTING => "starting",
            READY => "ready",
            _ => "draining",
        }
    }
}
