//! Where a server's reply ends, and what it says.
//!
//! A server is trusted to be a memcached, not to be sane: what none would say is [`Garbage`], and then nothing more
//! of that connection can be believed.

use memchr::memchr;

use super::line::trim;
use super::meta::Tokens;
use super::request::word;

/// The longest line of a reply in bytes, with its CRLF.
const MAX_LINE: usize = 2048;

/// The longest answer to `stats` in bytes: four times what memcached lets `stats cachedump` say.
const MAX_STATS: usize = 8 << 20;

/// What kind of reply a request is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One line: `STORED`, `DELETED`, `OK`, a number, an error, …
    Line,
    /// `VALUE <key> <flags> <bytes> [<cas>]` and its data block, at most once, then `END`; or one error line.
    Value,
    /// Of a `get` of several keys, what concerns one that is not the last: its `VALUE` and data block, if the server says them
    /// next. It is named by its [`digest`]. The last of them is a [`Shape::Value`].
    Part(u64),
    /// As [`Shape::Value`], with any number of values.
    Values,
    /// One line; behind `VA <size>` the data block.
    Meta,
    /// Nothing, or what [`Shape::Meta`] is; and behind it the `MN` of an `mn` that was sent behind a quiet command.
    Quiet,
    /// Lines until `END`; or one line: an error, `OK`, `RESET`.
    Stats,
}

/// How much of a reply is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// All of it: the buffer's first so many bytes.
    Whole(usize),
    /// Of a [`Shape::Part`]: the server leaves it out, and says something about the next.
    Nothing,
    /// Of a [`Shape::Part`]: an error of so many bytes, which is the reply to the others as well.
    Shared(usize),
    /// Not all of it.
    Partial {
        /// A lower bound on the bytes still missing, 1 at least: a hint for the buffer's size.
        at_least: usize,
    },
}

/// What no sane server says, and why it is not sane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage(pub &'static str);

/// Finds the end of one reply while it arrives. It remembers how far it got, so that the work is linear in the
/// reply's length however it is cut into reads.
#[derive(Debug, Clone, Copy)]
pub struct Framer {
    shape: Shape,
    max_value: usize,
    /// Whole lines and data blocks at the front of the reply that need no second look.
    done: usize,
}

impl Framer {
    /// For one reply, whose data blocks may have `max_value` bytes each. How many blocks there are is not limited
    /// here: the request bounds it.
    pub fn new(shape: Shape, max_value: usize) -> Self {
        Self { shape, max_value, done: 0 }
    }

    /// Looks at the buffer, in which the reply begins at the front and has only grown since the last time.
    pub fn frame(&mut self, buffer: &[u8]) -> Result<Frame, Garbage> {
        match self.shape {
            Shape::Line => {
                let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
                match is_one_line(line) {
                    true => Ok(Frame::Whole(line.len() + 2)),
                    false => Err(Garbage("a word that begins no reply")),
                }
            }
            Shape::Value | Shape::Values => loop {
                let buffer = &buffer[self.done..];
                let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
                let Some(value) = ValueLine::read(line) else {
                    if line == b"END" || (self.done == 0 && is_error(line)) {
                        return Ok(Frame::Whole(self.done + line.len() + 2));
                    }
                    return Err(Garbage("a line that is neither VALUE nor END"));
                };
                if self.done > 0 && self.shape == Shape::Value {
                    return Err(Garbage("two values of one key"));
                }
                match self.block(buffer, line.len() + 2, value.length)? {
                    Frame::Whole(length) => self.done += length,
                    // Nothing less than `END` follows.
                    Frame::Partial { at_least } => return Ok(Frame::Partial { at_least: at_least + 5 }),
                    other => return Ok(other),
                }
            },
            Shape::Part(key) => {
                let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
                match ValueLine::read(line) {
                    Some(value) if digest(value.key) == key => {
                        self.block(buffer, line.len() + 2, value.length)
                    }
                    None if is_error(line) => Ok(Frame::Shared(line.len() + 2)),
                    _ => Ok(Frame::Nothing),
                }
            }
            Shape::Meta => self.meta(buffer).map(|(_, frame)| frame),
            Shape::Quiet => {
                if self.done == 0 {
                    match self.meta(buffer)? {
                        (Status::Mn, whole @ Frame::Whole(4)) => return Ok(whole),
                        (Status::Mn, _) => return Err(Garbage("more behind MN than its end")),
                        (_, Frame::Whole(length)) => self.done = length,
                        // Nothing less than `MN` follows.
                        (Status::Va, Frame::Partial { at_least }) => {
                            return Ok(Frame::Partial { at_least: at_least + 4 });
                        }
                        (_, partial) => return Ok(partial),
                    }
                }
                match line(&buffer[self.done..])? {
                    None => Ok(PARTIAL),
                    Some(b"MN") => Ok(Frame::Whole(self.done + 4)),
                    Some(_) => Err(Garbage("two replies to a quiet command")),
                }
            }
            Shape::Stats => loop {
                let Some(line) = line(&buffer[self.done..])? else { return Ok(PARTIAL) };
                let end = self.done + line.len() + 2;
                if line == b"END" || (self.done == 0 && (is_error(line) || line == b"OK" || line == b"RESET"))
                {
                    return Ok(Frame::Whole(end));
                }
                if end > MAX_STATS {
                    return Err(Garbage("statistics without an end"));
                }
                self.done = end;
            },
        }
    }

