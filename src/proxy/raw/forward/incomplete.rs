//! A reply that is passed on once a further command has its reply.

use bytes::Bytes;

/// The reply to a read of an item that a guard has stored, or may have stored.
pub(super) struct Incomplete {
    /// Without the header.
    pub(super) bytes: Bytes,
    pub(super) epoch: u32,
    pub(super) is_part: bool,
    pub(super) awaits: Awaits,
    /// How often the read has been sent.
    pub(super) rounds: u8,
}

/// What the further command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaits {
    /// It reads when an item without a value ends.
    Expiry,
    /// It reads what there is of an item without a value, which may be a stub.
    Empty,
    /// It is the read again: another client has changed the item since.
    Again,
    /// The same. If it has no value, that is believed.
    Confirmed,
    /// It reads the time of a value with this `stale_for`, and may touch it.
    Sealed { stale_for: u32, is_touched: bool },
    /// Its reply does not matter.
    Nothing,
}
