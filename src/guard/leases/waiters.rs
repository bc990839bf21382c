//! Requests that wait for a key while it is rebuilt, and how they learn that the rebuild has ended.

use smallvec::smallvec;

use crate::guard::command::{Commands, ItemRef, ServerReply, peek};
use crate::guard::inputs::Now;
use crate::guard::policy::Policy;
use crate::guard::stub::Stub;

use super::entry::{Entry, Owner};
use super::miss_token::millis;
use super::table::Leases;

/// With so many keys in a table, no further one is remembered for having been claimed in vain.
pub(super) const MAX_KEYS: usize = 1024;
/// The most waiters of one key.
pub(super) const MAX_WAITERS_PER_KEY: usize = 4096;
/// For how long nobody waits for a key that was claimed and not filled twice in a row, in ms.
pub(super) const HOPELESS_MS: u64 = 60_000;

/// What becomes of a request to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It waits, under this number.
    Waits {
        /// For [`Leases::leave`].
        waiter: u64,
        /// Nobody polls yet: begin to.
        poll: Option<PollRate>,
    },
    /// It would wait in vain.
    Refused,
    /// So many wait already that it may not.
    Full,
}

/// How soon somebody is to look at a key that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollRate {
    /// Another sidecar builds it, and tells nobody when it is done.
    Fast,
    /// The lease is here, and its end is heard of at once; but it may be lost, and the key built elsewhere, unnoticed.
    Slow,
}

/// What a poller found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollResult {
    /// The same stub or lock.
    Unchanged,
    /// A value.
    Filled,
    /// It was given up.
    Freed,
}

impl PollResult {
    /// The two questions of each look.
    pub fn asks() -> Commands {
        smallvec![peek(ItemRef::Value), peek(ItemRef::Lock)]
    }

    /// What their answers say. `before`: the CAS of the item that was seen by the look before this one, and is to be given to
    /// the next.
    pub fn found(replies: &[ServerReply], before: &mut Option<u64>) -> PollResult {
        let stub = |item| Stub::of(item).map(|stub| stub.is_free);
        let found = match replies {
            [ServerReply::Item(item), _] if stub(item) == Some(false) => PollResult::Unchanged,
            [ServerReply::Item(item), _] if stub(item) == Some(true) => PollResult::Freed,
            [ServerReply::Item(_), ServerReply::Item(_)] | [ServerReply::Failed(_), _] => {
                PollResult::Unchanged
            }
            // The lock has gone, and left the value as it was.
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
    /// A lease ended without a value. Returns who waits.
    pub fn release_waiters(&mut self, key: &[u8], now: Now) -> Vec<W> {
        // Beyond the bound a key that nobody knows is not remembered; it has no waiters either.
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(key) {
            return Vec::new();
        }
        let state = self.keys.entry(key.into()).or_default();
        let before = if now.mono < state.remember_until { state.unfilled } else { 0 };
        state.unfilled = before.saturating_add(1);
        state.remember_until = now.mono + HOPELESS_MS;
        self.wake(key)
    }

    /// Takes who waits for the key.
    pub fn wake(&mut self, key: &[u8]) -> Vec<W> {
        let Some(state) = self.state(key) else { return Vec::new() };
        let woken = std::mem::take(&mut state.waiters).into_iter().map(|(_, waiter)| waiter).collect();
        self.remove_if_idle(key);
        woken
    }

    /// `owner` commands to wait for the key. Nobody waits for what its own connection builds.
    pub fn wait(&mut self, key: &[u8], owner: Owner, now: Now, policy: &Policy, waiter: W) -> Admission {
        self.next += 1;
        let id = self.next;
        let state = self.keys.entry(key.into()).or_default();
        let lease = state.entries.iter().find(|entry| entry.is_lease());
        let own = lease.is_some_and(|entry| entry.owner == owner);
        let too_old = lease
            .is_some_and(|entry| now.mono - entry.token.at.mono.min(now.mono) >= millis(policy.cold_wait));
        let hopeless = state.unfilled >= 2 && now.mono < state.remember_until;
        if own || too_old || hopeless {
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

    /// A fill waits until the renewal of its lease has ended: it is told by [`Leases::renewal_ended`].
    pub fn await_renewal(&mut self, key: &[u8], fill: W) {
        self.keys.entry(key.into()).or_default().waiting_fills.push(fill);
    }

    /// Takes the fills that wait for a renewal.
    pub fn renewal_ended(&mut self, key: &[u8]) -> Vec<W> {
        let fills = self.state(key).map(|state| std::mem::take(&mut state.waiting_fills)).unwrap_or_default();
        self.remove_if_idle(key);
        fills
    }

    /// A waiter has gone.
    pub fn leave(&mut self, key: &[u8], waiter: u64) {
        if let Some(state) = self.state(key) {
            state.waiters.retain(|(id, _)| *id != waiter);
        }
        self.remove_if_idle(key);
    }

    /// Whether anybody still waits for what a poller watches; if not, the poller ends.
    pub fn has_waiters(&mut self, key: &[u8]) -> bool {
        let Some(state) = self.state(key) else { return false };
        let awaited = !state.waiters.is_empty();
        state.polled &= awaited;
        if !awaited {
            self.remove_if_idle(key);
        }
        awaited
    }

    /// A poller has an answer. Returns whom to wake; unless it is unchanged, the poller ends.
    pub fn polled(&mut self, key: &[u8], found: PollResult, now: Now) -> Vec<W> {
        if let Some(state) = self.state(key)
            && found != PollResult::Unchanged
        {
            state.polled = false;
            // A lease that is here counts when it ends.
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
