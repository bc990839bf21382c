//! A command line at the front of a read buffer: its end, its words, its data block, and its refusal.

use memchr::{memchr, memchr2};

use super::number;
use super::request::{Parsed, Refused, Request, word};

/// The longest key in bytes.
pub const MAX_KEY: usize = 250;

/// The longest line in bytes that is not a multi-get. memcached closes the connection for a longer line only if it arrives in
/// several reads; here the result never depends on the reads.
pub const MAX_LINE: usize = 2048;

/// The longest line of a `get`, `gets`, `gat` or `gats` in bytes. memcached has no such limit.
const MAX_GET_LINE: usize = 1 << 20;

/// The shortest line that memcached accepts, in bytes, including its end.
const MIN_LINE: usize = 4;

/// The number of words that memcached reads from a line, including the command word. It ignores further words.
pub(super) const MAX_WORDS: usize = 23;

pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(super) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";

/// Whether memcached accepts `key`, which must be a word: only its length is checked.
pub(super) fn is_key(key: &[u8]) -> bool {
    (1..=MAX_KEY).contains(&key.len())
}

/// Removes leading and trailing spaces, but no tabs.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let Some(start) = text.iter().position(|&byte| byte != b' ') else { return &[] };
    let end = text.iter().rposition(|&byte| byte != b' ').unwrap_or(start);
    &text[start..=end]
}

/// Refuses a line that has no data block.
pub(super) fn refuse<'a>(consumed: usize, reply: &'static [u8]) -> Parsed<'a> {
    Parsed::Refused(Refused::new(consumed, reply))
}

/// Refuses a line and discards its data block of `length` bytes and the CRLF behind it.
pub(super) fn refuse_block<'a>(consumed: usize, reply: &'static [u8], length: usize) -> Refused<'a> {
    Refused { skip_data: length as u64 + 2, ..Refused::new(consumed, reply) }
}

/// Sends `reply` and closes the connection.
pub(super) fn close_connection<'a>(consumed: usize, reply: &'static [u8]) -> Parsed<'a> {
    Parsed::Refused(Refused { close: true, ..Refused::new(consumed, reply) })
}

/// A command line at the front of a buffer.
pub(super) struct Line<'a> {
    buffer: &'a [u8],
    /// Without the line end.
    pub(super) text: &'a [u8],
    /// The length in bytes, including the line end.
    pub(super) consumed: usize,
    /// Whether the line contains a NUL. An older memcached ends the line there, so it would read a different command and execute
    /// the data block. Such a line is never sent to a server.
    pub(super) has_nul: bool,
}

/// The bytes at the position of a data block.
pub(super) enum Block<'a> {
    /// The block, without its CRLF.
    Data(&'a [u8]),
    /// No CRLF follows the announced number of bytes.
    Bad,
}

impl<'a> Line<'a> {
    pub(super) fn read(buffer: &'a [u8]) -> Result<Self, Parsed<'a>> {
        let head = &buffer[..buffer.len().min(MAX_LINE + 1)];
        // Usually the line end comes first, and one search is enough.
        let first = memchr2(b'\n', 0, head);
        let end = match first.filter(|&at| head[at] == b'\n').or_else(|| memchr(b'\n', head)) {
            Some(end) => end,
            None if buffer.len() <= MAX_LINE => return Err(Parsed::Incomplete { at_least: 1 }),
            None if !begins_get(head) => return Err(close_connection(buffer.len(), b"")),
            None => {
                let reach = &buffer[..buffer.len().min(MAX_GET_LINE + 1)];
                match memchr(b'\n', &reach[head.len()..]) {
                    Some(end) => head.len() + end,
                    None if buffer.len() <= MAX_GET_LINE => return Err(Parsed::Incomplete { at_least: 1 }),
                    None => return Err(close_connection(buffer.len(), LINE_TOO_LONG)),
                }
            }
        };
        let text = &buffer[..end];
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let has_nul = first != Some(end) && memchr(0, text).is_some();
        let line = Self { buffer, text, consumed: end + 1, has_nul };
        if line.consumed < MIN_LINE {
            return Err(refuse(line.consumed, BAD_FORMAT));
        }
        Ok(line)
    }

    /// The result for a request without a data block.
    pub(super) fn request(&self, request: Request<'a>) -> Parsed<'a> {
        Parsed::Request { request, consumed: self.consumed }
    }

    /// The length of a data block as memcached reads it: at most 2^31 - 3, because memcached adds 2 for the CRLF.
    pub(super) fn length(&self, text: &[u8]) -> Option<usize> {
        let length = number::i32(text)?;
        usize::try_from(length).ok().filter(|_| length <= i32::MAX - 2)
    }

    /// The result for a request with a data block of `length` bytes. For a bad block `make` returns `Err(noreply)`; the block is
    /// then consumed together with exactly two bytes behind it.
    pub(super) fn block(
        &self,
        length: usize,
        make: impl FnOnce(Block<'a>) -> Result<Request<'a>, bool>,
    ) -> Parsed<'a> {
        let consumed = self.consumed + length + 2;
        if self.buffer.len() < consumed {
            return Parsed::Incomplete { at_least: consumed - self.buffer.len() };
        }
        let (data, end) = self.buffer[self.consumed..consumed].split_at(length);
        let block = if end == b"\r\n" { Block::Data(data) } else { Block::Bad };
        match make(block) {
            Ok(request) => Parsed::Request { request, consumed },
            Err(noreply) => refuse(consumed, if noreply { b"" } else { BAD_CHUNK }),
        }
    }
}

/// Whether a line over [`MAX_LINE`] may be a multi-get.
pub(super) fn begins_get(line: &[u8]) -> bool {
    let commands: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];
    commands.iter().any(|command| line.starts_with(command))
}

/// The words that follow the command word, for commands of few words.
pub(super) struct Arguments<'a> {
    /// The first words; empty where there are fewer.
    pub(super) words: [&'a [u8]; 5],
    /// How many words memcached reads: at most [`MAX_WORDS`], including the command word.
    pub(super) count: usize,
    /// The last word counted; empty if there is none.
    pub(super) last: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(super) fn read(rest: &'a [u8]) -> Self {
        Self::read_up_to(MAX_WORDS - 1, rest)
    }

    /// The words of a whole line, including the command word.
    pub(super) fn read_line(text: &'a [u8]) -> Self {
        Self::read_up_to(MAX_WORDS, text)
    }

    fn read_up_to(most: usize, mut rest: &'a [u8]) -> Self {
        let mut arguments = Self { words: [&[]; 5], count: 0, last: &[] };
        while arguments.count < most {
            let (argument, behind) = word(rest);
            if argument.is_empty() {
                break;
            }
            if let Some(slot) = arguments.words.get_mut(arguments.count) {
                *slot = argument;
            }
            arguments.last = argument;
            arguments.count += 1;
            rest = behind;
        }
        arguments
    }

    /// Whether the last word is `noreply`, even if it is in the position of a key or a number.
    pub(super) fn noreply(&self) -> bool {
        self.last == b"noreply"
    }

    /// Refuses the line, without a reply if the client sent `noreply`.
    pub(super) fn refuse(&self, line: &Line<'a>, reply: &'static [u8]) -> Parsed<'a> {
        refuse(line.consumed, if self.noreply() { b"" } else { reply })
    }
}
