//! One pipelined connection to one server, shared by all clients of a worker.
//!
//! ```text
//!  send ──▶ output ──(one write per turn of the loop)──▶ server
//!     └──▶ pending: one request per command, in order      │
//!  replies ◀────────── the first pending request ◀── frames ┘
//! ```
//!
//! **Architecture invariant:** a request leaves `pending` only with its reply or with the connection. A command that has timed
//! out, or whose client is gone, keeps its request, and its reply is read and discarded. So replies are never mixed up.
//!
//! This file queues commands. In the folder, `connecting` connects and reconnects, `serving` writes commands and reads
//! replies, `idle` keeps what is queued when an idle connection is closed, `room` knows who waits until less is written, and
//! `recovering` leads a sick server back.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::batched_gets::{GetKind, GetLine, KeyDigests};
use super::capabilities::MissingFeature;
use super::coalescing::{ReadKind, UnsentReads};
use super::pending_replies::PendingReplies;
use super::reply::{Reply, ReplyId};
use super::server::Server;
use crate::error::Failure;
use crate::metrics::{ServerMetrics, UpstreamOutcome};
use crate::protocol::reply::{Shape, digest};
use room::WaitingForRoom;

mod connecting;
mod idle;
mod recovering;
mod room;
mod serving;

/// The most commands pending on one server for one worker. Further ones fail as "overloaded" at once.
const MAX_PENDING: usize = 64 * 1024;
/// The most bytes queued for one server, plus one command. Further commands fail as "overloaded" at once.
const MAX_OUTPUT: usize = 64 * 1024 * 1024;
/// With more bytes queued than this, large requests are held back, to leave room for small ones.
const CONGESTED: usize = 16 * 1024 * 1024;

/// One worker's connection to one server, which is remade whenever it ends.
pub struct Connection {
    server: Arc<Server>,
    metrics: ServerMetrics,
    first_attempt: Cell<Option<TaskTrackerToken>>,
    /// Replies that take at least this long are slow: their times are noted for whoever takes them.
    slow: Cell<Duration>,
    /// When the server last answered a request.
    answered_at: Cell<Option<Instant>>,
    state: RefCell<State>,
}

struct State {
    phase: Phase,
    /// The server's epoch when this connection was made.
    epoch: u32,
    /// The feature that the guard needs and the server lacks, if known.
    missing_feature: Option<MissingFeature>,
    output: BytesMut,
    pending: VecDeque<PendingRequest>,
    deferred: DeferredCommands,
    unsent_reads: UnsentReads,
    get_line: GetLine,
    key_digests: KeyDigests,
    /// The clients to wake once there is room for a large request, each at most once.
    waiting_for_room: WaitingForRoom,
    /// How many requests at the front of `pending` have timed out.
    timed_out: usize,
    /// Whether the connection must be remade.
    distrusted: bool,
    /// How many requests at the back of `pending` may not have been written.
    unwritten: usize,
    /// Whether the last attempt left bytes in `output`, or there was no connection.
    is_behind: bool,
    /// When the commands to be written next were sent. All of them get the same time, to read the clock once.
    batch_sent: Option<Instant>,
    /// The waker of the task that drives the connection.
    waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first attempt of this or another worker is in progress, or one after an idle connection was closed: commands wait for
    /// it.
    Connecting,
    Up,
    /// Commands fail at once.
    Down,
}

/// The guard's commands that were sent before it is known whether the server has the features they need.
#[derive(Default)]
struct DeferredCommands {
    output: BytesMut,
    commands: VecDeque<DeferredCommand>,
}

struct DeferredCommand {
    request: PendingRequest,
    /// The length of the command in the deferred output.
    length: usize,
    /// The epoch of the CAS that the command depends on.
    cas_epoch: Option<u32>,
}

/// Who sends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// A client: its commands go to any server.
    Client,
    /// The guard: its commands go only to servers that have the features it needs.
    Guard,
}

struct PendingRequest {
    /// `None` once the request has timed out.
    requester: Option<Requester>,
    /// Those that sent the same read before it was written: they get the same reply.
    sharers: Vec<Requester>,
    shape: Shape,
    /// How many of the key digests belong to it; 0 if it is no `get`.
    keys: usize,
    sent: Instant,
    /// When it was written, if that was later than when it was sent.
    written: Option<Instant>,
    /// How many requests were queued before it.
    ahead: u32,
    /// The server's epoch when the request was sent.
    epoch: u32,
    /// What must be known of a command of the guard that is written to the output, for another connection to take it.
    guarded: Option<GuardCommand>,
}

