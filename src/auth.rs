//! Password authentication. A text client authenticates as with memcached's `-Y`: the first command must be a `set` whose data is
//! `user password`. A binary client uses SASL: see `sasl`.
//!
//! The key, flags and exptime are ignored:
//!
//! ```text
//!  set auth 0 0 10\r\n
//!  ann s3cret\r\n             →  STORED; the client is authenticated
//! ```
//!
//! The replies are those of memcached 1.6 to the same bytes, with two differences. If several commands arrive in one read,
//! memcached replies only to the last, Kennel to each. If the announced data are larger than memcached's buffer, Kennel closes
//! the connection at once, memcached when its buffer is full.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::{Buf, BytesMut};
use subtle::{Choice, ConstantTimeEq};

use crate::metrics::AuthOutcome;

mod sasl;

pub use sasl::{Answer, Sasl};

/// The most lines of a file. memcached stops reading after 8.
const MAX_USERS: usize = 64;
/// The longest line of a file in bytes, without its end.
const MAX_ENTRY: usize = 254;
/// The largest file in bytes.
const MAX_FILE: u64 = 64 * 1024;
/// The connection of a client that sends a longer command line is closed.
const MAX_LINE: usize = 2048;
/// The largest data block in bytes, including its CRLF. memcached's buffer has the same size.
const MAX_DATA: usize = 16 * 1024;
/// The size to which users and passwords are padded. Longer than any valid one.
const WORD: usize = 256;

/// Users and their passwords. A user may have several lines, with different passwords. `Debug` does not show the contents.
#[derive(Clone)]
pub struct Users(Vec<Credentials>);

/// A user and a password, padded with NULs, so that the time of a comparison does not depend on their lengths.
#[derive(Clone)]
struct Credentials {
    user: [u8; WORD],
    password: [u8; WORD],
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("count", &self.0.len()).finish_non_exhaustive()
    }
}

impl Users {
    /// Reads a file in memcached's format: one `user:password` per line. The error continues a sentence that begins with the name
    /// of the file. It never contains text of the file.
    pub fn read(path: &Path) -> Result<Users, String> {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text));
        read.map_err(|error: io::Error| format!("cannot be read: {error}"))?;
        if text.len() as u64 > MAX_FILE {
            return Err(format!("is larger than {} KiB: is it the right file?", MAX_FILE / 1024));
        }
        Users::parse(&text)
    }

    fn parse(text: &[u8]) -> Result<Users, String> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        if text.is_empty() {
            return Err("is empty: it must have at least one line user:password".to_owned());
        }
        let mut users = Vec::new();
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let entry = entry(line).map_err(|what| format!("line {number} {what}"))?;
            users.push(entry);
            if users.len() > MAX_USERS {
                return Err(format!("has more than {MAX_USERS} lines"));
            }
        }
        Ok(Users(users))
    }

    /// Whether `password` is a password of `user`. The time does not depend on which of them is wrong.
    pub(crate) fn accept(&self, user: &[u8], password: &[u8]) -> bool {
        // A NUL would look like padding.
        if user.contains(&0) || password.contains(&0) {
            return false;
        }
        let (Some(user), Some(password)) = (padded(user), padded(password)) else { return false };
        let accepted = self.0.iter().fold(Choice::from(0), |accepted, entry| {
            accepted | (entry.user.ct_eq(&user) & entry.password.ct_eq(&password))
        });
        accepted.into()
    }
}

/// A secret that a client sends in place of a user and password. `Debug` does not show it.
#[derive(Clone)]
pub struct Token([u8; WORD]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The shortest token in bytes.
const MIN_TOKEN: usize = 16;

impl Token {
    /// Reads a file with one line. The error continues a sentence that begins with the name of the file. It never contains text of
    /// the file.
    pub fn read(path: &Path) -> Result<Token, String> {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text));
        read.map_err(|error: io::Error| format!("cannot be read: {error}"))?;
        Token::parse(&text)
    }

    pub(crate) fn parse(text: &[u8]) -> Result<Token, String> {
        let token = text.trim_ascii_end();
        let is_valid =
            (MIN_TOKEN..=MAX_ENTRY).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        let token = padded(token).filter(|_| is_valid);
        token.map(Token).ok_or_else(|| {
            format!(
                "must be one line of {MIN_TOKEN} to {MAX_ENTRY} visible ASCII characters: openssl rand -hex 32 makes one"
            )
        })
    }

    /// Whether this is the token. The time does not depend on where it differs.
    pub(crate) fn accepts(&self, given: &[u8]) -> bool {
        // A NUL would look like padding.
        !given.contains(&0) && padded(given).is_some_and(|given| self.0.ct_eq(&given).into())
    }
}

