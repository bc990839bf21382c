//! Requests that wait for a key while it is rebuilt, and how they learn that the rebuild has ended.

use smallvec::smallvec;

use crate::guard::command::{Commands, ItemRef, ServerReply, peek};
use crate::guard::inputs::Now;
use crate::guard::policy::{Policy, millis};
use crate::guard::stub::Stub;

use super::entry::{Entry, Owner};
use super::table::Leases;

/// With this many keys in a table, no further key is remembered for having been claimed without a fill.
pub(super) const MAX_KEYS: usize = 1024;
/// The most waiting requests of one key.
pub(super) const MAX_WAITERS_PER_KEY: usize = 4096;
/// For how long no reader waits for a key that was claimed without a fill twice in a row, in milliseconds.
pub(super) const NO_WAIT_MS: u64 = 60_000;

/// The result of a request to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The request waits.
    Waits {
        /// For [`Leases::stop_waiting`].
        waiter: u64,
        /// The key is not polled yet: begin to poll at this rate.
        poll: Option<PollRate>,
    },
    /// A wait would not help.
    Refused,
    /// Too many requests wait already.
    Full,
}

/// How often a key that requests wait for is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollRate {
    /// Another sidecar rebuilds it and does not signal the end.
    Fast,
    /// The lease belongs to this sidecar, which signals its end. But it may be lost, and another sidecar may
    /// rebuild the key.
    Slow,
}

/// What a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollResult {
    /// The same stub or lock.
    Unchanged,
    /// A value.
    Filled,
    /// The rebuild was given up.
    Freed,
}

impl PollResult {
    /// The commands of a poll.
    pub fn commands() -> Commands {
        smallvec![peek(ItemRef::Value), peek(ItemRef::Lock)]
    }

    /// Interprets the replies to a poll. `before`: the CAS number that the previous poll found; updated for
    /// the next.
    pub fn from_replies(replies: &[ServerReply], before: &mut Option<u64>) -> PollResult {
        let stub = |item| Stub::of(item).map(|stub| stub.is_free);
        let found = match replies {
            [ServerReply::Item(item), _] if stub(item) == Some(false) => PollResult::Unchanged,
            [ServerReply::Item(item), _] if stub(item) == Some(true) => PollResult::Freed,
            [ServerReply::Item(_), ServerReply::Item(_)] | [ServerReply::Failed(_), _] => {
                PollResult::Unchanged
            }
            // The lock has gone and the value has not changed.
            [ServerReply::Item(item), _] if *before == Some(item.cas.number) => PollResult::Freed,
            [ServerReply::Item(_), _] => PollResult::Filled,
            _ => PollResult::Freed,
        };
        if let Some(ServerReply::Item(item)) = replies.first() {
            *before = Some(item.cas.number);
        }
        found
    }
}

impl<W> Leases<W> {
    /// A lease has ended without a value. Returns the waiting requests.
    pub fn release_waiters(&mut self, key: &[u8], now: Now) -> Vec<W> {
        // Beyond the limit a new key is not remembered. It has no waiting requests either.
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(key) {
            return Vec::new();
        }
        let state = self.keys.entry(key.into()).or_default();
        let before = if now.mono < state.remember_until { state.unfilled } else { 0 };
        state.unfilled = before.saturating_add(1);
        state.remember_until = now.mono + NO_WAIT_MS;
        self.wake(key)
    }

    /// Takes the waiting requests of the key.
    pub fn wake(&mut self, key: &[u8]) -> Vec<W> {
        let Some(state) = self.state(key) else { return Vec::new() };
        let woken = std::mem::take(&mut state.waiters).into_iter().map(|(_, waiter)| waiter).collect();
        self.remove_if_idle(key);
        woken
    }

    /// `owner` requests to wait for the key. A connection does not wait for its own rebuild.
    pub fn wait(&mut self, key: &[u8], owner: Owner, now: Now, policy: &Policy, waiter: W) -> Admission {
        self.next += 1;
        let id = self.next;
        let state = self.keys.entry(key.into()).or_default();
        let lease = state.entries.iter().find(|entry| entry.is_lease());
        let own = lease.is_some_and(|entry| entry.owner == owner);
        let too_old = lease
            .is_some_and(|entry| now.mono - entry.token.at.mono.min(now.mono) >= millis(policy.cold_wait));
        let often_unfilled = state.unfilled >= 2 && now.mono < state.remember_until;
        if own || too_old || often_unfilled {
            self.remove_if_idle(key);
            return Admission::Refused;
        }
        if state.waiters.len() >= MAX_WAITERS_PER_KEY {
            return Admission::Full;
        }
        let rate = if lease.is_some() { PollRate::Slow } else { PollRate::Fast };
        let poll = (!state.polled).then_some(rate);
        state.polled = true;
        state.waiters.push((id, waiter));
        Admission::Waits { waiter: id, poll }
    }

    /// Registers a fill that waits until the renewal of its lease has ended: [`Leases::renewal_ended`].
    pub fn await_renewal(&mut self, key: &[u8], fill: W) {
        self.keys.entry(key.into()).or_default().waiting_fills.push(fill);
    }

    /// Takes the fills that wait for a renewal.
    pub fn renewal_ended(&mut self, key: &[u8]) -> Vec<W> {
        let fills = self.state(key).map(|state| std::mem::take(&mut state.waiting_fills)).unwrap_or_default();
        self.remove_if_idle(key);
        fills
    }

    /// A request no longer waits.
    pub fn stop_waiting(&mut self, key: &[u8], waiter: u64) {
        if let Some(state) = self.state(key) {
            state.waiters.retain(|(id, _)| *id != waiter);
        }
        self.remove_if_idle(key);
    }

    /// Whether requests still wait for a polled key. If not, polling must end.
    pub fn has_waiters(&mut self, key: &[u8]) -> bool {
        let Some(state) = self.state(key) else { return false };
        let awaited = !state.waiters.is_empty();
        state.polled &= awaited;
        if !awaited {
            self.remove_if_idle(key);
        }
        awaited
    }

    /// Takes the result of a poll and returns the requests to wake. Polling must end unless the result is
    /// [`PollResult::Unchanged`].
    pub fn polled(&mut self, key: &[u8], found: PollResult, now: Now) -> Vec<W> {
        if let Some(state) = self.state(key)
            && found != PollResult::Unchanged
        {
            state.polled = false;
            // A lease of this sidecar is counted when it ends.
            let leased = state.entries.iter().any(Entry::is_lease);
            match found {
                PollResult::Freed if !leased => return self.release_waiters(key, now),
                PollResult::Freed => {}
                _ => state.unfilled = 0,
            }
            return self.wake(key);
        }
        Vec::new()
    }
}
