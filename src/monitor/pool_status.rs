//! What operators see of the placements of a pool's keys, and of the rules of the fleet: log lines, metrics, `/readyz` and the status page.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

use crate::failover::placements::{Kind, Step};
use crate::failover::rule_marks::{RuleMark, RulesInUse};
use crate::metrics::PlacementsState;
use crate::upstream::UnknownPlacement;

/// The placements of one pool. Written by the monitor's thread only.
pub struct PoolStatus {
    pool: String,
    own: Step,
    policy: UnknownPlacement,
    seen: Mutex<Seen>,
    /// The fingerprint of the own rules; 0 until they are known.
    own_rules: AtomicU64,
    rules: Mutex<SeenRules>,
}

/// What the marks say.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// How many steps are in use, the own one included.
    in_use: usize,
    /// Those of them that are not adjacent.
    unknown: Vec<Step>,
}

/// What the marks say of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SeenRules {
    in_use: Vec<RulesInUse>,
    /// Since when there have been different ones, and when that was looked at, in ms since 1970; `None` if there are none.
    differing: Option<(u64, u64)>,
}

impl SeenRules {
    /// How many different rules are in use.
    fn fingerprints(&self) -> usize {
        self.in_use.iter().map(|used| used.mark.fingerprint).collect::<BTreeSet<_>>().len()
    }
}

/// One line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Appeared(Step),
    Gone(Step),
}

impl PoolStatus {
    /// Only the own step is known.
    pub(super) fn new(pool: String, own: Step, policy: UnknownPlacement) -> PoolStatus {
        let seen = Mutex::new(Seen { in_use: 1, unknown: Vec::new() });
        PoolStatus { pool, own, policy, seen, own_rules: AtomicU64::new(0), rules: Mutex::default() }
    }

    /// The fingerprint of the rules of this process from now on.
    pub(super) fn set_rules(&self, fingerprint: u64) {
        self.own_rules.store(fingerprint, Ordering::Relaxed);
    }

    /// The mark of its rules; `None` until they are known.
    pub(super) fn own_rules(&self) -> Option<RuleMark> {
        let fingerprint = Some(self.own_rules.load(Ordering::Relaxed)).filter(|known| *known != 0)?;
        Some(RuleMark { fingerprint, version: env!("CARGO_PKG_VERSION").to_owned() })
    }

    /// The fingerprint of the own rules, and the marks in use.
    pub fn rules(&self) -> (u64, Vec<RulesInUse>) {
        (self.own_rules.load(Ordering::Relaxed), self.seen_rules().in_use.clone())
    }

    /// Notes which rules the marks say are in use, at this time in ms since 1970. Logs when different ones appear, and when they are gone.
    pub(super) fn observe_rules(&self, in_use: Vec<RulesInUse>, now_ms: u64) {
        let pool = &self.pool[..];
        let (before, now) = {
            let mut seen = self.seen_rules();
            let before = seen.differing;
            seen.in_use = in_use;
            seen.differing = (seen.fingerprints() > 1).then(|| {
                // The second one to appear made the difference.
                let first = |fingerprint: u64| {
                    let same = seen.in_use.iter().filter(move |used| used.mark.fingerprint == fingerprint);
                    same.map(|used| used.since_ms).min().unwrap_or(now_ms)
                };
                let all: BTreeSet<u64> = seen.in_use.iter().map(|used| used.mark.fingerprint).collect();
                let mut times: Vec<u64> = all.into_iter().map(first).collect();
                times.sort_unstable();
                (before.map_or(times[1].min(now_ms), |(since, _)| since), now_ms)
            });
            (before, seen.differing)
        };
        match (before, now) {
            (None, Some(_)) => {
                if let Some(note) = self.rules_note() {
                    warn!("{note}");
                }
            }
            (Some((since, _)), None) => {
                let seconds = now_ms.saturating_sub(since) / 1000;
                info!(pool, "all sidecars have the same rules again, after {seconds} s");
            }
            _ => {}
        }
    }

