//! Patterns for keys and outcomes: `*` stands for any bytes, `?` for one byte, and `\` before a byte for that byte.

/// The longest pattern, in bytes. A key has at most 250.
pub const MAX_PATTERN: usize = 512;

/// A pattern that has been read, with its escapes resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Byte(u8),
    AnyByte,
    AnyBytes,
}

impl Glob {
    /// The pattern written so.
    ///
    /// # Errors
    /// It is empty, longer than [`MAX_PATTERN`], or ends with a `\`. The text completes a sentence that begins with the pattern.
    pub fn parse(text: &[u8]) -> Result<Glob, String> {
        if text.is_empty() || text.len() > MAX_PATTERN {
            return Err(format!("must have 1 to {MAX_PATTERN} bytes"));
        }
        let mut parts = Vec::with_capacity(text.len());
        let mut rest = text.iter();
        while let Some(byte) = rest.next() {
            parts.push(match byte {
                b'*' if parts.last() == Some(&Part::AnyBytes) => continue,
                b'*' => Part::AnyBytes,
                b'?' => Part::AnyByte,
                b'\\' => Part::Byte(*rest.next().ok_or("must not end with a single \\")?),
                byte => Part::Byte(*byte),
            });
        }
        Ok(Glob(parts))
    }

    /// Whether only one text matches.
    pub fn is_literal(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Byte(_)))
    }

    /// Whether the whole of `text` matches. Takes time in proportion to the product of the lengths at most.
    pub fn matches(&self, text: &[u8]) -> bool {
        let (mut at, mut part) = (0, 0);
        // After the last `*`: where the pattern goes on, and up to where the `*` reaches.
        let mut last: Option<(usize, usize)> = None;
        while at < text.len() {
            match self.0.get(part) {
                Some(Part::AnyBytes) => {
                    last = Some((part + 1, at));
                    part += 1;
                    continue;
                }
                Some(Part::AnyByte) => {}
                Some(Part::Byte(byte)) if *byte == text[at] => {}
                _ => {
                    let Some((after, reached)) = last else { return false };
                    last = Some((after, reached + 1));
                    (part, at) = (after, reached + 1);
                    continue;
                }
            }
            (part, at) = (part + 1, at + 1);
        }
        self.0[part..].iter().all(|part| *part == Part::AnyBytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::parse(pattern.as_bytes()).expect(pattern).matches(text.as_bytes())
    }

    #[test]
    fn a_pattern_without_wildcards_matches_one_text() {
        for (pattern, is_literal) in
            [("user:17", true), ("user:1?", false), ("user*", false), ("a\\*\\?", true)]
        {
            assert_eq!(Glob::parse(pattern.as_bytes()).expect(pattern).is_literal(), is_literal, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_matches_the_whole_text() {
        for (pattern, text) in [
            ("blog:1", "blog:1"),
            ("blog:*", "blog:1:page:7"),
            ("*:page:*", "blog:1:page:7"),
            ("*", ""),
            ("**", "x"),
            ("a*b*c", "aXbXbYc"),
            ("?", "x"),
            ("b?og*7", "blog:1:page:7"),
            (r"a\*b", "a*b"),
            ("*ab", "aab"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("blog:1", "blog:12"),
            ("blog", "xblog"),
            ("?", ""),
            ("?", "xy"),
            (r"a\*b", "axb"),
            ("*a", "ab"),
            ("a*b*c", "ab"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn keys_are_bytes() {
        assert!(Glob::parse(b"\xff*\0").unwrap().matches(b"\xff\x01\x02\0"));
    }

    #[test]
    fn a_pattern_with_many_stars_takes_no_longer_than_the_product_of_the_lengths() {
        let pattern = Glob::parse(&b"*a".repeat(MAX_PATTERN / 2)).unwrap();
        assert!(!pattern.matches(&[b'a'; 250]));
    }

    #[test]
    fn an_empty_a_long_and_an_unfinished_pattern_are_refused() {
        for pattern in [&b""[..], &[b'x'; MAX_PATTERN + 1], b"a\\"] {
            assert!(Glob::parse(pattern).is_err());
        }
        assert!(Glob::parse(&[b'x'; MAX_PATTERN]).is_ok());
    }
}
