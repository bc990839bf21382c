//! Serves one client: reads requests, passes them to the proxy, and writes the replies in order.
//!
//! ```text
//!  socket ──▶ input ──parse──▶ calls ──(front first)──▶ output ──▶ socket
//! ```
//!
//! The stages of a request, in order: `io` reads from the socket; this file parses the input and begins a call for each request;
//! `calls` polls the calls and appends their replies to the `write_queue`; and `io` writes that to the socket. `state` holds the
//! connection's state and limits.
//!
//! Everything that a client can make pile up has a limit. Above it, the client's input is not read until the client has read
//! its replies. The number of requests in flight depends on the size of the client's recent values. The memory budget
//! (`upstream/memory_budget.rs`) covers the case that values suddenly become larger: its limit is strict.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::auth::Sasl;
use crate::guard::leases::Owner;
use crate::handshake::ClientStream;
use crate::metrics::{LeaseEnd, Limit};
use crate::protocol;
use crate::protocol::binary::parse::Access;
use crate::protocol::long_get::{LongGet, Part};
use crate::protocol::parse::parse;
use crate::protocol::request::{Parsed, Refused, Request};
use crate::proxy::connection_use::ListenerClients;
use crate::proxy::{AccessSet, Call, Client, Current, InFlight, Leaving, MovedMiss};
use crate::trace::Peer;
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pending_replies::PendingReplies;
use state::{COMPARED, MAX_OUTPUT, READ_SIZE, Session, State, look_again};
use write_queue::WriteQueue;

mod io;
mod binary;
mod calls;
mod write_queue;
mod state;

pub use state::{ClientProtocol, PendingCall};

/// The most keys of one part of a get. A get for more keys is processed in parts.
const MAX_PART: usize = 128;
/// A request of at least this many bytes does not begin while a server is slow to accept what is sent to it.
const LARGE_REQUEST: usize = 16 * 1024;
/// How long a client may take to read the last reply and to close the connection after Kennel has ended it.
const LINGER: Duration = Duration::from_secs(1);

/// A client whose session begins.
pub struct NewClient {
    /// Identifies the connection and its process.
    pub owner: Owner,
    /// Where it is connected from.
    pub peer: Peer,
    /// How the clients of its listener use their connections.
    pub listener: Arc<ListenerClients>,
    /// The protocol that it has begun to speak. `None`: its first byte decides.
    pub protocol: Option<ClientProtocol>,
    /// What its authentication has left, if it speaks the binary protocol on a listener with passwords.
    pub sasl: Option<Sasl>,
    /// The misses that another process knows of this connection.
    pub misses: Vec<MovedMiss>,
}

/// How a session ends.
pub enum End {
    /// The connection is closed.
    Closed,
    /// The connection is open, between two requests, and moves to another process.
    Leaves {
        /// The protocol that it has begun to speak.
        protocol: Option<ClientProtocol>,
        /// What it has missed.
        misses: Vec<MovedMiss>,
    },
}

/// The result of one step of the parser.
enum Progress {
    /// A call has begun.
    Begun,
    /// Something else was parsed: the parser must run again.
    Continue,
    /// The request at the front must wait for an earlier one.
    Blocked,
    /// At least this many bytes are missing.
    Incomplete { at_least: usize },
}

