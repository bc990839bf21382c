//! Numbers as memcached reads them: C's strtol family, blanks, plus signs, wrap-around and all.

/// `safe_strtol`: C's `long`, then truncated to 32 bits. `99999999999` is a number; 2^63 is none.
pub(super) fn int32(text: &[u8]) -> Option<i32> {
    let (negative, magnitude) = magnitude(text)?;
    let long = match negative {
        false => i64::try_from(magnitude).ok()?,
        true => 0i64.checked_sub_unsigned(magnitude)?,
    };
    Some(long as i32)
}

/// `safe_strtoul`: [`uint64`], then truncated to 32 bits.
pub(super) fn uint32(text: &[u8]) -> Option<u32> {
    uint64(text).map(|long| long as u32)
}

/// `safe_strtoull`: C negates what has a minus sign modulo 2^64, and memcached refuses the result only when its
/// top bit is set and a minus sign stands anywhere in the word.
pub(crate) fn uint64(text: &[u8]) -> Option<u64> {
    let (negative, magnitude) = magnitude(text)?;
    let long = if negative { magnitude.wrapping_neg() } else { magnitude };
    if long >> 63 == 1 && text.contains(&b'-') { None } else { Some(long) }
}

/// Leading blanks, a sign, digits, and then the end or a blank with anything behind it.
fn magnitude(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|&byte| !blank(byte))?;
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if length == 0 || digits.get(length).is_some_and(|&byte| !blank(byte)) {
        return None;
    }
    let mut magnitude = 0u64;
    for digit in &digits[..length] {
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some((negative, magnitude))
}

/// C's `isspace`.
fn blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exptime_keeps_the_low_32_bits_of_a_c_long() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("+1", Some(1)),
            ("\t1", Some(1)),
            ("1\tx", Some(1)),
            ("1\r", Some(1)),
            ("99999999999", Some(1_215_752_191)),
            ("2147483648", Some(i32::MIN)),
            ("4294967299", Some(3)),
            ("9223372036854775807", Some(-1)),
            ("-9223372036854775808", Some(0)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("", None),
            ("-", None),
            ("\t", None),
            ("x", None),
            ("1x", None),
            ("0x10", None),
            ("--1", None),
        ] {
            assert_eq!(int32(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn a_delta_is_refused_as_negative_only_when_its_top_bit_says_so() {
        for (text, number) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("18446744073709551615\t-", None),
            ("-0", Some(0)),
            ("-1", None),
            ("-9223372036854775807", None),
            ("-9223372036854775809", Some((1 << 63) - 1)),
            ("x", None),
        ] {
            assert_eq!(uint64(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn flags_of_2_to_the_32_are_accepted_as_0() {
        assert_eq!(uint32(b"4294967295"), Some(u32::MAX));
        assert_eq!(uint32(b"4294967296"), Some(0));
        assert_eq!(uint32(b"18446744073709551615"), Some(u32::MAX));
        assert_eq!(uint32(b"-1"), None);
    }
}