/// A command of the guard in the output.
#[derive(Debug, Clone)]
struct GuardCommand {
    /// Where it is, as long as none of the output is written.
    at: Range<usize>,
    /// See [`DeferredCommand`].
    cas_epoch: Option<u32>,
}

/// Where a reply goes.
type Requester = (Rc<PendingReplies>, ReplyId);

impl State {
    /// Writes the first key of a `get` whose request is pushed next. Returns its range in the output.
    fn add_key(&mut self, key: &[u8], digest: u64, kind: GetKind) -> Range<usize> {
        if kind.exptime.is_some() {
            self.unsent_reads.new_turn();
        }
        let added = self.get_line.add(&mut self.output, &mut self.key_digests, key, digest, kind);
        if added.joined
            && let Some(before) = self.pending.back_mut()
        {
            before.shape = Shape::Part;
        }
        added.at
    }
}

impl State {
    /// Requests that have not been written yet, because the output is behind, have waited until now.
    fn note_unwritten(&mut self, now: Instant) {
        if self.is_behind {
            self.pending
                .iter_mut()
                .rev()
                .take(self.unwritten)
                .for_each(|request| request.written = Some(now));
        }
    }
}

impl Connection {
    /// A connection, which does nothing until it is driven: see [`Connection::drive`].
    pub fn new(
        server: Arc<Server>,
        first_attempt: TaskTrackerToken,
        metrics: ServerMetrics,
    ) -> Rc<Connection> {
        let state = State {
            phase: Phase::Connecting,
            epoch: 0,
            missing_feature: None,
            output: BytesMut::new(),
            pending: VecDeque::new(),
            deferred: DeferredCommands::default(),
            unsent_reads: UnsentReads::new(),
            get_line: GetLine::default(),
            key_digests: KeyDigests::default(),
            waiting_for_room: WaitingForRoom::default(),
            timed_out: 0,
            distrusted: false,
            unwritten: 0,
            is_behind: true,
            batch_sent: None,
            waker: None,
        };
        let first_attempt = Cell::new(Some(first_attempt));
        let (slow, answered_at) = (Cell::new(Duration::MAX), Cell::new(None));
        let state = RefCell::new(state);
        Rc::new(Connection { server, metrics, first_attempt, slow, answered_at, state })
    }

    /// From now on, replies that take at least this long are slow.
    pub fn note_slow_from(&self, slow: Duration) {
        self.slow.set(slow);
    }

    /// The server it connects to.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The same, for another connection to it.
    pub(crate) fn shared_server(&self) -> Arc<Server> {
        Arc::clone(&self.server)
    }

