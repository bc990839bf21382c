//! Replies to be written to a client: small ones together in one buffer, large ones as they were received.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

/// The most pieces of one vectored write.
const PIECES: usize = 16;

/// If the buffer has fewer bytes than this, they are copied out of it when a large reply follows.
const FEW: usize = 512;

/// Bytes to be written, in order: `pieces`, then `tail`.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    /// Large replies, and the bytes between them. None is empty.
    pieces: VecDeque<Bytes>,
    /// The total length of `pieces` in bytes.
    pieces_len: usize,
    /// Small replies are appended here.
    pub(super) tail: BytesMut,
}

impl WriteQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.is_empty()
    }

    /// The number of bytes to be written.
    pub(super) fn len(&self) -> usize {
        self.pieces_len + self.tail.len()
    }

    pub(super) fn clear(&mut self) {
        *self = WriteQueue::default();
    }

    /// Appends a large reply without copying it. The bytes of `tail` before it become a piece of their own, which `keep` may
    /// wrap.
    pub(super) fn push_large(&mut self, reply: Bytes, keep: impl FnOnce(Bytes) -> Bytes) {
        if !self.tail.is_empty() {
            self.pieces_len += self.tail.len();
            // A few bytes are copied, so that the buffer can be used again.
            let before = match self.tail.len() {
                ..FEW => Bytes::copy_from_slice(&self.tail),
                _ => std::mem::take(&mut self.tail).freeze(),
            };
            self.tail.clear();
            self.pieces.push_back(keep(before));
        }
        self.pieces_len += reply.len();
        self.pieces.push_back(reply);
    }

    /// Writes to the socket once and removes the bytes written. Returns their number.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let socket = Pin::new(socket);
        let written = if self.pieces.is_empty() {
            socket.poll_write(cx, &self.tail)
        } else {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let pieces = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]);
            slices.iter_mut().zip(pieces).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
            socket.poll_write_vectored(cx, &slices[..PIECES.min(self.pieces.len() + 1)])
        };
        if let Poll::Ready(Ok(length)) = written {
            self.advance(length);
        }
        written
    }

    fn advance(&mut self, mut length: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let taken = length.min(piece.len());
            piece.advance(taken);
            (length, self.pieces_len) = (length - taken, self.pieces_len - taken);
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.tail.advance(length);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn bytes_are_written_in_order_however_few_the_socket_accepts() {
        for room in [1, 3, 7, 100, 10_000] {
            let (mut near, mut far) = tokio::io::duplex(room);
            let mut queue = WriteQueue::default();
            let mut wanted = Vec::new();
            for n in 0..40u8 {
                queue.tail.extend_from_slice(&[n; 5]);
                wanted.extend_from_slice(&[n; 5]);
                if n % 3 != 0 {
                    queue.push_large(Bytes::from(vec![n; 50]), |text| text);
                    wanted.extend_from_slice(&[n; 50]);
                }
            }
            assert_eq!(queue.len(), wanted.len());
            let mut cx = Context::from_waker(Waker::noop());
            let mut read = Vec::new();
            while !queue.is_empty() {
                let before = queue.len();
                match queue.poll_write(&mut near, &mut cx) {
                    Poll::Ready(length) => assert_eq!(queue.len() + length.unwrap(), before),
                    Poll::Pending => {
                        assert!(std::pin::pin!(far.read_buf(&mut read)).poll(&mut cx).is_ready());
                    }
                }
            }
            drop(near);
            while let Poll::Ready(Ok(1..)) = std::pin::pin!(far.read_buf(&mut read)).poll(&mut cx) {}
            assert!(read == wanted, "{room}");
            assert_eq!(queue.len(), 0);
        }
    }
}
