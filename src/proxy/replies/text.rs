//! Words of a command or reply line.

use bytes::BytesMut;

/// Appends a space and the key.
pub(crate) fn put_key(out: &mut BytesMut, key: &[u8]) {
    out.extend_from_slice(b" ");
    out.extend_from_slice(key);
}

/// Appends a space and the number.
pub(crate) fn put_number(out: &mut BytesMut, number: impl itoa::Integer) {
    out.extend_from_slice(b" ");
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
