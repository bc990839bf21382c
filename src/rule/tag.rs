//! What a key's tags are called.

use std::fmt;

use md5::{Digest, Md5};

use super::pattern::{Captures, KEY_MAX, Pattern, PatternError, PatternProblem, Piece, Pieces, Segment};

/// The longest key whose base64 is a legal key.
const BINARY_KEY_MAX: usize = KEY_MAX / 4 * 3;

/// How a tag's name is made from what a key's captures hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
    rendered_max: usize,
}

impl Template {
    /// Reads a template: literal text and captures of `pattern`, at most 250 bytes of literal text.
    pub fn parse(text: &str, pattern: &Pattern) -> Result<Template, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Pattern(PatternError { at: 1, problem: PatternProblem::Empty }));
        }
        // What is left for one capture when the pattern's other parts are as short as they can be.
        let capture_max = KEY_MAX + 1 - pattern.min_len.max(1);
        let (mut segments, mut literals, mut slots) = (Vec::new(), 0, 0);
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
                            there_are: pattern.names().to_vec(),
                        });
                    };
                    slots += 1;
                    segments.push(Segment::Capture(i));
                }
            }
            if literals > KEY_MAX {
                return Err(TemplateError::Pattern(PatternError { at, problem: PatternProblem::TooLong }));
            }
        }
        Ok(Template { text: text.to_owned(), segments, rendered_max: literals + slots * capture_max })
    }

    /// The template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// No tag rendered from a legal key has more bytes than this (the prefix not counted). Where this and the
    /// prefix stay within 250, no tag of this template is ever [folded](fold_tag).
    pub fn rendered_max(&self) -> usize {
        self.rendered_max
    }

    /// Appends the tag of `key` to `out`, which holds the tag prefix and nothing else. `captures` are those of
    /// `key` under the pattern that the template was parsed with. What does not fit is [folded](fold_tag).
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

/// Makes a tag's key legal. `key` is the prefix (`prefix_len` bytes, at most 32) and the tag's name; when that is
/// more than 250 bytes (186, if it has bytes that only a meta command can name, in base64), the name becomes `~` and the 32 lower-case hex digits of its MD5. Who bumps such a tag
/// by hand writes it that way: no client could send it at its full length.
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
/// Why a template is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// It is not even well-formed.
    Pattern(PatternError),
    /// The pattern has no such capture.
    NoCapture {
        /// Which character, counted from 1.
        at: usize,
        /// The name that is none.
        name: String,
        /// The pattern's captures.
        there_are: Vec<String>,
    },
    /// A `*`, which captures nothing that could be put here.
    Star {
        /// Which character, counted from 1.
        at: usize,
    },
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Pattern(e) => e.fmt(f),
            TemplateError::NoCapture { at, name, there_are } if there_are.is_empty() => {
                write!(f, "character {at}: the match captures nothing, so there is no {{{name}}}")
            }
            TemplateError::NoCapture { at, name, there_are } => {
                let list = there_are.iter().map(|n| format!("{{{n}}}")).collect::<Vec<_>>().join(", ");
                write!(f, "character {at}: the match captures no {{{name}}}; it captures {list}")
            }
            TemplateError::Star { at } => {
                write!(f, "character {at}: * captures nothing: name a {{capture}} of the match")
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
    fn a_bad_template_is_refused_with_the_captures_there_are() {
        let pattern = Pattern::parse("blog:{blog}:user:{user}").unwrap();
        let said = |text: &str| Template::parse(text, &pattern).unwrap_err().to_string();
        assert_eq!(said("b:{blgo}"), "character 3: the match captures no {blgo}; it captures {blog}, {user}");
        assert!(said("all*").starts_with("character 4: * captures nothing"));
        assert!(said("").contains("empty"));
        assert!(said("a b").contains("' '"));
        let none = Template::parse("{a}", &Pattern::parse("*").unwrap()).unwrap_err();
        assert_eq!(none.to_string(), "character 1: the match captures nothing, so there is no {a}");
    }

    #[test]
    fn a_tag_too_long_for_a_key_becomes_its_digest() {
        let pattern = Pattern::parse("p:{x}").unwrap();
        let template = Template::parse("{x}{x}", &pattern).unwrap();
        assert_eq!(template.rendered_max(), 496);
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

    #[test]
    fn the_longest_tag_is_as_long_as_a_template_says_and_no_longer() {
        let pattern = Pattern::parse("p:{x}:{y}").unwrap();
        let template = Template::parse("t{x}", &pattern).unwrap();
        let key = format!("p:{}:y", "x".repeat(246));
        let (mut captures, mut out) = (Captures::default(), Vec::new());
        assert!(pattern.matches(key.as_bytes(), &mut captures));
        template.render(key.as_bytes(), &captures, &mut out);
        assert_eq!(out.len(), template.rendered_max());
    }
}