fn entry(line: &[u8]) -> Result<Credentials, String> {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Err("must be user:password".to_owned());
    };
    let (user, password) = (&line[..colon], &line[colon + 1..]);
    if user.is_empty() || password.is_empty() {
        return Err("has no user or no password: it must be user:password".to_owned());
    }
    if line.len() > MAX_ENTRY {
        return Err(format!("has {} bytes: at most {MAX_ENTRY} are allowed", line.len()));
    }
    if line.iter().any(|byte| b" \r\0".contains(byte)) {
        return Err("has a space, a CR or a NUL, which a client cannot send".to_owned());
    }
    let (Some(user), Some(password)) = (padded(user), padded(password)) else {
        return Err(format!("has a word of more than {WORD} bytes"));
    };
    Ok(Credentials { user, password })
}

fn padded(word: &[u8]) -> Option<[u8; WORD]> {
    let mut padded = [0; WORD];
    padded.get_mut(..word.len())?.copy_from_slice(word);
    Some(padded)
}

/// The result of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The user and the password are valid.
    Accepted,
    /// The user is unknown or the password is wrong.
    Wrong,
    /// A `set` whose data are not a user and a password.
    Malformed,
    /// A command other than `set`.
    Missing,
}

impl Verdict {
    /// What it counts as.
    pub fn outcome(self) -> AuthOutcome {
        match self {
            Verdict::Accepted => AuthOutcome::Accepted,
            Verdict::Wrong => AuthOutcome::Wrong,
            Verdict::Malformed => AuthOutcome::Malformed,
            Verdict::Missing => AuthOutcome::Missing,
        }
    }
}

/// What to do next with an unauthenticated client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More input is needed for the next step.
    Read,
    /// Send this reply. Then continue, unless the verdict is [`Verdict::Accepted`].
    Reply(Verdict, &'static [u8]),
    /// The connection must be closed.
    Close,
}

/// The attempts of one client.
#[derive(Debug, Default)]
pub struct Authentication {
    /// The length of the expected data block in bytes, including its CRLF; `None`: a command line is expected.
    data: Option<usize>,
}

impl Authentication {
    /// Consumes the next command line or data block of `input`. After [`Verdict::Accepted`], the rest of `input` belongs to the
    /// client's first request.
    pub fn step(&mut self, users: &Users, input: &mut BytesMut) -> Step {
        let size = match self.data {
            Some(size) => size,
            None => {
                // memcached does not process a single byte, not even a line end.
                if input.len() < 2 {
                    return Step::Read;
                }
                let Some(end) = input.iter().take(MAX_LINE + 1).position(|byte| *byte == b'\n') else {
                    return if input.len() > MAX_LINE { Step::Close } else { Step::Read };
                };
                let line = input.split_to(end + 1);
                match data_length(&line[..end]) {
                    None => return Step::Reply(Verdict::Missing, b"CLIENT_ERROR unauthenticated\r\n"),
                    Some(size) if size > MAX_DATA as u64 - 2 => return Step::Close,
                    Some(size) => *self.data.insert(size as usize + 2),
                }
            }
        };
        if input.len() < size {
            return Step::Read;
        }
        self.data = None;
        let data = &input[..size];
        let step = match data.strip_suffix(b"\r\n").map(words) {
            None => Step::Reply(Verdict::Malformed, b"CLIENT_ERROR bad command line termination\r\n"),
            Some([user, password, ..]) if !password.is_empty() => match users.accept(user, password) {
                true => Step::Reply(Verdict::Accepted, b"STORED\r\n"),
                false => Step::Reply(Verdict::Wrong, b"CLIENT_ERROR authentication failure\r\n"),
            },
            Some(_) => Step::Reply(Verdict::Malformed, b"CLIENT_ERROR bad authentication token format\r\n"),
        };
        input.advance(size);
        step
    }
}

