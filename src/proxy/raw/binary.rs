//! Raw commands of binary clients. Servers are sent meta commands, whose replies contain the CAS: only memcached that has the
//! present ones receives them.

use bytes::{Bytes, BytesMut};

use super::standby::TtlLimit;
use crate::guard::{Cas, Counted};
use crate::metrics::Outcome;
use crate::protocol::binary::parse::{Command, Store};
use crate::protocol::binary::reply::{put_hit, put_miss, put_translated};
use crate::protocol::binary::{Head, Operation};
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{MetaReply, Status, meta, values};
use crate::protocol::request::Verb;
use crate::proxy::replies::binary::write;
use crate::proxy::replies::large::{LargeReply, write_part};
use crate::proxy::replies::outcome::WriteOutcome;
use crate::proxy::server_key::server_key;

/// What memcached stores besides the key and the value, in bytes: its header, CAS, two terminators, and the flags if there are any.
const ITEM_OVERHEAD: usize = 48 + 8 + 1 + 2;
const ITEM_FLAGS: usize = 4;

/// Whether a server with this `item_size_max` refuses a value that would not replace the stored one. memcached deletes the stored
/// value if a meta command is too large, but for a binary `add`, `replace`, `append` or `prepend` it does not.
pub(crate) fn is_too_large(store: &Store<'_>, item_size: usize) -> bool {
    let flags = if store.flags == 0 { 0 } else { ITEM_FLAGS };
    store.verb != Verb::Set && ITEM_OVERHEAD + store.key.len() + flags + store.data.len() > item_size
}

