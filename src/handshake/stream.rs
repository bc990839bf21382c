//! The connections of clients as streams of bytes.

use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A client's connection: a plain socket or a TLS stream.
pub trait ClientStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream for S {}

/// The address of a client in the log. `None`: it is connected to a Unix socket.
pub(crate) fn log_name(address: Option<impl Display>) -> String {
    address.map_or_else(|| "a Unix socket".to_owned(), |address| address.to_string())
}

/// A connection with bytes that were read in advance and precede those of the socket.
pub(super) struct PrefixedStream {
    pub(super) prefix: BytesMut,
    pub(super) socket: Box<dyn ClientStream>,
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
