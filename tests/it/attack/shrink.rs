//! Reduces a schedule that fails to the smallest that still does.

use super::run::{Setting, World};
use super::schedule::{Schedule, Turn};

/// How often a schedule may be run again.
const TRIALS: usize = 500;
/// One that sends at the same time on several connections may fail only sometimes.
const TRIES: usize = 4;

/// Makes a schedule smaller for as long as it fails: removes connections, then steps, turns and commands, then sends one after
/// the other what was sent at the same time.
pub(super) fn shrink(schedule: &Schedule, setting: Setting, world: &mut World) -> Schedule {
    let mut shrinker = Shrinker { best: schedule.clone(), trials: TRIALS, setting, world };
    shrinker.accept(one_at_a_time(schedule));
    loop {
        let before = shrinker.best.clone();
        shrinker.connections();
        shrinker.steps();
        shrinker.turns();
        shrinker.requests();
        if shrinker.best == before || shrinker.trials == 0 {
            return shrinker.best;
        }
    }
}

fn one_at_a_time(schedule: &Schedule) -> Schedule {
    let turns = schedule.steps.iter().flatten();
    let each = turns.flat_map(|turn| {
        let alone = |request| vec![Turn { connection: turn.connection, requests: vec![request] }];
        turn.requests.iter().cloned().map(alone)
    });
    Schedule { steps: each.collect() }
}

struct Shrinker<'a> {
    best: Schedule,
    trials: usize,
    setting: Setting,
    world: &'a mut World,
}

impl Shrinker<'_> {
    /// Keeps the candidate if it still fails.
    fn accept(&mut self, mut candidate: Schedule) -> bool {
        candidate.steps.retain(|step| !step.is_empty());
        if self.trials == 0 || candidate == self.best {
            return false;
        }
        let together = candidate.steps.iter().any(|step| step.len() > 1);
        let tries = if together { TRIES } else { 1 };
        let fails = (0..tries).any(|_| {
            self.trials = self.trials.saturating_sub(1);
            self.world.run(&candidate, self.setting).is_err()
        });
        if fails {
            self.best = candidate;
        }
        fails
    }

    fn connections(&mut self) {
        let mut all: Vec<usize> = self.best.steps.iter().flatten().map(|turn| turn.connection).collect();
        all.sort_unstable();
        all.dedup();
        for connection in all {
            let mut candidate = self.best.clone();
            candidate.steps.iter_mut().for_each(|step| step.retain(|turn| turn.connection != connection));
            self.accept(candidate);
        }
    }

    fn steps(&mut self) {
        let mut length = (self.best.steps.len() / 2).max(1);
        loop {
            let mut at = 0;
            while at < self.best.steps.len() {
                let mut candidate = self.best.clone();
                candidate.steps.drain(at..(at + length).min(candidate.steps.len()));
                if !self.accept(candidate) {
                    at += length;
                }
            }
            if length == 1 {
                return;
            }
            length /= 2;
        }
    }

    fn turns(&mut self) {
        let mut step = 0;
        while step < self.best.steps.len() {
            let mut turn = 0;
            while step < self.best.steps.len() && turn < self.best.steps[step].len() {
                let mut candidate = self.best.clone();
                candidate.steps[step].remove(turn);
                turn += usize::from(!self.accept(candidate));
            }
            step += 1;
        }
    }

    fn requests(&mut self) {
        for step in (0..self.best.steps.len()).rev() {
            for turn in (0..self.best.steps[step].len()).rev() {
                let mut at = 0;
                while at < self.best.steps[step][turn].requests.len()
                    && self.best.steps[step][turn].requests.len() > 1
                {
                    let mut candidate = self.best.clone();
                    candidate.steps[step][turn].requests.remove(at);
                    at += usize::from(!self.accept(candidate));
                }
            }
        }
    }
}
