//! One client's connection: read, ask the proxy, answer in order.
//!
//! ```text
//!  socket ──▶ input ──parse──▶ calls ──(front first)──▶ out ──▶ socket
//! ```
//!
//! Everything that a client can make pile up has a bound: above it, the client is not read any more until it has taken its
//! answers. How many requests may be on their way follows from how large its answers are lately. What if they suddenly become
//! larger is the roll's business (`upstream/roll.rs`): its budget is strict.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::io::poll_read_buf;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::guard::leases::Owner;
use crate::metrics::{LeaseEnd, Limit};
use crate::protocol;
use crate::protocol::binary::{self, Binary};
use crate::protocol::long_get::{LongGet, Part};
use crate::protocol::parse::parse;
use crate::protocol::request::{Limits, Parsed, Refused, Request};
use crate::proxy::connection_use::ListenerClients;
use crate::proxy::{AccessSet, Call, Client, LargeReply, LongGetState, Proxy, QueuePosition};
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};
use crate::upstream::pending_replies::PendingReplies;
use write_queue::WriteQueue;

mod write_queue;

/// The most requests of one client that are on their way.
const MAX_CALLS: usize = 1024;
/// So many keys of one client may be being read, while their values are small, before another request is begun.
const MAX_READS: usize = 256;
/// A get for more keys is taken in parts.
const MAX_PART: usize = 128;
/// About so many bytes of requests, and as many of answers, may be on their way for one client: the larger they are, the fewer.
const MAX_AWAITED: usize = 16 * 1024 * 1024;
/// How large a new client's values are taken to be.
const FIRST_ANSWER: usize = 128 * 1024;
/// With more than this waiting to be written to a client, no further answer of it is made ready, and no request begun.
const MAX_OUT: usize = 256 * 1024;
/// With more than this read and not parsed yet, a client is not read any more, unless it is all one request.
const MAX_INPUT: usize = 64 * 1024;
/// A request of so many bytes waits while a server does not take what is sent to it.
const LARGE_REQUEST: usize = 16 * 1024;
/// What is read at once, at least.
const READ_SIZE: usize = 8 * 1024;
/// How long a client that is hung up on may take to read why and to close.
const LINGER: Duration = Duration::from_secs(1);
/// memcached's default `-I`: the largest value until a server says otherwise.
const MAX_VALUE: usize = 1024 * 1024;

/// What a client turned out to be, once it has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientProtocol {
    /// The text protocol, or nothing.
    Text,
    /// The binary protocol: it was refused.
    Binary,
}

/// Serves one client until it goes, is told to go, or `drain` says to finish. Its leases are released before this returns.
pub async fn serve<S>(
    socket: S,
    owner: Owner,
    pooling: Arc<ListenerClients>,
    proxy: Rc<Proxy>,
    roll: &Rc<MemoryBudget>,
    queues: &QueuePool<PendingCall>,
    drain: &CancellationToken,
) -> ClientProtocol
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = Session {
        socket,
        drain,
        proxy,
        client: Client::new(owner, PendingReplies::for_client(roll, owner.connection), pooling),
        roll: Rc::clone(roll),
        queues,
        input: BytesMut::new(),
        missing: 1,
        eof: false,
        limits: Limits { max_value: MAX_VALUE },
        skip_data: 0,
        long: None,
        calls: VecDeque::new(),
        active: 0,
        reads: 0,
        asked: 0,
        typical: FIRST_ANSWER,
        window: window_of(FIRST_ANSWER),
        full: false,
        held_back: false,
        dry: false,
        waits_for_drain: false,
        out: WriteQueue::default(),
        flushed: true,
        spoke: None,
        state: State::Open,
    };
    let mut drained = std::pin::pin!(drain.cancelled());
    poll_fn(|cx| session.poll(&mut drained, cx)).await;
    let had_last_word = session.state == State::Finishing && !session.eof;
    // Whoever goes while a request of theirs is on its way may have won a lease with it.
    poll_fn(|cx| session.poll_abandoned(cx)).await;
    let end = if drain.is_cancelled() { LeaseEnd::Shutdown } else { LeaseEnd::Disconnected };
    if session.client.was_told_a_miss() {
        session.proxy.clone().disconnect(owner, end).await;
    }
    // The other side may have gone already.
    let _ = session.socket.shutdown().await;
    // Closed with something unread, it would be reset, and the last word be lost on its way. It need not wait for us.
    if had_last_word && !drain.is_cancelled() {
        let _ = timeout(LINGER, session.ignore_the_rest()).await;
    }
    session.spoke.unwrap_or(ClientProtocol::Text)
}

