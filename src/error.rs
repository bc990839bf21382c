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
}

impl Failure {
    /// What a client is told, behind `SERVER_ERROR `.
    pub fn reason(self) -> &'static str {
        match self {
            Failure::Down => "server is down",
            Failure::TimedOut => "server timed out",
            Failure::Refused => "server refused",
            Failure::Overloaded => "server is overloaded",
        }
    }
}
