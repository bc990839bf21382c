//! The round trips of what is done to a value with two copies.

use std::time::Duration;

use super::edit::{Edit, Needs};
use super::record::{Found, Record};
use crate::error::Failure;
use crate::kinds::command::{Cas, Command, Mode, Operation, Reply};
use crate::kinds::expiry::exptime;
use crate::kinds::item::ItemKey;
use crate::kinds::machine::{Inputs, Side};

/// After so many round trips, and after this time in ms, a command that another one has come between is not tried again: it fails
/// because the servers are overloaded.
const MAX_ROUNDS: u32 = 4_096;
const MAX_RETRY_MS: u64 = 2_000;
/// How often the first copy is read again before it counts as lost: whoever has given the second a new life needs one round trip to store
/// the first, and fails if the second is given another life meanwhile.
const LOOKS: u32 = 4;

#[derive(Debug)]
pub(super) enum Progress<E> {
    /// These commands are sent in one round trip, each to the server of one copy.
    Send(Vec<(Side, Command)>),
    Done(E),
}

/// What is done to a value with two copies.
#[derive(Debug)]
pub(super) struct Run<E: Edit> {
    key: ItemKey,
    edit: E,
    /// How a read, or what changes nothing, ends once both copies have the state that this was decided on.
    decided: Option<Decided<E::End>>,
    /// Whether the first copy may have a change that the second one lacks.
    is_half_done: bool,
    began: Option<u64>,
    rounds: u32,
    stage: Stage,
}

/// What has been decided while a copy is still to be stored.
#[derive(Debug)]
struct Decided<End> {
    end: End,
    /// Whether it is so even if that copy cannot be stored.
    holds: bool,
}

#[derive(Debug)]
enum Stage {
    Begin,
    /// Both copies are read.
    Read,
    /// There seems to be no first copy beside what the second is. It was perhaps read before it was stored, or another command is
    /// about to store it. So it is read again, and then `left` times more.
    NoFirst {
        held: Option<Record>,
        second: Cas,
        left: u32,
    },
    /// The second copy gets a new life, with which the first copy then begins.
    Claim {
        life: Record,
        first: Cas,
    },
    /// The first copy is stored. What the second was read as has this CAS.
    First {
        record: Record,
        second: Cas,
    },
    /// The second copy is stored.
    Second(Record),
    /// The second copy had changed, and is read again.
    SecondAgain(Record),
    /// The second copy was lost. The first is read again: whether it is still of the life of this record.
    FirstAgain {
        record: Record,
        second: Cas,
    },
}

impl<E: Edit> Run<E> {
    /// Nothing has been sent yet. The key is without the names of copies and without fences.
    pub(super) fn new(key: ItemKey, edit: E) -> Run<E> {
        Run { key, edit, decided: None, is_half_done: false, began: None, rounds: 0, stage: Stage::Begin }
    }

    /// The item, if the first copy may have been left with a change that the second one lacks.
    pub(super) fn unfinished(&self) -> Option<&ItemKey> {
        self.is_half_done.then_some(&self.key)
    }

