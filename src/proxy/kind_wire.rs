//! The commands of a kind encoded as meta commands, and the servers' replies decoded.

use bytes::{Buf, Bytes, BytesMut};

use crate::error::Failure;
use crate::kinds::{Cas, Command, Items, Mode, Operation, Reply, Value};
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{self as protocol, MetaReply, Shape, Status, is_out_of_memory, meta, unsigned};
use crate::upstream::pending_replies::{END, Reply as ServerReply};

/// memcached's reply for an item that is larger than `item_size_max`.
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";
/// memcached's reply to a count of an item that is no number.
const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value";

pub fn encode(Command { key, operation }: &Command, out: &mut BytesMut) {
    let start = |out: &mut BytesMut, word: &[u8]| {
        out.extend_from_slice(word);
        out.extend_from_slice(key);
    };
    match operation {
        Operation::Get => {
            start(out, b"mg ");
            out.extend_from_slice(b" v t f c");
        }
        Operation::GetOrStub => {
            start(out, b"mg ");
            out.extend_from_slice(b" v t f c N30");
        }
        Operation::Size { exptime } => {
            start(out, b"mg ");
            out.extend_from_slice(b" s c");
            if let Some(exptime) = exptime {
                number(out, b" T", *exptime);
            }
        }
        Operation::GetMany(keys) => {
            let line = keys.line();
            out.reserve(line.len() + 8);
            out.extend_from_slice(b"get");
            out.extend_from_slice(line);
        }
        Operation::Store { mode, value, flags, exptime, cas } => {
            out.reserve(value.len() + key.len() + 64);
            start(out, b"ms ");
            number(out, b" ", value.len());
            out.extend_from_slice(match mode {
                Mode::Set => b" c",
                Mode::Add => b" c ME",
                Mode::Append => b" c MA",
            });
            if *mode != Mode::Append {
                number(out, b" T", *exptime);
                number(out, b" F", *flags);
            }
            compare(out, cas);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(value);
        }
        Operation::Count { decr, delta, initial, exptime } => {
            start(out, b"ma ");
            number(out, b" N", *exptime);
            number(out, b" J", *initial);
            number(out, b" D", *delta);
            // The flags apply in their order: before `N`, `t` would be that of an item without a TTL.
            out.extend_from_slice(if *decr { b" v t c MD" } else { b" v t c" });
        }
        Operation::Delete { cas } => {
            start(out, b"md ");
            compare(out, cas);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn compare(out: &mut BytesMut, cas: &Option<Cas>) {
    if let Some(cas) = cas {
        number(out, b" C", cas.number);
    }
}

/// Appends `before` and the number.
fn number(out: &mut BytesMut, before: &[u8], number: impl itoa::Integer) {
    out.extend_from_slice(before);
    write_decimal(out, number);
}

/// What the reply to a command tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// An item with its value.
    Item,
    /// The same, or a new stub.
    ItemOrStub,
    Items,
    /// The size of an item.
    Size,
    /// Whether it was stored.
    Stored,
    Number,
    /// Whether it was deleted.
    Deleted,
}

impl Expected {
    /// What the reply to this operation tells.
    pub fn of(operation: &Operation) -> Expected {
        match operation {
            Operation::Get => Expected::Item,
            Operation::GetOrStub => Expected::ItemOrStub,
            Operation::GetMany(_) => Expected::Items,
            Operation::Size { .. } => Expected::Size,
            Operation::Store { .. } => Expected::Stored,
            Operation::Count { .. } => Expected::Number,
            Operation::Delete { .. } => Expected::Deleted,
        }
    }

    /// The shape of the reply.
    pub fn shape(self) -> Shape {
        match self {
            Expected::Items => Shape::Values,
            _ => Shape::Meta,
        }
    }
}

/// Decodes the reply to a command.
pub fn decode(expected: Expected, reply: ServerReply) -> Reply {
    let (bytes, epoch) = match reply {
        ServerReply::Answered { bytes, epoch } => (bytes, epoch),
        ServerReply::StaleCas => return Reply::Exists,
        // Only the gets of raw keys are batched.
        ServerReply::Part { .. } => return Reply::Failed(Failure::Refused),
        ServerReply::Failed(failure) => return Reply::Failed(failure),
    };
    if expected == Expected::Items {
        return items(bytes);
    }
    let reply = meta(&bytes);
    let decoded = match (reply.status, expected) {
        (Status::Va | Status::Hd, Expected::Item | Expected::ItemOrStub) => item(&reply, epoch).map(|item| {
            let length = reply.data.len();
            Reply::Item(Value { data: value(&bytes, length), ..item })
        }),
        (Status::Hd, Expected::Size) => size(&reply, epoch),
        (Status::Va, Expected::Number) => count(&reply, epoch),
        (Status::Hd, Expected::Stored) => {
            reply.number(b'c').map(|number| Reply::Stored(Cas { number, epoch }))
        }
        (Status::Hd, Expected::Deleted) => Some(Reply::Done),
        // It has no memory for a stub.
        (Status::En, Expected::ItemOrStub) => Some(Reply::Failed(Failure::NoMemory)),
        (Status::En | Status::Nf, _) => Some(Reply::Absent),
        (Status::Ns, _) => Some(Reply::NotStored),
        (Status::Ex, _) => Some(Reply::Exists),
        (Status::Error, Expected::Stored) if reply.data == TOO_LARGE => Some(Reply::TooLarge),
        (Status::Error, Expected::Number) if reply.data == NOT_A_NUMBER => Some(Reply::NotANumber),
        (Status::Error, _) if is_out_of_memory(reply.data) => Some(Reply::Failed(Failure::NoMemory)),
        _ => None,
    };
    decoded.unwrap_or(Reply::Failed(Failure::Refused))
}

/// The items in the reply to a classic `get`.
fn items(reply: Bytes) -> Reply {
    if !reply.ends_with(END) {
        return Reply::Failed(Failure::Refused);
    }
    let mut items = Items::of(reply.clone());
    let mut start = 0;
    for value in protocol::values(&reply) {
        let key = start + b"VALUE ".len();
        start += value.raw.len();
        let end = start - b"\r\n".len();
        items.push(key..key + value.key.len(), end - value.data.len()..end);
    }
    Reply::Items(items)
}

/// The value at the end of a reply, before its CRLF.
fn value(reply: &Bytes, length: usize) -> Bytes {
    if length == 0 {
        return Bytes::new();
    }
    let mut value = reply.clone();
    value.truncate(reply.len() - b"\r\n".len());
    value.advance(value.len() - length);
    value
}

/// An item without its value.
fn item(reply: &MetaReply<'_>, epoch: u32) -> Option<Value> {
    let flags = u32::try_from(reply.number(b'f')?).ok()?;
    let (cas, ttl) = cas_and_ttl(reply, epoch)?;
    Some(Value { data: Bytes::new(), flags, cas, ttl })
}

fn size(reply: &MetaReply<'_>, epoch: u32) -> Option<Reply> {
    let size = usize::try_from(reply.number(b's')?).ok()?;
    Some(Reply::Size(size, Cas { number: reply.number(b'c')?, epoch }))
}

fn count(reply: &MetaReply<'_>, epoch: u32) -> Option<Reply> {
    let number = unsigned(reply.data)?;
    let (cas, ttl) = cas_and_ttl(reply, epoch)?;
    Some(Reply::Number(number, cas, ttl))
}

/// The CAS of an item, and its remaining seconds, `None` if it does not expire; `None` if the reply lacks one of them.
fn cas_and_ttl(reply: &MetaReply<'_>, epoch: u32) -> Option<(Cas, Option<u32>)> {
    let (mut cas, mut ttl) = (None, None);
    for (flag, token) in reply.tokens() {
        match (flag, token) {
            (b'c', _) => cas = Some(Cas { number: unsigned(token)?, epoch }),
            (b't', b"-1") => ttl = Some(None),
            (b't', _) => ttl = Some(Some(u32::try_from(unsigned(token)?).ok()?)),
            _ => {}
        }
    }
    cas.zip(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{ItemKey, Keys};

    fn encoded(operation: Operation) -> String {
        let mut out = BytesMut::new();
        encode(&Command { key: ItemKey::from_slice(b"k"), operation }, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn commands_are_encoded_as_memcached_parses_them() {
        assert_eq!(encoded(Operation::Get), "mg k v t f c\r\n");
        let store = |mode| Operation::Store {
            mode,
            value: Bytes::from_static(b"ab"),
            flags: 3,
            exptime: -1,
            cas: None,
        };
        assert_eq!(encoded(store(Mode::Set)), "ms k 2 c T-1 F3\r\nab\r\n");
        assert_eq!(encoded(store(Mode::Add)), "ms k 2 c ME T-1 F3\r\nab\r\n");
        assert_eq!(encoded(store(Mode::Append)), "ms k 2 c MA\r\nab\r\n");
        assert_eq!(encoded(Operation::Size { exptime: None }), "mg k s c\r\n");
        assert_eq!(encoded(Operation::Size { exptime: Some(60) }), "mg k s c T60\r\n");
        let count = |decr| Operation::Count { decr, delta: 2, initial: u64::MAX, exptime: 9 };
        assert_eq!(encoded(count(false)), "ma k N9 J18446744073709551615 D2 v t c\r\n");
        assert_eq!(encoded(count(true)), "ma k N9 J18446744073709551615 D2 v t c MD\r\n");
        assert_eq!(encoded(Operation::Delete { cas: None }), "md k\r\n");
        let cas = Some(Cas { number: 7, epoch: 1 });
        assert_eq!(encoded(Operation::Delete { cas }), "md k C7\r\n");
        let over = Operation::Store { mode: Mode::Set, value: Bytes::new(), flags: 0, exptime: 0, cas };
        assert_eq!((over.epoch(), encoded(over)), (Some(1), "ms k 0 c T0 F0 C7\r\n\r\n".into()));
    }

    #[test]
    fn replies_are_decoded_and_what_no_server_sends_is_a_failure() {
        let of = |operation: &Operation, text: &'static str| {
            decode(
                Expected::of(operation),
                ServerReply::Answered { bytes: Bytes::from_static(text.as_bytes()), epoch: 2 },
            )
        };
        let cas = |number| Cas { number, epoch: 2 };
        let item = Value { data: Bytes::from_static(b"ab"), flags: 5, cas: cas(9), ttl: None };
        let refused = Reply::Failed(Failure::Refused);
        assert_eq!(of(&Operation::Get, "VA 2 t-1 f5 c9\r\nab\r\n"), Reply::Item(item));
        assert_eq!(of(&Operation::Get, "EN\r\n"), Reply::Absent);
        assert_eq!(of(&Operation::GetOrStub, "EN\r\n"), Reply::Failed(Failure::NoMemory));
        assert_eq!(of(&Operation::Get, "VA 2 f5 c9\r\nab\r\n"), refused);
        let size = Operation::Size { exptime: None };
        assert_eq!(of(&size, "HD s12 c9\r\n"), Reply::Size(12, cas(9)));
        assert_eq!(of(&size, "HD c9\r\n"), refused);
        assert_eq!(of(&size, "EN\r\n"), Reply::Absent);
        let count = Operation::Count { decr: false, delta: 1, initial: 1, exptime: 0 };
        assert_eq!(of(&count, "VA 2 t7 c4\r\n10\r\n"), Reply::Number(10, cas(4), Some(7)));
        assert_eq!(of(&count, "VA 2 t7 c4\r\nxx\r\n"), refused);
        let text = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        assert_eq!(of(&count, text), Reply::NotANumber);
        let store =
            Operation::Store { mode: Mode::Add, value: Bytes::new(), flags: 0, exptime: 0, cas: None };
        assert_eq!(of(&store, "HD c8\r\n"), Reply::Stored(cas(8)));
        assert_eq!(of(&store, "NS c0\r\n"), Reply::NotStored);
        assert_eq!(of(&store, "SERVER_ERROR object too large for cache\r\n"), Reply::TooLarge);
        let full = Reply::Failed(Failure::NoMemory);
        assert_eq!(of(&store, "SERVER_ERROR out of memory storing object\r\n"), full);
        assert_eq!(of(&count, "SERVER_ERROR out of memory\r\n"), full);
        assert_eq!(of(&store, "SERVER_ERROR backend failure\r\n"), refused);
        let delete = Operation::Delete { cas: Some(cas(7)) };
        assert_eq!(of(&delete, "HD\r\n"), Reply::Done);
        assert_eq!(of(&delete, "NF\r\n"), Reply::Absent);
        assert_eq!(of(&delete, "EX\r\n"), Reply::Exists);
        assert_eq!(decode(Expected::Item, ServerReply::StaleCas), Reply::Exists);
        let many = Operation::GetMany(Keys::from_iter(["a", "b"]));
        assert_eq!(of(&many, "END\r\n"), Reply::Items(Items::default()));
        let items = Items::from_iter([("a", "1"), ("b", "x\r\ny")]);
        let text = "VALUE a 0 1\r\n1\r\nVALUE b 7 4\r\nx\r\ny\r\nEND\r\n";
        assert_eq!(of(&many, text), Reply::Items(items));
        assert_eq!(of(&many, "SERVER_ERROR out of memory\r\n"), refused);
        assert_eq!(encoded(many), "get a b\r\n");
    }
}
