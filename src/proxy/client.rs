//! What the pipeline knows of a client connection.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

pub mod connection_use;
mod misses;
mod patience;
pub(super) mod process;
mod stale_read;

use super::held_locks::HeldLocks;
use super::key::GuardedKey;
use super::pipeline::Proxy;
use crate::guard::leases::{KnownMiss, Owner, PairedMiss};
use crate::guard::{Hit, Policy};
use crate::metrics::{Limit, WorkerMetrics};
use crate::observed::{Build, Builder, Stored};
use crate::trace::Peer;
use crate::upstream::pending_replies::PendingReplies;
use connection_use::ListenerClients;
use misses::Misses;
use process::Membership;
use stale_read::StaleRead;

pub use misses::MovedMiss;

/// The most misses of a connection that moves to another process. One with more stays.
pub(crate) const MAX_MOVED_MISSES: usize = 256;

/// How often clients see through a stale value before it is logged: by chance, they also change what they have just read.
const LOGGED_WHEN_SEEN: u64 = 10;

/// What the pipeline knows of one client connection.
pub struct Client {
    /// Identifies the connection for the lifetime of the process.
    pub owner: Owner,
    /// Where it is connected from.
    pub(super) peer: Peer,
    /// The server replies that it is owed.
    pub pending: Rc<PendingReplies>,
    /// How the clients of its listener use their connections.
    pub(crate) listener: Arc<ListenerClients>,
    misses: RefCell<Misses>,
    /// The locks that it has.
    pub(super) locks: HeldLocks,
    /// Set once it has read a guarded key that was not fresh.
    membership: OnceCell<Rc<Membership>>,
    stale_read: StaleRead,
    /// Whether it has ever missed a guarded key.
    has_missed: Cell<bool>,
    /// Whether it has ever missed an observed key.
    has_missed_observed: Cell<bool>,
    /// When this turn of the session first read the clock.
    turn_time: Cell<Option<Instant>>,
    /// Until when it did not take its replies as fast as they came, if that ever happened.
    unread_until: Cell<Option<Instant>>,
}

impl Client {
    /// A connection that has sent nothing yet.
    pub fn new(
        (owner, peer): (Owner, Peer),
        pending: Rc<PendingReplies>,
        listener: Arc<ListenerClients>,
    ) -> Client {
        let (misses, has_missed, has_missed_observed) = Default::default();
        let (turn_time, locks, unread_until, stale_read) = Default::default();
        let membership = OnceCell::new();
        Client {
            owner,
            peer,
            pending,
            listener,
            misses,
            locks,
            membership,
            stale_read,
            has_missed,
            has_missed_observed,
            turn_time,
            unread_until,
        }
    }

    /// It among the connections of its process.
    pub(super) fn membership(&self) -> &Rc<Membership> {
        self.membership.get_or_init(|| Rc::new(self.listener.join(self.owner.connection, self.peer)))
    }

    /// Its client has closed it, or at least its side.
    pub fn note_hang_up(&self) {
        if let Some(waited) = self.membership.get().and_then(|membership| membership.hang_up()) {
            self.listener.hung_up(waited);
        }
    }

    /// It is closed, and its leases have been released.
    pub fn leave_process(&self, proxy: &Proxy) {
        if let Some(membership) = self.membership.get() {
            membership.leave(|| proxy.builds(self.owner));
        }
    }

    /// It has not taken all of its replies until now.
    pub fn note_unread(&self, now: Instant) {
        self.unread_until.set(Some(now));
    }

    /// Whether it did not take its replies at a time after `since`.
    pub(super) fn has_lagged(&self, since: Instant) -> bool {
        self.unread_until.get().is_some_and(|until| until > since)
    }

    /// Takes over the misses that another process knows of this connection.
    pub fn add_misses(&self, moved: &[MovedMiss], proxy: &Proxy) {
        if !moved.is_empty() {
            self.has_missed.set(true);
            self.misses.borrow_mut().add(moved, self.seconds(proxy));
        }
    }

    /// Whether this connection, or another one of its pool, may still fill a miss.
    pub fn awaits_fill(&self, proxy: &Proxy) -> bool {
        let pooled = self.listener.is_pooled(self.has_missed());
        (self.has_missed() || pooled) && proxy.awaits_fill(self.owner, pooled)
    }

    /// The misses that another process must know to serve this connection; `None` if they are too many.
    pub fn moved_misses(&self, proxy: &Proxy) -> Option<Vec<MovedMiss>> {
        self.misses.borrow().known(self.seconds(proxy), MAX_MOVED_MISSES)
    }

    /// Begins a turn of the session. Durations are measured in turns, so that each turn reads the clock at most once.
    pub fn new_turn(&self) {
        self.turn_time.set(None);
    }

    /// The time at which this turn first read the clock.
    pub(crate) fn turn_time(&self) -> Instant {
        match self.turn_time.get() {
            Some(time) => time,
            None => {
                let now = Instant::now();
                self.turn_time.set(Some(now));
                now
            }
        }
    }

    /// Records a miss of this key.
    pub(crate) fn note_miss(&self, key: &GuardedKey, proxy: &Proxy) {
        self.has_missed.set(true);
        let (key, policy, now) = (proxy.hash(&key.key), proxy.policy(key.guard), self.seconds(proxy));
        if self.misses.borrow_mut().note(key, policy, now) {
            proxy.metrics.limit_reached(Limit::Misses);
        }
    }

