//! The replies that one client is waiting for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::memory_budget::{BudgetedClient, ClientUsage, CloseReason, MemoryBudget};
use super::reply::{COUNTED, Slot};
pub use super::reply::{END, Reply, ReplyId};
use crate::error::Failure;
use crate::looked_at;
use crate::trace::Timing;

/// The most slow replies of one client whose times are remembered until they are taken. Of further ones, the oldest is forgotten.
const MAX_SLOW: usize = 256;
/// With more slots than this, small replies are copied. Otherwise each of them could keep a whole read buffer alive while its
/// client takes nothing.
const COPY_ABOVE: usize = 64;

/// The replies that one task is waiting for, from any number of servers. When it is dropped, replies that arrive later are
/// discarded.
#[derive(Default)]
pub struct PendingReplies {
    state: RefCell<State>,
    /// The client's share of the memory budget; `None` for a task that is no client.
    usage: Option<ClientUsage>,
    /// Where the time of the call goes that is being polled.
    timing: Cell<Timing>,
}

#[derive(Debug, Default)]
struct State {
    /// The id of the first slot.
    first: ReplyId,
    slots: VecDeque<Slot>,
    /// Room for copies of small replies.
    copies: BytesMut,
    waker: Option<Waker>,
    /// How long slow replies waited to be sent, and then for the server.
    slow: BTreeMap<ReplyId, (Duration, Duration)>,
}

impl PendingReplies {
    /// The replies of a new client, whose memory counts towards this budget.
    pub fn for_client(budget: &Rc<MemoryBudget>, client: u64) -> Rc<PendingReplies> {
        let usage = Some(ClientUsage::new(budget, client));
        let replies = Rc::new(PendingReplies { usage, ..PendingReplies::default() });
        let budgeted: Rc<dyn BudgetedClient> = replies.clone();
        budget.add(client, Rc::downgrade(&budgeted));
        replies
    }

    /// Adds a slot for the reply to a command that is sent next.
    pub(super) fn expect(&self) -> ReplyId {
        let mut state = self.state.borrow_mut();
        if let (0, Some(usage)) = (state.slots.capacity(), &self.usage) {
            state.slots = usage.budget.slots.take();
        }
        state.slots.push_back(Slot::Pending);
        state.first + state.slots.len() as u64 - 1
    }

    /// Stores a reply and wakes the task.
    pub(super) fn deliver(&self, id: ReplyId, reply: Reply) {
        let reply = match (reply, &self.usage) {
            (Reply::Answered { bytes, epoch }, Some(usage)) if bytes.len() >= COUNTED => {
                // Small replies are delivered to a closing client too: one of them may have won a lease.
                if usage.closing.get().is_some() {
                    return self.store(id, Reply::Failed(Failure::Overloaded));
                }
                let bytes = usage.bytes.count(bytes);
                self.store(id, Reply::Answered { bytes, epoch });
                return usage.budget.enforce(usage.id, self);
            }
            (reply, _) => reply,
        };
        self.store(id, reply);
    }