    /// Takes the replies to the commands that it returned last, of which all have arrived.
    pub(super) fn resume(&mut self, replies: &[Reply], inputs: &Inputs) -> Progress<E::End> {
        let now = inputs.now;
        self.began.get_or_insert(now);
        self.rounds += 1;
        let only = match (std::mem::replace(&mut self.stage, Stage::Begin), replies) {
            (Stage::Begin, _) => return self.read_both(),
            (Stage::Read, replies) => {
                let (first, second) = (found(replies.first()), found(replies.get(1)));
                return match self.stores() {
                    false => self.look(first, second, inputs),
                    true => self.read(first, second, inputs),
                };
            }
            (stage, [reply]) => (stage, reply),
            (_, _) => return self.failed(Failure::Refused),
        };
        match only {
            (_, Reply::Failed(failure)) => self.failed(*failure),
            (stage, Reply::TooLarge) => {
                self.is_half_done &= !matches!(stage, Stage::First { .. });
                self.done(E::too_large())
            }
            (Stage::NoFirst { held, second, left }, reply) => match found(Some(reply)) {
                Ok(first) => self.read_again(first, held, second, left, inputs),
                Err(failure) => self.failed(failure),
            },
            (Stage::Claim { life, first }, Reply::Stored(second)) => self.claimed(&life, first, *second, now),
            (Stage::First { record, second }, Reply::Stored(_)) => self.store_second(record, second, now),
            (Stage::Second(record), Reply::Stored(_)) => self.stored(&record, now),
            // Another command has come between.
            (Stage::Claim { .. } | Stage::First { .. } | Stage::Second(_), Reply::Exists | Reply::Absent)
                if self.has_tried_enough(now) =>
            {
                self.failed(Failure::Overloaded)
            }
            (Stage::Claim { .. }, Reply::Exists | Reply::Absent) => self.read_both(),
            (Stage::First { .. }, Reply::Exists | Reply::Absent) => {
                self.is_half_done = false;
                self.read_both()
            }
            (Stage::Second(record), Reply::Exists | Reply::Absent) => {
                self.stage = Stage::SecondAgain(record);
                Progress::Send(vec![(Side::Second, self.command(Operation::GetOrStub))])
            }
            (Stage::SecondAgain(record), reply) => match found(Some(reply)) {
                Ok(Found::Record(held, _)) if held.life == record.life && held.change >= record.change => {
                    self.stored(&record, now)
                }
                Ok(Found::Record(held, second)) if held.life == record.life => {
                    self.store_second(record, second, now)
                }
                Ok(Found::Absent(Some(second))) => {
                    self.stage = Stage::FirstAgain { record, second };
                    Progress::Send(vec![(Side::First, self.command(Operation::Get))])
                }
                // The first copy was lost, and the second began anew without this change, or may have.
                Ok(Found::Record(..)) => self.undone(now),
                // Not even a stub.
                Ok(Found::Absent(None)) => self.failed(Failure::NoMemory),
                Err(failure) => self.failed(failure),
            },
            (Stage::FirstAgain { record, second }, reply) => match found(Some(reply)) {
                // The first copy still has this change. The second was absent before this was read.
                Ok(Found::Record(held, _)) if held.life == record.life && held.change >= record.change => {
                    let step = self.store(Side::Second, &held, second, now);
                    self.stage = Stage::Second(record);
                    step
                }
                Ok(_) => self.undone(now),
                Err(failure) => self.failed(failure),
            },
            _ => self.failed(Failure::Refused),
        }
    }

    fn has_tried_enough(&self, now: u64) -> bool {
        let began = self.began.unwrap_or(now);
        self.rounds > MAX_ROUNDS || now.saturating_sub(began) > MAX_RETRY_MS
    }

    /// Whether it stores anything: a change does, and a read that has found one copy only.
    fn stores(&self) -> bool {
        self.decided.is_some() || self.edit.changes()
    }

    fn command(&self, operation: Operation) -> Command {
        Command { key: self.key.clone(), operation }
    }

    fn read_both(&mut self) -> Progress<E::End> {
        self.stage = Stage::Read;
        let operation = if self.stores() { Operation::GetOrStub } else { Operation::Get };
        let get = |side| (side, self.command(operation.clone()));
        Progress::Send(vec![get(Side::First), get(Side::Second)])
    }

    /// How a read ends that has found these two copies.
    fn look(
        &mut self,
        first: Result<Found, Failure>,
        second: Result<Found, Failure>,
        inputs: &Inputs,
    ) -> Progress<E::End> {
        use Found::{Absent, Record};
        let needs = self.edit.needs();
        let (record, is_lost) = match (first, second) {
            (Ok(Record(first, _)), Ok(Record(second, cas))) if first.life == second.life => {
                return self.look_at_both(first, (second, cas), inputs.now);
            }
            // What the second copy has is in the first one too, unless that is of another life: then it has no change that was
            // acknowledged.
            (Ok(Record(..) | Absent(_)), Ok(Record(second, _))) => (second, true),
            (Ok(Record(record, _)), Ok(Absent(_))) => (record, true),
            (Err(failure), _) | (_, Err(failure)) if needs == Needs::Both => return self.failed(failure),
            (Err(_), Ok(Record(second, _))) => (second, false),
            // What only the first has may be undone.
            (Ok(Record(_, _)), Err(failure)) if needs == Needs::Second => return self.failed(failure),
            (Ok(Record(record, _)), Err(_)) => (record, false),
            (Ok(Absent(_)), Ok(Absent(_))) => {
                return Progress::Done(self.edit.read(None, inputs.now));
            }
            (Err(failure), _) | (_, Err(failure)) => return self.failed(failure),
        };
        let end = self.edit.read(Some(&record), inputs.now);
        if !is_lost || !record.has_value(inputs.now) {
            return Progress::Done(end);
        }
        self.decided = Some(Decided { end, holds: needs == Needs::One });
        self.read_both()
    }

