//! The socket of a connection to a server: plain or with TLS.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::connection_error::ConnectionError;
use super::tls::{self, TlsSocket};
use crate::metrics::ConnectFailure;
use crate::net::Duplex;

/// How a TLS record with an alert begins, in every version since SSL 3.
const TLS_ALERT: &[u8] = &[21, 3];
/// memcached's reply to every command but `set` before the password.
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";

/// A connection's socket. With TLS, what is written must be flushed.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsSocket>),
    /// One end of a connection in `tests/fleet`.
    Simulated(Box<dyn Duplex>),
}

impl Socket {
    /// Whether its TLS session is one of an earlier connection; `None` without TLS.
    pub(super) fn resumed(&self) -> Option<bool> {
        match self {
            Socket::Tls(socket) => Some(socket.resumed()),
            Socket::Tcp(_) | Socket::Unix(_) | Socket::Simulated(_) => None,
        }
    }

    /// Writes commands, and sends them.
    pub(crate) async fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        self.write_all(commands).await?;
        self.flush().await
    }

    /// Sends the first command of a connection, and reads the beginning of the reply into `input`, which is empty. What a server
    /// does here shows whether it and the pool agree on TLS and passwords.
    pub(super) async fn first_reply(
        &mut self,
        command: &[u8],
        input: &mut BytesMut,
    ) -> Result<(), ConnectionError> {
        let sent = self.send(command).await;
        // A server that refuses a client's certificate says so, and closes the connection before the command arrives.
        let read = match (self.read_buf(input).await, sent) {
            (Ok(0), Err(error)) => Err(error),
            (read, _) => read,
        };
        match read {
            Ok(0) => Err(self.closed_first(ConnectionError::Closed)),
            Ok(_) => self.check_first(input),
            Err(error) if tls::is_alert(&error) => Err(self.failed(&error)),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    Err(self.closed_first(ConnectionError::Io(error)))
                }
                _ => Err(ConnectionError::Io(error)),
            },
        }
    }

    fn failed(&self, error: &io::Error) -> ConnectionError {
        match self {
            Socket::Tls(socket) => socket.failed(error),
            _ => ConnectionError::Closed,
        }
    }

    fn closed_first(&self, error: ConnectionError) -> ConnectionError {
        let what = match self {
            Socket::Unix(_) | Socket::Simulated(_) => return error,
            Socket::Tcp(_) => {
                "the server closed the connection at the first command: if it requires TLS, set tls for the pool"
                    .to_owned()
            }
            Socket::Tls(socket) => format!(
                "the server closed the connection after the TLS handshake: if it requires a client certificate, {}",
                socket.certificate_hint()
            ),
        };
        ConnectionError::insecure(ConnectFailure::Closed, what)
    }

    fn check_first(&self, input: &[u8]) -> Result<(), ConnectionError> {
        if !matches!(self, Socket::Tls(_)) && input.starts_with(TLS_ALERT) {
            let what = "the server requires TLS: set tls for the pool";
            return Err(ConnectionError::insecure(ConnectFailure::TlsRequired, what));
        }
        if input.starts_with(UNAUTHENTICATED) {
            let what = "the server requires a user and a password: set auth for the pool";
            return Err(ConnectionError::insecure(ConnectFailure::PasswordRequired, what));
        }
        Ok(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(cx, into),
            Socket::Unix(socket) => Pin::new(socket).poll_read(cx, into),
            Socket::Tls(socket) => Pin::new(&mut **socket).poll_read(cx, into),
            Socket::Simulated(socket) => Pin::new(socket).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(cx, from),
            Socket::Unix(socket) => Pin::new(socket).poll_write(cx, from),
            Socket::Tls(socket) => Pin::new(&mut **socket).poll_write(cx, from),
            Socket::Simulated(socket) => Pin::new(socket).poll_write(cx, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // Nothing is buffered here.
            Socket::Tcp(_) | Socket::Unix(_) | Socket::Simulated(_) => Poll::Ready(Ok(())),
            Socket::Tls(socket) => Pin::new(&mut **socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
            Socket::Tls(socket) => Pin::new(&mut **socket).poll_shutdown(cx),
            Socket::Simulated(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
