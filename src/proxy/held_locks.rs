//! The locks that one client connection has: each is renewed while the connection lives, and released when it closes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, timeout};

use super::copy_servers::{CopyServers, received, send};
use super::state::unfinished::Unfinished;
use crate::error::Failure;
use crate::kinds::{Hold, HoldMachine, Inputs, ItemKey, Machine, OnCopies, Outcome, Replies, Step};
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
    servers: LockServers,
    metrics: Arc<WorkerMetrics>,
    /// Where a release waits that no server has carried out.
    unfinished: Rc<Unfinished>,
    rule: usize,
    /// Notified when the lock need not be renewed any longer.
    ended: Notify,
}

/// Where a lock is, whatever configuration is in force.
pub(crate) enum LockServers {
    /// On one server, over this connection.
    One(Rc<Connection>),
    /// On two.
    Two(Box<CopyServers>),
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
        servers: LockServers,
        metrics: Arc<WorkerMetrics>,
        unfinished: Rc<Unfinished>,
        rule: usize,
    ) {
        let key = ItemKey::from_slice(hold.key());
        metrics.lock_taken();
        let hold = Mutex::new(hold);
        let lock = HeldLock { hold, servers, metrics, unfinished, rule, ended: Notify::new() };
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

    /// Releases it. If no server carries that out, it is tried again as long as the item may live.
    async fn release(self: Rc<Self>, end: LockEnd) -> Outcome {
        // It is not renewed meanwhile.
        self.ended.notify_one();
        let outcome = self.try_to_release().await;
        match outcome {
            Outcome::Deleted => self.metrics.lock_ended(self.rule, end),
            Outcome::NotFound => self.metrics.lock_ended(self.rule, LockEnd::Lost),
            _ => self.release_later(end).await,
        }
        outcome
    }

    async fn try_to_release(&self) -> Outcome {
        let mut hold = self.hold.lock().await;
        self.servers.run(HoldMachine::release(&mut hold)).await
    }

    async fn release_later(self: Rc<Self>, end: LockEnd) {
        let within = self.hold.lock().await.item_ttl();
        let (lock, unfinished) = (Rc::clone(&self), Rc::clone(&self.unfinished));
        let attempt = async move || {
            // What is not there any more was released by an attempt without a reply, or has ended.
            let is_over = matches!(lock.try_to_release().await, Outcome::Deleted | Outcome::NotFound);
            if is_over {
                lock.metrics.lock_ended(lock.rule, end);
            }
            is_over
        };
        unfinished.try_later(within, attempt, move || {
            self.metrics.lock_ended(self.rule, LockEnd::Unreleased);
        });
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
            let outcome = self.servers.run(HoldMachine::renew(&mut hold)).await;
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

impl LockServers {
    /// Runs a machine outside any request.
    async fn run(&self, machine: HoldMachine<'_>) -> Outcome {
        match self {
            LockServers::One(connection) => run_on_one(machine, connection).await,
            LockServers::Two(servers) => servers.run(&mut OnCopies::new(machine)).await,
        }
    }
}

async fn run_on_one(mut machine: HoldMachine<'_>, connection: &Connection) -> Outcome {
    let pending = Rc::new(PendingReplies::default());
    // It depends on neither.
    let inputs = Inputs { now: 0, random: 0 };
    let mut replies = Replies::new();
    loop {
        let commands = match machine.resume(replies, &inputs) {
            Step::Done(outcome) => return outcome,
            Step::Send(commands) => commands,
            Step::SendCopies(_) => return Outcome::Failed(Failure::Refused),
        };
        let sent: Vec<_> =
            commands.iter().map(|command| (command, send(command, connection, &pending))).collect();
        replies = Replies::new();
        for (command, id) in sent {
            replies.push(received(command, id, &pending).await);
        }
    }
}
