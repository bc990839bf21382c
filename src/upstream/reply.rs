//! What becomes of one command that was sent to a server.

use bytes::{Bytes, BytesMut};

use crate::error::Failure;

/// Smaller replies, in bytes, do not count towards the memory budget one by one: a client has few of them.
pub(super) const COUNTED: usize = 4 * 1024;
/// The line that ends the reply to a `get`.
pub const END: &[u8] = b"END\r\n";

/// Identifies one command of a client, and so its reply. Ids increase in the order of sending.
pub type ReplyId = u64;

/// The outcome of a command.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The server's whole reply, with its CRLF.
    Answered {
        /// The reply as received.
        bytes: Bytes,
        /// The server's epoch when the command was sent: see [`super::server::Server`].
        epoch: u32,
    },
    /// One client's part of the reply to a batched `get`: its values, if any, without [`END`]. Always smaller than 4 KiB.
    Part {
        /// The values as received.
        bytes: Bytes,
        /// The server's epoch when the command was sent.
        epoch: u32,
    },
    /// The command depended on a CAS that was read over an older connection. It was not sent.
    StaleCas,
    /// There is no reply, and whether the command was carried out is unknown.
    Failed(Failure),
}

impl Reply {
    /// Copies a small reply into `copies`, so that it does not keep the buffer it was read into alive.
    pub(super) fn detached(self, copies: &mut BytesMut) -> Reply {
        let mut detach = |bytes: Bytes| {
            if bytes.len() >= COUNTED {
                return bytes;
            }
            if copies.capacity() < bytes.len() {
                *copies = BytesMut::with_capacity(2 * COUNTED);
            }
            copies.extend_from_slice(&bytes);
            copies.split().freeze()
        };
        match self {
            Reply::Answered { bytes, epoch } => Reply::Answered { bytes: detach(bytes), epoch },
            Reply::Part { bytes, epoch } => Reply::Part { bytes: detach(bytes), epoch },
            reply => reply,
        }
    }
}

/// Room for one reply in a client's queue.
#[derive(Debug)]
pub(super) enum Slot {
    /// The reply has not arrived.
    Pending,
    Arrived(Reply),
    Taken,
}
