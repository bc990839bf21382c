//! A `get` for more keys than may be on their way at once: taken a part at a time, so that no number of keys and no length of
//! line has to be held in memory. memcached limits neither.
//!
//! ```text
//!  get a b c d e f g …\r\n      LongGet::begin takes the word
//!      └──┘└──┘└──┘             LongGet::part takes some keys, as often as there are any
//! ```
//!
//! A line up to [`MAX_WHOLE`] has been looked at whole by [`parse`](super::parse::parse) before it is taken apart. Of a longer
//! one the first keys are answered before the last ones are here: a mistake in it ends the connection, for what has been said
//! cannot be taken back.

use memchr::memchr;

use super::line::{BAD_FORMAT, begins_get, is_key};
use super::number;
use super::request::{Keys, Request, word};

/// The longest line that is looked at whole before its first key is asked for, in bytes.
pub const MAX_WHOLE: usize = 64 * 1024;

const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";

/// In the middle of a `get`, `gets`, `gat` or `gats`: what it asks of the keys that are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongGet {
    exptime: Option<i64>,
    cas: bool,
}

/// What stands at the front of a read buffer in the middle of a long get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// Nothing that could be asked for yet.
    Incomplete,
    /// Only spaces, so many.
    Spaces(usize),
    /// A `get` for some keys.
    Keys {
        /// It. Of the last part it may have no key.
        request: Request<'a>,
        /// How many bytes of the buffer it takes.
        consumed: usize,
        /// The line ends with it.
        last: bool,
    },
    /// What to say before hanging up.
    Refused(&'static [u8]),
}

impl LongGet {
    /// Whether a line that does not end within [`MAX_WHOLE`] is a get: then it, and how many bytes its head takes, or what to
    /// say before hanging up.
    pub fn begin_unterminated(buffer: &[u8]) -> Option<Result<(LongGet, usize), &'static [u8]>> {
        let reach = buffer.get(..MAX_WHOLE + 1)?;
        if !begins_get(reach) || memchr(b'\n', reach).is_some() {
            return None;
        }
        Some(LongGet::begin(reach).ok_or(BAD_EXPTIME))
    }

    /// A get for more than `keys` keys, that has been parsed from the front of `buffer`: it, and how many bytes its head takes.
    pub fn begin_whole(buffer: &[u8], request: &Request<'_>, keys: usize) -> Option<(LongGet, usize)> {
        match request {
            Request::Get { keys: asked, .. } | Request::GetAndTouch { keys: asked, .. }
                if asked.iter().nth(keys).is_some() =>
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

    /// The next of its keys, `most` at most.
    pub fn part<'a>(&self, buffer: &'a [u8], most: usize) -> Part<'a> {
        let most = most.max(1);
        // No further than so many keys may reach, or a line would be looked at as often as it has parts.
        let far = (most * (super::MAX_KEY + 2)).min(MAX_WHOLE);
        let reach = &buffer[..buffer.len().min(far + 1)];
        let end = memchr(b'\n', reach);
        let text = &reach[..end.unwrap_or(reach.len())];
        // To an older memcached the line would end there.
        if memchr(0, text).is_some() {
            return Part::Refused(BAD_FORMAT);
        }
        let text = if end.is_some() { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
        let cut = end.is_some();
        let (mut taken, mut count, mut rest) = (0, 0, text);
        let mut wrong = false;
        while count < most {
            let (key, behind) = word(rest);
            wrong = key.len() > super::MAX_KEY;
            if wrong && count == 0 {
                return Part::Refused(BAD_FORMAT);
            }
            // What stands at the end of what is here may be half a key.
            if wrong || key.is_empty() || (behind.is_empty() && !cut) {
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
            _ if wrong || count == most || (count > 0 && buffer.len() > far) => {
                Part::Keys { request: request(&text[..taken]), consumed: taken, last: false }
            }
            _ if buffer.len() > far => Part::Spaces(far - super::MAX_KEY),
            _ => Part::Incomplete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::parse::parse;
    use crate::protocol::request::{Limits, Parsed};

    /// The keys of all parts of what follows the head, fed so many bytes at a time; and what was said at the end.
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
                Part::Refused(said) => return (keys, Some(said)),
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
    fn a_line_of_any_length_gives_each_of_its_keys_once_however_it_is_cut() {
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
    fn a_whole_get_of_many_keys_is_taken_apart_and_one_of_few_is_not() {
        let limits = Limits { max_value: 1000 };
        for (line, exptime, cas) in [
            ("get a b c\r\n", None, false),
            ("gets  a  b c  \n", None, true),
            ("gat -1 a b c\r\n", Some(-1), false),
            ("gats 7 a b c\r\n", Some(7), true),
        ] {
            let line = line.as_bytes();
            let Parsed::Request { request, .. } = parse(line, &limits) else { panic!("not taken") };
            assert_eq!(LongGet::begin_whole(line, &request, 3), None);
            let (get, head) = LongGet::begin_whole(line, &request, 2).unwrap();
            assert_eq!(get, LongGet { exptime, cas });
            assert_eq!(keys(get, &line[head..], 4000, 2), (["a", "b", "c"].map(Vec::from).to_vec(), None));
        }
    }

    #[test]
    fn a_mistake_behind_the_first_keys_ends_it() {
        let head = [b"gets ".to_vec(), b"key ".repeat(20_000)].concat();
        let long = [&head[..], &[b'k'; 251], b" z\r\n"].concat();
        let Some(Ok((get, start))) = LongGet::begin_unterminated(&long) else { panic!("no long get") };
        let (before, said) = keys(get, &long[start..], 1 << 30, 128);
        assert_eq!((before.len(), said), (20_000, Some(BAD_FORMAT)));
        let endless_word = [&head[..], &vec![b'k'; 100_000]].concat();
        assert_eq!(keys(get, &endless_word[start..], 1 << 30, 128).1, Some(BAD_FORMAT));
        let spaces = [&head[..], &vec![b' '; 200_000], b"z \r\n"].concat();
        let (found, said) = keys(get, &spaces[start..], 1 << 30, 128);
        assert_eq!((found.len(), said), (20_001, None));
        let nul = [&head[..], b"a\0b \r\n"].concat();
        assert_eq!(keys(get, &nul[start..], 1 << 30, 128).1, Some(BAD_FORMAT));
        let bad_exptime = [b"gat x ".to_vec(), b"key ".repeat(20_000)].concat();
        assert_eq!(LongGet::begin_unterminated(&bad_exptime), Some(Err(BAD_EXPTIME)));
    }

    #[test]
    fn what_is_no_long_get_is_left_alone() {
        for line in [b"set ".repeat(20_000), [&b"get a\r\n"[..], &b"x".repeat(70_000)].concat()] {
            assert_eq!(LongGet::begin_unterminated(&line), None);
        }
        assert_eq!(LongGet::begin_unterminated(&b"get ".repeat(1000)), None);
    }
}
