//! Who may come in, as memcached's `-Y` asks: before anything else a `set` whose data is `user password`.
//!
//! A client answers to any key, flags and exptime:
//!
//! ```text
//!  set auth 0 0 10\r\n
//!  ann s3cret\r\n             →  STORED, and from here on it is served
//! ```
//!
//! What is refused, and with which words, is what memcached 1.6 says to the same bytes, with two differences. memcached
//! says nothing to all but the last of several commands that arrive in one read; here each is answered. And a length that
//! memcached has no room for ends the connection when it is announced, not when its room is full.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::{Buf, BytesMut};
use subtle::{Choice, ConstantTimeEq};

/// The most lines of a file. memcached stops reading at 8.
const MAX_USERS: usize = 64;
/// The longest line of a file, in bytes, without its end.
const MAX_ENTRY: usize = 254;
/// The largest file, in bytes.
const MAX_FILE: u64 = 64 * 1024;
/// A client that has sent more without ending its line is hung up on.
const MAX_LINE: usize = 2048;
/// The longest data, in bytes, its CRLF included; memcached has no more room either.
const MAX_DATA: usize = 16 * 1024;
/// No word of an entry is as long.
const WORD: usize = 256;

/// Users and their passwords. It is never shown, and a file that repeats a user gives them several passwords.
#[derive(Clone)]
pub struct Users(Vec<Credentials>);

/// A user and a password, each with NULs behind it: so two are compared without a look at their lengths.
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
    /// Reads a file of memcached's format, one `user:password` a line. The error is the end of a sentence that begins with
    /// the file's name, and never quotes the file.
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
            return Err("is empty, so nobody could come in: write user:password on a line".to_owned());
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

    /// Whether these are a user and a password of that user. Takes as long for any that are wrong.
    fn know(&self, user: &[u8], password: &[u8]) -> bool {
        let (Some(user), Some(password)) = (padded(user), padded(password)) else { return false };
        let known = self.0.iter().fold(Choice::from(0), |known, entry| {
            known | (entry.user.ct_eq(&user) & entry.password.ct_eq(&password))
        });
        known.into()
    }
}

fn entry(line: &[u8]) -> Result<Credentials, String> {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Err("must be user:password".to_owned());
    };
    let (user, password) = (&line[..colon], &line[colon + 1..]);
    if user.is_empty() || password.is_empty() {
        return Err("lacks the user or the password: it must be user:password".to_owned());
    }
    if line.len() > MAX_ENTRY {
        return Err(format!("has {} bytes, of {MAX_ENTRY} at most", line.len()));
    }
    if line.iter().any(|byte| b" \r\0".contains(byte)) {
        return Err("has a space, a CR or a NUL, which no client could say".to_owned());
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

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A user and their password.
    Accepted,
    /// Not both.
    Wrong,
    /// A `set`, but of nothing that has the shape of a user and a password.
    Malformed,
    /// Another command: nothing is answered to anybody unknown.
    Missing,
}

/// What to do next with a client that is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read more.
    More,
    /// Say this; unless it is [`Verdict::Accepted`], go on.
    Say(Verdict, &'static [u8]),
    /// Hang up.
    Close,
}

/// One client's attempts.
#[derive(Debug, Default)]
pub struct Authentication {
    /// How many bytes of data are to come, CRLF included, if the line has been read.
    data: Option<usize>,
}

impl Authentication {
    /// Looks at what has been read, and takes from it what it understands. After [`Verdict::Accepted`] the rest is the
    /// client's first request.
    pub fn step(&mut self, users: &Users, input: &mut BytesMut) -> Step {
        let size = match self.data {
            Some(size) => size,
            None => {
                // memcached does not look at a single byte, not even at a line's end.
                if input.len() < 2 {
                    return Step::More;
                }
                let Some(end) = input.iter().take(MAX_LINE + 1).position(|byte| *byte == b'\n') else {
                    return if input.len() > MAX_LINE { Step::Close } else { Step::More };
                };
                let line = input.split_to(end + 1);
                match announced(&line[..end]) {
                    None => return Step::Say(Verdict::Missing, b"CLIENT_ERROR unauthenticated\r\n"),
                    Some(size) if size > MAX_DATA as u64 - 2 => return Step::Close,
                    Some(size) => *self.data.insert(size as usize + 2),
                }
            }
        };
        if input.len() < size {
            input.reserve(size - input.len());
            return Step::More;
        }
        self.data = None;
        let data = &input[..size];
        let step = match data.strip_suffix(b"\r\n").map(words) {
            None => Step::Say(Verdict::Malformed, b"CLIENT_ERROR bad command line termination\r\n"),
            Some([user, password, ..]) if !password.is_empty() => match users.know(user, password) {
                true => Step::Say(Verdict::Accepted, b"STORED\r\n"),
                false => Step::Say(Verdict::Wrong, b"CLIENT_ERROR authentication failure\r\n"),
            },
            Some(_) => Step::Say(Verdict::Malformed, b"CLIENT_ERROR bad authentication token format\r\n"),
        };
        input.advance(size);
        step
    }
}

