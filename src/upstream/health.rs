//! Whether one server answers in time: one machine per server, shared by all workers.
//!
//! ```text
//!             too many bad replies            recover_probes good probes            full share
//!  healthy ──────────────────────────▶ sick ────────────────────────────▶ half-open ──────────▶ healthy
//!                                       ▲      too many bad replies           │
//!                                       └─────────────────────────────────────┘
//! ```
//!
//! While a server is sick no request is sent to it, except a probe. While it is half-open, a share of the requests is sent.
//! Times are given, as durations since any fixed moment, so the machine reads no clock.
//!
//! A batch of replies that arrived in time costs one atomic addition. The mutex is taken for a bad reply, and by the first good
//! batch of a tenth of a second.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::spec::HealthSpec;
use crate::metrics::HealthState;

/// The sliding second is counted in this many slots.
const SLOTS: u64 = 10;
/// Bad replies must be in this many different slots of the second. So one pause, however many requests it delayed, is not
/// enough.
const MIN_BAD_SLOTS: usize = 3;
/// The percentage of requests that a server gets first when it returns. It doubles with each step.
const FIRST_SHARE: u8 = 10;
/// How long each step of the return lasts.
const STEP: Duration = Duration::from_secs(1);
/// A server that becomes sick again within this time after it was healthy returns more slowly.
const RELAPSE: Duration = Duration::from_secs(60);
/// Each relapse doubles the probes and the steps of the return, at most this many times. So a server that is in time again
/// has all its requests within about 20 s.
const MAX_RELAPSES: u32 = 2;

/// The health of one server.
#[derive(Debug)]
pub struct Health {
    /// Replies that take longer are slow, in ns. The largest number if slow servers are not looked for.
    slow: AtomicU64,
    /// The percentage of requests that are sent: 100 when healthy, 0 when sick.
    share: AtomicU8,
    /// Counts the requests of a half-open server, to send `share` of each hundred.
    turn: AtomicU32,
    /// The current slot in the upper half, its replies in time in the lower half.
    good: AtomicU64,
    decided: Mutex<Decided>,
}

#[derive(Debug)]
struct Decided {
    spec: HealthSpec,
    state: HealthState,
    /// The slots of the last second, oldest first.
    slots: VecDeque<Slot>,
    /// Time-outs at different moments without a reply in time since.
    failures: u32,
    last_failure: Option<Duration>,
    good_probes: u32,
    /// The pause before the next probe.
    pause: Duration,
    relapses: u32,
    recovered: Option<Duration>,
    /// Whether somebody drives the recovery.
    recovering: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    at: u64,
    good: u64,
    bad: u64,
}

/// Of [`Health::slow`]: no reply is slow.
const NEVER: u64 = u64::MAX;

fn slow_ns(spec: HealthSpec) -> u64 {
    if spec.enabled { u64::try_from(spec.slow.as_nanos()).unwrap_or(NEVER) } else { NEVER }
}

fn slot(now: Duration) -> u64 {
    (now.as_millis() as u64 / (1000 / SLOTS)) & 0xffff_ffff
}

impl Health {
    /// A server that counts as healthy until its replies say otherwise.
    pub fn new(spec: HealthSpec) -> Health {
        let decided = Decided {
            spec,
            state: HealthState::Healthy,
            slots: VecDeque::with_capacity(SLOTS as usize + 1),
            failures: 0,
            last_failure: None,
            good_probes: 0,
            pause: spec.probe_interval,
            relapses: 0,
            recovered: None,
            recovering: false,
        };
        let (share, turn, good) = (AtomicU8::new(100), AtomicU32::new(0), AtomicU64::new(0));
        Health { slow: AtomicU64::new(slow_ns(spec)), share, turn, good, decided: Mutex::new(decided) }
    }

    /// From now on, these rules apply.
    pub fn set_spec(&self, spec: HealthSpec) {
        self.slow.store(slow_ns(spec), Relaxed);
        self.decided().spec = spec;
    }

    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request is sent now.
    pub fn admits(&self) -> bool {
        match self.share.load(Relaxed) {
            100 => true,
            0 => false,
            share => {
                // Spread over the hundred: the share is taken whenever its multiple passes a whole number.
                let (turn, share) = (u64::from(self.turn.fetch_add(1, Relaxed)), u64::from(share));
                turn * share % 100 < share
            }
        }
    }

    /// Healthy, sick or half-open, as last judged.
    pub fn state(&self) -> HealthState {
        self.decided().state
    }

    /// Whether a reply that takes this long is a slow one.
    pub fn is_slow(&self, took: Duration) -> bool {
        took.as_nanos() > u128::from(self.slow.load(Relaxed))
    }

    /// This many requests were answered, each after this time. Returns the new state if it changes.
    pub fn answered(&self, count: u64, took: Duration, now: Duration) -> Option<HealthState> {
        if self.is_slow(took) {
            return self.bad(count, false, now);
        }
        let at = slot(now);
        let before = self.good.fetch_add(count, Relaxed);
        if before >> 32 != at {
            self.turn_slot(&mut self.decided(), at, count);
        }
        None
    }

