//! Renders the names of a key's tags.

use std::fmt;

use md5::{Digest, Md5};

use super::pattern::{Captures, KEY_MAX, Pattern, PatternError, PatternProblem, Piece, Pieces, Segment};

/// The longest key whose base64 is a valid key, in bytes.
const BINARY_KEY_MAX: usize = KEY_MAX / 4 * 3;

/// The name of a tag as literal text and captures of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
}

impl Template {
    /// Parses a template: at most 250 bytes of literal text, and captures of `pattern`.
    pub fn parse(text: &str, pattern: &Pattern) -> Result<Template, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Pattern(PatternError { at: 1, problem: PatternProblem::Empty }));
        }
        let (mut segments, mut literals) = (Vec::new(), 0);
        for piece in Pieces::new(text) {
            let (at, piece) = piece.map_err(TemplateError::Pattern)?;
            match piece {
                Piece::Star => return Err(TemplateError::Star { at }),
                Piece::Literal(literal) => {
                    literals += literal.len();
                    segments.push(Segment::Literal(literal.as_bytes().into()));
                }
                Piece::Name(name) => {
                    let Some(i) = pattern.names().iter().position(|n| n == name) else {
                        let name = name.to_owned();
                        return Err(TemplateError::NoCapture {
                            at,
                            name,
                            captures: pattern.names().to_vec(),
                        });
                    };
                    segments.push(Segment::Capture(i));
                }
            }
            if literals > KEY_MAX {
                return Err(TemplateError::Pattern(PatternError { at, problem: PatternProblem::TooLong }));
            }
        }
        Ok(Template { text: text.to_owned(), segments })
    }

    /// The text that was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Appends the tag of `key` to `out`, which must contain only the tag prefix. `captures` are those of `key` under the pattern
    /// that the template was parsed with. A tag that is too long is [folded](fold_tag).
    pub fn render(&self, key: &[u8], captures: &Captures, out: &mut Vec<u8>) {
        let prefix_len = out.len();
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => out.extend_from_slice(literal),
                Segment::Capture(i) => out.extend_from_slice(captures.get(key, *i).unwrap_or_default()),
            }
        }
        fold_tag(out, prefix_len);
    }
}

/// Shortens the key of a tag to a valid length. `key` is the tag prefix (`prefix_len` bytes, at most 32) and the name of the tag.
/// If it has more than 250 bytes, the name is replaced by `~` and the 32 lower-case hex digits of its MD5. The limit is 186 bytes
/// if the key contains a byte that only the base64 key of a meta command can represent. To bump such a tag, a client must use the
/// shortened key: it cannot send the full one.
pub fn fold_tag(key: &mut Vec<u8>, prefix_len: usize) {
    let spaced = || key.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r' | b' '));
    if key.len() <= BINARY_KEY_MAX || (key.len() <= KEY_MAX && !spaced()) {
        return;
    }
    let digest = Md5::digest(&key[prefix_len..]);
    key.truncate(prefix_len);
    key.push(b'~');
    for byte in digest {
        key.push(b"0123456789abcdef"[usize::from(byte >> 4)]);
        key.push(b"0123456789abcdef"[usize::from(byte & 15)]);
    }
}

/// A template is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// The syntax is invalid.
    Pattern(PatternError),
    /// The pattern has no such capture.
    NoCapture {
        /// The position in characters, counted from 1.
        at: usize,
        /// Capture that the pattern lacks.
        name: String,
        /// Captures that the pattern has.
        captures: Vec<String>,
    },
    /// A `*`, which a template must not contain.
    Star {
        /// The position in characters, counted from 1.
        at: usize,
    },
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Pattern(e) => e.fmt(f),
            TemplateError::NoCapture { at, name, captures } if captures.is_empty() => {
                write!(f, "character {at}: unknown capture {{{name}}}: the match has no captures")
            }
            TemplateError::NoCapture { at, name, captures } => {
                let list = captures.iter().map(|n| format!("{{{n}}}")).collect::<Vec<_>>().join(", ");
                write!(f, "character {at}: unknown capture {{{name}}}: the captures of the match are {list}")
            }
            TemplateError::Star { at } => {
                write!(f, "character {at}: * is not allowed: use a {{capture}} of the match")
            }
        }
    }
}

impl std::error::Error for TemplateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_renders_the_captures_behind_the_prefix() {
        let pattern = Pattern::parse("blog:{blog}:user:{user}").unwrap();
        let template = Template::parse("u:{user}/b:{blog}", &pattern).unwrap();
        let key = b"blog:7:user:ann";
        let mut captures = Captures::default();
        assert!(pattern.matches(key, &mut captures));
        let mut out = b"@tag:".to_vec();
        template.render(key, &captures, &mut out);
        assert_eq!(out, b"@tag:u:ann/b:7");
    }

    #[test]
    fn a_bad_template_is_rejected_with_the_captures_of_the_pattern() {
        let pattern = Pattern::parse("blog:{blog}:user:{user}").unwrap();
        let error = |text: &str| Template::parse(text, &pattern).unwrap_err().to_string();
        let unknown = "character 3: unknown capture {blgo}: the captures of the match are {blog}, {user}";
        assert_eq!(error("b:{blgo}"), unknown);
        assert!(error("all*").starts_with("character 4: * is not allowed"));
        assert!(error("").contains("empty"));
        assert!(error("a b").contains("' '"));
        let none = Template::parse("{a}", &Pattern::parse("*").unwrap()).unwrap_err();
        assert_eq!(none.to_string(), "character 1: unknown capture {a}: the match has no captures");
    }

    #[test]
    fn a_tag_too_long_for_a_key_becomes_its_digest() {
        let pattern = Pattern::parse("p:{x}").unwrap();
        let template = Template::parse("{x}{x}", &pattern).unwrap();

        let tag = |n: usize| {
            let key = [b"p:".as_slice(), &vec![b'x'; n]].concat();
            let (mut captures, mut out) = (Captures::default(), b"@tag:".to_vec());
            assert!(pattern.matches(&key, &mut captures));
            template.render(&key, &captures, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(tag(122), format!("@tag:{}", "x".repeat(244)));
        // md5 of 246 x's, by md5sum.
        assert_eq!(tag(123), "@tag:~631fb49d816c8eb5ea9763e635dca278");
        assert_ne!(tag(123), tag(124));
        let folded = |len: usize| {
            let mut key = vec![b'x'; len];
            fold_tag(&mut key, 5);
            key.len()
        };
        assert_eq!((folded(250), folded(251)), (250, 5 + 1 + 32));
    }
}
