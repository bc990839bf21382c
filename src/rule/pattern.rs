//! Patterns of keys.
//!
//! A pattern consists of literal text, captures `{name}` (one or more bytes other than ':') and wildcards `*` (any bytes, or
//! none). Captures and wildcards must be separated by literal text, so that their ends are unambiguous: `{a}{b}`, `**` and `{a}*`
//! are rejected. Matching is non-greedy, from the left: `{a}-{b}` matches `x-y-z` as `x` and `y-z`. There is no escape: a `*`,
//! `{` or `}` in a key is matched by a wildcard or a capture.
//!
//! The shortest match is also complete, which keeps matching cheap. A capture that ends earlier leaves every later position
//! possible that a longer one would (both end at the same ':'), so captures never backtrack, and only the last `*` does. A match
//! takes at most length² byte comparisons, and a key has at most 250 bytes.

use std::fmt;

/// The longest key that memcached accepts, in bytes.
pub(super) const KEY_MAX: usize = 250;

/// The most captures of one pattern.
pub const CAPTURES_MAX: usize = 16;

/// A valid pattern: at least one valid key matches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// The segments between the `*`s: one block more than there are `*`s. Only the first and the last block may be empty, and all
    /// but the first begin with a literal.
    pub(super) blocks: Vec<Vec<Segment>>,
    names: Vec<String>,
    /// The length of the shortest key that matches.
    min_len: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Literal(Box<[u8]>),
    /// The index of the capture.
    Capture(usize),
}

impl Pattern {
    /// Parses a pattern. The error contains the position and how to correct the pattern.
    pub fn parse(text: &str) -> Result<Pattern, PatternError> {
        let mut pattern =
            Pattern { text: text.to_owned(), blocks: vec![Vec::new()], names: Vec::new(), min_len: 0 };
        let fail = |at, problem| Err(PatternError { at, problem });
        if text.is_empty() {
            return fail(1, PatternProblem::Empty);
        }
        let mut wild_before = false;
        for piece in Pieces::new(text) {
            let (at, piece) = piece?;
            let wild = !matches!(piece, Piece::Literal(_));
            if wild && wild_before {
                return fail(at, PatternProblem::Adjacent);
            }
            wild_before = wild;
            match piece {
                Piece::Star => pattern.blocks.push(Vec::new()),
                Piece::Name(name) => {
                    if pattern.names.iter().any(|n| n == name) {
                        return fail(at, PatternProblem::DuplicateName(name.to_owned()));
                    }
                    if pattern.names.len() == CAPTURES_MAX {
                        return fail(at, PatternProblem::TooManyCaptures);
                    }
                    pattern.push(Segment::Capture(pattern.names.len()));
                    pattern.names.push(name.to_owned());
                    pattern.min_len += 1;
                }
                Piece::Literal(literal) => {
                    pattern.push(Segment::Literal(literal.as_bytes().into()));
                    pattern.min_len += literal.len();
                }
            }
            if pattern.min_len > KEY_MAX {
                return fail(at, PatternProblem::TooLong);
            }
        }
        Ok(pattern)
    }

    /// The text that was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of the captures, from the left.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The literal text that every matching key begins with. May be empty.
    pub fn prefix(&self) -> &[u8] {
        match self.blocks[0].first() {
            Some(Segment::Literal(literal)) => literal,
            _ => b"",
        }
    }

    /// Whether every valid key matches.
    pub fn is_everything(&self) -> bool {
        self.blocks.len() == 2 && self.blocks.iter().all(Vec::is_empty)
    }

    /// Whether `key` matches. Sets `captures` if it does, and otherwise leaves them unchanged. A key of more than 250 bytes never
    /// matches.
    pub fn matches(&self, key: &[u8], captures: &mut Captures) -> bool {
        if key.len() < self.min_len || key.len() > KEY_MAX {
            return false;
        }
        let mut found = Captures { len: self.names.len() as u8, ..Captures::default() };
        let matched = self.walk(key, &mut found).is_some();
        if matched {
            *captures = found;
        }
        matched
    }

    fn push(&mut self, segment: Segment) {
        let last = self.blocks.len() - 1; // `parse` begins with one block, so there is always one
        self.blocks[last].push(segment);
    }

