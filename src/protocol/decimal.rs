//! Numbers in decimal digits.

use bytes::BufMut;

/// Appends `number` to `out`.
#[inline]
pub(crate) fn write_decimal(out: &mut impl BufMut, number: impl itoa::Integer) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A number below 2^64 in digits, as servers write it.
#[inline]
pub(crate) fn read_decimal(text: &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = match text.len() {
            // 19 digits cannot overflow.
            ..=19 => number * 10 + u64::from(digit),
            _ => number.checked_mul(10)?.checked_add(u64::from(digit))?,
        };
    }
    (!text.is_empty()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_and_below_2_to_the_64() {
        assert_eq!(read_decimal(b"0"), Some(0));
        assert_eq!(read_decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(read_decimal(b"9999999999999999999"), Some(9_999_999_999_999_999_999));
        for none in ["", "18446744073709551616", "99999999999999999999999", "-1", "+1", "1 ", "a", "1:"] {
            assert_eq!(read_decimal(none.as_bytes()), None, "{none}");
        }
    }
}