/// Serves a client until the connection is closed, by either side, `drain` is cancelled, or the client moves to another process.
/// Its leases are released before this returns.
pub async fn serve<S: ClientStream>(
    socket: &mut S,
    client: NewClient,
    current: &Current,
    budget: &Rc<MemoryBudget>,
    queue_pool: &QueuePool<PendingCall>,
    drain: &CancellationToken,
) -> End {
    let NewClient { owner, peer, listener, protocol, sasl, misses } = client;
    let client = Client::new((owner, peer), PendingReplies::for_client(budget, owner.connection), listener);
    client.add_misses(&misses, &current.proxy());
    let mut session = Session::new(socket, client, current, Rc::clone(budget), queue_pool, drain);
    if let Some(protocol) = protocol {
        session.begin_protocol(protocol);
    }
    session.sasl = sasl;
    let mut drained = std::pin::pin!(drain.cancelled());
    poll_fn(|cx| session.poll(&mut drained, cx)).await;
    if session.state == State::Leaving {
        let moved = session.client.moved_misses(&session.proxy).unwrap_or_default();
        if session.client.has_missed() {
            current.proxy().disconnect(owner, LeaseEnd::Shutdown).await;
        }
        session.client.leave_process(&session.proxy);
        return End::Leaves { protocol: session.protocol, misses: moved };
    }
    let closed_by_us = session.state == State::Finishing && !session.eof;
    // A request still in flight may win a lease, which must be released too.
    poll_fn(|cx| session.poll_abandoned(cx)).await;
    let end = if drain.is_cancelled() { LeaseEnd::Shutdown } else { LeaseEnd::Disconnected };
    if session.client.has_missed() {
        current.proxy().disconnect(owner, end).await;
    }
    session.client.leave_process(&session.proxy);
    session.client.release_locks().await;
    // This fails if the client has closed the connection already.
    let _ = session.socket.shutdown().await;
    // If unread input were left when the socket is closed, the connection would be reset and the last reply lost.
    if closed_by_us && !drain.is_cancelled() {
        let _ = timeout(LINGER, session.discard_input()).await;
    }
    End::Closed
}

