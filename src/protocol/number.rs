//! Numbers as memcached reads them. Most are digits only. Flags and exptime of classic storage commands, and the values of
//! `incr` and `decr`, are read by C's `strtol` family, which accepts whitespace and plus signs and wraps around.

/// The most bytes of a number below 2^32, including leading zeros.
const MAX_32: usize = 11;
/// The most bytes of a number below 2^64, including leading zeros.
const MAX_64: usize = 22;

/// A number below 2^32, in digits.
pub(crate) fn u32(text: &[u8]) -> Option<u32> {
    u32::try_from(digits(text, MAX_32)?).ok()
}

/// A number below 2^64, in digits.
pub(super) fn u64(text: &[u8]) -> Option<u64> {
    digits(text, MAX_64)
}

/// A number from -2^31 to 2^31 - 1: digits with an optional minus sign. A minus sign alone is 0, as in memcached.
pub(super) fn i32(text: &[u8]) -> Option<i32> {
    if text.len() > MAX_32 {
        return None;
    }
    match text.strip_prefix(b"-") {
        None => i32::try_from(digits(text, MAX_32)?).ok(),
        Some(magnitude) => i32::try_from(-i64::try_from(digits(magnitude, MAX_32)?).ok()?).ok(),
    }
}

fn digits(text: &[u8], most: usize) -> Option<u64> {
    if text.len() > most {
        return None;
    }
    text.iter().try_fold(0u64, |number, &byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// memcached's `safe_strtol`: a C `long`, truncated to 32 bits. `99999999999` is valid, 2^63 is not. If a word consists of
/// whitespace only, the number is read from the words that follow it.
pub(super) fn c_int32(text: &[u8]) -> Option<i32> {
    let (negative, magnitude) = magnitude(text)?;
    let long = match negative {
        false => i64::try_from(magnitude).ok()?,
        true => 0i64.checked_sub_unsigned(magnitude)?,
    };
    Some(long as i32)
}

/// memcached's `safe_strtoul`: [`c_uint64`], truncated to 32 bits.
pub(super) fn c_uint32(text: &[u8]) -> Option<u32> {
    c_uint64(text).map(|long| long as u32)
}

/// memcached's `safe_strtoull`: C negates a number with a minus sign modulo 2^64, and memcached rejects the result only if its
/// top bit is set.
pub(crate) fn c_uint64(text: &[u8]) -> Option<u64> {
    let (negative, magnitude) = magnitude(text)?;
    let long = if negative { magnitude.wrapping_neg() } else { magnitude };
    if long >> 63 == 1 && negative { None } else { Some(long) }
}

/// Parses whitespace, an optional sign and digits, followed by the end or by whitespace and anything.
fn magnitude(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|&byte| !is_space(byte))?;
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if length == 0 || digits.get(length).is_some_and(|&byte| !is_space(byte)) {
        return None;
    }
    let mut magnitude = 0u64;
    for digit in &digits[..length] {
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some((negative, magnitude))
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_only_digits_and_stays_within_its_type() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("-", Some(0)),
            ("-0", Some(0)),
            ("00000000007", Some(7)),
            ("000000000007", None),
            ("2147483647", Some(i32::MAX)),
            ("-2147483648", Some(i32::MIN)),
            ("2147483648", None),
            ("-2147483649", None),
            ("+1", None),
            ("--1", None),
            ("\t1", None),
            ("1\t", None),
            ("1x", None),
        ] {
            assert_eq!(i32(text.as_bytes()), number, "{text:?}");
        }
        assert_eq!((u32(b"4294967295"), u32(b"4294967296"), u32(b"-0")), (Some(u32::MAX), None, None));
        assert_eq!((u64(b"18446744073709551615"), u64(b"18446744073709551616")), (Some(u64::MAX), None));
        assert_eq!((u64(b"0000000000000000000001"), u64(b"00000000000000000000001")), (Some(1), None));
        assert_eq!((u64(b"-1"), u64(b"+1"), u64(b"x")), (None, None, None));
    }

    #[test]
    fn an_exptime_of_a_set_keeps_the_low_32_bits_of_a_c_long() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("+1", Some(1)),
            ("\t1", Some(1)),
            ("1\tx", Some(1)),
            ("1\r", Some(1)),
            ("\t 5 1", Some(5)),
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
            assert_eq!(c_int32(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn a_negative_count_is_rejected_only_if_its_top_bit_is_set() {
        for (text, number) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("18446744073709551615\t-", Some(u64::MAX)),
            ("-0", Some(0)),
            ("-1", None),
            ("-9223372036854775807", None),
            ("-9223372036854775809", Some((1 << 63) - 1)),
            ("x", None),
        ] {
            assert_eq!(c_uint64(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn flags_of_2_to_the_32_are_accepted_as_0() {
        assert_eq!(c_uint32(b"4294967295"), Some(u32::MAX));
        assert_eq!(c_uint32(b"4294967296"), Some(0));
        assert_eq!(c_uint32(b"18446744073709551615"), Some(u32::MAX));
        assert_eq!(c_uint32(b"-1"), None);
    }
}
