//! The connections of clients as streams of bytes.

use std::fmt::Display;
use std::io;
use std::net;
use std::os::unix;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::net::Duplex;

/// A client's connection: a plain socket or a TLS stream.
pub trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Whether it is a plain socket, with no byte that was read and not used. Only then another process can go on with it.
    fn is_plain(&self) -> bool {
        false
    }

    /// The plain socket, or the error why it cannot be taken from the runtime. `None` if it is none.
    fn into_plain(self: Box<Self>) -> Option<io::Result<PlainSocket>> {
        None
    }
}

/// The socket of a client, non-blocking, outside of a runtime.
#[derive(Debug)]
pub enum PlainSocket {
    /// Over TCP.
    Tcp(net::TcpStream),
    /// To a Unix socket.
    Unix(unix::net::UnixStream),
}

impl ClientStream for TcpStream {
    fn is_plain(&self) -> bool {
        true
    }

    fn into_plain(self: Box<Self>) -> Option<io::Result<PlainSocket>> {
        Some(self.into_std().map(PlainSocket::Tcp))
    }
}

impl ClientStream for UnixStream {
    fn is_plain(&self) -> bool {
        true
    }

    fn into_plain(self: Box<Self>) -> Option<io::Result<PlainSocket>> {
        Some(self.into_std().map(PlainSocket::Unix))
    }
}

impl ClientStream for Box<dyn ClientStream> {
    fn is_plain(&self) -> bool {
        (**self).is_plain()
    }

    fn into_plain(self: Box<Self>) -> Option<io::Result<PlainSocket>> {
        (*self).into_plain()
    }
}

/// A client of a simulation.
pub(crate) struct SimulatedClient(pub(crate) Box<dyn Duplex>);

impl ClientStream for SimulatedClient {}

impl AsyncRead for SimulatedClient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for SimulatedClient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The session borrows the connection.
impl<S: ClientStream> ClientStream for &mut S {
    fn is_plain(&self) -> bool {
        (**self).is_plain()
    }
}

/// The address of a client in the log. `None`: it is connected to a Unix socket.
pub(crate) fn log_name(address: Option<impl Display>) -> String {
    address.map_or_else(|| "a Unix socket".to_owned(), |address| address.to_string())
}

/// A connection with bytes that were read in advance and precede those of the socket.
pub(super) struct PrefixedStream {
    pub(super) prefix: BytesMut,
    pub(super) socket: Box<dyn ClientStream>,
}

impl ClientStream for PrefixedStream {
    fn is_plain(&self) -> bool {
        self.prefix.is_empty() && self.socket.is_plain()
    }

    fn into_plain(self: Box<Self>) -> Option<io::Result<PlainSocket>> {
        if self.is_plain() { self.socket.into_plain() } else { None }
    }
}

impl AsyncRead for PrefixedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, into);
        }
        let length = self.prefix.len().min(into.remaining());
        into.put_slice(&self.prefix[..length]);
        self.prefix.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
