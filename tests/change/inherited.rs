//! Fences during a change: one key on a server that both lists have, so that what lies there counts in both placements
//! (docs/decisions/0013).
//!
//! Each placement has a record of that server's place: its fence, whether the key is on the standby, which differs between the
//! placements, and the fence that it has inherited. That no two fences of a record are in use at the same time is given here
//! (tests/model/failover): a change of a place takes every view of it, and each sidecar meets the next record at a time of its own.
//! The key of a placement that is not read is only deleted. Values are never lost from the server itself, also while it is away.

use super::{LAST, NEW, OLD, Rng};

/// A defence that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// The fence of the previous placement is inherited although there is no view of it.
    InheritsWithoutView,
    /// What is written for one fence arrives at a record with another one.
    ArrivesUnderAnotherFence,
    /// A new fence keeps what the former one had inherited.
    NewFenceKeepsIt,
    /// A sidecar that reads by the old list writes the field: others may not know the new one.
    InheritsInStepOne,
    /// Whatever fence a value has, it counts.
    EveryFenceCounts,
}

#[derive(Clone, Copy, Default)]
struct Record {
    fence: u64,
    standby: bool,
    inherited: u64,
}

#[derive(Clone, Copy)]
struct Item {
    cas: u64,
    /// The version of the source, and the fence. `None`: a stub.
    value: Option<(u64, u64)>,
}

#[derive(Clone, Copy)]
enum Op {
    /// A value is built after a miss, to be stored over this CAS under this fence.
    Build {
        place: usize,
        cas: u64,
        fence: u64,
    },
    Fill {
        place: usize,
        cas: u64,
        value: (u64, u64),
    },
    /// A delete, in the placements from this one on. `sent`: under which fence the last one was sent.
    Delete {
        version: u64,
        at: u8,
        sent: Option<(usize, u64)>,
    },
}

#[derive(Clone, Copy)]
struct Sidecar {
    step: u8,
    /// Whether it has a view of each placement's record.
    views: [bool; 2],
    op: Option<Op>,
}

/// What the schedules have in common.
#[derive(Clone, Copy)]
struct Plan {
    /// One in so many events is a sidecar's next step.
    pauses: u64,
    /// One in so many events is the arrival of a write of the field.
    late: u64,
    /// One in so many events is a change of a place.
    moves: u64,
}

const WALK: Plan = Plan { pauses: 50, late: 50, moves: 50 };
/// Places change often, and writes arrive late.
const RESTLESS: Plan = Plan { pauses: 50, late: 150, moves: 20 };
/// The first steps are soon over.
const HASTY: Plan = Plan { pauses: 15, late: 20, moves: 40 };

struct World {
    plan: Plan,
    mutant: Mutant,
    rng: Rng,
    records: [Record; 2],
    /// The last fence under which the old placement had the key on the server itself.
    own: u64,
    sidecars: [Sidecar; 3],
    /// On the server, on the old placement's standby and on that of the new one.
    items: [Option<Item>; 3],
    /// Writes of the field under way: the fence that the record had, and the one to be inherited.
    late: Option<(u64, u64)>,
    drawn: u64,
    source: u64,
    acknowledged: u64,
    inherited: u64,
    fresh: u64,
}

impl World {
    fn new(seed: u64, plan: Plan, mutant: Mutant) -> World {
        let record = |fence| Record { fence, ..Record::default() };
        World {
            plan,
            mutant,
            rng: Rng(seed),
            records: [record(1), record(2)],
            own: 1,
            sidecars: [Sidecar { step: 0, views: [true, false], op: None }; 3],
            items: [None; 3],
            late: None,
            drawn: 10,
            source: 1,
            acknowledged: 0,
            inherited: 0,
            fresh: 0,
        }
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    /// Where a placement has the key: the server or its standby.
    fn place(&self, placement: usize) -> usize {
        if self.records[placement].standby { 1 + placement } else { 0 }
    }

    fn reads(step: u8) -> usize {
        if step >= 2 { NEW } else { OLD }
    }

    /// The placements in which a sidecar of this step deletes, in their order.
    fn deletes(step: u8) -> &'static [usize] {
        match step {
            0 => &[OLD],
            1..=3 => &[OLD, NEW],
            _ => &[NEW],
        }
    }

