//! One pipelined connection to one server, shared by all clients of a worker.
//!
//! ```text
//!  send ──▶ out ──(one write per turn of the loop)──▶ server
//!     └──▶ owed: one slot per command, in order          │
//!  inbox ◀──────────── the slot at the front ◀── frames ◀┘
//! ```
//!
//! **Architecture invariant:** a slot leaves `owed` only with its reply or with the connection. A command that timed out,
//! or whose asker has gone, keeps its slot, and its reply is read and thrown away; so replies never cross.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep};
use tokio_util::io::poll_read_buf;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::batched_gets::{GetKind, KeyDigests, Line};
use super::capabilities::MissingFeature;
use super::coalescing::{Kind, UnsentReads};
use super::pending_replies::{PendingReplies, Reply, ReplyId};
use super::probe::ConnectionError;
use super::read_buffer::ReadBuffer;
use super::server::{Server, Socket};
use crate::error::Failure;
use crate::metrics::{UpstreamOutcome, WorkerMetrics};
use crate::protocol::reply::{Frame, Garbage, Shape, digest};

mod connecting;

/// The most commands that one server may owe one worker. More are answered "overloaded" at once.
const MAX_OWED: usize = 64 * 1024;
/// The most bytes that may wait to be written to one server, besides one command.
const MAX_OUT: usize = 64 * 1024 * 1024;
/// An empty buffer that has grown beyond this is given back.
const MAX_KEPT: usize = 1024 * 1024;
/// With more than this waiting, large requests are held back, so that small ones find room.
const MAX_EASY: usize = 16 * 1024 * 1024;
/// A connection on which nothing has come for so many `request_timeout`s, though something is owed, is remade.
const STALLED_TIMEOUTS: u32 = 4;

/// One connection, remade for ever.
pub struct Connection {
    server: Arc<Server>,
    metrics: Arc<WorkerMetrics>,
    first_attempt: Cell<Option<TaskTrackerToken>>,
    state: RefCell<State>,
}

struct State {
    phase: Phase,
    /// The server's epoch when this connection was made.
    made: u32,
    /// What the server cannot do though the guard needs it, as far as this worker knows.
    missing_feature: Option<MissingFeature>,
    out: BytesMut,
    owed: VecDeque<PendingRequest>,
    early: DeferredCommands,
    unwritten: UnsentReads,
    line: Line,
    names: KeyDigests,
    /// Who is to be woken once there is room for a large request. No client is here more than once for long.
    crowd: Vec<Rc<PendingReplies>>,
    /// How many at the front of `owed` have timed out.
    timed_out: usize,
    /// It is to be remade.
    distrusted: bool,
    /// Since when that gathers which is written next: all of it was sent at that moment, for one look at the clock.
    gathering: Option<Instant>,
    /// Of the task that drives it.
    waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first attempt of this worker or of another is under way: what is sent waits for it.
    Opening,
    Up,
    /// What is sent fails at once.
    Down,
}

/// What the guard has asked before it is known whether the server can guard.
#[derive(Default)]
struct DeferredCommands {
    out: BytesMut,
    asked: VecDeque<DeferredCommand>,
}

struct DeferredCommand {
    owed: PendingRequest,
    /// How many bytes of what is to be written are its command.
    length: usize,
    /// The epoch of the CAS that it is conditional on.
    seen: Option<u32>,
}

/// Who sends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// A client: it goes to any server.
    Client,
    /// The guard: it goes to servers that can do what it needs.
    Guard,
}

struct PendingRequest {
    /// `None` once it has been told.
    asker: Option<Requester>,
    /// Who asked the same before it was written: they are told the same.
    sharers: Vec<Requester>,
    shape: Shape,
    /// How many of the names are its keys: 0 if it is no `get`.
    keys: usize,
    since: Instant,
    /// The server's epoch when it was sent.
    epoch: u32,
}

/// Where an answer goes.
type Requester = (Rc<PendingReplies>, ReplyId);

/// Commands that were queued at the same moment and have been answered, for the metrics.
struct Completed {
    since: Instant,
    count: u64,
}

impl State {
    /// Puts the first key of a `get` that is to be owed next; gives where it lies.
    fn put(&mut self, key: &[u8], digest: u64, how: GetKind) -> Range<usize> {
        if how.exptime.is_some() {
            self.unwritten.new_turn();
        }
        let put = self.line.put(&mut self.out, &mut self.names, key, digest, how);
        if put.joined
            && let Some(before) = self.owed.back_mut()
        {
            before.shape = Shape::Part;
        }
        put.at
    }
}

