//! Reads a `get` for many keys in parts, so that neither the number of keys nor the length of the line is limited by memory.
//! memcached limits neither.
//!
//! ```text
//!  get a b c d e f g …\r\n      LongGet::begin_… consumes the command word
//!      └──┘└──┘└──┘             LongGet::part consumes some keys, repeatedly
//! ```
//!
//! [`parse`](super::parse::parse) validates a line up to [`MAX_WHOLE`] before it is split. The first keys of a longer line are
//! answered before the last ones arrive, so an error in it closes the connection: the replies sent cannot be withdrawn.

use memchr::memchr;

use super::line::{BAD_EXPTIME, BAD_FORMAT, MAX_KEY, begins_get, is_key};
use super::number;
use super::request::{Keys, Request, word};

/// The longest line in bytes that is validated as a whole before its first key is read.
pub const MAX_WHOLE: usize = 64 * 1024;

/// A `get`, `gets`, `gat` or `gats` whose keys are read in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongGet {
    exptime: Option<i64>,
    cas: bool,
}

/// The front of a read buffer within a long get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// No complete key yet.
    Incomplete,
    /// This number of spaces and no complete key.
    Spaces(usize),
    /// Some more keys of the line.
    Keys {
        /// A `get` for these keys. In the last part it may have none.
        request: Request<'a>,
        /// The length of the part in bytes.
        consumed: usize,
        /// Whether the line ends with this part.
        last: bool,
    },
    /// An error: the reply to send before the connection is closed.
    Refused(&'static [u8]),
}

