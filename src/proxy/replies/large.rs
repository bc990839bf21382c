//! Replies that are too large to copy. They are written to the client from the buffer that they were read into.

use bytes::{Bytes, BytesMut};

/// The size from which a reply is not copied, in bytes.
const LARGE_REPLY: usize = 16 * 1024;

/// The part of a reply that follows what has been copied.
pub struct LargeReply {
    /// To be written first.
    pub bytes: Bytes,
    /// To be written after `bytes`.
    pub trailer: &'static [u8],
}

/// Whether a reply is too large to copy.
pub(crate) fn is_large(bytes: &Bytes) -> bool {
    bytes.len() >= LARGE_REPLY
}

/// Appends `part` of `bytes` to `out`, or returns it if it is large. A small part costs no reference to the buffer.
pub(crate) fn write_part(bytes: &Bytes, part: &[u8], out: &mut BytesMut) -> Option<LargeReply> {
    if part.len() >= LARGE_REPLY {
        return Some(LargeReply { bytes: bytes.slice_ref(part), trailer: b"" });
    }
    out.extend_from_slice(part);
    None
}

/// Appends `bytes` and `trailer` to `out`, or returns them if they are large.
pub(crate) fn write_reply(bytes: &Bytes, trailer: &'static [u8], out: &mut BytesMut) -> Option<LargeReply> {
    if is_large(bytes) {
        return Some(LargeReply { bytes: bytes.clone(), trailer });
    }
    out.extend_from_slice(bytes);
    out.extend_from_slice(trailer);
    None
}
