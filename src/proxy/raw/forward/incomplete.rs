//! A reply that is passed on once a further command has its reply.

use bytes::Bytes;

/// The reply to a read of an item that a guard has stored, or may have stored.
pub(super) struct Incomplete {
    /// Without the header.
    pub(super) bytes: Bytes,
    pub(super) epoch: u32,
    pub(super) is_part: bool,
    /// The further command reads when the item ends: a stub does so within this many seconds.
    pub(super) ends_within: Option<u32>,
    /// Its `stale_for`. `None`: the value is empty and may be a stub.
    pub(super) stale_for: Option<u32>,
    /// The further command touches the item.
    pub(super) is_touched: bool,
}
