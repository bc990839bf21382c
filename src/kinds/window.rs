//! A sliding count: one number for each slot of time, whose sum is that of the window.
//!
//! A slot is named by its absolute number, so no name is ever used twice and no TTL has to be exact. The window is the slots that
//! it reaches into, so a count of any age up to the window is in the sum, and some up to a slot older are. The slot after the
//! current one is in it too: the clock of another sidecar may be ahead.
//!
//! With `unique`, a marker for each visitor names the slot in which the visitor was counted. It ends with that slot, or with a
//! delete of the window: a marker whose CAS is below that of the item which the delete has left does not count, because a server
//! numbers all its items in one sequence. Where the items are not on one server, the item that a delete leaves has a number drawn for it,
//! which the markers from then on name.

use std::time::Duration;

use bytes::Bytes;

use super::command::{Command, Commands, Mode, Operation, Replies, Reply, Value};
use super::counter::number;
use super::expiry::exptime;
use super::gets::Gets;
use super::item::{ItemKey, NumberedKey, item_below, numbered_item};
use super::machine::{Inputs, Machine, Order, Outcome, Step};
use super::request::{Request, Verb};
use super::settings::Window;
use crate::error::Failure;

/// The commands that a window has, for the error that names them.
pub(super) const COMMANDS: &str = "CLIENT_ERROR a window has only the commands incr, get, delete\r\n";
/// The same with `unique`.
pub(super) const UNIQUE_COMMANDS: &str =
    "CLIENT_ERROR a window with unique has only the commands add KEY:VISITOR, get, delete\r\n";
const NO_VISITOR: &str = "CLIENT_ERROR the key must be that of the window, ':' and a visitor\r\n";
const NO_COUNT: &str = "CLIENT_ERROR the window has only counts that increase\r\n";

/// What the name of a slot begins with, before its number.
const SLOT: u8 = b'w';

/// The name of the item that a delete leaves, if visitors are counted.
const DELETED: &[u8] = b"deleted";

/// The slots of a window at some time.
#[derive(Debug, Clone, Copy)]
struct Slots {
    /// The length of a slot in ms.
    length: u64,
    /// How many slots make up the window.
    count: u64,
    /// The number of the current slot.
    current: u64,
    /// How many ms of it are over.
    elapsed: u64,
}

impl Slots {
    fn at(now: u64, settings: &Window) -> Slots {
        let count = u64::from(settings.slots).max(1);
        let length = (millis(settings.window) / count).max(1);
        Slots { length, count, current: now / length, elapsed: now % length }
    }

    /// The oldest slot that the window reaches into.
    fn oldest(&self) -> u64 {
        self.current.saturating_sub(self.count)
    }

    /// All slots of which counts may be in the window.
    fn all(&self) -> impl Iterator<Item = u64> + use<> {
        self.oldest()..=self.current + 1
    }

    /// How long the items of a slot are needed, whatever the clocks of sidecars show within a slot, and a second more: memcached
    /// ends a TTL up to a second early.
    fn ttl(&self) -> Duration {
        Duration::from_millis((self.count + 3) * self.length) + Duration::from_secs(1)
    }

    /// How long the current slot is in the window, and a second more.
    fn marker_ttl(&self) -> Duration {
        Duration::from_millis((self.count + 1) * self.length - self.elapsed) + Duration::from_secs(1)
    }

    /// The part of the oldest slot's number that is in the window.
    fn part(&self, number: u64) -> u64 {
        let (left, length) = (u128::from(self.length - self.elapsed), u128::from(self.length));
        let part = (u128::from(number) * left + length / 2) / length;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn slot_key(own: &[u8], slot: u64) -> Result<ItemKey, &'static str> {
    numbered_item(own, SLOT, slot)
}

fn slot_keys(own: &[u8], slots: &Slots) -> Result<Vec<ItemKey>, &'static str> {
    slots.all().map(|slot| slot_key(own, slot)).collect()
}

/// The numbers of all slots.
pub(super) fn items_below(settings: &Window, own: &[u8], now: u64) -> Vec<ItemKey> {
    slot_keys(own, &Slots::at(now, settings)).unwrap_or_default()
}

