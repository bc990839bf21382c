//! What operators see of the discovery of servers.

use std::sync::{Mutex, PoisonError};

use crate::metrics::{DiscoveredPool, DiscoverySource};

/// The state of all pools with entries to look up. The main thread writes it.
#[derive(Debug, Default)]
pub(super) struct Status(Mutex<Vec<DiscoveredPool>>);

impl Status {
    pub(super) fn show(&self, pools: Vec<DiscoveredPool>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pools;
    }
}

impl DiscoverySource for Status {
    fn pools(&self) -> Vec<DiscoveredPool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
