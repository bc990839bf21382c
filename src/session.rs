//! One client's connection: read, ask the proxy, answer in order.
//!
//! ```text
//!  socket ──▶ input ──parse──▶ calls ──(front first)──▶ out ──▶ socket
//! ```
//!
//! Everything that a client can make pile up has a bound: above it, the client is not read any more until it has taken its
//! answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::io::poll_read_buf;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::metrics::LeaseEnd;
use crate::protocol::parse::parse;
use crate::protocol::request::{Limits, Parsed, Request};
use crate::proxy::{Call, Client, Footprint, Proxy};

/// The most requests of one client that are on their way, while their answers are small.
const MAX_CALLS: usize = 1024;
/// About so many bytes of answers may be on their way to one client: the larger they are, the fewer requests.
const MAX_AWAITED: usize = 16 * 1024 * 1024;
/// How large the answers to a new client are taken to be.
const FIRST_ANSWER: usize = 256 * 1024;
/// With more than this waiting to be written to a client, no further request of it is begun.
const MAX_OUT: usize = 256 * 1024;
/// With more than this read and not parsed yet, a client is not read any more, unless it is all one request.
const MAX_INPUT: usize = 64 * 1024;
/// What is read at once, at least.
const READ_SIZE: usize = 8 * 1024;
/// memcached's default `-I`: the largest value until a server says otherwise.
const MAX_VALUE: usize = 1024 * 1024;

/// Serves one client until it goes, is told to go, or `drain` says to finish. Its leases are released before this returns.
pub async fn serve<S>(socket: S, owner: u64, proxy: Rc<Proxy>, drain: &CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = Session {
        socket,
        proxy,
        client: Client::new(owner),
        input: BytesMut::new(),
        missing: 1,
        eof: false,
        limits: Limits { max_value: MAX_VALUE },
        swallow: 0,
        calls: VecDeque::new(),
        active: 0,
        typical: FIRST_ANSWER,
        out: BytesMut::new(),
        flushed: true,
        state: State::Open,
    };
    let mut drained = std::pin::pin!(drain.cancelled());
    poll_fn(|cx| session.poll(&mut drained, cx)).await;
    // Whoever goes while a request of theirs is on its way may have won a lease with it.
    poll_fn(|cx| session.poll_abandoned(cx)).await;
    let end = if drain.is_cancelled() { LeaseEnd::Shutdown } else { LeaseEnd::Disconnected };
    if session.client.holds() {
        session.proxy.clone().disconnect(owner, end).await;
    }
    // The other side may have gone already.
    let _ = session.socket.shutdown().await;
}

struct Session<S> {
    socket: S,
    proxy: Rc<Proxy>,
    client: Client,
    input: BytesMut,
    /// How many bytes the request at the front of `input` still lacks, at least. 0: it is whole, and waits for an earlier one.
    missing: usize,
    /// The client sends no more.
    eof: bool,
    limits: Limits,
    /// How many bytes of a refused data block are still to come.
    swallow: u64,
    /// In the order asked.
    calls: VecDeque<Call>,
    /// How many of them are active.
    active: usize,
    /// How large this client's answers are lately, in bytes: rises at once, and falls slowly.
    typical: usize,
    out: BytesMut,
    /// The socket has passed on all that it took.
    flushed: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// No further request is read; what has been asked is answered.
    Finishing,
    /// Nothing can be said to this client any more.
    Gone,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    fn poll(
        &mut self,
        drained: &mut Pin<&mut WaitForCancellationFuture<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // Told to stop, it reads no more, and goes on with what it has read.
        if !self.eof && drained.as_mut().poll(cx).is_ready() {
            self.eof = true;
        }
        loop {
            self.client.inbox.wake_on_next(cx);
            self.poll_calls(cx);
            let read = self.poll_read(cx);
            if self.parse() {
                continue;
            }
            let written = self.poll_write(cx);
            match self.state {
                State::Gone => return Poll::Ready(()),
                State::Finishing if self.calls.is_empty() && self.out.is_empty() && self.flushed => {
                    return Poll::Ready(());
                }
                _ if !read && !written => return Poll::Pending,
                _ => {}
            }
        }
    }

