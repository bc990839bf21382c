//! A log of the entries of the last time: items that grow by appends, several for each slot of time.
//!
//! An append first adds its length to the slot's number, which reserves its place: the part in which that place begins is the part
//! that it is appended to. So no part is larger than [`PART`] and one entry, and no writer has to find out that a part is full.
//! Slots are named by their absolute number, so no name is ever used twice.
//!
//! A tail looks at the previous slot until the current one is over. An append that is not acknowledged by then has failed, so an
//! acknowledged entry is in a place that every tail still looks at. A read gets the newest part first: an entry that was appended
//! after another was acknowledged is never read without it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::command::{Command, Mode, Operation, Replies, Reply};
use super::counter::number;
use super::cursor::{self, Cursor, MAX_PARTS, MAX_SLOTS, Place};
use super::expiry::exptime;
use super::item::{ItemKey, TOO_LONG, item_below};
use super::machine::{Inputs, Machine, Outcome, Step};
use super::request::{Request, Verb};
use super::settings::Log;
use crate::error::Failure;

/// The commands that a log has, for the error that names them.
pub(super) const COMMANDS: &str =
    "CLIENT_ERROR a log has only the commands append, get, get KEY@CURSOR, get KEY@FROM-TO\r\n";
const NOT_A_PLACE: &str =
    "CLIENT_ERROR what follows the @ of a log must be a cursor of it, 0, or FROM-TO in Unix seconds\r\n";
const NO_AT: &str = "CLIENT_ERROR the key of a log that is appended to must not contain @\r\n";
const ENTRY_TOO_LARGE: &str = "CLIENT_ERROR an entry of a log has 1 to 32768 bytes\r\n";
const SLOT_FULL: &str = "SERVER_ERROR the slot of the log is full until the next one begins\r\n";

/// A part in which the next entry begins has fewer bytes.
const PART: u64 = 32 * 1024;
/// The largest entry, in bytes.
const MAX_ENTRY: usize = 32 * 1024;
/// The largest answer, in bytes: the largest item that memcached returns by default.
const MAX_ANSWER: u64 = 1024 * 1024;
/// The longest key of a log, in bytes, which leaves room for a cursor behind it.
const MAX_OWN: usize = 110;
/// The longest line of keys that is sent to a server, in bytes: memcached takes 2,048.
const MAX_LINE: usize = 1_900;
/// How often an append is tried whose part others create or evict at the same time.
const MAX_ROUNDS: usize = 4;

/// The slots of a log at some time.
#[derive(Debug, Clone, Copy)]
struct Slots {
    /// The length of a slot in ms.
    length: u64,
    /// How many slots the window has.
    count: u64,
    /// The number of the current slot.
    current: u64,
}

impl Slots {
    fn at(now: u64, settings: &Log) -> Slots {
        let length = millis(settings.slot).max(1);
        Slots { length, count: millis(settings.window).div_ceil(length), current: now / length }
    }

    /// The oldest slot that the window reaches into.
    fn oldest(&self) -> u64 {
        self.current.saturating_sub(self.count)
    }

    /// How long the items of a slot are needed, whatever the clocks of sidecars show within a slot, and a second more: memcached
    /// ends a TTL up to a second early.
    fn ttl(&self) -> Duration {
        Duration::from_millis((self.count + 3) * self.length) + Duration::from_secs(1)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The item with the number of bytes that were reserved in a slot.
fn reserved_key(own: &[u8], slot: u64) -> Result<ItemKey, &'static str> {
    item_below(own, format!("l{slot}").as_bytes())
}

fn part_key(own: &[u8], slot: u64, part: usize) -> Result<ItemKey, &'static str> {
    item_below(own, format!("l{slot}.{part}").as_bytes())
}

/// The length of a log's own key in what a client sent: up to the first '@' behind the rule's `prefix`.
pub(super) fn own_length(prefix: usize, key: &[u8]) -> usize {
    let behind = key.get(prefix..).unwrap_or_default();
    memchr::memchr(b'@', behind).map_or(key.len(), |at| prefix + at)
}

