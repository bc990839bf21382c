//! Decimal numbers in what is written to the wire.

use bytes::BufMut;

/// Appends a number in decimal digits.
#[inline]
pub(crate) fn write_decimal(out: &mut impl BufMut, number: impl itoa::Integer) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}
