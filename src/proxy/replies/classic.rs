//! Replies of the classic text protocol.

use bytes::BytesMut;

use super::outcome::WriteOutcome;
use super::text::{put_key, put_number};
use crate::guard::Counted;
use crate::protocol::decimal::write_decimal;

/// Appends the reply to a command that writes.
pub(super) fn write(outcome: &WriteOutcome, out: &mut BytesMut) {
    let line: &[u8] = match outcome {
        WriteOutcome::Stored(_) | WriteOutcome::Extended(..) => b"STORED\r\n",
        WriteOutcome::NotStored => b"NOT_STORED\r\n",
        WriteOutcome::Exists => b"EXISTS\r\n",
        WriteOutcome::NotFound => b"NOT_FOUND\r\n",
        WriteOutcome::Deleted | WriteOutcome::Bumped { delete: true, .. } => b"DELETED\r\n",
        WriteOutcome::Touched { .. } => b"TOUCHED\r\n",
        WriteOutcome::Counted(Counted { number, .. }) | WriteOutcome::Bumped { version: number, .. } => {
            write_decimal(out, *number);
            b"\r\n"
        }
        WriteOutcome::NotANumber => b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        WriteOutcome::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
        WriteOutcome::Failed(failure) => failure.line(),
        WriteOutcome::Verbatim(line) => line,
    };
    out.extend_from_slice(line);
}

/// Appends the `VALUE` line of a value that has this many bytes.
pub(crate) fn put_value_line(out: &mut BytesMut, key: &[u8], flags: u32, cas: Option<u64>, length: usize) {
    out.reserve(key.len() + 64);
    out.extend_from_slice(b"VALUE");
    put_key(out, key);
    put_number(out, flags);
    put_number(out, length);
    if let Some(cas) = cas {
        put_number(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}