    /// How a read ends that has found these two copies of one life. A change that only the first has is completed, so that every later
    /// command finds what this read returns.
    fn look_at_both(&mut self, first: Record, (held, second): (Record, Cas), now: u64) -> Progress<E::End> {
        if first.change <= held.change {
            // The first was read before it was stored.
            return Progress::Done(self.edit.read(Some(&held), now));
        }
        let end = self.edit.read(Some(&first), now);
        let holds = self.edit.needs() == Needs::One;
        self.complete(first, second, Decided { end, holds }, now)
    }

    /// Stores the second copy as the first one is, before the command ends as it was decided on that.
    fn complete(
        &mut self,
        record: Record,
        second: Cas,
        decided: Decided<E::End>,
        now: u64,
    ) -> Progress<E::End> {
        self.is_half_done = true;
        self.decided = Some(decided);
        self.store_second(record, second, now)
    }

    fn read(
        &mut self,
        first: Result<Found, Failure>,
        second: Result<Found, Failure>,
        inputs: &Inputs,
    ) -> Progress<E::End> {
        let (first, second) = match (first, second) {
            (Ok(first), Ok(second)) => (first, second),
            (Err(failure), _) | (_, Err(failure)) => return self.failed(failure),
        };
        match (first, second) {
            (Found::Absent(Some(_)), Found::Absent(Some(second))) => self.read_first(None, second, 0),
            (Found::Record(record, first), Found::Absent(Some(second))) => {
                self.change(&record, first, (None, second), inputs.now)
            }
            (Found::Record(record, first), Found::Record(other, second)) if record.life == other.life => {
                self.change_both(&record, first, (&other, second), inputs.now)
            }
            (Found::Absent(Some(_)) | Found::Record(..), Found::Record(held, second)) => {
                self.read_first(Some(held), second, LOOKS - 1)
            }
            // Not even a stub.
            (Found::Absent(None), _) | (_, Found::Absent(None)) => self.failed(Failure::NoMemory),
        }
    }

    fn read_first(&mut self, held: Option<Record>, second: Cas, left: u32) -> Progress<E::End> {
        self.stage = Stage::NoFirst { held, second, left };
        Progress::Send(vec![(Side::First, self.command(Operation::GetOrStub))])
    }

    /// The first copy was read again, behind the second, which is `held`.
    fn read_again(
        &mut self,
        first: Found,
        held: Option<Record>,
        second: Cas,
        left: u32,
        inputs: &Inputs,
    ) -> Progress<E::End> {
        match (first, held) {
            (Found::Record(record, first), None) => self.change(&record, first, (None, second), inputs.now),
            (Found::Record(record, first), Some(held)) if held.life == record.life => {
                self.change_both(&record, first, (&held, second), inputs.now)
            }
            (Found::Absent(Some(_)), held) if left > 0 => self.read_first(held, second, left - 1),
            // It was lost. If there is one of another life, none of its changes has been acknowledged.
            (Found::Absent(Some(first)) | Found::Record(_, first), Some(held)) => {
                self.claim(held, first, second, inputs)
            }
            (Found::Absent(Some(first)), None) => self.create(first, second, inputs),
            // Not even a stub.
            (Found::Absent(None), _) => self.failed(Failure::NoMemory),
        }
    }

    /// There is neither copy.
    fn create(&mut self, first: Cas, second: Cas, inputs: &Inputs) -> Progress<E::End> {
        if self.decided.is_some() {
            return self.failed(Failure::Down);
        }
        let nothing = Record::nothing(inputs.now);
        match self.edit.apply(&nothing, inputs.now) {
            Ok(_) => self.claim(nothing, first, second, inputs),
            Err(end) => self.done(end),
        }
    }

    /// Gives the second copy a new life, because there is no first one of the life that it has.
    fn claim(&mut self, held: Record, first: Cas, second: Cas, inputs: &Inputs) -> Progress<E::End> {
        let life = Record { life: inputs.random, ..held };
        let step = self.store(Side::Second, &life, second, inputs.now);
        self.stage = Stage::Claim { life, first };
        step
    }

