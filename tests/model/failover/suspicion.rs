//! The questions of sidecars that have lost the server, and who reaches it.

use kennel::failover::{Cas, Item, Reply};

use super::plan::{Mutant, Plan};
use super::world::{Sent, World};
use crate::world::Violation;

/// What the witnesses hold, and who reaches the server.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub questions: [Option<u64>; 2],
    pub answers: [Option<u64>; 2],
    /// These sidecars do not reach the server. Until it is dead, one of them does.
    pub cut: [bool; 2],
    /// These have begun a round since the last tick. All do in each tick, and a window has two.
    pub ran: [bool; 2],
    pub dead: bool,
    /// For how many ticks nothing has changed in who reaches the server, up to three.
    pub steady: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A sidecar alone loses the server. The other one reaches it from now on.
    Cut(usize),
    /// Both reach it.
    Mend,
    /// Nobody reaches it any more.
    Die,
    /// A question ends, or is evicted.
    End(usize),
    /// An answer ends before its question.
    EndAnswer(usize),
}

impl Asked {
    pub fn may_tick(&self) -> bool {
        self.ran == [true; 2]
    }

    pub fn tick(&mut self) {
        self.ran = [false; 2];
        self.steady = (self.steady + 1).min(3);
    }

    pub fn runs(&mut self, at: usize) {
        self.ran[at] = true;
    }

    pub fn is_cut(&self, at: usize) -> bool {
        self.cut[at]
    }

    pub fn steps(&self, plan: &Plan) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.dead && self.steady == 3 {
            steps.extend([Step::Cut(0), Step::Cut(1), Step::Mend, Step::Die]);
        }
        steps.extend((0..2).filter(|at| self.questions[*at].is_some()).map(Step::End));
        if plan.mutant == Some(Mutant::AnswersEndFirst) {
            steps.extend((0..2).filter(|at| self.answers[*at].is_some()).map(Step::EndAnswer));
        }
        steps
    }

    pub fn take(&mut self, step: Step) {
        if matches!(step, Step::Cut(_) | Step::Mend | Step::Die) {
            self.steady = 0;
        }
        match step {
            Step::Cut(at) => self.cut = [at == 0, at == 1],
            Step::Mend => self.cut = [false; 2],
            Step::Die => (self.cut, self.dead) = ([true; 2], true),
            Step::End(at) => self.questions[at] = None,
            Step::EndAnswer(at) => self.answers[at] = None,
        }
    }

    /// What a witness does with a question or an answer. `None`: it is a command of another kind.
    pub fn execute(&mut self, copy: usize, sent: Sent, mutant: Option<Mutant>) -> Option<Reply> {
        let (item, told) = match sent {
            Sent::Other(item) => (item, None),
            Sent::Tell(item, number) => (item, Some(number)),
            _ => return None,
        };
        let held = match item {
            Item::Suspicion => &mut self.questions[copy - 1],
            _ => &mut self.answers[copy - 1],
        };
        if told.is_some() {
            if item == Item::Suspicion || mutant != Some(Mutant::DoesNotAnswer) {
                *held = told;
            }
            return Some(Reply::Stored);
        }
        Some(held.map_or(Reply::Absent, |number| {
            Reply::Found(number.to_string().into_bytes(), Cas { number: 0, epoch: 0 })
        }))
    }

    /// While a sidecar reaches the server, its place does not move.
    pub fn check(&self, world: &World) -> Result<(), Violation> {
        let is_standby = |copy: &Option<super::world::Copy>| {
            copy.and_then(|copy| copy.record).is_some_and(|record| record.standby)
        };
        match !self.dead && world.copies.iter().any(is_standby) {
            true => {
                Err(Violation("promise 11: a sidecar that alone cannot reach the server moves it".into()))
            }
            false => Ok(()),
        }
    }
}

pub fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What the machine is told instead of the replies to the reads of a round.
pub fn mutate(mutant: Mutant, replies: &mut [Reply]) {
    if mutant == Mutant::AnswersNotRead {
        replies.iter_mut().skip(5).for_each(|reply| *reply = Reply::Absent);
    }
}
