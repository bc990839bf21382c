//! How much memory one worker's clients make it hold, and which of them are idle.
//!
//! The budget is strict: large replies count as soon as they arrive. When it is exceeded, the client that holds most is closed
//! and its replies are freed at once, so that clients that hold less are not affected. Of clients that hold about the same, within an
//! eighth, it may be any.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};

pub use super::buffer_pool::QueuePool;
use super::buffer_pool::{BufferPool, SMALLEST};
use super::reply::Slot;
use crate::looked_at;
use crate::metrics::{Limit, WorkerMetrics};

/// A client is idle after this many sweeps without activity. A sweep runs every quarter of `idle_timeout`.
const IDLE_SWEEPS: u8 = 4;

/// The number of small buffers that are kept outside the pool: a client needs two at a time.
const MAX_AT_HAND: usize = 4;

/// The memory of one worker's clients.
pub struct MemoryBudget {
    /// The limit for all clients together, in bytes.
    budget: Cell<usize>,
    total: Arc<AtomicUsize>,
    pool: Arc<BufferPool>,
    /// A few of the smallest buffers, which are taken without locking the pool's mutex.
    at_hand: RefCell<Vec<BytesMut>>,
    /// Empty slot queues of clients that are waiting for no reply.
    pub(super) slots: QueuePool<Slot>,
    clients: RefCell<HashMap<u64, ClientEntry>>,
    /// The clients by their ranks: see [`BudgetedClient::rank`]. So the one that holds most is found without a look at all of them.
    by_rank: RefCell<BTreeSet<(u32, u64)>>,
    metrics: Arc<WorkerMetrics>,
}

struct ClientEntry {
    client: Weak<dyn BudgetedClient>,
    /// The number of sweeps in a row without activity.
    idle_sweeps: u8,
}

/// What the budget needs to know of a client and may do to it.
pub(super) trait BudgetedClient {
    /// The number of bytes the client holds, in replies and buffers.
    fn held(&self) -> usize;
    /// The [`rank`] of the most bytes that the client was seen to hold, which is lowered when that is found to be less.
    fn rank(&self) -> u32;
    fn set_rank(&self, rank: u32);
    /// Whether the client was active since the last call, or is waiting for a reply.
    fn was_active(&self) -> bool;
    /// Has the client's connection closed, and frees the large replies that have arrived for it.
    fn close(&self, why: CloseReason);
    fn wake(&self);
}

/// Ascends with the bytes that a client holds, in steps of an eighth and less.
fn rank(held: usize) -> u32 {
    const STEPS: u32 = 3;
    let held = held.max(1 << STEPS);
    let size = held.ilog2();
    (size << STEPS) + (held >> (size - STEPS)) as u32 % (1 << STEPS)
}

/// Why Kennel closes a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The client held most when the budget was exceeded.
    Buffered,
    /// The client did nothing for `idle_timeout`.
    Idle,
    /// The client has closed the connection.
    Gone,
}

impl MemoryBudget {
    /// A budget of this many bytes for all clients of one worker.
    pub fn new(budget: usize, metrics: Arc<WorkerMetrics>) -> Rc<MemoryBudget> {
        let (total, pool) = Default::default();
        let (at_hand, slots, clients, by_rank) = Default::default();
        let budget = Cell::new(budget);
        Rc::new(MemoryBudget { budget, total, pool, at_hand, slots, clients, by_rank, metrics })
    }

    pub(super) fn add(&self, id: u64, client: Weak<dyn BudgetedClient>) {
        self.clients.borrow_mut().insert(id, ClientEntry { client, idle_sweeps: 0 });
    }

    /// Removes a client that has disconnected. Its later replies are discarded.
    pub fn leave(&self, id: u64) {
        let entry = self.clients.borrow_mut().remove(&id);
        if let Some(client) = entry.and_then(|entry| entry.client.upgrade()) {
            self.by_rank.borrow_mut().remove(&(client.rank(), id));
            client.close(CloseReason::Gone);
        }
    }

