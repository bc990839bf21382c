//! Clients that change the source of truth and repeat each invalidation until it is acknowledged.

use kennel::guard::leases::Owner;
use kennel::guard::{Bump, Delete, ItemRef, OnInvalidate, Removal};

use super::checker::{DisruptionKind, Violation};
use super::operation::{Purpose, Task};
use super::plan::tag_name;
use super::world::{Event, World};

/// The invalidators' connection.
const INVALIDATOR: Owner = Owner { connection: 0, peers: 0 };

/// An invalidation in progress.
#[derive(Debug, Clone)]
pub struct Invalidation {
    target: Target,
    disruptions: Vec<usize>,
    /// The reasons of the current attempt.
    attempt: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Key(usize, Removal),
    Tag(usize),
}

impl World {
    fn next_target(&mut self) -> Target {
        let keys = self.plan.keys.len();
        let at = self.below((keys + self.plan.all_tags()) as u64) as usize;
        if self.plan.tags > 0 && self.plan.is_storm() {
            return Target::Tag(at % self.plan.tags);
        }
        let mut removal = Removal::default();
        if self.plan.metas && self.below(3) == 0 {
            // `md I`, with or without `T`.
            removal.stale = true;
            removal.seconds = (self.below(2) == 0).then_some(1);
        }
        if at < keys { Target::Key(at, removal) } else { Target::Tag(at - keys) }
    }

    pub fn invalidate(&mut self, which: usize) -> Result<(), Violation> {
        if self.invalidations[which].is_none() {
            if self.now >= self.plan.quiet {
                return Ok(());
            }
            let target = self.next_target();
            let all = match target {
                Target::Key(key, removal) => {
                    let policy = &self.plan.keys[key].policy;
                    let stale = removal.stale || policy.on_delete == OnInvalidate::Stale;
                    vec![(key, DisruptionKind::Key { leaves: stale && policy.stale_seconds() > 0 })]
                }
                Target::Tag(tag) => {
                    let named = |key: usize| self.plan.keys[key].extra.contains(&tag);
                    let all = self.plan.tagged(tag).into_iter();
                    all.map(|key| (key, DisruptionKind::Tag { tag, named: named(key) })).collect::<Vec<_>>()
                }
            };
            let disruptions = self.checker.invalidation(&all, self.now);
            self.trace(|| format!("invalidator {which}: {target:?}"));
            self.invalidations[which] = Some(Invalidation { target, disruptions, attempt: Vec::new() });
        }
        let sidecar = self.below(self.plan.sidecars as u64) as usize;
        let Some(invalidation) = &mut self.invalidations[which] else { return Ok(()) };
        invalidation.attempt = self.checker.attempted(&invalidation.disruptions, self.now);
        match invalidation.target {
            Target::Key(key, removal) => {
                let name = self.plan.keys[key].key.clone();
                self.sidecars[sidecar].leases.invalidate(&name, INVALIDATOR);
                let (delete, commands) =
                    self.with_inputs(sidecar, key, |inputs| Delete::with_removal(removal, inputs));
                let op = self.op(sidecar, key, Task::Delete(delete), Purpose::Invalidation(which));
                self.send_round(op, commands);
            }
            Target::Tag(tag) => {
                let (bump, commands) = self.with_inputs(sidecar, 0, Bump::start);
                let mut op = self.op(sidecar, 0, Task::Bump(bump), Purpose::Invalidation(which));
                op.tags = vec![tag_name(tag)];
                op.tag_places = vec![self.places_of_tag(sidecar, &op.tags[0])];
                assert!(
                    commands
                        .iter()
                        .all(|command| matches!(command.item, ItemRef::Tag(0) | ItemRef::TagCopy(0)))
                );
                self.send_round(op, commands);
            }
        }
        Ok(())
    }

    /// The attempt was answered or never will be. All of its commands have arrived by `by`.
    pub fn attempt_ended(&mut self, which: usize, by: u64) {
        if let Some(Invalidation { attempt, .. }) = &self.invalidations[which] {
            self.checker.attempt_ended(&attempt.clone(), by);
        }
    }

    pub fn invalidation_done(&mut self, which: usize, sidecar: usize, done: bool) -> Result<(), Violation> {
        self.attempt_ended(which, self.now);
        if !done {
            self.at(20, Event::Invalidate { which });
            return Ok(());
        }
        if let Some(Invalidation { target, disruptions, .. }) = self.invalidations[which].take() {
            self.checker.invalidated(&disruptions, sidecar, self.now);
            if let Target::Key(key, _) = target {
                self.wake_key(sidecar, key);
            }
        }
        let pause = 1 + self.below(self.plan.invalidators.1);
        self.at(pause, Event::Invalidate { which });
        Ok(())
    }
}