struct Session<'a, S> {
    socket: S,
    drain: &'a CancellationToken,
    proxy: Rc<Proxy>,
    client: Client,
    roll: Rc<MemoryBudget>,
    queues: &'a QueuePool<PendingCall>,
    /// What has been read and not begun; it owns no memory while the client waits.
    input: BytesMut,
    /// How many bytes the request at the front of `input` still lacks, at least. 0: it is whole, and waits for an earlier one.
    missing: usize,
    /// The client sends no more.
    eof: bool,
    limits: Limits,
    /// How many bytes of a refused data block are still to come.
    skip_data: u64,
    /// In the middle of a get that is taken in parts.
    long: Option<(LongGet, Rc<LongGetState>)>,
    /// In the order asked; it owns no memory while there are none.
    calls: VecDeque<PendingCall>,
    /// How many of them are active.
    active: usize,
    /// How many keys they read.
    reads: usize,
    /// How many bytes their requests have.
    asked: usize,
    /// How large this client's values are lately, in bytes: rises at once, and falls slowly.
    typical: usize,
    /// How many keys may be read for it at a time, since they are.
    window: usize,
    /// There was no room for another request when it was looked at last.
    full: bool,
    /// It was not read when it was looked at last.
    held_back: bool,
    /// There is nothing to be read in this turn: the task is woken when there is.
    dry: bool,
    /// The task is woken when it is to finish.
    waits_for_drain: bool,
    /// What has not been written; the same.
    out: WriteQueue,
    /// The socket has passed on all that it took.
    flushed: bool,
    /// `None` until its first byte.
    spoke: Option<ClientProtocol>,
    state: State,
}

/// A request on its way.
pub struct PendingCall {
    call: Call,
    /// How many keys it reads.
    reads: usize,
    /// How many bytes it has.
    bytes: usize,
}

impl<S> Drop for Session<'_, S> {
    fn drop(&mut self) {
        self.roll.leave(self.client.owner.connection);
    }
}

/// What stood at the front of what has been read.
enum Found {
    /// A request: it is on its way.
    Begun,
    /// Something else, that needs another look.
    Again,
    /// A request that waits for an earlier one.
    Wait,
    /// Not enough, by so many bytes at least.
    Incomplete { at_least: usize },
}

