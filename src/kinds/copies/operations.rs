//! What the commands of a kind's machine make of one item.

use bytes::Bytes;

use super::change::{counted, ends, joined};
use super::edit::{Edit, Needs};
use super::record::{KEPT_WITHOUT_VALUE, Record};
use crate::error::Failure;
use crate::kinds::command::{Cas, Mode, Operation, Reply, Value};

/// The largest item that is appended to, in bytes. Each append reads and stores all of it.
const MAX_APPENDED: usize = 256 * 1024;
/// An item that would end so much later, in ms, is left as it is. memcached ends a TTL of n seconds up to a second early too.
const NOT_LATER: u64 = 1_000;

/// The commands of one round trip on one item, in their order. They end with their replies, which are those of memcached.
#[derive(Debug)]
pub(super) struct Operations {
    operations: Vec<Operation>,
    /// Whether they must not see what may be undone.
    needs_both: bool,
    /// Those to the operations when they were applied last.
    replies: Vec<Reply>,
}

impl Operations {
    /// None of them reads several items, or creates one that is empty.
    pub(super) fn new(operations: Vec<Operation>, needs_both: bool) -> Operations {
        Operations { operations, needs_both, replies: Vec::new() }
    }
}

/// The item between the operations.
struct Item {
    /// `None`: there is none.
    data: Option<Bytes>,
    flags: u32,
    ends: u64,
    /// Its CAS, and that of the item after a change.
    cas: u64,
    next: u64,
    is_changed: bool,
}

impl Item {
    fn of(record: Option<&Record>, now: u64) -> Item {
        let Some(record) = record else {
            return Item { data: None, flags: 0, ends: 0, cas: 0, next: 0, is_changed: false };
        };
        Item {
            data: record.data.clone().filter(|_| record.has_value(now)),
            flags: record.flags,
            ends: record.ends,
            cas: record.cas(),
            next: record.changed(None, 0, 0).cas(),
            is_changed: false,
        }
    }

    fn cas(&self) -> Cas {
        Cas { number: self.cas, epoch: 0 }
    }

    fn set(&mut self, data: Option<Bytes>) -> Cas {
        (self.data, self.cas, self.is_changed) = (data, self.next, true);
        self.cas()
    }

    fn store(&mut self, data: Bytes, flags: u32, ends: u64) -> Reply {
        (self.flags, self.ends) = (flags, ends);
        Reply::Stored(self.set(Some(data)))
    }

    fn ttl(&self, now: u64) -> Option<u32> {
        Record { life: 0, change: 0, ends: self.ends, flags: 0, data: None }.ttl(now)
    }

    fn carry_out(&mut self, operation: &Operation, now: u64) -> Reply {
        let held = self.data.clone();
        match (operation, held) {
            (Operation::Get, Some(data)) => {
                Reply::Item(Value { data, flags: self.flags, cas: self.cas(), ttl: self.ttl(now) })
            }
            (Operation::Size { exptime }, Some(data)) => {
                let later = exptime.map(|exptime| ends(exptime, now));
                if let Some(later) = later.filter(|later| later.abs_diff(self.ends) >= NOT_LATER) {
                    self.ends = later;
                    self.set(Some(data.clone()));
                }
                Reply::Size(data.len(), self.cas())
            }
            (Operation::Store { cas: Some(cas), .. } | Operation::Delete { cas: Some(cas) }, Some(_))
                if cas.number != self.cas =>
            {
                Reply::Exists
            }
            (Operation::Store { cas: Some(_), .. }, None) => Reply::Absent,
            (Operation::Store { mode: Mode::Add, .. }, Some(_))
            | (Operation::Store { mode: Mode::Append, .. }, None) => Reply::NotStored,
            (Operation::Store { mode: Mode::Append, value, .. }, Some(data)) => {
                match data.len() + value.len() > MAX_APPENDED {
                    true => Reply::NotStored,
                    false => Reply::Stored(self.set(Some(joined(&data, value)))),
                }
            }
            (Operation::Store { value, flags, exptime, .. }, _) => {
                self.store(value.clone(), *flags, ends(*exptime, now))
            }
            (Operation::Count { initial, exptime, .. }, None) => {
                self.store(Bytes::from(initial.to_string()), 0, ends(*exptime, now));
                Reply::Number(*initial, self.cas(), self.ttl(now))
            }
            (Operation::Count { decr, delta, .. }, Some(data)) => match counted(&data, *decr, *delta) {
                None => Reply::NotANumber,
                Some(number) => {
                    let cas = self.set(Some(Bytes::from(number.to_string())));
                    Reply::Number(number, cas, self.ttl(now))
                }
            },
            (Operation::Delete { .. }, Some(_)) => {
                self.ends = now.saturating_add(KEPT_WITHOUT_VALUE);
                self.set(None);
                Reply::Done
            }
            (Operation::Get | Operation::Size { .. } | Operation::Delete { .. }, None) => Reply::Absent,
            (Operation::GetOrStub | Operation::GetMany(_), _) => Reply::Failed(Failure::Refused),
        }
    }
}

impl Edit for Operations {
    type End = Vec<Reply>;

    fn changes(&self) -> bool {
        let reads =
            |operation: &Operation| matches!(operation, Operation::Get | Operation::Size { exptime: None });
        !self.operations.iter().all(reads)
    }

    fn apply(&mut self, record: &Record, now: u64) -> Result<Record, Vec<Reply>> {
        let mut item = Item::of(Some(record), now);
        let replies = self.operations.iter().map(|operation| item.carry_out(operation, now)).collect();
        if !item.is_changed {
            return Err(replies);
        }
        self.replies = replies;
        Ok(record.changed(item.data, item.flags, item.ends))
    }

