//! Schedules that each break a promise if one defence is removed, and none with all of them. An exhaustive search reaches these
//! states too, but takes minutes without optimisation.

use super::guarded::Step as Guarded;
use super::plan::{Left, Mutant, Plan};
use super::world::{Step, World};
use crate::world::Violation;

/// A schedule in progress.
struct Trace<'p> {
    world: World,
    plan: &'p Plan,
}

type Ended = Result<(), Violation>;

impl Trace<'_> {
    fn take(&mut self, step: Step) -> Ended {
        self.world = self.world.after(step, self.plan)?;
        Ok(())
    }

    fn guarded(&mut self, steps: &[Guarded]) -> Ended {
        steps.iter().try_for_each(|step| self.take(Step::Guarded(*step)))
    }

    /// Everything that a round has sent is carried out.
    fn end(&mut self, at: usize) -> Ended {
        while let Some(copy) = (0..3).find(|copy| self.world.awaits(at, *copy)) {
            self.take(Step::Execute(at, copy))?;
        }
        Ok(())
    }

    fn round(&mut self, at: usize) -> Ended {
        self.take(Step::Read(at, 0))?;
        self.end(at)
    }

    /// A round of a sidecar that the server refuses. If the place is its own, this moves it.
    fn refused(&mut self, at: usize) -> Ended {
        self.take(Step::ReadRefused(at, 0))?;
        self.end(at)
    }

    /// Ticks, in each of which these sidecars have a round, refused or not, until all of them have a view.
    fn until_used(&mut self, by: &[usize], refused: bool) -> Ended {
        for _ in 0..12 {
            self.take(Step::Tick)?;
            for at in by {
                if refused { self.refused(*at)? } else { self.round(*at)? }
            }
        }
        assert!(by.iter().all(|at| self.world.view(*at).is_some()), "no view: {}", self.world.summary());
        Ok(())
    }

    fn fill(&mut self, at: usize) -> Ended {
        self.guarded(&[Guarded::Grant(at), Guarded::Fill(at), Guarded::Store(at)])
    }

    fn invalidate(&mut self, at: usize) -> Ended {
        self.guarded(&[Guarded::Invalidate(at), Guarded::Carry, Guarded::Acknowledge])
    }
}

fn plan(guarded: Option<bool>) -> Plan {
    let left = Left { failures: 9, refusals: 1, delays: 9, losses: 9, flushes: 9, restarts: 9, wishes: 9 };
    let base = Plan::new("trace", left);
    let limit = Left { refusals: 0, failures: 0, ..base.limit };
    Plan { guarded, limit, slow: 20, ..base }
}

