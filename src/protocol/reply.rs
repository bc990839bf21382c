//! Finds the end of a server's reply and parses the reply.
//!
//! Bytes that no memcached sends are [`Garbage`]. Nothing that follows them on that connection can be trusted.

use memchr::{memchr, memchr2};

use super::line::trim;
use super::meta::Tokens;
use super::request::word;

/// The longest line of a reply in bytes, including its CRLF.
const MAX_LINE: usize = 2048;

/// The longest reply to `stats` in bytes: four times memcached's limit for `stats cachedump`.
const MAX_STATS: usize = 8 << 20;

/// The kind of reply that a request receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One line: `STORED`, `DELETED`, `OK`, a number, an error, …
    Line,
    /// `VALUE <key> <flags> <bytes> [<cas>]` and its data block, at most once, then `END`; or one error line.
    Value,
    /// The part of a `get` batched from several requests that belongs to a request other than the last: the values of its keys,
    /// if they are next in the reply. The last request receives a [`Shape::Value`] or [`Shape::Values`].
    Part,
    /// As [`Shape::Value`], with any number of values.
    Values,
    /// One line; behind `VA <size>` the data block.
    Meta,
    /// Lines until `END`; or one line: an error, `OK`, `RESET`.
    Stats,
}

/// How much of a reply has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// All of it: this number of bytes at the front of the buffer.
    Whole(usize),
    /// [`Shape::Part`] only: the server has none of these keys; the reply continues with other keys.
    Nothing,
    /// [`Shape::Part`] only: an error of this number of bytes, which is the reply to the other requests as well.
    Shared(usize),
    /// The reply is incomplete.
    Partial {
        /// A lower bound on the number of missing bytes, at least 1: a hint for the size of the buffer.
        at_least: usize,
    },
}

/// An invalid reply; the text describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage(pub &'static str);

/// Finds the end of one reply while it arrives. It keeps its position, so the work is linear in the length of the reply, however
/// the reply is split into reads.
#[derive(Debug, Clone, Copy)]
pub struct Framer {
    shape: Shape,
    max_value: usize,
    /// The length of the complete lines and data blocks found so far, in bytes.
    done: usize,
    /// [`Shape::Part`] only: how many keys have been answered or skipped.
    passed: usize,
}

impl Framer {
    /// Frames one reply whose data blocks have at most `max_value` bytes each. The number of blocks is not limited.
    pub fn new(shape: Shape, max_value: usize) -> Self {
        Self { shape, max_value, done: 0, passed: 0 }
    }

    /// Frames the reply at the front of `buffer`, which must begin with the same bytes in every call. `keys` are the [`digest`]s
    /// of the keys of a [`Shape::Part`], in the order requested, and otherwise empty.
    pub fn frame(&mut self, buffer: &[u8], keys: &[u64]) -> Result<Frame, Garbage> {
        match self.shape {
            Shape::Line => {
                let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
                match is_one_line(line) {
                    true => Ok(Frame::Whole(line.len() + 2)),
                    false => Err(Garbage("an unknown reply")),
                }
            }
            Shape::Value | Shape::Values => loop {
                let buffer = &buffer[self.done..];
                let (value, start) = match ValueLine::at(buffer) {
                    Some(found) => found,
                    None => {
                        let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
                        let Some(value) = ValueLine::read(line) else {
                            if line == b"END" || (self.done == 0 && is_error(line)) {
                                return Ok(Frame::Whole(self.done + line.len() + 2));
                            }
                            return Err(Garbage("a line that is neither VALUE nor END"));
                        };
                        (value, line.len() + 2)
                    }
                };
                if self.done > 0 && self.shape == Shape::Value {
                    return Err(Garbage("two values of one key"));
                }
                match self.block(buffer, start, value.length)? {
                    Frame::Whole(length) => self.done += length,
                    // At least `END` follows.
                    Frame::Partial { at_least } => return Ok(Frame::Partial { at_least: at_least + 5 }),
                    other => return Ok(other),
                }
            },
            Shape::Part => self.part(buffer, keys),
            Shape::Meta => self.meta(buffer),
            Shape::Stats => loop {
                let Some(line) = line(&buffer[self.done..])? else { return Ok(PARTIAL) };
                let end = self.done + line.len() + 2;
                if line == b"END" || (self.done == 0 && (is_error(line) || line == b"OK" || line == b"RESET"))
                {
                    return Ok(Frame::Whole(end));
                }
                if end > MAX_STATS {
                    return Err(Garbage("a reply to stats that is too long"));
                }
                self.done = end;
            },
        }
    }

