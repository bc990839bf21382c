//! An item in the way of a command, and what the client sees of it.

use bytes::{Bytes, BytesMut};

use crate::guard::RawView;
use crate::protocol::number::c_uint64;
use crate::protocol::reply::{Status, meta};
use crate::proxy::raw::shown::{flags_of, shows_stub};
use crate::proxy::server_key::server_key;
use crate::upstream::pending_replies::Reply;

/// What the client sees of the item.
pub(super) enum Seen {
    /// The server has not told.
    Unknown,
    Gone,
    Plain(Item),
    /// A placeholder or a stub.
    Absent(Item),
    Sealed {
        item: Item,
        payload_at: usize,
        stale_for: u32,
    },
}

pub(super) struct Item {
    pub(super) value: Bytes,
    pub(super) cas: u64,
    pub(super) flags: u32,
    /// `None`: it never ends.
    pub(super) ttl: Option<u32>,
    /// The look has taken the right to rebuild an item that is marked stale.
    pub(super) won: bool,
    pub(super) epoch: u32,
}

/// Appends a command that reads all of an item and is no use of it.
pub(super) fn put_whole_look(key: &[u8], out: &mut BytesMut) {
    let (key, is_base64) = server_key(key);
    out.extend_from_slice(b"mg ");
    out.extend_from_slice(&key);
    out.extend_from_slice(if is_base64 { b" b u v f c t\r\n" } else { b" u v f c t\r\n" });
}

/// What the client sees, by the reply to [`put_whole_look`]. `is_won`: see [`shows_stub`].
pub(super) fn seen(reply: &Reply, is_won: bool) -> Seen {
    let Reply::Answered { bytes, epoch } = reply else { return Seen::Unknown };
    let parsed = meta(bytes);
    match parsed.status {
        Status::En => return Seen::Gone,
        Status::Va => {}
        _ => return Seen::Unknown,
    }
    let item = Item {
        value: bytes.slice_ref(parsed.data),
        cas: parsed.number(b'c').unwrap_or(0),
        flags: flags_of(&parsed).unwrap_or(0),
        ttl: parsed.number(b't').and_then(|ttl| u32::try_from(ttl).ok()),
        won: parsed.token(b'W').is_some(),
        epoch: *epoch,
    };
    match RawView::of(parsed.data) {
        RawView::Absent => Seen::Absent(item),
        RawView::Sealed { payload_at, stale_for } => Seen::Sealed { item, payload_at, stale_for },
        RawView::Plain if item.value.is_empty() && shows_stub(&parsed, is_won) => Seen::Absent(item),
        RawView::Plain => Seen::Plain(item),
    }
}

/// Whether memcached counts with this value.
pub(super) fn is_number(value: &[u8]) -> bool {
    value.split(|byte| *byte == 0).next().and_then(c_uint64).is_some()
}