    /// Whether more than half of the budget is used. Then each client should have at most one request in flight.
    pub fn is_tight(&self) -> bool {
        self.total.load(Relaxed) > self.budget.get() / 2
    }

    /// The client with this number may hold more than before. Closes the clients that hold most, until the others are within the
    /// budget.
    pub(super) fn enforce(&self, id: u64, client: &dyn BudgetedClient) {
        let rank = rank(client.held());
        if rank > client.rank() {
            self.move_to(rank, id, client);
        }
        while self.total.load(Relaxed) > self.budget.get() {
            looked_at::entry();
            let Some((before, id)) = self.by_rank.borrow_mut().pop_last() else { return };
            let entry = self.clients.borrow().get(&id).and_then(|entry| entry.client.upgrade());
            let Some(client) = entry else { continue };
            match (client.held(), self::rank(client.held())) {
                (0, _) => client.set_rank(0),
                // It held more once.
                (_, rank) if rank < before => self.move_to(rank, id, &*client),
                _ => {
                    client.set_rank(0);
                    self.metrics.limit_reached(Limit::Buffered);
                    client.close(CloseReason::Buffered);
                }
            }
        }
    }

    fn move_to(&self, rank: u32, id: u64, client: &dyn BudgetedClient) {
        let mut by_rank = self.by_rank.borrow_mut();
        by_rank.remove(&(client.rank(), id));
        by_rank.insert((rank, id));
        client.set_rank(rank);
    }

    /// An empty buffer for at least this many bytes.
    pub fn take_buffer(&self, capacity: usize) -> BytesMut {
        let at_hand = if capacity <= SMALLEST { self.at_hand.borrow_mut().pop() } else { None };
        at_hand.unwrap_or_else(|| self.pool.take(capacity))
    }

    /// Takes back a buffer that is no longer needed. Its contents are discarded.
    pub fn give_back(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut at_hand = self.at_hand.borrow_mut();
        if buffer.capacity() > 2 * SMALLEST || at_hand.len() >= MAX_AT_HAND || !buffer.try_reclaim(SMALLEST) {
            drop(at_hand);
            return self.pool.give(buffer);
        }
        at_hand.push(buffer);
    }

    /// Frees the buffers that were not needed since the last call.
    pub fn free_unused(&self) {
        self.pool.free_unused();
    }

    /// From now on, this many bytes.
    pub fn set_budget(&self, budget: usize) {
        self.budget.set(budget);
    }

    /// Wakes the tasks of all clients.
    pub fn wake_all(&self) {
        let clients: Vec<_> = self.clients.borrow().values().map(|entry| entry.client.clone()).collect();
        clients.iter().filter_map(Weak::upgrade).for_each(|client| client.wake());
    }

    /// Closes the idle clients. A client for which `rebuilds` is true is not idle: others wait for the value it rebuilds.
    pub fn sweep(&self, rebuilds: impl Fn(u64) -> bool) {
        let mut idle = Vec::new();
        for (id, entry) in self.clients.borrow_mut().iter_mut() {
            let Some(client) = entry.client.upgrade() else { continue };
            entry.idle_sweeps = if client.was_active() { 0 } else { entry.idle_sweeps + 1 };
            if entry.idle_sweeps >= IDLE_SWEEPS {
                entry.idle_sweeps = 0;
                if !rebuilds(*id) {
                    idle.push(client);
                }
            }
        }
        for client in idle {
            self.metrics.limit_reached(Limit::Idle);
            client.close(CloseReason::Idle);
        }
    }
}

/// One client's use of the budget, kept with its pending replies.
pub(super) struct ClientUsage {
    pub(super) budget: Rc<MemoryBudget>,
    pub(super) id: u64,
    pub(super) rank: Cell<u32>,
    pub(super) bytes: Arc<ByteCount>,
    /// The bytes of the client's own buffers.
    pub(super) own_buffers: Cell<usize>,
    /// Whether the client is waiting for a reply.
    pub(super) busy: Cell<bool>,
    /// Whether the client was active since the last sweep.
    pub(super) active: Cell<bool>,
    pub(super) closing: Cell<Option<CloseReason>>,
}

