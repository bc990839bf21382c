//! What is known of a lock that a client has.

use std::time::Duration;

use bytes::Bytes;

use super::command::{Cas, Command, Mode, Operation};
use super::expiry::exptime;
use super::item::ItemKey;

/// A lock that a client has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub(super) key: ItemKey,
    /// The item: token, owner, number.
    pub(super) item: Bytes,
    /// The flags of the client.
    pub(super) flags: u32,
    pub(super) cas: Cas,
    pub(super) ttl: Duration,
    /// How much longer its item lives, so that nobody else has the lock while the holder may rely on it.
    pub(super) margin: Duration,
}

impl Hold {
    /// The structure's own key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// How long the lock lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long its item lives without a renewal.
    pub fn item_ttl(&self) -> Duration {
        self.ttl + self.margin
    }

    /// Stores the item, if `cas` is still that of what is there.
    pub(super) fn store(&self, mode: Mode, cas: Option<Cas>) -> Command {
        let exptime = exptime(self.item_ttl(), 0);
        let value = self.item.clone();
        let operation = Operation::Store { mode, value, flags: self.flags, exptime, cas };
        Command { key: self.key.clone(), operation }
    }
}