    /// This many requests timed out at once. Returns the new state if it changes.
    pub fn timed_out(&self, count: u64, now: Duration) -> Option<HealthState> {
        if self.slow.load(Relaxed) == NEVER { None } else { self.bad(count, true, now) }
    }

    /// Moves the good replies of an earlier slot to the list, except the newest `mine`, and drops what is older than a second.
    fn turn_slot(&self, decided: &mut Decided, at: u64, mine: u64) {
        let current = self.good.load(Relaxed);
        if current >> 32 != at {
            let ended = self.good.swap(at << 32 | mine, Relaxed);
            decided.slot(ended >> 32).good += (ended & 0xffff_ffff).saturating_sub(mine);
            if ended & 0xffff_ffff > 0 {
                decided.failures = 0;
            }
        }
        while decided.slots.front().is_some_and(|slot| slot.at + SLOTS <= at) {
            decided.slots.pop_front();
        }
    }

    fn bad(&self, count: u64, failure: bool, now: Duration) -> Option<HealthState> {
        let mut decided = self.decided();
        if decided.state == HealthState::Sick {
            return None; // a reply to what was sent before
        }
        let at = slot(now);
        self.turn_slot(&mut decided, at, 0);
        let good_now = self.good.load(Relaxed) & 0xffff_ffff;
        if failure && decided.last_failure != Some(now) {
            decided.failures = if good_now > 0 { 1 } else { decided.failures + 1 };
            decided.last_failure = Some(now);
        }
        decided.slot(at).bad += count;
        let (mut good, mut bad, mut bad_slots) = (good_now, 0, 0);
        for slot in &decided.slots {
            good += slot.good;
            bad += slot.bad;
            bad_slots += usize::from(slot.bad > 0);
        }
        let all = good + bad;
        let slow = all >= decided.spec.min_requests
            && bad_slots >= MIN_BAD_SLOTS
            && bad as f64 >= decided.spec.slow_share * all as f64;
        if !slow && decided.failures < decided.spec.failures {
            return None;
        }
        let relapsed = decided.state == HealthState::HalfOpen
            || decided.recovered.is_some_and(|recovered| now.saturating_sub(recovered) < RELAPSE);
        decided.relapses = if relapsed { (decided.relapses + 1).min(MAX_RELAPSES) } else { 0 };
        decided.pause = decided.spec.probe_interval;
        self.enter(&mut decided, HealthState::Sick, 0)
    }

    fn enter(&self, decided: &mut Decided, state: HealthState, share: u8) -> Option<HealthState> {
        (decided.state, decided.failures, decided.good_probes) = (state, 0, 0);
        decided.slots.clear();
        self.share.store(share, Relaxed);
        Some(state)
    }

    /// Whether the caller drives the recovery: true once, until the server is healthy again.
    pub fn begin_recovery(&self) -> bool {
        !std::mem::replace(&mut self.decided().recovering, true)
    }

    /// How long whoever drives the recovery waits before its next step: a probe of a sick server, or more requests to a half-open
    /// one. `None` when the server is healthy.
    pub fn pause(&self) -> Option<Duration> {
        let decided = self.decided();
        match decided.state {
            HealthState::Sick => Some(decided.pause),
            HealthState::HalfOpen => Some(STEP * (1 << decided.relapses)),
            HealthState::Healthy => None,
        }
    }

    /// A probe was answered after this time, or not at all. Returns the new state if it changes.
    pub fn probed(&self, took: Option<Duration>) -> Option<HealthState> {
        let mut decided = self.decided();
        if took.is_none_or(|took| took > decided.spec.slow) {
            decided.good_probes = 0;
            decided.pause = (decided.pause * 2).min(decided.spec.probe_max_interval);
            return None;
        }
        decided.pause = decided.spec.probe_interval;
        decided.good_probes += 1;
        if decided.good_probes < decided.spec.recover_probes << decided.relapses {
            return None;
        }
        self.enter(&mut decided, HealthState::HalfOpen, FIRST_SHARE)
    }

    /// A step of the return has passed. Returns the new state if it changes.
    pub fn widen(&self, now: Duration) -> Option<HealthState> {
        let mut decided = self.decided();
        if decided.state != HealthState::HalfOpen {
            return None;
        }
        let share = self.share.load(Relaxed) * 2;
        if share < 100 {
            self.share.store(share, Relaxed);
            return None;
        }
        decided.recovered = Some(now);
        decided.recovering = false;
        self.enter(&mut decided, HealthState::Healthy, 100)
    }
}