/// Begins a client's command. The first `length` bytes of `key` are the log's own key.
pub(super) fn begin(
    settings: &Log,
    key: &[u8],
    length: usize,
    request: Request<'_>,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    let (own, rest) = key.split_at(length);
    if own.len() > MAX_OWN {
        return Err(TOO_LONG);
    }
    let slots = Slots::at(now, settings);
    Ok(match request {
        Request::Store { verb: Verb::Append, data, .. } => {
            if !rest.is_empty() {
                return Err(NO_AT);
            }
            if data.is_empty() || data.len() > MAX_ENTRY {
                return Err(ENTRY_TOO_LARGE);
            }
            Box::new(Append {
                own: ItemKey::from_slice(own),
                settings: settings.clone(),
                data: Bytes::copy_from_slice(data),
                slots,
                part: 0,
                step: AppendStep::Reserve,
                rounds: 0,
            })
        }
        Request::Get => {
            let place = match rest {
                [] => None,
                [_, place @ ..] => Some(cursor::parse(place).ok_or(NOT_A_PLACE)?),
            };
            // The clock of another sidecar may be ahead.
            let (mut first, mut last) = (slots.oldest(), slots.current + 1);
            let mut behind = None;
            match place {
                None => {}
                Some(Place::Between(from, to)) => {
                    let slot = |seconds: u64| seconds.saturating_mul(1000) / slots.length;
                    (first, last) = (first.max(slot(from)), last.min(slot(to)));
                }
                Some(Place::Behind(cursor)) if cursor.first <= last => {
                    first = first.max(cursor.first);
                    behind = Some(cursor);
                }
                Some(Place::Behind(_)) => return Err(NOT_A_PLACE),
            }
            Box::new(Read {
                own: ItemKey::from_slice(own),
                first,
                last,
                behind,
                slots,
                asked: None,
                sent: false,
            })
        }
        _ => return Err(COMMANDS),
    })
}

/// An append.
#[derive(Debug)]
struct Append {
    own: ItemKey,
    settings: Log,
    data: Bytes,
    /// Those in which it has reserved its place.
    slots: Slots,
    part: usize,
    step: AppendStep,
    /// How often it was sent.
    rounds: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppendStep {
    Reserve,
    Reserving,
    /// Stores the entry as the first of its part.
    Creating,
    /// Appends it to a part that is there.
    Appending,
}

impl Append {
    fn reserve(&mut self, now: u64) -> Step {
        self.slots = Slots::at(now, &self.settings);
        self.step = AppendStep::Reserving;
        let delta = self.data.len() as u64;
        let exptime = exptime(self.slots.ttl(), now);
        let operation = Operation::Count { decr: false, delta, initial: delta, exptime };
        match reserved_key(&self.own, self.slots.current) {
            Ok(key) => Step::Send(vec![Command { key, operation }]),
            Err(line) => Step::Done(Outcome::Refused(line)),
        }
    }

    fn store(&mut self, step: AppendStep, now: u64) -> Step {
        self.step = step;
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Step::Done(Outcome::Failed(Failure::Refused));
        }
        let mode = if step == AppendStep::Creating { Mode::Add } else { Mode::Append };
        let exptime = exptime(self.slots.ttl(), now);
        let operation = Operation::Store { mode, value: self.data.clone(), flags: 0, exptime, cas: None };
        match part_key(&self.own, self.slots.current, self.part) {
            Ok(key) => Step::Send(vec![Command { key, operation }]),
            Err(line) => Step::Done(Outcome::Refused(line)),
        }
    }

    /// Stores the entry at the place that ends at this number of bytes.
    fn place(&mut self, end: u64, now: u64) -> Step {
        if Slots::at(now, &self.settings).current != self.slots.current {
            return self.reserve(now);
        }
        let start = end.saturating_sub(self.data.len() as u64);
        self.part = usize::try_from(start / PART).unwrap_or(usize::MAX);
        if self.part >= MAX_PARTS {
            return Step::Done(Outcome::Refused(SLOT_FULL));
        }
        let step = if start == 0 { AppendStep::Creating } else { AppendStep::Appending };
        self.store(step, now)
    }
}

