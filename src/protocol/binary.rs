//! A client of memcached's binary protocol, which is not spoken here: it is told so in its own words.
//!
//! memcached looks at the first byte of a connection alone to know which protocol it speaks, and so does this.

/// What a binary request begins with, and no text command does.
const REQUEST: u8 = 0x80;
/// What a binary reply begins with.
const REPLY: u8 = 0x81;
/// The length of a header in bytes, of a request and of a reply.
const HEADER: usize = 24;
/// The status "Unknown command": every library gives up at it, and none tries again elsewhere.
const UNKNOWN_COMMAND: u16 = 0x0081;
/// Libraries that show a reply's text show this.
const TEXT: &[u8] = b"kennel speaks the text protocol: turn the binary protocol off in this client";

/// What the first bytes of a connection say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binary {
    /// It speaks text.
    No,
    /// It speaks the binary protocol; so many bytes of its first header are still to come.
    Incomplete(usize),
    /// It speaks the binary protocol: this is to be said before its connection is closed.
    Refused(Vec<u8>),
}

/// Looks at the first bytes of a connection, one at least.
pub fn look(first: &[u8]) -> Binary {
    match first {
        [REQUEST, ..] => {}
        _ => return Binary::No,
    }
    let Some(header) = first.get(..HEADER) else { return Binary::Incomplete(HEADER - first.len()) };
    let mut reply = Vec::with_capacity(HEADER + TEXT.len());
    reply.extend_from_slice(&[REPLY, header[1]]);
    // No key, no extras, data type 0.
    reply.extend_from_slice(&[0, 0, 0, 0]);
    reply.extend_from_slice(&UNKNOWN_COMMAND.to_be_bytes());
    reply.extend_from_slice(&(TEXT.len() as u32).to_be_bytes());
    // The opaque is the asker's own; the CAS is none.
    reply.extend_from_slice(&header[12..16]);
    reply.extend_from_slice(&[0; 8]);
    reply.extend_from_slice(TEXT);
    Binary::Refused(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_request_is_refused_with_its_own_opcode_and_opaque() {
        let mut request = [0u8; 24];
        (request[0], request[1]) = (0x80, 0x0b);
        request[12..16].copy_from_slice(b"opaq");
        let Binary::Refused(reply) = look(&request) else { panic!("not refused") };
        assert_eq!(reply[..8], [0x81, 0x0b, 0, 0, 0, 0, 0, 0x81]);
        assert_eq!(reply[8..12], (reply.len() as u32 - 24).to_be_bytes());
        assert_eq!((&reply[12..16], &reply[16..24]), (&b"opaq"[..], &[0; 8][..]));
        assert!(reply[24..].starts_with(b"kennel speaks the text protocol"));
        assert_eq!(look(&request[..23]), Binary::Incomplete(1));
        assert_eq!(look(b"\x80"), Binary::Incomplete(23));
    }

    #[test]
    fn text_is_no_binary_request() {
        for text in [&b"g"[..], b"get k\r\n", b"\x81", b"\0", b" \x80"] {
            assert_eq!(look(text), Binary::No);
        }
    }
}