    /// One meta reply. The status is [`Status::Error`] as long as it is not known.
    fn meta(&self, buffer: &[u8]) -> Result<(Status, Frame), Garbage> {
        let Some(line) = line(buffer)? else { return Ok((Status::Error, PARTIAL)) };
        match Status::read(line) {
            None => Err(Garbage("a word that begins no meta reply")),
            Some((Status::Va, rest)) => {
                let size = number(word(rest).0).ok_or(Garbage("VA without a size"))?;
                Ok((Status::Va, self.block(buffer, line.len() + 2, size)?))
            }
            Some((status, _)) => Ok((status, Frame::Whole(line.len() + 2))),
        }
    }

    /// A data block of `length` bytes behind `start`, with its CRLF.
    fn block(&self, buffer: &[u8], start: usize, length: u64) -> Result<Frame, Garbage> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.max_value);
        let length = length.ok_or(Garbage("a value larger than may be"))?;
        let end = start + length;
        match buffer.get(end..end + 2) {
            Some(b"\r\n") => Ok(Frame::Whole(end + 2)),
            Some(_) => Err(Garbage("a data block without a CRLF behind it")),
            None => Ok(Frame::Partial { at_least: end + 2 - buffer.len() }),
        }
    }
}

/// [`Framer::frame`] for a reply that is likely to be there at once. Where it is not, a [`Framer`] saves looking twice.
pub fn frame(shape: Shape, buffer: &[u8], max_value: usize) -> Result<Frame, Garbage> {
    Framer::new(shape, max_value).frame(buffer)
}

/// Tells the few keys of one line apart. It is quick, and anybody can find two keys with the same.
pub fn digest(key: &[u8]) -> u64 {
    let (words, rest) = key.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = words.iter().fold(0, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

/// Whether a whole [`Shape::Value`] or [`Shape::Part`] says nothing of any other key than this.
pub fn is_of(reply: &[u8], key: &[u8]) -> bool {
    match reply.strip_prefix(b"VALUE ") {
        Some(rest) => rest.strip_prefix(key).is_some_and(|rest| rest.first() == Some(&b' ')),
        None => true,
    }
}

/// The values of a whole [`Shape::Values`] reply, in the server's order; none if it is an error line.
pub fn values(reply: &[u8]) -> Values<'_> {
    Values(reply)
}

/// See [`values`].
#[derive(Debug, Clone)]
pub struct Values<'a>(&'a [u8]);

