//! The shape of a key: its words, and what varies from key to key as `{number}`, `{hash}`, `{uuid}`, `{date}`, `{address}` or `{other}`.
//!
//! Keys of one family have one shape: `post:17:comments` and `post:18:comments` have `post:{number}:comments`.

/// The most variable parts of a shape. What follows is `*`.
pub(super) const MAX_PARTS: usize = 12;
/// Between these, parts are independent of each other.
const MAJOR: &[u8] = b":/|";
/// These separate words within such a part.
const MINOR: &[u8] = b"-_.=,@#+~;&?!";
/// A longer word is a title or a text that varies.
const MAX_WORD: usize = 40;

/// The shape of this key.
pub(super) fn shape(key: &[u8]) -> String {
    let mut shape = String::with_capacity(key.len());
    let (mut parts, mut rest) = (0, key);
    while !rest.is_empty() {
        if MAJOR.contains(&rest[0]) || MINOR.contains(&rest[0]) {
            shape.push(char::from(rest[0]));
            rest = &rest[1..];
            continue;
        }
        if parts == MAX_PARTS {
            shape.push('*');
            return shape;
        }
        let segment = until(rest, MAJOR);
        let (length, name) = match whole(segment) {
            Some(name) => (segment.len(), Some(name)),
            None => first_of(segment),
        };
        match name {
            Some(name) => {
                parts += 1;
                shape.push_str(name);
            }
            None => {
                let word = str::from_utf8(&rest[..length]).unwrap_or_default();
                match word.trim_end_matches(|c: char| c.is_ascii_digit()) {
                    // As in `user17`; `v2` is a word.
                    stem if stem.len() >= 3 && stem.len() < word.len() => {
                        parts += 1;
                        shape.push_str(stem);
                        shape.push_str("{number}");
                    }
                    _ => shape.push_str(word),
                }
            }
        }
        rest = &rest[length..];
    }
    shape
}

/// The bytes before the first of these.
fn until<'k>(text: &'k [u8], ends: &[u8]) -> &'k [u8] {
    &text[..text.iter().position(|byte| ends.contains(byte)).unwrap_or(text.len())]
}

/// What a whole segment is, if it is no word and no sequence of words.
fn whole(segment: &[u8]) -> Option<&'static str> {
    let is_legible = |byte: &u8| byte.is_ascii_graphic() && !b"{}*".contains(byte);
    match segment {
        _ if !segment.iter().all(is_legible) => Some("{other}"),
        _ if segment.len() > MAX_WORD && !segment.iter().any(|byte| MINOR.contains(byte)) => Some("{hash}"),
        _ => None,
    }
}

/// The length of the first piece of a segment that begins with no separator, and what it is unless it is a word.
fn first_of(segment: &[u8]) -> (usize, Option<&'static str>) {
    let ends = |length: usize| segment.get(length).is_none_or(|byte| MINOR.contains(byte));
    let uuid = |segment: &[u8]| {
        let dashes = [8, 13, 18, 23];
        segment.len() >= 36
            && segment[..36].iter().enumerate().all(|(at, byte)| match dashes.contains(&at) {
                true => *byte == b'-',
                false => byte.is_ascii_hexdigit(),
            })
    };
    if uuid(segment) && ends(36) {
        return (36, Some("{uuid}"));
    }
    if is_date(segment) && ends(10) {
        return (10, Some("{date}"));
    }
    if let Some(length) = address(segment).filter(|length| ends(*length)) {
        return (length, Some("{address}"));
    }
    let piece = until(segment, MINOR);
    let name = match piece {
        _ if piece.iter().all(u8::is_ascii_digit) => Some("{number}"),
        _ if is_hash(piece) => Some("{hash}"),
        _ => None,
    };
    (piece.len(), name)
}

/// Whether it begins as in `2026-11-27`.
fn is_date(text: &[u8]) -> bool {
    text.len() >= 10
        && (text.starts_with(b"19") || text.starts_with(b"20"))
        && text[..10].iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => matches!(byte, b'-' | b'.' | b'_'),
            _ => byte.is_ascii_digit(),
        })
}

/// The length of an IPv4 address at the beginning.
fn address(text: &[u8]) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        let digits = text[length..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=3).contains(&digits) {
            return None;
        }
        length += digits;
        if part < 3 {
            if text.get(length) != Some(&b'.') {
                return None;
            }
            length += 1;
        }
    }
    Some(length)
}

/// Whether it looks like a hash or a random token, in hexadecimal or in base64.
fn is_hash(piece: &[u8]) -> bool {
    let count = |is: fn(&u8) -> bool| piece.iter().filter(|byte| is(byte)).count();
    let (digits, letters) = (count(u8::is_ascii_digit), count(u8::is_ascii_alphabetic));
    if digits == 0 || digits + letters < piece.len() {
        return false;
    }
    let is_hex = piece.iter().all(u8::is_ascii_hexdigit);
    let is_mixed = count(u8::is_ascii_uppercase) > 0 && count(u8::is_ascii_lowercase) > 0;
    (is_hex && letters > 0 && piece.len() >= 8)
        || (piece.len() >= 16 && digits >= 2 && (is_mixed || digits * 6 >= piece.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn numbers_hashes_dates_uuids_and_addresses_vary_and_words_do_not() {
        for (key, expected) in [
            ("post:17:comments", "post:{number}:comments"),
            ("user17", "user{number}"),
            ("user17:feed", "user{number}:feed"),
            ("v2:post-17", "v2:post-{number}"),
            ("front_page", "front_page"),
            ("page:front:2", "page:front:{number}"),
            ("s:9f86d081884c7d659a2feaa0c55ad015", "s:{hash}"),
            ("cart:1b4e28ba-2fa1-11d2-883f-0016d3cca427:items", "cart:{uuid}:items"),
            ("user-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "user-{uuid}"),
            ("stats:2026-11-27", "stats:{date}"),
            ("stats-2026-11-27-eu", "stats-{date}-eu"),
            ("rate:10.0.0.1:29384", "rate:{address}:{number}"),
            ("rate:10.0.0:x", "rate:{number}.{number}.{number}:x"),
            ("session:dGhpc0lzQVRva2VuMTIz", "session:{hash}"),
            ("a/b/17|c", "a/b/{number}|c"),
            ("17", "{number}"),
            ("x:{y}:z", "x:{other}:z"),
            ("x:a*b:z", "x:{other}:z"),
            ("deadbeef:decade:facade", "deadbeef:decade:facade"),
            ("", ""),
            (":17:", ":{number}:"),
        ] {
            assert_eq!(shape(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(shape(b"x:\xff\x00:y"), "x:{other}:y");
        let long = format!("t:{}", "a".repeat(60));
        assert_eq!(shape(long.as_bytes()), "t:{hash}");
        let many: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let shape = shape(many.join(":").as_bytes());
        assert_eq!((shape.matches("{number}").count(), shape.ends_with(":*")), (MAX_PARTS, true), "{shape}");
    }

    #[test]
    fn no_two_variable_parts_of_any_key_touch() {
        let mut random = Random::seeded(7);
        let pieces =
            ["a", "17", ":", "-", ".", "2026-11-27", "9f86d081", "*", "{", "10.0.0.1", "\u{7f}", "abc9"];
        for _ in 0..20_000 {
            let key: String = (0..random.below(9)).map(|_| pieces[random.below(12) as usize]).collect();
            let shape = shape(key.as_bytes());
            assert!(
                !shape.contains("}{") && !shape.contains("}*") && !shape.contains("*{"),
                "{key}: {shape}"
            );
        }
    }
}
