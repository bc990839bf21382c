//! A read: of the window, of a time, or of what is behind a cursor.

use bytes::BytesMut;

use super::super::command::{Replies, Reply};
use super::super::counter::number;
use super::super::gets::gets;
use super::super::item::ItemKey;
use super::super::machine::{Inputs, Machine, Order, Outcome, Step};
use super::super::many::Items;
use super::cursor::{Cursor, MAX_PARTS, MAX_SLOTS};
use super::slots::{PART, Slots, part_key, reserved_key};
use crate::error::Failure;

/// The largest answer, in bytes: the largest item that memcached returns by default.
const MAX_ANSWER: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Read {
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
    order: Order,
    /// What was found of the parts, the latest first.
    found: Vec<Items>,
    /// How many of the newest parts were not read the last time.
    skipped: usize,
}

impl Read {
    /// Begins a read of these slots, both included; for a tail, of what it has not seen of them.
    pub(super) fn new(
        own: ItemKey,
        first: u64,
        last: u64,
        behind: Option<Cursor>,
        slots: Slots,
        order: Order,
    ) -> Read {
        let (asked, found) = (None, Vec::new());
        Read { own, first, last, behind, slots, asked, sent: false, order, found, skipped: 0 }
    }

    /// The bytes of a slot that the tail has seen.
    fn seen(&self, slot: u64) -> u64 {
        let seen = |part| self.behind.as_ref().map_or(0, |behind| behind.seen(slot, part));
        (0..MAX_PARTS).map(seen).sum()
    }

    fn reserved(&self) -> Step {
        let keys = (self.first..=self.last).map(|slot| reserved_key(&self.own, slot));
        match keys.collect::<Result<Vec<_>, _>>() {
            Ok(keys) if keys.is_empty() => self.answer(&[], &[]),
            Ok(keys) => Step::Send(gets(keys)),
            Err(_) => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }

    /// Gets the parts of the slots in which so much was reserved.
    fn parts(&mut self, found: &[Items]) -> Step {
        let reserved = |slot| number_of(found, &reserved_key(&self.own, slot).ok()?);
        // What was seen of a slot may be all, unless it may have been seen before it was reserved. An older slot is read also then: see
        // below.
        let may_be_all = |slot, bytes| self.order == Order::Kept && self.seen(slot) == bytes;
        let is_new = |slot: &u64| reserved(*slot).is_some_and(|bytes| !may_be_all(*slot, bytes));
        let Some(newest) = (self.first..=self.last).rev().find(is_new) else {
            return self.answer(&[], &[]);
        };
        let mut asked = Vec::new();
        let mut bytes = 0;
        for slot in self.first..=newest {
            let Some(reserved) = reserved(slot) else { continue };
            let parts = usize::try_from(reserved.div_ceil(PART)).unwrap_or(MAX_PARTS).min(MAX_PARTS);
            let room = PART * (MAX_PARTS as u64 + 1);
            bytes += reserved.min(room).saturating_sub(self.seen(slot));
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
            return self.answer(&[], &[]);
        }
        // An entry that was appended after another was acknowledged must not be read without it, whatever slots they are in.
        let commands = gets(asked.iter().rev().map(|(_, _, key)| key));
        self.asked = Some(asked);
        Step::Send(commands)
    }

    /// Takes what was found of the parts. If their order was not kept, reads those behind the newest again, until none of them has
    /// grown: then each was as it was found when those before it had been read.
    fn again(&mut self, asked: &[(u64, usize, ItemKey)], mut found: Vec<Items>) -> Option<Step> {
        let newest_first = || asked.iter().rev().map(|(_, _, key)| key).enumerate();
        let length = |found: &[Items], key: &ItemKey| data_of(found, key).map_or(0, <[u8]>::len);
        let has_grown = |(_, key): &(usize, &ItemKey)| length(&found, key) > length(&self.found, key);
        // Each time leaves out one part more.
        let skipped = match (self.order, self.skipped) {
            (Order::Kept, _) => None,
            (Order::NotKept, 0) => Some(1),
            (Order::NotKept, skipped) => newest_first().skip(skipped).find(has_grown).map(|(at, _)| at + 1),
        };
        found.append(&mut self.found);
        self.found = found;
        let skipped = skipped.filter(|skipped| *skipped < asked.len())?;
        self.skipped = skipped;
        Some(Step::Send(gets(newest_first().skip(skipped).map(|(_, key)| key))))
    }

    fn answer(&self, asked: &[(u64, usize, ItemKey)], found: &[Items]) -> Step {
        let mut data = BytesMut::new();
        // What is final is not looked at again.
        let kept = self.slots.current.saturating_sub(1).min(self.last + 1).max(self.first);
        let kept_seen = |slot: u64| {
            let seen = |part| self.behind.as_ref().map_or(0, |behind| behind.seen(slot, part));
            let mut parts: Vec<u64> = (0..MAX_PARTS).map(seen).collect();
            for (_, part, key) in asked.iter().filter(|(of, ..)| *of == slot) {
                parts[*part] = data_of(found, key).map_or(0, |data| data.len() as u64);
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
            let Some(part_data) = data_of(found, key) else { continue };
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

fn data_of<'a>(found: &'a [Items], key: &[u8]) -> Option<&'a [u8]> {
    let (_, data) = found.iter().flat_map(Items::iter).find(|(of, _)| *of == key)?;
    Some(data)
}

fn number_of(found: &[Items], key: &[u8]) -> Option<u64> {
    number(data_of(found, key)?.trim_ascii_end())
}

impl Machine for Read {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        if !std::mem::replace(&mut self.sent, true) {
            return self.reserved();
        }
        let mut found = Vec::new();
        for reply in replies {
            match reply {
                Reply::Items(items) => found.push(items),
                Reply::Failed(failure) => return Step::Done(Outcome::Failed(failure)),
                _ => return Step::Done(Outcome::Failed(Failure::Refused)),
            }
        }
        let Some(asked) = self.asked.take() else { return self.parts(&found) };
        if let Some(step) = self.again(&asked, found) {
            self.asked = Some(asked);
            return step;
        }
        let found = std::mem::take(&mut self.found);
        // Entries may have come since the slots were read.
        let length = |(_, _, key): &(u64, usize, ItemKey)| data_of(&found, key).map_or(0, <[u8]>::len) as u64;
        let bytes: u64 = asked.iter().map(length).sum();
        if self.behind.is_none() && bytes > MAX_ANSWER {
            return Step::Done(Outcome::Failed(Failure::TooLarge));
        }
        self.answer(&asked, &found)
    }
}
