//! Numbers in values and flags, as memcached reads them with C's `strtoull`.

use crate::protocol::number::c_uint64;

/// Reads an unsigned number: [`c_uint64`] up to the first NUL, which ends a string in C.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    c_uint64(text.split(|&byte| byte == 0).next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_number_if_c_reads_one() {
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
