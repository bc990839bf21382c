//! What is still to be written to a client: small answers side by side in one buffer, large ones as they came.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

/// How many pieces go in one call.
const PIECES: usize = 16;

/// So many bytes before a large answer are copied.
const FEW: usize = 512;

/// Answers in order.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    /// Stand before `text`. None is empty.
    pieces: VecDeque<Bytes>,
    /// How many bytes these have.
    ahead: usize,
    /// Where small answers are appended.
    pub(super) text: BytesMut,
}

impl WriteQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.text.is_empty()
    }

    /// How many bytes are to be written.
    pub(super) fn len(&self) -> usize {
        self.ahead + self.text.len()
    }

    pub(super) fn clear(&mut self) {
        *self = WriteQueue::default();
    }

    /// Appends a large answer. `keep` is told of the text that now stands before it, and may wrap it.
    pub(super) fn hand_on(&mut self, answer: Bytes, keep: impl FnOnce(Bytes) -> Bytes) {
        if !self.text.is_empty() {
            self.ahead += self.text.len();
            // A few words are copied, so that the buffer stays for more.
            let before = match self.text.len() {
                ..FEW => Bytes::copy_from_slice(&self.text),
                _ => std::mem::take(&mut self.text).freeze(),
            };
            self.text.clear();
            self.pieces.push_back(keep(before));
        }
        self.ahead += answer.len();
        self.pieces.push_back(answer);
    }

    /// Writes what the socket takes in one call: so many bytes of it.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let socket = Pin::new(socket);
        let written = if self.pieces.is_empty() {
            socket.poll_write(cx, &self.text)
        } else {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let pieces = self.pieces.iter().map(|piece| &piece[..]).chain([&self.text[..]]);
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
            (length, self.ahead) = (length - taken, self.ahead - taken);
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.text.advance(length);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn what_is_written_is_what_was_appended_however_little_the_socket_takes() {
        for room in [1, 3, 7, 100, 10_000] {
            let (mut near, mut far) = tokio::io::duplex(room);
            let mut outbox = WriteQueue::default();
            let mut wanted = Vec::new();
            for n in 0..40u8 {
                outbox.text.extend_from_slice(&[n; 5]);
                wanted.extend_from_slice(&[n; 5]);
                if n % 3 != 0 {
                    outbox.hand_on(Bytes::from(vec![n; 50]), |text| text);
                    wanted.extend_from_slice(&[n; 50]);
                }
            }
            assert_eq!(outbox.len(), wanted.len());
            let mut cx = Context::from_waker(Waker::noop());
            let mut read = Vec::new();
            while !outbox.is_empty() {
                let before = outbox.len();
                match outbox.poll_write(&mut near, &mut cx) {
                    Poll::Ready(length) => assert_eq!(outbox.len() + length.unwrap(), before),
                    Poll::Pending => {
                        assert!(std::pin::pin!(far.read_buf(&mut read)).poll(&mut cx).is_ready());
                    }
                }
            }
            drop(near);
            while let Poll::Ready(Ok(1..)) = std::pin::pin!(far.read_buf(&mut read)).poll(&mut cx) {}
            assert!(read == wanted, "{room}");
            assert_eq!(outbox.len(), 0);
        }
    }
}
