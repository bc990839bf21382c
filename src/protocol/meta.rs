//! The meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me` (protocol.txt, "Meta Commands").

use super::line::{BAD_FORMAT, Block, Line, MAX_WORDS, TOO_LARGE, is_key, refuse, refuse_block, trim};
use super::number;
use super::request::{Limits, Meta, MetaVerb, Parsed, Refused, Request, word};

/// The most words a meta command may have, the command and its key among them.
const MAX_META_WORDS: usize = 20;

/// The longest opaque token, its letter included.
const MAX_OPAQUE: usize = 32;

impl<'a> Meta<'a> {
    /// The flags in the order sent.
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens(self.flags)
    }

    /// Whether no flag other than `flags` was sent.
    pub fn has_only(&self, flags: &[u8]) -> bool {
        self.tokens().all(|(flag, _)| flags.contains(&flag))
    }

    /// Whether at least one of `flags` was sent.
    pub fn has_any(&self, flags: &[u8]) -> bool {
        self.tokens().any(|(flag, _)| flags.contains(&flag))
    }

    /// The token of `flag`, empty if it has none; `None` if the flag was not sent.
    pub fn token(&self, flag: u8) -> Option<&'a [u8]> {
        self.tokens().find(|&(letter, _)| letter == flag).map(|(_, token)| token)
    }
}

/// The flags of a command as parsed values. The parser has validated them.
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
    /// The letter of `M`; 0 if it was not sent.
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
    /// `F`
    pub flags: u32,
    /// `J`
    pub initial: u64,
    /// `D`; 1 if it was not sent.
    pub delta: u64,
}

impl Meta<'_> {
    /// What the flags ask for.
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
                b'C' => options.compare = number::u64(token),
                b'E' => options.explicit = number::u64(token),
                b'F' => options.flags = number::u32(token).unwrap_or(0),
                b'J' => options.initial = number::u64(token).unwrap_or(0),
                b'D' => options.delta = number::u64(token).unwrap_or(1),
                _ => {}
            }
        }
        options
    }
}

/// The exptime in a token that the parser has validated, as memcached reads it.
pub fn exptime(token: &[u8]) -> i64 {
    number::i32(token).map_or(0, i64::from)
}

/// Iterates over the meta flags of a request or a reply: the letter of each flag and its token, which is often empty.
#[derive(Debug, Clone)]
pub struct Tokens<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Tokens<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        // Tokens are a few bytes long, for which memchr is slower.
        let start = self.0.iter().position(|byte| *byte != b' ').unwrap_or(self.0.len());
        let (letter, rest) = self.0[start..].split_first()?;
        let (token, rest) = rest.split_at(rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len()));
        self.0 = rest;
        Some((*letter, token))
    }
}

/// Parses the arguments of the command `verb`, and the data block of `ms`.
pub(super) fn parse<'a>(verb: MetaVerb, line: &Line<'a>, arguments: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let (key, rest) = word(arguments);
    let meta = Meta { verb, key, flags: trim(rest), data: &[] };
    match verb {
        MetaVerb::Noop => line.request(Request::Meta(Meta { key: &[], flags: &[], ..meta })),
        MetaVerb::Set => set(meta, line, limits),
        _ if key.is_empty() || line.has_nul || !are_letters(&meta, 2) => refuse(line.consumed, BAD_FORMAT),
        MetaVerb::Debug => debug(meta, line),
        _ => match check(&meta, 2) {
            Ok(Checked { opaque_too_long: true, .. }) => refuse(line.consumed, OPAQUE_TOO_LONG),
            Ok(_) => line.request(Request::Meta(meta)),
            Err(reply) => refuse(line.consumed, reply),
        },
    }
}

/// `ms <key> <length> <flags>*` and its data block. Once the length is known, a refusal also discards the block. memcached
/// executes the block as commands if a flag is not a letter.
fn set<'a>(meta: Meta<'a>, line: &Line<'a>, limits: &Limits) -> Parsed<'a> {
    let (length, flags) = word(meta.flags);
    let length = if length.is_empty() { None } else { line.length(length) };
    let Some(length) = length else { return refuse(line.consumed, BAD_FORMAT) };
    let meta = Meta { flags: trim(flags), ..meta };
    let checked = match line.has_nul || !are_letters(&meta, 3) {
        true => Err(BAD_FORMAT),
        false => check(&meta, 3),
    };
    let checked = match checked {
        Ok(checked) => checked,
        Err(reply) => return Parsed::Refused(refuse_block(line.consumed, reply, length)),
    };
    if length > limits.max_value {
        return Parsed::Refused(Refused {
            deletes: Some(meta.key),
            deletes_base64: checked.base64,
            ..refuse_block(line.consumed, TOO_LARGE, length)
        });
    }
    if checked.opaque_too_long {
        return Parsed::Refused(refuse_block(line.consumed, OPAQUE_TOO_LONG, length));
    }
    line.block(length, |block| match block {
        Block::Data(data) => Ok(Request::Meta(Meta { data, ..meta })),
        Block::Bad => Err(false),
    })
}

