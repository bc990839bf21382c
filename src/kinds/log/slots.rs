//! The slots of a log, and the keys of its items.

use std::time::Duration;

use super::super::item::{ItemKey, fits, numbered_item};
use super::super::settings::Log;

/// A part in which the next entry begins has fewer bytes.
pub(super) const PART: u64 = 32 * 1024;

/// The slots of a log at some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    /// The length of a slot in ms.
    pub(super) length: u64,
    /// How many slots the window has.
    count: u64,
    /// The number of the current slot.
    pub(super) current: u64,
}

impl Slots {
    pub(super) fn at(now: u64, settings: &Log) -> Slots {
        let length = millis(settings.slot).max(1);
        Slots { length, count: millis(settings.window).div_ceil(length), current: now / length }
    }

    /// The oldest slot that the window reaches into.
    pub(super) fn oldest(&self) -> u64 {
        self.current.saturating_sub(self.count)
    }

    /// How long the items of a slot are needed, whatever the clocks of sidecars show within a slot, and a second more: memcached
    /// ends a TTL up to a second early.
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis((self.count + 3) * self.length) + Duration::from_secs(1)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The item with the number of bytes that were reserved in a slot.
pub(super) fn reserved_key(own: &[u8], slot: u64) -> Result<ItemKey, &'static str> {
    numbered_item(own, b'l', slot)
}

pub(super) fn part_key(own: &[u8], slot: u64, part: usize) -> Result<ItemKey, &'static str> {
    let mut buffer = itoa::Buffer::new();
    let mut key = reserved_key(own, slot)?;
    key.push(b'.');
    key.extend_from_slice(buffer.format(part).as_bytes());
    fits(key)
}