/// Begins a client's command. The first `length` bytes of `key` are the window's own key.
pub(super) fn begin(
    settings: &Window,
    key: &[u8],
    length: usize,
    request: Request<'_>,
    order: Order,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    let (own, rest) = key.split_at(length);
    let slots = Slots::at(now, settings);
    let commands = if settings.unique { UNIQUE_COMMANDS } else { COMMANDS };
    Ok(match request {
        Request::Get => Box::new(Sum::new(own, slots, settings.smooth, None)?),
        Request::Count { decr: false, delta, .. } if !settings.unique => {
            let exptime = exptime(slots.ttl(), now);
            let count = Operation::Count { decr: false, delta, initial: delta, exptime };
            Box::new(Sum::new(own, slots, settings.smooth, Some(count))?)
        }
        Request::Count { decr: true, .. } if !settings.unique => return Err(NO_COUNT),
        Request::Store { verb: Verb::Add, .. } if settings.unique => {
            let visitor = rest.strip_prefix(b":").filter(|visitor| !visitor.is_empty()).ok_or(NO_VISITOR)?;
            Box::new(Visit {
                marker: item_below(own, &[b"u", visitor].concat())?,
                deleted: item_below(own, DELETED)?,
                slot: slot_key(own, slots.current)?,
                slots,
                order,
                generation: Bytes::new(),
                step: VisitStep::Begin,
            })
        }
        Request::Delete => {
            let left = if settings.unique { Some(item_below(own, DELETED)?) } else { None };
            Box::new(Remove { keys: slot_keys(own, &slots)?, left, slots, sent: false })
        }
        _ => return Err(commands),
    })
}

/// A read of the sum, behind a count if there is one.
#[derive(Debug)]
struct Sum {
    /// What it sends first.
    commands: Option<Commands>,
    /// The key of the oldest slot, if it is weighed, and its weight.
    weighed: Option<(ItemKey, Slots)>,
}

impl Sum {
    /// `count` is carried out on the current slot.
    fn new(
        own: &[u8],
        slots: Slots,
        smooth: bool,
        mut count: Option<Operation>,
    ) -> Result<Sum, &'static str> {
        let mut key = NumberedKey::new(own, SLOT, slots.oldest())?;
        let weighed = smooth.then(|| (ItemKey::from_slice(key.key()), slots));
        // A space before each key, and a further digit if it becomes longer.
        let mut gets = Gets::new((key.key().len() + 2) * slots.all().count());
        let mut counted = None;
        for slot in slots.all() {
            match count.take_if(|_| slot == slots.current) {
                Some(operation) => {
                    counted = Some(Command { key: ItemKey::from_slice(key.key()), operation });
                }
                None => gets.push_spaced(key.spaced()),
            }
            if slot <= slots.current {
                key.count_up()?;
            }
        }
        Ok(Sum { commands: Some(gets.behind(counted)), weighed })
    }

    fn sum(&self, replies: Replies) -> Result<(u64, Option<u64>), Outcome> {
        let mut sum = 0u64;
        let mut counted = None;
        for reply in replies {
            match reply {
                Reply::Number(number, cas, _) => {
                    counted = Some(cas.number);
                    sum = sum.wrapping_add(number);
                }
                Reply::Items(items) => {
                    for (key, data) in items.iter() {
                        let number = number(data.trim_ascii_end()).unwrap_or(0);
                        let number = match &self.weighed {
                            Some((oldest, slots)) if key == &oldest[..] => slots.part(number),
                            _ => number,
                        };
                        sum = sum.wrapping_add(number);
                    }
                }
                Reply::NotANumber => return Err(Outcome::NotANumber),
                Reply::Failed(failure) => return Err(Outcome::Failed(failure)),
                _ => return Err(Outcome::Failed(Failure::Refused)),
            }
        }
        Ok((sum, counted))
    }
}

