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
    /// Of a `get` for several who asked, what concerns one who is not the last: the values of the keys that these asked for, if
    /// the server says them next. What concerns the last is a [`Shape::Value`] or
    /// [`Shape::Values`].
    Part,
    /// As [`Shape::Value`], with any number of values.
    Values,
    /// One line; behind `VA <size>` the data block.
    Meta,
    /// Lines until `END`; or one line: an error, `OK`, `RESET`.
    Stats,
}

/// How much of a reply is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// All of it: the buffer's first so many bytes.
    Whole(usize),
    /// Of a [`Shape::Part`]: the server has none of its keys, and says something about the next.
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
    /// How many keys of a [`Shape::Part`] have been answered, or left out.
    passed: usize,
}

impl Framer {
    /// For one reply, whose data blocks may have `max_value` bytes each. How many blocks there are is not limited
    /// here: the request bounds it.
    pub fn new(shape: Shape, max_value: usize) -> Self {
        Self { shape, max_value, done: 0, passed: 0 }
    }

    /// Looks at the buffer, in which the reply begins at the front and has only grown since the last time. `keys`: of a
    /// [`Shape::Part`], named by their [`digest`]s, in the order asked; else none.
    pub fn frame(&mut self, buffer: &[u8], keys: &[u64]) -> Result<Frame, Garbage> {
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
                    return Err(Garbage("statistics without an end"));
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
            None => Err(Garbage("a word that begins no meta reply")),
            Some((Status::Va, rest)) => {
                let (size, _) = size(rest).ok_or(Garbage("VA without a size"))?;
                self.block(buffer, line.len() + 2, size)
            }
            Some(_) => Ok(Frame::Whole(line.len() + 2)),
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

/// [`Framer::frame`] for a reply that is likely to be there at once, and no [`Shape::Part`]. Where it is not, a [`Framer`] saves looking twice.
pub fn frame(shape: Shape, buffer: &[u8], max_value: usize) -> Result<Frame, Garbage> {
    Framer::new(shape, max_value).frame(buffer, &[])
}

/// Tells the few keys of one line apart. It is quick, and anybody can find two keys with the same.
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

/// Whether a whole [`Shape::Value`], or a [`Shape::Part`] of one key, says nothing of any other key than this.
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
            let Some((size, flags)) = size(rest) else { return nothing };
            let block = &reply[line.len() + 2..];
            let data = usize::try_from(size).ok().and_then(|size| block.get(..size));
            data.map_or(nothing, |data| MetaReply { status: Status::Va, flags, data })
        }
        Some((status, flags)) => MetaReply { status, flags: trim(flags), data: &[] },
    }
}

/// The size behind a `VA`, and the flags behind it.
fn size(rest: &[u8]) -> Option<(u64, &[u8])> {
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    let (size, flags) = digits(&rest[spaces..])?;
    matches!(flags, [] | [b' ', ..]).then_some((size, flags))
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
mod tests;
