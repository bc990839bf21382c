//! The meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me` (protocol.txt, "Meta Commands").

use super::line::{BAD_FORMAT, Block, ERROR, Line, TOO_LARGE, is_key, refuse, swallow, trim};
use super::number;
use super::request::{Limits, Meta, MetaVerb, Parsed, Refused, Request, word};

/// The most words a meta command may have, the command and its key among them.
const MAX_WORDS: usize = 19;

/// The longest opaque token, its letter included.
const MAX_OPAQUE: usize = 32;

impl<'a> Meta<'a> {
    /// The flags one by one, in the order asked.
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens(self.flags)
    }

    /// The token of `flag`, empty if it carries none; `None` if the flag was not given.
    pub fn token(&self, flag: u8) -> Option<&'a [u8]> {
        self.tokens().find(|&(letter, _)| letter == flag).map(|(_, token)| token)
    }
}

/// What the flags of a command say, as numbers. The parser has checked them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// `v`
    pub value: bool,
    /// `h` or `l`
    pub usage: bool,
    /// `u`
    pub unseen: bool,
    /// `I`
    pub invalidate: bool,
    /// `x`
    pub empty: bool,
    /// The letter of `M`; 0 if it was not given.
    pub mode: u8,
    /// The exptime of `N`.
    pub vivify: Option<i64>,
    /// The exptime of `T`.
    pub exptime: Option<i64>,
    /// The seconds of `R`.
    pub recache: Option<i64>,
    /// `C`
    pub compare: Option<u64>,
    /// `E`
    pub explicit: Option<u64>,
    /// `F`: the low 32 bits of what was sent, as memcached keeps them.
    pub flags: u32,
    /// `J`
    pub initial: u64,
    /// `D`: 1 if it was not given.
    pub delta: u64,
}

impl Meta<'_> {
    /// Reads the flags.
    pub fn options(&self) -> Options {
        let mut options = Options {
            value: false,
            usage: false,
            unseen: false,
            invalidate: false,
            empty: false,
            mode: 0,
            vivify: None,
            exptime: None,
            recache: None,
            compare: None,
            explicit: None,
            flags: 0,
            initial: 0,
            delta: 1,
        };
        for (flag, token) in self.tokens() {
            match flag {
                b'v' => options.value = true,
                b'h' | b'l' => options.usage = true,
                b'u' => options.unseen = true,
                b'I' => options.invalidate = true,
                b'x' => options.empty = true,
                b'M' => options.mode = token.first().copied().unwrap_or(0),
                b'N' => options.vivify = Some(exptime(token)),
                b'T' => options.exptime = Some(exptime(token)),
                b'R' => options.recache = Some(exptime(token)),
                b'C' => options.compare = number::uint64(token),
                b'E' => options.explicit = number::uint64(token),
                b'F' => options.flags = number::uint32(token).unwrap_or(0),
                b'J' => options.initial = number::uint64(token).unwrap_or(0),
                b'D' => options.delta = number::uint64(token).unwrap_or(1),
                _ => {}
            }
        }
        options
    }
}

/// The exptime of a token that the parser has checked, as memcached reads it.
pub fn exptime(token: &[u8]) -> i64 {
    number::int32(token).map_or(0, i64::from)
}

/// Meta flags, of a request or a reply: each one's letter and the token behind it, often empty.
#[derive(Debug, Clone)]
pub struct Tokens<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Tokens<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        // A few bytes each: to look for their ends in larger steps would take longer.
        let start = self.0.iter().position(|byte| *byte != b' ').unwrap_or(self.0.len());
        let (letter, rest) = self.0[start..].split_first()?;
        let (token, rest) = rest.split_at(rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len()));
        self.0 = rest;
        Some((*letter, token))
    }
}

/// Parses what follows the command word of `verb` on its line, and the data block of `ms`.
pub(super) fn parse<'a>(verb: MetaVerb, line: &Line<'a>, arguments: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let (key, rest) = word(arguments);
    let meta = Meta { verb, key, flags: trim(rest), data: &[] };
    match verb {
        MetaVerb::Noop => line.request(Request::Meta(Meta { key: &[], flags: &[], ..meta })),
        MetaVerb::Debug => match is_key(key) && (word(rest).0 != b"b" || is_base64(key)) {
            true => line.request(Request::Meta(meta)),
            false => refuse(line.consumed, BAD_FORMAT),
        },
        _ if key.is_empty() => refuse(line.consumed, ERROR),
        _ if !is_key(key) => refuse(line.consumed, BAD_FORMAT),
        MetaVerb::Set if meta.flags.is_empty() => refuse(line.consumed, BAD_FORMAT),
        // The command and the key are words too.
        _ if meta.tokens().take(MAX_WORDS).count() + 2 > MAX_WORDS => match verb {
            MetaVerb::Get => refuse(line.consumed, b"CLIENT_ERROR options flags are too long\r\n"),
            _ => refuse(line.consumed, b"CLIENT_ERROR options flags too long\r\n"),
        },
        MetaVerb::Set => set(meta, line, limits),
        _ => match check(&meta) {
            Ok(_) => line.request(Request::Meta(meta)),
            Err(reply) => refuse(line.consumed, reply),
        },
    }
}