impl Connection {
    /// A connection to be driven by [`Connection::drive`].
    pub(super) fn new(
        server: Arc<Server>,
        first_attempt: TaskTrackerToken,
        metrics: Arc<WorkerMetrics>,
    ) -> Rc<Connection> {
        let state = State {
            phase: Phase::Opening,
            made: 0,
            missing_feature: None,
            out: BytesMut::new(),
            owed: VecDeque::new(),
            early: DeferredCommands::default(),
            unwritten: UnsentReads::new(),
            line: Line::default(),
            names: KeyDigests::default(),
            crowd: Vec::new(),
            timed_out: 0,
            distrusted: false,
            gathering: None,
            waker: None,
        };
        let first_attempt = Cell::new(Some(first_attempt));
        Rc::new(Connection { server, metrics, first_attempt, state: RefCell::new(state) })
    }

    /// The server it goes to.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Sends one command of a client: `write` appends it, whole and without noreply, and its reply, of that shape, comes to the
    /// inbox.
    pub fn send(
        &self,
        inbox: &Rc<PendingReplies>,
        shape: Shape,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        self.queue(inbox, Sender::Client, shape, None, write)
    }

    /// The same of a meta command of the guard. A server that cannot guard is sent none: it fails as [`Failure::Unguarded`].
    ///
    /// `seen` is the epoch of the CAS it is conditional on. If this connection is younger, the server may have been
    /// restarted since and count anew: then it is not sent, and answered [`Reply::Moved`].
    pub fn ask(
        &self,
        inbox: &Rc<PendingReplies>,
        seen: Option<u32>,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        self.queue(inbox, Sender::Guard, Shape::Meta, seen, write)
    }

    fn queue(
        &self,
        inbox: &Rc<PendingReplies>,
        sender: Sender,
        shape: Shape,
        seen: Option<u32>,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        let ticket = inbox.expect();
        let Some(mut state) = self.admit(inbox, ticket, sender, seen) else { return ticket };
        state.unwritten.new_turn();
        if (sender, state.phase) == (Sender::Guard, Phase::Opening) {
            let owed = self.owed(&mut state, inbox, ticket, shape, 0);
            let DeferredCommands { out, asked } = &mut state.early;
            let before = out.len();
            write(out);
            asked.push_back(DeferredCommand { owed, length: out.len() - before, seen });
        } else {
            write(&mut state.out);
            self.owe(state, inbox, ticket, shape, 0);
        }
        ticket
    }

    /// Sends a meta read of the guard, or joins the same one if it waits to be written: then the second is true, and what a
    /// server gives to one reader alone (`W`) is not this one's.
    pub fn read(&self, inbox: &Rc<PendingReplies>, write: impl FnOnce(&mut BytesMut)) -> (ReplyId, bool) {
        if self.state.borrow().phase == Phase::Opening {
            return (self.ask(inbox, None, write), false);
        }
        let ticket = inbox.expect();
        let Some(mut state) = self.admit(inbox, ticket, Sender::Guard, None) else { return (ticket, false) };
        let State { out, unwritten, owed, .. } = &mut *state;
        let from = out.len();
        write(out);
        let (of, kind) = (digest(&out[from..]), Kind::Meta);
        if let Some(same) = unwritten.find(of, kind, &out[from..], out) {
            out.truncate(from);
            self.share(state, same, inbox, ticket);
            return (ticket, true);
        }
        unwritten.note(of, kind, from..out.len(), owed.len());
        self.owe(state, inbox, ticket, Shape::Meta, 0);
        (ticket, false)
    }

    /// Sends a `get` of one key: with the same one, or on the line of others, if these wait to be written. Its reply is a
    /// [`Shape::Value`], or a [`Reply::Part`].
    pub fn get(&self, inbox: &Rc<PendingReplies>, key: &[u8], how: GetKind) -> ReplyId {
        let ticket = inbox.expect();
        let Some(mut state) = self.admit(inbox, ticket, Sender::Client, None) else { return ticket };
        let of = digest(key);
        let kind = match how {
            // It changes what it reads.
            GetKind { exptime: Some(_), .. } => None,
            GetKind { cas: false, .. } => Some(Kind::Get),
            GetKind { cas: true, .. } => Some(Kind::Gets),
        };
        if let Some(kind) = kind
            && let Some(same) = state.unwritten.find(of, kind, key, &state.out)
        {
            self.share(state, same, inbox, ticket);
            return ticket;
        }
        let at = state.put(key, of, how);
        if let Some(kind) = kind {
            let next = state.owed.len();
            state.unwritten.note(of, kind, at, next);
        }
        self.owe(state, inbox, ticket, Shape::Value, 1);
        ticket
    }

