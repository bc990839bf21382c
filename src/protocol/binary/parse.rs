//! Parses one packet: where it ends, whether memcached accepts it, and the error memcached sends if it does not.
//!
//! A packet whose header shows that its connection must be closed is refused at once: memcached first waits for its key.
//! Parsing allocates nothing, accepts any bytes, and does not depend on how they were split into reads.

use super::{HEADER, Head, Opcode, Operation, REQUEST, Status};
use crate::protocol::line::MAX_KEY;
use crate::protocol::request::Verb;

/// A packet with a longer body is refused, and its connection is closed.
const MAX_BODY: u32 = 1 << 30;
/// The longest name of a SASL mechanism in bytes.
const MAX_MECHANISM: usize = 32;
/// The longest SASL message in bytes. A longer one is refused and discarded.
const MAX_MESSAGE: usize = 16 * 1024;
/// The exptime with which an increment or decrement does not create an item.
const DOES_NOT_CREATE: u32 = u32::MAX;

/// A complete request. The parser has validated every part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// What its reply repeats of it.
    pub head: Head,
    /// What the packet asks for.
    pub command: Command<'a>,
}

/// A command and its arguments. A key has 1 to 250 bytes, and may contain any. An exptime is one as a text command has it, never
/// negative; a CAS of 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get` and `gat`.
    Get {
        /// Key, which may contain any bytes.
        key: &'a [u8],
        /// The new exptime, for `gat`.
        exptime: Option<i64>,
    },
    /// `touch`.
    Touch {
        /// Key, which may contain any bytes.
        key: &'a [u8],
        /// New exptime, as the packet has it.
        exptime: i64,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// Key, which may contain any bytes.
        key: &'a [u8],
        /// Only if the item has this CAS.
        cas: u64,
    },
    /// `increment`, `decrement`.
    Count {
        /// Key, which may contain any bytes.
        key: &'a [u8],
        /// Whether the command is `decrement`.
        decr: bool,
        /// Number to add or subtract.
        delta: u64,
        /// The exptime and the number of the item that is created if there is none.
        create: Option<(i64, u64)>,
        /// Only if the item has this CAS.
        cas: u64,
    },
    /// `flush`.
    Flush {
        /// Seconds from now, or Unix time above 2,592,000; 0: immediately.
        delay: i64,
    },
    /// `noop`.
    Noop,
    /// `version`.
    Version,
    /// `stat`.
    Stat {
        /// The kind of statistics, empty for all.
        what: &'a [u8],
    },
    /// `quit`.
    Quit,
    /// A message of SASL.
    Sasl(SaslMessage<'a>),
}

/// A command that stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store<'a> {
    /// The command. Never [`Verb::Cas`].
    pub verb: Verb,
    /// Key, which may contain any bytes.
    pub key: &'a [u8],
    /// The client's flags; 0 for `append` and `prepend`.
    pub flags: u32,
    /// When it expires; 0 for `append` and `prepend`.
    pub exptime: i64,
    /// Value to store.
    pub data: &'a [u8],
    /// Only if the item has this CAS. `add` and `replace` with a CAS are the same as `set` with it, as in memcached.
    pub cas: u64,
}

/// A message of SASL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMessage<'a> {
    /// Requests the list of mechanisms.
    List,
    /// Begins an authentication with a mechanism.
    Auth {
        /// The name of the mechanism.
        mechanism: &'a [u8],
        /// The first message of the mechanism.
        data: &'a [u8],
    },
    /// Continues an authentication.
    Step {
        /// The next message of the mechanism.
        data: &'a [u8],
    },
}

impl<'a> Command<'a> {
    /// The key that it reads or writes, if any.
    pub fn key(&self) -> Option<&'a [u8]> {
        match *self {
            Command::Get { key, .. }
            | Command::Touch { key, .. }
            | Command::Store(Store { key, .. })
            | Command::Delete { key, .. }
            | Command::Count { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// Whether a connection must authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It need not, and SASL is an unknown command.
    Open,
    /// It must, and has not.
    Unauthenticated,
    /// The connection is authenticated.
    Authenticated,
}

/// The limits of the parser.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest value in bytes. A larger one is refused with memcached's error, and its bytes are discarded.
    pub max_value: usize,
    /// Whether the connection may send commands.
    pub access: Access,
}

/// The result of parsing the front of a read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The packet is incomplete.
    Incomplete {
        /// A lower bound on the number of missing bytes, at least 1.
        at_least: usize,
    },
    /// A complete request is in the buffer.
    Request {
        /// The request, borrowed from the buffer.
        request: Request<'a>,
        /// Its length in bytes, from the front of the buffer.
        consumed: usize,
    },
    /// A request that memcached refuses.
    Refused(Refused<'a>),
    /// No packet begins here: the connection must be closed without a reply.
    NoPacket,
}

/// A request that memcached refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused<'a> {
    /// What the reply repeats of the request.
    pub head: Head,
    /// The error. Quiet commands receive it too.
    pub status: Status,
    /// How many bytes of the buffer to discard now.
    pub consumed: usize,
    /// How many further bytes to discard as they arrive.
    pub skip_data: u64,
    /// Whether to close the connection once the reply is written.
    pub close: bool,
    /// The key that must be deleted: a refused `set` that is too large deletes the old value.
    pub deletes: Option<&'a [u8]>,
}

