//! Reduces a stream with a difference to the smallest that still has one.

use std::time::Duration;

use super::run::{Outcome, Sides};
use super::stream::{Cut, Part, Stream};
use super::vet::fit;

/// How often a stream may be run again.
const TRIALS: usize = 700;

/// The time limit of a side while a stream is being reduced.
const PATIENCE: Duration = Duration::from_millis(700);

/// Makes a failing stream smaller for as long as it fails: removes connections, then turns, then commands, then bytes. Every run
/// begins with both sides empty.
pub(super) fn shrink(stream: &Stream, sides: &mut Sides) -> Stream {
    let mut shrinker = Shrinker { best: stream.clone(), trials: TRIALS, sides };
    if let Outcome::Different { turn, .. } = shrinker.sides.patiently(stream, PATIENCE) {
        let behind = Stream(stream.0[..=turn].to_vec());
        shrinker.accept(behind);
    }
    loop {
        let before = shrinker.best.clone();
        shrinker.connections();
        shrinker.turns();
        shrinker.commands();
        shrinker.simplify();
        shrinker.bytes();
        if shrinker.best == before || shrinker.trials == 0 {
            return shrinker.best;
        }
    }
}

struct Shrinker<'a> {
    best: Stream,
    trials: usize,
    sides: &'a mut Sides,
}

impl Shrinker<'_> {
    /// Keeps the candidate if it still has a difference.
    fn accept(&mut self, candidate: Stream) -> bool {
        if self.trials == 0 || candidate == self.best {
            return false;
        }
        let outcome = self.sides.patiently(&candidate, PATIENCE);
        let differs = matches!(outcome, Outcome::Different { .. });
        // Timeouts are expensive.
        self.trials = self.trials.saturating_sub(if outcome.silent() { 20 } else { 1 });
        if differs {
            self.best = candidate;
        }
        differs
    }

    fn connections(&mut self) {
        let mut all: Vec<usize> = self.best.0.iter().map(|turn| turn.connection).collect();
        all.sort_unstable();
        all.dedup();
        for connection in all {
            let turns = self.best.0.iter().filter(|turn| turn.connection != connection);
            let candidate = Stream(turns.cloned().collect());
            self.accept(candidate);
        }
    }

    fn turns(&mut self) {
        let mut length = (self.best.0.len() / 2).max(1);
        loop {
            let mut at = 0;
            while at < self.best.0.len() {
                let mut candidate = self.best.clone();
                candidate.0.drain(at..(at + length).min(candidate.0.len()));
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

    fn commands(&mut self) {
        for turn in (0..self.best.0.len()).rev() {
            let mut length = (self.best.0[turn].commands.len() / 2).max(1);
            loop {
                let mut at = 0;
                while at < self.best.0[turn].commands.len() && self.best.0[turn].commands.len() > 1 {
                    let mut candidate = self.best.clone();
                    let commands = &mut candidate.0[turn].commands;
                    commands.drain(at..(at + length).min(commands.len()));
                    if commands.is_empty() || !self.accept(candidate) {
                        at += length;
                    }
                }
                if length == 1 {
                    break;
                }
                length /= 2;
            }
        }
    }

    /// One connection, one write per turn, nothing early, if the difference remains.
    fn simplify(&mut self) {
        let mut candidate = self.best.clone();
        candidate.0.iter_mut().for_each(|turn| turn.connection = 0);
        self.accept(candidate);
        for turn in 0..self.best.0.len() {
            let mut candidate = self.best.clone();
            (candidate.0[turn].early, candidate.0[turn].cut) = (0, Cut::Whole);
            self.accept(candidate);
        }
    }

    /// Runs of bytes, if there are not too many. A command keeps its line end, because the next one would be lost without it.
    fn bytes(&mut self) {
        for turn in 0..self.best.0.len() {
            for command in 0..self.best.0[turn].commands.len() {
                for part in 0..self.best.0[turn].commands[command].0.len() {
                    self.part(turn, command, part);
                }
            }
        }
    }

    fn part(&mut self, turn: usize, command: usize, part: usize) {
        let mut length = 64;
        while length > 0 {
            let mut at = 0;
            while let Part::Bytes(bytes) = &self.best.0[turn].commands[command].0[part] {
                if at >= bytes.len() || bytes.len() > 3000 {
                    break;
                }
                let mut candidate = self.best.clone();
                if let Part::Bytes(bytes) = &mut candidate.0[turn].commands[command].0[part] {
                    bytes.drain(at..(at + length).min(bytes.len()));
                }
                if !fit(&candidate.0[turn].commands, self.sides.mode()) || !self.accept(candidate) {
                    at += length;
                }
            }
            length /= 4;
        }
    }
}
