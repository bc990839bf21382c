//! Serves one client: reads requests, passes them to the proxy, and writes the replies in order.
//!
//! ```text
//!  socket ──▶ input ──parse──▶ calls ──(front first)──▶ output ──▶ socket
//! ```
//!
//! The stages of a request, in order: `io` reads from the socket, `requests` parses the input and begins a call for each request,
//! `calls` polls the calls and appends their replies to the `write_queue`, and `io` writes that to the socket. `state` holds the
//! connection's state and limits.
//!
//! Everything that a client can make pile up has a limit. Above it, the client's input is not read until the client has read
//! its replies. The number of requests in flight depends on the size of the client's recent values. The memory budget
//! (`upstream/memory_budget.rs`) covers the case that values suddenly become larger: its limit is strict.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::guard::leases::Owner;
use crate::metrics::LeaseEnd;
use crate::proxy::connection_use::ListenerClients;
use crate::proxy::{Client, Proxy};
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pending_replies::PendingReplies;
use state::{MAX_OUTPUT, READ_SIZE, Session, State};
use write_queue::WriteQueue;

mod io;
mod requests;
mod calls;
mod write_queue;
mod state;

pub use state::{ClientProtocol, PendingCall};

/// How long a client may take to read the last reply and to close the connection after Kennel has ended it.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a client until the connection is closed, by either side, or `drain` is cancelled. The client's leases are released
/// before this returns. The result is the protocol that the client used.
pub async fn serve<S>(
    socket: S,
    owner: Owner,
    clients: Arc<ListenerClients>,
    proxy: Rc<Proxy>,
    budget: &Rc<MemoryBudget>,
    queue_pool: &QueuePool<PendingCall>,
    drain: &CancellationToken,
) -> ClientProtocol
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let client = Client::new(owner, PendingReplies::for_client(budget, owner.connection), clients);
    let mut session = Session::new(socket, client, proxy, Rc::clone(budget), queue_pool, drain);
    let mut drained = std::pin::pin!(drain.cancelled());
    poll_fn(|cx| session.poll(&mut drained, cx)).await;
    let closed_by_us = session.state == State::Finishing && !session.eof;
    // A request still in flight may win a lease, which must be released too.
    poll_fn(|cx| session.poll_abandoned(cx)).await;
    let end = if drain.is_cancelled() { LeaseEnd::Shutdown } else { LeaseEnd::Disconnected };
    if session.client.was_told_a_miss() {
        session.proxy.clone().disconnect(owner, end).await;
    }
    // This fails if the client has closed the connection already.
    let _ = session.socket.shutdown().await;
    // If unread input were left when the socket is closed, the connection would be reset and the last reply lost.
    if closed_by_us && !drain.is_cancelled() {
        let _ = timeout(LINGER, session.discard_input()).await;
    }
    session.protocol.unwrap_or(ClientProtocol::Text)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    /// Runs all stages until none can make progress. Ready once the connection must be closed.
    fn poll(
        &mut self,
        drained: &mut Pin<&mut WaitForCancellationFuture<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // After the drain begins, no more input is read, and the input read so far is processed. The future must be polled once
        // to wake the task.
        if !std::mem::replace(&mut self.polled_drain, true) {
            self.eof |= drained.as_mut().poll(cx).is_ready();
        }
        self.eof |= self.drain.is_cancelled();
        self.socket_empty = false;
        loop {
            self.client.pending.wake_on_next(cx);
            if self.client.pending.closing().is_some() {
                self.state = State::Gone;
            }
            self.poll_calls(cx);
            let read = self.poll_read(cx);
            let was_complete = self.missing == 0;
            if self.parse() {
                self.client.pending.note_activity();
                continue;
            }
            // Reading stopped because the input held a complete request. Now it holds an incomplete one.
            if was_complete && self.missing > 0 {
                continue;
            }
            let output_full = self.output.len() >= MAX_OUTPUT;
            let written = self.poll_write(cx);
            // Writing may have made room for replies or requests that had to wait.
            let made_room = written && (output_full || self.at_limit || !self.socket_empty);
            match self.state {
                State::Gone => return Poll::Ready(()),
                State::Finishing if self.calls.is_empty() && self.output.is_empty() && self.flushed => {
                    return Poll::Ready(());
                }
                _ if !read && !made_room => {
                    self.rest();
                    return Poll::Pending;
                }
                _ => {}
            }
        }
    }

    /// Returns unused buffers to their pools before the task sleeps, and updates the client's account of bytes held.
    fn rest(&mut self) {
        for buffer in [&mut self.input, &mut self.output.tail] {
            if buffer.is_empty() && buffer.capacity() > 0 {
                self.budget.give_back(std::mem::take(buffer));
            }
        }
        self.queue_pool.take_back(&mut self.calls);
        let pending = &self.client.pending;
        pending.rest();
        // A complete request that has not begun is waiting too.
        let waits = !self.calls.is_empty() || (self.missing == 0 && !self.input.is_empty());
        pending.is_busy(waits && self.output.is_empty());
        pending.holds(
            self.request_bytes + self.input.len() + self.output.tail.len() + self.client.misses_bytes(),
        );
    }

    /// Reads and discards input until the client closes the connection.
    async fn discard_input(&mut self) {
        self.input.reserve(READ_SIZE);
        while self.socket.read_buf(&mut self.input).await.is_ok_and(|read| read > 0) {
            self.input.clear();
        }
    }

    /// Finishes the active calls of a client that has gone, and discards their replies.
    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.state = State::Gone;
        self.calls.retain(|pending| pending.call.is_active());
        (self.input, self.output) = (BytesMut::new(), WriteQueue::default());
        self.client.pending.wake_on_next(cx);
        self.poll_calls(cx);
        self.output.clear();
        if self.calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}
