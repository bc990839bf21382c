//! Detects clients of memcached's binary protocol, which Kennel does not support, and refuses them in that protocol.
//!
//! As in memcached, the first byte of a connection decides.

/// The first byte of a binary request. No text command begins with it.
const REQUEST: u8 = 0x80;
/// The first byte of a binary reply.
const REPLY: u8 = 0x81;
/// The length of a request or reply header in bytes.
const HEADER: usize = 24;
/// The status "Unknown command". Every client library gives up on it, and none retries on another server.
const UNKNOWN_COMMAND: u16 = 0x0081;
/// The text of the reply, which some libraries show.
const TEXT: &[u8] = b"kennel speaks the text protocol: turn the binary protocol off in this client";

/// The protocol of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detected {
    /// The text protocol.
    Text,
    /// The binary protocol, but this number of bytes of the first header is missing.
    Incomplete(usize),
    /// The binary protocol: this reply must be sent before the connection is closed.
    Binary(Vec<u8>),
}

/// Detects the protocol from the first bytes of a connection, of which there must be at least one.
pub fn detect(first: &[u8]) -> Detected {
    match first {
        [REQUEST, ..] => {}
        _ => return Detected::Text,
    }
    let Some(header) = first.get(..HEADER) else { return Detected::Incomplete(HEADER - first.len()) };
    let mut reply = Vec::with_capacity(HEADER + TEXT.len());
    reply.extend_from_slice(&[REPLY, header[1]]);
    // No key, no extras, data type 0.
    reply.extend_from_slice(&[0, 0, 0, 0]);
    reply.extend_from_slice(&UNKNOWN_COMMAND.to_be_bytes());
    reply.extend_from_slice(&(TEXT.len() as u32).to_be_bytes());
    // The request's opaque; no CAS.
    reply.extend_from_slice(&header[12..16]);
    reply.extend_from_slice(&[0; 8]);
    reply.extend_from_slice(TEXT);
    Detected::Binary(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_request_is_refused_with_its_own_opcode_and_opaque() {
        let mut request = [0u8; 24];
        (request[0], request[1]) = (0x80, 0x0b);
        request[12..16].copy_from_slice(b"opaq");
        let Detected::Binary(reply) = detect(&request) else { panic!("not refused") };
        assert_eq!(reply[..8], [0x81, 0x0b, 0, 0, 0, 0, 0, 0x81]);
        assert_eq!(reply[8..12], (reply.len() as u32 - 24).to_be_bytes());
        assert_eq!((&reply[12..16], &reply[16..24]), (&b"opaq"[..], &[0; 8][..]));
        assert!(reply[24..].starts_with(b"kennel speaks the text protocol"));
        assert_eq!(detect(&request[..23]), Detected::Incomplete(1));
        assert_eq!(detect(b"\x80"), Detected::Incomplete(23));
    }

    #[test]
    fn any_other_first_byte_is_the_text_protocol() {
        for text in [&b"g"[..], b"get k\r\n", b"\x81", b"\0", b" \x80"] {
            assert_eq!(detect(text), Detected::Text);
        }
    }
}