    fn walk(&self, key: &[u8], found: &mut Captures) -> Option<()> {
        let last = self.blocks.len() - 1;
        let mut pos = walk_block(&self.blocks[0], key, 0, last == 0, found)?;
        for (i, block) in self.blocks.iter().enumerate().skip(1) {
            if i == last && block.is_empty() {
                return Some(());
            }
            pos = (pos..=key.len()).find_map(|start| walk_block(block, key, start, i == last, found))?;
        }
        Some(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Matches one block at `pos`. Returns the earliest position where it ends, or with `to_end` only the end of the key.
fn walk_block(
    block: &[Segment],
    key: &[u8],
    mut pos: usize,
    to_end: bool,
    found: &mut Captures,
) -> Option<usize> {
    let mut segments = block.iter().peekable();
    while let Some(segment) = segments.next() {
        match segment {
            Segment::Literal(literal) => {
                if !key[pos..].starts_with(literal) {
                    return None;
                }
                pos += literal.len();
            }
            Segment::Capture(i) => {
                let next: &[u8] = match segments.next() {
                    Some(Segment::Literal(literal)) => literal,
                    _ => b"", // the pattern ends here: only a literal may follow a capture
                };
                let reach = key[pos..].iter().position(|b| *b == b':').map_or(key.len(), |n| pos + n);
                let end = if to_end && segments.peek().is_none() {
                    let end = key.len().checked_sub(next.len())?;
                    (end > pos && end <= reach && key.ends_with(next)).then_some(end)?
                } else if next.first() == Some(&b':') {
                    // A capture ends at the first ':'.
                    (reach > pos && key[reach..].starts_with(next)).then_some(reach)?
                } else {
                    (pos + 1..=reach).find(|end| key[*end..].starts_with(next))?
                };
                found.spans[*i] = (pos as u8, end as u8); // both at most KEY_MAX
                pos = end + next.len();
            }
        }
    }
    (!to_end || pos == key.len()).then_some(pos)
}

/// The positions of a pattern's captures in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Captures {
    spans: [(u8, u8); CAPTURES_MAX],
    len: u8,
}

impl Captures {
    /// The bytes of capture `i`, counted from the left. `key` is the key that was matched.
    pub fn get<'k>(&self, key: &'k [u8], i: usize) -> Option<&'k [u8]> {
        let (from, to) = *self.spans[..usize::from(self.len)].get(i)?;
        key.get(usize::from(from)..usize::from(to))
    }
}

/// One element of the syntax of patterns and templates.
pub(super) enum Piece<'a> {
    Literal(&'a str),
    Name(&'a str),
    Star,
}

/// Splits the text of a pattern or template.
pub(super) struct Pieces<'a> {
    text: &'a str,
    pos: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Pieces { text, pos: 0 }
    }

    fn read(&mut self, rest: &'a str) -> Result<(usize, Piece<'a>), PatternError> {
        let start = self.pos;
        let fail = |byte: usize, problem| {
            Err(PatternError { at: self.text[..start + byte].chars().count() + 1, problem })
        };
        let (len, piece) = if let Some(inside) = rest.strip_prefix('{') {
            let Some(close) = inside.find('}') else {
                return fail(0, PatternProblem::Unclosed);
            };
            let name = &inside[..close];
            let tail = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.is_empty() || !name.chars().all(tail) || name.starts_with(|c: char| c.is_ascii_digit()) {
                return fail(0, PatternProblem::BadName(name.to_owned()));
            }
            (close + 2, Piece::Name(name))
        } else if rest.starts_with('*') {
            (1, Piece::Star)
        } else {
            let len = rest.find(['{', '*']).unwrap_or(rest.len());
            let literal = &rest[..len];
            if let Some((byte, c)) = literal.char_indices().find(|(_, c)| " \r\n\0".contains(*c)) {
                return fail(byte, PatternProblem::IllegalCharacter(c));
            }
            if let Some(byte) = literal.find('}') {
                return fail(byte, PatternProblem::Unopened);
            }
            (len, Piece::Literal(literal))
        };
        self.pos += len;
        Ok((self.text[..start].chars().count() + 1, piece))
    }
}

impl<'a> Iterator for Pieces<'a> {
    /// The piece and its position in the text, in characters, counted from 1.
    type Item = Result<(usize, Piece<'a>), PatternError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.text[self.pos..];
        (!rest.is_empty()).then(|| self.read(rest))
    }
}

