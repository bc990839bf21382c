//! When the servers of a pool change, of which some are discovered: a state machine without I/O and clock.
//!
//! ```text
//!              seen twice              settle           settle               settle
//!   ── found ──────────────▶ Next ──────────────▶ TakeOver ─────▶ Previous ─────────▶ done
//!                              │ what was found before is found again
//!                              └──────▶ back
//! ```
//!
//! Each sidecar of a fleet runs it by itself. If all of them find a change within `settle`, only neighbouring steps are in use at a
//! time (docs/decisions/0013). So all steps last equally long, and a step that has begun is only gone back from while nobody reads by
//! the new servers.

use std::time::Duration;

/// What the servers of a pool are at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase<T> {
    /// Nothing has been found yet.
    Unknown,
    Settled(T),
    /// A change of the first to the second.
    Changing(T, T, Step),
}

/// The steps of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Keys are read from the old servers, and invalidated in both places.
    Next,
    /// Keys are read from the new servers, which take over what they lack from the old ones.
    TakeOver,
    /// Keys are read from the new servers, and still invalidated in both places.
    Previous,
}

impl Step {
    /// Its number, as in docs/operations.md.
    pub(super) fn number(self) -> u8 {
        match self {
            Step::Next => 1,
            Step::TakeOver => 2,
            Step::Previous => 3,
        }
    }
}

/// The change of one pool.
#[derive(Debug, Clone)]
pub(super) struct Settling<T> {
    settle: Duration,
    phase: Phase<T>,
    /// When the phase began.
    since: Duration,
    /// The latest complete answer.
    latest: Option<T>,
    /// When something was last looked up, with or without an answer.
    looked: Duration,
    /// What is found in place of what the phase leads to.
    differs: Option<Differs<T>>,
}

/// Answers that differ from what is in use.
#[derive(Debug, Clone)]
struct Differs<T> {
    found: T,
    /// Since when it is the answer.
    since: Duration,
    /// Since when the answer differs.
    first: Duration,
    /// Whether a change to it may begin.
    is_confirmed: bool,
}

impl<T: Clone + PartialEq> Settling<T> {
    /// Each step lasts `settle`. `known`: what is in use already.
    pub(super) fn new(settle: Duration, known: Option<T>) -> Settling<T> {
        let phase = known.clone().map_or(Phase::Unknown, Phase::Settled);
        let zero = Duration::ZERO;
        Settling { settle, phase, since: zero, latest: known, looked: zero, differs: None }
    }

    /// The phase in force.
    pub(super) fn phase(&self) -> &Phase<T> {
        &self.phase
    }

    /// What the phase in force reads by.
    pub(super) fn read_by(&self) -> Option<&T> {
        match &self.phase {
            Phase::Unknown => None,
            Phase::Settled(found) | Phase::Changing(found, _, Step::Next) => Some(found),
            Phase::Changing(_, to, Step::TakeOver | Step::Previous) => Some(to),
        }
    }

    /// What the phase in force leads to.
    fn leads_to(&self) -> Option<&T> {
        match &self.phase {
            Phase::Unknown => None,
            Phase::Settled(found) | Phase::Changing(_, found, _) => Some(found),
        }
    }

    /// From the next step on, steps last this long.
    pub(super) fn set_settle(&mut self, settle: Duration) {
        self.settle = settle;
    }

    pub(super) fn found(&mut self, now: Duration, found: T) {
        self.looked = now;
        self.latest = Some(found.clone());
        if self.leads_to().is_none_or(|to| *to == found) {
            self.differs = None;
            return;
        }
        let (since, first) = match &self.differs {
            Some(before) if before.found == found => (before.since, before.first),
            Some(before) => (now, before.first),
            None => (now, now),
        };
        // A fleet has seen a change twice within `settle`. An answer that never stays the same is taken as it is, after a while.
        let is_confirmed = now - since >= self.settle / 2 || now - first >= self.settle * 2;
        self.differs = Some(Differs { found, since, first, is_confirmed });
    }

    /// Nothing was found: what was found before remains in force.
    pub(super) fn failed(&mut self, now: Duration) {
        self.looked = now;
    }