    fn part(&mut self, buffer: &[u8], keys: &[u64]) -> Result<Frame, Garbage> {
        while let Some(left @ [_, ..]) = keys.get(self.passed..) {
            let buffer = &buffer[self.done..];
            let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
            let Some(value) = ValueLine::read(line) else {
                match is_error(line) {
                    true if self.done == 0 => return Ok(Frame::Shared(line.len() + 2)),
                    true => return Err(Garbage("an error behind a value")),
                    false => break,
                }
            };
            let of = digest(value.key);
            let Some(at) = left.iter().position(|key| *key == of) else { break };
            match self.block(buffer, line.len() + 2, value.length)? {
                Frame::Whole(length) => self.done += length,
                partial => return Ok(partial),
            }
            self.passed += at + 1;
        }
        Ok(if self.done == 0 { Frame::Nothing } else { Frame::Whole(self.done) })
    }

    fn meta(&self, buffer: &[u8]) -> Result<Frame, Garbage> {
        let Some(line) = line(buffer)? else { return Ok(PARTIAL) };
        match Status::read(line) {
            None => Err(Garbage("an unknown meta reply")),
            Some((Status::Va, rest)) => {
                let (size, _) = size(rest).ok_or(Garbage("VA without a size"))?;
                self.block(buffer, line.len() + 2, size)
            }
            Some(_) => Ok(Frame::Whole(line.len() + 2)),
        }
    }

    /// Frames a data block of `length` bytes at `start`, and its CRLF.
    fn block(&self, buffer: &[u8], start: usize, length: u64) -> Result<Frame, Garbage> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.max_value);
        let length = length.ok_or(Garbage("a value that is too large"))?;
        let end = start + length;
        match buffer.get(end..end + 2) {
            Some(b"\r\n") => Ok(Frame::Whole(end + 2)),
            Some(_) => Err(Garbage("a data block without a CRLF behind it")),
            None => Ok(Frame::Partial { at_least: end + 2 - buffer.len() }),
        }
    }
}

/// [`Framer::frame`] without state, for a reply that is probably complete. Not for [`Shape::Part`].
pub fn frame(shape: Shape, buffer: &[u8], max_value: usize) -> Result<Frame, Garbage> {
    Framer::new(shape, max_value).frame(buffer, &[])
}

/// A fast hash to distinguish the few keys of one line. It is not collision-resistant against chosen keys.
pub fn digest(key: &[u8]) -> u64 {
    let (words, rest) = key.as_chunks();
    let fold = |hash: u64, word: &[u8; 8]| {
        let product = u128::from(hash ^ u64::from_le_bytes(*word)) * 0x9e37_79b9_7f4a_7c15;
        (product >> 64) as u64 ^ product as u64
    };
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(words.iter().fold(key.len() as u64, fold), &last)
}

/// Whether a complete [`Shape::Value`], or [`Shape::Part`] of one key, has no value of a key other than `key`.
pub fn is_of(reply: &[u8], key: &[u8]) -> bool {
    match reply.strip_prefix(b"VALUE ") {
        Some(rest) => rest.strip_prefix(key).is_some_and(|rest| rest.first() == Some(&b' ')),
        None => true,
    }
}

/// Whether a complete [`Shape::Values`] reply is an error line.
pub fn is_error_reply(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n").is_some_and(is_error)
}

/// The values of a complete [`Shape::Values`] reply, in the server's order; none if it is an error line.
pub fn values(reply: &[u8]) -> Values<'_> {
    Values(reply)
}

/// See [`values`].
#[derive(Debug, Clone)]
pub struct Values<'a>(&'a [u8]);