impl ClientUsage {
    pub(super) fn new(budget: &Rc<MemoryBudget>, id: u64) -> ClientUsage {
        let bytes = ByteCount {
            held: AtomicUsize::new(0),
            written_off: AtomicBool::new(false),
            total: Arc::clone(&budget.total),
            pool: Arc::clone(&budget.pool),
        };
        ClientUsage {
            budget: Rc::clone(budget),
            id,
            rank: Cell::new(0),
            bytes: Arc::new(bytes),
            own_buffers: Cell::new(0),
            busy: Cell::new(false),
            active: Cell::new(true),
            closing: Cell::new(None),
        }
    }
}

/// How many bytes one client holds. Atomic because replies refer to it, and may be dropped on any thread.
pub(super) struct ByteCount {
    held: AtomicUsize,
    /// Set once the client is closed: from then on nothing is counted.
    written_off: AtomicBool,
    total: Arc<AtomicUsize>,
    pool: Arc<BufferPool>,
}

impl ByteCount {
    /// An empty buffer for a reply of at least this many bytes.
    pub(super) fn buffer(&self, capacity: usize) -> BytesMut {
        self.pool.take(capacity)
    }

    pub(super) fn held(&self) -> usize {
        if self.written_off.load(Relaxed) { 0 } else { self.held.load(Relaxed) }
    }

    pub(super) fn add(&self, bytes: usize) {
        if !self.written_off.load(Relaxed) {
            self.held.fetch_add(bytes, Relaxed);
            self.total.fetch_add(bytes, Relaxed);
        }
    }

    pub(super) fn subtract(&self, bytes: usize) {
        if !self.written_off.load(Relaxed) {
            self.held.fetch_sub(bytes, Relaxed);
            self.total.fetch_sub(bytes, Relaxed);
        }
    }

    /// Stops counting: what the client holds is about to be freed.
    pub(super) fn write_off(&self) {
        if !self.written_off.swap(true, Relaxed) {
            self.total.fetch_sub(self.held.load(Relaxed), Relaxed);
        }
    }

    /// Counts these bytes until the last reference to any of them is dropped.
    pub(super) fn count(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.add(bytes.len());
        Bytes::from_owner(CountedBytes { bytes, count: Arc::clone(self) })
    }
}

