//! The leases that a worker renews, ordered by when the next renewal is due.

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::guard::leases::MissTokenId;
use crate::proxy::key::GuardedKey;

/// How many ended leases may be queued in addition to twice the number of active ones.
const MAX_ENDED: usize = 1024;

#[derive(Default)]
pub(crate) struct RenewalQueue {
    due: RefCell<BinaryHeap<Reverse<DueLease>>>,
    /// When the queue is longer than this, ended leases are removed before they are due.
    max: Cell<usize>,
    /// Notified when a lease is queued that is due before all others.
    sooner: Notify,
}

/// A lease and when it is due.
pub(crate) struct DueLease {
    /// In ms on the monotonic clock.
    pub(crate) at: u64,
    pub(crate) id: MissTokenId,
    pub(crate) key: GuardedKey,
}

impl RenewalQueue {
    /// Queues a lease. `is_active` returns whether a queued lease has not ended.
    pub(crate) fn push(&self, lease: DueLease, is_active: impl Fn(&DueLease) -> bool) {
        let mut due = self.due.borrow_mut();
        if due.peek().is_none_or(|Reverse(first)| lease.at < first.at) {
            self.sooner.notify_one();
        }
        due.push(Reverse(lease));
        if due.len() > self.max.get() {
            due.retain(|Reverse(lease)| is_active(lease));
            self.max.set(2 * due.len() + MAX_ENDED);
            due.shrink_to(self.max.get());
        }
    }

    /// When the first lease is due, in ms on the monotonic clock.
    pub(crate) fn first_due(&self) -> Option<u64> {
        self.due.borrow().peek().map(|Reverse(lease)| lease.at)
    }

    /// Takes the first lease.
    pub(crate) fn pop(&self) -> Option<DueLease> {
        self.due.borrow_mut().pop().map(|Reverse(lease)| lease)
    }

    /// Waits for `pause`, or until a lease is queued that is due before all others.
    pub(crate) async fn wait(&self, pause: Duration) {
        // The caller reads the clock in both cases.
        let _ = timeout(pause, self.sooner.notified()).await;
    }
}

impl PartialEq for DueLease {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.id) == (other.at, other.id)
    }
}

impl Eq for DueLease {}

impl PartialOrd for DueLease {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DueLease {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.id).cmp(&(other.at, other.id))
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::proxy::key::Place;

    #[test]
    fn ended_leases_are_removed_before_they_are_due_and_active_ones_are_kept() {
        let queue = RenewalQueue::default();
        let key = GuardedKey {
            guard: 0,
            place: Place::fixed(0),
            key: SmallVec::new(),
            tags: SmallVec::new(),
            explicit_tags: 0,
            tag_places: None,
        };
        let is_active = |lease: &DueLease| lease.id.is_multiple_of(100);
        for id in 0..100_000 {
            queue.push(DueLease { at: 1_200_000 + id, id, key: key.clone() }, is_active);
            assert!(queue.due.borrow().len() as u64 <= 2 * (id / 100 + 1) + MAX_ENDED as u64);
        }
        let due = queue.due.into_inner().into_sorted_vec();
        let active = due.iter().rev().map(|Reverse(lease)| lease).filter(|lease| is_active(lease));
        assert!(
            active.map(|lease| lease.id).eq((0..1000).map(|n| n * 100)),
            "in the order in which they are due"
        );
    }
}
