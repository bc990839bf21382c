//! The guard's commands encoded as meta commands, and the servers' replies decoded.

use bytes::{Buf, Bytes, BytesMut};

use crate::error::Failure;
use crate::guard::{
    Cas, GetFlags, Item, Now, Operation, ServerCommand, ServerReply, StoreMode, Usage, incarnation_of,
    read_tag, tag_value,
};
use crate::protocol::decimal::{read_decimal, write_decimal};
use crate::protocol::reply::{MetaReply, Status, is_out_of_memory, meta};
use crate::proxy::server_key::server_key;
use crate::upstream::pending_replies::Reply;

/// memcached's reply for an item that is larger than `item_size_max`.
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";

/// Appends a command on `key`.
pub fn encode(operation: &Operation, key: &[u8], out: &mut BytesMut) {
    let (text, is_base64) = server_key(key);
    let text = &text[..];
    let end: &[u8] = if is_base64 { b" b\r\n" } else { b"\r\n" };
    match operation {
        Operation::Get(GetFlags { value, usage, unseen, vivify, touch }) => {
            out.reserve(text.len() + 96);
            start(out, b"mg ", text);
            // The first line of a value contains its size.
            out.extend_from_slice(if *value { b" v t f c" } else { b" t f c s" });
            if *usage {
                out.extend_from_slice(b" h l");
            }
            if *unseen {
                out.extend_from_slice(b" u");
            }
            number(out, b" N", vivify.map(i64::from));
            number(out, b" T", *touch);
        }
        Operation::Store { mode, value, flags, exptime, cas, explicit } => {
            out.reserve(value.len() + key.len() + 64);
            start(out, b"ms ", text);
            number(out, b" ", i64::try_from(value.len()).ok());
            out.extend_from_slice(match mode {
                StoreMode::Set => b" c",
                StoreMode::Add => b" c ME",
                StoreMode::Append => b" c MA",
            });
            if *mode != StoreMode::Append {
                number(out, b" T", Some(*exptime));
                number(out, b" F", Some(i64::from(*flags)));
            }
            compare(out, cas);
            number(out, b" E", *explicit);
            out.extend_from_slice(end);
            out.extend_from_slice(&value.header);
            out.extend_from_slice(&value.body);
            out.extend_from_slice(b"\r\n");
            return;
        }
        Operation::Delete { cas } => {
            start(out, b"md ", text);
            compare(out, cas);
        }
        Operation::MarkStale { seconds, cas, explicit } => {
            start(out, b"md ", text);
            out.extend_from_slice(b" I");
            number(out, b" T", seconds.map(i64::from));
            compare(out, cas);
            number(out, b" E", *explicit);
        }
    }
    out.extend_from_slice(end);
}

/// The reply of a server that stores this version of a tag under this fence, with a CAS that is not used.
pub(crate) fn tag_reply(version: u64, fence: u64) -> ServerReply {
    let value = tag_value(version, fence);
    let cas = Cas { number: 0, epoch: 0 };
    let (size, flags, usage) = (value.len(), incarnation_of(version), Usage::default());
    ServerReply::Item(Item { value, size, flags, cas, ttl: None, won: false, stale: false, usage })
}

fn start(out: &mut BytesMut, word: &[u8], key: &[u8]) {
    out.extend_from_slice(word);
    out.extend_from_slice(key);
}

/// Appends `before` and the number, if there is one.
fn number(out: &mut BytesMut, before: &[u8], number: Option<impl itoa::Integer>) {
    if let Some(number) = number {
        out.extend_from_slice(before);
        write_decimal(out, number);
    }
}

fn compare(out: &mut BytesMut, cas: &Option<Cas>) {
    number(out, b" C", cas.map(|cas| cas.number));
}

/// Whether a command on one place of a tag depends on what was read in its other place: what is stored may be copied from there.
pub fn needs_both_places(operation: &Operation) -> bool {
    matches!(operation, Operation::Store { .. })
}

/// The epoch of the CAS that a command depends on: it may be sent only over a connection of that epoch.
pub fn depends_on(operation: &Operation) -> Option<u32> {
    match operation {
        Operation::Get(_) => None,
        Operation::Store { cas, .. } | Operation::Delete { cas } | Operation::MarkStale { cas, .. } => {
            cas.map(|cas| cas.epoch)
        }
    }
}

/// The version in the reply to the `mg` of a tag, stored under this fence; `None` if it is any other reply.
pub(crate) fn version(reply: &Reply, fence: u64, now: Now) -> Option<u64> {
    let Reply::Answered { bytes, .. } = reply else { return None };
    let reply = meta(bytes);
    let (Status::Va, Ok(flags)) = (reply.status, u32::try_from(reply.number(b'f').unwrap_or_default()))
    else {
        return None;
    };
    let (version, stored_under) = read_tag(reply.data, flags, now).ok()?;
    (stored_under == fence).then_some(version)
}

/// Decodes the reply to a command.
pub fn decode(command: &ServerCommand, reply: Reply) -> ServerReply {
    decode_reply(&command.operation, reply)
}

