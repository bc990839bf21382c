//! Answers that are too large to be copied among others: they go to the client from where they were read.

use bytes::{Bytes, BytesMut};

/// From so many bytes on.
const LARGE_ANSWER: usize = 16 * 1024;

/// What is to be said behind what has been said already.
pub struct LargeReply {
    /// This first,
    pub bytes: Bytes,
    /// and then this.
    pub behind: &'static [u8],
}

pub(super) fn is_large(bytes: &Bytes) -> bool {
    bytes.len() >= LARGE_ANSWER
}

/// Says these bytes and what follows them: small, with what else is said; or else they are given back.
pub(super) fn write_reply(bytes: &Bytes, behind: &'static [u8], out: &mut BytesMut) -> Option<LargeReply> {
    if is_large(bytes) {
        return Some(LargeReply { bytes: bytes.clone(), behind });
    }
    out.extend_from_slice(bytes);
    out.extend_from_slice(behind);
    None
}