impl Machine for Append {
    fn resume(&mut self, mut replies: Replies, inputs: &Inputs) -> Step {
        let now = inputs.now;
        match (self.step, replies.pop()) {
            (AppendStep::Reserve, _) => self.reserve(now),
            (_, Some(Reply::Failed(failure))) => Step::Done(Outcome::Failed(failure)),
            (AppendStep::Reserving, Some(Reply::Number(end, ..))) => self.place(end, now),
            (AppendStep::Creating | AppendStep::Appending, Some(Reply::Stored(cas))) => {
                // A tail may no longer look at the slot.
                let is_late = Slots::at(now, &self.settings).current > self.slots.current + 1;
                Step::Done(if is_late {
                    Outcome::Failed(Failure::TimedOut)
                } else {
                    Outcome::Stored(cas.number)
                })
            }
            (AppendStep::Creating, Some(Reply::NotStored)) => self.store(AppendStep::Appending, now),
            (AppendStep::Appending, Some(Reply::NotStored)) => self.store(AppendStep::Creating, now),
            (_, Some(Reply::TooLarge)) => Step::Done(Outcome::TooLarge),
            _ => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }
}

/// A read.
#[derive(Debug)]
struct Read {
    own: ItemKey,
    /// The slots that it reads, both included.
    first: u64,
    last: u64,
    /// Where the tail is.
    behind: Option<Cursor>,
    slots: Slots,
    /// The parts that it gets, the oldest first.
    asked: Option<Vec<(u64, usize, ItemKey)>>,
    sent: bool,
}

impl Read {
    fn reserved(&self) -> Step {
        let keys = (self.first..=self.last).map(|slot| reserved_key(&self.own, slot));
        match keys.collect::<Result<Vec<_>, _>>() {
            Ok(keys) if keys.is_empty() => self.answer(&[], Vec::new()),
            Ok(keys) => Step::Send(lines(keys)),
            Err(_) => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }

    /// Gets the parts of the slots in which so much was reserved.
    fn parts(&mut self, found: &[(ItemKey, Bytes)]) -> Step {
        let mut asked = Vec::new();
        let mut bytes = 0;
        for slot in self.first..=self.last {
            let Ok(key) = reserved_key(&self.own, slot) else { continue };
            let Some(reserved) = number_of(found, &key) else { continue };
            let parts = usize::try_from(reserved.div_ceil(PART)).unwrap_or(MAX_PARTS).min(MAX_PARTS);
            let room = PART * (MAX_PARTS as u64 + 1);
            let seen = |part| self.behind.as_ref().map_or(0, |behind| behind.seen(slot, part));
            bytes += reserved.min(room).saturating_sub((0..parts).map(seen).sum());
            if bytes > MAX_ANSWER {
                if self.behind.is_none() {
                    return Step::Done(Outcome::Failed(Failure::TooLarge));
                }
                // A tail goes on with this slot.
                self.last = slot.saturating_sub(1);
                break;
            }
            let keys =
                (0..parts).filter_map(|part| Some((slot, part, part_key(&self.own, slot, part).ok()?)));
            asked.extend(keys);
        }
        if asked.is_empty() {
            return self.answer(&[], Vec::new());
        }
        // An entry that was appended after another was acknowledged must not be read without it.
        let keys = asked.iter().rev().map(|(_, _, key)| key.clone()).collect();
        self.asked = Some(asked);
        Step::Send(lines(keys))
    }

    fn answer(&self, asked: &[(u64, usize, ItemKey)], found: Vec<(ItemKey, Bytes)>) -> Step {
        let mut data = BytesMut::new();
        // What is final is not looked at again.
        let kept = self.slots.current.saturating_sub(1).min(self.last + 1).max(self.first);
        let kept_seen = |slot: u64| {
            let seen = |part| self.behind.as_ref().map_or(0, |behind| behind.seen(slot, part));
            let mut parts: Vec<u64> = (0..MAX_PARTS).map(seen).collect();
            for (_, part, key) in asked.iter().filter(|(of, ..)| *of == slot) {
                parts[*part] =
                    found.iter().find(|(of, _)| of == key).map_or(0, |(_, data)| data.len() as u64);
            }
            let used = parts.iter().rposition(|seen| *seen > 0).map_or(0, |last| last + 1);
            parts.truncate(used);
            parts
        };
        if self.behind.is_some() {
            let mut seen: Vec<_> = (kept..).take(MAX_SLOTS).map(kept_seen).collect();
            seen.truncate(seen.iter().rposition(|parts| !parts.is_empty()).map_or(0, |last| last + 1));
            data.extend_from_slice(Cursor { first: kept, seen }.text().as_bytes());
            data.extend_from_slice(b"\n");
        }
        for (slot, part, key) in asked {
            let Some((_, part_data)) = found.iter().find(|(of, _)| of == key) else { continue };
            let seen = self.behind.as_ref().map_or(0, |behind| behind.seen(*slot, *part));
            // A part that is shorter than it was is another one: the server has restarted.
            let seen = usize::try_from(seen).unwrap_or(usize::MAX);
            data.extend_from_slice(part_data.get(seen..).unwrap_or(part_data));
        }
        Step::Done(match data.is_empty() {
            true => Outcome::Miss,
            false => Outcome::Value { data: data.freeze(), flags: 0, cas: 0, ttl: None },
        })
    }
}

fn number_of(found: &[(ItemKey, Bytes)], key: &ItemKey) -> Option<u64> {
    let (_, data) = found.iter().find(|(of, _)| of == key)?;
    number(data.trim_ascii_end())
}

/// Reads of these items, in this order.
fn lines(keys: Vec<ItemKey>) -> Vec<Command> {
    let get = |keys| Command { key: ItemKey::new(), operation: Operation::GetMany(keys) };
    let mut commands = Vec::new();
    let mut line = Vec::new();
    let mut length = 0;
    for key in keys {
        length += key.len() + 1;
        if length > MAX_LINE {
            commands.push(get(std::mem::take(&mut line)));
            length = key.len() + 1;
        }
        line.push(key);
    }
    commands.push(get(line));
    commands
}

impl Machine for Read {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        if !std::mem::replace(&mut self.sent, true) {
            return self.reserved();
        }
        let mut found = Vec::new();
        for reply in replies {
            match reply {
                Reply::Items(items) => found.extend(items),
                Reply::Failed(failure) => return Step::Done(Outcome::Failed(failure)),
                _ => return Step::Done(Outcome::Failed(Failure::Refused)),
            }
        }
        let Some(asked) = self.asked.take() else { return self.parts(&found) };
        // Entries may have come since the slots were read.
        let bytes: u64 = found.iter().map(|(_, data)| data.len() as u64).sum();
        if self.behind.is_none() && bytes > MAX_ANSWER {
            return Step::Done(Outcome::Failed(Failure::TooLarge));
        }
        self.answer(&asked, found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::Cas;
    use super::*;

    const NOW: u64 = 1_700_000_000_000;
    const SLOT: u64 = NOW / 10_000;
    const CAS: Cas = Cas { number: 7, epoch: 1 };

    fn settings() -> Log {
        Log { window: Duration::from_secs(1_000), slot: Duration::from_secs(10) }
    }

    fn inputs(now: u64) -> Inputs {
        Inputs { now, random: 0 }
    }

    fn sent(step: Step) -> Vec<Command> {
        match step {
            Step::Send(commands) => commands,
            Step::Done(outcome) => panic!("{outcome:?}"),
        }
    }

    fn append(data: &[u8]) -> Result<Box<dyn Machine>, &'static str> {
        let store = Request::Store { verb: Verb::Append, data, flags: 0, exptime: 0 };
        begin(&settings(), b"k", 1, store, NOW)
    }

