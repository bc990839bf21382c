//! Proves that a thread still runs its tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// The heartbeat of one thread. Clones share the count.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    beats: Arc<AtomicU64>,
    every: Duration,
}

impl Heartbeat {
    /// A heart that beats once in this time.
    pub fn new(every: Duration) -> Heartbeat {
        Heartbeat { beats: Arc::default(), every }
    }

    /// Beats for as long as the thread runs its tasks.
    pub async fn run(self) {
        loop {
            self.beats.fetch_add(1, Ordering::Relaxed);
            sleep(self.every).await;
        }
    }

    /// How often it has beaten.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }
}
