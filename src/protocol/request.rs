//! A client's request. It borrows from the read buffer.

/// A complete request. The parser has validated every part of it, so the code behind the parser never checks it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`.
    Get {
        /// The keys, one or more, in the order sent.
        keys: Keys<'a>,
        /// Whether the reply includes the CAS.
        cas: bool,
    },
    /// `gat`, `gats`. If the line is longer than 2 KiB, the keys must be sent to a server in several commands: memcached accepts
    /// such a line only if it arrives in one read, and otherwise closes the connection.
    GetAndTouch {
        /// The new exptime, as memcached reads it (see [`Store::exptime`]).
        exptime: i64,
        /// The keys, one or more, in the order sent.
        keys: Keys<'a>,
        /// Whether the reply includes the CAS.
        cas: bool,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store(Store<'a>),
    /// `incr`, `decr`.
    Arith {
        /// Key that memcached would accept.
        key: &'a [u8],
        /// Whether the command is `decr`.
        decr: bool,
        /// The amount to add or subtract.
        delta: u64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// Key that memcached would accept.
        key: &'a [u8],
        /// The new exptime, as memcached reads it (see [`Store::exptime`]).
        exptime: i64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// Key that memcached would accept.
        key: &'a [u8],
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// Seconds from now, or Unix time above 2,592,000; 0: immediately. Never negative.
        delay: i64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `version`.
    Version,
    /// `verbosity`.
    Verbosity {
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `stats`.
    Stats {
        /// The arguments, without surrounding spaces; empty for plain `stats`.
        what: &'a [u8],
    },
    /// `quit`.
    Quit,
    /// `mg`, `ms`, `md`, `ma`, `mn`, `me`.
    Meta(Meta<'a>),
}

/// The keys of a multi-get: a slice of the command line in which every word is a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'a>(pub(super) &'a [u8]);

impl<'a> Keys<'a> {
    /// The keys in the order sent, including duplicates.
    pub fn iter(&self) -> KeysIter<'a> {
        KeysIter(self.0)
    }

    /// The keys before the first that is `invalid`.
    pub(super) fn up_to(&self, invalid: impl Fn(&[u8]) -> bool) -> Keys<'a> {
        let mut rest = self.0;
        loop {
            let (key, behind) = word(rest);
            if key.is_empty() || invalid(key) {
                return Keys(&self.0[..self.0.len() - rest.len()]);
            }
            rest = behind;
        }
    }

    /// The number of keys, at least 1. Walks the line.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Always false for a parsed request.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The key if there is exactly one. Cheaper than [`Keys::len`].
    pub fn single(&self) -> Option<&'a [u8]> {
        let (key, rest) = word(self.0);
        (!key.is_empty() && word(rest).0.is_empty()).then_some(key)
    }
}

impl<'a> IntoIterator for Keys<'a> {
    type Item = &'a [u8];
    type IntoIter = KeysIter<'a>;

    fn into_iter(self) -> KeysIter<'a> {
        self.iter()
    }
}

/// See [`Keys::iter`].
#[derive(Debug, Clone)]
pub struct KeysIter<'a>(&'a [u8]);

impl<'a> Iterator for KeysIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (key, rest) = word(self.0);
        self.0 = rest;
        (!key.is_empty()).then_some(key)
    }
}

/// Splits `text` behind its first word, which ends at a space. The word is empty if there is none.
pub(super) fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let start = text.iter().position(|&byte| byte != b' ').unwrap_or(text.len());
    let text = &text[start..];
    text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()))
}

/// A classic storage command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Store unconditionally.
    Set,
    /// Store only if the key is absent.
    Add,
    /// Store only if the key is present.
    Replace,
    /// Append the data to the stored value.
    Append,
    /// Prepend the data to the stored value.
    Prepend,
    /// Store only if the item has this CAS.
    Cas(u64),
}

/// A storage command with its data block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which of the storage commands.
    pub verb: Verb,
    /// Key that memcached would accept.
    pub key: &'a [u8],
    /// The client's flags: the low 32 bits of the number sent, as in memcached.
    pub flags: u32,
    /// 0: never; negative: immediately; up to 2,592,000: seconds from now; above: Unix time. The low 32 bits of the number sent,
    /// as a signed number, as in memcached.
    pub exptime: i64,
    /// The data block, without its CRLF.
    pub data: &'a [u8],
    /// Whether the client wants no reply.
    pub noreply: bool,
}

/// The name of a meta command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arith,
    /// `mn`
    Noop,
    /// `me`
    Debug,
}

/// A meta command with its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta<'a> {
    /// Which of the meta commands.
    pub verb: MetaVerb,
    /// The key as sent: base64 if the flag `b` is set. Empty for `mn`.
    pub key: &'a [u8],
    /// The flags as sent, separated by one or more spaces, without the length of `ms`.
    pub flags: &'a [u8],
    /// The data block of `ms`, without its CRLF; empty otherwise.
    pub data: &'a [u8],
}

/// The limits of the parser.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest data block in bytes. A larger one is refused with memcached's error, and its bytes are discarded.
    pub max_value: usize,
}

/// The result of parsing the front of a read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The request is incomplete.
    Incomplete {
        /// A lower bound on the number of missing bytes, 1 if unknown: a hint for the size of the buffer.
        at_least: usize,
    },
    /// A complete request is in the buffer.
    Request {
        /// The request, borrowed from the buffer.
        request: Request<'a>,
        /// The length of the request in bytes, from the front of the buffer.
        consumed: usize,
    },
    /// A request that memcached refuses.
    Refused(Refused<'a>),
}

/// A request that memcached refuses: its reply, its side effects, and where parsing continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The error line with its CRLF. Empty if `noreply` suppresses it, or if memcached closes the connection without a reply.
    pub reply: &'static [u8],
    /// How many bytes of the buffer to discard now.
    pub consumed: usize,
    /// How many further bytes to discard as they arrive: the rest of a refused data block.
    pub skip_data: u64,
    /// Whether to close the connection once the reply is written.
    pub close: bool,
    /// The key, as sent, that must be deleted: a refused `set` or `ms` that is too large deletes the old value.
    pub deletes: Option<&'a [u8]>,
    /// Whether `deletes` is base64, as in an `ms` with the flag `b`.
    pub deletes_base64: bool,
    /// The exptime and the keys to touch: a `gat` or `gats` with too long a key touches the keys before it.
    pub touches: Option<(i64, Keys<'a>)>,
}

impl Refused<'_> {
    /// A refusal that discards `consumed` bytes, sends `reply` and does nothing else.
    pub fn new(consumed: usize, reply: &'static [u8]) -> Self {
        Refused {
            reply,
            consumed,
            skip_data: 0,
            close: false,
            deletes: None,
            deletes_base64: false,
            touches: None,
        }
    }
}
