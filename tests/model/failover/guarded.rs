//! One guarded key, as short as the rules of a place allow: a lease, its fill, one invalidation.
//!
//! Only what is built before the invalidation can be served although it is invalidated, so no lease is granted after the source
//! has changed.

use super::plan::{Mutant, Plan};
use super::world::World;
use crate::world::Violation;

/// A value: its fence, and its tag's version when its lease was granted. Always built before the source changed.
type Value = (u64, u64);

/// The right to fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub fence: u64,
    pub place: usize,
    pub tag: u64,
    /// The state of the item when it was granted: any store or delete changes it.
    pub token: u64,
    /// The fill has been sent.
    pub sent: bool,
}

/// The invalidation, while it is not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalidation {
    pub by: usize,
    pub fence: u64,
    pub place: usize,
    pub done: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// The key is elsewhere, on a server that never fails, and its tag is on the server.
    pub tagged: bool,
    /// The key's item on the server and on the standby: its value, and a number that changes with each change.
    pub items: [(Option<Value>, u64); 2],
    /// The tag's item on the server and on the standby: its fence and its version.
    pub tags: [Option<(u64, u64)>; 2],
    pub leases: [Option<Lease>; 2],
    pub invalidation: Option<Invalidation>,
    pub changed: bool,
    pub acknowledged: bool,
    pub drawn: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A reader misses, and a lease is granted.
    Grant(usize),
    /// It fills.
    Fill(usize),
    /// The fill is carried out.
    Store(usize),
    /// The source changes, and then the key is deleted, or the tag is bumped.
    Invalidate(usize),
    /// That is carried out.
    Carry,
    /// The sidecar has the reply.
    Acknowledge,
}

impl Guarded {
    pub fn new(tagged: bool, fence: u64) -> Guarded {
        let tags = if tagged { [Some((fence, 1)), None] } else { [None; 2] };
        let items = [(None, 1), (None, 2)];
        let (leases, invalidation, changed, acknowledged) = ([None; 2], None, false, false);
        Guarded { tagged, items, tags, leases, invalidation, changed, acknowledged, drawn: 2 }
    }

    /// A sidecar restarts. Its fill may be carried out all the same.
    pub fn forget(&mut self, at: usize) {
        self.leases[at] = self.leases[at].filter(|lease| lease.sent);
        self.invalidation = self.invalidation.filter(|invalidation| invalidation.by != at);
    }

    /// Nothing is left that was built before the source changed.
    pub fn is_over(&self) -> bool {
        self.changed
            && self.leases.iter().all(Option::is_none)
            && self.items.iter().all(|(value, _)| value.is_none())
    }

    /// The fence and the place that a sidecar uses, valid or not if this mutant is the run's.
    fn place(world: &World, at: usize, plan: &Plan, without: Mutant) -> Option<(u64, usize)> {
        let view = world.view(at).map(|view| (view.fence, usize::from(view.standby)));
        if plan.mutant == Some(without) && view.is_none() {
            let record = world.sidecars[at].agreement.status(world.now).record?;
            return Some((record.fence, usize::from(record.standby)));
        }
        view
    }

    /// The item of the key for a place.
    fn item(&self, place: usize) -> usize {
        if self.tagged { 0 } else { place }
    }

    fn is_fresh(&self, (fence, place): (u64, usize), mutant: Option<Mutant>) -> bool {
        let Some((sealed, tag)) = self.items[self.item(place)].0 else { return false };
        if self.tagged {
            let is_sealed = |its: u64| its == fence || mutant == Some(Mutant::TagNotSealed);
            return self.tags[place].is_some_and(|(its, version)| is_sealed(its) && version == tag);
        }
        sealed == fence || mutant == Some(Mutant::FenceNotCompared)
    }

