//! The state of one client's connection, and the limits that decide whether another request may begin.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::write_queue::WriteQueue;
use crate::auth::Sasl;
use crate::protocol::long_get::LongGet;
use crate::protocol::request::Limits;
use crate::proxy::{Call, Client, Current, InFlight, LongGetState, Proxy, UnreadReply};
use crate::upstream::memory_budget::{MemoryBudget, QueuePool};

/// The most requests in flight per client.
const MAX_CALLS: usize = 1024;
/// A further request is compared with so many calls in flight one by one. If there are more, [`InFlight`] has what they access.
pub(super) const COMPARED: usize = 32;
/// The most keys being read per client while its values are small.
const MAX_READS: usize = 256;
/// The approximate limit in bytes of the requests in flight per client, and of their expected values.
const MAX_AWAITED: usize = 16 * 1024 * 1024;
/// The assumed size of a new client's values in bytes.
const FIRST_VALUE: usize = 128 * 1024;
/// While more bytes than this wait to be written, no further reply is prepared and no request begins.
pub(super) const MAX_OUTPUT: usize = 256 * 1024;
/// The pause before a request that waits for the place of its key looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The minimum buffer space for a read, in bytes.
pub(super) const READ_SIZE: usize = 8 * 1024;
/// memcached's default `-I`: the largest value in bytes until a server reports a larger limit.
const MAX_VALUE: usize = 1024 * 1024;

/// The protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientProtocol {
    /// The text protocol, with its meta commands.
    Text,
    /// The first byte was 0x80: the binary protocol.
    Binary,
}

/// A request in flight.
pub struct PendingCall {
    pub(super) call: Call,
    /// How many keys it reads.
    pub(super) reads: usize,
    /// The length of the request in bytes.
    pub(super) bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// No further request is parsed; those in flight are answered.
    Finishing,
    /// The connection is broken or must be closed: nothing more is written.
    Gone,
    /// The client moves to another process.
    Leaving,
}

pub(super) struct Session<'a, S> {
    pub(super) socket: S,
    pub(super) drain: &'a CancellationToken,
    /// The pipeline of its requests in flight, and of the next if no other is in force.
    pub(super) proxy: Rc<Proxy>,
    /// The pipeline in force.
    pub(super) current: &'a Current,
    /// The number of `proxy` in `current`.
    pub(super) number: u64,
    pub(super) client: Client,
    pub(super) budget: Rc<MemoryBudget>,
    pub(super) queue_pool: &'a QueuePool<PendingCall>,
    /// Bytes read that do not belong to a call yet. Has no capacity while the client is idle.
    pub(super) input: BytesMut,
    /// The least number of bytes that the request at the front of `input` lacks. 0: it is complete, and waits for an earlier one.
    pub(super) missing: usize,
    /// The client has closed its side, or the drain has begun: no more input is read.
    pub(super) eof: bool,
    pub(super) limits: Limits,
    /// How many bytes of a refused data block are still to be discarded.
    pub(super) skip_data: u64,
    /// The `get` whose keys are being read in parts.
    pub(super) long_get: Option<(LongGet, Rc<LongGetState>)>,
    /// In the order received. Has no capacity while empty and the client is idle.
    pub(super) calls: VecDeque<PendingCall>,
    /// What they access, if they have been more than [`COMPARED`] since there was none.
    pub(super) in_flight: Option<Box<InFlight>>,
    /// How many calls are active.
    pub(super) active: usize,
    /// How many keys the calls read.
    pub(super) reads: usize,
    /// The total length of the requests of the calls in bytes.
    pub(super) request_bytes: usize,
    /// The size of the client's recent values in bytes. Rises at once and falls slowly.
    pub(super) typical_value: usize,
    /// How many keys may be read at a time, by `typical_value`.
    pub(super) window: usize,
    /// Whether the last check found too many requests in flight.
    pub(super) at_limit: bool,
    /// Whether the last attempt to read was suppressed by a limit.
    pub(super) throttled: bool,
    /// The socket has nothing more to read in this turn; the task is woken when it has.
    pub(super) socket_empty: bool,
    /// The drain has been polled, so the task is woken when it begins.
    pub(super) polled_drain: bool,
    /// Replies that have not been written. Its buffer has no capacity while the client is idle.
    pub(super) output: WriteQueue,
    /// Since when replies have waited for the client to read them, if they do.
    pub(super) unread_since: Option<Instant>,
    /// The last of these replies with a large value, for the log.
    pub(super) large_read: Option<Box<UnreadReply>>,
    /// Whether the last flush of the socket has completed.
    pub(super) flushed: bool,
    /// The request at the front of `input` waits for the place of its key, and looks again then.
    pub(super) held: Option<Pin<Box<Sleep>>>,
    /// `None` until the first byte.
    pub(super) protocol: Option<ClientProtocol>,
    /// `Some` if the client speaks the binary protocol on a listener with passwords.
    pub(super) sasl: Option<Sasl>,
    /// The configuration whose connections to the servers have all been tried, so that commands reach them in the order sent.
    pub(super) connected: Option<u64>,
    /// The last request was a quiet get of a binary client, which more of them or a `noop` may follow.
    pub(super) in_sequence: bool,
    pub(super) state: State,
}