/// A header, and the buffer that begins with it.
struct Packet<'a> {
    buffer: &'a [u8],
    head: Head,
    operation: Operation,
    key: usize,
    extras: usize,
    body: usize,
    cas: u64,
}

/// Parses the packet at the front of a read buffer, which must not be empty.
pub fn parse<'a>(buffer: &'a [u8], limits: &Limits) -> Parsed<'a> {
    if buffer.first() != Some(&REQUEST) {
        return Parsed::NoPacket;
    }
    let Some((header, _)) = buffer.split_first_chunk::<HEADER>() else {
        return Parsed::Incomplete { at_least: HEADER - buffer.len() };
    };
    let [_, opcode, k0, k1, extras, _, _, _, b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] = *header;
    let opcode = Opcode(opcode);
    let body = u32::from_be_bytes([b0, b1, b2, b3]);
    let packet = Packet {
        buffer,
        head: Head { opcode, opaque: [o0, o1, o2, o3] },
        operation: opcode.operation(),
        key: usize::from(u16::from_be_bytes([k0, k1])),
        extras: usize::from(extras),
        body: body as usize,
        cas: u64::from_be_bytes(cas),
    };
    if body > MAX_BODY {
        return packet.close(Status::Invalid);
    }
    if packet.key + packet.extras > packet.body {
        return packet.close(Status::UnknownCommand);
    }
    let is_open = matches!(
        packet.operation,
        Operation::SaslList | Operation::SaslAuth | Operation::SaslStep | Operation::Version
    );
    if limits.access == Access::Unauthenticated && !is_open {
        return packet.close(Status::AuthError);
    }
    if packet.key > MAX_KEY || !packet.has_valid_lengths() {
        return packet.close(Status::Invalid);
    }
    packet.parse(limits)
}

impl<'a> Packet<'a> {
    /// Whether the parts of the body are those of the command.
    fn has_valid_lengths(&self) -> bool {
        let Packet { key, extras, body, .. } = *self;
        match self.operation {
            Operation::Get { .. } | Operation::Delete => key > 0 && extras == 0 && body == key,
            Operation::GetAndTouch { .. } | Operation::Touch => key > 0 && extras == 4,
            Operation::Set | Operation::Add | Operation::Replace => key > 0 && extras == 8,
            Operation::Append | Operation::Prepend => key > 0 && extras == 0,
            Operation::Increment | Operation::Decrement => key > 0 && extras == 20 && body == key + extras,
            Operation::Flush => key == 0 && body == extras && matches!(extras, 0 | 4),
            Operation::Quit | Operation::Noop | Operation::Version | Operation::SaslList => body == 0,
            Operation::Stat => extras == 0,
            Operation::SaslAuth | Operation::SaslStep => key > 0 && extras == 0,
            Operation::Unknown => true,
        }
    }

