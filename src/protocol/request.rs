//! What a client asks, parsed in place from its read buffer and checked whole.

/// A complete request. Everything in it is legal by construction: nobody behind the parser checks it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`.
    Get {
        /// The keys, one or more, in the order asked.
        keys: Keys<'a>,
        /// Answer with the CAS too.
        cas: bool,
    },
    /// `gat`, `gats`. The line may be longer than 2 KiB, which memcached answers only if it arrives in one
    /// read and otherwise closes the connection: a long one must go upstream in parts.
    GetAndTouch {
        /// The new exptime, as memcached reads it (see [`Store::exptime`]).
        exptime: i64,
        /// The keys, one or more, in the order asked.
        keys: Keys<'a>,
        /// Answer with the CAS too.
        cas: bool,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store(Store<'a>),
    /// `incr`, `decr`.
    Arith {
        /// The key.
        key: &'a [u8],
        /// Down instead of up.
        decr: bool,
        /// By how much.
        delta: u64,
        /// Say nothing.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// The new exptime, as memcached reads it (see [`Store::exptime`]).
        exptime: i64,
        /// Say nothing.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Say nothing.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// Seconds from now (or Unix time, above 2,592,000), 0 for at once. Never negative.
        delay: i64,
        /// Say nothing.
        noreply: bool,
    },
    /// `version`.
    Version,
    /// `verbosity`.
    Verbosity {
        /// Say nothing.
        noreply: bool,
    },
    /// `stats`, with what follows it.
    Stats {
        /// What follows `stats `, without surrounding spaces; empty for plain `stats`.
        what: &'a [u8],
    },
    /// `quit`.
    Quit,
    /// `mg`, `ms`, `md`, `ma`, `mn`, `me`.
    Meta(Meta<'a>),
}

/// The keys of a multi-get: a slice of the command line in which every word is a legal key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'a>(pub(super) &'a [u8]);

impl<'a> Keys<'a> {
    /// The keys in the order asked, duplicates included.
    pub fn iter(&self) -> KeysIter<'a> {
        KeysIter(self.0)
    }

    /// Those before the first that is `wrong`.
    pub(super) fn up_to(&self, wrong: impl Fn(&[u8]) -> bool) -> Keys<'a> {
        let mut rest = self.0;
        loop {
            let (key, behind) = word(rest);
            if key.is_empty() || wrong(key) {
                return Keys(&self.0[..self.0.len() - rest.len()]);
            }
            rest = behind;
        }
    }

    /// How many keys, by walking them: 1 at least.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Never true of what the parser gives.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The key, when there is just one: the usual case, and cheaper than [`Keys::len`].
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

/// The first word of `text`, which only spaces separate, and what follows it; an empty word at the end.
pub(super) fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let start = text.iter().position(|&byte| byte != b' ').unwrap_or(text.len());
    let text = &text[start..];
    text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()))
}

/// Which storage command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Store whatever is there.
    Set,
    /// Store only if the key is absent.
    Add,
    /// Store only if the key is present.
    Replace,
    /// Put the data behind what is stored.
    Append,
    /// Put the data before what is stored.
    Prepend,
    /// Store only if the item's CAS is still this.
    Cas(u64),
}

/// A storage command with its data block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which one.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags: as memcached does, the low 32 bits of what was sent.
    pub flags: u32,
    /// 0 never, negative at once, up to 2,592,000 relative seconds, above that Unix time. memcached keeps the
    /// low 32 bits of what was sent and reads them as signed; so does this.
    pub exptime: i64,
    /// The data block, without its CRLF.
    pub data: &'a [u8],
    /// Say nothing.
    pub noreply: bool,
}

/// Which meta command.
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

/// A meta command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta<'a> {
    /// Which one.
    pub verb: MetaVerb,
    /// The key as sent (base64 when the flag `b` is among the flags); empty for `mn`.
    pub key: &'a [u8],
    /// The flag tokens behind the key (and behind the length, for `ms`), as sent, separated by single or more spaces.
    pub flags: &'a [u8],
    /// The data block of `ms`, without its CRLF; empty otherwise.
    pub data: &'a [u8],
}

/// What the parser may accept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest data block in bytes that is buffered; a larger one is skipped and refused as memcached would.
    pub max_value: usize,
}

/// What stands at the front of a read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not all of it is here yet. `at_least` more bytes are needed (1 when unknown): a hint for the buffer's size.
    Incomplete {
        /// A lower bound on the bytes still missing.
        at_least: usize,
    },
    /// A request; the buffer's first `consumed` bytes are it.
    Request {
        /// The request.
        request: Request<'a>,
        /// How many bytes of the buffer it takes.
        consumed: usize,
    },
    /// Something memcached would refuse.
    Refused(Refused<'a>),
}

/// Why and how a request is refused, and where parsing goes on. Also the few lines that need no server to be
/// answered, and get no error: `gat <exptime>` without a key is `END`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The whole error line with its CRLF; empty when noreply suppresses it, and when memcached would hang up
    /// without a word.
    pub reply: &'static [u8],
    /// How many bytes of the buffer to drop now.
    pub consumed: usize,
    /// How many bytes to drop after those as they arrive (the rest of a refused data block).
    pub skip_data: u64,
    /// Close the connection once the reply is written.
    pub close: bool,
    /// A refused `set` or `ms` that was too large deletes what the key held: that key, as sent.
    pub deletes: Option<&'a [u8]>,
    /// `deletes` is base64 (an `ms` with the flag `b`), so the deletion must say so too.
    pub deletes_base64: bool,
    /// A `gat` or `gats` with too long a key has touched those before it by then: the exptime, and these keys.
    pub touches: Option<(i64, Keys<'a>)>,
}