/// One value of a `get` reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// Key of the value.
    pub key: &'a [u8],
    /// Client flags of the value.
    pub flags: u32,
    /// The data block, without its CRLF.
    pub data: &'a [u8],
    /// The CAS, in the reply to a `gets` or `gats`.
    pub cas: Option<u64>,
    /// The `VALUE` line and the data block, including both line ends.
    pub raw: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let (ValueLine { key, flags, length, cas }, start) = match ValueLine::at(self.0) {
            Some(found) => found,
            None => {
                let line = line(self.0).ok()??;
                (ValueLine::read(line)?, line.len() + 2)
            }
        };
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        let raw = self.0.get(..end.checked_add(2)?)?;
        self.0 = &self.0[raw.len()..];
        Some(Value { key, flags, data: &raw[start..end], cas, raw })
    }
}

/// The first word of a meta reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// A hit, with its value.
    Va,
    /// Done; or a hit without its value.
    Hd,
    /// A miss of `mg` or `me`.
    En,
    /// There is no such item.
    Nf,
    /// An `ms` whose mode did not allow it.
    Ns,
    /// Exists: the CAS differs.
    Ex,
    /// The reply to `mn`.
    Mn,
    /// The reply to `me`, followed by the key and `name=value` pairs.
    Me,
    /// `ERROR`, `CLIENT_ERROR …` or `SERVER_ERROR …`.
    Error,
}

impl Status {
    /// Splits a line into its status and the rest.
    fn read(line: &[u8]) -> Option<(Self, &[u8])> {
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
            _ => return is_error(line).then_some((Self::Error, &[])),
        };
        matches!(rest, [] | [b' ', ..]).then_some((status, rest))
    }
}

/// A complete [`Shape::Meta`] reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaReply<'a> {
    /// First word of the line.
    pub status: Status,
    /// The return flags as sent, without the status and the size. For [`Status::Me`], the rest of the line.
    pub flags: &'a [u8],
    /// [`Status::Va`]: the value, without its CRLF. [`Status::Error`]: the whole line. Otherwise empty.
    pub data: &'a [u8],
}

impl<'a> MetaReply<'a> {
    /// The return flags in the server's order.
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens(self.flags)
    }

    /// The token of `flag`, empty if it has none; `None` if the server did not send the flag.
    pub fn token(&self, flag: u8) -> Option<&'a [u8]> {
        self.tokens().find(|&(letter, _)| letter == flag).map(|(_, token)| token)
    }

    /// The token of `flag` as a number: the CAS (`c`), the client flags (`f`), the size (`s`). Not the remaining time (`t`),
    /// which may be -1.
    pub fn number(&self, flag: u8) -> Option<u64> {
        unsigned(self.token(flag)?)
    }
}

/// Parses a complete [`Shape::Meta`] reply. Anything else becomes an error without a text.
pub fn meta(reply: &[u8]) -> MetaReply<'_> {
    let nothing = MetaReply { status: Status::Error, flags: &[], data: &[] };
    let Ok(Some(line)) = line(reply) else { return nothing };
    match Status::read(line) {
        None => nothing,
        Some((Status::Error, _)) => MetaReply { data: line, ..nothing },
        Some((Status::Va, rest)) => {
            let Some((size, flags)) = size(rest) else { return nothing };
            let block = &reply[line.len() + 2..];
            let data = usize::try_from(size).ok().and_then(|size| block.get(..size));
            data.map_or(nothing, |data| MetaReply { status: Status::Va, flags, data })
        }
        Some((status, flags)) => MetaReply { status, flags: trim(flags), data: &[] },
    }
}

/// Splits the rest of a `VA` line into the size and the flags.
fn size(rest: &[u8]) -> Option<(u64, &[u8])> {
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    let (size, flags) = digits(&rest[spaces..])?;
    matches!(flags, [] | [b' ', ..]).then_some((size, flags))
}

/// The end of a line is missing.
const PARTIAL: Frame = Frame::Partial { at_least: 1 };

/// The first line without its CRLF; `None` if its end has not arrived.
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