    fn store(&self, id: ReplyId, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let Some(at) = id.checked_sub(state.first) else { return };
        let State { slots, copies, .. } = &mut *state;
        let copy = slots.len() > COPY_ABOVE;
        if let Some(slot) = slots.get_mut(at as usize) {
            *slot = Slot::Arrived(if copy { reply.detached(copies) } else { reply });
        }
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// Takes a reply, if it has arrived.
    pub fn take(&self, id: ReplyId) -> Option<Reply> {
        let mut state = self.state.borrow_mut();
        let at = id.checked_sub(state.first)? as usize;
        let slot = state.slots.get_mut(at)?;
        let Slot::Arrived(_) = slot else { return None };
        let Slot::Arrived(reply) = std::mem::replace(slot, Slot::Taken) else { return None };
        if !state.slow.is_empty() {
            self.take_slow(&mut state, id);
        }
        while let Some(Slot::Taken) = state.slots.front() {
            state.slots.pop_front();
            state.first += 1;
        }
        Some(reply)
    }

    /// A reply to be delivered next waited this long to be sent, and then for the server.
    pub(super) fn note_slow(&self, id: ReplyId, queue: Duration, server: Duration) {
        let mut state = self.state.borrow_mut();
        state.slow.insert(id, (queue, server));
        if state.slow.len() > MAX_SLOW {
            state.slow.pop_first();
        }
    }

    /// The reply is taken: its time counts for the call that takes it.
    #[cold]
    fn take_slow(&self, state: &mut State, id: ReplyId) {
        if let Some((queue, server)) = state.slow.remove(&id) {
            let mut timing = self.timing.get();
            timing.add_reply(queue, server);
            self.timing.set(timing);
        }
        // Nobody takes those before.
        while state.slow.first_key_value().is_some_and(|(slow, _)| *slow < state.first) {
            looked_at::entry();
            state.slow.pop_first();
        }
    }

    /// A call is polled whose time went there before.
    pub fn begin_turn(&self, mut timing: Timing) {
        timing.next_turn();
        self.timing.set(timing);
    }

    /// Where the time of the call went that is being polled.
    pub fn timing(&self) -> Timing {
        self.timing.get()
    }

    /// Replaces what was measured so far.
    pub fn set_timing(&self, timing: Timing) {
        self.timing.set(timing);
    }

    /// The call that is being polled has waited so long for a build.
    pub fn note_build(&self, waited: Duration) {
        let mut timing = self.timing.get();
        timing.add_build(waited);
        self.timing.set(timing);
    }

    /// Whether a reply has arrived and was not taken.
    pub fn has_arrived(&self, id: ReplyId) -> bool {
        let state = self.state.borrow();
        let at = id.checked_sub(state.first).map(|at| at as usize);
        matches!(at.and_then(|at| state.slots.get(at)), Some(Slot::Arrived(_)))
    }

    /// Wakes this task when the next reply arrives.
    pub fn wake_on_next(&self, cx: &Context<'_>) {
        let mut state = self.state.borrow_mut();
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
    }

    /// Releases the memory that is not needed until the client sends or receives something.
    pub fn release_unused(&self) {
        if let Some(usage) = &self.usage {
            let mut state = self.state.borrow_mut();
            usage.budget.slots.take_back(&mut state.slots);
            if state.slots.is_empty() {
                state.copies = BytesMut::new();
            }
        }
    }

    /// An empty buffer for a reply of at least this many bytes.
    pub(super) fn buffer(&self, capacity: usize) -> BytesMut {
        match &self.usage {
            Some(usage) => usage.bytes.buffer(capacity),
            None => BytesMut::with_capacity(capacity),
        }
    }

    /// Sets how many bytes the client's own buffers take.
    pub fn set_buffered(&self, bytes: usize) {
        let Some(usage) = &self.usage else { return };
        let before = usage.own_buffers.replace(bytes);
        if bytes > before {
            usage.bytes.add(bytes - before);
            usage.budget.enforce(usage.id, self);
        } else if bytes < before {
            usage.bytes.subtract(before - bytes);
        }
    }

    /// Counts a reply that is kept to be written later, until it is dropped.
    pub fn keep(&self, reply: Bytes) -> Bytes {
        match &self.usage {
            Some(usage) if reply.len() >= COUNTED => {
                let reply = usage.bytes.count(reply);
                usage.budget.enforce(usage.id, self);
                reply
            }
            _ => reply,
        }
    }

    /// Sets whether the client is waiting for a reply. A waiting client is not idle.
    pub fn set_waiting(&self, busy: bool) {
        if let Some(usage) = &self.usage {
            usage.busy.set(busy);
        }
    }

    /// Notes that the client sent a whole request, or received a part of a reply.
    pub fn note_activity(&self) {
        if let Some(usage) = &self.usage {
            usage.active.set(true);
        }
    }

    /// Why the client's connection must be closed, if so.
    pub fn closing(&self) -> Option<CloseReason> {
        self.usage.as_ref().and_then(|usage| usage.closing.get())
    }

    /// Wakes the task without a reply.
    pub(super) fn wake(&self) {
        let waker = self.state.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for one reply.
    pub async fn receive(&self, id: ReplyId) -> Reply {
        std::future::poll_fn(|cx| match self.take(id) {
            Some(reply) => Poll::Ready(reply),
            None => {
                self.wake_on_next(cx);
                Poll::Pending
            }
        })
        .await
    }
}

impl BudgetedClient for PendingReplies {
    fn held(&self) -> usize {
        self.usage.as_ref().map_or(0, |usage| usage.bytes.held())
    }

    fn rank(&self) -> u32 {
        self.usage.as_ref().map_or(0, |usage| usage.rank.get())
    }

    fn set_rank(&self, rank: u32) {
        if let Some(usage) = &self.usage {
            usage.rank.set(rank);
        }
    }

    fn was_active(&self) -> bool {
        self.usage.as_ref().is_none_or(|usage| usage.active.replace(false) || usage.busy.get())
    }

    fn wake(&self) {
        PendingReplies::wake(self);
    }

    fn close(&self, why: CloseReason) {
        let Some(usage) = &self.usage else { return };
        if usage.closing.get().is_none() {
            usage.closing.set(Some(why));
        }
        usage.bytes.write_off();
        let mut state = self.state.borrow_mut();
        for slot in &mut state.slots {
            if let Slot::Arrived(Reply::Answered { bytes, .. }) = slot
                && bytes.len() >= COUNTED
            {
                *slot = Slot::Arrived(Reply::Failed(Failure::Overloaded));
            }
        }
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_slow_reply_is_found_without_a_look_at_the_others() {
        let replies = PendingReplies::default();
        let ids: Vec<ReplyId> = (0..2 * MAX_SLOW).map(|_| replies.expect()).collect();
        for (at, id) in ids.iter().enumerate() {
            replies.note_slow(*id, Duration::ZERO, Duration::from_millis(at as u64));
            replies.deliver(*id, Reply::Failed(Failure::Down));
        }
        assert_eq!(replies.state.borrow().slow.len(), MAX_SLOW);
        for (at, id) in ids.iter().enumerate().rev() {
            replies.begin_turn(Timing::default());
            assert_eq!(looked_at::during(|| assert!(replies.take(*id).is_some())), 0);
            let kept = at >= MAX_SLOW;
            assert_eq!(replies.timing() == Timing::default(), !kept, "{at}");
        }
        // Those that nobody takes go with the next that is taken.
        let gone = replies.expect();
        replies.note_slow(gone, Duration::ZERO, Duration::ZERO);
        replies.state.borrow_mut().first += 1;
        replies.state.borrow_mut().slots.clear();
        let next = replies.expect();
        replies.deliver(next, Reply::Failed(Failure::Down));
        assert_eq!(looked_at::during(|| assert!(replies.take(next).is_some())), 1);
        assert!(replies.state.borrow().slow.is_empty());
    }

    #[test]
    fn a_small_reply_does_not_keep_its_read_buffer_while_many_are_pending() {
        let replies = PendingReplies::default();
        let ids: Vec<ReplyId> = (0..2 * COPY_ABOVE).map(|_| replies.expect()).collect();
        let read = Bytes::from(vec![b'x'; 64 * 1024]);
        let pieces = |part: bool| {
            let bytes = read.slice(..100);
            if part { Reply::Part { bytes, epoch: 1 } } else { Reply::Answered { bytes, epoch: 1 } }
        };
        ids.iter().for_each(|id| replies.deliver(*id, pieces(id % 2 == 0)));
        let taken: Vec<Reply> = ids.iter().filter_map(|id| replies.take(*id)).collect();
        assert_eq!(taken.len(), 2 * COPY_ABOVE);
        assert!(read.is_unique());
        // A large reply is not copied, and neither is a small one while few are pending.
        let (large, small) = (replies.expect(), replies.expect());
        replies.deliver(large, Reply::Answered { bytes: read.slice(..COUNTED), epoch: 1 });
        replies.deliver(small, pieces(true));
        let held = [large, small].map(|id| replies.take(id));
        assert!(held.iter().all(Option::is_some) && !read.is_unique());
    }
}
