//! What can go wrong, by blame: the client's fault is the parser's to tell (`ERROR`, `CLIENT_ERROR`), a server's is here
//! (`SERVER_ERROR`).

/// Why a server gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// There is no connection to it.
    Down,
    /// It did not answer within `request_timeout`.
    TimedOut,
    /// It said something it should not, or refused to serve.
    Refused,
    /// Too much is waiting for it already.
    Overloaded,
    /// It cannot do what the guard needs, so nothing that the guard would say is sent to it.
    Unguarded,
}

impl Failure {
    /// The line that a client is told.
    pub fn line(self) -> &'static [u8] {
        match self {
            Failure::Down => b"SERVER_ERROR server is down\r\n",
            Failure::TimedOut => b"SERVER_ERROR server timed out\r\n",
            Failure::Refused => b"SERVER_ERROR server refused\r\n",
            Failure::Overloaded => b"SERVER_ERROR server is overloaded\r\n",
            Failure::Unguarded => {
                b"SERVER_ERROR server cannot guard keys: kennel check --connect says why\r\n"
            }
        }
    }
}