    fn read(key: &[u8]) -> Box<dyn Machine> {
        begin(&settings(), key, 1, Request::Get, NOW).unwrap()
    }

    fn reserved(machine: &mut dyn Machine, end: u64) -> Step {
        sent(machine.resume(vec![], &inputs(NOW)));
        machine.resume(vec![Reply::Number(end, CAS, None)], &inputs(NOW))
    }

    #[test]
    fn an_entry_goes_to_the_part_in_which_its_place_begins() {
        for (end, part) in [(5, 0), (PART, 0), (PART + 4, 0), (PART + 5, 1), (PART * 8 + 4, 7)] {
            let mut machine = append(b"entry").unwrap();
            let commands = sent(reserved(&mut *machine, end));
            assert_eq!(commands[0].key, part_key(b"k", SLOT, part).unwrap(), "{end}");
        }
    }

    #[test]
    fn a_full_slot_says_so_and_the_next_one_has_room() {
        let mut machine = append(b"entry").unwrap();
        let end = PART * MAX_PARTS as u64 + 5;
        assert_eq!(reserved(&mut *machine, end), Step::Done(Outcome::Refused(SLOT_FULL)));
        // An append that is overtaken by the end of the slot reserves in the next one.
        let mut machine = append(b"entry").unwrap();
        sent(machine.resume(vec![], &inputs(NOW)));
        let again = machine.resume(vec![Reply::Number(end, CAS, None)], &inputs(NOW + 10_000));
        assert_eq!(sent(again)[0].key, reserved_key(b"k", SLOT + 1).unwrap());
    }