impl<S: ClientStream> Session<'_, S> {
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
            // A client without a request in flight must not keep a former configuration in use.
            self.is_current();
            let read = self.poll_read(cx);
            let was_complete = self.missing == 0;
            if self.parse() {
                self.client.pending.note_activity();
                continue;
            }
            if let Some(held) = &mut self.held
                && held.as_mut().poll(cx).is_ready()
            {
                self.held = None;
                continue;
            }
            // Reading stopped because the input held a complete request. Now it holds an incomplete one.
            if was_complete && self.missing > 0 {
                continue;
            }
            let output_full = self.output.len() >= MAX_OUTPUT;
            let written = self.poll_write(cx);
            if !self.output.is_empty() || self.unread_since.is_some() {
                self.note_unread();
            }
            // Writing may have made room for replies or requests that had to wait.
            let made_room = written && (output_full || self.at_limit || !self.socket_empty);
            match self.state {
                State::Gone => return Poll::Ready(()),
                State::Finishing if self.calls.is_empty() && self.output.is_empty() && self.flushed => {
                    return Poll::Ready(());
                }
                _ if !read && !made_room => {
                    if self.leaves() {
                        self.state = State::Leaving;
                        self.release_unused();
                        return Poll::Ready(());
                    }
                    self.release_unused();
                    return Poll::Pending;
                }
                _ => {}
            }
        }
    }

    /// Whether the client moves to another process now: it is between two requests, nothing of it has been read or is to be written,
    /// and what is known of it can move with it. Another process cannot go on with an authentication in progress.
    fn leaves(&self) -> bool {
        let leaving = self.current.leaving();
        leaving != Leaving::No
            && self.state == State::Open
            && !self.eof
            && self.calls.is_empty()
            && self.input.is_empty()
            && self.skip_data == 0
            && self.long_get.is_none()
            && (leaving == Leaving::Now || !self.in_sequence)
            && self.sasl.as_ref().is_none_or(|sasl| sasl.access() == Access::Authenticated)
            && self.output.is_empty()
            && self.flushed
            && self.socket.is_plain()
            // This process renews them.
            && !self.client.has_locks()
            && (leaving == Leaving::Now || !self.client.awaits_fill(&self.proxy))
            && self.client.moved_misses(&self.proxy).is_some()
    }

    /// Returns unused buffers to their pools before the task sleeps, and updates the client's account of bytes held.
    fn release_unused(&mut self) {
        for buffer in [&mut self.input, &mut self.output.tail] {
            if buffer.is_empty() && buffer.capacity() > 0 {
                self.budget.give_back(std::mem::take(buffer));
            }
        }
        self.queue_pool.take_back(&mut self.calls);
        let pending = &self.client.pending;
        pending.release_unused();
        // A complete request that has not begun is waiting too.
        let waits = !self.calls.is_empty() || (self.missing == 0 && !self.input.is_empty());
        pending.set_waiting(waits && self.output.is_empty() || self.client.has_locks());
        pending.set_buffered(
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
        self.in_flight = None;
        self.calls.retain(|pending| pending.call.is_active());
        (self.input, self.output) = (BytesMut::new(), WriteQueue::default());
        self.client.pending.wake_on_next(cx);
        self.poll_calls(cx);
        self.output.clear();
        if self.calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<S> Session<'_, S> {
    /// Begins a call for each complete request, as far as the limits allow. Returns whether any has begun.
    fn parse(&mut self) -> bool {
        let mut begun = false;
        while self.state == State::Open && self.has_room() {
            let skipped = self.skip_data.min(self.input.len() as u64);
            self.input.advance(skipped as usize);
            self.skip_data -= skipped;
            if self.input.is_empty() {
                self.missing = 1;
                if self.eof {
                    self.state = State::Finishing;
                }
                break;
            }
            let progress = match (self.protocol, self.long_get.is_some()) {
                (None, _) => {
                    // As in memcached, the first byte decides.
                    self.begin_protocol(match self.input[0] {
                        protocol::binary::REQUEST => ClientProtocol::Binary,
                        _ => ClientProtocol::Text,
                    });
                    Progress::Continue
                }
                (_, true) => self.begin_part(),
                _ if !self.is_current() => Progress::Blocked,
                (Some(ClientProtocol::Binary), _) => self.begin_binary(),
                _ => self.begin_request(),
            };
            match progress {
                Progress::Begun => begun = true,
                Progress::Continue => {}
                Progress::Blocked => {
                    self.missing = 0;
                    break;
                }
                Progress::Incomplete { at_least } => {
                    self.missing = at_least.max(1);
                    if self.eof {
                        self.state = State::Finishing;
                    }
                    break;
                }
            }
        }
        begun
    }

    fn begin_protocol(&mut self, protocol: ClientProtocol) {
        if protocol == ClientProtocol::Binary {
            self.proxy.metrics().client_binary();
        }
        self.protocol = Some(protocol);
    }

    /// Begins the request at the front of the input.
    fn begin_request(&mut self) -> Progress {
        if let Some(begun) = LongGet::begin_unterminated(&self.input) {
            return match begun {
                Ok((long_get, head)) => self.begin_long_get(long_get, head),
                Err(reply) => self.refuse_and_close(reply),
            };
        }
        let (calls, active, shared) = (&self.calls, self.active, self.client.listener.is_shared());
        let in_flight = self.in_flight.as_deref();
        let conflicts = |set: &AccessSet| conflicts(calls, in_flight, active, shared, set);
        let (call, closes, skip_data, consumed) = match parse(&self.input, &self.limits) {
            Parsed::Incomplete { at_least } => return Progress::Incomplete { at_least },
            Parsed::Request { request, consumed } => {
                let most = self.window.min(MAX_PART);
                // Each key takes at least two bytes, with the space before it.
                if consumed > 2 * most
                    && let Some((long_get, head)) = LongGet::begin_whole(&self.input, &request, most)
                {
                    return self.begin_long_get(long_get, head);
                }
                if consumed >= LARGE_REQUEST && self.proxy.is_congested(&self.client.pending) {
                    return Progress::Blocked;
                }
                if self.proxy.holds_request(&request) {
                    self.held = look_again();
                    return Progress::Blocked;
                }
                let call = Call::begin(&request, &self.proxy, &self.client, conflicts);
                (call, matches!(request, Request::Quit), 0, consumed)
            }
            Parsed::Refused(refused) => {
                // The servers may have reported a larger limit since.
                let max_value = self.proxy.max_value();
                if refused.skip_data > 0 && max_value > self.limits.max_value {
                    self.limits.max_value = max_value;
                    return Progress::Continue;
                }
                let call = Call::refuse(&refused, &self.proxy, &self.client, conflicts);
                if call.is_some() {
                    self.count_refusal(&refused);
                }
                (call, refused.close, refused.skip_data, refused.consumed)
            }
        };
        let Some(call) = call else { return Progress::Blocked };
        if closes {
            self.state = State::Finishing;
        }
        self.skip_data = skip_data;
        self.enqueue(call, consumed)
    }

    /// Appends a call whose request is the first `consumed` bytes of the input.
    fn enqueue(&mut self, call: Call, consumed: usize) -> Progress {
        let pending = PendingCall { reads: call.reads(), bytes: consumed, call };
        self.active += usize::from(pending.call.is_active());
        self.reads += pending.reads;
        self.request_bytes += pending.bytes;
        if self.calls.capacity() == 0 {
            self.calls = self.queue_pool.take();
        }
        match &mut self.in_flight {
            Some(in_flight) => in_flight.add(pending.call.accesses()),
            None if self.calls.len() == COMPARED => {
                let in_flight = self.in_flight.insert(Box::default());
                let calls = self.calls.iter().chain([&pending]);
                calls.for_each(|pending| in_flight.add(pending.call.accesses()));
            }
            None => {}
        }
        self.calls.push_back(pending);
        self.input.advance(consumed);
        self.missing = 0;
        Progress::Begun
    }

    fn count_refusal(&self, refused: &Refused<'_>) {
        let metrics = self.proxy.metrics();
        if refused.skip_data > self.limits.max_value as u64 {
            metrics.limit_reached(Limit::Value);
        }
        if refused.close && refused.consumed > protocol::MAX_LINE {
            metrics.limit_reached(Limit::Line);
        }
    }

    /// Begins a get whose keys are read in parts. `head` is the length of what precedes the keys.
    fn begin_long_get(&mut self, long_get: LongGet, head: usize) -> Progress {
        self.input.advance(head);
        self.long_get = Some((long_get, Rc::default()));
        Progress::Continue
    }

    /// Begins to read the next keys of a long get.
    fn begin_part(&mut self) -> Progress {
        let Some((long_get, state)) = &self.long_get else { return Progress::Continue };
        match long_get.part(&self.input, self.window.min(MAX_PART)) {
            Part::Incomplete => Progress::Incomplete { at_least: 1 },
            Part::Spaces(spaces) => {
                self.input.advance(spaces);
                Progress::Continue
            }
            Part::Refused(reply) => self.refuse_and_close(reply),
            Part::Keys { request, consumed, last } => {
                let (calls, active, shared) = (&self.calls, self.active, self.client.listener.is_shared());
                let in_flight = self.in_flight.as_deref();
                let conflicts = |set: &AccessSet| conflicts(calls, in_flight, active, shared, set);
                if self.proxy.holds_request(&request) {
                    self.held = look_again();
                    return Progress::Blocked;
                }
                let call = Call::part(&request, state, last, &self.proxy, &self.client, conflicts);
                let Some(call) = call else { return Progress::Blocked };
                if last {
                    self.long_get = None;
                }
                self.enqueue(call, consumed)
            }
        }
    }

    /// Discards the input, sends `reply` and closes the connection, because of an error in a long get.
    fn refuse_and_close(&mut self, reply: &'static [u8]) -> Progress {
        let consumed = self.input.len();
        let refused = Refused { close: true, ..Refused::new(consumed, reply) };
        self.count_refusal(&refused);
        self.state = State::Finishing;
        match Call::refuse(&refused, &self.proxy, &self.client, |_| false) {
            Some(call) => self.enqueue(call, consumed),
            None => Progress::Blocked,
        }
    }
}

/// Whether a request that accesses `set` conflicts with one in flight. `active` is the number of active calls. `shared`: those that wait
/// for a build do not count, because it may be ended by what follows on the same connection.
fn conflicts(
    calls: &VecDeque<PendingCall>,
    in_flight: Option<&InFlight>,
    active: usize,
    shared: bool,
    set: &AccessSet,
) -> bool {
    let is_passed = |pending: &PendingCall| shared && pending.call.waits_for_build();
    match in_flight {
        _ if active == 0 => false,
        Some(in_flight) if !in_flight.conflicts(set) => false,
        Some(_) if !shared => true,
        _ => calls.iter().any(|pending| pending.call.accesses().conflicts(set) && !is_passed(pending)),
    }
}