    pub fn steps(&self, world: &World, plan: &Plan) -> Vec<Step> {
        let mut steps = Vec::new();
        for at in 0..2 {
            match self.leases[at] {
                None if !self.changed => {
                    if let Some(place) = Guarded::place(world, at, plan, Mutant::LeaseInTheGrace)
                        && !self.is_fresh(place, plan.mutant)
                    {
                        steps.push(Step::Grant(at));
                    }
                }
                None => {}
                Some(lease) if lease.sent => steps.push(Step::Store(at)),
                Some(_) => steps.push(Step::Fill(at)),
            }
            if self.invalidation.is_none()
                && !self.acknowledged
                && Guarded::place(world, at, plan, Mutant::AcknowledgesWithoutView).is_some()
            {
                steps.push(Step::Invalidate(at));
            }
        }
        match self.invalidation {
            Some(invalidation) if invalidation.done => steps.push(Step::Acknowledge),
            Some(_) => steps.push(Step::Carry),
            None => {}
        }
        steps
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    pub fn take(world: &mut World, step: Step, plan: &Plan) {
        let Some(mut guarded) = world.guarded.take() else { return };
        guarded.step(world, step, plan);
        // A comparison with what is gone fails whenever it arrives.
        let items = guarded.items;
        let tagged = guarded.tagged;
        let is_alive = |lease: &Lease| items[if tagged { 0 } else { lease.place }].1 == lease.token;
        guarded.leases = guarded.leases.map(|lease| lease.filter(is_alive));
        world.guarded = Some(guarded);
    }

    fn step(&mut self, world: &World, step: Step, plan: &Plan) {
        match step {
            Step::Grant(at) => {
                let Some((fence, place)) = Guarded::place(world, at, plan, Mutant::LeaseInTheGrace) else {
                    return;
                };
                let token = self.draw();
                let item = self.item(place);
                // A stale value is kept, as is its number: a stub is left beside it.
                self.items[item].1 = token;
                let mut tag = 0;
                if self.tagged {
                    let sealed =
                        |(its, _): &(u64, u64)| *its == fence || plan.mutant == Some(Mutant::TagNotSealed);
                    if self.tags[place].filter(sealed).is_none() {
                        self.tags[place] = Some((fence, self.draw()));
                    }
                    tag = self.tags[place].map_or(0, |(_, version)| version);
                }
                self.leases[at] = Some(Lease { fence, place, tag, token, sent: false });
            }
            Step::Fill(at) => {
                let view = world.view(at).map(|view| view.fence);
                self.leases[at] = self.leases[at]
                    .filter(|lease| view == Some(lease.fence))
                    .map(|lease| Lease { sent: true, ..lease });
            }
            Step::Store(at) => {
                let Some(Lease { fence, place, tag, .. }) = self.leases[at].take() else { return };
                let item = self.item(place);
                self.items[item] = (Some((if self.tagged { 0 } else { fence }, tag)), self.draw());
            }
            Step::Invalidate(by) => {
                self.changed = true;
                let place = Guarded::place(world, by, plan, Mutant::AcknowledgesWithoutView);
                self.invalidation =
                    place.map(|(fence, place)| Invalidation { by, fence, place, done: false });
            }
            Step::Carry => {
                let Some(Invalidation { fence, place, .. }) = self.invalidation else { return };
                if self.tagged {
                    self.tags[place] = Some((fence, self.draw()));
                } else {
                    self.items[place] = (None, self.draw());
                }
                self.invalidation = self.invalidation.map(|it| Invalidation { done: true, ..it });
            }
            Step::Acknowledge => {
                let Some(Invalidation { by, fence, .. }) = self.invalidation.take() else { return };
                let is_valid = world.view(by).is_some_and(|view| view.fence == fence);
                self.acknowledged |= is_valid || plan.mutant == Some(Mutant::AcknowledgesWithoutView);
            }
        }
    }

    /// Nobody may serve as fresh what was built before an acknowledged invalidation.
    pub fn check(&self, world: &World, plan: &Plan) -> Result<(), Violation> {
        let serves = |at: usize| {
            Guarded::place(world, at, plan, Mutant::ServesWithoutView)
                .is_some_and(|place| self.is_fresh(place, plan.mutant))
        };
        match self.acknowledged && (0..2).any(serves) {
            true => Err(Violation("promise 2: what was invalidated is served as fresh".into())),
            false => Ok(()),
        }
    }
}
