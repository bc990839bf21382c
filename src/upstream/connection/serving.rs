//! An open connection: writes queued commands, reads replies and delivers them, and times requests out.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep};
use tokio_util::io::poll_read_buf;

use super::{CONGESTED, Connection, PendingRequest, Phase, Requester};
use crate::error::Failure;
use crate::metrics::UpstreamOutcome;
use crate::protocol::reply::{Frame, Garbage, Shape, is_out_of_memory};
use crate::upstream::connection_error::ConnectionError;
use crate::upstream::read_buffer::ReadBuffer;
use crate::upstream::reply::Reply;
use crate::upstream::socket::Socket;

/// An empty output buffer with a larger capacity than this is freed.
const MAX_KEPT: usize = 1024 * 1024;
/// The connection is remade if nothing arrives for this many `request_timeout`s while requests are pending.
const STALLED_TIMEOUTS: u32 = 4;

/// What a server may take for each request that was queued before one, before the one counts as slow. A healthy server takes a
/// tenth of it: so whoever queues much does not make it sick.
const PER_REQUEST_AHEAD: Duration = Duration::from_micros(100);

/// Requests that were sent at the same time and have been answered, for the metrics.
struct Completed {
    sent: Instant,
    /// How many were queued before the first of them.
    ahead: u32,
    count: u64,
    /// Whether they took long.
    slow: bool,
}

impl Connection {
    /// Writes and reads until the connection fails.
    pub(super) async fn serve(&self, socket: &mut Socket) -> ConnectionError {
        let mut input = ReadBuffer::new();
        let mut timer = pin!(sleep(Duration::ZERO));
        let mut armed = false;
        poll_fn(|cx| {
            if std::mem::take(&mut self.state.borrow_mut().distrusted) {
                return Poll::Ready(ConnectionError::Garbage("a value of another key"));
            }
            if let Poll::Ready(error) = self.poll_closed(socket, cx) {
                return Poll::Ready(error);
            }
            if let Poll::Ready(error) = self.poll_write(socket, cx) {
                return Poll::Ready(error);
            }
            if let Poll::Ready(error) = self.poll_read(socket, &mut input, cx) {
                return Poll::Ready(self.ended(error));
            }
            // One timer for the request that times out first. It is reset only to an earlier time: when it was set for the end of
            // the connection and a new request was sent.
            loop {
                match self.next_deadline(input.last_read) {
                    Some(deadline) if !armed || deadline < timer.deadline() => {
                        timer.as_mut().reset(deadline);
                        armed = true;
                    }
                    None if !armed => break,
                    _ => {}
                }
                if timer.as_mut().poll(cx).is_pending() {
                    break;
                }
                armed = false;
                if self.time_out(input.last_read) {
                    return Poll::Ready(ConnectionError::Stalled);
                }
            }
            let mut state = self.state.borrow_mut();
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    pub(super) fn poll_write(&self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        let mut state = self.state.borrow_mut();
        state.batch_sent = None;
        // From here on the server may have read any part of the output.
        state.unsent_reads.new_turn();
        state.get_line.close();
        while !state.output.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut *socket).poll_write(cx, &state.output) else {
                state.is_behind = true;
                return Poll::Pending;
            };
            match written {
                Ok(0) => return Poll::Ready(ConnectionError::Closed),
                Ok(written) => state.output.advance(written),
                Err(error) => return Poll::Ready(ConnectionError::Io(error)),
            }
            // All of them are woken: each checks again, and waits again if others were faster.
            if !state.waiting_for_room.is_empty() && state.output.len() < CONGESTED {
                state.waiting_for_room.wake_all();
            }
        }
        if state.is_behind {
            state.note_unwritten(Instant::now());
        }
        (state.unwritten, state.is_behind) = (0, false);
        if state.output.try_reclaim(MAX_KEPT) {
            state.output = BytesMut::new();
        }
        match Pin::new(socket).poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(ConnectionError::Io(error)),
            _ => Poll::Pending,
        }
    }