/// One value of a `get` reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The data block, without its CRLF.
    pub data: &'a [u8],
    /// The CAS, in the reply to a `gets` or `gats`.
    pub cas: Option<u64>,
    /// The `VALUE` line and the data block whole, as they may be sent on.
    pub raw: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let line = line(self.0).ok()??;
        let ValueLine { key, flags, length, cas } = ValueLine::read(line)?;
        let start = line.len() + 2;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        let raw = self.0.get(..end.checked_add(2)?)?;
        self.0 = &self.0[raw.len()..];
        Some(Value { key, flags, data: &raw[start..end], cas, raw })
    }
}

/// What the first word of a meta reply says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// A hit, with its value.
    Va,
    /// Done; or a hit without its value.
    Hd,
    /// A miss of `mg` or `me`.
    En,
    /// Not found.
    Nf,
    /// Not stored.
    Ns,
    /// Exists: the CAS was another.
    Ex,
    /// The answer to `mn`.
    Mn,
    /// The answer to `me`: what follows are the key and `name=value` pairs.
    Me,
    /// `ERROR`, `CLIENT_ERROR …` or `SERVER_ERROR …`.
    Error,
}

impl Status {
    /// The status of a line, and what follows it.
    fn read(line: &[u8]) -> Option<(Self, &[u8])> {
        if is_error(line) {
            return Some((Self::Error, &[]));
        }
        let (status, rest) = line.split_at_checked(2)?;
        let status = match status {
            b"VA" => Self::Va,
            b"HD" => Self::Hd,
            b"EN" => Self::En,
            b"NF" => Self::Nf,
            b"NS" => Self::Ns,
            b"EX" => Self::Ex,
            b"MN" => Self::Mn,
            b"ME" => Self::Me,
            _ => return None,
        };
        matches!(rest, [] | [b' ', ..]).then_some((status, rest))
    }
}

/// A whole [`Shape::Meta`] reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaReply<'a> {
    /// What it says.
    pub status: Status,
    /// The return flags as sent, behind the status and the size. Of [`Status::Me`], all that follows.
    pub flags: &'a [u8],
    /// The value of [`Status::Va`], without its CRLF; the whole line of [`Status::Error`]; else empty.
    pub data: &'a [u8],
}

impl<'a> MetaReply<'a> {
    /// The return flags one by one, in the server's order.
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens(self.flags)
    }

    /// The token of `flag`, empty if it carries none; `None` if the server did not send the flag.
    pub fn token(&self, flag: u8) -> Option<&'a [u8]> {
        self.tokens().find(|&(letter, _)| letter == flag).map(|(_, token)| token)
    }

    /// The token of `flag` as a number: the CAS of `c`, the client's flags of `f`, the size of `s`. Not the
    /// remaining time of `t`, which may be -1.
    pub fn number(&self, flag: u8) -> Option<u64> {
        number(self.token(flag)?)
    }
}

/// Takes a whole [`Shape::Meta`] reply apart. What is no such reply is an error without a text.
pub fn meta(reply: &[u8]) -> MetaReply<'_> {
    let nothing = MetaReply { status: Status::Error, flags: &[], data: &[] };
    let Ok(Some(line)) = line(reply) else { return nothing };
    match Status::read(line) {
        None => nothing,
        Some((Status::Error, _)) => MetaReply { data: line, ..nothing },
        Some((Status::Va, rest)) => {
            let (size, flags) = word(rest);
            let size = number(size).and_then(|size| usize::try_from(size).ok());
            let block = &reply[line.len() + 2..];
            size.and_then(|size| block.get(..size)).map_or(nothing, |data| MetaReply {
                status: Status::Va,
                flags,
                data,
            })
        }
        Some((status, flags)) => MetaReply { status, flags: trim(flags), data: &[] },
    }
}

/// A line is missing its end.
const PARTIAL: Frame = Frame::Partial { at_least: 1 };

/// The first line without its CRLF; `None` if its end is not there yet.
fn line(buffer: &[u8]) -> Result<Option<&[u8]>, Garbage> {
    let head = &buffer[..buffer.len().min(MAX_LINE)];
    match memchr(b'\n', head) {
        Some(end) => match head[..end].strip_suffix(b"\r") {
            Some(line) => Ok(Some(line)),
            None => Err(Garbage("a line that ends in a bare LF")),
        },
        None if buffer.len() < MAX_LINE => Ok(None),
        None => Err(Garbage("a line that is too long")),
    }
}

