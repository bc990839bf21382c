//! A reply whose raw values are not all known to be what the client is shown.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::protocol::binary::Head;
use crate::upstream::pending_replies::ReplyId;

/// A reply that is passed on once further commands have their replies.
pub(super) struct Written {
    pub(super) text: BytesMut,
    pub(super) suspects: Vec<Suspect>,
}

/// A value in a reply.
pub(super) struct Suspect {
    /// The further command. `None`: nothing more is asked.
    pub(super) id: Option<ReplyId>,
    pub(super) at: Range<usize>,
    /// `None`: it is known what the value is.
    pub(super) empty: Option<Empty>,
    /// What replaces it.
    pub(super) instead: Option<Bytes>,
}

/// An empty value, which may be a stub.
pub(super) struct Empty {
    pub(super) key: Box<[u8]>,
    pub(super) server: usize,
    /// That of a binary client's request.
    pub(super) head: Option<Head>,
    pub(super) flags: u32,
    pub(super) cas: Option<u64>,
    /// The further command reads when the item ends.
    pub(super) awaits_expiry: bool,
    /// The further command is the read again: another client has changed the item since.
    pub(super) is_read_again: bool,
    /// If the read again finds no value either, that is believed.
    pub(super) is_confirmed: bool,
    /// How often the read has been sent again.
    pub(super) rounds: u8,
    /// What a miss is told.
    pub(super) miss: Bytes,
}
