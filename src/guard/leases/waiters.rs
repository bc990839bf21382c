//! Requests that wait for a key while it is rebuilt, and how they learn that the rebuild has ended.

use smallvec::smallvec;

use crate::guard::command::{Commands, Item, ItemRef, ServerReply, peek};
use crate::guard::inputs::Now;
use crate::guard::policy::{Policy, millis};
use crate::guard::stub::Stub;

use super::entry::{Entry, Owner};
use super::table::Leases;

/// With this many keys in a table, no further key is remembered for having been claimed without a fill.
pub(super) const MAX_KEYS: usize = 1024;
/// The most waiting requests of one key.
pub(in crate::guard) const MAX_WAITERS_PER_KEY: usize = 4096;
/// For how long no reader waits for a key that was claimed without a fill twice in a row, in milliseconds.
pub(in crate::guard) const NO_WAIT_MS: u64 = 60_000;

/// The result of a request to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The request is among those that wait.
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
    /// Another client has taken the stub or lock over.
    TakenOver,
    /// The poll found a value.
    Filled,
    /// The rebuild was given up.
    Freed,
}

/// The item that a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Polled {
    /// The number of its CAS.
    pub cas: u64,
    /// If it is a stub: its turn, and whether it is free.
    stub: Option<(u8, bool)>,
}

impl Polled {
    fn of(item: &Item) -> Polled {
        let stub = Stub::of(item).map(|stub| (stub.turn, stub.is_free));
        Polled { cas: item.cas.number, stub }
    }
}

impl PollResult {
    /// The commands of a poll.
    pub fn commands() -> Commands {
        smallvec![peek(ItemRef::Value), peek(ItemRef::Lock)]
    }

    /// Interprets the replies to a poll. `before`: what the previous poll found; updated for the next.
    pub fn from_replies(replies: &[ServerReply], before: &mut Option<Polled>) -> PollResult {
        let polled = match replies.first() {
            Some(ServerReply::Item(item)) => Some(Polled::of(item)),
            _ => None,
        };
        let before = std::mem::replace(before, polled.or(*before));
        match (polled, replies) {
            (_, [ServerReply::Failed(_), _]) => PollResult::Unchanged,
            (Some(Polled { stub: Some((_, true)), .. }), _) => PollResult::Freed,
            (Some(Polled { stub: Some((turn, _)), .. }), _) => match before {
                Some(Polled { stub: Some((seen, _)), .. }) if seen != turn => PollResult::TakenOver,
                _ => PollResult::Unchanged,
            },
            // Whoever takes a lock over marks the value.
            (Some(polled), [_, ServerReply::Item(_)]) => match before {
                Some(before) if before.cas != polled.cas => PollResult::TakenOver,
                _ => PollResult::Unchanged,
            },
            // The lock has gone and the value has not changed.
            (Some(polled), _) if before.is_some_and(|before| before.cas == polled.cas) => PollResult::Freed,
            (Some(_), _) => PollResult::Filled,
            _ => PollResult::Freed,
        }
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
        let woken = std::mem::take(&mut state.waiters).into_values().collect();
        self.remove_if_idle(key);
        woken
    }

    /// `owner` requests to wait for the key. A connection does not wait for its own rebuild. `cold`: there is no
    /// old value to serve, so the request may be let through.
    pub fn wait(
        &mut self,
        key: &[u8],
        owner: Owner,
        now: Now,
        policy: &Policy,
        cold: bool,
        waiter: W,
    ) -> Admission {
        self.next += 1;
        let id = self.next;
        let state = self.keys.entry(key.into()).or_default();
        let lease = state.entries.iter().find(|entry| entry.is_lease());
        let own = lease.is_some_and(|entry| entry.owner == owner);
        let too_old = lease
            .filter(|_| !cold)
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
        state.waiters.insert(id, waiter);
        Admission::Waits { waiter: id, poll }
    }

    /// A waiting request whose builder has had `cold_wait` asks to build the value too. Of all that wait for the key
    /// in this sidecar, one per `cold_wait` is let through. The stub or lock decides between sidecars.
    ///
    /// # Errors
    /// Another request was let through. The error is when to ask again, on the monotonic clock in ms.
    pub fn let_through(&mut self, key: &[u8], now: Now, policy: &Policy) -> Result<(), u64> {
        let Some(state) = self.state(key) else { return Ok(()) };
        if now.mono < state.next_let_through {
            return Err(state.next_let_through);
        }
        state.next_let_through = now.mono + millis(policy.cold_wait).max(1);
        Ok(())
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
            state.waiters.remove(&waiter);
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
                PollResult::Freed | PollResult::TakenOver => {}
                _ => state.unfilled = 0,
            }
            return self.wake(key);
        }
        Vec::new()
    }
}
