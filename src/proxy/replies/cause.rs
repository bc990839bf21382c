//! Why a command was answered `SERVER_ERROR`, by the text of its reply.

use crate::metrics::ErrorCause;
use crate::protocol::binary::reply::{error_of_packet, is_packet};

/// The beginnings of the texts behind `SERVER_ERROR `. Any other is a server's own.
const CAUSES: [(&[u8], ErrorCause); 18] = [
    (b"server is down", ErrorCause::Down),
    (b"server timed out", ErrorCause::Timeout),
    (b"server refused", ErrorCause::Refused),
    (b"server is overloaded", ErrorCause::Overloaded),
    (b"server cannot guard keys", ErrorCause::Unguarded),
    (b"out of memory", ErrorCause::NoMemory),
    (b"Out of memory", ErrorCause::NoMemory),
    (b"object too large", ErrorCause::TooLarge),
    (b"the server of this key is being replaced", ErrorCause::NoView),
    (b"not stored: too many misses", ErrorCause::Misses),
    (b"not stored:", ErrorCause::Unread),
    (b"the list is full", ErrorCause::Full),
    (b"the names of the table are full", ErrorCause::Full),
    (b"the slot of the log is full", ErrorCause::Full),
    (b"too many locks", ErrorCause::Locks),
    (b"the answer is larger", ErrorCause::Answer),
    (b"the server lost an item", ErrorCause::Lost),
    (b"the item of this key was stored past Kennel", ErrorCause::Foreign),
];

/// Counts each error of a server or of Kennel in these replies: a line, or packets.
pub(crate) fn each_error(mut replies: &[u8], mut count: impl FnMut(ErrorCause)) {
    if let Some(text) = replies.strip_prefix(b"SERVER_ERROR ") {
        return count(cause(text));
    }
    while is_packet(replies) {
        let (error, rest) = error_of_packet(replies);
        if let Some(text) = error {
            count(cause(text));
        }
        replies = rest;
    }
}

/// The cause that this text behind `SERVER_ERROR ` names.
fn cause(text: &[u8]) -> ErrorCause {
    let named = CAUSES.iter().find(|(beginning, _)| text.starts_with(beginning));
    named.map_or(ErrorCause::Refused, |(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::protocol::binary::reply::put_translated;
    use crate::protocol::binary::{Head, Opcode};

    const HEAD: Head = Head { opcode: Opcode(1), opaque: [0; 4] };

    fn causes(replies: &[u8]) -> Vec<ErrorCause> {
        let mut causes = Vec::new();
        each_error(replies, |cause| causes.push(cause));
        causes
    }

    #[test]
    fn each_failure_has_a_cause_of_its_own_also_in_packets() {
        let failures = [
            (Failure::Down, ErrorCause::Down),
            (Failure::TimedOut, ErrorCause::Timeout),
            (Failure::Refused, ErrorCause::Refused),
            (Failure::NoMemory, ErrorCause::NoMemory),
            (Failure::Lost, ErrorCause::Lost),
            (Failure::Foreign, ErrorCause::Foreign),
            (Failure::Overloaded, ErrorCause::Overloaded),
            (Failure::Unguarded, ErrorCause::Unguarded),
            (Failure::NoView, ErrorCause::NoView),
            (Failure::TooLarge, ErrorCause::Answer),
        ];
        let mut packets = bytes::BytesMut::new();
        for (failure, cause) in failures {
            assert_eq!(causes(failure.line()), [cause]);
            put_translated(HEAD, failure.line(), &mut packets);
            put_translated(HEAD, b"STORED\r\n", &mut packets);
        }
        put_translated(HEAD, b"SERVER_ERROR object too large for cache\r\n", &mut packets);
        let expected = failures.map(|(_, cause)| cause).into_iter().chain([ErrorCause::TooLarge]);
        assert_eq!(causes(&packets), expected.collect::<Vec<_>>());
        // The value of a hit may be missing.
        assert_eq!(causes(&packets[..30]), []);
        assert_eq!(causes(b"SERVER_ERROR backend failure\r\n"), [ErrorCause::Refused]);
        assert_eq!(causes(b"VALUE SERVER_ERROR 0 1\r\na\r\nEND\r\n"), []);
        assert_eq!(causes(b"CLIENT_ERROR bad data chunk\r\n"), []);
    }
}
