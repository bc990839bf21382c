//! Keys as people see them: in the log, in traces and among the hot keys.

use std::fmt::Write;

/// How much of a key is shown: `log.keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShownKeys {
    /// Keys are shown whole.
    #[default]
    Full,
    /// A hash, different in each process: 16 hexadecimal digits after a `#`.
    Hash,
    /// So many bytes of it, and `…` if there are more.
    Prefix(usize),
}

impl ShownKeys {
    /// What is shown of a key. `hash` is that of the key, for [`ShownKeys::Hash`].
    pub fn of(self, key: &[u8], hash: impl FnOnce() -> u64) -> Box<[u8]> {
        match self {
            ShownKeys::Prefix(length) if key.len() > length => {
                [&key[..length], "…".as_bytes()].concat().into()
            }
            ShownKeys::Full | ShownKeys::Prefix(_) => key.into(),
            ShownKeys::Hash => format!("#{:016x}", hash()).into_bytes().into(),
        }
    }
}

/// A key as text on one line: what is not printable is `\xNN`, and a backslash is `\\`. A key without either is shown as it is.
pub fn shown_key(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_printable(c) => text.push(c),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| escape(byte, &mut text)),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(*byte, &mut text));
    }
    text
}

fn escape(byte: u8, text: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
}

/// Controls, and characters that are invisible or change the order or the width of the line, are not. The latter are Unicode's
/// Default_Ignorable_Code_Point and its formats for annotations, shorthand and music, and two blanks.
pub fn is_printable(c: char) -> bool {
    let is_invisible = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !is_invisible && (c == ' ' || !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_on_one_line_and_can_be_told_from_every_other() {
        for (key, text) in [
            (&b"blog:1:page:7"[..], "blog:1:page:7"),
            ("zoë".as_bytes(), "zoë"),
            (b"a\\x00", "a\\\\x00"),
            (b"\x00\x1b[31m\xff", "\\x00\\x1b[31m\\xff"),
            ("a\u{202e}b".as_bytes(), "a\\xe2\\x80\\xaeb"),
            (b"line\nbreak", "line\\x0abreak"),
            ("\u{e0061}".as_bytes(), "\\xf3\\xa0\\x81\\xa1"),
            ("\u{fff9}\u{180e}".as_bytes(), "\\xef\\xbf\\xb9\\xe1\\xa0\\x8e"),
            ("\u{3164}".as_bytes(), "\\xe3\\x85\\xa4"),
        ] {
            assert_eq!(shown_key(key), text);
        }
    }

    #[test]
    fn no_more_of_a_key_is_shown_than_permitted() {
        let shown = |keys: ShownKeys, key: &str| {
            String::from_utf8_lossy(&keys.of(key.as_bytes(), || 10)).into_owned()
        };
        assert_eq!(shown(ShownKeys::Full, "user:17"), "user:17");
        assert_eq!(shown(ShownKeys::Prefix(5), "user:17"), "user:…");
        assert_eq!(shown(ShownKeys::Prefix(7), "user:17"), "user:17");
        assert_eq!(shown(ShownKeys::Hash, "user:17"), "#000000000000000a");
    }
}
