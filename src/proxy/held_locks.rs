//! The locks that one client connection has: each is renewed while the connection lives, and released when it closes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, timeout};

use super::kind_wire::{self, Expected};
use crate::error::Failure;
use crate::kinds::{Command, Hold, HoldMachine, Inputs, ItemKey, Machine, Outcome, Replies, Step};
use crate::metrics::{LockEnd, WorkerMetrics};
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::PendingReplies;

/// The most locks of one connection.
pub(crate) const MAX_LOCKS: usize = 1024;
/// The pause after a renewal that no server answered.
const RETRY: Duration = Duration::from_millis(250);

/// The locks of one connection, by key.
#[derive(Default)]
pub(crate) struct HeldLocks(Locks);

type Locks = Rc<RefCell<BTreeMap<ItemKey, Rc<HeldLock>>>>;

struct HeldLock {
    /// Locked while a renewal or the release is in flight.
    hold: Mutex<Hold>,
    /// To the server that has the lock, whatever configuration is in force.
    connection: Rc<Connection>,
    metrics: Arc<WorkerMetrics>,
    rule: usize,
    /// Notified when the lock need not be renewed any longer.
    ended: Notify,
}

impl HeldLocks {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Whether there can be no further one.
    pub(crate) fn is_full(&self) -> bool {
        self.0.borrow().len() >= MAX_LOCKS
    }

    /// The client has this lock from now on.
    pub(crate) fn take(
        &self,
        hold: Hold,
        connection: Rc<Connection>,
        metrics: Arc<WorkerMetrics>,
        rule: usize,
    ) {
        let key = ItemKey::from_slice(hold.key());
        metrics.lock_taken();
        let lock = HeldLock { hold: Mutex::new(hold), connection, metrics, rule, ended: Notify::new() };
        let lock = Rc::new(lock);
        // It was lost, and that had not been noticed.
        if let Some(former) = self.0.borrow_mut().insert(key, Rc::clone(&lock)) {
            former.end(LockEnd::Lost);
        }
        spawn_local(lock.renew(Rc::clone(&self.0)));
    }

    /// Releases a lock. The outcome arrives once the server has replied; `None` if the client does not have it.
    pub(crate) fn release(&self, key: &[u8]) -> Option<oneshot::Receiver<Outcome>> {
        let lock = self.0.borrow_mut().remove(key)?;
        let (sender, outcome) = oneshot::channel();
        spawn_local(async move {
            // The client may have gone meanwhile.
            let _ = sender.send(lock.release(LockEnd::Released).await);
        });
        Some(outcome)
    }

    /// Releases all locks, because the connection has closed. They are released at the same time, so a server that does not reply
    /// delays no other.
    pub(crate) async fn release_all(&self) {
        let locks = std::mem::take(&mut *self.0.borrow_mut());
        let mut releases = JoinSet::new();
        for lock in locks.into_values() {
            releases.spawn_local(async move { lock.release(LockEnd::Disconnected).await });
        }
        releases.join_all().await;
    }
}

impl HeldLock {
    fn end(&self, end: LockEnd) {
        self.ended.notify_one();
        self.metrics.lock_ended(self.rule, end);
    }

    async fn release(&self, end: LockEnd) -> Outcome {
        let mut hold = self.hold.lock().await;
        let outcome = run(HoldMachine::release(&mut hold), &self.connection).await;
        self.end(match outcome {
            Outcome::Deleted => end,
            Outcome::NotFound => LockEnd::Lost,
            _ => LockEnd::Unreleased,
        });
        outcome
    }

    /// Renews the lock until it ends.
    async fn renew(self: Rc<Self>, locks: Locks) {
        let (key, ttl) = {
            let hold = self.hold.lock().await;
            (ItemKey::from_slice(hold.key()), hold.ttl())
        };
        let (mut until, mut pause) = (Instant::now() + ttl, ttl / 3);
        while timeout(pause, self.ended.notified()).await.is_err() {
            let mut hold = self.hold.lock().await;
            let sent = Instant::now();
            let outcome = run(HoldMachine::renew(&mut hold), &self.connection).await;
            drop(hold);
            match outcome {
                Outcome::Stored(_) => (until, pause) = (sent + ttl, ttl / 3),
                Outcome::NotFound => break,
                // It has ended on the server by itself.
                _ if sent >= until => break,
                _ => pause = RETRY.min(ttl / 3),
            }
        }
        let mut locks = locks.borrow_mut();
        // Otherwise it is being released.
        if locks.get(&key).is_some_and(|lock| Rc::ptr_eq(lock, &self)) {
            locks.remove(&key);
            self.metrics.lock_ended(self.rule, LockEnd::Lost);
        }
    }
}

/// Runs a machine outside any request.
async fn run(mut machine: HoldMachine<'_>, connection: &Connection) -> Outcome {
    let pending = Rc::new(PendingReplies::default());
    // It depends on neither.
    let inputs = Inputs { now: 0, random: 0 };
    let mut replies = Replies::new();
    loop {
        let commands = match machine.resume(replies, &inputs) {
            Step::Done(outcome) => return outcome,
            Step::Send(commands) => commands,
            // A lock has one item.
            Step::SendCopies(_) => return Outcome::Failed(Failure::Refused),
        };
        let send = |command: Command| {
            let encode = |out: &mut _| kind_wire::encode(&command, out);
            let (expected, epoch) = (Expected::of(&command.operation), command.operation.epoch());
            let id = connection.send_guard_shaped(&pending, expected.shape(), epoch, encode);
            (expected, id)
        };
        let sent: Vec<_> = commands.into_iter().map(send).collect();
        replies = Replies::new();
        for (expected, id) in sent {
            replies.push(kind_wire::decode(expected, pending.receive(id).await));
        }
    }
}