    fn made(&mut self, _: &Record, _: u64) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    fn read(&mut self, record: Option<&Record>, now: u64) -> Vec<Reply> {
        let mut item = Item::of(record, now);
        self.operations.iter().map(|operation| item.carry_out(operation, now)).collect()
    }

    fn needs(&self) -> Needs {
        if self.needs_both { Needs::Second } else { Needs::One }
    }

    fn failed(failure: Failure) -> Vec<Reply> {
        vec![Reply::Failed(failure)]
    }

    fn too_large() -> Vec<Reply> {
        vec![Reply::TooLarge]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn record(data: &'static str) -> Record {
        Record { life: 10, change: 5, ends: 0, flags: 7, data: Some(Bytes::from_static(data.as_bytes())) }
    }

    fn store(mode: Mode, value: &'static str, cas: Option<u64>) -> Operation {
        let cas = cas.map(|number| Cas { number, epoch: 0 });
        Operation::Store { mode, value: Bytes::from_static(value.as_bytes()), flags: 1, exptime: 60, cas }
    }

    fn cas(number: u64) -> Cas {
        Cas { number, epoch: 0 }
    }

    /// What the operations make of a record: its value, or that nothing changes, and the replies.
    fn made(record: &Record, operations: Vec<Operation>) -> (Option<Option<Bytes>>, Vec<Reply>) {
        let mut all = Operations::new(operations, false);
        match all.apply(record, NOW) {
            Ok(changed) => {
                assert_eq!((changed.life, changed.change), (record.life, record.change + 1));
                (Some(changed.data.clone()), all.made(&changed, NOW))
            }
            Err(replies) => (None, replies),
        }
    }

    #[test]
    fn operations_are_carried_out_in_their_order_by_one_change() {
        let nothing = Record { data: None, ..record("") };
        let operations = vec![
            Operation::Size { exptime: None },
            store(Mode::Add, "", None),
            store(Mode::Append, "+a", None),
            store(Mode::Add, "x", None),
            Operation::Size { exptime: None },
        ];
        let replies = vec![
            Reply::Absent,
            Reply::Stored(cas(16)),
            Reply::Stored(cas(16)),
            Reply::NotStored,
            Reply::Size(2, cas(16)),
        ];
        assert_eq!(made(&nothing, operations), (Some(Some(Bytes::from_static(b"+a"))), replies));
        let deleted = made(&record("x"), vec![Operation::Delete { cas: None }, Operation::Get]);
        assert_eq!(deleted, (Some(None), vec![Reply::Done, Reply::Absent]));
    }

    #[test]
    fn what_changes_nothing_ends_without_a_change() {
        let held = record("x");
        let item = Value { data: Bytes::from_static(b"x"), flags: 7, cas: cas(15), ttl: None };
        for (operation, reply) in [
            (Operation::Get, Reply::Item(item)),
            (store(Mode::Add, "y", None), Reply::NotStored),
            (store(Mode::Set, "y", Some(14)), Reply::Exists),
            (Operation::Delete { cas: Some(cas(14)) }, Reply::Exists),
            (Operation::Count { decr: false, delta: 1, initial: 1, exptime: 0 }, Reply::NotANumber),
        ] {
            assert_eq!(made(&held, vec![operation.clone()]), (None, vec![reply]), "{operation:?}");
        }
        let nothing = Record { data: None, ..record("") };
        for operation in [
            Operation::Get,
            Operation::Size { exptime: Some(9) },
            store(Mode::Set, "y", Some(15)),
            Operation::Delete { cas: None },
        ] {
            assert_eq!(made(&nothing, vec![operation.clone()]), (None, vec![Reply::Absent]), "{operation:?}");
        }
    }

    #[test]
    fn a_store_over_the_right_cas_and_a_count_change_the_item() {
        let (value, replies) = made(&record("x"), vec![store(Mode::Set, "y", Some(15))]);
        assert_eq!((value, replies), (Some(Some(Bytes::from_static(b"y"))), vec![Reply::Stored(cas(16))]));
        let count = Operation::Count { decr: false, delta: 3, initial: 9, exptime: 60 };
        let (value, replies) = made(&record("4"), vec![count.clone()]);
        assert_eq!(
            (value, replies),
            (Some(Some(Bytes::from_static(b"7"))), vec![Reply::Number(7, cas(16), None)])
        );
        let (value, replies) = made(&Record { data: None, ..record("") }, vec![count]);
        let created = vec![Reply::Number(9, cas(16), Some(60))];
        assert_eq!((value, replies), (Some(Some(Bytes::from_static(b"9"))), created));
    }

    #[test]
    fn an_item_that_ends_hardly_later_is_left_as_it_is() {
        let at = |ends| Record { ends, ..record("x") };
        let touch = || vec![Operation::Size { exptime: Some(60) }];
        assert_eq!(made(&at(NOW + 59_001), touch()), (None, vec![Reply::Size(1, cas(15))]));
        let (value, replies) = made(&at(NOW + 59_000), touch());
        assert_eq!((value, replies), (Some(Some(Bytes::from_static(b"x"))), vec![Reply::Size(1, cas(16))]));
    }

    #[test]
    fn an_append_has_a_limit() {
        let full = Record { data: Some(Bytes::from(vec![b'x'; MAX_APPENDED - 1])), ..record("") };
        assert_eq!(made(&full, vec![store(Mode::Append, "yy", None)]), (None, vec![Reply::NotStored]));
        assert!(made(&full, vec![store(Mode::Append, "y", None)]).0.is_some());
    }
}