/// Runs a schedule with and without a mutant.
fn is_needed(mutant: Mutant, plan: &Plan, breaks: &str, schedule: impl Fn(&mut Trace<'_>) -> Ended) {
    let run = |mutant: Option<Mutant>| {
        let plan = Plan { mutant, ..plan.clone() };
        let world = if plan.is_new { World::empty(&plan) } else { World::running(&plan).expect("runs") };
        schedule(&mut Trace { world, plan: &plan })
    };
    assert!(run(None).is_ok(), "broken with every defence: {:?}", run(None));
    match run(Some(mutant)) {
        Err(broken) => assert!(broken.0.starts_with(breaks), "{mutant:?}: {}", broken.0),
        Ok(()) => panic!("{mutant:?} is not caught"),
    }
}

#[test]
fn places_need_the_fence_of_a_value_to_be_compared() {
    is_needed(Mutant::FenceNotCompared, &plan(Some(false)), "promise 2", |trace| {
        trace.fill(0)?;
        trace.until_used(&[0, 1], true)?;
        trace.invalidate(1)?;
        trace.until_used(&[0, 1], false)
    });
}

#[test]
fn places_need_the_items_of_tags_to_be_sealed() {
    is_needed(Mutant::TagNotSealed, &plan(Some(true)), "promise 2", |trace| {
        trace.fill(0)?;
        trace.until_used(&[0, 1], true)?;
        trace.invalidate(1)?;
        trace.until_used(&[0, 1], false)
    });
}

#[test]
fn places_need_a_view_for_what_is_served() {
    is_needed(Mutant::ServesWithoutView, &plan(Some(false)), "promise 2", |trace| {
        trace.fill(0)?;
        trace.until_used(&[1], true)?;
        trace.invalidate(1)
    });
}

#[test]
fn places_need_a_view_for_what_is_acknowledged() {
    is_needed(Mutant::AcknowledgesWithoutView, &plan(Some(false)), "promise 2", |trace| {
        trace.until_used(&[1], true)?;
        trace.fill(1)?;
        // The other sidecar has slept since before the move, and its server has the key as before.
        trace.invalidate(0)
    });
}

#[test]
fn places_need_leases_to_wait_for_the_end_of_the_grace() {
    is_needed(Mutant::LeaseInTheGrace, &plan(Some(false)), "promise 2", |trace| {
        trace.refused(0)?;
        trace.refused(0)?;
        trace.guarded(&[Guarded::Grant(0)])?;
        trace.invalidate(1)?;
        trace.until_used(&[0], true)?;
        trace.guarded(&[Guarded::Fill(0), Guarded::Store(0)])
    });
}

#[test]
fn places_need_two_copies_for_a_view() {
    is_needed(Mutant::ViewOfOneCopy, &plan(None), "overlap", |trace| {
        trace.until_used(&[1], true)?;
        // The witnesses do not answer this sidecar, and the server has returned.
        trace.take(Step::Read(0, 0b110))
    });
}

#[test]
fn places_need_a_new_fence_if_one_copy_is_left() {
    is_needed(Mutant::KeepsTheFence, &plan(None), "overlap", |trace| {
        trace.until_used(&[0, 1], true)?;
        trace.take(Step::Lose(1))?;
        trace.take(Step::Lose(2))?;
        trace.until_used(&[0, 1], false)
    });
}

#[test]
fn places_need_a_view_to_count_from_its_request() {
    is_needed(Mutant::ValidFromReplies, &plan(None), "overlap", |trace| {
        trace.take(Step::Begin(0))?;
        trace.take(Step::Execute(0, 1))?;
        trace.take(Step::Execute(0, 2))?;
        trace.until_used(&[1], true)?;
        trace.take(Step::Fail(0, 0))
    });
}

#[test]
fn places_need_stores_that_name_a_cas() {
    let plan = Plan { is_new: true, ..plan(None) };
    is_needed(Mutant::NoCas, &plan, "overlap", |trace| {
        trace.round(0)?;
        // After the grace, the sidecar settles its record: first on one copy, then on both others.
        for _ in 0..12 {
            trace.take(Step::Tick)?;
            trace.take(Step::Read(0, 0))?;
            if trace.world.awaits(0, 1) {
                break;
            }
        }
        trace.take(Step::Execute(0, 1))?;
        // These are late.
        trace.take(Step::Delay(0, 2))?;
        trace.take(Step::Delay(0, 0))?;
        trace.until_used(&[1], true)?;
        while !trace.world.late.is_empty() {
            trace.take(Step::Land(0))?;
        }
        trace.take(Step::Read(0, 0))
    });
}

#[test]
fn places_need_stubs_instead_of_add() {
    let plan = Plan { is_new: true, ..plan(None) };
    is_needed(Mutant::AddsToEmptyCopies, &plan, "overlap", |trace| {
        trace.take(Step::Read(0, 0))?;
        trace.take(Step::Execute(0, 1))?;
        trace.take(Step::Execute(0, 2))?;
        trace.take(Step::Execute(0, 0))?;
        // The write of the first record to the third copy is late.
        trace.take(Step::Delay(0, 2))?;
        for _ in 0..6 {
            trace.take(Step::Tick)?;
            trace.take(Step::Read(0, 0b100))?;
            while trace.world.awaits(0, 0) || trace.world.awaits(0, 1) {
                let copy = usize::from(!trace.world.awaits(0, 0));
                trace.take(Step::Execute(0, copy))?;
            }
        }
        trace.until_used(&[1], true)?;
        trace.take(Step::Lose(2))?;
        while !trace.world.late.is_empty() {
            trace.take(Step::Land(0))?;
        }
        // This sidecar reaches the returned server and the witness that was flushed.
        for _ in 0..12 {
            trace.take(Step::Tick)?;
            trace.take(Step::Read(0, 0b010))?;
            trace.end(0)?;
        }
        Ok(())
    });
}

#[test]
fn places_need_lost_copies_to_be_given_successors_only() {
    is_needed(Mutant::CopiesTheRecord, &plan(None), "overlap", |trace| {
        trace.take(Step::Lose(1))?;
        trace.take(Step::Read(1, 0))?;
        // The record on the first lost copy is late.
        trace.take(Step::Delay(1, 1))?;
        trace.end(1)?;
        // A slow round has read the first copy.
        trace.take(Step::Begin(0))?;
        trace.take(Step::Execute(0, 0))?;
        trace.take(Step::Lose(2))?;
        for _ in 0..12 {
            trace.take(Step::Tick)?;
            trace.take(Step::Read(1, 0b010))?;
            trace.end(1)?;
        }
        assert!(trace.world.view(1).is_some_and(|view| view.fence != 0));
        trace.take(Step::Lose(2))?;
        while !trace.world.late.is_empty() {
            trace.take(Step::Land(0))?;
        }
        // It goes on, and finds the old record on two copies.
        trace.take(Step::Execute(0, 1))?;
        trace.take(Step::Execute(0, 2))?;
        trace.end(0)?;
        trace.round(0)
    });
}

/// A valid view of the server's own place is no proof that three empty copies held it: another sidecar may have moved the place
/// within the window, and its view may outlive the flush.
#[test]
fn places_need_a_grace_after_a_flush_even_under_a_view() {
    let plan = Plan { windows: [4; 2], ..plan(Some(false)) };
    is_needed(Mutant::SettlesEmptyCopiesUnderAView, &plan, "overlap: two places", |trace| {
        trace.refused(1)?;
        trace.refused(1)?;
        for _ in 0..3 {
            trace.take(Step::Tick)?;
            trace.refused(1)?;
        }
        trace.take(Step::Flush)?;
        trace.round(0)?;
        trace.round(0)?;
        trace.take(Step::Tick)?;
        trace.take(Step::Tick)?;
        // The standby is used until the end of the view.
        assert!(trace.world.view(1).is_some_and(|view| view.standby));
        Ok(())
    });
}
