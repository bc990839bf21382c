//! TCP and Unix sockets behind one type.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use mio::event::Source;
use mio::{Interest, Registry, Token};

/// Timeout of a blocking socket.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    pub(crate) fn loopback(port: u16) -> Address {
        Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// `None`: a Unix socket.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Address::Tcp(address) => Some(address.port()),
            Address::Unix(_) => None,
        }
    }

    /// Opens a blocking connection.
    pub(crate) fn connect(&self) -> io::Result<Socket> {
        match self {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Ok(Socket::Tcp(stream))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Ok(Socket::Unix(stream))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A blocking socket, for what is not measured.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Converts it for use with a poll.
    pub(crate) fn watched(self) -> io::Result<Watched> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Watched::Tcp(mio::net::TcpStream::from_std(stream)))
            }
            Socket::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Watched::Unix(mio::net::UnixStream::from_std(stream)))
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A non-blocking socket.
#[derive(Debug)]
pub(crate) enum Watched {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

impl Watched {
    /// Registers it with the poll.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Watched::Tcp(stream) => stream.register(registry, token, both),
            Watched::Unix(stream) => stream.register(registry, token, both),
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Watched::Tcp(stream) => stream.read(buffer),
            Watched::Unix(stream) => stream.read(buffer),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Watched::Tcp(stream) => stream.write(bytes),
            Watched::Unix(stream) => stream.write(bytes),
        }
    }
}