/// Whether a line is one of the protocol's three errors.
fn is_error(line: &[u8]) -> bool {
    matches!(word(line).0, b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR") && line[0] != b' '
}

/// Whether a line is the whole answer to a command that gets one line.
fn is_one_line(line: &[u8]) -> bool {
    let (first, rest) = line.split_at(memchr(b' ', line).unwrap_or(line.len()));
    match first {
        b"STORED" | b"NOT_STORED" | b"EXISTS" | b"NOT_FOUND" | b"DELETED" | b"TOUCHED" | b"OK" | b"RESET" => {
            rest.is_empty()
        }
        b"VERSION" | b"BUSY" | b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" => true,
        _ => number(line).is_some(),
    }
}

/// What a `VALUE` line says.
struct ValueLine<'a> {
    key: &'a [u8],
    flags: u32,
    length: u64,
    cas: Option<u64>,
}

impl<'a> ValueLine<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_prefix(b"VALUE ")?;
        let (key, rest) = rest.split_at(memchr(b' ', rest).filter(|&end| end > 0)?);
        let (flags, rest) = digits(rest.strip_prefix(b" ")?)?;
        let (length, rest) = digits(rest.strip_prefix(b" ")?)?;
        let cas = match rest {
            [] => None,
            rest => Some(number(rest.strip_prefix(b" ")?)?),
        };
        Some(Self { key, flags: u32::try_from(flags).ok()?, length, cas })
    }
}

/// A number as servers write them: digits, nothing else, below 2^64.
fn number(text: &[u8]) -> Option<u64> {
    digits(text).and_then(|(number, rest)| rest.is_empty().then_some(number))
}

