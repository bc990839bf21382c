//! A client's command on a key with a kind, in whatever protocol it came.

/// What a client asks, without the form of its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`, `mg`.
    Get,
    /// A command with a value.
    Store {
        /// Which of the storage commands.
        verb: Verb,
        /// Value that the client sent.
        data: &'a [u8],
        /// Client flags of the value.
        flags: u32,
        /// As memcached interprets it.
        exptime: i64,
    },
    /// `incr`, `decr`, `ma`.
    Count {
        /// Whether it subtracts.
        decr: bool,
        /// Number to add or subtract.
        delta: u64,
        /// The number to create and its exptime, if the client says so. `None`: that of the rule.
        initial: Option<(u64, Option<i64>)>,
    },
    /// `delete`, `md`.
    Delete,
    /// `touch`.
    Touch {
        /// As memcached interprets it.
        exptime: i64,
    },
    /// A command that no kind has.
    Other,
}

/// A command with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `set`
    Set,
    /// `add`
    Add,
    /// `append`
    Append,
    /// `replace`
    Replace,
    /// `prepend`
    Prepend,
    /// `cas`, with the number that the client was shown.
    Cas(u64),
    /// Any other storage command.
    Other,
}