    fn advance(&mut self) -> Result<(), &'static str> {
        let at = self.rng.below(3) as usize;
        let Plan { pauses, late, moves } = self.plan;
        if self.rng.below(moves) == 0 {
            self.move_place();
        }
        if self.rng.below(pauses) == 0 {
            self.next_step(at);
        }
        if self.rng.below(late) == 0 {
            self.land();
        }
        match self.rng.below(50) {
            0 => self.sidecars[at].views[self.rng.below(2) as usize] = false,
            1..=6 => {
                for placement in World::deletes(self.sidecars[at].step) {
                    self.sidecars[at].views[*placement] = true;
                }
            }
            7..=10 => self.inherit(at),
            11 => {
                let place = self.rng.below(3) as usize;
                self.items[place] = None;
            }
            _ => {
                let op = self.sidecars[at].op.take();
                self.sidecars[at].op = self.run(at, op)?;
            }
        }
        Ok(())
    }

    /// A placement's record changes: to the other place, or to a new fence of the same one.
    fn move_place(&mut self) {
        let placement = self.rng.below(2) as usize;
        let fence = self.draw();
        let standby = self.records[placement].standby != (self.rng.below(4) > 0);
        let kept = if self.mutant == Mutant::NewFenceKeepsIt { self.records[placement].inherited } else { 0 };
        self.records[placement] = Record { fence, standby, inherited: kept };
        if placement == OLD && !standby {
            self.own = fence;
        }
        self.sidecars.iter_mut().for_each(|sidecar| sidecar.views[placement] = false);
    }

    fn next_step(&mut self, at: usize) {
        let lowest = self.sidecars.iter().map(|sidecar| sidecar.step).min().unwrap_or(0);
        let step = self.sidecars[at].step + 1;
        if step <= LAST && step <= lowest + 1 {
            self.sidecars[at] = Sidecar { step, views: [false; 2], op: None };
        }
    }

    fn inherit(&mut self, at: usize) {
        let Sidecar { step, views, .. } = self.sidecars[at];
        let first = if self.mutant == Mutant::InheritsInStepOne { 1 } else { 2 };
        let [old, new] = self.records;
        let knows = match self.mutant {
            Mutant::InheritsWithoutView => views[NEW] && !new.standby,
            _ => views == [true; 2] && !old.standby && !new.standby,
        };
        if (first..=3).contains(&step) && knows && self.late.is_none() {
            self.late = Some((new.fence, self.own));
        }
    }

    fn land(&mut self) {
        let Some((fence, inherited)) = self.late.take() else { return };
        let record = &mut self.records[NEW];
        if record.fence == fence || self.mutant == Mutant::ArrivesUnderAnotherFence {
            record.inherited = inherited;
            self.inherited += 1;
        }
    }

    /// The fence of a placement's place, if a sidecar has a view of it.
    fn fence(&self, at: usize, placement: usize) -> Option<u64> {
        self.sidecars[at].views[placement].then_some(self.records[placement].fence)
    }

    fn run(&mut self, at: usize, op: Option<Op>) -> Result<Option<Op>, &'static str> {
        let step = self.sidecars[at].step;
        let reads = World::reads(step);
        Ok(match op {
            None if self.rng.below(6) == 0 => {
                self.source += 1;
                Some(Op::Delete { version: self.source, at: 0, sent: None })
            }
            None => {
                let Some(fence) = self.fence(at, reads) else { return Ok(None) };
                let place = self.place(reads);
                let cas = self.draw();
                let item = *self.items[place].get_or_insert(Item { cas, value: None });
                let inherited = self.records[reads].inherited;
                match item.value {
                    Some((version, sealed))
                        if sealed == fence
                            || sealed == inherited
                            || self.mutant == Mutant::EveryFenceCounts =>
                    {
                        self.fresh += u64::from(sealed == inherited);
                        if version < self.acknowledged {
                            return Err("an invalidated value is served as fresh");
                        }
                        None
                    }
                    _ => Some(Op::Build { place, cas: item.cas, fence }),
                }
            }
            Some(Op::Build { place, cas, fence }) => {
                Some(Op::Fill { place, cas, value: (self.source, fence) })
            }
            Some(Op::Fill { place, cas, value }) => {
                // Sent under the view of its fence. It may arrive when that has ended.
                let is_sent = self.fence(at, reads) == Some(value.1) || self.rng.below(2) == 0;
                if is_sent && self.items[place].is_some_and(|item| item.cas == cas) {
                    self.items[place] = Some(Item { cas: self.draw(), value: Some(value) });
                }
                None
            }
            Some(Op::Delete { version, at: done, sent }) => {
                // Where it was sent, the place must still have that fence once the reply is there.
                if let Some((placement, fence)) = sent
                    && self.fence(at, placement) != Some(fence)
                {
                    return Ok(None);
                }
                let Some(placement) = World::deletes(step).get(usize::from(done)).copied() else {
                    self.acknowledged = self.acknowledged.max(version);
                    return Ok(None);
                };
                let Some(fence) = self.fence(at, placement) else { return Ok(None) };
                self.items[self.place(placement)] = None;
                Some(Op::Delete { version, at: done + 1, sent: Some((placement, fence)) })
            }
        })
    }
}

/// Returns the first seed that breaks a promise, how often a fence was inherited, and how many values were fresh for that.
fn explore(seeds: u64, plan: Plan, mutant: Mutant) -> (Option<(u64, &'static str)>, u64, u64) {
    let (mut inherited, mut fresh) = (0, 0);
    for seed in 0..seeds {
        let mut world = World::new(seed, plan, mutant);
        for _ in 0..1_500 {
            if let Err(broken) = world.advance() {
                return (Some((seed, broken)), inherited, fresh);
            }
        }
        (inherited, fresh) = (inherited + world.inherited, fresh + world.fresh);
    }
    (None, inherited, fresh)
}

#[test]
fn what_counts_under_an_inherited_fence_has_missed_no_invalidation() {
    let seeds = std::env::var("KENNEL_CHANGE_SEEDS").map_or(2_000, |seeds| seeds.parse().unwrap());
    let mut seen = (0, 0);
    for plan in [WALK, RESTLESS, HASTY] {
        let (broken, inherited, fresh) = explore(seeds, plan, Mutant::None);
        assert_eq!(broken, None);
        seen = (seen.0 + inherited, seen.1 + fresh);
    }
    let (inherited, fresh) = seen;
    println!("{inherited} fences inherited, {fresh} values fresh for it");
    assert!(inherited > seeds && fresh > seeds / 2, "{inherited} inherited, {fresh} fresh");
}

#[test]
fn each_defence_of_an_inherited_fence_is_needed() {
    for (mutant, plan) in [
        (Mutant::InheritsWithoutView, WALK),
        (Mutant::ArrivesUnderAnotherFence, RESTLESS),
        (Mutant::NewFenceKeepsIt, WALK),
        (Mutant::InheritsInStepOne, HASTY),
        (Mutant::EveryFenceCounts, WALK),
    ] {
        let (broken, ..) = explore(20_000, plan, mutant);
        println!("{mutant:?}: {broken:?}");
        assert!(broken.is_some(), "{mutant:?} is not caught");
    }
}