    /// Parses the body. The lengths are valid.
    fn parse(&self, limits: &Limits) -> Parsed<'a> {
        if self.operation == Operation::Unknown {
            // memcached discards the extras and the key twice, and so part of the next packet.
            return self.discard(Status::UnknownCommand, HEADER, self.body);
        }
        let start = HEADER + self.extras + self.key;
        let Some(front) = self.buffer.get(HEADER..start) else {
            return Parsed::Incomplete { at_least: start - self.buffer.len() };
        };
        let (extras, key) = front.split_at(self.extras);
        let length = self.body - self.extras - self.key;
        let command = match self.operation {
            Operation::Get { .. } => Command::Get { key, exptime: None },
            // memcached takes what follows the key of these for the next packet.
            Operation::GetAndTouch { .. } => Command::Get { key, exptime: Some(exptime(number(extras, 0))) },
            Operation::Touch => Command::Touch { key, exptime: exptime(number(extras, 0)) },
            Operation::Stat => Command::Stat { what: key },
            Operation::Set => return self.store(Verb::Set, key, extras, limits),
            Operation::Add => return self.store(Verb::Add, key, extras, limits),
            Operation::Replace => return self.store(Verb::Replace, key, extras, limits),
            Operation::Append => return self.store(Verb::Append, key, extras, limits),
            Operation::Prepend => return self.store(Verb::Prepend, key, extras, limits),
            Operation::Delete => Command::Delete { key, cas: self.cas },
            Operation::Increment | Operation::Decrement => {
                let long = |at| u64::from(number(extras, at)) << 32 | u64::from(number(extras, at + 4));
                let until = Some(number(extras, 16)).filter(|until| *until != DOES_NOT_CREATE);
                Command::Count {
                    key,
                    decr: self.operation == Operation::Decrement,
                    delta: long(0),
                    create: until.map(|until| (exptime(until), long(8))),
                    cas: self.cas,
                }
            }
            Operation::Flush => {
                let delay = if extras.is_empty() { 0 } else { number(extras, 0) };
                // No text command can name a later time.
                Command::Flush { delay: i64::from(delay).min(i32::MAX.into()) }
            }
            Operation::Noop => Command::Noop,
            Operation::Version => Command::Version,
            Operation::Quit => Command::Quit,
            Operation::SaslList if limits.access == Access::Open => {
                return self.discard(Status::UnknownCommand, start, 0);
            }
            Operation::SaslList => Command::Sasl(SaslMessage::List),
            Operation::SaslAuth | Operation::SaslStep | Operation::Unknown => {
                return self.sasl(key, length, limits);
            }
        };
        Parsed::Request { request: Request { head: self.head, command }, consumed: start }
    }

    fn store(&self, verb: Verb, key: &'a [u8], extras: &[u8], limits: &Limits) -> Parsed<'a> {
        let start = HEADER + self.extras + self.key;
        let end = HEADER + self.body;
        if end - start > limits.max_value {
            let deletes = (verb == Verb::Set).then_some(key);
            return Parsed::Refused(Refused {
                deletes,
                ..self.refused(Status::TooLarge, start, end - start)
            });
        }
        let Some(data) = self.buffer.get(start..end) else {
            return Parsed::Incomplete { at_least: end - self.buffer.len() };
        };
        let (flags, exptime) = match extras.is_empty() {
            true => (0, 0),
            false => (number(extras, 0), exptime(number(extras, 4))),
        };
        let command = Command::Store(Store { verb, key, flags, exptime, data, cas: self.cas });
        Parsed::Request { request: Request { head: self.head, command }, consumed: end }
    }

    fn sasl(&self, mechanism: &'a [u8], length: usize, limits: &Limits) -> Parsed<'a> {
        let start = HEADER + self.key;
        let refusal = match limits.access {
            Access::Open => Some(Status::UnknownCommand),
            _ if mechanism.len() > MAX_MECHANISM => Some(Status::Invalid),
            _ if length > MAX_MESSAGE => Some(Status::ServerError),
            _ => None,
        };
        if let Some(status) = refusal {
            return self.discard(status, start, length);
        }
        let Some(data) = self.buffer.get(start..start + length) else {
            return Parsed::Incomplete { at_least: start + length - self.buffer.len() };
        };
        let message = match self.operation {
            Operation::SaslAuth => SaslMessage::Auth { mechanism, data },
            _ => SaslMessage::Step { data },
        };
        let request = Request { head: self.head, command: Command::Sasl(message) };
        Parsed::Request { request, consumed: start + length }
    }

    /// Refuses it: the first `consumed` bytes, and `length` bytes behind them, are discarded.
    fn discard(&self, status: Status, consumed: usize, length: usize) -> Parsed<'a> {
        Parsed::Refused(self.refused(status, consumed, length))
    }

    /// Refuses it, and everything behind it.
    fn close(&self, status: Status) -> Parsed<'a> {
        Parsed::Refused(Refused { close: true, ..self.refused(status, HEADER, 0) })
    }

    fn refused(&self, status: Status, consumed: usize, length: usize) -> Refused<'a> {
        Refused { head: self.head, status, consumed, skip_data: length as u64, close: false, deletes: None }
    }
}

/// The number in four bytes of the extras.
fn number(extras: &[u8], at: usize) -> u32 {
    extras.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// An exptime as a text command has it. memcached takes a number from 2^31 for a time between 2038 and 2106, which no text
/// command can name: the item does not expire.
fn exptime(sent: u32) -> i64 {
    i32::try_from(sent).map_or(0, i64::from)
}

#[cfg(test)]
mod tests;