/// Whether a line is an `ERROR`, `CLIENT_ERROR` or `SERVER_ERROR`.
fn is_error(line: &[u8]) -> bool {
    matches!(word(line).0, b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR") && line[0] != b' '
}

/// Whether a line says that the server has no memory for what it was to store.
pub fn is_out_of_memory(line: &[u8]) -> bool {
    let text = line.strip_prefix(b"SERVER_ERROR ").map(<[u8]>::trim_ascii_end);
    // The newest and the oldest say it differently. memcached also says "out of memory" when it cannot read or write.
    let rest = text.and_then(|text| match text.split_at_checked(b"out of memory".len()) {
        Some((words, rest)) if words.eq_ignore_ascii_case(b"out of memory") => Some(rest),
        _ => None,
    });
    let stores: [&[u8]; 5] =
        [b"", b" storing object", b" allocating item", b" allocating new item", b" incrementing value"];
    rest.is_some_and(|rest| stores.contains(&rest))
}

/// Whether a line is a valid [`Shape::Line`] reply.
fn is_one_line(line: &[u8]) -> bool {
    let (first, rest) = line.split_at(memchr(b' ', line).unwrap_or(line.len()));
    match first {
        b"STORED" | b"NOT_STORED" | b"EXISTS" | b"NOT_FOUND" | b"DELETED" | b"TOUCHED" | b"OK" | b"RESET" => {
            rest.is_empty()
        }
        b"VERSION" | b"BUSY" | b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" => true,
        _ => unsigned(line).is_some(),
    }
}

/// A parsed `VALUE` line.
struct ValueLine<'a> {
    key: &'a [u8],
    flags: u32,
    length: u64,
    cas: Option<u64>,
}

impl<'a> ValueLine<'a> {
    /// Reads the line that the buffer begins with, and returns its length with the CRLF. `None`: it is read as any other line,
    /// because it is incomplete, has a CAS, or is something else. Most lines of values are read here, in one pass.
    fn at(buffer: &'a [u8]) -> Option<(Self, usize)> {
        let line = &buffer[..buffer.len().min(MAX_LINE)];
        let begin = b"VALUE ".len();
        let rest = line.strip_prefix(b"VALUE ")?;
        let end = begin + memchr2(b' ', b'\n', rest)?;
        let (flags, after_flags) = few_digits(line, end + 1);
        let (length, after_length) = few_digits(line, after_flags + 1);
        let is_read = end > begin
            && line[end] == b' '
            && after_flags > end + 1
            && line.get(after_flags) == Some(&b' ')
            && after_length > after_flags + 1
            && line.get(after_length..after_length + 2) == Some(b"\r\n");
        let flags = u32::try_from(flags).ok().filter(|_| is_read)?;
        Some((Self { key: &line[begin..end], flags, length, cas: None }, after_length + 2))
    }

    fn read(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_prefix(b"VALUE ")?;
        let (key, rest) = rest.split_at(memchr(b' ', rest).filter(|&end| end > 0)?);
        let (flags, rest) = digits(rest.strip_prefix(b" ")?)?;
        let (length, rest) = digits(rest.strip_prefix(b" ")?)?;
        let cas = match rest {
            [] => None,
            rest => Some(unsigned(rest.strip_prefix(b" ")?)?),
        };
        Some(Self { key, flags: u32::try_from(flags).ok()?, length, cas })
    }
}

/// A number as servers write it: digits only, below 2^64.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    digits(text).and_then(|(number, rest)| rest.is_empty().then_some(number))
}

/// Splits `text` into the number it begins with and the rest.
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut number, mut length) = few_digits(text, 0);
    while let Some(digit @ b'0'..=b'9') = text.get(length) {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        length += 1;
    }
    (length > 0).then(|| (number, &text[length..]))
}

/// The number at this place, and where it ends: at most 19 digits, which cannot be too large.
#[inline]
fn few_digits(text: &[u8], start: usize) -> (u64, usize) {
    let (mut number, mut end) = (0u64, start);
    while end < start + 19
        && let Some(byte @ b'0'..=b'9') = text.get(end)
    {
        number = number * 10 + u64::from(byte - b'0');
        end += 1;
    }
    (number, end)
}

#[cfg(test)]
mod tests;