struct CountedBytes {
    bytes: Bytes,
    count: Arc<ByteCount>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.count.subtract(self.bytes.len());
        if let Ok(buffer) = std::mem::take(&mut self.bytes).try_into_mut() {
            self.count.pool.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::metrics::Metrics;
    use crate::upstream::pending_replies::{PendingReplies, Reply};

    fn budget(limit: usize) -> (Metrics, Rc<MemoryBudget>) {
        let metrics = Metrics::new(Vec::new(), Vec::new(), 1);
        let budget = MemoryBudget::new(limit, metrics.worker(0));
        (metrics, budget)
    }

    fn deliver(client: &PendingReplies, size: usize) -> u64 {
        let id = client.expect();
        client.deliver(id, Reply::Answered { bytes: Bytes::from(vec![b'x'; size]), epoch: 0 });
        id
    }

    fn size(reply: Option<Reply>) -> usize {
        match reply {
            Some(Reply::Answered { bytes, .. }) => bytes.len(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn over_the_budget_only_the_client_that_holds_most_is_closed() {
        let (_metrics, budget) = budget(100_000);
        let (small, large) = (PendingReplies::for_client(&budget, 1), PendingReplies::for_client(&budget, 2));
        let kept = deliver(&small, 20_000);
        let lost = [deliver(&large, 40_000), deliver(&large, 30_000)];
        assert!(budget.is_tight() && large.closing().is_none());
        deliver(&large, 30_000);
        assert_eq!((large.closing(), small.closing()), (Some(CloseReason::Buffered), None));
        for id in lost {
            assert!(matches!(large.take(id), Some(Reply::Failed(Failure::Overloaded))));
        }
        assert_eq!((small.held(), budget.total.load(Relaxed)), (20_000, 20_000));
        assert_eq!(size(small.take(kept)), 20_000);
        // What still arrives for the closed client is not kept.
        deliver(&large, 90_000);
        assert_eq!(budget.total.load(Relaxed), 0);
    }

    #[test]
    fn with_many_clients_the_one_that_holds_most_is_found_by_few_looks() {
        let (_metrics, budget) = budget(20_000_000);
        let clients: Vec<_> = (0..10_000).map(|id| PendingReplies::for_client(&budget, id)).collect();
        clients.iter().for_each(|client| client.set_buffered(1_000));
        // One held most once, and another one holds most now.
        clients[7].set_buffered(8_000_000);
        clients[7].set_buffered(1_000);
        clients[8].set_buffered(7_000_000);
        let cost = looked_at::during(|| clients[9].set_buffered(4_000_000));
        assert_eq!(cost, 2);
        let closed = clients.iter().filter(|client| client.closing().is_some()).count();
        assert_eq!((closed, clients[8].closing()), (1, Some(CloseReason::Buffered)));
    }

    #[test]
    fn the_rank_ascends_with_the_bytes() {
        assert!((0..100_000).all(|held| rank(held) <= rank(held + 1)));
        assert!((8..100_000).all(|held| rank(held + held / 7 + 1) > rank(held)));
        assert!(rank(usize::MAX) > rank(usize::MAX / 2));
    }

    #[test]
    fn a_reply_counts_until_its_last_slice_is_dropped() {
        let (_metrics, budget) = budget(1 << 20);
        let client = PendingReplies::for_client(&budget, 1);
        let id = deliver(&client, 50_000);
        let Some(Reply::Answered { bytes, .. }) = client.take(id) else { panic!("no reply") };
        let piece = bytes.slice(7..9);
        drop(bytes);
        assert_eq!(client.held(), 50_000);
        drop(piece);
        assert_eq!(client.held(), 0);
        client.set_buffered(700_000);
        assert!(budget.is_tight());
        client.set_buffered(10);
        assert_eq!((client.held(), budget.is_tight()), (10, false));
        budget.leave(1);
        assert_eq!(budget.total.load(Relaxed), 0);
    }

    #[test]
    fn the_buffer_of_a_dropped_reply_is_used_for_the_next_one() {
        let (_metrics, budget) = budget(1 << 20);
        let client = PendingReplies::for_client(&budget, 1);
        let mut buffer = client.buffer(50_000);
        buffer.extend_from_slice(&[b'x'; 50_000]);
        let (at, id) = (buffer.as_ptr(), client.expect());
        client.deliver(id, Reply::Answered { bytes: buffer.freeze(), epoch: 0 });
        assert_ne!(client.buffer(50_000).as_ptr(), at);
        assert_eq!(size(client.take(id)), 50_000);
        assert_eq!(client.buffer(50_000).as_ptr(), at);
    }

    #[test]
    fn a_client_without_activity_is_idle_unless_it_waits_or_rebuilds() {
        let (_metrics, budget) = budget(1 << 20);
        let [idle, waiting, rebuilding, active] =
            [1, 2, 3, 4].map(|id| PendingReplies::for_client(&budget, id));
        waiting.set_waiting(true);
        for _ in 0..=IDLE_SWEEPS {
            assert_eq!(idle.closing(), None);
            active.note_activity();
            budget.sweep(|id| id == 3);
        }
        assert_eq!(idle.closing(), Some(CloseReason::Idle));
        for client in [&waiting, &rebuilding, &active] {
            assert_eq!(client.closing(), None);
        }
        // The lease has ended, and the reply has arrived.
        waiting.set_waiting(false);
        for _ in 0..=IDLE_SWEEPS {
            budget.sweep(|_| false);
        }
        let closing = (rebuilding.closing(), waiting.closing());
        assert_eq!(closing, (Some(CloseReason::Idle), Some(CloseReason::Idle)));
    }
}
