//! What is common to all parts of a call: which keys it accesses, its position in the client's queue, and what each part receives
//! when it is polled.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::client::Client;
use super::observe::{SeenKey, SeenRequest};
use super::pipeline::Proxy;
use crate::metrics::{Command, Outcome};

/// A call with more keys than this conflicts with every write: the keys are not compared one by one.
const MAX_COMPARED: usize = 64;
/// Reads of more keys than this are not ordered among each other: comparing them would slow down every multi-get.
pub(super) const MAX_ORDERED: usize = 8;

/// The guarded keys that a call reads or writes. The calls of one client take effect in the order in which it sent them, so a
/// call must not begin while an earlier one that it conflicts with is in flight.
#[derive(Debug, Clone, Default)]
pub struct AccessSet {
    pub(super) keys: SmallVec<[u64; 1]>,
    pub(super) write: bool,
    /// All keys: a tag is bumped, or everything is flushed.
    pub(super) all: bool,
}

/// The position of a call in its client's queue.
#[derive(Clone, Copy)]
pub struct QueuePosition<'a> {
    /// No call is in front of it.
    pub first: bool,
    /// It may wait for another client, because no further request has arrived.
    pub may_wait: bool,
    /// Whether the client has sent a command behind it that may change this raw key.
    pub changes_behind: &'a dyn Fn(&[u8]) -> bool,
}

/// What is known of a call besides its own state.
pub(super) struct CallScope<'a> {
    pub(super) proxy: &'a Rc<Proxy>,
    pub(super) client: &'a Client,
    pub(super) position: QueuePosition<'a>,
    command: Command,
    began: Instant,
    /// Rule and outcome of the keys counted last, and how many of them are not yet in the metrics.
    counted: Cell<(usize, Outcome, u64)>,
}

impl AccessSet {
    /// The keys with these hashes.
    pub(super) fn of(keys: impl IntoIterator<Item = u64>, write: bool) -> AccessSet {
        let keys = keys.into_iter();
        // Usually either all keys of a get are guarded or none is, so reserving space for all is not too much.
        let mut hashes = SmallVec::with_capacity(keys.size_hint().1.unwrap_or(0).min(MAX_COMPARED));
        hashes.extend(keys);
        match hashes.len() {
            0..=MAX_COMPARED => AccessSet { keys: hashes, write, all: false },
            _ => AccessSet { keys: SmallVec::new(), write, all: true },
        }
    }

    /// Writes to all keys.
    pub(super) fn everything() -> AccessSet {
        AccessSet { keys: SmallVec::new(), write: true, all: true }
    }

    /// Whether it contains no guarded key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.all
    }

    /// Whether the two calls must not run at the same time. Two reads of one key conflict too: the first may read again and
    /// return a newer value than the second.
    pub fn conflicts(&self, other: &AccessSet) -> bool {
        let neither_empty = !self.is_empty() && !other.is_empty();
        let share_a_key = || self.keys.iter().any(|key| other.keys.contains(key));
        match self.write || other.write {
            true => neither_empty && (self.all || other.all || share_a_key()),
            false => self.keys.len().max(other.keys.len()) <= MAX_ORDERED && share_a_key(),
        }
    }
}

impl<'a> CallScope<'a> {
    pub(super) fn new(
        proxy: &'a Rc<Proxy>,
        client: &'a Client,
        command: Command,
        began: Instant,
        position: QueuePosition<'a>,
    ) -> CallScope<'a> {
        CallScope { proxy, client, position, command, began, counted: Cell::new((0, Outcome::Ok, 0)) }
    }

    /// When the request was parsed.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Counts the reply to one key. `seen` is called only if somebody wants to know more of it.
    pub(super) fn count<'k>(&self, rule: usize, outcome: Outcome, seen: impl FnOnce() -> SeenKey<'k>) {
        let took = self.took();
        // A hit begins and ends no build.
        let is_build = outcome != Outcome::Hit && self.proxy.plan.observes(rule);
        let is_wanted = self.proxy.observer.is_wanted(outcome, took);
        if is_wanted | is_build {
            let (seen, request) = (seen(), self.request());
            if is_build {
                self.proxy.observe_build(rule, outcome, &seen, &request);
            }
            if is_wanted {
                self.proxy.observe(rule, outcome, seen, &request);
            }
        }
        let (last_rule, last_outcome, keys) = self.counted.get();
        if (last_rule, last_outcome) == (rule, outcome) {
            return self.counted.set((rule, outcome, keys + 1));
        }
        self.flush();
        self.counted.set((rule, outcome, 1));
    }

    fn took(&self) -> Duration {
        self.client.turn_time().saturating_duration_since(self.began)
    }

    pub(super) fn request(&self) -> SeenRequest<'a> {
        let CallScope { client, command, began, .. } = *self;
        SeenRequest { client, command, began, took: self.took() }
    }

    /// Most keys of a call have the same outcome, so they are counted together.
    fn flush(&self) {
        let (rule, outcome, keys) = self.counted.get();
        if keys > 0 {
            self.proxy.metrics.requests(rule, self.command, outcome, self.took(), keys);
        }
    }
}

impl Drop for CallScope<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reads_of_one_key_are_in_order_unless_one_is_of_many_keys() {
        let of = |keys: std::ops::Range<u64>| AccessSet::of(keys, false);
        assert!(of(1..2).conflicts(&of(1..2)) && !of(1..2).conflicts(&of(2..3)));
        let most = MAX_ORDERED as u64;
        assert!(of(0..most).conflicts(&of(most - 1..most)));
        assert!(!of(0..most + 1).conflicts(&of(most..most + 1)));
    }

    #[test]
    fn a_call_for_too_many_keys_to_compare_is_in_order_with_every_write() {
        let key = |write| AccessSet::of([1_000_000], write);
        for (keys, waits) in [(MAX_COMPARED as u64, false), (MAX_COMPARED as u64 + 1, true)] {
            let many = AccessSet::of(0..keys, false);
            assert!(!many.conflicts(&key(false)), "two reads of different keys may pass each other");
            assert!(!many.conflicts(&AccessSet::of([], true)), "raw keys may pass everything");
            assert_eq!((many.conflicts(&key(true)), key(true).conflicts(&many)), (waits, waits));
            // A key that is read is never written meanwhile.
            assert!(AccessSet::of([keys - 1], true).conflicts(&many));
            assert!(many.conflicts(&AccessSet::of(0..keys, true)));
        }
    }
}