    #[test]
    fn an_entry_that_comes_when_no_tail_looks_at_its_slot_is_not_acknowledged() {
        for (later, expected) in [
            (0, Outcome::Stored(7)),
            (19_999, Outcome::Stored(7)),
            (20_000, Outcome::Failed(Failure::TimedOut)),
        ] {
            let mut machine = append(b"entry").unwrap();
            sent(reserved(&mut *machine, 5));
            let step = machine.resume(vec![Reply::Stored(CAS)], &inputs(NOW + later));
            assert_eq!(step, Step::Done(expected), "{later}");
        }
    }

    #[test]
    fn an_append_is_not_tried_for_ever() {
        let mut machine = append(b"entry").unwrap();
        sent(reserved(&mut *machine, 5));
        for _ in 1..MAX_ROUNDS {
            sent(machine.resume(vec![Reply::NotStored], &inputs(NOW)));
        }
        let step = machine.resume(vec![Reply::NotStored], &inputs(NOW));
        assert_eq!(step, Step::Done(Outcome::Failed(Failure::Refused)));
    }

    #[test]
    fn an_entry_and_the_key_of_a_log_have_limits() {
        assert!(append(&vec![b'x'; MAX_ENTRY]).is_ok());
        assert_eq!(append(&vec![b'x'; MAX_ENTRY + 1]).err(), Some(ENTRY_TOO_LARGE));
        assert_eq!(append(b"").err(), Some(ENTRY_TOO_LARGE));
        let key = [b'k'; MAX_OWN + 1];
        assert!(begin(&settings(), &key[1..], MAX_OWN, Request::Get, NOW).is_ok());
        assert_eq!(begin(&settings(), &key, MAX_OWN + 1, Request::Get, NOW).err(), Some(TOO_LONG));
    }

    #[test]
    fn the_items_of_a_log_are_read_by_lines_that_memcached_takes() {
        let commands = sent(read(b"k").resume(vec![], &inputs(NOW)));
        let mut all = 0;
        for command in &commands {
            let Operation::GetMany(keys) = &command.operation else { panic!("{command:?}") };
            assert!(keys.iter().map(|key| key.len() + 1).sum::<usize>() <= MAX_LINE);
            all += keys.len();
        }
        assert_eq!((all, commands.len()), (102, 2));
    }