    /// The second copy has a new life. The first one is stored also if nothing changes: otherwise each command on it would begin another
    /// life, and the CAS of the item would never stay the same.
    fn claimed(&mut self, life: &Record, first: Cas, second: Cas, now: u64) -> Progress<E::End> {
        if self.decided.is_none() {
            let holds = self.edit.needs() == Needs::One;
            self.decided = self.edit.apply(life, now).err().map(|end| Decided { end, holds });
        }
        self.change(life, first, (Some(life), second), now)
    }

    /// Changes the record of the first copy. There is a second one of the same life.
    fn change_both(
        &mut self,
        from: &Record,
        first: Cas,
        (held, second): (&Record, Cas),
        now: u64,
    ) -> Progress<E::End> {
        match self.decided.take() {
            None => self.change(from, first, (Some(held), second), now),
            // Another command has stored the lost copy again.
            Some(_) if !self.edit.changes() => self.look_at_both(from.clone(), (held.clone(), second), now),
            Some(Decided { end, .. }) => Progress::Done(end),
        }
    }

    /// Changes this record, which is that of the first copy or is to become it. `held`: the second one, if there is one.
    fn change(
        &mut self,
        from: &Record,
        first: Cas,
        (held, second): (Option<&Record>, Cas),
        now: u64,
    ) -> Progress<E::End> {
        if self.decided.is_some() {
            // A copy that was lost is stored again with the value as it is.
            let same = from.changed(from.data.clone(), from.flags, from.ends);
            return self.store_first(same, first, second, now);
        }
        // Nobody misses a second copy of what is no value.
        let lacks = held.map_or(from.has_value(now), |held| held.change < from.change);
        match self.edit.apply(from, now) {
            Ok(record) => {
                self.is_half_done = true;
                self.store_first(record, first, second, now)
            }
            // What this was decided on may be half a change, which must not be undone.
            Err(end) if lacks => self.complete(from.clone(), second, Decided { end, holds: false }, now),
            Err(end) => self.done(end),
        }
    }

    fn store_first(&mut self, record: Record, first: Cas, second: Cas, now: u64) -> Progress<E::End> {
        let step = self.store(Side::First, &record, first, now);
        self.stage = Stage::First { record, second };
        step
    }

    fn store(&self, side: Side, record: &Record, cas: Cas, now: u64) -> Progress<E::End> {
        // A second more, because memcached ends a TTL up to a second early.
        let left = record.ends.saturating_sub(now) + 1_000;
        let exptime = if record.ends == 0 { 0 } else { exptime(Duration::from_millis(left), now) };
        let operation = Operation::Store {
            mode: Mode::Set,
            value: record.encode(),
            flags: record.flags,
            exptime,
            cas: Some(cas),
        };
        Progress::Send(vec![(side, self.command(operation))])
    }

    /// The first copy has the record.
    fn store_second(&mut self, record: Record, second: Cas, now: u64) -> Progress<E::End> {
        let step = self.store(Side::Second, &record, second, now);
        self.stage = Stage::Second(record);
        step
    }

    /// Both copies have the record.
    fn stored(&mut self, record: &Record, now: u64) -> Progress<E::End> {
        self.is_half_done = false;
        Progress::Done(match self.decided.take() {
            Some(Decided { end, .. }) => end,
            None => self.edit.made(record, now),
        })
    }

    /// The first copy does not count any more: it was lost, and the second began anew without what the first had, or may have.
    fn undone(&mut self, now: u64) -> Progress<E::End> {
        self.is_half_done = false;
        match self.decided.take() {
            None => self.failed(Failure::Down),
            Some(_) if self.has_tried_enough(now) => self.failed(Failure::Overloaded),
            Some(_) => self.read_both(),
        }
    }

    fn done(&mut self, end: E::End) -> Progress<E::End> {
        let decided = self.decided.take().filter(|decided| decided.holds);
        Progress::Done(decided.map_or(end, |decided| decided.end))
    }

    fn failed(&mut self, failure: Failure) -> Progress<E::End> {
        self.done(E::failed(failure))
    }
}

/// What a read has found.
fn found(reply: Option<&Reply>) -> Result<Found, Failure> {
    match reply {
        Some(Reply::Item(item)) => Record::decode(item).ok_or(Failure::Foreign),
        Some(Reply::Absent) => Ok(Found::Absent(None)),
        Some(Reply::Failed(failure)) => Err(*failure),
        _ => Err(Failure::Refused),
    }
}

#[cfg(test)]
mod tests;
