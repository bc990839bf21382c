//! The locks that one client connection has: each is renewed while the connection lives, and released when it closes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, timeout};

use super::copy_servers::{CopyPlace, CopyServers};
use super::kind_wire::{self, Expected};
use crate::error::Failure;
use crate::kinds::{
    Command, Hold, HoldMachine, Inputs, ItemKey, Machine, OnCopies, Outcome, Replies, Reply, Side, Step,
    copy_key,
};
use crate::metrics::{LockEnd, WorkerMetrics};
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

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
    pub(crate) fn take(&self, hold: Hold, servers: LockServers, metrics: Arc<WorkerMetrics>, rule: usize) {
        let key = ItemKey::from_slice(hold.key());
        metrics.lock_taken();
        let lock = HeldLock { hold: Mutex::new(hold), servers, metrics, rule, ended: Notify::new() };
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
        let outcome = self.servers.run(HoldMachine::release(&mut hold)).await;
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
            LockServers::Two(servers) => run_on_copies(OnCopies::new(machine), servers).await,
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

async fn run_on_copies(mut machine: OnCopies<HoldMachine<'_>>, servers: &CopyServers) -> Outcome {
    let pending = Rc::new(PendingReplies::default());
    // As a command of a client does, it knows the places from its beginning on.
    let places = [Side::First, Side::Second].map(|side| servers.place(side));
    let place = |side| places[usize::from(side == Side::Second)];
    let is_valid = |side| place(side).is_some() && servers.place(side) == place(side);
    let mut replies = Replies::new();
    loop {
        let commands = match machine.resume(replies, &servers.inputs()) {
            Step::Done(outcome) => return outcome,
            Step::SendCopies(commands) => commands,
            Step::Send(_) => return Outcome::Failed(Failure::Refused),
        };
        let sent: Vec<_> = commands
            .into_iter()
            .map(|(side, command)| {
                let place: Option<CopyPlace> = place(side).filter(|_| is_valid(side));
                let id = place.and_then(|place| {
                    let key = copy_key(&command.key, side, place.fence).ok()?;
                    let command = Command { key, ..command.clone() };
                    Some(send(&command, servers.connection(side, place), &pending))
                });
                (side, command, id)
            })
            .collect();
        replies = Replies::new();
        for (side, command, id) in sent {
            let reply = match id {
                Some(id) => received(&command, id, &pending).await,
                None => Reply::Failed(Failure::Down),
            };
            // What was done in a place that has ended is not known by whoever uses the new one.
            replies.push(if is_valid(side) { reply } else { Reply::Failed(Failure::Down) });
        }
    }
}

fn send(command: &Command, connection: &Connection, pending: &Rc<PendingReplies>) -> ReplyId {
    let (expected, epoch) = (Expected::of(&command.operation), command.operation.epoch());
    let encode = |out: &mut _| kind_wire::encode(command, out);
    connection.send_guard_shaped(pending, expected.shape(), epoch, encode)
}

async fn received(command: &Command, id: ReplyId, pending: &PendingReplies) -> Reply {
    kind_wire::decode(Expected::of(&command.operation), pending.receive(id).await)
}