impl Machine for Sum {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        if let Some(commands) = self.commands.take() {
            return Step::Send(commands);
        }
        Step::Done(match self.sum(replies) {
            Ok((sum, Some(cas))) => Outcome::Counted(sum, cas, None),
            Ok((sum, None)) => {
                Outcome::Value { data: Bytes::from(sum.to_string()), flags: 0, cas: 0, ttl: None }
            }
            Err(outcome) => outcome,
        })
    }
}

/// A delete of the whole window.
#[derive(Debug)]
struct Remove {
    keys: Vec<ItemKey>,
    /// What it leaves, if visitors are counted.
    left: Option<ItemKey>,
    slots: Slots,
    sent: bool,
}

impl Machine for Remove {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        if !std::mem::replace(&mut self.sent, true) {
            let exptime = exptime(self.slots.ttl(), inputs.now);
            let value = Bytes::from(format!("{:016x}", inputs.random));
            let operation = Operation::Store { mode: Mode::Set, value, flags: 0, exptime, cas: None };
            let leave = |key| Command { key, operation };
            let delete = |key| Command { key, operation: Operation::Delete { cas: None } };
            let left = self.left.take().map(leave);
            return Step::Send(left.into_iter().chain(self.keys.drain(..).map(delete)).collect());
        }
        let mut outcome = Outcome::NotFound;
        for reply in replies {
            match reply {
                Reply::Done => outcome = Outcome::Deleted,
                Reply::Absent | Reply::Stored(_) => {}
                Reply::Failed(failure) => return Step::Done(Outcome::Failed(failure)),
                _ => return Step::Done(Outcome::Failed(Failure::Refused)),
            }
        }
        Step::Done(outcome)
    }
}

/// The count of a visitor, once a window.
#[derive(Debug)]
struct Visit {
    marker: ItemKey,
    deleted: ItemKey,
    slot: ItemKey,
    slots: Slots,
    order: Order,
    /// What the last delete has left, if the order of items is not known.
    generation: Bytes,
    step: VisitStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisitStep {
    Begin,
    /// The marker is added, and read in case there was one.
    Add,
    /// The marker and what a delete has left are read.
    Look,
    /// A marker that does not count any more is replaced, or one that is not there is added.
    Replace,
    Count,
}

impl Visit {
    fn mark(&self, mode: Mode, cas: Option<super::command::Cas>, now: u64) -> Command {
        let slot = self.slots.current.to_string();
        let value = match &self.generation[..] {
            [] => Bytes::from(slot),
            generation => Bytes::from([slot.as_bytes(), b" ", generation].concat()),
        };
        let exptime = exptime(self.slots.marker_ttl(), now);
        let operation = Operation::Store { mode, value, flags: 0, exptime, cas };
        Command { key: self.marker.clone(), operation }
    }

    fn count(&mut self, now: u64) -> Step {
        self.step = VisitStep::Count;
        let exptime = exptime(self.slots.ttl(), now);
        let operation = Operation::Count { decr: false, delta: 1, initial: 1, exptime };
        Step::Send(vec![Command { key: self.slot.clone(), operation }])
    }

    /// Whether the visitor of this marker is in the window.
    fn counts(&self, marker: &Value, deleted: &Reply) -> bool {
        let mut words = marker.data.splitn(2, |byte| *byte == b' ');
        let is_inside = words.next().and_then(number).is_some_and(|slot| slot >= self.slots.oldest());
        let is_older = match (deleted, self.order) {
            (Reply::Item(left), Order::Kept) => {
                left.cas.epoch == marker.cas.epoch && left.cas.number > marker.cas.number
            }
            (Reply::Item(left), Order::NotKept) => words.next() != Some(&left.data[..]),
            _ => false,
        };
        is_inside && !is_older
    }

