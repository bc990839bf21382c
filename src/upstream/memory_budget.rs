//! What one worker's clients make it hold in memory, and who of them has done nothing for long.
//!
//! The budget is strict: what counts towards it is counted before anything else is held. When it is passed, the client that
//! holds most is hung up on, and what it held is gone at once. So the others, who hold less, do not notice.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

pub use super::buffer_pool::QueuePool;
use super::buffer_pool::{BufferPool, SMALLEST};
use super::pending_replies::{PendingReplies, Slot};
use crate::metrics::{Limit, WorkerMetrics};

/// After so many sweeps in which a client did nothing, it is idle: they come at a quarter of `idle_timeout` each.
const QUIET_SWEEPS: u8 = 4;

/// So many small buffers are kept at hand: a client needs two at a time.
const MAX_AT_HAND: usize = 4;

/// The clients of one worker.
pub struct MemoryBudget {
    /// How many bytes all of them may make it hold.
    budget: usize,
    total: Arc<AtomicUsize>,
    spare: Arc<BufferPool>,
    /// Of these, a few of the smallest: for them no mutex has to be asked.
    at_hand: RefCell<Vec<BytesMut>>,
    /// Of inboxes in which nothing is awaited.
    pub(super) slots: QueuePool<Slot>,
    seats: RefCell<HashMap<u64, ClientEntry>>,
    metrics: Arc<WorkerMetrics>,
}

struct ClientEntry {
    inbox: Weak<PendingReplies>,
    /// In how many sweeps in a row it has done nothing.
    quiet: u8,
}

/// Why a client's connection is closed from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// It held most when the budget was passed.
    Buffered,
    /// It did nothing for `idle_timeout`.
    Idle,
    /// It has gone by itself.
    Gone,
}

impl MemoryBudget {
    /// For clients that may make this worker hold so many bytes, all together.
    pub fn new(budget: usize, metrics: Arc<WorkerMetrics>) -> Rc<MemoryBudget> {
        let (total, spare) = Default::default();
        let (at_hand, slots, seats) = Default::default();
        Rc::new(MemoryBudget { budget, total, spare, at_hand, slots, seats, metrics })
    }

    /// A new client's inbox.
    pub fn enter(self: &Rc<Self>, owner: u64) -> Rc<PendingReplies> {
        let account = ByteCount {
            held: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            total: Arc::clone(&self.total),
            spare: Arc::clone(&self.spare),
        };
        let inbox = Rc::new(PendingReplies::of(ClientUsage {
            roll: Rc::clone(self),
            account: Arc::new(account),
            own: Cell::new(0),
            busy: Cell::new(false),
            stirred: Cell::new(true),
            closing: Cell::new(None),
        }));
        self.seats.borrow_mut().insert(owner, ClientEntry { inbox: Rc::downgrade(&inbox), quiet: 0 });
        inbox
    }

    /// A client has gone: what arrives for it later is thrown away.
    pub fn leave(&self, owner: u64) {
        let seat = self.seats.borrow_mut().remove(&owner);
        if let Some(inbox) = seat.and_then(|seat| seat.inbox.upgrade()) {
            inbox.close(CloseReason::Gone);
        }
    }

    /// Whether more than half of the budget is used: then no client should have more than one request on its way.
    pub fn is_tight(&self) -> bool {
        self.total.load(Relaxed) > self.budget / 2
    }

    /// Hangs up on those who hold most, until the rest is within the budget.
    pub(super) fn make_room(&self) {
        while self.total.load(Relaxed) > self.budget {
            let seats = self.seats.borrow();
            let inboxes = seats.values().filter_map(|seat| seat.inbox.upgrade());
            let Some(largest) = inboxes.max_by_key(|inbox| inbox.held()).filter(|inbox| inbox.held() > 0)
            else {
                return;
            };
            drop(seats);
            self.metrics.limit_reached(Limit::Buffered);
            largest.close(CloseReason::Buffered);
        }
    }