/// `me <key> [b]`. memcached decodes the key only if another word follows the `b`.
fn debug<'a>(meta: Meta<'a>, line: &Line<'a>) -> Parsed<'a> {
    let (flag, behind) = word(meta.flags);
    let decodes = flag == b"b" && !behind.is_empty();
    match is_key(meta.key) && (!decodes || is_base64(meta.key)) {
        true if flag == b"b" && !decodes => line.request(Request::Meta(Meta { flags: &[], ..meta })),
        true => line.request(Request::Meta(meta)),
        false => refuse(line.consumed, BAD_FORMAT),
    }
}

/// Whether each flag begins with a letter or a digit, or one of the bytes between `A` and `z`. `first` is the position of the
/// first flag on the line, in words.
fn are_letters(meta: &Meta<'_>, first: usize) -> bool {
    meta.tokens().take(MAX_WORDS - first).all(|(letter, _)| matches!(letter, 65..=122 | b'0'..=b'9'))
}

const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";

/// Flags that memcached accepts.
struct Checked {
    /// The key is base64.
    base64: bool,
    /// memcached checks this last. For `mg` and `ma` it has executed the command by then, which Kennel does not.
    opaque_too_long: bool,
}

/// Validates the flags; the error is memcached's. `first` is the position of the first flag on the line, in words.
fn check(meta: &Meta<'_>, first: usize) -> Result<Checked, &'static [u8]> {
    let checked = match is_key(meta.key) {
        false => Err(BAD_FORMAT),
        true if first + meta.tokens().take(MAX_WORDS).count() > MAX_META_WORDS => {
            Err(b"CLIENT_ERROR options flags are too long\r\n".as_slice())
        }
        true => check_each(meta),
    };
    if meta.verb == MetaVerb::Arith && checked.is_err() {
        return Err(b"CLIENT_ERROR invalid or duplicate flag\r\n");
    }
    let mode = meta.token(b'M').map(|token| token.first().copied().unwrap_or(b' '));
    match (meta.verb, mode) {
        (MetaVerb::Set, Some(mode)) if !b"EAPRS".contains(&mode) => {
            checked.and(Err(b"CLIENT_ERROR invalid mode for ms M token\r\n"))
        }
        (MetaVerb::Arith, Some(mode)) if !b"I+D-".contains(&mode) => {
            checked.and(Err(b"CLIENT_ERROR invalid mode for ma M token\r\n"))
        }
        _ => checked,
    }
}

fn check_each(meta: &Meta<'_>) -> Result<Checked, &'static [u8]> {
    const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
    let mut seen = 0u128;
    let mut checked = Checked { base64: false, opaque_too_long: false };
    // memcached sends the last of several errors.
    let mut error: Option<&'static [u8]> = None;
    for (letter, token) in meta.tokens() {
        if seen & (1 << letter) != 0 {
            return Err(b"CLIENT_ERROR duplicate flag\r\n");
        }
        seen |= 1 << letter;
        let number = !token.is_empty();
        match letter {
            b'k' | b's' | b't' | b'c' | b'f' | b'v' | b'h' | b'l' | b'u' | b'q' | b'I' | b'P' | b'L' => {}
            // Some commands ignore `x` and `M`. Whether a server supports `E` and `x` depends on its version.
            b'x' | b'M' => {}
            b'O' => checked.opaque_too_long = token.len() + 1 > MAX_OPAQUE,
            b'b' if is_base64(meta.key) => checked.base64 = true,
            b'b' => error = Some(b"CLIENT_ERROR error decoding key\r\n"),
            b'N' | b'T' | b'R' if number && number::i32(token).is_some() => {}
            b'C' | b'E' if number && number::u64(token).is_some() => {}
            b'N' | b'T' | b'R' | b'C' | b'E' => error = Some(BAD_TOKEN),
            b'F' if number && number::u32(token).is_some() => {}
            b'F' => error = error.or(Some(BAD_FORMAT)),
            b'J' | b'D' if number && number::u64(token).is_some() => {}
            b'J' => error = Some(b"CLIENT_ERROR invalid numeric initial value\r\n"),
            b'D' => error = Some(b"CLIENT_ERROR invalid numeric delta value\r\n"),
            _ => return Err(b"CLIENT_ERROR invalid flag\r\n"),
        }
    }
    error.map_or(Ok(checked), Err)
}

/// Whether memcached's decoder accepts `key`: it skips bytes outside the base64 alphabet, requires complete groups of four, and
/// stops after the first group with padding, which may have at most two `=`.
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