/// Appends the meta command for a command with a key.
pub(super) fn put(out: &mut BytesMut, command: &Command<'_>, limit: Option<TtlLimit>) {
    let (key, is_base64) = server_key(command.key().unwrap_or_default());
    let ttl = |exptime| limit.map_or(exptime, |limit| limit.exptime(exptime));
    let start = |out: &mut BytesMut, word: &[u8]| {
        out.extend_from_slice(word);
        out.extend_from_slice(&key);
    };
    let base64 = |out: &mut BytesMut| out.extend_from_slice(if is_base64 { b" b" } else { b"" });
    let number = |out: &mut BytesMut, flag: &[u8], number: i128| {
        out.extend_from_slice(flag);
        write_decimal(out, number);
    };
    let compare = |out: &mut BytesMut, cas: u64| {
        if cas != 0 {
            number(out, b" C", cas.into());
        }
    };
    match *command {
        Command::Get { exptime, .. } => {
            start(out, b"mg ");
            base64(out);
            out.extend_from_slice(b" v f c");
            if let Some(exptime) = exptime {
                number(out, b" T", ttl(exptime).into());
            }
        }
        Command::Touch { exptime, .. } => {
            start(out, b"mg ");
            base64(out);
            out.extend_from_slice(b" f c");
            number(out, b" T", ttl(exptime).into());
        }
        Command::Store(Store { verb, flags, exptime, data, cas, .. }) => {
            out.reserve(data.len() + key.len() + 96);
            start(out, b"ms ");
            number(out, b" ", data.len() as i128);
            base64(out);
            out.extend_from_slice(b" c");
            let extends = matches!(verb, Verb::Append | Verb::Prepend);
            out.extend_from_slice(match verb {
                Verb::Append => b" MA",
                Verb::Prepend => b" MP",
                Verb::Add if cas == 0 => b" ME",
                Verb::Replace if cas == 0 => b" MR",
                _ => b"",
            });
            if !extends {
                number(out, b" T", ttl(exptime).into());
                number(out, b" F", flags.into());
            }
            compare(out, cas);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(data);
        }
        Command::Delete { cas, .. } => {
            start(out, b"md ");
            base64(out);
            compare(out, cas);
        }
        Command::Count { decr, delta, create, cas, .. } => {
            start(out, b"ma ");
            base64(out);
            out.extend_from_slice(if decr { b" v c MD" } else { b" v c MI" });
            number(out, b" D", delta.into());
            if let Some((exptime, initial)) = create {
                number(out, b" N", ttl(exptime).into());
                number(out, b" J", initial.into());
            }
            compare(out, cas);
        }
        // No other command has a key.
        _ => out.extend_from_slice(b"mn"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the reply to a `get` for the server's reply to a `gets` or `gats` of its key.
pub(super) fn write_classic(
    head: Head,
    key: &[u8],
    reply: &Bytes,
    out: &mut BytesMut,
) -> (Outcome, Option<LargeReply>) {
    match values(reply).next() {
        Some(value) => {
            put_hit(head, key, value.flags, value.cas.unwrap_or(0), value.data.len(), out);
            (Outcome::Hit, write_part(reply, value.data, out))
        }
        None if reply.is_empty() || reply.starts_with(b"END") => {
            put_miss(head, key, out);
            (Outcome::Miss, None)
        }
        None => {
            put_translated(head, reply, out);
            (Outcome::ServerError, None)
        }
    }
}

/// Appends the reply for the server's reply to the meta command of [`put`].
pub(super) fn write_meta(
    head: Head,
    key: &[u8],
    reply: &Bytes,
    out: &mut BytesMut,
) -> (Outcome, Option<LargeReply>) {
    let parsed = meta(reply);
    let operation = head.opcode.operation();
    if matches!(operation, Operation::Get { .. } | Operation::GetAndTouch { .. }) {
        return match parsed.status {
            Status::Va => {
                put_hit(head, key, flags(&parsed), cas(&parsed).number, parsed.data.len(), out);
                (Outcome::Hit, write_part(reply, parsed.data, out))
            }
            Status::En => {
                put_miss(head, key, out);
                (Outcome::Miss, None)
            }
            _ => {
                put_translated(head, reply, out);
                (Outcome::ServerError, None)
            }
        };
    }
    let (reply, outcome) = match (operation, parsed.status) {
        (Operation::Touch, Status::Hd) => {
            (WriteOutcome::Touched { flags: flags(&parsed), cas: cas(&parsed) }, Outcome::Touched)
        }
        (Operation::Delete, Status::Hd) => (WriteOutcome::Deleted, Outcome::Deleted),
        (Operation::Increment | Operation::Decrement, Status::Va) => {
            let number = std::str::from_utf8(parsed.data).ok().and_then(|text| text.trim().parse().ok());
            let counted =
                Counted { number: number.unwrap_or(0), cas: cas(&parsed), ttl: None, created: false };
            (WriteOutcome::Counted(counted), Outcome::Counted)
        }
        (_, Status::Hd) => (WriteOutcome::Stored(cas(&parsed)), Outcome::Stored),
        (_, Status::Ns) => (WriteOutcome::NotStored, Outcome::NotStored),
        (_, Status::Ex) => (WriteOutcome::Exists, Outcome::Exists),
        (_, Status::Nf | Status::En) => (WriteOutcome::NotFound, Outcome::NotFound),
        // What is appended fits, as it has been checked: both together do not.
        (Operation::Append | Operation::Prepend, Status::Error) if parsed.data.ends_with(TOO_LARGE) => {
            (WriteOutcome::NotStored, Outcome::NotStored)
        }
        (_, _) => {
            let outcome = match parsed.data.starts_with(b"CLIENT_ERROR") {
                true => Outcome::ClientError,
                false => Outcome::ServerError,
            };
            (WriteOutcome::Verbatim(reply.clone()), outcome)
        }
    };
    write(head, &reply, 0, out);
    (outcome, None)
}

const TOO_LARGE: &[u8] = b"object too large for cache";

fn cas(reply: &MetaReply<'_>) -> Cas {
    Cas { number: reply.number(b'c').unwrap_or(0), epoch: 0 }
}

fn flags(reply: &MetaReply<'_>) -> u32 {
    reply.number(b'f').and_then(|flags| u32::try_from(flags).ok()).unwrap_or(0)
}