    /// An empty buffer with room for so many bytes.
    pub fn take_buffer(&self, room: usize) -> BytesMut {
        let at_hand = if room <= SMALLEST { self.at_hand.borrow_mut().pop() } else { None };
        at_hand.unwrap_or_else(|| self.spare.take(room))
    }

    /// A buffer that is not needed any more, whatever it holds.
    pub fn give_back(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut at_hand = self.at_hand.borrow_mut();
        if buffer.capacity() > 2 * SMALLEST || at_hand.len() >= MAX_AT_HAND || !buffer.try_reclaim(SMALLEST) {
            drop(at_hand);
            return self.spare.give(buffer);
        }
        at_hand.push(buffer);
    }

    /// Frees the buffers that nobody has needed since this was called last.
    pub fn free_unused(&self) {
        self.spare.forget();
    }

    /// Hangs up on those who have done nothing since so many sweeps. `rebuilds` says of whom others wait for a value: such a
    /// client is not idle.
    pub fn sweep(&self, rebuilds: impl Fn(u64) -> bool) {
        let mut idle = Vec::new();
        for (owner, seat) in self.seats.borrow_mut().iter_mut() {
            let Some(inbox) = seat.inbox.upgrade() else { continue };
            seat.quiet = if inbox.was_active() { 0 } else { seat.quiet + 1 };
            if seat.quiet >= QUIET_SWEEPS {
                seat.quiet = 0;
                if !rebuilds(*owner) {
                    idle.push(inbox);
                }
            }
        }
        for inbox in idle {
            self.metrics.limit_reached(Limit::Idle);
            inbox.close(CloseReason::Idle);
        }
    }
}

/// What the roll knows of one client; it lies in the client's inbox.
pub(super) struct ClientUsage {
    pub(super) roll: Rc<MemoryBudget>,
    pub(super) account: Arc<ByteCount>,
    /// The bytes of its own buffers, as it said last.
    pub(super) own: Cell<usize>,
    /// It waits for an answer, so it cannot do anything.
    pub(super) busy: Cell<bool>,
    /// It has done something since the last sweep.
    pub(super) stirred: Cell<bool>,
    pub(super) closing: Cell<Option<CloseReason>>,
}

/// How many bytes one client holds. Atomic because answers carry it, and these could be dropped anywhere.
pub(super) struct ByteCount {
    held: AtomicUsize,
    /// It has been written off: it counts no more.
    over: AtomicBool,
    total: Arc<AtomicUsize>,
    spare: Arc<BufferPool>,
}

impl ByteCount {
    /// An empty buffer for an answer of so many bytes.
    pub(super) fn buffer(&self, room: usize) -> BytesMut {
        self.spare.take(room)
    }

    pub(super) fn held(&self) -> usize {
        if self.over.load(Relaxed) { 0 } else { self.held.load(Relaxed) }
    }

    pub(super) fn add(&self, bytes: usize) {
        if !self.over.load(Relaxed) {
            self.held.fetch_add(bytes, Relaxed);
            self.total.fetch_add(bytes, Relaxed);
        }
    }

    pub(super) fn take(&self, bytes: usize) {
        if !self.over.load(Relaxed) {
            self.held.fetch_sub(bytes, Relaxed);
            self.total.fetch_sub(bytes, Relaxed);
        }
    }

    /// What it holds will be gone in a moment: counts none of it from now on.
    pub(super) fn write_off(&self) {
        if !self.over.swap(true, Relaxed) {
            self.total.fetch_sub(self.held.load(Relaxed), Relaxed);
        }
    }

    /// These bytes count until the last reference to any of them is gone.
    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.add(bytes.len());
        Bytes::from_owner(CountedBytes { bytes, account: Arc::clone(self) })
    }
}

