//! Reads from the client's socket and writes to it.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::state::{MAX_OUTPUT, READ_SIZE, Session, State};
use crate::metrics::Limit;

/// With more input than this that has not been parsed, no more is read, unless all of it is one incomplete request.
const MAX_INPUT: usize = 64 * 1024;

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    /// Reads once, unless a limit prevents it. Returns whether anything happened: bytes, the end of input or an error.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        if self.eof || self.state != State::Open {
            return false;
        }
        let throttled = !self.has_room();
        if throttled && !self.throttled {
            let output_full = self.output.len() >= MAX_OUTPUT;
            self.proxy.metrics().limit_reached(if output_full {
                Limit::UnreadReplies
            } else {
                Limit::Requests
            });
        }
        self.throttled = throttled;
        let enough = self.missing == 0 && self.input.len() >= MAX_INPUT;
        if throttled || enough || self.socket_empty {
            return false;
        }
        self.reserve_input(self.missing.max(READ_SIZE));
        match poll_read_buf(Pin::new(&mut self.socket), cx, &mut self.input) {
            Poll::Pending => {
                self.socket_empty = true;
                false
            }
            Poll::Ready(Ok(0)) => {
                self.eof = true;
                self.client.note_hang_up();
                true
            }
            Poll::Ready(Ok(read)) => {
                self.proxy.metrics().bytes_read(read);
                true
            }
            Poll::Ready(Err(_)) => {
                self.state = State::Gone;
                self.client.note_hang_up();
                true
            }
        }
    }

    /// Makes room for at least `room` bytes in the input buffer.
    fn reserve_input(&mut self, room: usize) {
        if self.input.try_reclaim(room) {
            return;
        }
        // The capacity at least doubles, so that few bytes are copied.
        let length = self.input.len();
        let mut larger = self.budget.take_buffer((length + room).max(2 * length));
        larger.extend_from_slice(&self.input);
        self.budget.give_back(std::mem::replace(&mut self.input, larger));
    }

    /// Notes that the client has not read all replies, or logs how long it has not if it has done so now.
    #[cold]
    pub(super) fn note_unread(&mut self) {
        let now = Instant::now();
        self.client.note_unread(now);
        let since = *self.unread_since.get_or_insert(now);
        if self.output.is_empty() || self.state == State::Gone {
            self.unread_since = None;
            self.proxy.log_unread(&self.client, now - since, now, self.large_read.take());
        }
    }

    /// Writes and flushes as much as the socket accepts. Returns whether any bytes were written.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut written = false;
        while !self.output.is_empty() && self.state != State::Gone {
            match self.output.poll_write(&mut self.socket, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => self.state = State::Gone,
                Poll::Ready(Ok(length)) => {
                    self.proxy.metrics().bytes_written(length);
                    self.client.pending.note_activity();
                    written = true;
                }
            }
        }
        // A TLS stream may have accepted bytes that are not sent yet.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.flushed = flushed.is_ready();
        if let Poll::Ready(Err(_)) = flushed {
            self.state = State::Gone;
        }
        written
    }
}
