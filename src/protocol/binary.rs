//! memcached's binary protocol: packets in, packets out.
//!
//! ```text
//!  request  0x80 opcode key-length extras-length data-type vbucket body-length opaque cas │ extras key value
//!  reply    0x81 opcode key-length extras-length data-type status  body-length opaque cas │ extras key value
//!  bytes    1    1      2          1             1         2       4           4      8
//! ```
//!
//! All numbers are big-endian. The body length counts the extras, the key and the value. As in memcached, the first byte of a
//! connection decides its protocol.
//!
//! The rules are the observed behaviour of memcached 1.6.45. `parse` finds and checks a request, `reply` writes replies.

pub mod parse;
pub mod reply;

/// The first byte of a binary request. No text command begins with it.
pub const REQUEST: u8 = 0x80;
/// The first byte of a binary reply.
const REPLY: u8 = 0x81;
/// The version that Kennel reports, from which clients derive the server's features.
pub const VERSION: &[u8] = b"1.6.45";
/// The length of a request or reply header in bytes.
pub const HEADER: usize = 24;

/// What a reply repeats of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The opcode as sent.
    pub opcode: Opcode,
    /// The client's bytes, which the reply has unchanged.
    pub opaque: [u8; 4],
}

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opcode(pub u8);

/// What an [`Opcode`] does, whether or not it is quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `get`; the reply includes the key if `with_key`.
    Get {
        /// Whether the reply includes the key.
        with_key: bool,
    },
    /// `gat`.
    GetAndTouch {
        /// Whether the reply includes the key.
        with_key: bool,
    },
    /// `touch`.
    Touch,
    /// `set`.
    Set,
    /// `add`.
    Add,
    /// `replace`.
    Replace,
    /// `append`.
    Append,
    /// `prepend`.
    Prepend,
    /// `delete`.
    Delete,
    /// `increment`.
    Increment,
    /// `decrement`.
    Decrement,
    /// `quit`.
    Quit,
    /// `flush`.
    Flush,
    /// `noop`.
    Noop,
    /// `version`.
    Version,
    /// `stat`.
    Stat,
    /// The list of SASL mechanisms.
    SaslList,
    /// The start of a SASL authentication.
    SaslAuth,
    /// SASL: continuation of an authentication.
    SaslStep,
    /// memcached does not know it either. This includes `verbosity`.
    Unknown,
}

impl Opcode {
    /// What the opcode does, quiet or not.
    pub fn operation(self) -> Operation {
        match self.0 {
            0x00 | 0x09 => Operation::Get { with_key: false },
            0x0c | 0x0d => Operation::Get { with_key: true },
            0x1d | 0x1e => Operation::GetAndTouch { with_key: false },
            0x23 | 0x24 => Operation::GetAndTouch { with_key: true },
            0x1c => Operation::Touch,
            0x01 | 0x11 => Operation::Set,
            0x02 | 0x12 => Operation::Add,
            0x03 | 0x13 => Operation::Replace,
            0x0e | 0x19 => Operation::Append,
            0x0f | 0x1a => Operation::Prepend,
            0x04 | 0x14 => Operation::Delete,
            0x05 | 0x15 => Operation::Increment,
            0x06 | 0x16 => Operation::Decrement,
            0x07 | 0x17 => Operation::Quit,
            0x08 | 0x18 => Operation::Flush,
            0x0a => Operation::Noop,
            0x0b => Operation::Version,
            0x10 => Operation::Stat,
            0x20 => Operation::SaslList,
            0x21 => Operation::SaslAuth,
            0x22 => Operation::SaslStep,
            _ => Operation::Unknown,
        }
    }

    /// Whether it is a quiet form: a read does not reply to a miss, any other command not to a success.
    pub fn is_quiet(self) -> bool {
        matches!(self.0, 0x09 | 0x0d | 0x1e | 0x24 | 0x11..=0x19 | 0x1a)
    }
}

/// The status of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// 0x00: carried out.
    Success,
    /// There is no such item.
    NotFound,
    /// There is an item, or it has another CAS.
    Exists,
    /// The value is larger than the server accepts.
    TooLarge,
    /// The request is malformed.
    Invalid,
    /// The condition of the command did not hold.
    NotStored,
    /// The value of an increment or decrement is not a number.
    NotANumber,
    /// The password is wrong, or the client has sent none; or `flush` is disabled.
    AuthError,
    /// The authentication requires another step.
    AuthContinue,
    /// memcached does not know the opcode.
    UnknownCommand,
    /// What a text client receives as `SERVER_ERROR`, as in memcached.
    ServerError,
}

impl Status {
    /// The number in the header.
    pub fn number(self) -> u16 {
        match self {
            Status::Success => 0x00,
            Status::NotFound => 0x01,
            Status::Exists => 0x02,
            Status::TooLarge => 0x03,
            Status::Invalid => 0x04,
            Status::NotStored => 0x05,
            Status::NotANumber => 0x06,
            Status::AuthError => 0x20,
            Status::AuthContinue => 0x21,
            Status::UnknownCommand => 0x81,
            Status::ServerError => 0x82,
        }
    }

    /// memcached's text for it.
    pub fn text(self) -> &'static [u8] {
        match self {
            Status::Success | Status::AuthContinue => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::NotANumber => b"Non-numeric server-side value for incr or decr",
            Status::AuthError => b"Auth failure.",
            Status::UnknownCommand => b"Unknown command",
            Status::ServerError => b"Out of memory",
        }
    }
}
