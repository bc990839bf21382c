//! Why there is no connection to a server, or why it ended.

use std::fmt;
use std::io::{self, ErrorKind};

use crate::metrics::ConnectFailure;

/// Why a connection ended, or was not made. Its text is for the log: it says what to do where the configuration of the pool or of
/// the server is at fault, and never contains a password.
#[derive(Debug)]
pub enum ConnectionError {
    /// Nobody listens at the address, there is no route to it, or its host name cannot be resolved.
    Unreachable(io::Error),
    /// Reading or writing has failed.
    Io(io::Error),
    /// The server closed it.
    Closed,
    /// The server closed it, or something in between did, while no command was on the way: none can have been lost.
    Idle,
    /// The server sent something that is no valid reply.
    Garbage(&'static str),
    /// The server stopped responding.
    Stalled,
    /// The server and the pool's `tls` or `auth` do not fit together.
    Insecure {
        /// The kind of failure.
        reason: ConnectFailure,
        /// What is wrong, and what to do.
        what: String,
    },
}

impl ConnectionError {
    pub(super) fn insecure(reason: ConnectFailure, what: impl Into<String>) -> ConnectionError {
        ConnectionError::Insecure { reason, what: what.into() }
    }

    pub(super) fn timed_out() -> ConnectionError {
        ConnectionError::Io(ErrorKind::TimedOut.into())
    }

    /// The kind of failure, if this ended an attempt to connect.
    pub fn reason(&self) -> ConnectFailure {
        match self {
            ConnectionError::Unreachable(_) => ConnectFailure::Unreachable,
            ConnectionError::Io(error) if error.kind() == ErrorKind::TimedOut => ConnectFailure::Timeout,
            ConnectionError::Io(_) | ConnectionError::Closed | ConnectionError::Idle => {
                ConnectFailure::Closed
            }
            ConnectionError::Garbage(_) => ConnectFailure::Garbage,
            ConnectionError::Stalled => ConnectFailure::Timeout,
            ConnectionError::Insecure { reason, .. } => *reason,
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionError::Unreachable(error) | ConnectionError::Io(error) => error.fmt(f),
            ConnectionError::Idle => f.write_str("the idle connection was closed"),
            ConnectionError::Closed => f.write_str("the server closed the connection"),
            ConnectionError::Garbage(what) => write!(f, "the server sent {what}"),
            ConnectionError::Stalled => f.write_str("the server stopped responding"),
            ConnectionError::Insecure { what, .. } => f.write_str(what),
        }
    }
}
