//! A reply whose raw values are not all known to be what the client is shown.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

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
    /// `None`: it has been touched.
    pub(super) empty: Option<Empty>,
}

/// An empty value, which may be a stub.
pub(super) struct Empty {
    pub(super) key: Box<[u8]>,
    pub(super) server: usize,
    /// The further command reads when the item ends: a stub does so within this many seconds.
    pub(super) ends_within: Option<u32>,
    /// What replaces a stub.
    pub(super) miss: Bytes,
}
