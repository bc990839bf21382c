//! Writes replies of the binary protocol.

use bytes::BytesMut;

use super::{HEADER, Head, Operation, REPLY, Status};

/// The length of a value's flags in bytes.
const FLAGS: usize = 4;

/// The parts of a reply besides the head.
#[derive(Debug, Clone, Copy)]
struct Parts<'a> {
    status: Status,
    /// The value's flags, if it has any.
    flags: Option<u32>,
    key: &'a [u8],
    /// The length of what follows the key.
    length: usize,
    cas: u64,
}

/// Appends everything but the value.
fn put(head: Head, parts: Parts<'_>, out: &mut BytesMut) {
    let Parts { status, flags, key, length, cas } = parts;
    let extras = if flags.is_some() { FLAGS } else { 0 };
    let mut header = [0; HEADER];
    header[0] = REPLY;
    header[1] = head.opcode.0;
    // A key has at most 250 bytes, and so have the names of statistics.
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[4] = extras as u8;
    header[6..8].copy_from_slice(&status.number().to_be_bytes());
    header[8..12].copy_from_slice(&((extras + key.len() + length) as u32).to_be_bytes());
    header[12..16].copy_from_slice(&head.opaque);
    header[16..24].copy_from_slice(&cas.to_be_bytes());
    out.reserve(HEADER + extras + key.len() + length.min(1024));
    match flags {
        Some(flags) => {
            // One copy of a known length is cheaper than two appends.
            let mut header_and_flags = [0; HEADER + FLAGS];
            header_and_flags[..HEADER].copy_from_slice(&header);
            header_and_flags[HEADER..].copy_from_slice(&flags.to_be_bytes());
            out.extend_from_slice(&header_and_flags);
        }
        None => out.extend_from_slice(&header),
    }
    if !key.is_empty() {
        out.extend_from_slice(key);
    }
}

/// Appends an error with memcached's text.
pub fn put_error(head: Head, status: Status, out: &mut BytesMut) {
    put_text(head, status, status.text(), out);
}

/// Appends a reply whose value is this text.
pub fn put_text(head: Head, status: Status, text: &[u8], out: &mut BytesMut) {
    put(head, Parts { status, flags: None, key: &[], length: text.len(), cas: 0 }, out);
    out.extend_from_slice(text);
}

/// Appends a success without a value, unless the command is quiet.
pub fn put_done(head: Head, cas: u64, out: &mut BytesMut) {
    if !head.opcode.is_quiet() {
        put(head, Parts { status: Status::Success, flags: None, key: &[], length: 0, cas }, out);
    }
}

/// Appends the reply to a counting command, unless it is quiet.
pub fn put_number(head: Head, number: u64, cas: u64, out: &mut BytesMut) {
    if !head.opcode.is_quiet() {
        let number = number.to_be_bytes();
        put(head, Parts { status: Status::Success, flags: None, key: &[], length: number.len(), cas }, out);
        out.extend_from_slice(&number);
    }
}

/// Appends a hit without its value, which has `length` bytes and must follow. For `touch` the length is 0.
pub fn put_hit(head: Head, key: &[u8], flags: u32, cas: u64, length: usize, out: &mut BytesMut) {
    let key = if with_key(head) { key } else { &[] };
    put(head, Parts { status: Status::Success, flags: Some(flags), key, length, cas }, out);
}

/// Appends a miss, unless the command is quiet.
pub fn put_miss(head: Head, key: &[u8], out: &mut BytesMut) {
    let status = Status::NotFound;
    match with_key(head) {
        _ if head.opcode.is_quiet() => {}
        true => put(head, Parts { status, flags: None, key, length: 0, cas: 0 }, out),
        false => put_error(head, status, out),
    }
}

fn with_key(head: Head) -> bool {
    matches!(
        head.opcode.operation(),
        Operation::Get { with_key: true } | Operation::GetAndTouch { with_key: true }
    )
}

/// Appends the reply that a text client receives as `text`: the lines of `stats`, one line of success, or an error line.
pub fn put_translated(head: Head, text: &[u8], out: &mut BytesMut) {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.starts_with(b"STAT ") || line == b"END" {
        return put_statistics(head, text, out);
    }
    match error(line) {
        None => put_done(head, 0, out),
        Some((status, text)) => put_text(head, status, text, out),
    }
}

/// The status and the text of an error line without its CRLF; `None` if it is no error.
pub fn error(line: &[u8]) -> Option<(Status, &[u8])> {
    let status = match line {
        b"ERROR" => return Some((Status::UnknownCommand, Status::UnknownCommand.text())),
        b"SERVER_ERROR object too large for cache" => {
            return Some((Status::TooLarge, Status::TooLarge.text()));
        }
        b"CLIENT_ERROR cannot increment or decrement non-numeric value" => {
            return Some((Status::NotANumber, Status::NotANumber.text()));
        }
        _ if line.starts_with(b"SERVER_ERROR") => Status::ServerError,
        _ if line.starts_with(b"CLIENT_ERROR") => Status::Invalid,
        _ => return None,
    };
    let text = line.get(b"SERVER_ERROR ".len()..).unwrap_or_default();
    Some((status, text))
}

/// Whether these bytes begin with a reply of this protocol: no line of the text protocol begins so.
pub fn is_packet(reply: &[u8]) -> bool {
    reply.first() == Some(&REPLY)
}

/// The length in bytes of the value in a reply, which begins these bytes; the value itself may be missing. 0: there is none.
pub fn value_of_packet(reply: &[u8]) -> usize {
    let Some(&[_, _, key @ .., extras, _, _, _, a, b, c, d]) = reply.first_chunk::<12>() else { return 0 };
    let body = u32::from_be_bytes([a, b, c, d]) as usize;
    body.saturating_sub(usize::from(u16::from_be_bytes(key)) + usize::from(extras))
}

/// The text of an error of a server in the first of these replies, if it is one, and the replies behind it.
pub fn error_of_packet(replies: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let Some((header, rest)) = replies.split_first_chunk::<24>() else { return (None, b"") };
    let &[_, _, _, _, _, _, s, t, a, b, c, d, ..] = header;
    let Some((body, rest)) = rest.split_at_checked(u32::from_be_bytes([a, b, c, d]) as usize) else {
        return (None, b"");
    };
    let status = u16::from_be_bytes([s, t]);
    let is_error = status == Status::TooLarge.number() || status == Status::ServerError.number();
    let text: &[u8] = if status == Status::TooLarge.number() { b"object too large" } else { body };
    (is_error.then_some(text), rest)
}

/// Whether these bytes begin with a reply that has this status.
pub fn has_status(reply: &[u8], status: Status) -> bool {
    is_packet(reply) && reply.get(6..8) == Some(&status.number().to_be_bytes())
}

/// Appends one packet for each `STAT` line, and one without a key for the `END`.
fn put_statistics(head: Head, text: &[u8], out: &mut BytesMut) {
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(rest) = line.strip_prefix(b"STAT ") else { continue };
        let (name, value) = rest.split_at(rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len()));
        put_statistic(head, name, value.strip_prefix(b" ").unwrap_or(value), out);
    }
    put_statistic(head, b"", b"", out);
}

/// Appends one statistic. The one without a name ends the reply.
pub fn put_statistic(head: Head, name: &[u8], value: &[u8], out: &mut BytesMut) {
    put(head, Parts { status: Status::Success, flags: None, key: name, length: value.len(), cas: 0 }, out);
    out.extend_from_slice(value);
}