struct CountedBytes {
    bytes: Bytes,
    account: Arc<ByteCount>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.account.take(self.bytes.len());
        if let Ok(buffer) = std::mem::take(&mut self.bytes).try_into_mut() {
            self.account.spare.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::metrics::Metrics;
    use crate::upstream::pending_replies::Reply;

    fn roll(budget: usize) -> (Metrics, Rc<MemoryBudget>) {
        let metrics = Metrics::new(Vec::new(), Vec::new(), 1);
        let roll = MemoryBudget::new(budget, metrics.worker(0));
        (metrics, roll)
    }

    fn answer(inbox: &PendingReplies, size: usize) -> u64 {
        let ticket = inbox.expect();
        inbox.deliver(ticket, Reply::Answered { bytes: Bytes::from(vec![b'x'; size]), epoch: 0 });
        ticket
    }

    fn size(reply: Option<Reply>) -> usize {
        match reply {
            Some(Reply::Answered { bytes, .. }) => bytes.len(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn over_the_budget_the_one_who_holds_most_is_closed_and_nobody_else() {
        let (_metrics, roll) = roll(100_000);
        let (small, hog) = (roll.enter(1), roll.enter(2));
        let kept = answer(&small, 20_000);
        let lost = [answer(&hog, 40_000), answer(&hog, 30_000)];
        assert!(roll.is_tight() && hog.closing().is_none());
        answer(&hog, 30_000);
        assert_eq!((hog.closing(), small.closing()), (Some(CloseReason::Buffered), None));
        for ticket in lost {
            assert!(matches!(hog.take(ticket), Some(Reply::Failed(Failure::Overloaded))));
        }
        assert_eq!((small.held(), roll.total.load(Relaxed)), (20_000, 20_000));
        assert_eq!(size(small.take(kept)), 20_000);
        // What still arrives for the closed one is not held.
        answer(&hog, 90_000);
        assert_eq!(roll.total.load(Relaxed), 0);
    }

    #[test]
    fn an_answer_counts_until_the_last_piece_of_it_is_gone() {
        let (_metrics, roll) = roll(1 << 20);
        let inbox = roll.enter(1);
        let ticket = answer(&inbox, 50_000);
        let Some(Reply::Answered { bytes, .. }) = inbox.take(ticket) else { panic!("no answer") };
        let piece = bytes.slice(7..9);
        drop(bytes);
        assert_eq!(inbox.held(), 50_000);
        drop(piece);
        assert_eq!(inbox.held(), 0);
        inbox.holds(700_000);
        assert!(roll.is_tight());
        inbox.holds(10);
        assert_eq!((inbox.held(), roll.is_tight()), (10, false));
        roll.leave(1);
        assert_eq!(roll.total.load(Relaxed), 0);
    }

    #[test]
    fn the_buffer_of_an_answer_that_is_gone_holds_the_next_one() {
        let (_metrics, roll) = roll(1 << 20);
        let inbox = roll.enter(1);
        let mut buffer = inbox.buffer(50_000);
        buffer.extend_from_slice(&[b'x'; 50_000]);
        let (at, ticket) = (buffer.as_ptr(), inbox.expect());
        inbox.deliver(ticket, Reply::Answered { bytes: buffer.freeze(), epoch: 0 });
        assert_ne!(inbox.buffer(50_000).as_ptr(), at);
        assert_eq!(size(inbox.take(ticket)), 50_000);
        assert_eq!(inbox.buffer(50_000).as_ptr(), at);
    }

    #[test]
    fn who_does_nothing_is_idle_and_who_waits_or_rebuilds_or_stirs_is_not() {
        let (_metrics, roll) = roll(1 << 20);
        let [idle, waits, rebuilds, stirs] = [1, 2, 3, 4].map(|owner| roll.enter(owner));
        waits.is_busy(true);
        for _ in 0..=QUIET_SWEEPS {
            assert_eq!(idle.closing(), None);
            stirs.note_activity();
            roll.sweep(|owner| owner == 3);
        }
        assert_eq!(idle.closing(), Some(CloseReason::Idle));
        for inbox in [&waits, &rebuilds, &stirs] {
            assert_eq!(inbox.closing(), None);
        }
        // Its lease has ended; its answer has come.
        waits.is_busy(false);
        for _ in 0..=QUIET_SWEEPS {
            roll.sweep(|_| false);
        }
        assert_eq!((rebuilds.closing(), waits.closing()), (Some(CloseReason::Idle), Some(CloseReason::Idle)));
    }
}