/// The first words of a line, which ends at a NUL; empty where there are fewer.
fn words(line: &[u8]) -> [&[u8]; 5] {
    let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

/// The length of the data block in bytes that a `set` announces; `None`: the line is not a valid `set`.
fn data_length(line: &[u8]) -> Option<u64> {
    match words(line) {
        [b"set", _, _, _, size] if !size.is_empty() => number(size),
        _ => None,
    }
}

/// A number as C's `strtoul` reads it: whitespace, an optional sign and digits, followed by the end or by whitespace and
/// anything.
fn number(word: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| b"\t\n\x0b\x0c\r ".contains(byte);
    let skipped = word.iter().take_while(|byte| is_space(byte)).count();
    let (signed, minus) = match &word[skipped..] {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        rest => (rest, false),
    };
    let digits = signed.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(&signed[..digits]).ok()?;
    let number: u64 = text.parse().ok()?;
    let ends = signed.get(digits).is_none_or(is_space);
    (ends && !(minus && number > 0)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::parse(b"user:pass\nuser:other\nann:a:b").unwrap()
    }

    /// The replies to `bytes`, and the bytes that are left for the session if the client is accepted.
    fn authenticate(bytes: &[u8]) -> (Vec<String>, Option<Vec<u8>>) {
        let (users, mut input) = (users(), BytesMut::from(bytes));
        let (mut authentication, mut replies) = (Authentication::default(), Vec::new());
        loop {
            match authentication.step(&users, &mut input) {
                Step::Read => return (replies, None),
                Step::Close => {
                    replies.push("closed".to_owned());
                    return (replies, None);
                }
                Step::Reply(verdict, line) => {
                    replies.push(String::from_utf8_lossy(line).trim_end().to_owned());
                    if verdict == Verdict::Accepted {
                        return (replies, Some(input.to_vec()));
                    }
                }
            }
        }
    }

    #[test]
    fn the_bytes_behind_the_password_are_the_first_request() {
        let (replies, rest) = authenticate(b"set auth 0 0 9\r\nuser pass\r\nget a\r\n");
        assert_eq!((replies, rest.as_deref()), (vec!["STORED".to_owned()], Some(&b"get a\r\n"[..])));
    }

    #[test]
    fn each_password_is_accepted_for_its_own_user_only() {
        let users = users();
        for (user, password) in [("user", "pass"), ("user", "other"), ("ann", "a:b")] {
            assert!(users.accept(user.as_bytes(), password.as_bytes()), "{user}");
        }
        for (user, password) in
            [("ann", "pass"), ("user", "a:b"), ("user", "pas"), ("user", "passs"), ("use", "rpass"), ("", "")]
        {
            assert!(!users.accept(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert!(!users.accept(&[b'u'; WORD + 1], b"pass"));
    }

    #[test]
    fn every_command_of_one_read_is_answered() {
        let (replies, rest) = authenticate(
            b"get a\r\nset x 0 0 4\r\nuserXXset x 0 0 4\r\nuser\r\nset x 0 0 9\r\nuser pasX\r\nset x 0 0 9\r\nuser pass\r\n",
        );
        let expected = [
            "CLIENT_ERROR unauthenticated",
            "CLIENT_ERROR bad command line termination",
            "CLIENT_ERROR bad authentication token format",
            "CLIENT_ERROR authentication failure",
            "STORED",
        ];
        assert_eq!(replies, expected);
        assert_eq!(rest.as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_line_or_data_block_that_is_too_long_closes_the_connection() {
        let line = |length: usize| [b'x'].repeat(length);
        assert_eq!(authenticate(&line(MAX_LINE)).0, Vec::<String>::new());
        assert_eq!(authenticate(&line(MAX_LINE + 1)).0, ["closed"]);
        assert_eq!(authenticate(b"set a 0 0 16382\r\n").0, Vec::<String>::new());
        assert_eq!(authenticate(b"set a 0 0 16383\r\n").0, ["closed"]);
        assert_eq!(authenticate(b"set a 0 0 4294967294\r\n").0, ["closed"]);
    }

    #[test]
    fn the_replies_do_not_depend_on_how_the_bytes_are_split() {
        let bytes: &[u8] = b"get a\r\nset x 0 0 9\r\nuser pasX\r\nset x 0 0 9\r\nuser pass\r\nget b\r\n";
        let whole = authenticate(bytes).0;
        let (users, mut input) = (users(), BytesMut::new());
        let (mut authentication, mut replies) = (Authentication::default(), Vec::new());
        for byte in bytes {
            input.extend_from_slice(&[*byte]);
            if let Step::Reply(verdict, line) = authentication.step(&users, &mut input) {
                replies.push(String::from_utf8_lossy(line).trim_end().to_owned());
                if verdict == Verdict::Accepted {
                    break;
                }
            }
        }
        assert_eq!(replies, whole);
    }

    #[test]
    fn a_number_is_parsed_as_by_strtoul() {
        for (word, expected) in [
            (&b"9"[..], Some(9)),
            (b"9\r", Some(9)),
            (b"+9\r", Some(9)),
            (b"09", Some(9)),
            (b"\t9\tx", Some(9)),
            (b"-0", Some(0)),
            (b"\r", None),
            (b"-9", None),
            (b"9x", None),
            (b"0x9", None),
            (b"x", None),
            (b"99999999999999999999", None),
        ] {
            assert_eq!(number(word), expected, "{}", word.escape_ascii());
        }
    }

    #[test]
    fn an_error_in_a_file_names_its_line_and_never_quotes_it() {
        let what = |text: &[u8]| Users::parse(text).expect_err("invalid");
        assert!(what(b"").starts_with("is empty"));
        assert!(what(b"\n").starts_with("is empty"));
        assert_eq!(what(b"a:b\nsecret\n"), "line 2 must be user:password");
        assert_eq!(what(b"a:b\n\nc:d\n"), "line 2 must be user:password");
        assert!(what(b":secret").starts_with("line 1 has no user"));
        assert!(what(b"a:\n").starts_with("line 1 has no user or no password"));
        assert!(what(b"a:sec ret\n").starts_with("line 1 has a space"));
        let long = |length: usize| [b"u:", &[b'p'].repeat(length - 2)[..]].concat();
        assert!(what(&long(MAX_ENTRY + 1)).starts_with("line 1 has 255 bytes"));
        assert!(Users::parse(&long(MAX_ENTRY)).is_ok());
        assert!(what(&b"a:b\n".repeat(MAX_USERS + 1)).starts_with("has more than 64 lines"));
        assert!(Users::parse(&b"a:b\r\n".repeat(MAX_USERS)).is_ok());
        for text in [&b"a:b\nsecret\n"[..], b"a:sec ret"] {
            assert!(!what(text).contains("sec"));
        }
    }

    #[test]
    fn a_missing_file_and_one_that_is_too_large_are_errors() {
        let what = |path: &str| Users::read(Path::new(path)).expect_err(path);
        assert!(what("/nowhere/auth").starts_with("cannot be read: No such file"));
        assert!(what("/").starts_with("cannot be read: "));
        assert_eq!(what("/dev/zero"), "is larger than 64 KiB: is it the right file?");
    }

    #[test]
    fn a_nul_behind_a_password_is_not_padding() {
        let users = Users::parse(b"ann:s3cret\n").unwrap();
        assert!(users.accept(b"ann", b"s3cret"));
        for (user, password) in
            [(&b"ann"[..], &b"s3cret\0"[..]), (b"ann\0", b"s3cret"), (b"ann", b"\0s3cret")]
        {
            assert!(!users.accept(user, password), "{user:?} {password:?}");
        }
    }

    #[test]
    fn a_token_is_one_line_of_visible_characters_and_nothing_else_is_accepted() {
        let token = Token::parse(b"0123456789abcdef\n").unwrap();
        assert!(token.accepts(b"0123456789abcdef"));
        for wrong in
            [&b"0123456789abcde"[..], b"0123456789abcdef0", b"0123456789abcdef\0", b"", &[b'x'; WORD + 1]]
        {
            assert!(!token.accepts(wrong), "{wrong:?}");
        }
        for invalid in
            [&b""[..], b"short", b"0123456789 abcdef", b"0123456789abcdef\nsecond", &[b'x'; MAX_ENTRY + 1]]
        {
            let why = Token::parse(invalid).unwrap_err();
            assert!(why.starts_with("must be one line of 16 to 254 visible"), "{why}");
        }
        assert_eq!(format!("{token:?}"), "Token");
        assert!(Token::read(Path::new("/nowhere/token")).unwrap_err().starts_with("cannot be read: "));
    }

    #[test]
    fn debug_output_contains_no_passwords() {
        let shown = format!("{:?}", users());
        assert!(!shown.contains("pass") && shown.contains('3'), "{shown}");
    }
}