/// A pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternError {
    /// The position of the problem in characters, counted from 1.
    pub at: usize,
    /// What is wrong with it.
    pub problem: PatternProblem,
}

/// The reason why a pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternProblem {
    /// The text is empty.
    Empty,
    /// No memcached key contains this character.
    IllegalCharacter(char),
    /// Two of `{…}` and `*` without literal text between them.
    Adjacent,
    /// Two captures have this name.
    DuplicateName(String),
    /// This is not a valid name.
    BadName(String),
    /// `{` without `}`.
    Unclosed,
    /// `}` without `{`.
    Unopened,
    /// More than [`CAPTURES_MAX`] captures.
    TooManyCaptures,
    /// Every key that matches is longer than 250 bytes.
    TooLong,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "character {}: ", self.at)?;
        match &self.problem {
            PatternProblem::Empty => write!(f, "must not be empty: write text, {{name}} or *"),
            PatternProblem::IllegalCharacter(c) => write!(f, "keys cannot contain {c:?}: remove it"),
            PatternProblem::Adjacent => {
                write!(
                    f,
                    "a {{name}} or * directly behind another is ambiguous: put literal text between them"
                )
            }
            PatternProblem::DuplicateName(name) => {
                write!(f, "duplicate capture {{{name}}}: each capture must have its own name")
            }
            PatternProblem::BadName(name) => {
                write!(
                    f,
                    "invalid capture {{{name}}}: a name has a-z, 0-9 and _, and does not begin with a digit"
                )
            }
            PatternProblem::Unclosed => write!(f, "{{ without }}: write {{name}}"),
            PatternProblem::Unopened => {
                write!(f, "}} without {{: write {{name}}, or * to match a }} in a key")
            }
            PatternProblem::TooManyCaptures => {
                write!(f, "at most {CAPTURES_MAX} captures: use * for the others")
            }
            PatternProblem::TooLong => {
                write!(f, "longer than {KEY_MAX} bytes, the longest possible key: shorten it")
            }
        }
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn captured(pattern: &str, key: &str) -> Option<Vec<String>> {
        let pattern = Pattern::parse(pattern).unwrap();
        let mut captures = Captures::default();
        let matched = pattern.matches(key.as_bytes(), &mut captures);
        let text = |i| String::from_utf8(captures.get(key.as_bytes(), i).unwrap().to_vec()).unwrap();
        matched.then(|| (0..pattern.names().len()).map(text).collect())
    }

    /// The definition of a match, by trying every possibility. Exponential.
    fn by_definition(pattern: &[char], key: &[u8]) -> bool {
        match pattern {
            [] => key.is_empty(),
            ['*', rest @ ..] => (0..=key.len()).any(|n| by_definition(rest, &key[n..])),
            ['{', _, '}', rest @ ..] => {
                (1..=key.len()).take_while(|n| key[n - 1] != b':').any(|n| by_definition(rest, &key[n..]))
            }
            [c, rest @ ..] => key.first() == Some(&(*c as u8)) && by_definition(rest, &key[1..]),
        }
    }

    pub(in crate::rule) fn random_key(rng: &mut fastrand::Rng, most: usize) -> Vec<u8> {
        (0..rng.usize(1..=most)).map(|_| b"ab:-"[rng.usize(..4)]).collect()
    }

    pub(in crate::rule) fn random_pattern(rng: &mut fastrand::Rng) -> Option<Pattern> {
        let pieces = ["a", "b", ":", "-", "ab", "*", "*", "{x}", "{y}", "{z}"];
        let text: String = (0..rng.usize(1..8)).map(|_| pieces[rng.usize(..pieces.len())]).collect();
        Pattern::parse(&text).ok()
    }

    #[test]
    fn a_capture_stops_at_a_colon_and_a_star_does_not() {
        assert_eq!(captured("blog:{blog}:page:*", "blog:7:page:a:b"), Some(vec!["7".into()]));
        assert_eq!(captured("blog:{blog}:page:*", "blog:7:page:"), Some(vec!["7".into()]));
        assert_eq!(captured("blog:{blog}:page:*", "blog:7:8:page:"), None);
        assert_eq!(captured("blog:{blog}:page:*", "blog::page:x"), None);
        assert_eq!(captured("user:{id}", "user:1:x"), None);
        assert_eq!(captured("*", "anything:at all"), Some(vec![]));
        assert_eq!(captured("plain", "plain2"), None);
        assert_eq!(captured("naïve:{x}", "naïve:ü"), Some(vec!["ü".into()]));
    }

    #[test]
    fn matching_is_non_greedy_from_the_left() {
        assert_eq!(captured("{a}-{b}", "x-y-z"), Some(vec!["x".into(), "y-z".into()]));
        assert_eq!(captured("*-{a}:x", "a-b:c-d:x"), Some(vec!["d".into()]));
        assert_eq!(captured("{a}-b", "x-b-b"), Some(vec!["x-b".into()]));
        assert_eq!(captured("*:{a}:*", "p:q:r:s"), Some(vec!["q".into()]));
    }

    #[test]
    fn matching_agrees_with_the_definition_on_random_patterns_and_keys() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut yes, mut no) = (0, 0);
        while yes + no < 60_000 {
            let Some(pattern) = random_pattern(&mut rng) else { continue };
            let key = random_key(&mut rng, 12);
            let chars: Vec<char> = pattern.text().chars().collect();
            let mut captures = Captures::default();
            let got = pattern.matches(&key, &mut captures);
            let shown = String::from_utf8_lossy(&key);
            assert_eq!(got, by_definition(&chars, &key), "{pattern} on {shown}");
            for i in 0..if got { pattern.names().len() } else { 0 } {
                let held = captures.get(&key, i).unwrap();
                assert!(!held.is_empty() && !held.contains(&b':'), "{pattern} on {shown}");
            }
            *(if got { &mut yes } else { &mut no }) += 1;
        }
        assert!(yes > 2_000 && no > 2_000, "only {yes} matches and {no} mismatches");
    }

    #[test]
    fn a_hostile_key_takes_at_most_quadratic_time() {
        let text = format!("{}b", "*a".repeat(100));
        let pattern = Pattern::parse(&text).unwrap();
        let key = "a".repeat(250);
        // An exponential matcher would never finish.
        for _ in 0..100 {
            assert!(!pattern.matches(key.as_bytes(), &mut Captures::default()));
        }
    }

    #[test]
    fn a_key_longer_than_memcached_accepts_matches_nothing() {
        let everything = Pattern::parse("*").unwrap();
        assert!(everything.matches(&[b'k'; 250], &mut Captures::default()));
        assert!(!everything.matches(&[b'k'; 251], &mut Captures::default()));
    }

    #[test]
    fn a_bad_pattern_is_rejected_with_the_position_of_the_problem() {
        let error = |text: &str| Pattern::parse(text).unwrap_err();
        let bad = |name: &str| PatternProblem::BadName(name.into());
        for (text, at, problem) in [
            ("", 1, PatternProblem::Empty),
            ("ü b", 2, PatternProblem::IllegalCharacter(' ')),
            ("a\r\n", 2, PatternProblem::IllegalCharacter('\r')),
            ("a\0", 2, PatternProblem::IllegalCharacter('\0')),
            ("{a}{b}", 4, PatternProblem::Adjacent),
            ("x**", 3, PatternProblem::Adjacent),
            ("{a}*", 4, PatternProblem::Adjacent),
            ("*{a}", 2, PatternProblem::Adjacent),
            ("{a}:{a}", 5, PatternProblem::DuplicateName("a".into())),
            ("x{}", 2, bad("")),
            ("{Blog}", 1, bad("Blog")),
            ("{1a}", 1, bad("1a")),
            ("{a{b}", 1, bad("a{b")),
            ("ab{c", 3, PatternProblem::Unclosed),
            ("ab}c", 3, PatternProblem::Unopened),
        ] {
            assert_eq!(error(text), PatternError { at, problem }, "{text:?}");
        }
        assert!(Pattern::parse(&"k".repeat(250)).is_ok());
        assert_eq!(error(&"k".repeat(251)).problem, PatternProblem::TooLong);
        assert_eq!(error(&format!("{}{{x}}", "k".repeat(250))).problem, PatternProblem::TooLong);
        let many: Vec<String> = (0..17).map(|i| format!("{{c{i}}}")).collect();
        assert!(Pattern::parse(&many[..16].join(":")).is_ok());
        assert_eq!(error(&many.join(":")).problem, PatternProblem::TooManyCaptures);
    }
}
