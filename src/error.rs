//! Failures of a server, and the `SERVER_ERROR` lines that clients receive for them. Errors of the client (`ERROR`,
//! `CLIENT_ERROR`) come from the parser.

/// The reason why there is no usable reply of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// There is no connection to the server.
    Down,
    /// The server did not reply within `request_timeout`.
    TimedOut,
    /// The server sent an error or an invalid reply.
    Refused,
    /// The server has no memory for what must be stored.
    NoMemory,
    /// The server lost an item between two steps of the command.
    Lost,
    /// What is stored under the key has not the form in which Kennel stores it.
    Foreign,
    /// Too many commands are waiting for the server already.
    Overloaded,
    /// The server lacks a feature that the guard needs, so no guarded command is sent to it.
    Unguarded,
    /// The fleet is about to decide, or has decided during the operation, which server has the key.
    NoView,
    /// The answer would be larger than an item may be.
    TooLarge,
}

impl Failure {
    /// The line sent to the client, with its CRLF.
    pub fn line(self) -> &'static [u8] {
        match self {
            Failure::Down => b"SERVER_ERROR server is down\r\n",
            Failure::TimedOut => b"SERVER_ERROR server timed out\r\n",
            Failure::Refused => b"SERVER_ERROR server refused\r\n",
            Failure::NoMemory => b"SERVER_ERROR out of memory storing object\r\n",
            Failure::Lost => b"SERVER_ERROR the server lost an item during this command\r\n",
            Failure::Foreign => b"SERVER_ERROR the item of this key was stored past Kennel\r\n",
            Failure::Overloaded => b"SERVER_ERROR server is overloaded\r\n",
            Failure::NoView => b"SERVER_ERROR the server of this key is being replaced\r\n",
            Failure::TooLarge => b"SERVER_ERROR the answer is larger than 1 MiB: ask for a part of it\r\n",
            Failure::Unguarded => {
                b"SERVER_ERROR server cannot guard keys: run kennel check --connect for the reason\r\n"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn each_failure_says_what_has_happened() {
        for (failure, text) in [
            (Failure::Down, "SERVER_ERROR server is down\r\n"),
            (Failure::TimedOut, "SERVER_ERROR server timed out\r\n"),
            (Failure::Overloaded, "SERVER_ERROR server is overloaded\r\n"),
            (Failure::Lost, "SERVER_ERROR the server lost an item during this command\r\n"),
            (Failure::Foreign, "SERVER_ERROR the item of this key was stored past Kennel\r\n"),
        ] {
            assert_eq!(failure.line(), text.as_bytes());
        }
    }
}