/// The first words of a line, which ends at a NUL; empty ones behind the last.
fn words(line: &[u8]) -> [&[u8]; 5] {
    let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

/// How long the data behind this line is; `None`: it is no `set`.
fn announced(line: &[u8]) -> Option<u64> {
    match words(line) {
        [b"set", _, _, _, size] if !size.is_empty() => number(size),
        _ => None,
    }
}

/// A number as C's `strtoul` reads it: blanks and a sign before it, anything behind a blank.
fn number(word: &[u8]) -> Option<u64> {
    let is_blank = |byte: &u8| b"\t\n\x0b\x0c\r ".contains(byte);
    let skipped = word.iter().take_while(|byte| is_blank(byte)).count();
    let (signed, minus) = match &word[skipped..] {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        rest => (rest, false),
    };
    let digits = signed.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(&signed[..digits]).ok()?;
    let number: u64 = text.parse().ok()?;
    let ends = signed.get(digits).is_none_or(is_blank);
    (ends && !(minus && number > 0)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::parse(b"user:pass\nuser:other\nann:a:b").unwrap()
    }

    /// What is said to all of this, and what is left for the session if it is let in.
    fn hear(bytes: &[u8]) -> (Vec<String>, Option<Vec<u8>>) {
        let (users, mut input, mut dialog) = (users(), BytesMut::from(bytes), Authentication::default());
        let mut said = Vec::new();
        loop {
            match dialog.step(&users, &mut input) {
                Step::More => return (said, None),
                Step::Close => {
                    said.push("closed".to_owned());
                    return (said, None);
                }
                Step::Say(verdict, line) => {
                    said.push(String::from_utf8_lossy(line).trim_end().to_owned());
                    if verdict == Verdict::Accepted {
                        return (said, Some(input.to_vec()));
                    }
                }
            }
        }
    }

    #[test]
    fn what_follows_the_password_is_the_first_request() {
        let (said, rest) = hear(b"set auth 0 0 9\r\nuser pass\r\nget a\r\n");
        assert_eq!((said, rest.as_deref()), (vec!["STORED".to_owned()], Some(&b"get a\r\n"[..])));
    }

    #[test]
    fn every_password_of_a_user_is_theirs_and_of_nobody_else() {
        let users = users();
        for (user, password) in [("user", "pass"), ("user", "other"), ("ann", "a:b")] {
            assert!(users.know(user.as_bytes(), password.as_bytes()), "{user}");
        }
        for (user, password) in
            [("ann", "pass"), ("user", "a:b"), ("user", "pas"), ("user", "passs"), ("use", "rpass"), ("", "")]
        {
            assert!(!users.know(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert!(!users.know(&[b'u'; WORD + 1], b"pass"));
    }

    #[test]
    fn every_command_is_answered_though_they_come_in_one_piece() {
        let (said, rest) =
            hear(b"get a\r\nset x 0 0 4\r\nuser\r\nset x 0 0 9\r\nuser pasX\r\nset x 0 0 9\r\nuser pass\r\n");
        let expected = [
            "CLIENT_ERROR unauthenticated",
            "CLIENT_ERROR bad authentication token format",
            "CLIENT_ERROR authentication failure",
            "STORED",
        ];
        assert_eq!(said, expected);
        assert_eq!(rest.as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_line_or_data_without_end_is_hung_up_on() {
        let line = |length: usize| [b'x'].repeat(length);
        assert_eq!(hear(&line(MAX_LINE)).0, Vec::<String>::new());
        assert_eq!(hear(&line(MAX_LINE + 1)).0, ["closed"]);
        assert_eq!(hear(b"set a 0 0 16382\r\n").0, Vec::<String>::new());
        assert_eq!(hear(b"set a 0 0 16383\r\n").0, ["closed"]);
        assert_eq!(hear(b"set a 0 0 4294967294\r\n").0, ["closed"]);
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_were_cut() {
        let bytes: &[u8] = b"get a\r\nset x 0 0 9\r\nuser pasX\r\nset x 0 0 9\r\nuser pass\r\nget b\r\n";
        let whole = hear(bytes).0;
        let (users, mut input, mut dialog, mut said) =
            (users(), BytesMut::new(), Authentication::default(), Vec::new());
        for byte in bytes {
            input.extend_from_slice(&[*byte]);
            if let Step::Say(verdict, line) = dialog.step(&users, &mut input) {
                said.push(String::from_utf8_lossy(line).trim_end().to_owned());
                if verdict == Verdict::Accepted {
                    break;
                }
            }
        }
        assert_eq!(said, whole);
    }

    #[test]
    fn a_number_is_what_strtoul_makes_of_it() {
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
    fn a_bad_file_is_told_by_its_line_and_never_quoted() {
        let what = |text: &[u8]| Users::parse(text).expect_err("a mistake");
        assert!(what(b"").starts_with("is empty"));
        assert!(what(b"\n").starts_with("is empty"));
        assert_eq!(what(b"a:b\nsecret\n"), "line 2 must be user:password");
        assert_eq!(what(b"a:b\n\nc:d\n"), "line 2 must be user:password");
        assert!(what(b":secret").starts_with("line 1 lacks the user"));
        assert!(what(b"a:\n").starts_with("line 1 lacks the user or the password"));
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
    fn a_file_that_is_not_there_or_far_too_large_says_so() {
        let what = |path: &str| Users::read(Path::new(path)).expect_err(path);
        assert!(what("/nowhere/auth").starts_with("cannot be read: No such file"));
        assert!(what("/").starts_with("cannot be read: "));
        assert_eq!(what("/dev/zero"), "is larger than 64 KiB: is it the right file?");
    }

    #[test]
    fn passwords_are_not_in_what_is_shown_of_them() {
        let shown = format!("{:?}", users());
        assert!(!shown.contains("pass") && shown.contains('3'), "{shown}");
    }
}