    /// As which it misses and stores observed keys.
    pub(super) fn builder(&self) -> Builder {
        let Owner { connection, peers } = self.owner;
        let reads = self.has_missed_observed.get() || self.has_missed();
        Builder { connection, peers, pooled: self.listener.is_pooled(reads) }
    }

    /// Records a miss of an observed key.
    pub(super) fn note_observed_miss(&self) {
        self.has_missed_observed.set(true);
    }

    /// Records a store of an observed key: it may tell whether the clients use connection pools.
    pub(super) fn note_observed_store(&self, stored: &Stored, metrics: &WorkerMetrics) {
        if self.listener.is_detecting() && self.has_missed_observed.get() {
            let paired = match stored {
                Stored::Build(Build { of_other: false, .. }) => PairedMiss::Own,
                Stored::Build(Build { of_other: true, .. }) | Stored::MissOfOther => PairedMiss::Other,
                Stored::NoMiss(_) => PairedMiss::None,
            };
            self.listener.note(paired, metrics);
        }
    }

    /// Records a miss of a key that is not guarded yet.
    pub(super) fn note_raw_miss(&self, hash: u64, policy: &Policy, proxy: &Proxy) {
        self.has_missed.set(true);
        if self.misses.borrow_mut().note(hash, policy, self.seconds(proxy)) {
            proxy.metrics.limit_reached(Limit::Misses);
        }
    }

    /// Ends its miss of such a key.
    pub(super) fn end_raw_miss(&self, hash: u64) {
        self.misses.borrow_mut().end(hash);
    }

    /// Ends its miss of this key: it has stored, deleted or read a value.
    pub(crate) fn end_miss(&self, key: &GuardedKey, proxy: &Proxy) {
        let mut misses = self.misses.borrow_mut();
        if !misses.is_empty() {
            misses.end(proxy.hash(&key.key));
        }
    }

    /// Records that an `add` was refused because of its miss of this key. This happens once: the next `add` counts as new.
    pub(crate) fn refuse_add(&self, key: &GuardedKey, proxy: &Proxy) {
        self.misses.borrow_mut().refuse(proxy.hash(&key.key));
    }

    /// Whether an `add` was refused because of its miss of this key.
    pub(crate) fn was_refused(&self, key: &GuardedKey, proxy: &Proxy) -> bool {
        let misses = self.misses.borrow();
        !misses.is_empty() && misses.was_refused(proxy.hash(&key.key))
    }

    /// Ends all its misses: it has flushed the servers.
    pub(crate) fn end_all_misses(&self) {
        self.misses.borrow_mut().end_all();
    }

    /// Whether it has a miss of this key that has not ended.
    pub(crate) fn known_miss(&self, key: &GuardedKey, proxy: &Proxy) -> KnownMiss {
        let misses = self.misses.borrow();
        match misses.is_empty() {
            true => KnownMiss::No,
            false => misses.known_miss(proxy.hash(&key.key), self.seconds(proxy)),
        }
    }

    fn seconds(&self, proxy: &Proxy) -> u32 {
        u32::try_from(proxy.mono(self.turn_time()) / 1000).unwrap_or(u32::MAX)
    }

    /// It is served this value after its expiry.
    pub(crate) fn note_stale(&self, key: &GuardedKey, hit: &Hit, proxy: &Proxy) {
        if hit.stale.expired {
            let (hash, now) = (proxy.hash(&key.key), proxy.now().mono);
            self.stale_read.note(hash, hit.rebuild, now);
            if self.listener.is_pooled(self.has_missed()) {
                self.membership().stale_reads().note(hash, hit.rebuild, now);
            }
        }
    }

    /// It deletes this key, or sets it without a miss.
    pub(crate) fn note_own_change(&self, key: &GuardedKey, proxy: &Proxy) {
        // A connection that has only written answers nobody's read.
        let pooled = self.membership.get().filter(|_| self.listener.is_pooled(self.has_missed()));
        if self.stale_read.is_empty() && pooled.is_none() {
            return;
        }
        let (hash, now) = (proxy.hash(&key.key), proxy.now().mono);
        let of_pool = pooled.is_some_and(|process| process.stale_reads().are_followed_by(hash, now));
        if !self.stale_read.is_followed_by(hash, now) && !of_pool {
            return;
        }
        let rule = proxy.rule_of(key.guard);
        let seen = proxy.metrics.stale_rejected(rule);
        if seen == LOGGED_WHEN_SEEN && !proxy.policy(key.guard).stale_before_expiry {
            warn!(
                rule = %proxy.observer.rule(rule),
                "clients delete or set what they have just been served as stale: if their library keeps an expiry inside its values, \
                 set preset or stale_before_expiry in this rule"
            );
        }
    }

    /// Whether leases may have to be released when it closes.
    pub fn has_missed(&self) -> bool {
        self.has_missed.get()
    }

    /// Whether it has a lock: then it is not idle.
    pub fn has_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    /// Releases its locks, because its connection has closed.
    pub async fn release_locks(&self) {
        self.locks.release_all().await;
    }

    /// The memory that its misses use, in bytes.
    pub fn misses_bytes(&self) -> usize {
        self.misses.borrow().bytes()
    }
}