    fn rules_note(&self) -> Option<String> {
        let seen = self.seen_rules();
        let (since, now) = seen.differing?;
        Some(format!(
            "pool {}: sidecars have had different rules for {} s: {} fingerprints, that of this one is {:016x}; kennel fleet lists them",
            self.pool,
            now.saturating_sub(since) / 1000,
            seen.fingerprints(),
            self.own_rules.load(Ordering::Relaxed)
        ))
    }

    fn seen_rules(&self) -> MutexGuard<'_, SeenRules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step of this process.
    pub fn own(&self) -> Step {
        self.own
    }

    /// The steps in use that are not adjacent.
    pub fn unknown(&self) -> Vec<Step> {
        self.seen().unknown.clone()
    }

    /// Whether the guarded keys of the pool are not served because of them.
    pub(super) fn withholds(&self) -> bool {
        self.policy == UnknownPlacement::Miss && !self.seen().unknown.is_empty()
    }

    /// The number of steps in use, and of those that are not adjacent.
    pub(super) fn state(&self) -> PlacementsState {
        let seen = self.seen();
        let other_rules = self.seen_rules().fingerprints().saturating_sub(1);
        PlacementsState {
            pool: self.pool.clone(),
            in_use: seen.in_use,
            unknown: seen.unknown.len(),
            other_rules,
        }
    }

    /// A line for `/readyz` for each step that is not adjacent, and one for different rules.
    pub(super) fn notes(&self) -> Vec<String> {
        let (pool, own) = (&self.pool, self.own);
        let effect = match self.policy {
            UnknownPlacement::Warn => "invalidations are lost between them",
            UnknownPlacement::Miss => "guarded keys are not served until it is gone",
        };
        let note = |step: &Step| match (step.kind, self.policy) {
            (Kind::Ended, UnknownPlacement::Warn) => {
                format!(
                    "pool {pool}: this sidecar goes back to {own} behind the end of a change ({step}): old values may be served"
                )
            }
            (Kind::Ended, UnknownPlacement::Miss) => {
                format!(
                    "pool {pool}: this sidecar goes back to {own} behind the end of a change ({step}): guarded keys are not served"
                )
            }
            _ => format!("pool {pool}: another sidecar uses placement {step}, this one {own}: {effect}"),
        };
        self.seen().unknown.iter().map(note).chain(self.rules_note()).collect()
    }

    /// Notes what the marks say now, and logs what has changed.
    pub(super) fn observe(&self, in_use: usize, unknown: Vec<Step>) {
        for change in self.changes(in_use, unknown) {
            self.log(change);
        }
    }

    fn changes(&self, in_use: usize, unknown: Vec<Step>) -> Vec<Change> {
        let mut seen = self.seen();
        let appeared = unknown.iter().filter(|step| !seen.unknown.contains(step)).copied();
        let gone = seen.unknown.iter().filter(|step| !unknown.contains(step)).copied();
        let changes = appeared.map(Change::Appeared).chain(gone.map(Change::Gone)).collect();
        *seen = Seen { in_use, unknown };
        changes
    }

