//! Numbers as C's `strtol` family reads them, which is how memcached reads flags and counts in values.

/// Unsigned: leading white space and a sign are allowed, and so is anything behind white space or a NUL that follows.
/// `None` for what is no number, overflows 64 bits, or is negative with the top bit set.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, magnitude) = magnitude(text)?;
    let number = if negative { magnitude.wrapping_neg() } else { magnitude };
    if negative && (number as i64) < 0 { None } else { Some(number) }
}

fn magnitude(text: &[u8]) -> Option<(bool, u64)> {
    let space = |byte: u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|&byte| !space(byte))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends_well = digits.get(length).is_none_or(|&byte| space(byte) || byte == 0);
    if length == 0 || !ends_well {
        return None;
    }
    let magnitude = digits[..length].iter().try_fold(0_u64, |magnitude, &digit| {
        magnitude.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((negative, magnitude))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_as_a_number_when_c_says_so() {
        for (text, number) in [
            ("10", Some(10)),
            ("9 ", Some(9)),
            (" +1", Some(1)),
            ("-0", Some(0)),
            ("5 x", Some(5)),
            ("5\0x", Some(5)),
            ("000000000000000000000000000001", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("5x", None),
            ("x", None),
            (" ", None),
            ("", None),
        ] {
            assert_eq!(unsigned(text.as_bytes()), number, "{text:?}");
        }
    }
}
