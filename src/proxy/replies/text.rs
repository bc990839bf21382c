//! Words of a command or reply line.

use bytes::BytesMut;

use crate::protocol::decimal::write_decimal;

/// Appends a space and the key.
pub(crate) fn put_key(out: &mut BytesMut, key: &[u8]) {
    out.extend_from_slice(b" ");
    out.extend_from_slice(key);
}

/// Appends a space and the number.
pub(crate) fn put_number(out: &mut BytesMut, number: impl itoa::Integer) {
    out.extend_from_slice(b" ");
    write_decimal(out, number);
}
