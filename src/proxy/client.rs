//! A client's connection, as the pipeline knows it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use super::Proxy;
use super::misses::Misses;
use super::operation::GuardedKey;
use super::pooling::ListenerClients;
use crate::guard::leases::{KnownMiss, Owner};
use crate::metrics::Limit;
use crate::upstream::pending_replies::PendingReplies;

/// One connection.
pub struct Client {
    /// Which, for as long as the process lives.
    pub owner: Owner,
    /// Where the servers' replies for it arrive.
    pub inbox: Rc<PendingReplies>,
    /// How the clients of its listener use their connections.
    pub(super) pooling: Arc<ListenerClients>,
    misses: RefCell<Misses>,
    /// Whether it was ever told one.
    was_told: Cell<bool>,
    /// The moment, once this turn of its session has asked for it.
    moment: Cell<Option<Instant>>,
}

impl Client {
    /// A new connection, and where what it is owed arrives.
    pub fn new(owner: Owner, inbox: Rc<PendingReplies>, pooling: Arc<ListenerClients>) -> Client {
        let (misses, was_told, moment) = Default::default();
        Client { owner, inbox, pooling, misses, was_told, moment }
    }

    /// A turn of its session begins: what is measured is measured in turns, so that each costs one look at the clock at most.
    pub fn new_turn(&self) {
        self.moment.set(None);
    }

    /// The moment, as it was when this turn first asked.
    pub(super) fn moment(&self) -> Instant {
        match self.moment.get() {
            Some(moment) => moment,
            None => {
                let moment = Instant::now();
                self.moment.set(Some(moment));
                moment
            }
        }
    }

    /// It was told a miss of this key.
    pub(super) fn note_miss(&self, of: &GuardedKey, proxy: &Proxy) {
        self.was_told.set(true);
        let (key, policy, now) = (proxy.hash(&of.key), proxy.policy(of.guard), self.seconds(proxy));
        if self.misses.borrow_mut().note(key, policy, now) {
            proxy.metrics.limit_reached(Limit::Misses);
        }
    }

    /// Its miss of this key is over: it has set the key, deleted it, or been served it.
    pub(super) fn end_miss(&self, of: &GuardedKey, proxy: &Proxy) {
        let mut misses = self.misses.borrow_mut();
        if !misses.is_empty() {
            misses.end(proxy.hash(&of.key));
        }
    }

    /// An `add` is refused because of its miss of this key, though nothing may stand there. That happens once: the next is new.
    pub(super) fn refuse_add(&self, of: &GuardedKey, proxy: &Proxy) {
        self.misses.borrow_mut().refuse(proxy.hash(&of.key));
    }

    /// Whether that has happened.
    pub(super) fn was_refused(&self, of: &GuardedKey, proxy: &Proxy) -> bool {
        let misses = self.misses.borrow();
        !misses.is_empty() && misses.was_refused(proxy.hash(&of.key))
    }

    /// All its misses are over: it has emptied the servers.
    pub(super) fn end_all_misses(&self) {
        self.misses.borrow_mut().end_all();
    }

    /// Whether it was told a miss of this key that is not over.
    pub(super) fn known_miss(&self, of: &GuardedKey, proxy: &Proxy) -> KnownMiss {
        let misses = self.misses.borrow();
        match misses.is_empty() {
            true => KnownMiss::No,
            false => misses.known_miss(proxy.hash(&of.key), self.seconds(proxy)),
        }
    }

    fn seconds(&self, proxy: &Proxy) -> u32 {
        u32::try_from(proxy.mono(self.moment()) / 1000).unwrap_or(u32::MAX)
    }

    /// Whether something may have to be given back when it closes.
    pub fn was_told_a_miss(&self) -> bool {
        self.was_told.get()
    }

    /// How many bytes its misses take.
    pub fn misses_bytes(&self) -> usize {
        self.misses.borrow().bytes()
    }
}