    /// The phase that must be put in force now, if it is another one.
    pub(super) fn due(&self, now: Duration) -> Option<Phase<T>> {
        let has_lasted = now >= self.since + self.settle;
        match &self.phase {
            Phase::Unknown => self.latest.clone().map(Phase::Settled),
            // The others must have completed the change before, or have left it.
            Phase::Settled(_) if !has_lasted => None,
            Phase::Settled(from) => {
                let differs = self.differs.as_ref().filter(|differs| differs.is_confirmed)?;
                Some(Phase::Changing(from.clone(), differs.found.clone(), Step::Next))
            }
            Phase::Changing(from, ..) if self.is_undone() => Some(Phase::Settled(from.clone())),
            Phase::Changing(from, to, Step::Next) if has_lasted && !self.must_look(now) => {
                Some(Phase::Changing(from.clone(), to.clone(), Step::TakeOver))
            }
            Phase::Changing(from, to, Step::TakeOver) if has_lasted => {
                Some(Phase::Changing(from.clone(), to.clone(), Step::Previous))
            }
            Phase::Changing(_, to, Step::Previous) if has_lasted => Some(Phase::Settled(to.clone())),
            Phase::Changing(..) => None,
        }
    }

    /// Whether a change that nobody reads by yet leads to what is not found any longer, but to what was in use before.
    fn is_undone(&self) -> bool {
        match (&self.phase, &self.differs) {
            (Phase::Changing(from, _, Step::Next), Some(differs)) => differs.found == *from,
            _ => false,
        }
    }

    /// Whether a lookup must show first that the change has not been undone: its first step has lasted long enough.
    pub(super) fn must_look(&self, now: Duration) -> bool {
        let end = self.since + self.settle;
        matches!(self.phase, Phase::Changing(_, _, Step::Next)) && now >= end && self.looked < end
    }

    /// When the phase in force has lasted long enough; `None` if it lasts.
    pub(super) fn ends_at(&self) -> Option<Duration> {
        let ends = matches!(self.phase, Phase::Changing(..)) || self.differs.is_some();
        ends.then(|| self.since + self.settle)
    }