    /// Whether it is a connection to this server.
    pub fn is_to(&self, server: &Arc<Server>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    /// Sends one command of a client. `write` appends the whole command, without noreply. Its reply, of this shape, is delivered
    /// to `replies`.
    pub fn send(
        &self,
        replies: &Rc<PendingReplies>,
        shape: Shape,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        self.queue(replies, Sender::Client, shape, None, write)
    }

    /// Sends one meta command of the guard. If the server lacks a feature the guard needs, the command is not sent and fails as
    /// [`Failure::Unguarded`].
    ///
    /// `cas_epoch` is the epoch of the CAS that the command depends on. If this connection was made later, the server may have
    /// restarted and reset its CAS counter: then the command is not sent, and the reply is [`Reply::StaleCas`].
    pub fn send_guard(
        &self,
        replies: &Rc<PendingReplies>,
        cas_epoch: Option<u32>,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        self.queue(replies, Sender::Guard, Shape::Meta, cas_epoch, write)
    }

    /// The same for a command whose reply has another shape than that of a meta command.
    pub fn send_guard_shaped(
        &self,
        replies: &Rc<PendingReplies>,
        shape: Shape,
        cas_epoch: Option<u32>,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        self.queue(replies, Sender::Guard, shape, cas_epoch, write)
    }

    fn queue(
        &self,
        replies: &Rc<PendingReplies>,
        sender: Sender,
        shape: Shape,
        cas_epoch: Option<u32>,
        write: impl FnOnce(&mut BytesMut),
    ) -> ReplyId {
        let id = replies.expect();
        let Some(mut state) = self.admit(replies, id, sender, cas_epoch) else { return id };
        state.unsent_reads.new_turn();
        if (sender, state.phase) == (Sender::Guard, Phase::Connecting) {
            let request = self.new_request(&mut state, replies, id, shape, 0);
            let DeferredCommands { output, commands } = &mut state.deferred;
            let before = output.len();
            write(output);
            commands.push_back(DeferredCommand { request, length: output.len() - before, cas_epoch });
        } else {
            let from = state.output.len();
            write(&mut state.output);
            let at = from..state.output.len();
            let guarded = (sender == Sender::Guard).then_some(GuardCommand { at, cas_epoch });
            self.push(state, replies, id, (shape, 0), guarded);
        }
        id
    }

    /// Sends a meta read of the guard, or joins an identical unsent one. The second value is true if it joined: then what the
    /// server grants to one reader only (`W`) belongs to the other.
    pub fn read(&self, replies: &Rc<PendingReplies>, write: impl FnOnce(&mut BytesMut)) -> (ReplyId, bool) {
        if self.state.borrow().phase == Phase::Connecting {
            return (self.send_guard(replies, None, write), false);
        }
        let id = replies.expect();
        let Some(mut state) = self.admit(replies, id, Sender::Guard, None) else { return (id, false) };
        let State { output, unsent_reads, pending, .. } = &mut *state;
        let from = output.len();
        write(output);
        let (digest, kind) = (digest(&output[from..]), ReadKind::Meta);
        if let Some(same) = unsent_reads.find(digest, kind, &output[from..], output) {
            output.truncate(from);
            self.share(state, same, replies, id);
            return (id, true);
        }
        let at = from..output.len();
        unsent_reads.add(digest, kind, at.clone(), pending.len());
        self.push(state, replies, id, (Shape::Meta, 0), Some(GuardCommand { at, cas_epoch: None }));
        (id, false)
    }

    /// Sends a `get` of one key. It joins an identical unsent one, or is put on the line of an unsent one. The reply is a
    /// [`Shape::Value`] or a [`Reply::Part`].
    pub fn get(&self, replies: &Rc<PendingReplies>, key: &[u8], kind: GetKind) -> ReplyId {
        let id = replies.expect();
        let Some(mut state) = self.admit(replies, id, Sender::Client, None) else { return id };
        let digest = digest(key);
        let read = match kind {
            // It changes what it reads.
            GetKind { exptime: Some(_), .. } => None,
            GetKind { cas: false, .. } => Some(ReadKind::Get),
            GetKind { cas: true, .. } => Some(ReadKind::Gets),
        };
        if let Some(read) = read
            && let Some(same) = state.unsent_reads.find(digest, read, key, &state.output)
        {
            self.share(state, same, replies, id);
            return id;
        }
        let at = state.add_key(key, digest, kind);
        if let Some(read) = read {
            let next = state.pending.len();
            state.unsent_reads.add(digest, read, at, next);
        }
        self.push(state, replies, id, (Shape::Value, 1), None);
        id
    }

    /// Sends one of several keys that a client reads together. The key is added to the line of the keys before it, whose id is
    /// `last`, if it fits. Otherwise it gets an id of its own. The reply is a [`Shape::Values`] or a [`Reply::Part`].
    ///
    /// A later `get` of the same client joins no read that was queued before this: it would get an older value.
    pub fn get_one_of(
        &self,
        replies: &Rc<PendingReplies>,
        key: &[u8],
        kind: GetKind,
        last: Option<ReplyId>,
    ) -> ReplyId {
        let digest = digest(key);
        if let Some(last) = last {
            let State { output, pending, get_line, key_digests, unsent_reads, .. } =
                &mut *self.state.borrow_mut();
            if let Some(PendingRequest { requester: Some((requester, id)), keys, .. }) = pending.back_mut()
                && Rc::ptr_eq(requester, replies)
                && *id == last
                && get_line.add_more(output, key_digests, key, digest, kind, *keys)
            {
                *keys += 1;
                unsent_reads.remove(digest);
                return last;
            }
        }
        let id = replies.expect();
        let Some(mut state) = self.admit(replies, id, Sender::Client, None) else { return id };
        state.add_key(key, digest, kind);
        state.unsent_reads.remove(digest);
        self.push(state, replies, id, (Shape::Values, 1), None);
        id
    }

    /// The state, if a command may be queued. Otherwise its failure is delivered.
    fn admit(
        &self,
        replies: &Rc<PendingReplies>,
        id: ReplyId,
        sender: Sender,
        cas_epoch: Option<u32>,
    ) -> Option<RefMut<'_, State>> {
        let mut state = self.state.borrow_mut();
        let (reply, refused) = match (state.phase, cas_epoch) {
            (Phase::Up, _) if sender == Sender::Guard && state.missing_feature.is_some() => {
                (Reply::Failed(Failure::Unguarded), Some(UpstreamOutcome::Unguarded))
            }
            _ if !self.server.health.admits() => (Reply::Failed(Failure::Down), Some(UpstreamOutcome::Down)),
            (Phase::Down, _) => (Reply::Failed(Failure::Down), Some(UpstreamOutcome::Down)),
            (Phase::Up, Some(cas_epoch)) if state.epoch > cas_epoch => (Reply::StaleCas, None),
            _ if state.pending.len() + state.deferred.commands.len() >= MAX_PENDING
                || state.output.len() + state.deferred.output.len() >= MAX_OUTPUT =>
            {
                (Reply::Failed(Failure::Overloaded), Some(UpstreamOutcome::Overloaded))
            }
            (phase, _) => {
                // A command that waits for the first connection may time out soon, so it is not shared.
                if phase == Phase::Connecting {
                    state.unsent_reads.new_turn();
                }
                return Some(state);
            }
        };
        drop(state);
        if let Some(outcome) = refused {
            self.metrics.refused(outcome);
        }
        replies.deliver(id, reply);
        None
    }