    /// Sends one of several keys that are asked for together, with those before it, whose ticket is `last`, if their line has
    /// room; else it has a ticket of its own. The reply is a [`Shape::Values`], or a [`Reply::Part`].
    ///
    /// A `get` that the same client sends behind it joins none that stands before it: it would be told what was there earlier.
    pub fn get_one_of(
        &self,
        inbox: &Rc<PendingReplies>,
        key: &[u8],
        how: GetKind,
        last: Option<ReplyId>,
    ) -> ReplyId {
        let of = digest(key);
        if let Some(last) = last {
            let State { out, owed, line, names, unwritten, .. } = &mut *self.state.borrow_mut();
            if let Some(PendingRequest { asker: Some((asker, ticket)), keys, .. }) = owed.back_mut()
                && Rc::ptr_eq(asker, inbox)
                && *ticket == last
                && line.put_more(out, names, key, of, how, *keys)
            {
                *keys += 1;
                unwritten.forget(of);
                return last;
            }
        }
        let ticket = inbox.expect();
        let Some(mut state) = self.admit(inbox, ticket, Sender::Client, None) else { return ticket };
        state.put(key, of, how);
        state.unwritten.forget(of);
        self.owe(state, inbox, ticket, Shape::Values, 1);
        ticket
    }

    /// Whether a command may be queued; else it has been answered.
    fn admit(
        &self,
        inbox: &Rc<PendingReplies>,
        ticket: ReplyId,
        sender: Sender,
        seen: Option<u32>,
    ) -> Option<RefMut<'_, State>> {
        let mut state = self.state.borrow_mut();
        let (reply, refused) = match (state.phase, seen) {
            (Phase::Up, _) if sender == Sender::Guard && state.missing_feature.is_some() => {
                (Reply::Failed(Failure::Unguarded), Some(UpstreamOutcome::Unguarded))
            }
            (Phase::Down, _) => (Reply::Failed(Failure::Down), Some(UpstreamOutcome::Down)),
            (Phase::Up, Some(seen)) if state.made > seen => (Reply::Moved, None),
            _ if state.owed.len() + state.early.asked.len() >= MAX_OWED
                || state.out.len() + state.early.out.len() >= MAX_OUT =>
            {
                (Reply::Failed(Failure::Overloaded), Some(UpstreamOutcome::Overloaded))
            }
            (phase, _) => {
                // What waits for the first connection has waited for a while, and its time is over sooner: it is not shared.
                if phase == Phase::Opening {
                    state.unwritten.new_turn();
                }
                return Some(state);
            }
        };
        drop(state);
        if let Some(outcome) = refused {
            self.metrics.upstream_refused(self.server.index, outcome);
        }
        inbox.deliver(ticket, reply);
        None
    }

    /// A command has been queued.
    fn owe(
        &self,
        mut state: RefMut<'_, State>,
        inbox: &Rc<PendingReplies>,
        ticket: ReplyId,
        shape: Shape,
        keys: usize,
    ) {
        let owed = self.owed(&mut state, inbox, ticket, shape, keys);
        state.owed.push_back(owed);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn owed(
        &self,
        state: &mut State,
        inbox: &Rc<PendingReplies>,
        ticket: ReplyId,
        shape: Shape,
        keys: usize,
    ) -> PendingRequest {
        let since = match state.phase {
            Phase::Up => *state.gathering.get_or_insert_with(Instant::now),
            // Nothing is written yet, and it may take a while.
            Phase::Opening | Phase::Down => Instant::now(),
        };
        let (asker, epoch) = (Some((Rc::clone(inbox), ticket)), self.server.epoch());
        self.metrics.upstream_sent(self.server.index);
        PendingRequest { asker, sharers: Vec::new(), shape, keys, since, epoch }
    }

    /// It is answered with that one of the owed.
    fn share(&self, mut state: RefMut<'_, State>, same: usize, inbox: &Rc<PendingReplies>, ticket: ReplyId) {
        if let Some(same) = state.owed.get_mut(same) {
            same.sharers.push((Rc::clone(inbox), ticket));
            self.metrics.upstream_shared(self.server.index);
        }
    }

    /// Whether much waits to be written: then this inbox is woken once it has been.
    pub fn is_congested(&self, inbox: &Rc<PendingReplies>) -> bool {
        let mut state = self.state.borrow_mut();
        let congested = state.out.len() >= MAX_EASY;
        if congested && !state.crowd.iter().any(|waits| Rc::ptr_eq(waits, inbox)) {
            state.crowd.push(Rc::clone(inbox));
        }
        congested
    }

    /// A reply of this epoch was well-formed but not an answer to what was asked: nothing more of its connection can be
    /// believed, if that has not been remade since.
    pub fn distrust(&self, epoch: u32) {
        let mut state = self.state.borrow_mut();
        state.distrusted |= state.phase == Phase::Up && epoch >= state.made;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// What the server cannot do, though the guard needs it.
    pub fn missing_feature(&self) -> Option<MissingFeature> {
        self.state.borrow().missing_feature
    }

    async fn serve(&self, socket: &mut Socket) -> ConnectionError {
        let mut reading = ReadBuffer::new();
        let mut alarm = pin!(sleep(Duration::ZERO));
        let mut armed = false;
        poll_fn(|cx| {
            if std::mem::take(&mut self.state.borrow_mut().distrusted) {
                return Poll::Ready(ConnectionError::Garbage("a value of another key"));
            }
            if let Poll::Ready(broken) = self.poll_write(socket, cx) {
                return Poll::Ready(broken);
            }
            if let Poll::Ready(broken) = self.poll_read(socket, &mut reading, cx) {
                return Poll::Ready(broken);
            }
            // One alarm for whoever is first to time out. It is moved only to an earlier moment: when it was set for the end of
            // the connection, and somebody new has asked.
            loop {
                match self.next_alarm(reading.last) {
                    Some(moment) if !armed || moment < alarm.deadline() => {
                        alarm.as_mut().reset(moment);
                        armed = true;
                    }
                    None if !armed => break,
                    _ => {}
                }
                if alarm.as_mut().poll(cx).is_pending() {
                    break;
                }
                armed = false;
                if self.time_out(reading.last) {
                    return Poll::Ready(ConnectionError::Stalled);
                }
            }
            let mut state = self.state.borrow_mut();
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn poll_write(&self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        let mut state = self.state.borrow_mut();
        state.gathering = None;
        // From here on what waited is read by the server, or nobody knows how much of it.
        state.unwritten.new_turn();
        state.line.close();
        while !state.out.is_empty() {
            match ready!(Pin::new(&mut *socket).poll_write(cx, &state.out)) {
                Ok(0) => return Poll::Ready(ConnectionError::Closed),
                Ok(written) => state.out.advance(written),
                Err(error) => return Poll::Ready(ConnectionError::Io(error)),
            }
            // All of them: each looks again, and waits again if others were first.
            if !state.crowd.is_empty() && state.out.len() < MAX_EASY {
                state.crowd.drain(..).for_each(|waits| waits.wake());
            }
        }
        if state.out.try_reclaim(MAX_KEPT) {
            state.out = BytesMut::new();
        }
        Poll::Pending
    }

    fn poll_read(
        &self,
        socket: &mut Socket,
        reading: &mut ReadBuffer,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionError> {
        loop {
            match ready!(poll_read_buf(Pin::new(&mut *socket), cx, &mut reading.room())) {
                Ok(0) => return Poll::Ready(ConnectionError::Closed),
                Ok(_) => {}
                Err(error) => return Poll::Ready(ConnectionError::Io(error)),
            }
            reading.last = Instant::now();
            match self.hand_out(reading) {
                Ok(false) => {}
                Ok(true) => {
                    // Whoever asked for it writes it out first, while it is in the processor's cache.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Err(Garbage(what)) => return Poll::Ready(ConnectionError::Garbage(what)),
            }
        }
    }

    /// Gives each whole reply to whoever asked. True if one was large.
    fn hand_out(&self, reading: &mut ReadBuffer) -> Result<bool, Garbage> {
        let mut told = Completed { since: reading.last, count: 0 };
        let handed = self.hand_out_each(reading, &mut told);
        self.count(&told, reading.last);
        handed
    }

    fn hand_out_each(&self, reading: &mut ReadBuffer, told: &mut Completed) -> Result<bool, Garbage> {
        let mut state = self.state.borrow_mut();
        let mut large = false;
        while !reading.is_empty() {
            let Some(owed) = state.owed.front() else { return Err(Garbage("a reply nobody asked for")) };
            let frame = reading.frame(owed.shape, state.names.first(owed.keys))?;
            // What waited for the connection was sent when it was made.
            let epoch = owed.epoch.max(state.made);
            let was_large = reading.is_large();
            let reply = match frame {
                Frame::Partial { at_least } => {
                    let endless = owed.keys > 1;
                    reading.missing_bytes(at_least, endless, |length| match &owed.asker {
                        Some((inbox, _)) => inbox.buffer(length),
                        None => BytesMut::with_capacity(length),
                    });
                    return Ok(large);
                }
                Frame::Whole(length) if owed.shape == Shape::Part => reading.take_part(length, epoch),
                Frame::Whole(length) => Reply::Answered { bytes: reading.take(length).freeze(), epoch },
                Frame::Shared(length) => Reply::Answered { bytes: reading.leave(length), epoch },
                Frame::Nothing => Reply::Part { bytes: reading.leave(0), epoch },
            };
            large |= was_large;
            if let Some(owed) = state.owed.pop_front() {
                state.names.pass(owed.keys);
                match owed.asker {
                    Some(asker) => {
                        if owed.since != told.since {
                            self.count(told, reading.last);
                            *told = Completed { since: owed.since, count: 0 };
                        }
                        told.count += 1;
                        tell(reply, asker, owed.sharers);
                    }
                    None => state.timed_out = state.timed_out.saturating_sub(1),
                }
            }
        }
        Ok(large)
    }

    fn count(&self, told: &Completed, now: Instant) {
        if told.count > 0 {
            let took = now.saturating_duration_since(told.since);
            self.metrics.upstream_ended(self.server.index, UpstreamOutcome::Ok, took, told.count);
        }
    }

    /// When to look at the clock next: when the first command that has not been told times out, or, once all have been, when
    /// the connection is given up.
    fn next_alarm(&self, last_read: Instant) -> Option<Instant> {
        let state = self.state.borrow();
        let limit = self.server.request_timeout;
        match state.owed.get(state.timed_out) {
            Some(owed) => Some(owed.since + limit),
            None => Some(state.owed.front()?.since.max(last_read) + limit * STALLED_TIMEOUTS),
        }
    }

    /// Tells those whose time is over. True if the connection is to be given up.
    fn time_out(&self, last_read: Instant) -> bool {
        let now = Instant::now();
        let limit = self.server.request_timeout;
        let mut state = self.state.borrow_mut();
        loop {
            let at = state.timed_out;
            let Some(owed) = state.owed.get_mut(at).filter(|owed| owed.since + limit <= now) else { break };
            if let Some((inbox, ticket)) = owed.asker.take() {
                self.metrics.upstream_ended(self.server.index, UpstreamOutcome::Timeout, now - owed.since, 1);
                for (inbox, ticket) in owed.sharers.drain(..).chain([(inbox, ticket)]) {
                    inbox.deliver(ticket, Reply::Failed(Failure::TimedOut));
                }
            }
            state.timed_out += 1;
        }
        let Some(first) = state.owed.front() else { return false };
        now.saturating_duration_since(first.since.max(last_read)) >= limit * STALLED_TIMEOUTS
    }

    fn fail_all(&self, broken: &ConnectionError) {
        let (failure, outcome) = match broken {
            ConnectionError::Garbage(_) => (Failure::Refused, UpstreamOutcome::Garbage),
            _ => (Failure::Down, UpstreamOutcome::Down),
        };
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Down;
        (state.timed_out, state.distrusted) = (0, false);
        state.out = BytesMut::new();
        state.unwritten.new_turn();
        state.line.close();
        state.names.clear();
        state.crowd.drain(..).for_each(|waits| waits.wake());
        let mut owed = std::mem::take(&mut state.owed);
        owed.extend(std::mem::take(&mut state.early).asked.into_iter().map(|early| early.owed));
        drop(state);
        self.fail_each(owed, failure, outcome);
    }

    fn fail_each(&self, owed: VecDeque<PendingRequest>, failure: Failure, outcome: UpstreamOutcome) {
        let now = Instant::now();
        for owed in owed {
            if let Some((inbox, ticket)) = owed.asker {
                self.metrics.upstream_ended(self.server.index, outcome, now - owed.since, 1);
                for (inbox, ticket) in owed.sharers.into_iter().chain([(inbox, ticket)]) {
                    inbox.deliver(ticket, Reply::Failed(failure));
                }
            }
        }
    }
}

/// Tells everybody who asked. Whom it was sent for is the first to know: what the server gives to one reader is theirs.
fn tell(reply: Reply, asker: Requester, sharers: Vec<Requester>) {
    let mut last = asker;
    for next in sharers {
        let (inbox, ticket) = std::mem::replace(&mut last, next);
        inbox.deliver(ticket, reply.clone());
    }
    last.0.deliver(last.1, reply);
}

#[cfg(test)]
mod tests;