    #[test]
    fn the_newest_part_is_read_first() {
        let mut machine = read(b"k");
        sent(machine.resume(vec![], &inputs(NOW)));
        let full = |slot| (reserved_key(b"k", slot).unwrap(), Bytes::from((PART + 1).to_string()));
        let commands =
            sent(machine.resume(vec![Reply::Items(vec![full(SLOT - 1), full(SLOT)])], &inputs(NOW)));
        let expected = [(SLOT, 1), (SLOT, 0), (SLOT - 1, 1), (SLOT - 1, 0)];
        let expected = expected.map(|(slot, part)| part_key(b"k", slot, part).unwrap()).to_vec();
        assert_eq!(commands[0].operation, Operation::GetMany(expected));
    }

    #[test]
    fn an_answer_is_never_cut_and_a_tail_goes_on() {
        let full: Vec<_> = (SLOT - 6..=SLOT - 1)
            .map(|slot| (reserved_key(b"k", slot).unwrap(), Bytes::from((PART * 8).to_string())))
            .collect();
        let mut machine = read(b"k");
        sent(machine.resume(vec![], &inputs(NOW)));
        let step = machine.resume(vec![Reply::Items(full.clone())], &inputs(NOW));
        assert_eq!(step, Step::Done(Outcome::Failed(Failure::TooLarge)));
        let mut place = b"k@0".to_vec();
        for expected in [SLOT - 2, SLOT - 1] {
            let mut machine = read(&place);
            sent(machine.resume(vec![], &inputs(NOW)));
            sent(machine.resume(vec![Reply::Items(full.clone())], &inputs(NOW)));
            let Step::Done(Outcome::Value { data, .. }) =
                machine.resume(vec![Reply::Items(vec![])], &inputs(NOW))
            else {
                panic!("no value")
            };
            place = [b"k@", data.trim_ascii_end()].concat();
            let Some(Place::Behind(cursor)) = cursor::parse(data.trim_ascii_end()) else {
                panic!("{data:?}")
            };
            assert_eq!(cursor.first, expected);
        }
    }

    #[test]
    fn an_entry_that_was_seen_is_not_seen_again_whatever_slot_it_is_in() {
        let slot_items = |data: &'static str| {
            let length = Bytes::from(data.len().to_string());
            let reserved = Reply::Items(vec![(reserved_key(b"k", SLOT).unwrap(), length)]);
            (
                reserved,
                Reply::Items(vec![(part_key(b"k", SLOT, 0).unwrap(), Bytes::from_static(data.as_bytes()))]),
            )
        };
        let mut place = "0".to_owned();
        for (now, stored, new) in [
            (NOW, "a\n", "a\n"),
            (NOW, "a\n", ""),
            (NOW + 9_999, "a\nb\n", "b\n"),
            (NOW + 19_999, "a\nb\nc\n", "c\n"),
        ] {
            let key = format!("k@{place}");
            let mut machine = begin(&settings(), key.as_bytes(), 1, Request::Get, now).unwrap();
            let (reserved, parts) = slot_items(stored);
            sent(machine.resume(vec![], &inputs(now)));
            sent(machine.resume(vec![reserved], &inputs(now)));
            let Step::Done(Outcome::Value { data, .. }) = machine.resume(vec![parts], &inputs(now)) else {
                panic!("no value")
            };
            let text = String::from_utf8(data.to_vec()).unwrap();
            let (next, entries) = text.split_once('\n').unwrap();
            assert_eq!(entries, new);
            place = next.to_owned();
        }
    }

    #[test]
    fn a_command_that_logs_do_not_have_is_refused_with_those_that_they_have() {
        for request in
            [Request::Delete, Request::Other, Request::Count { decr: false, delta: 1, initial: None }]
        {
            assert_eq!(begin(&settings(), b"k", 1, request, NOW).err(), Some(COMMANDS));
        }
    }

    #[test]
    fn the_own_key_of_a_log_ends_at_the_first_at_sign_behind_the_prefix() {
        for (prefix, key, length) in
            [(4, "log:a", 5), (4, "log:a@0", 5), (4, "log:a@b@0", 5), (2, "a@b@0", 3)]
        {
            assert_eq!(own_length(prefix, key.as_bytes()), length, "{key}");
        }
    }
}