    /// The marker and what a delete has left were read.
    fn looked(&mut self, marker: &Reply, deleted: &Reply, now: u64) -> Step {
        let over = match marker {
            Reply::Item(marker) if self.counts(marker, deleted) => return Step::Done(Outcome::NotStored),
            Reply::Item(marker) => Some(marker.cas),
            _ => None,
        };
        if let Reply::Item(left) = deleted {
            self.generation = left.data.clone();
        }
        self.step = VisitStep::Replace;
        let mode = if over.is_some() { Mode::Set } else { Mode::Add };
        Step::Send(vec![self.mark(mode, over, now)])
    }
}

impl Machine for Visit {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        let failed = replies.iter().find_map(|reply| match reply {
            Reply::Failed(failure) => Some(*failure),
            _ => None,
        });
        if let Some(failure) = failed {
            return Step::Done(Outcome::Failed(failure));
        }
        match (self.step, &replies[..]) {
            (VisitStep::Begin, _) => {
                let get = |key: &ItemKey| Command { key: key.clone(), operation: Operation::Get };
                let mut commands = vec![get(&self.marker), get(&self.deleted)];
                self.step = match self.order {
                    Order::Kept => {
                        commands.insert(0, self.mark(Mode::Add, None, inputs.now));
                        VisitStep::Add
                    }
                    Order::NotKept => VisitStep::Look,
                };
                Step::Send(commands)
            }
            (VisitStep::Look, [marker, deleted]) => self.looked(marker, deleted, inputs.now),
            (VisitStep::Add, [Reply::Stored(_), ..]) | (VisitStep::Replace, [Reply::Stored(_)]) => {
                self.count(inputs.now)
            }
            (VisitStep::Add, [Reply::NotStored, Reply::Item(marker), deleted]) => {
                if self.counts(marker, deleted) {
                    return Step::Done(Outcome::NotStored);
                }
                self.step = VisitStep::Replace;
                Step::Send(vec![self.mark(Mode::Set, Some(marker.cas), inputs.now)])
            }
            // Another command has just counted the visitor.
            (VisitStep::Add | VisitStep::Look | VisitStep::Replace, _) => Step::Done(Outcome::NotStored),
            (VisitStep::Count, [Reply::Number(_, cas, _)]) => Step::Done(Outcome::Stored(cas.number)),
            (VisitStep::Count, [Reply::NotANumber]) => Step::Done(Outcome::NotANumber),
            (VisitStep::Count, _) => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::super::command::Cas;
    use super::super::gets::MAX_LINE;
    use super::super::many::{Items, Keys};
    use super::*;

    const START: u64 = 1_700_000_000_000;

    fn settings(smooth: bool, unique: bool) -> Window {
        Window { window: Duration::from_secs(10), slots: 5, smooth, unique }
    }

    fn inputs(now: u64) -> Inputs {
        Inputs { now, random: 0 }
    }

    fn sent(step: Step) -> Vec<Command> {
        match step {
            Step::Send(commands) => commands,
            other => panic!("{other:?}"),
        }
    }

    fn item(slot: u64, data: &'static str) -> (ItemKey, Bytes) {
        (slot_key(b"k", slot).unwrap(), Bytes::from_static(data.as_bytes()))
    }

    fn sum_of(smooth: bool, now: u64, items: Vec<(ItemKey, Bytes)>) -> String {
        let mut machine = begin(&settings(smooth, false), b"k", 1, Request::Get, Order::Kept, now).unwrap();
        sent(machine.resume(smallvec![], &inputs(now)));
        match machine.resume(smallvec![Reply::Items(Items::from_iter(items))], &inputs(now)) {
            Step::Done(Outcome::Value { data, .. }) => String::from_utf8(data.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_count_goes_to_the_current_slot_and_the_other_slots_are_read_in_the_same_round_trip() {
        let count = Request::Count { decr: false, delta: 3, initial: None };
        let mut machine = begin(&settings(false, false), b"k", 1, count, Order::Kept, START + 500).unwrap();
        let commands = sent(machine.resume(smallvec![], &inputs(START + 500)));
        let current = START / 2_000;
        assert_eq!(commands[0].key, slot_key(b"k", current).unwrap());
        assert_eq!(
            commands[0].operation,
            Operation::Count { decr: false, delta: 3, initial: 3, exptime: 17 }
        );
        let others: Vec<u64> = (current - 5..=current + 1).filter(|slot| *slot != current).collect();
        let expected = others.iter().map(|slot| slot_key(b"k", *slot).unwrap()).collect::<Keys>();
        assert_eq!(commands[1].operation, Operation::GetMany(expected));
        let cas = Cas { number: 4, epoch: 1 };
        let replies = smallvec![
            Reply::Number(7, cas, None),
            Reply::Items(Items::from_iter([item(current - 1, "10"), item(current + 1, "5 ")])),
        ];
        assert_eq!(machine.resume(replies, &inputs(START)), Step::Done(Outcome::Counted(22, 4, None)));
    }

    #[test]
    fn every_count_of_the_window_is_in_the_sum_whatever_part_of_a_slot_is_over() {
        for elapsed in [0, 1, 999, 1_999] {
            let now = START + elapsed;
            let current = now / 2_000;
            // The oldest count that is not older than the window was made in this slot.
            let oldest = (now - 10_000) / 2_000;
            let key = slot_key(b"k", oldest).unwrap();
            let sum = begin(&settings(false, false), b"k", 1, Request::Get, Order::Kept, now)
                .unwrap()
                .resume(smallvec![], &inputs(now));
            let Operation::GetMany(keys) = &sent(sum)[0].operation else { panic!("no get") };
            assert!(keys.iter().any(|of| of == &key[..]), "{elapsed}: {oldest} of {current}");
            assert_eq!(sum_of(false, now, vec![item(oldest, "8"), item(current, "1")]), "9");
        }
    }

    #[test]
    fn smooth_weighs_the_oldest_slot_by_the_part_that_is_in_the_window() {
        for (elapsed, expected) in [(0, "11"), (500, "9"), (1_000, "6"), (1_500, "4"), (1_999, "1")] {
            let now = START + elapsed;
            let current = now / 2_000;
            assert_eq!(
                sum_of(true, now, vec![item(current - 5, "10"), item(current, "1")]),
                expected,
                "{elapsed}"
            );
        }
    }

    #[test]
    fn a_line_of_keys_is_never_longer_than_memcached_takes() {
        let own = [b'k'; 200];
        let settings = Window { window: Duration::from_secs(100), slots: 100, smooth: false, unique: false };
        let mut machine = begin(&settings, &own, own.len(), Request::Get, Order::Kept, START).unwrap();
        let commands = sent(machine.resume(smallvec![], &inputs(START)));
        let mut all = 0;
        for command in &commands {
            let Operation::GetMany(keys) = &command.operation else { panic!("{command:?}") };
            assert!(keys.line().len() <= MAX_LINE);
            all += keys.iter().count();
        }
        assert_eq!(all, 102);
    }

    #[test]
    fn a_visitor_counts_once_until_the_slot_leaves_the_window_or_the_window_is_deleted() {
        let current = START / 2_000;
        let cas = |number| Cas { number, epoch: 1 };
        let left = |number| Reply::Item(Value { data: Bytes::new(), flags: 0, cas: cas(number), ttl: None });
        for (slot, deleted, counts) in [
            (current, Reply::Absent, true),
            (current - 5, Reply::Absent, true),
            (current - 6, Reply::Absent, false),
            (current, left(6), true),
            (current, left(8), false),
        ] {
            let add = Request::Store { verb: Verb::Add, data: b"", flags: 0, exptime: 0 };
            let mut machine = begin(&settings(false, true), b"k:joe", 1, add, Order::Kept, START).unwrap();
            assert_eq!(&sent(machine.resume(smallvec![], &inputs(START)))[0].key[..], b"k@kennel:ujoe");
            let marker = Value { data: Bytes::from(slot.to_string()), flags: 0, cas: cas(7), ttl: None };
            let step =
                machine.resume(smallvec![Reply::NotStored, Reply::Item(marker), deleted], &inputs(START));
            match counts {
                true => assert_eq!(step, Step::Done(Outcome::NotStored)),
                false => {
                    let commands = sent(step);
                    assert!(
                        matches!(commands[0].operation, Operation::Store { cas: Some(over), .. } if over == cas(7))
                    );
                    sent(machine.resume(smallvec![Reply::Stored(cas(9))], &inputs(START)));
                    let done = machine.resume(smallvec![Reply::Number(1, cas(10), None)], &inputs(START));
                    assert_eq!(done, Step::Done(Outcome::Stored(10)));
                }
            }
        }
    }
}