impl LongGet {
    /// Begins a get whose line does not end within [`MAX_WHOLE`]. Returns it and the length of its head in bytes, or the reply to
    /// send before the connection is closed; `None` if the line ends, or is not a get.
    pub fn begin_unterminated(buffer: &[u8]) -> Option<Result<(LongGet, usize), &'static [u8]>> {
        let reach = buffer.get(..MAX_WHOLE + 1)?;
        if !begins_get(reach) || memchr(b'\n', reach).is_some() {
            return None;
        }
        Some(LongGet::begin(reach).ok_or(BAD_EXPTIME))
    }

    /// Begins a get for more than `most` keys. `request` has been parsed from the front of `buffer`. Returns the get and the
    /// length of its head in bytes.
    pub fn begin_whole(buffer: &[u8], request: &Request<'_>, most: usize) -> Option<(LongGet, usize)> {
        match request {
            Request::Get { keys, .. } | Request::GetAndTouch { keys, .. }
                if keys.iter().nth(most).is_some() =>
            {
                LongGet::begin(buffer)
            }
            _ => None,
        }
    }

    fn begin(line: &[u8]) -> Option<(LongGet, usize)> {
        let (command, mut rest) = word(line);
        let exptime = match command {
            b"gat" | b"gats" => {
                let (exptime, behind) = word(rest);
                rest = behind;
                Some(number::i32(exptime)?.into())
            }
            _ => None,
        };
        let cas = matches!(command, b"gets" | b"gats");
        Some((LongGet { exptime, cas }, line.len() - rest.len()))
    }

    /// Reads the next keys, at most `most`.
    pub fn part<'a>(&self, buffer: &'a [u8], most: usize) -> Part<'a> {
        let most = most.max(1);
        // Only as far as `most` keys may reach. Otherwise the rest of the line would be searched again for each part.
        let far = (most * (MAX_KEY + 2)).min(MAX_WHOLE);
        let reach = &buffer[..buffer.len().min(far + 1)];
        let end = memchr(b'\n', reach);
        let text = &reach[..end.unwrap_or(reach.len())];
        // An older memcached would end the line at the NUL.
        if memchr(0, text).is_some() {
            return Part::Refused(BAD_FORMAT);
        }
        let text = if end.is_some() { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
        let ends = end.is_some();
        let (mut taken, mut count, mut rest) = (0, 0, text);
        let mut too_long = false;
        while count < most {
            let (key, behind) = word(rest);
            too_long = key.len() > MAX_KEY;
            if too_long && count == 0 {
                return Part::Refused(BAD_FORMAT);
            }
            // The last word of an incomplete line may be the beginning of a key.
            if too_long || key.is_empty() || (behind.is_empty() && !ends) {
                break;
            }
            debug_assert!(is_key(key));
            (count, taken, rest) = (count + 1, text.len() - behind.len(), behind);
        }
        let request = |text| match self.exptime {
            None => Request::Get { keys: Keys(text), cas: self.cas },
            Some(exptime) => Request::GetAndTouch { exptime, keys: Keys(text), cas: self.cas },
        };
        match end {
            Some(end) if word(rest).0.is_empty() => {
                Part::Keys { request: request(&text[..taken]), consumed: end + 1, last: true }
            }
            _ if too_long || count == most || (count > 0 && buffer.len() > far) => {
                Part::Keys { request: request(&text[..taken]), consumed: taken, last: false }
            }
            _ if buffer.len() > far => Part::Spaces(far - MAX_KEY),
            _ => Part::Incomplete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::parse::parse;
    use crate::protocol::request::{Limits, Parsed};

    /// Feeds `rest` in steps of `step` bytes. Returns the keys of all parts and the final error, `b"more"` if the line is
    /// incomplete.
    fn keys(get: LongGet, rest: &[u8], step: usize, most: usize) -> (Vec<Vec<u8>>, Option<&'static [u8]>) {
        let (mut keys, mut start, mut end) = (Vec::new(), 0, 0);
        loop {
            match get.part(&rest[start..end], most) {
                Part::Incomplete if end == rest.len() => return (keys, Some(b"more")),
                Part::Incomplete => end = (end + step).min(rest.len()),
                Part::Spaces(spaces) => {
                    assert!(rest[start..start + spaces].iter().all(|byte| *byte == b' '));
                    start += spaces;
                }
                Part::Refused(reply) => return (keys, Some(reply)),
                Part::Keys { request, consumed, last } => {
                    let (Request::Get { keys: part, .. } | Request::GetAndTouch { keys: part, .. }) = request
                    else {
                        panic!("{request:?}")
                    };
                    assert!(part.iter().count() <= most && (last || !part.is_empty()));
                    keys.extend(part.iter().map(<[u8]>::to_vec));
                    start += consumed;
                    if last {
                        assert_eq!(start, rest.len());
                        return (keys, None);
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_of_any_length_gives_each_of_its_keys_once_however_it_is_split() {
        let wanted: Vec<Vec<u8>> =
            (0..6_000).map(|n| format!("key:{n}:{}", "x".repeat(n % 200)).into_bytes()).collect();
        for (end, gap) in [("\r\n", " "), ("\n", "  "), ("  \r\n", " ")] {
            let mut line = b"get ".to_vec();
            line.extend(wanted.join(gap.as_bytes()));
            line.extend_from_slice(end.as_bytes());
            let Some(Ok((get, head))) = LongGet::begin_unterminated(&line) else { panic!("no long get") };
            for (step, most) in [(1 << 30, 128), (70_001, 1), (1 << 16, 7), (4096, 1000)] {
                assert_eq!(keys(get, &line[head..], step, most), (wanted.clone(), None), "{step} {most}");
            }
        }
    }

    #[test]
    fn a_whole_get_of_many_keys_is_read_in_parts_and_one_of_few_is_not() {
        let limits = Limits { max_value: 1000 };
        for (line, exptime, cas) in [
            ("get a b c\r\n", None, false),
            ("gets  a  b c  \n", None, true),
            ("gat -1 a b c\r\n", Some(-1), false),
            ("gats 7 a b c\r\n", Some(7), true),
        ] {
            let line = line.as_bytes();
            let Parsed::Request { request, .. } = parse(line, &limits) else { panic!("not accepted") };
            assert_eq!(LongGet::begin_whole(line, &request, 3), None);
            let (get, head) = LongGet::begin_whole(line, &request, 2).unwrap();
            assert_eq!(get, LongGet { exptime, cas });
            assert_eq!(keys(get, &line[head..], 4000, 2), (["a", "b", "c"].map(Vec::from).to_vec(), None));
        }
    }

    #[test]
    fn an_error_behind_the_first_keys_ends_a_long_get() {
        let head = [b"gets ".to_vec(), b"key ".repeat(20_000)].concat();
        let long = [&head[..], &[b'k'; 251], b" z\r\n"].concat();
        let Some(Ok((get, start))) = LongGet::begin_unterminated(&long) else { panic!("no long get") };
        let (before, reply) = keys(get, &long[start..], 1 << 30, 128);
        assert_eq!((before.len(), reply), (20_000, Some(BAD_FORMAT)));
        let endless_word = [&head[..], &vec![b'k'; 100_000]].concat();
        assert_eq!(keys(get, &endless_word[start..], 1 << 30, 128).1, Some(BAD_FORMAT));
        let spaces = [&head[..], &vec![b' '; 200_000], b"z \r\n"].concat();
        let (found, reply) = keys(get, &spaces[start..], 1 << 30, 128);
        assert_eq!((found.len(), reply), (20_001, None));
        let nul = [&head[..], b"a\0b \r\n"].concat();
        assert_eq!(keys(get, &nul[start..], 1 << 30, 128).1, Some(BAD_FORMAT));
        let bad_exptime = [b"gat x ".to_vec(), b"key ".repeat(20_000)].concat();
        assert_eq!(LongGet::begin_unterminated(&bad_exptime), Some(Err(BAD_EXPTIME)));
    }

    #[test]
    fn other_lines_are_not_read_in_parts() {
        for line in [b"set ".repeat(20_000), [&b"get a\r\n"[..], &b"x".repeat(70_000)].concat()] {
            assert_eq!(LongGet::begin_unterminated(&line), None);
        }
        assert_eq!(LongGet::begin_unterminated(&b"get ".repeat(1000)), None);
    }
}
