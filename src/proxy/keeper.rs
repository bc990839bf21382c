//! What goes on for leases behind the requests: renewal, release, and asking the servers for those who wait.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::Proxy;
use super::desk::wake_all;
use super::operation::GuardedKey;
use crate::guard::leases::{Due, Ended, Leases, MissToken, MissTokenId, Owner, PollRate, PollResult};
use crate::metrics::{LeaseEnd, Limit, WaitEnd};

/// How often what is too old to matter is forgotten.
const SWEEP: Duration = Duration::from_secs(10);
/// The first and the longest pause between two looks at a key that somebody waits for.
const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// So many that have ended may wait to be looked at, beside twice as many as have not.
const MAX_ENDED: usize = 1024;

/// The leases that this worker keeps, by when they are to be looked at next.
#[derive(Default)]
pub(super) struct RenewalQueue {
    due: RefCell<BinaryHeap<Reverse<DueLease>>>,
    /// With more than so many, those that have ended are forgotten before they are due.
    most: Cell<usize>,
    sooner: Notify,
}

struct DueLease {
    at: u64,
    id: MissTokenId,
    of: GuardedKey,
}

impl RenewalQueue {
    /// `stands`: whether a lease has not ended.
    fn watch(&self, kept: DueLease, stands: impl Fn(&DueLease) -> bool) {
        let mut due = self.due.borrow_mut();
        if due.peek().is_none_or(|Reverse(first)| kept.at < first.at) {
            self.sooner.notify_one();
        }
        due.push(Reverse(kept));
        if due.len() > self.most.get() {
            due.retain(|Reverse(kept)| stands(kept));
            self.most.set(2 * due.len() + MAX_ENDED);
            due.shrink_to(self.most.get());
        }
    }
}

