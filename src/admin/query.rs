//! The query of a URL.

/// The most parameters that are read. Further ones are ignored.
const MAX_PARAMETERS: usize = 16;

/// The parameters in their order, decoded: `%NN` is a byte, `+` is a space.
pub(super) fn pairs(query: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        (decoded(name), decoded(value))
    };
    query.split('&').filter(|text| !text.is_empty()).take(MAX_PARAMETERS).map(pair).collect()
}

/// Bytes that are no valid encoding stay as they are.
fn decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, behind)) = rest.split_first() {
        let hex = |at: usize| behind.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = &behind[2..];
            }
            (b'+', ..) => {
                bytes.push(b' ');
                rest = behind;
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_spaces_and_what_is_no_encoding_are_read() {
        let pairs = pairs("key=a%20b+c%00%ff&base64&x=%4&y=%zz&&z=%2B=");
        let expected: [(&[u8], &[u8]); 5] =
            [(b"key", b"a b c\0\xff"), (b"base64", b""), (b"x", b"%4"), (b"y", b"%zz"), (b"z", b"+=")];
        assert_eq!(pairs.len(), expected.len());
        for ((name, value), (expected_name, expected_value)) in pairs.iter().zip(expected) {
            assert_eq!((&name[..], &value[..]), (expected_name, expected_value));
        }
    }

    #[test]
    fn the_number_of_parameters_is_bounded() {
        assert_eq!(pairs(&"a=1&".repeat(MAX_PARAMETERS + 1)).len(), MAX_PARAMETERS);
    }
}
