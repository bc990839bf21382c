//! Why the sidecar cannot start, or cannot use another configuration.

use std::fmt;
use std::io;
use std::path::PathBuf;

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
    /// The process with this control socket does not hand over.
    Takeover(PathBuf, io::Error),
    /// The configuration has no control socket.
    NoControl,
    /// The service manager has bound sockets that the configuration does not have.
    Unused(Vec<String>),
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
            StartError::Takeover(path, error) => {
                write!(f, "cannot take over from the process at {}: {error}; it goes on serving", path.display())
            }
            StartError::NoControl => f.write_str(
                "cannot take over: admin.control names no control socket, and systemd has made no runtime directory for one",
            ),
            StartError::Unused(addresses) => write!(
                f,
                "cannot start: systemd passed sockets for {}, which are not in listen.tcp, listen.unix or admin.listen: add them \
                 there, or remove them from the socket unit",
                addresses.join(", ")
            ),
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
