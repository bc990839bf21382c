//! Writes numbers in decimal digits.

use bytes::BufMut;

/// Appends `number` to `out`.
#[inline]
pub(crate) fn write_decimal(out: &mut impl BufMut, number: impl itoa::Integer) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}
