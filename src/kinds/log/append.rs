//! An append: it reserves its place, and goes to the part in which that begins.

use std::sync::Arc;

use bytes::Bytes;

use super::super::command::{Command, Mode, Operation, Replies, Reply};
use super::super::expiry::exptime;
use super::super::item::ItemKey;
use super::super::machine::{Inputs, Machine, Outcome, Step};
use super::super::settings::Log;
use super::cursor::MAX_PARTS;
use super::ends::LogEnds;
use super::slots::{PART, Slots, part_key, reserved_key};
use crate::error::Failure;

pub(super) const SLOT_FULL: &str = "SERVER_ERROR the slot of the log is full until the next one begins\r\n";

/// How often an append is tried whose part others create or evict at the same time.
pub(super) const MAX_ROUNDS: usize = 4;

#[derive(Debug)]
pub(super) struct Append {
    own: ItemKey,
    settings: Log,
    data: Bytes,
    ends: Arc<LogEnds>,
    /// Those in which it has reserved its place.
    slots: Slots,
    part: usize,
    step: AppendStep,
    /// How often it was sent.
    rounds: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppendStep {
    Begin,
    /// Reserves its place, and appends the entry to the part of the last place that is known.
    Both,
    Reserving,
    /// Stores the entry as the first of its part.
    Creating,
    /// Appends it to a part that is there.
    Appending,
}

impl Append {
    /// Begins to append `data`, which is not empty.
    pub(super) fn new(own: ItemKey, settings: Log, data: Bytes, ends: Arc<LogEnds>, slots: Slots) -> Append {
        Append { own, settings, data, ends, slots, part: 0, step: AppendStep::Begin, rounds: 0 }
    }

    /// The command that reserves its place in the current slot.
    fn reservation(&mut self, now: u64) -> Result<Command, &'static str> {
        self.slots = Slots::at(now, &self.settings);
        let delta = self.data.len() as u64;
        let exptime = exptime(self.slots.ttl(), now);
        let operation = Operation::Count { decr: false, delta, initial: delta, exptime };
        Ok(Command { key: reserved_key(&self.own, self.slots.current)?, operation })
    }

    /// The command that adds its entry to `part`.
    fn entry(&self, mode: Mode, now: u64) -> Result<Command, &'static str> {
        let exptime = exptime(self.slots.ttl(), now);
        let operation = Operation::Store { mode, value: self.data.clone(), flags: 0, exptime, cas: None };
        Ok(Command { key: part_key(&self.own, self.slots.current, self.part)?, operation })
    }

    fn begin(&mut self, now: u64) -> Result<Step, &'static str> {
        let mut commands = vec![self.reservation(now)?];
        self.step = AppendStep::Reserving;
        if let Some(part) = self.known_part() {
            (self.step, self.part) = (AppendStep::Both, part);
            commands.push(self.entry(Mode::Append, now)?);
        }
        Ok(Step::Send(commands))
    }

    /// The part of the last place in the current slot that is known.
    fn known_part(&self) -> Option<usize> {
        let end = self.ends.get(&self.own, self.slots.current)?;
        usize::try_from(end / PART).ok().filter(|part| *part < MAX_PARTS)
    }

    fn store(&mut self, step: AppendStep, now: u64) -> Step {
        self.step = step;
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Step::Done(Outcome::Failed(Failure::Lost));
        }
        let mode = if step == AppendStep::Creating { Mode::Add } else { Mode::Append };
        send(self.entry(mode, now))
    }

    /// Stores the entry at the place that ends at this number of bytes. `missed`: the part which it could not be appended to.
    fn place(&mut self, end: u64, missed: Option<usize>, now: u64) -> Step {
        if Slots::at(now, &self.settings).current != self.slots.current {
            self.step = AppendStep::Reserving;
            return send(self.reservation(now));
        }
        let start = end.saturating_sub(self.data.len() as u64);
        self.part = usize::try_from(start / PART).unwrap_or(usize::MAX);
        if self.part >= MAX_PARTS {
            return Step::Done(Outcome::Refused(SLOT_FULL));
        }
        let is_absent = start == 0 || missed == Some(self.part);
        self.store(if is_absent { AppendStep::Creating } else { AppendStep::Appending }, now)
    }

    /// Whether the number of bytes is below the part that it was appended to, or was to be: the server has lost the number that
    /// was seen.
    fn is_lost(&self, end: u64) -> bool {
        let is_lost = end < self.part as u64 * PART;
        if is_lost {
            self.ends.forget(&self.own);
        }
        is_lost
    }

    /// The entry is stored.
    fn stored(&self, cas: u64, now: u64) -> Step {
        // A tail may no longer look at the slot.
        let is_late = Slots::at(now, &self.settings).current > self.slots.current + 1;
        Step::Done(if is_late { Outcome::Failed(Failure::TimedOut) } else { Outcome::Stored(cas) })
    }

    /// The replies to [`AppendStep::Both`].
    fn both(&mut self, end: u64, entry: Reply, now: u64) -> Step {
        let is_lost = self.is_lost(end);
        match entry {
            // No reader would find it.
            Reply::Stored(_) if is_lost => Step::Done(Outcome::Failed(Failure::Lost)),
            Reply::Stored(cas) => self.stored(cas.number, now),
            Reply::NotStored | Reply::TooLarge => self.place(end, Some(self.part), now),
            Reply::Failed(failure) => Step::Done(Outcome::Failed(failure)),
            _ => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }
}

fn send(command: Result<Command, &'static str>) -> Step {
    match command {
        Ok(command) => Step::Send(vec![command]),
        Err(line) => Step::Done(Outcome::Refused(line)),
    }
}

impl Machine for Append {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        let now = inputs.now;
        let mut replies = replies.into_iter();
        let (first, second) = (replies.next(), replies.next());
        if let Some(Reply::Number(end, ..)) = first {
            self.ends.saw(&self.own, self.slots.current, end);
        }
        match (self.step, first, second) {
            (AppendStep::Begin, ..) => {
                self.begin(now).unwrap_or_else(|line| Step::Done(Outcome::Refused(line)))
            }
            (_, Some(Reply::Failed(failure)), _) => Step::Done(Outcome::Failed(failure)),
            (AppendStep::Both, Some(Reply::Number(end, ..)), Some(entry)) => self.both(end, entry, now),
            (AppendStep::Reserving, Some(Reply::Number(end, ..)), _) => self.place(end, None, now),
            (AppendStep::Creating | AppendStep::Appending, Some(Reply::Stored(cas)), _) => {
                self.stored(cas.number, now)
            }
            (AppendStep::Creating, Some(Reply::NotStored), _) => self.store(AppendStep::Appending, now),
            (AppendStep::Appending, Some(Reply::NotStored), _) => self.store(AppendStep::Creating, now),
            (_, Some(Reply::TooLarge), _) => Step::Done(Outcome::TooLarge),
            _ => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }
}