    fn log(&self, change: Change) {
        let (pool, own) = (&self.pool[..], self.own);
        match (change, self.policy) {
            (Change::Appeared(other), UnknownPlacement::Warn) if other.kind == Kind::Ended => warn!(
                pool, %own, %other,
                "goes back behind the end of a change: what was invalidated since may be served again; go forward, and change back \
                 as another change (docs/operations.md)"
            ),
            (Change::Appeared(other), UnknownPlacement::Miss) if other.kind == Kind::Ended => warn!(
                pool, %own, %other,
                "goes back behind the end of a change: guarded keys are misses and cannot be changed; go forward, and change back \
                 as another change (docs/operations.md)"
            ),
            (Change::Gone(other), _) if other.kind == Kind::Ended => {
                info!(pool, %own, %other, "a change back has begun");
            }
            (Change::Appeared(other), UnknownPlacement::Warn) => warn!(
                pool, %own, %other,
                "another sidecar places keys in a way that is not adjacent: bumps and deletes are lost between the two; give \
                 all sidecars the same servers, and change these in steps (docs/operations.md)"
            ),
            (Change::Appeared(other), UnknownPlacement::Miss) => warn!(
                pool, %own, %other,
                "another sidecar places keys in a way that is not adjacent: guarded keys are misses and cannot be changed; give \
                 all sidecars the same servers, and change these in steps (docs/operations.md)"
            ),
            (Change::Gone(other), _) => {
                info!(pool, %own, %other, "no sidecar uses the placement that is not adjacent any longer");
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placement_is_reported_once_when_it_appears_and_once_when_it_is_gone() {
        let [own, a, b] = [3, 4, 5].map(Step::only);
        let status = PoolStatus::new("main".into(), own, UnknownPlacement::Warn);
        for (in_use, unknown, expected) in [
            (1, vec![], vec![]),
            (2, vec![], vec![]),
            (2, vec![a], vec![Change::Appeared(a)]),
            (2, vec![a], vec![]),
            (3, vec![a, b], vec![Change::Appeared(b)]),
            (2, vec![b], vec![Change::Gone(a)]),
            (1, vec![], vec![Change::Gone(b)]),
        ] {
            assert_eq!(status.changes(in_use, unknown.clone()), expected);
            let state = status.state();
            assert_eq!((state.in_use, state.unknown), (in_use, unknown.len()));
            assert_eq!(status.notes().len(), unknown.len());
            assert!(!status.withholds());
        }
    }

    #[test]
    fn different_rules_are_told_with_how_long_and_how_many() {
        let status = PoolStatus::new("main".into(), Step::only(3), UnknownPlacement::Warn);
        status.set_rules(7);
        let used = |fingerprint, version: &str, since_ms| RulesInUse {
            mark: RuleMark { fingerprint, version: version.to_owned() },
            since_ms,
        };
        // Another version with the same rules is no difference.
        status.observe_rules(vec![used(7, "1", 1_000), used(7, "2", 9_000)], 20_000);
        assert_eq!((status.notes(), status.state().other_rules), (vec![], 0));
        status.observe_rules(vec![used(7, "1", 1_000), used(8, "2", 9_000)], 20_000);
        let expected = |seconds, fingerprints| {
            format!(
                "pool main: sidecars have had different rules for {seconds} s: {fingerprints} fingerprints, that of this one is \
                 0000000000000007; kennel fleet lists them"
            )
        };
        assert_eq!((status.notes(), status.state().other_rules), (vec![expected(11, 2)], 1));
        status.observe_rules(vec![used(7, "1", 1_000), used(8, "2", 9_000), used(9, "2", 30_000)], 39_000);
        assert_eq!((status.notes(), status.state().other_rules), (vec![expected(30, 3)], 2));
        status.observe_rules(vec![used(7, "1", 1_000)], 50_000);
        assert_eq!((status.notes(), status.state().other_rules), (vec![], 0));
    }

    #[test]
    fn a_note_names_both_placements_and_what_becomes_of_the_keys() {
        for (policy, withholds, effect) in [
            (UnknownPlacement::Warn, false, "invalidations are lost between them"),
            (UnknownPlacement::Miss, true, "guarded keys are not served until it is gone"),
        ] {
            let status = PoolStatus::new("main".into(), Step::only(3), policy);
            status.observe(2, vec![Step::only(4)]);
            let expected = format!(
                "pool main: another sidecar uses placement 0000000000000004, this one 0000000000000003: {effect}"
            );
            assert_eq!((status.notes(), status.withholds()), (vec![expected], withholds));
        }
    }
}