/// How many keys may be read at a time while their values are so large.
fn window_of(typical: usize) -> usize {
    (MAX_AWAITED / typical.max(1)).clamp(1, MAX_READS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// No further request is read; what has been asked is answered.
    Finishing,
    /// Nothing can be said to this client any more.
    Gone,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    fn poll(
        &mut self,
        drained: &mut Pin<&mut WaitForCancellationFuture<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // Told to stop, it reads no more, and goes on with what it has read. To be woken for that it has to wait for it once.
        if !std::mem::replace(&mut self.waits_for_drain, true) {
            self.eof |= drained.as_mut().poll(cx).is_ready();
        }
        self.eof |= self.drain.is_cancelled();
        self.dry = false;
        loop {
            self.client.pending.wake_on_next(cx);
            if self.client.pending.closing().is_some() {
                self.state = State::Gone;
            }
            self.poll_calls(cx);
            let read = self.poll_read(cx);
            let was_whole = self.missing == 0;
            if self.parse() {
                self.client.pending.note_activity();
                continue;
            }
            // What has been read was enough until now, and so it was not read further.
            if was_whole && self.missing > 0 {
                continue;
            }
            let untaken = self.out.len() >= MAX_OUT;
            let written = self.poll_write(cx);
            // What has been written may have made room for what was held back until now.
            let made_room = written && (untaken || self.full || !self.dry);
            match self.state {
                State::Gone => return Poll::Ready(()),
                State::Finishing if self.calls.is_empty() && self.out.is_empty() && self.flushed => {
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

    /// Nothing can be done until something comes: gives back what is not needed until then, and says what is held.
    fn rest(&mut self) {
        for buffer in [&mut self.input, &mut self.out.text] {
            if buffer.is_empty() && buffer.capacity() > 0 {
                self.roll.give_back(std::mem::take(buffer));
            }
        }
        self.queues.take_back(&mut self.calls);
        let inbox = &self.client.pending;
        inbox.rest();
        // A whole request that has not begun waits for something too.
        let waits = !self.calls.is_empty() || (self.missing == 0 && !self.input.is_empty());
        inbox.is_busy(waits && self.out.is_empty());
        inbox.holds(self.asked + self.input.len() + self.out.text.len() + self.client.misses_bytes());
    }

    /// Reads until the client closes.
    async fn ignore_the_rest(&mut self) {
        self.input.reserve(READ_SIZE);
        while self.socket.read_buf(&mut self.input).await.is_ok_and(|read| read > 0) {
            self.input.clear();
        }
    }

    /// Lets what is on its way go on, though nobody will hear of it.
    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.state = State::Gone;
        self.calls.retain(|asked| asked.call.is_active());
        (self.input, self.out) = (BytesMut::new(), WriteQueue::default());
        self.client.pending.wake_on_next(cx);
        self.poll_calls(cx);
        self.out.clear();
        if self.calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Answers what can be answered, and keeps the others moving.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        self.client.new_turn();
        let Session { proxy, client, roll, calls, active, reads, asked, typical, window, out, .. } = self;
        // A call may wait for another client only if nothing of its own waits behind it.
        let quiet = self.input.is_empty() && !self.eof && self.state == State::Open;
        // What nobody will hear need not be kept short.
        let max_out = if self.state == State::Gone { usize::MAX } else { MAX_OUT };
        // Whatever stands behind it counts, also what is answered already and has only to be said.
        while let (alone, true, Some(front)) = (calls.len() == 1, out.len() < max_out, calls.front_mut()) {
            if front.call.waits(client) {
                break;
            }
            let (is_active, turn, before) =
                (front.call.is_active(), QueuePosition { first: true, may_wait: quiet && alone }, out.len());
            if out.text.capacity() == 0 {
                out.text = roll.take_buffer(READ_SIZE);
            }
            let Poll::Ready(large) = front.call.poll(proxy, client, turn, cx, &mut out.text) else {
                break;
            };
            if let Some(LargeReply { bytes, trailer }) = large {
                out.hand_on(bytes, |text| client.pending.keep(text));
                out.text.extend_from_slice(trailer);
            }
            let answered = out.len() - before;
            let answer = if front.reads > 1 { answered / front.reads } else { answered };
            let lately = answer.max((*typical * 7 + answer) / 8);
            if lately != std::mem::replace(typical, lately) {
                *window = window_of(lately);
            }
            *active -= usize::from(is_active);
            *reads -= front.reads;
            *asked -= front.bytes;
            calls.pop_front();
        }
        if *active == 0 {
            return;
        }
        let last = calls.len().saturating_sub(1);
        for (at, asked) in calls.iter_mut().enumerate().skip(1).filter(|(_, asked)| asked.call.is_active()) {
            let mut answer = BytesMut::new();
            let turn = QueuePosition { first: false, may_wait: quiet && at == last };
            if let Poll::Ready(large) = asked.call.poll(proxy, client, turn, cx, &mut answer) {
                if let Some(LargeReply { bytes, trailer }) = large {
                    answer.extend_from_slice(&bytes);
                    answer.extend_from_slice(trailer);
                }
                asked.call.keep(client.pending.keep(answer.freeze()));
                *active -= 1;
            }
        }
    }

    /// Whether another request may be begun. Once there has been no room, half of it must be free again: what is sent to the
    /// servers in many small pieces costs more than in a few large ones.
    fn has_room(&mut self) -> bool {
        let share = if self.full { 2 } else { 1 };
        let few = self.calls.len() < MAX_CALLS / share
            && self.reads * share < self.window.max(share)
            && self.asked < MAX_AWAITED / share;
        self.full = !few;
        self.out.len() < MAX_OUT && (self.calls.is_empty() || (few && !self.roll.is_tight()))
    }

    /// Begins every request that is whole. True if there was one.
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
            let found = match (self.spoke, &self.long) {
                (None, _) => self.listen(),
                (_, Some(_)) => self.part(),
                _ => self.request(),
            };
            match found {
                Found::Begun => begun = true,
                Found::Again => {}
                Found::Wait => {
                    self.missing = 0;
                    break;
                }
                Found::Incomplete { at_least } => {
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

    /// Looks at the first bytes of the connection.
    fn listen(&mut self) -> Found {
        match binary::look(&self.input) {
            Binary::No => {
                self.spoke = Some(ClientProtocol::Text);
                Found::Again
            }
            Binary::Incomplete(at_least) => Found::Incomplete { at_least },
            Binary::Refused(reply) => {
                self.spoke = Some(ClientProtocol::Binary);
                self.proxy.metrics().client_binary();
                self.out.text.extend_from_slice(&reply);
                self.input.clear();
                self.state = State::Finishing;
                Found::Again
            }
        }
    }

    /// Begins the request at the front of what has been read.
    fn request(&mut self) -> Found {
        let endless = LongGet::begin_unterminated(&self.input);
        if let Some(begun) = endless {
            return match begun {
                Ok((long, head)) => self.take_apart(long, head),
                Err(reply) => self.close_connection(reply),
            };
        }
        let (calls, active) = (&self.calls, self.active);
        let busy = |footprint: &AccessSet| {
            active > 0 && calls.iter().any(|asked| asked.call.accesses().conflicts(footprint))
        };
        let (call, closes, skip_data, consumed) = match parse(&self.input, &self.limits) {
            Parsed::Incomplete { at_least } => return Found::Incomplete { at_least },
            Parsed::Request { request, consumed } => {
                // A key and the space before it are two bytes at least.
                let most = self.window.min(MAX_PART);
                if consumed > 2 * most
                    && let Some((long, head)) = LongGet::begin_whole(&self.input, &request, most)
                {
                    return self.take_apart(long, head);
                }
                if consumed >= LARGE_REQUEST && self.proxy.is_congested(&self.client.pending) {
                    return Found::Wait;
                }
                let call = Call::begin(&request, &self.proxy, &self.client, busy);
                (call, matches!(request, Request::Quit), 0, consumed)
            }
            Parsed::Refused(refused) => {
                // A server may have said since that it takes larger values.
                let max_value = self.proxy.max_value();
                if refused.skip_data > 0 && max_value > self.limits.max_value {
                    self.limits.max_value = max_value;
                    return Found::Again;
                }
                let call = Call::refuse(&refused, &self.proxy, &self.client, busy);
                if call.is_some() {
                    self.count_refusal(&refused);
                }
                (call, refused.close, refused.skip_data, refused.consumed)
            }
        };
        let Some(call) = call else { return Found::Wait };
        if closes {
            self.state = State::Finishing;
        }
        self.skip_data = skip_data;
        self.begun(call, consumed)
    }

    fn begun(&mut self, call: Call, consumed: usize) -> Found {
        let asked = PendingCall { reads: call.reads(), bytes: consumed, call };
        self.active += usize::from(asked.call.is_active());
        self.reads += asked.reads;
        self.asked += asked.bytes;
        if self.calls.capacity() == 0 {
            self.calls = self.queues.take_buffer();
        }
        self.calls.push_back(asked);
        self.input.advance(consumed);
        self.missing = 0;
        Found::Begun
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

    /// From here on, a get is taken in parts.
    fn take_apart(&mut self, long: LongGet, head: usize) -> Found {
        self.input.advance(head);
        self.long = Some((long, Rc::default()));
        Found::Again
    }

    /// Begins to read the next keys of a get that is taken in parts.
    fn part(&mut self) -> Found {
        let Some((long, line)) = &self.long else { return Found::Again };
        match long.part(&self.input, self.window.min(MAX_PART)) {
            Part::Incomplete => Found::Incomplete { at_least: 1 },
            Part::Spaces(spaces) => {
                self.input.advance(spaces);
                Found::Again
            }
            Part::Refused(reply) => self.close_connection(reply),
            Part::Keys { request, consumed, last } => {
                let (calls, active) = (&self.calls, self.active);
                let busy = |footprint: &AccessSet| {
                    active > 0 && calls.iter().any(|asked| asked.call.accesses().conflicts(footprint))
                };
                let call = Call::part(&request, line, last, &self.proxy, &self.client, busy);
                let Some(call) = call else { return Found::Wait };
                if last {
                    self.long = None;
                }
                self.begun(call, consumed)
            }
        }
    }

    /// The last word, in the middle of a long get.
    fn close_connection(&mut self, reply: &'static [u8]) -> Found {
        let consumed = self.input.len();
        let refused = Refused {
            reply,
            consumed,
            skip_data: 0,
            close: true,
            deletes: None,
            deletes_base64: false,
            touches: None,
        };
        self.count_refusal(&refused);
        self.state = State::Finishing;
        match Call::refuse(&refused, &self.proxy, &self.client, |_| false) {
            Some(call) => self.begun(call, consumed),
            None => Found::Wait,
        }
    }

    /// Reads what there is, if there is room for it. True if something came.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        if self.eof || self.state != State::Open {
            return false;
        }
        let full = !self.has_room();
        if full && !self.held_back {
            let untaken = self.out.len() >= MAX_OUT;
            self.proxy.metrics().limit_reached(if untaken { Limit::Untaken } else { Limit::Requests });
        }
        self.held_back = full;
        let enough = self.missing == 0 && self.input.len() >= MAX_INPUT;
        if full || enough || self.dry {
            return false;
        }
        self.make_room(self.missing.max(READ_SIZE));
        match poll_read_buf(Pin::new(&mut self.socket), cx, &mut self.input) {
            Poll::Pending => {
                self.dry = true;
                false
            }
            Poll::Ready(Ok(0)) => {
                self.eof = true;
                true
            }
            Poll::Ready(Ok(read)) => {
                self.proxy.metrics().bytes_read(read);
                true
            }
            Poll::Ready(Err(_)) => {
                self.state = State::Gone;
                true
            }
        }
    }

    /// Makes room for so many bytes to be read.
    fn make_room(&mut self, room: usize) {
        if self.input.try_reclaim(room) {
            return;
        }
        // It grows as a vector does, so that little is copied.
        let length = self.input.len();
        let mut larger = self.roll.take_buffer((length + room).max(2 * length));
        larger.extend_from_slice(&self.input);
        self.roll.give_back(std::mem::replace(&mut self.input, larger));
    }

    /// Writes what can be written. True if something went.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut written = false;
        while !self.out.is_empty() && self.state != State::Gone {
            match self.out.poll_write(&mut self.socket, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => self.state = State::Gone,
                Poll::Ready(Ok(length)) => {
                    self.proxy.metrics().bytes_written(length);
                    self.client.pending.note_activity();
                    written = true;
                }
            }
        }
        // Over TLS, what has been taken may not be on its way yet.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.flushed = flushed.is_ready();
        if let Poll::Ready(Err(_)) = flushed {
            self.state = State::Gone;
        }
        written
    }
}