impl Decided {
    fn slot(&mut self, at: u64) -> &mut Slot {
        let place = self.slots.iter().position(|slot| slot.at >= at).unwrap_or(self.slots.len());
        if self.slots.get(place).is_none_or(|slot| slot.at != at) {
            self.slots.insert(place, Slot { at, good: 0, bad: 0 });
        }
        &mut self.slots[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn health() -> Health {
        Health::new(HealthSpec { enabled: true, ..HealthSpec::for_timeout(500 * MS) })
    }

    /// A slow reply every 50 ms from `from` on, until the state changes. Returns how many it took.
    fn slow_until_sick(health: &Health, from: u32) -> u32 {
        (1..100)
            .find(|n| health.answered(1, 400 * MS, (from + n * 50) * MS) == Some(HealthState::Sick))
            .unwrap()
    }

    #[test]
    fn a_server_whose_replies_are_slow_becomes_sick_and_gets_no_requests() {
        let health = health();
        assert!(health.admits());
        assert_eq!(slow_until_sick(&health, 0), 10);
        assert_eq!((health.state(), health.admits()), (HealthState::Sick, false));
        // Late replies change nothing, and are not reported again.
        assert_eq!(health.timed_out(100, 600 * MS), None);
    }

    #[test]
    fn slow_replies_among_more_fast_ones_do_not_make_it_sick() {
        let health = health();
        for n in 0..100 {
            assert_eq!(health.answered(2, MS, n * 20 * MS), None);
            assert_eq!(health.answered(1, 400 * MS, n * 20 * MS), None);
        }
    }

    #[test]
    fn one_pause_does_not_make_it_sick_however_many_requests_it_delayed() {
        let health = health();
        assert_eq!(health.answered(10_000, 400 * MS, 1000 * MS), None);
        assert_eq!(health.timed_out(10_000, 1050 * MS), None);
        assert!(health.admits());
    }

    #[test]
    fn a_few_slow_replies_to_an_idle_pool_do_not_make_it_sick() {
        let health = health();
        for n in 0..100 {
            assert_eq!(health.answered(1, 400 * MS, n * 200 * MS), None);
        }
    }

    #[test]
    fn time_outs_in_a_row_make_it_sick_even_if_they_are_few() {
        let health = health();
        for n in 1..5 {
            assert_eq!(health.timed_out(1, n * 2000 * MS), None);
        }
        assert_eq!(health.timed_out(1, 10_000 * MS), Some(HealthState::Sick));
    }

    #[test]
    fn a_reply_in_time_ends_the_row_of_time_outs() {
        let health = health();
        for n in 1..100 {
            assert_eq!(health.timed_out(1, n * 2000 * MS), None);
            assert_eq!(health.answered(1, MS, (n * 2000 + 1000) * MS), None);
        }
    }

    #[test]
    fn it_returns_after_good_probes_in_a_row_and_gets_its_requests_step_by_step() {
        let health = health();
        slow_until_sick(&health, 0);
        assert_eq!(health.pause(), Some(250 * MS));
        assert_eq!([health.probed(Some(MS)), health.probed(None), health.probed(Some(400 * MS))], [None; 3]);
        assert_eq!(health.pause(), Some(1000 * MS));
        assert_eq!([health.probed(Some(MS)), health.probed(Some(MS))], [None; 2]);
        assert_eq!(health.probed(Some(MS)), Some(HealthState::HalfOpen));
        let mut shares = Vec::new();
        let mut now = 10_000 * MS;
        while let Some(pause) = health.pause() {
            shares.push((0..100).filter(|_| health.admits()).count());
            now += pause;
            health.widen(now);
        }
        assert_eq!(shares, [10, 20, 40, 80]);
        assert_eq!((now, health.state()), (14_000 * MS, HealthState::Healthy));
        assert!((0..100).all(|_| health.admits()));
    }

    #[test]
    fn a_server_that_relapses_returns_more_slowly_up_to_a_limit() {
        let health = health();
        let mut taken = Vec::new();
        for from in [0, 20_000, 40_000, 60_000, 200_000, 100_000_000] {
            slow_until_sick(&health, from);
            let probes = (1..100).find(|_| health.probed(Some(MS)).is_some()).unwrap();
            taken.push((probes, health.pause()));
            while health.pause().is_some() {
                health.widen((from + 10_000) * MS);
            }
        }
        let second = Duration::from_secs(1);
        let usual = (3, Some(second));
        let (slower, slowest) = ((6, Some(2 * second)), (12, Some(4 * second)));
        assert_eq!(taken, [usual, slower, slowest, slowest, usual, usual]);
    }

    #[test]
    fn it_becomes_sick_again_while_it_returns() {
        let health = health();
        slow_until_sick(&health, 0);
        for _ in 0..3 {
            health.probed(Some(MS));
        }
        assert_eq!(health.state(), HealthState::HalfOpen);
        slow_until_sick(&health, 5000);
        assert!(!health.admits());
    }

    #[test]
    fn it_can_be_switched_off() {
        let health = Health::new(HealthSpec { enabled: false, ..HealthSpec::for_timeout(500 * MS) });
        assert!((0..100).all(|n| health.timed_out(100, n * 100 * MS).is_none()) && health.admits());
    }
}