    /// This phase is in force from now on.
    pub(super) fn begin(&mut self, now: Duration, phase: Phase<T>) {
        self.phase = phase;
        self.since = now;
        if self.differs.as_ref().is_some_and(|differs| Some(&differs.found) == self.leads_to()) {
            self.differs = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: u64 = 120;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Runs it with what is found every minute, and returns when which phase began, until `until`.
    fn run(
        settling: &mut Settling<u8>,
        from: u64,
        until: u64,
        found: impl Fn(u64) -> Option<u8>,
    ) -> Vec<(u64, Phase<u8>)> {
        let mut phases = Vec::new();
        for now in from..until {
            let must_look = settling.must_look(s(now));
            if now % 60 == 0 || must_look {
                match found(now) {
                    Some(answer) => settling.found(s(now), answer),
                    None => settling.failed(s(now)),
                }
            }
            if let Some(phase) = settling.due(s(now)) {
                settling.begin(s(now), phase.clone());
                phases.push((now, phase));
            }
        }
        phases
    }

    fn settled(on: u8) -> Settling<u8> {
        Settling::new(s(SETTLE), Some(on))
    }

    use Phase::{Changing, Settled};
    use Step::{Next, Previous, TakeOver};

    #[test]
    fn what_is_found_first_is_in_force_at_once_and_a_change_takes_three_steps_of_equal_length() {
        let mut settling = Settling::new(s(SETTLE), None);
        assert_eq!(settling.read_by(), None);
        let phases = run(&mut settling, 0, 1000, |now| match now {
            0..100 => None,
            100..200 => Some(1),
            _ => Some(2),
        });
        let expected = [
            (120, Settled(1)),
            (300, Changing(1, 2, Next)),
            (420, Changing(1, 2, TakeOver)),
            (540, Changing(1, 2, Previous)),
            (660, Settled(2)),
        ];
        assert_eq!(phases, expected);
    }

    #[test]
    fn an_answer_that_lasts_for_less_than_a_minute_or_fails_changes_nothing() {
        let flaps = |now| match now {
            60 | 180 | 300 => Some(2),
            400..900 => None,
            _ => Some(1),
        };
        assert_eq!(run(&mut settled(1), 0, 2000, flaps), []);
    }

    #[test]
    fn a_change_that_is_undone_in_its_first_step_is_left_and_later_it_is_completed_and_followed_by_another() {
        let phases = run(&mut settled(1), 0, 1000, |now| Some(if (60..200).contains(&now) { 2 } else { 1 }));
        assert_eq!(phases, [(120, Changing(1, 2, Next)), (240, Settled(1))]);
        let phases = run(&mut settled(1), 0, 2000, |now| Some(if (60..250).contains(&now) { 2 } else { 1 }));
        let expected = [
            (120, Changing(1, 2, Next)),
            (240, Changing(1, 2, TakeOver)),
            (360, Changing(1, 2, Previous)),
            (480, Settled(2)),
            (600, Changing(2, 1, Next)),
            (720, Changing(2, 1, TakeOver)),
            (840, Changing(2, 1, Previous)),
            (960, Settled(1)),
        ];
        assert_eq!(phases, expected);
    }

    #[test]
    fn a_third_answer_waits_until_the_change_is_over() {
        let phases = run(&mut settled(1), 0, 1000, |now| Some(if now < 210 { 2 } else { 3 }));
        assert_eq!(phases[0], (120, Changing(1, 2, Next)));
        assert_eq!(phases[3..5], [(480, Settled(2)), (600, Changing(2, 3, Next))]);
    }

    #[test]
    fn an_answer_that_never_stays_the_same_is_taken_after_a_while() {
        let phases = run(&mut settled(1), 0, 500, |now| Some(if now % 120 == 0 { 2 } else { 3 }));
        assert_eq!(phases[0], (240, Changing(1, 2, Next)));
    }

    #[test]
    fn the_second_step_begins_only_after_a_lookup_or_a_failed_one() {
        let mut settling = settled(1);
        settling.found(s(0), 2);
        settling.found(s(60), 2);
        assert_eq!(settling.due(s(119)), None, "what is in force has not lasted for long enough");
        let phase = settling.due(s(120)).unwrap();
        settling.begin(s(120), phase);
        let settling = &mut settling;
        settling.found(s(239), 2);
        assert_eq!(
            (settling.due(s(240)), settling.must_look(s(239)), settling.must_look(s(240))),
            (None, false, true)
        );
        settling.failed(s(241));
        assert_eq!(settling.due(s(241)), Some(Changing(1, 2, TakeOver)));
    }

    /// Three sidecars look at different moments within a minute. Whenever the answer changes for good, or for longer than it takes
    /// to complete the first step, or for less than it takes to confirm it: no two of them are ever in steps that are not adjacent.
    #[test]
    fn sidecars_that_see_each_change_within_settle_are_in_adjacent_steps_at_any_time() {
        let step = |phase: &Phase<u8>| match phase {
            Phase::Unknown => unreachable!("something is known from the start"),
            Settled(at) => (*at, 0, *at),
            Changing(from, to, step) => (*from, step.number(), *to),
        };
        let adjacent = |a: (u8, u8, u8), b: (u8, u8, u8)| {
            let follows = |(from, n, to): (u8, u8, u8), later: (u8, u8, u8)| match n {
                0 => later == (from, 1, later.2) || later == (from, 0, from),
                3 => later == (to, 0, to),
                n => later == (from, n + 1, to),
            };
            a == b || follows(a, b) || follows(b, a)
        };
        for lasts in [30, 55, 100, 130, 170, 300, 420, 900, 5000] {
            for offsets in [[0, 20, 40], [0, 1, 59], [10, 30, 55]] {
                let mut sidecars = [settled(1), settled(1), settled(1)];
                for now in 0..4000 {
                    for (sidecar, offset) in sidecars.iter_mut().zip(offsets) {
                        let answer = if (600..600 + lasts).contains(&now) { 2 } else { 1 };
                        if (now + offset) % 60 == 0 || sidecar.must_look(s(now)) {
                            sidecar.found(s(now), answer);
                        }
                        if let Some(phase) = sidecar.due(s(now)) {
                            sidecar.begin(s(now), phase);
                        }
                    }
                    for a in &sidecars {
                        for b in &sidecars {
                            let (a, b) = (step(a.phase()), step(b.phase()));
                            assert!(adjacent(a, b), "{now}: {a:?} and {b:?}, {lasts} s, {offsets:?}");
                        }
                    }
                }
            }
        }
    }
}