impl Proxy {
    /// Renews leases for as long as it is polled.
    pub async fn renew_leases(self: Rc<Self>) {
        let mut swept = Instant::now();
        loop {
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                let forgotten = self.desk.sweep(self.now());
                (0..forgotten).for_each(|_| self.metrics.limit_reached(Limit::Tickets));
                self.sweep_near();
            }
            let first = self.keeper.due.borrow().peek().map(|Reverse(kept)| kept.at);
            let now = self.now();
            match first {
                Some(at) if at <= now.mono => {
                    let kept = self.keeper.due.borrow_mut().pop();
                    if let Some(Reverse(kept)) = kept {
                        self.clone().look_after(kept);
                    }
                }
                first => {
                    let pause = first.map_or(SWEEP, |at| Duration::from_millis(at - now.mono).min(SWEEP));
                    // Over or not: the loop looks at the clock itself.
                    let _ = timeout(pause, self.keeper.sooner.notified()).await;
                }
            }
        }
    }

    /// A lease was granted through this worker: it is this worker's to renew.
    pub(super) fn renew_lease_later(&self, of: &GuardedKey, id: MissTokenId, ticket: &MissToken) {
        let at = Leases::<()>::next_due(ticket, self.policy(of.guard), self.now());
        self.watch_lease(at, id, of.clone());
    }

    fn watch_lease(&self, at: u64, id: MissTokenId, of: GuardedKey) {
        let stands = |kept: &DueLease| self.desk.of(&kept.of.key).is_active(&kept.of.key, kept.id);
        self.keeper.watch(DueLease { at, id, of }, stands);
    }

    fn look_after(self: Rc<Self>, DueLease { id, of, .. }: DueLease) {
        let now = self.now();
        let due = self.desk.of(&of.key).due(&of.key, id, now, self.policy(of.guard), &of.tags, self.sidecar);
        match due {
            Due::Nothing => {}
            Due::Expire(asks) => {
                let held = self.policy(of.guard).max_rebuild;
                self.metrics.lease_ended(self.metric(of.guard), LeaseEnd::Expired, held);
                spawn_local(async move {
                    self.ask(asks, &of).await;
                    self.free(&of.key);
                });
            }
            Due::Renew(asks) => {
                spawn_local(async move {
                    let answers = self.ask(asks, &of).await;
                    let (renewed, fills) = {
                        let mut leases = self.desk.of(&of.key);
                        (leases.renewed(&of.key, id, &answers, now.mono), leases.renewal_ended(&of.key))
                    };
                    wake_all(fills, WaitEnd::Freed);
                    match renewed {
                        Ok(ticket) => {
                            let policy = self.policy(of.guard);
                            let at = Leases::<()>::due_after(&ticket, &answers, policy, self.now());
                            self.watch_lease(at, id, of);
                        }
                        Err((end, asks)) => {
                            if let Some(end) = end {
                                self.metrics.lease_ended(self.metric(of.guard), end, Duration::ZERO);
                            }
                            self.ask(asks, &of).await;
                            match end {
                                Some(LeaseEnd::Disconnected) => self.free(&of.key),
                                _ => self.wake(&of.key, WaitEnd::Freed),
                            }
                        }
                    }
                });
            }
        }
    }

    /// A lease ended without a value: its waiters try for themselves.
    pub(super) fn free(&self, key: &[u8]) {
        let now = self.now();
        let bells = self.desk.of(key).release_waiters(key, now);
        wake_all(bells, WaitEnd::Freed);
    }

    /// Gives back leases that have ended though their clients did not end them.
    pub(super) fn give_back(self: &Rc<Self>, ended: Vec<Ended>) {
        for Ended { key, end, asks } in ended {
            let Some(of) = self.guarded(&key) else { continue };
            self.metrics.lease_ended(self.metric(of.guard), end, Duration::ZERO);
            let proxy = Rc::clone(self);
            spawn_local(async move {
                proxy.ask(asks, &of).await;
                proxy.wake(&of.key, WaitEnd::Freed);
            });
        }
    }

    /// Gives back all that a client held whose connection has closed: all at once, so that a server that does not answer
    /// delays nothing on the others.
    pub async fn disconnect(self: Rc<Self>, owner: Owner, end: LeaseEnd) {
        let released: Vec<_> = self.desk.all().flat_map(|mut leases| leases.disconnect(owner)).collect();
        let mut releases = JoinSet::new();
        for Ended { key, asks, .. } in released {
            let Some(of) = self.guarded(&key) else { continue };
            self.metrics.lease_ended(self.metric(of.guard), end, Duration::ZERO);
            let proxy = Rc::clone(&self);
            releases.spawn_local(async move {
                proxy.ask(asks, &of).await;
                proxy.free(&of.key);
            });
        }
        releases.join_all().await;
    }

    /// Somebody waits for a key: looks at it for all who do, until it changes or nobody waits any more.
    pub(super) fn poll_key(self: Rc<Self>, of: GuardedKey, pace: PollRate) {
        spawn_local(async move {
            let (shortest, longest) = POLL;
            let mut pause = if pace == PollRate::Fast { shortest } else { longest };
            let mut before = None;
            loop {
                let jittered = self.chance.borrow_mut().jitter(pause, 0.5);
                sleep(jittered).await;
                pause = (pause * 2).min(longest);
                if !self.desk.of(&of.key).has_waiters(&of.key) {
                    return;
                }
                let answers = self.ask(PollResult::asks(), &of).await;
                let found = PollResult::found(&answers, &mut before);
                let bells = self.desk.of(&of.key).polled(&of.key, found, self.now());
                let why = if found == PollResult::Filled { WaitEnd::Filled } else { WaitEnd::Freed };
                wake_all(bells, why);
                if found != PollResult::Unchanged {
                    return;
                }
            }
        });
    }
}

impl PartialEq for DueLease {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.id) == (other.at, other.id)
    }
}

impl Eq for DueLease {}

impl PartialOrd for DueLease {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DueLease {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.id).cmp(&(other.at, other.id))
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;

    #[test]
    fn what_has_ended_is_forgotten_before_it_is_due_and_what_stands_is_not() {
        let keeper = RenewalQueue::default();
        let of = GuardedKey { guard: 0, place: 0, key: SmallVec::new(), tags: SmallVec::new(), learnt: 0 };
        let stands = |kept: &DueLease| kept.id.is_multiple_of(100);
        for id in 0..100_000 {
            keeper.watch(DueLease { at: 1_200_000 + id, id, of: of.clone() }, stands);
            assert!(keeper.due.borrow().len() as u64 <= 2 * (id / 100 + 1) + MAX_ENDED as u64);
        }
        let due = keeper.due.into_inner().into_sorted_vec();
        let standing = due.iter().rev().map(|Reverse(kept)| kept).filter(|kept| stands(kept));
        assert!(
            standing.map(|kept| kept.id).eq((0..1000).map(|n| n * 100)),
            "in the order in which they are due"
        );
    }
}
