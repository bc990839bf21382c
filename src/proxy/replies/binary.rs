//! Replies of the binary protocol.

use bytes::{Bytes, BytesMut};

use super::large::{LargeReply, write_reply};
use super::outcome::WriteOutcome;
use crate::error::Failure;
use crate::guard::{Counted, shown_cas};
use crate::protocol::binary::reply::{put_done, put_error, put_hit, put_number, put_text, put_translated};
use crate::protocol::binary::{Head, Operation, Status};

/// Appends the reply to a command that writes a key under this fence.
pub(crate) fn write(head: Head, outcome: &WriteOutcome, fence: u64, out: &mut BytesMut) {
    match outcome {
        WriteOutcome::Stored(cas) | WriteOutcome::Extended(cas, _) => {
            put_done(head, shown_cas(cas.number, fence), out);
        }
        WriteOutcome::Deleted | WriteOutcome::Bumped { delete: true, .. } => put_done(head, 0, out),
        WriteOutcome::Touched { flags, cas } => {
            put_hit(head, b"", *flags, shown_cas(cas.number, fence), 0, out);
        }
        WriteOutcome::Counted(Counted { number, cas, .. }) => {
            put_number(head, *number, shown_cas(cas.number, fence), out);
        }
        WriteOutcome::Bumped { version, delete: false } => put_number(head, *version, 0, out),
        WriteOutcome::NotStored => put_error(head, not_stored(head), out),
        WriteOutcome::NotFound => put_error(head, not_found(head), out),
        WriteOutcome::Exists => put_error(head, Status::Exists, out),
        WriteOutcome::NotANumber => put_error(head, Status::NotANumber, out),
        WriteOutcome::TooLarge => put_error(head, Status::TooLarge, out),
        WriteOutcome::Failed(failure) => put_failure(head, *failure, out),
        WriteOutcome::Verbatim(line) => put_translated(head, line, out),
    }
}

/// The status in place of `NOT_STORED`.
fn not_stored(head: Head) -> Status {
    match head.opcode.operation() {
        Operation::Add => Status::Exists,
        Operation::Replace => Status::NotFound,
        _ => Status::NotStored,
    }
}

/// The status if there is no item.
fn not_found(head: Head) -> Status {
    match head.opcode.operation() {
        Operation::Append | Operation::Prepend => Status::NotStored,
        _ => Status::NotFound,
    }
}

/// Appends a failure. Quiet commands receive it too.
pub(crate) fn put_failure(head: Head, failure: Failure, out: &mut BytesMut) {
    let line = failure.line();
    let text = line.strip_prefix(b"SERVER_ERROR ").and_then(|text| text.strip_suffix(b"\r\n"));
    put_text(head, Status::ServerError, text.unwrap_or(line), out);
}

/// Appends a hit. Returns the value if it is too large to copy.
pub(crate) fn put_value(
    head: Head,
    key: &[u8],
    flags: u32,
    cas: u64,
    value: &Bytes,
    out: &mut BytesMut,
) -> Option<LargeReply> {
    put_hit(head, key, flags, cas, value.len(), out);
    write_reply(value, b"", out)
}