    /// Lets what is on its way go on, though nobody will hear of it.
    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.state = State::Gone;
        self.calls.retain(Call::is_active);
        self.client.inbox.wake_on_next(cx);
        self.poll_calls(cx);
        self.out.clear();
        if self.calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Answers what can be answered, and keeps the others moving.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        let Session { proxy, client, calls, active, typical, out, .. } = self;
        // A call may wait for another client only if nothing of its own waits behind it.
        let quiet = self.input.is_empty() && !self.eof && self.state == State::Open;
        // Whatever stands behind it counts, also what is answered already and has only to be said.
        while let (alone, Some(call)) = (calls.len() == 1, calls.front_mut()) {
            let (is_active, patient, before) = (call.is_active(), quiet && alone, out.len());
            if call.poll(proxy, client, patient, cx, out).is_pending() {
                break;
            }
            let answer = out.len() - before;
            *typical = answer.max((*typical * 7 + answer) / 8);
            *active -= usize::from(is_active);
            calls.pop_front();
        }
        if *active == 0 {
            return;
        }
        let last = calls.len().saturating_sub(1);
        for (at, call) in calls.iter_mut().enumerate().skip(1).filter(|(_, call)| call.is_active()) {
            let mut answer = BytesMut::new();
            if call.poll(proxy, client, quiet && at == last, cx, &mut answer).is_ready() {
                call.keep(answer);
                *active -= 1;
            }
        }
    }

    /// How many requests may be on their way now.
    fn window(&self) -> usize {
        (MAX_AWAITED / self.typical.max(1)).clamp(1, MAX_CALLS)
    }

    /// Begins every request that is whole. True if there was one.
    fn parse(&mut self) -> bool {
        let mut begun = false;
        while self.state == State::Open && self.calls.len() < self.window() && self.out.len() < MAX_OUT {
            let swallowed = self.swallow.min(self.input.len() as u64);
            self.input.advance(swallowed as usize);
            self.swallow -= swallowed;
            if self.input.is_empty() {
                self.missing = 1;
                if self.eof {
                    self.state = State::Finishing;
                }
                break;
            }
            let (calls, active) = (&self.calls, self.active);
            let busy = |footprint: &Footprint| {
                active > 0 && calls.iter().any(|call| call.footprint().conflicts(footprint))
            };
            let (call, closes, swallow, consumed) = match parse(&self.input, &self.limits) {
                Parsed::Incomplete { at_least } => {
                    self.missing = at_least.max(1);
                    if self.eof {
                        self.state = State::Finishing;
                    }
                    break;
                }
                Parsed::Request { request, consumed } => {
                    let call = Call::begin(&request, &self.proxy, &self.client, busy);
                    (call, matches!(request, Request::Quit), 0, consumed)
                }
                Parsed::Refused(refused) => {
                    // A server may have said since that it takes larger values.
                    let max_value = self.proxy.max_value();
                    if refused.swallow > 0 && max_value > self.limits.max_value {
                        self.limits.max_value = max_value;
                        continue;
                    }
                    let call = Call::refuse(&refused, &self.proxy, &self.client, busy);
                    (call, refused.close, refused.swallow, refused.consumed)
                }
            };
            let Some(call) = call else {
                self.missing = 0;
                break;
            };
            if closes {
                self.state = State::Finishing;
            }
            self.swallow = swallow;
            self.active += usize::from(call.is_active());
            self.calls.push_back(call);
            self.input.advance(consumed);
            begun = true;
        }
        begun
    }

    /// Reads what there is, if there is room for it. True if something came.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        let full = self.calls.len() >= self.window() || self.out.len() >= MAX_OUT;
        let enough = self.missing == 0 && self.input.len() >= MAX_INPUT;
        if self.eof || self.state != State::Open || full || enough {
            return false;
        }
        self.input.reserve(self.missing.max(READ_SIZE));
        match poll_read_buf(Pin::new(&mut self.socket), cx, &mut self.input) {
            Poll::Pending => false,
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

    /// Writes what can be written. True if something went.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut written = false;
        while !self.out.is_empty() && self.state != State::Gone {
            match Pin::new(&mut self.socket).poll_write(cx, &self.out) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => self.state = State::Gone,
                Poll::Ready(Ok(length)) => {
                    self.proxy.metrics().bytes_written(length);
                    self.out.advance(length);
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