/// When to look again whether a request still waits for the place of its key.
pub(super) fn look_again() -> Option<Pin<Box<Sleep>>> {
    Some(Box::pin(sleep(LOOK_AGAIN)))
}

impl<'a, S> Session<'a, S> {
    pub(super) fn new(
        socket: S,
        client: Client,
        current: &'a Current,
        budget: Rc<MemoryBudget>,
        queue_pool: &'a QueuePool<PendingCall>,
        drain: &'a CancellationToken,
    ) -> Self {
        Session {
            socket,
            drain,
            proxy: current.proxy(),
            current,
            number: current.number(),
            client,
            budget,
            queue_pool,
            input: BytesMut::new(),
            missing: 1,
            eof: false,
            limits: Limits { max_value: MAX_VALUE },
            skip_data: 0,
            long_get: None,
            calls: VecDeque::new(),
            in_flight: None,
            active: 0,
            reads: 0,
            request_bytes: 0,
            typical_value: FIRST_VALUE,
            window: window(FIRST_VALUE),
            at_limit: false,
            throttled: false,
            socket_empty: false,
            polled_drain: false,
            output: WriteQueue::default(),
            unread_since: None,
            large_read: None,
            flushed: true,
            held: None,
            protocol: None,
            sasl: None,
            connected: None,
            in_sequence: false,
            state: State::Open,
        }
    }

    /// Whether the next request may begin: under a configuration that has come into force only after the last one that began under
    /// another has ended. Then this follows.
    pub(super) fn is_current(&mut self) -> bool {
        if self.number == self.current.number() {
            return true;
        }
        let is_free = self.calls.is_empty() && self.long_get.is_none();
        if is_free {
            (self.proxy, self.number) = (self.current.proxy(), self.current.number());
        }
        is_free
    }

    /// Whether another request may begin. Once a limit has been reached, half of it must be free first: sending to the servers in
    /// many small pieces is more expensive than in a few large ones.
    pub(super) fn has_room(&mut self) -> bool {
        if self.calls.back().is_some_and(|pending| pending.call.is_barrier()) {
            return false;
        }
        let share = if self.at_limit { 2 } else { 1 };
        let few = self.calls.len() < MAX_CALLS / share
            && self.reads * share < self.window.max(share)
            && self.request_bytes < MAX_AWAITED / share;
        self.at_limit = !few;
        self.output.len() < MAX_OUTPUT && (self.calls.is_empty() || (few && !self.budget.is_tight()))
    }
}

impl<S> Drop for Session<'_, S> {
    fn drop(&mut self) {
        self.budget.leave(self.client.owner.connection);
    }
}

/// How many keys may be read at a time if values have this size in bytes.
pub(super) fn window(typical_value: usize) -> usize {
    (MAX_AWAITED / typical_value.max(1)).clamp(1, MAX_READS)
}