/// The number that `text` begins with, and what follows its digits.
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut number, mut length) = (0u64, 0);
    while let Some(digit @ b'0'..=b'9') = text.get(length) {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        length += 1;
    }
    (length > 0).then(|| (number, &text[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1 << 20;

    fn whole(shape: Shape, reply: &[u8]) -> usize {
        match frame(shape, reply, MAX) {
            Ok(Frame::Whole(length)) => length,
            other => panic!("{other:?} of {}", String::from_utf8_lossy(reply)),
        }
    }

    #[test]
    fn a_line_ends_at_its_crlf_and_leaves_the_next_reply_alone() {
        for reply in
            ["STORED", "18446744073709551615", "VERSION 1.6.18", "CLIENT_ERROR bad data chunk", "BUSY x"]
        {
            let stream = format!("{reply}\r\nEND\r\n");
            assert_eq!(whole(Shape::Line, stream.as_bytes()), reply.len() + 2);
        }
    }

    #[test]
    fn what_no_server_says_is_garbage_in_every_shape() {
        let lines =
            ["", "STORE", "STOREDX", "STORED x", " STORED", "12x", "18446744073709551616", "HTTP/1.1 400"];
        for line in lines {
            let reply = format!("{line}\r\n");
            for shape in [Shape::Line, Shape::Values, Shape::Meta] {
                assert!(frame(shape, reply.as_bytes(), MAX).is_err(), "{line:?} as {shape:?}");
            }
        }
        for (shape, reply) in [
            (Shape::Line, "STORED\n"),
            (Shape::Line, "END\r\n"),
            (Shape::Values, "VALUE k 0 1\r\nabc\r\nEND\r\n"),
            (Shape::Values, "VALUE k 0 -1\r\n"),
            (Shape::Values, "VALUE k 4294967296 1\r\n"),
            (Shape::Values, "VALUE k 0 1 2 3\r\n"),
            (Shape::Values, "VALUE  0 1\r\n"),
            (Shape::Values, "VALUE k 0\r\n"),
            (Shape::Values, "VALUE k 0 1048577\r\n"),
            (Shape::Values, "VALUE k 0 18446744073709551615\r\n"),
            (Shape::Values, "VALUE k 0 1\r\na\r\nSERVER_ERROR out of memory\r\n"),
            (Shape::Meta, "VA\r\n"),
            (Shape::Meta, "VA x\r\n"),
            (Shape::Meta, "VA 1048577\r\n"),
            (Shape::Meta, "VA 1\r\nab\r\n"),
            (Shape::Meta, "HDX\r\n"),
            (Shape::Meta, "OK\r\n"),
        ] {
            assert!(frame(shape, reply.as_bytes(), MAX).is_err(), "{reply:?} as {shape:?}");
        }
    }

    #[test]
    fn a_line_that_never_ends_is_garbage_after_2_kib() {
        let reply = [b"CLIENT_ERROR ".as_slice(), &[b'x'; MAX_LINE]].concat();
        for shape in [Shape::Line, Shape::Values, Shape::Meta, Shape::Stats] {
            assert_eq!(frame(shape, &reply[..MAX_LINE - 1], MAX), Ok(PARTIAL), "{shape:?}");
            assert!(frame(shape, &reply[..MAX_LINE], MAX).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn a_value_that_contains_replies_is_still_one_value() {
        let reply = b"VALUE a 7 12 9\r\nEND\r\nVALUE x\r\nVALUE b\r 0 0\r\n\r\nEND\r\nSTORED\r\n";
        assert_eq!(whole(Shape::Values, reply), reply.len() - 8);
        let values: Vec<_> = values(&reply[..reply.len() - 8]).collect();
        assert_eq!(values.len(), 2);
        assert_eq!((values[0].key, values[0].flags, values[0].cas), (&b"a"[..], 7, Some(9)));
        assert_eq!(values[0].data, b"END\r\nVALUE x");
        assert_eq!(values[0].raw, b"VALUE a 7 12 9\r\nEND\r\nVALUE x\r\n");
        assert_eq!((values[1].key, values[1].flags, values[1].cas), (&b"b\r"[..], 0, None));
        assert_eq!(values[1].raw, b"VALUE b\r 0 0\r\n\r\n");
    }

    #[test]
    fn a_miss_and_an_error_hold_no_values() {
        for reply in ["END\r\n", "SERVER_ERROR out of memory writing get response\r\n"] {
            assert_eq!(whole(Shape::Values, reply.as_bytes()), reply.len());
            assert_eq!(values(reply.as_bytes()).next(), None);
        }
    }

    #[test]
    fn a_meta_reply_has_a_block_only_behind_va() {
        let reply = b"VA 5 kk s5 t-1 c86 f0 Ox X W\r\nHD\r\nx\r\nHD\r\n";
        assert_eq!(whole(Shape::Meta, reply), reply.len() - 4);
        let hit = meta(&reply[..reply.len() - 4]);
        assert_eq!((hit.status, hit.data), (Status::Va, &b"HD\r\nx"[..]));
        let letters: Vec<u8> = hit.tokens().map(|(letter, _)| letter).collect();
        assert_eq!(letters, b"kstcfOXW");
        assert_eq!((hit.token(b't'), hit.number(b't')), (Some(&b"-1"[..]), None));
        assert_eq!((hit.number(b'c'), hit.token(b'W'), hit.token(b'Z')), (Some(86), Some(&b""[..]), None));
        for (reply, status, flags) in [
            ("HD c7 O1\r\n", Status::Hd, "c7 O1"),
            ("EN\r\n", Status::En, ""),
            ("NF\r\n", Status::Nf, ""),
            ("NS\r\n", Status::Ns, ""),
            ("EX\r\n", Status::Ex, ""),
            ("MN\r\n", Status::Mn, ""),
            ("ME k exp=-1\r\n", Status::Me, "k exp=-1"),
        ] {
            assert_eq!(whole(Shape::Meta, reply.as_bytes()), reply.len());
            let expected = MetaReply { status, flags: flags.as_bytes(), data: b"" };
            assert_eq!(meta(reply.as_bytes()), expected);
        }
        let error = meta(b"CLIENT_ERROR invalid flag\r\n");
        assert_eq!((error.status, error.data), (Status::Error, &b"CLIENT_ERROR invalid flag"[..]));
    }

    #[test]
    fn statistics_end_with_end_or_are_one_line() {
        for reply in ["STAT pid 1\r\nSTAT OK 1\r\nEND\r\n", "END\r\n", "RESET\r\n", "OK\r\n", "ERROR\r\n"] {
            assert_eq!(whole(Shape::Stats, reply.as_bytes()), reply.len());
        }
        let endless = b"STAT a 1\r\n".repeat(MAX_STATS / 10 + 1);
        assert!(frame(Shape::Stats, &endless, MAX).is_err());
    }

    #[test]
    fn a_reply_cut_anywhere_is_partial_and_never_asks_for_too_much() {
        let replies: [(Shape, &[u8]); 4] = [
            (Shape::Line, b"NOT_FOUND\r\n"),
            (Shape::Values, b"VALUE a 0 3 1\r\nabc\r\nVALUE b 0 0\r\n\r\nVALUE c 0 2\r\n\r\n\r\nEND\r\n"),
            (Shape::Meta, b"VA 7 W s7\r\nabc\r\n\r\n\r\n"),
            (Shape::Stats, b"STAT a 1\r\nSTAT b 2\r\nEND\r\n"),
        ];
        for (shape, reply) in replies {
            let mut framer = Framer::new(shape, MAX);
            for end in 0..reply.len() {
                for outcome in [frame(shape, &reply[..end], MAX), framer.frame(&reply[..end])] {
                    let Ok(Frame::Partial { at_least }) = outcome else { panic!("{outcome:?} at {end}") };
                    assert!((1..=reply.len() - end).contains(&at_least), "{at_least} at {end} of {shape:?}");
                }
            }
            assert_eq!(framer.frame(reply), Ok(Frame::Whole(reply.len())), "{shape:?}");
        }
    }

    #[test]
    fn values_already_framed_are_not_looked_at_again() {
        let mut reply = Vec::new();
        for key in 0..500 {
            reply.extend_from_slice(format!("VALUE key{key} 0 100\r\n").as_bytes());
            reply.extend_from_slice(&[b'x'; 100]);
            reply.extend_from_slice(b"\r\n");
        }
        let mut framer = Framer::new(Shape::Values, MAX);
        assert_eq!(framer.frame(&reply), Ok(PARTIAL));
        assert_eq!(framer.done, reply.len());
        let length = reply.len() + 5;
        reply.fill(0);
        reply.extend_from_slice(b"END\r\n");
        assert_eq!(framer.frame(&reply), Ok(Frame::Whole(length)));
    }

    #[test]
    fn a_quiet_reply_ends_at_its_mn_and_may_have_another_before_it() {
        for reply in ["MN\r\n", "NF\r\nMN\r\n", "VA 4 t5\r\nMN\r\n\r\nMN\r\n", "CLIENT_ERROR x\r\nMN\r\n"] {
            let stream = format!("{reply}HD\r\n");
            assert_eq!(whole(Shape::Quiet, stream.as_bytes()), reply.len());
            for cut in 0..reply.len() {
                let mut framer = Framer::new(Shape::Quiet, MAX);
                let Ok(Frame::Partial { at_least }) = framer.frame(&stream.as_bytes()[..cut]) else {
                    panic!("{reply:?} is whole after {cut} bytes")
                };
                assert!(cut + at_least <= reply.len(), "{reply:?} wants too much after {cut} bytes");
                assert_eq!(framer.frame(stream.as_bytes()), Ok(Frame::Whole(reply.len())));
            }
        }
        for garbage in ["HD\r\nHD\r\n", "MN x\r\n", "HD\r\nMN x\r\n"] {
            assert!(frame(Shape::Quiet, garbage.as_bytes(), MAX).is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn one_key_has_one_value_at_most_and_it_is_its_own() {
        for reply in ["VALUE k 0 1\r\nx\r\nEND\r\n", "VALUE k 0 0 7\r\n\r\nEND\r\n", "END\r\n", "ERROR\r\n"] {
            assert_eq!(whole(Shape::Value, reply.as_bytes()), reply.len());
            assert!(is_of(reply.as_bytes(), b"k"), "{reply:?}");
        }
        let two = b"VALUE k 0 1\r\nx\r\nVALUE k 0 1\r\nx\r\nEND\r\n";
        assert_eq!(frame(Shape::Value, two, MAX), Err(Garbage("two values of one key")));
        for other in ["VALUE j 0 1\r\nx\r\nEND\r\n", "VALUE kk 0 0\r\n\r\nEND\r\n"] {
            assert!(!is_of(other.as_bytes(), b"k"), "{other:?}");
        }
        assert!(!is_of(b"VALUE k 0 0\r\n\r\nEND\r\n", b"kk"));
    }

    #[test]
    fn of_several_keys_each_is_told_its_own_value_or_nothing_or_the_error_of_all() {
        let keys = ["a", "b", "c"].map(|key| digest(key.as_bytes()));
        let told = |mut stream: &'static str| {
            let mut told = Vec::new();
            for key in keys.map(Shape::Part).into_iter().chain([Shape::Value]) {
                let length = match frame(key, stream.as_bytes(), MAX) {
                    Ok(Frame::Nothing) => 0,
                    Ok(Frame::Shared(length)) => {
                        told.push(&stream[..length]);
                        continue;
                    }
                    Ok(Frame::Whole(length)) => length,
                    other => panic!("{other:?} of {stream:?}"),
                };
                told.push(&stream[..length]);
                stream = &stream[length..];
            }
            assert_eq!(stream, "HD\r\n");
            told
        };
        let (a, c, d) =
            ("VALUE a 0 5\r\nEND\r\n\r\n", "VALUE c 0 1 9\r\nx\r\n", "VALUE d 0 0\r\n\r\nEND\r\n");
        assert_eq!(
            told("VALUE a 0 5\r\nEND\r\n\r\nVALUE c 0 1 9\r\nx\r\nVALUE d 0 0\r\n\r\nEND\r\nHD\r\n"),
            [a, "", c, d]
        );
        assert_eq!(told("END\r\nHD\r\n"), ["", "", "", "END\r\n"]);
        assert_eq!(told("VALUE c 0 1 9\r\nx\r\nEND\r\nHD\r\n"), ["", "", c, "END\r\n"]);
        assert_eq!(told("SERVER_ERROR no\r\nHD\r\n"), ["SERVER_ERROR no\r\n"; 4]);
        let missing = |have: usize| frame(Shape::Part(keys[0]), &a.as_bytes()[..have], MAX);
        assert_eq!(missing(14), Ok(Frame::Partial { at_least: 6 }));
        assert_eq!(missing(6), Ok(PARTIAL));
        assert_eq!(missing(0), Ok(PARTIAL));
        let nonsense = frame(Shape::Part(keys[0]), b"VALUE a 0 1\r\nxyz", MAX);
        assert_eq!(nonsense, Err(Garbage("a data block without a CRLF behind it")));
    }

    #[test]
    fn a_value_line_has_its_words_and_one_space_between_them() {
        let read = |line: &'static str| {
            let of = ValueLine::read(line.as_bytes())?;
            Some((of.key, of.flags, of.length, of.cas))
        };
        assert_eq!(read("VALUE k 4294967295 3"), Some((&b"k"[..], u32::MAX, 3, None)));
        assert_eq!(
            read("VALUE k:\u{fc} 0 0 18446744073709551615"),
            Some(("k:\u{fc}".as_bytes(), 0, 0, Some(u64::MAX)))
        );
        for line in [
            "VALUE k 0",
            "VALUE  0 3",
            "VALUE k  0 3",
            "VALUE k 0 3 ",
            "VALUE k 0 3 7 ",
            "VALUE k 0 3 7 8",
            "VALUE k 0x 3",
            "VALUE k 4294967296 3",
            "VALUE k 0 18446744073709551616",
            "VALUE k 0 -1",
            "VALUES k 0 3",
            "VALUE k",
            "VALUE ",
        ] {
            assert_eq!(read(line), None, "{line:?}");
        }
    }
}
