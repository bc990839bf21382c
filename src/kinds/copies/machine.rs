//! A kind's machine on items of which each has two copies.

use super::round_trip::RoundTrip;
use super::run::Progress;
use crate::error::Failure;
use crate::kinds::command::Replies;
use crate::kinds::item::ItemKey;
use crate::kinds::machine::{Inputs, Machine, Outcome, Step};

/// Carries out the commands of a machine on copies. To the machine, they are one server that forgets nothing, and that does not keep
/// the order of commands on different items within a round trip.
#[derive(Debug)]
pub struct OnCopies<M> {
    machine: M,
    needs_both: bool,
    round_trip: Option<RoundTrip>,
    /// What the round trips that are over have left half done.
    unfinished: Vec<ItemKey>,
}

impl<M: Machine> OnCopies<M> {
    /// A machine that has not begun.
    pub fn new(machine: M) -> OnCopies<M> {
        OnCopies { machine, needs_both: false, round_trip: None, unfinished: Vec::new() }
    }

    /// The same for a machine that must not read what may be undone.
    pub(in crate::kinds) fn reading_both(machine: M) -> OnCopies<M> {
        OnCopies { needs_both: true, ..OnCopies::new(machine) }
    }
}

impl<M: Machine> Machine for OnCopies<M> {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        let mut replies = replies;
        if let Some(round_trip) = &mut self.round_trip {
            match round_trip.resume(replies, inputs) {
                Progress::Send(commands) => return Step::SendCopies(commands),
                Progress::Done(all) => {
                    replies = all;
                    self.unfinished.extend(round_trip.unfinished());
                }
            }
        }
        loop {
            let commands = match self.machine.resume(replies, inputs) {
                Step::Send(commands) => commands,
                Step::Done(outcome) => return Step::Done(outcome),
                // It already knows of copies.
                Step::SendCopies(_) => return Step::Done(Outcome::Failed(Failure::Refused)),
            };
            let (begun, progress) = RoundTrip::begin(commands, self.needs_both, inputs);
            self.round_trip = Some(begun);
            match progress {
                Progress::Send(commands) => return Step::SendCopies(commands),
                Progress::Done(none) => replies = none,
            }
        }
    }

    fn unfinished(&self) -> Vec<ItemKey> {
        self.unfinished.clone()
    }
}
