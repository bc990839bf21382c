//! Why the sidecar cannot start, or cannot use another configuration.

use std::fmt;
use std::io;

use crate::listener::BindError;
use crate::pem::BadFile;

/// Why Kennel cannot start.
#[derive(Debug)]
pub enum StartError {
    /// A listener cannot be bound.
    Bind(BindError),
    /// The system refused a thread or a socket.
    Io(io::Error),
    /// The limit on open files is too low.
    OpenFiles(String),
    /// Certificates or the password of this pool cannot be loaded.
    Files(String, Vec<BadFile>),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(error) => error.fmt(f),
            StartError::Io(error) => write!(f, "cannot start: {error}"),
            StartError::OpenFiles(why) => write!(f, "cannot start: {why}"),
            StartError::Files(pool, bad) => {
                let all: Vec<String> = bad.iter().map(BadFile::to_string).collect();
                write!(f, "pools.{pool}: {}", all.join("; "))
            }
        }
    }
}

impl std::error::Error for StartError {}

impl From<BindError> for StartError {
    fn from(error: BindError) -> Self {
        StartError::Bind(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        StartError::Io(error)
    }
}