    /// Adds the request of a command that was written to the output, with the shape of its reply and its number of keys.
    fn push(
        &self,
        mut state: RefMut<'_, State>,
        replies: &Rc<PendingReplies>,
        id: ReplyId,
        (shape, keys): (Shape, usize),
        guarded: Option<GuardCommand>,
    ) {
        let request = self.new_request(&mut state, replies, id, shape, keys);
        state.pending.push_back(PendingRequest { guarded, ..request });
        state.unwritten += 1;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn new_request(
        &self,
        state: &mut State,
        replies: &Rc<PendingReplies>,
        id: ReplyId,
        shape: Shape,
        keys: usize,
    ) -> PendingRequest {
        let sent = match state.phase {
            Phase::Up => *state.batch_sent.get_or_insert_with(Instant::now),
            // Nothing is written yet, and commands may wait for different times.
            Phase::Connecting | Phase::Down => Instant::now(),
        };
        let (requester, epoch) = (Some((Rc::clone(replies), id)), self.server.epoch());
        self.metrics.sent();
        let ahead = u32::try_from(state.pending.len()).unwrap_or(u32::MAX);
        let (sharers, written, guarded) = (Vec::new(), None, None);
        PendingRequest { requester, sharers, shape, keys, sent, written, ahead, epoch, guarded }
    }

    /// Lets a read share the reply to this pending request.
    fn share(&self, mut state: RefMut<'_, State>, same: usize, replies: &Rc<PendingReplies>, id: ReplyId) {
        if let Some(same) = state.pending.get_mut(same) {
            same.sharers.push((Rc::clone(replies), id));
            self.metrics.shared();
        }
    }

    /// Whether an attempt to connect is in progress that commands wait for.
    pub fn is_connecting(&self) -> bool {
        self.state.borrow().phase == Phase::Connecting
    }

    /// Whether too many bytes are queued for a large request. If so, the client is woken once they are fewer.
    pub fn is_congested(&self, replies: &Rc<PendingReplies>) -> bool {
        let mut state = self.state.borrow_mut();
        let congested = state.output.len() >= CONGESTED;
        if congested {
            state.waiting_for_room.add(replies);
        }
        congested
    }

    /// Has the connection remade because a reply of this epoch was well-formed but did not match its command. Does nothing if
    /// the connection was remade since.
    pub fn distrust(&self, epoch: u32) {
        let mut state = self.state.borrow_mut();
        state.distrusted |= state.phase == Phase::Up && epoch >= state.epoch;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// The feature that the guard needs and the server lacks, if known.
    pub fn missing_feature(&self) -> Option<MissingFeature> {
        self.state.borrow().missing_feature
    }
}

#[cfg(test)]
mod tests;
