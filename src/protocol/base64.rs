//! Base64 for keys of the meta flag `b`: the standard alphabet, padded.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` in base64.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0_u32, |group, i| group << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let sextet = (group >> (18 - 6 * i)) & 63;
            out.push(if i <= chunk.len() { ALPHABET[sextet as usize] } else { b'=' });
        }
    }
}

/// Decodes `text`, which must have only letters of the alphabet and padding. `None` if it has not, or the result is empty.
pub fn decode_strictly(text: &[u8]) -> Option<Vec<u8>> {
    let letters = text.iter().take_while(|byte| ALPHABET.contains(byte)).count();
    let padding = &text[letters..];
    (padding.len() <= 2 && padding.iter().all(|byte| *byte == b'=')).then(|| decode(text))?
}

/// Decodes `text` as memcached does: skips bytes outside the alphabet and stops after the first group of four with padding.
/// `None` if a group is incomplete or the result is empty.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let sextets: Vec<Option<u8>> = text
        .iter()
        .filter_map(|&byte| match byte {
            b'=' => Some(None),
            _ => ALPHABET.iter().position(|&letter| letter == byte).map(|sextet| Some(sextet as u8)),
        })
        .collect();
    let (groups, rest) = sextets.as_chunks::<4>();
    if groups.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for group in groups {
        let padding = group.iter().filter(|sextet| sextet.is_none()).count();
        if padding > 2 {
            return None;
        }
        let bits = group.iter().fold(0_u32, |bits, sextet| bits << 6 | u32::from(sextet.unwrap_or(0)));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
        if padding > 0 {
            break;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        for (plain, text) in [
            (&b"f"[..], &b"Zg=="[..]),
            (b"fo", b"Zm8="),
            (b"foo", b"Zm9v"),
            (b"foob", b"Zm9vYg=="),
            (b"\xff\xfe\x00", b"//4A"),
        ] {
            let mut encoded = Vec::new();
            encode(plain, &mut encoded);
            assert_eq!(encoded, text);
            assert_eq!(decode(text).as_deref(), Some(plain));
        }
    }

    #[test]
    fn text_that_memcached_cannot_decode_is_rejected() {
        for text in [&b""[..], b"x", b"YQ", b"YQ=", b"!!!!", b"Y===", b"===="] {
            assert_eq!(decode(text), None, "{:?}", String::from_utf8_lossy(text));
        }
        assert_eq!(decode(b"Z-g==").as_deref(), Some(&b"f"[..]));
    }
}