/// Decodes the reply to a command with this operation.
pub(crate) fn decode_reply(operation: &Operation, reply: Reply) -> ServerReply {
    let (bytes, epoch) = match reply {
        Reply::Answered { bytes, epoch } => (bytes, epoch),
        Reply::StaleCas => return ServerReply::Exists,
        // The guard sends no classic gets.
        Reply::Part { .. } => return ServerReply::Failed(Failure::Refused),
        Reply::Failed(failure) => return ServerReply::Failed(failure),
    };
    let reply = meta(&bytes);
    match (reply.status, operation) {
        (Status::Va | Status::Hd, Operation::Get(_)) => {
            let length = reply.data.len();
            item(&reply, epoch).map_or(ServerReply::Failed(Failure::Refused), |item| {
                ServerReply::Item(Item { value: value(bytes, length), ..item })
            })
        }
        (Status::Hd, Operation::Store { .. }) => match reply.number(b'c') {
            Some(number) => ServerReply::Stored(Cas { number, epoch }),
            None => ServerReply::Failed(Failure::Refused),
        },
        (Status::Hd, _) => ServerReply::Done,
        (Status::En | Status::Nf, _) => ServerReply::Absent,
        (Status::Ns, _) => ServerReply::NotStored,
        (Status::Ex, _) => ServerReply::Exists,
        (Status::Error, Operation::Store { .. }) if reply.data == TOO_LARGE => ServerReply::TooLarge,
        (Status::Error, _) if is_out_of_memory(reply.data) => ServerReply::Failed(Failure::NoMemory),
        _ => ServerReply::Failed(Failure::Refused),
    }
}

/// The value at the end of a reply, before its CRLF. The reply is cut down to it: a second reference to the buffer would cost two
/// locked instructions.
fn value(mut reply: Bytes, length: usize) -> Bytes {
    if length == 0 {
        return Bytes::new();
    }
    reply.truncate(reply.len() - b"\r\n".len());
    reply.advance(reply.len() - length);
    reply
}

/// An item without its value.
fn item(reply: &MetaReply<'_>, epoch: u32) -> Option<Item> {
    let mut item = Item {
        value: Bytes::new(),
        size: reply.data.len(),
        flags: 0,
        cas: Cas { number: 0, epoch },
        ttl: None,
        won: false,
        stale: false,
        usage: Usage::default(),
    };
    for (flag, token) in reply.tokens() {
        match flag {
            b't' if token == b"-1" => {}
            b't' => item.ttl = Some(u32::try_from(read_decimal(token)?).ok()?),
            b'f' => item.flags = u32::try_from(read_decimal(token)?).ok()?,
            b'c' => item.cas.number = read_decimal(token)?,
            b's' => item.size = usize::try_from(read_decimal(token)?).ok()?,
            b'h' => item.usage.hit = token == b"1",
            b'l' => item.usage.idle = u32::try_from(read_decimal(token)?).ok()?,
            b'W' => item.won = true,
            b'X' => item.stale = true,
            _ => {}
        }
    }
    Some(item)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{ItemRef, Stored};

    fn encoded(operation: &Operation) -> String {
        let mut out = BytesMut::new();
        encode(operation, b"k", &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn commands_are_encoded_as_memcached_parses_them() {
        let cas = Some(Cas { number: 7, epoch: 1 });
        assert_eq!(
            encoded(&Operation::Get(GetFlags { value: true, vivify: Some(6), ..GetFlags::default() })),
            "mg k v t f c N6\r\n"
        );
        assert_eq!(
            encoded(&Operation::Get(GetFlags { touch: Some(-1), ..GetFlags::default() })),
            "mg k t f c s T-1\r\n"
        );
        let value = Stored { header: Bytes::from_static(b"he"), body: Bytes::from_static(b"bo") };
        let store =
            Operation::Store { mode: StoreMode::Set, value, flags: 3, exptime: 9, cas, explicit: None };
        assert_eq!(encoded(&store), "ms k 4 c T9 F3 C7\r\nhebo\r\n");
        let value = Stored::plain(Bytes::from_static(b"x"));
        let append =
            Operation::Store { mode: StoreMode::Append, value, flags: 0, exptime: 0, cas, explicit: None };
        assert_eq!(encoded(&append), "ms k 1 c MA C7\r\nx\r\n");
        assert_eq!(encoded(&Operation::Delete { cas: None }), "md k\r\n");
        let mut out = BytesMut::new();
        encode(&Operation::Delete { cas: None }, b"a b", &mut out);
        assert_eq!(&out[..], b"md YSBi b\r\n");
        assert_eq!(
            encoded(&Operation::MarkStale { seconds: Some(4), cas, explicit: None }),
            "md k I T4 C7\r\n"
        );
    }

    #[test]
    fn an_item_is_decoded_with_all_its_flags() {
        let get = ServerCommand {
            item: ItemRef::Value,
            operation: Operation::Get(GetFlags { value: true, ..GetFlags::default() }),
        };
        let reply =
            |text: &'static str| Reply::Answered { bytes: Bytes::from_static(text.as_bytes()), epoch: 2 };
        let ServerReply::Item(item) = decode(&get, reply("VA 2 t-1 f5 c9 s2 X W\r\nab\r\n")) else {
            panic!()
        };
        assert_eq!((&item.value[..], item.flags, item.ttl), (&b"ab"[..], 5, None));
        assert!(item.won && item.stale);
        assert_eq!(item.cas, Cas { number: 9, epoch: 2 });
        assert_eq!(decode(&get, reply("EN\r\n")), ServerReply::Absent);
        let failed = |failure| ServerReply::Failed(failure);
        let line = "SERVER_ERROR out of memory writing get response\r\n";
        assert_eq!(decode(&get, reply(line)), failed(Failure::Refused));
        assert_eq!(decode(&get, reply("SERVER_ERROR out of memory\r\n")), failed(Failure::NoMemory));
    }
}