/// `ms <key> <length> <flags>*` and its data block. Once the length is known, a refusal takes the block with it.
fn set<'a>(meta: Meta<'a>, line: &Line<'a>, limits: &Limits) -> Parsed<'a> {
    let (length, flags) = word(meta.flags);
    let Some(length) = line.length(length) else { return refuse(line.consumed, BAD_FORMAT) };
    let meta = Meta { flags: trim(flags), ..meta };
    let base64 = match check(&meta) {
        Ok(base64) => base64,
        Err(reply) => return Parsed::Refused(swallow(line.consumed, reply, length)),
    };
    if length > limits.max_value {
        return Parsed::Refused(Refused {
            deletes: Some(meta.key),
            deletes_base64: base64,
            ..swallow(line.consumed, TOO_LARGE, length)
        });
    }
    line.block(length, |block| match block {
        Block::Data(data) => Ok(Request::Meta(Meta { data, ..meta })),
        Block::Bad => Err(false),
    })
}

/// What memcached says of flags it refuses; otherwise whether the key is base64. Where memcached notices only after
/// the deed (an opaque too long behind an `ma` that has already counted), nothing is done here.
fn check(meta: &Meta<'_>) -> Result<bool, &'static [u8]> {
    let mut seen = 0u128;
    let mut base64 = false;
    let mut mode = None;
    let mut opaque_too_long = false;
    // The last complaint is the one that is sent.
    let mut complaint: Option<&'static [u8]> = None;
    for (letter, token) in meta.tokens() {
        if letter >= 127 || seen & (1 << letter) != 0 {
            complaint = Some(b"CLIENT_ERROR duplicate flag\r\n");
            break;
        }
        seen |= 1 << letter;
        match letter {
            b'k' | b's' | b't' | b'c' | b'f' | b'v' | b'h' | b'l' | b'u' | b'q' | b'I' | b'P' | b'L' => {}
            b'O' => opaque_too_long = token.len() + 1 > MAX_OPAQUE,
            b'b' if is_base64(meta.key) => base64 = true,
            b'b' => complaint = Some(b"CLIENT_ERROR error decoding key\r\n"),
            b'M' if token.len() == 1 => mode = Some(token[0]),
            b'M' => complaint = Some(b"CLIENT_ERROR incorrect length for M token\r\n"),
            b'N' | b'T' | b'R' if number::int32(token).is_some() => {}
            // For the server to judge, since it depends on its age.
            b'x' if meta.verb == MetaVerb::Delete => {}
            // E too, token and all: memcached has it from 1.6.27.
            b'E' => {}
            b'C' if number::uint64(token).is_some() => {}
            b'N' | b'T' | b'R' | b'C' => {
                complaint = Some(b"CLIENT_ERROR bad token in command line format\r\n");
            }
            b'F' => {
                if number::uint32(token).is_none() {
                    complaint = complaint.or(Some(BAD_FORMAT));
                }
            }
            b'J' => {
                if number::uint64(token).is_none() {
                    complaint = Some(b"CLIENT_ERROR invalid numeric initial value\r\n");
                }
            }
            b'D' => {
                if number::uint64(token).is_none() {
                    complaint = Some(b"CLIENT_ERROR invalid numeric delta value\r\n");
                }
            }
            _ => {
                complaint = Some(b"CLIENT_ERROR invalid flag\r\n");
                break;
            }
        }
    }
    let complaint = match (meta.verb, complaint, mode) {
        (MetaVerb::Delete | MetaVerb::Arith, Some(_), _) => {
            Some(b"CLIENT_ERROR invalid or duplicate flag\r\n".as_slice())
        }
        (_, Some(complaint), _) => Some(complaint),
        (MetaVerb::Set, None, Some(mode)) if !b"EAPRS".contains(&mode) => {
            Some(b"CLIENT_ERROR invalid mode for ms M token\r\n".as_slice())
        }
        (MetaVerb::Arith, None, Some(mode)) if !b"I+D-".contains(&mode) => {
            Some(b"CLIENT_ERROR invalid mode for ma M token\r\n".as_slice())
        }
        (_, None, _) if opaque_too_long => Some(b"CLIENT_ERROR opaque token too long\r\n".as_slice()),
        (_, None, _) => None,
    };
    complaint.map_or(Ok(base64), Err)
}

/// Whether memcached's decoder takes `key`: it skips what is not base64, wants whole groups of four, and stops
/// behind the first group with padding, which may have two `=` at most.
fn is_base64(key: &[u8]) -> bool {
    let mut count = 0usize;
    let mut padding = 0usize;
    let mut padded_group = None;
    for &byte in key {
        let pad = byte == b'=';
        if pad || byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/' {
            let group = count / 4;
            if pad && *padded_group.get_or_insert(group) == group {
                padding += 1;
            }
            count += 1;
        }
    }
    count > 0 && count.is_multiple_of(4) && padding <= 2
}