    fn poll_read(
        &self,
        socket: &mut Socket,
        input: &mut ReadBuffer,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionError> {
        loop {
            match ready!(poll_read_buf(Pin::new(&mut *socket), cx, &mut input.free_space())) {
                Ok(0) => return Poll::Ready(ConnectionError::Closed),
                Ok(_) => {}
                Err(error) => return Poll::Ready(ConnectionError::Io(error)),
            }
            input.last_read = Instant::now();
            match self.deliver_all(input) {
                Ok(false) => {}
                Ok(true) => {
                    // The client writes a large reply before more is read, while it is in the processor's caches.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Err(Garbage(what)) => return Poll::Ready(ConnectionError::Garbage(what)),
            }
        }
    }

    /// Delivers each complete reply to its requester. Returns true if one of them was large.
    pub(super) fn deliver_all(&self, input: &mut ReadBuffer) -> Result<bool, Garbage> {
        let mut completed = Completed { sent: input.last_read, ahead: 0, count: 0, slow: false };
        let awaited = self.state.borrow().pending.len();
        let delivered = self.deliver_each(input, &mut completed);
        self.count(&completed, input.last_read);
        // Also one that nobody waits for any more.
        if self.state.borrow().pending.len() < awaited {
            self.answered_at.set(Some(input.last_read));
        }
        delivered
    }

    fn deliver_each(&self, input: &mut ReadBuffer, completed: &mut Completed) -> Result<bool, Garbage> {
        let mut state = self.state.borrow_mut();
        let mut large = false;
        while !input.is_empty() {
            let Some(request) = state.pending.front() else { return Err(Garbage("a reply to no request")) };
            let frame = input.frame(request.shape, state.key_digests.first(request.keys))?;
            // A command that waited for the connection was sent when it was made.
            let epoch = request.epoch.max(state.epoch);
            let was_large = input.is_large();
            let reply = match frame {
                Frame::Partial { at_least } => {
                    let unbounded = request.keys > 1;
                    input.expect_more(at_least, unbounded, |length| match &request.requester {
                        Some((replies, _)) => replies.buffer(length),
                        None => BytesMut::with_capacity(length),
                    });
                    return Ok(large);
                }
                Frame::Whole(length) if request.shape == Shape::Part => input.take_part(length, epoch),
                Frame::Whole(length) => Reply::Answered { bytes: input.take(length).freeze(), epoch },
                Frame::Shared(length) => Reply::Answered { bytes: input.copy(length), epoch },
                Frame::Nothing => Reply::Part { bytes: input.copy(0), epoch },
            };
            large |= was_large;
            if let Some(request) = state.pending.pop_front() {
                state.key_digests.advance(request.keys);
                match request.requester {
                    Some(requester) => {
                        if request.sent != completed.sent {
                            self.count(completed, input.last_read);
                            let slow =
                                input.last_read.saturating_duration_since(request.sent) >= self.slow.get();
                            let PendingRequest { sent, ahead, .. } = request;
                            *completed = Completed { sent, ahead, count: 0, slow };
                        }
                        completed.count += 1;
                        if completed.slow {
                            let requesters = request.sharers.iter().chain([&requester]);
                            note_slow(requesters, request.sent, request.written, input.last_read);
                        }
                        if let Reply::Answered { bytes, .. } = &reply
                            && bytes.starts_with(b"SE")
                            && is_out_of_memory(bytes)
                        {
                            self.server.note_full();
                        }
                        deliver(reply, requester, request.sharers);
                    }
                    None => state.timed_out = state.timed_out.saturating_sub(1),
                }
            }
        }
        Ok(large)
    }

    fn count(&self, completed: &Completed, now: Instant) {
        if completed.count > 0 {
            let took = now.saturating_duration_since(completed.sent);
            self.metrics.ended(UpstreamOutcome::Ok, took, completed.count);
            let at = self.server.since_created(now);
            let took = self.servers_share(completed.sent, completed.ahead, now);
            if let Some(to) = self.server.health.answered(completed.count, took, at) {
                self.health_changed(to);
            }
        }
    }

    /// How much of the time since a request was sent the server is to blame for: what exceeds the time for those queued before it,
    /// and in any case the time in which it has answered none.
    pub(super) fn servers_share(&self, sent: Instant, ahead: u32, now: Instant) -> Duration {
        let answered = self.answered_at.get().map_or(sent, |answered| answered.max(sent));
        let queued = PER_REQUEST_AHEAD.saturating_mul(ahead);
        let took = now.saturating_duration_since(sent).saturating_sub(queued);
        took.max(now.saturating_duration_since(answered))
    }

    /// When the first live request times out, or, if all have timed out, when the connection is given up.
    fn next_deadline(&self, last_read: Instant) -> Option<Instant> {
        let state = self.state.borrow();
        let limit = self.server.request_timeout();
        match state.pending.get(state.timed_out) {
            Some(request) => Some(request.sent + limit),
            None => Some(state.pending.front()?.sent.max(last_read) + limit * STALLED_TIMEOUTS),
        }
    }

    /// Times out the requests that are due. Returns true if the connection must be given up.
    fn time_out(&self, last_read: Instant) -> bool {
        let now = Instant::now();
        let limit = self.server.request_timeout();
        let mut state = self.state.borrow_mut();
        state.note_unwritten(now);
        let mut bad = 0;
        loop {
            let at = state.timed_out;
            let Some(request) = state.pending.get_mut(at).filter(|request| request.sent + limit <= now)
            else {
                break;
            };
            if let Some((replies, id)) = request.requester.take() {
                bad += u64::from(self.server.health.is_slow(self.servers_share(
                    request.sent,
                    request.ahead,
                    now,
                )));
                self.metrics.ended(UpstreamOutcome::Timeout, now - request.sent, 1);
                let requester = (replies, id);
                if now - request.sent >= self.slow.get() {
                    note_slow(request.sharers.iter().chain([&requester]), request.sent, request.written, now);
                }
                for (replies, id) in request.sharers.drain(..).chain([requester]) {
                    replies.deliver(id, Reply::Failed(Failure::TimedOut));
                }
            }
            state.timed_out += 1;
        }
        if bad > 0
            && let Some(to) = self.server.health.timed_out(bad, self.server.since_created(now))
        {
            self.health_changed(to);
        }
        let Some(first) = state.pending.front() else { return false };
        now.saturating_duration_since(first.sent.max(last_read)) >= limit * STALLED_TIMEOUTS
    }

    /// Fails all requests of a connection that has ended.
    pub(super) fn fail_all(&self, error: &ConnectionError) {
        let (failure, outcome) = match error {
            ConnectionError::Garbage(_) => (Failure::Refused, UpstreamOutcome::Garbage),
            _ => (Failure::Down, UpstreamOutcome::Down),
        };
        let mut state = self.state.borrow_mut();
        state.note_unwritten(Instant::now());
        state.phase = Phase::Down;
        (state.timed_out, state.distrusted) = (0, false);
        (state.unwritten, state.is_behind) = (0, true);
        state.output = BytesMut::new();
        state.unsent_reads.new_turn();
        state.get_line.close();
        state.key_digests.clear();
        state.waiting_for_room.wake_all();
        let mut requests = std::mem::take(&mut state.pending);
        let deferred = std::mem::take(&mut state.deferred).commands;
        requests.extend(deferred.into_iter().map(|command| command.request));
        drop(state);
        self.fail_each(requests, failure, outcome);
    }

    pub(super) fn fail_each(
        &self,
        requests: VecDeque<PendingRequest>,
        failure: Failure,
        outcome: UpstreamOutcome,
    ) {
        let now = Instant::now();
        for request in requests {
            if let Some((replies, id)) = request.requester {
                self.metrics.ended(outcome, now - request.sent, 1);
                let requester = (replies, id);
                if now - request.sent >= self.slow.get() {
                    note_slow(request.sharers.iter().chain([&requester]), request.sent, request.written, now);
                }
                for (replies, id) in request.sharers.into_iter().chain([requester]) {
                    replies.deliver(id, Reply::Failed(failure));
                }
            }
        }
    }
}

/// Notes for each of these that their reply took long: until the request was written, and then until now.
#[cold]
fn note_slow<'a>(
    requesters: impl Iterator<Item = &'a Requester>,
    sent: Instant,
    written: Option<Instant>,
    now: Instant,
) {
    let written = written.map_or(sent, |written| written.clamp(sent, now));
    requesters.for_each(|(replies, id)| replies.note_slow(*id, written - sent, now - written));
}

/// Delivers a reply to its requester and those that share it. The requester comes first: what the server grants to one reader is
/// its own.
fn deliver(reply: Reply, requester: Requester, sharers: Vec<Requester>) {
    let mut last = requester;
    for next in sharers {
        let (replies, id) = std::mem::replace(&mut last, next);
        replies.deliver(id, reply.clone());
    }
    last.0.deliver(last.1, reply);
}
