//! What operators see of the placements of a pool's keys: log lines, metrics, `/readyz` and the status page.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

use crate::failover::placements::{Kind, Step};
use crate::metrics::PlacementsState;
use crate::upstream::UnknownPlacement;

/// The placements of one pool. Written by the monitor's thread only.
pub struct PoolStatus {
    pool: String,
    own: Step,
    policy: UnknownPlacement,
    seen: Mutex<Seen>,
}

/// What the marks say.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// How many steps are in use, the own one included.
    in_use: usize,
    /// Those of them that are not adjacent.
    unknown: Vec<Step>,
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
        PoolStatus { pool, own, policy, seen: Mutex::new(Seen { in_use: 1, unknown: Vec::new() }) }
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
        PlacementsState { pool: self.pool.clone(), in_use: seen.in_use, unknown: seen.unknown.len() }
    }

    /// A line for `/readyz` for each step that is not adjacent.
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
        self.seen().unknown.iter().map(note).collect()
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
