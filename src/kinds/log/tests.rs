//! Appends and reads, one round trip at a time.

use std::time::Duration;

use smallvec::smallvec;

use super::append::{MAX_ROUNDS, SLOT_FULL};
use super::cursor::{Cursor, MAX_PARTS, parse};
use super::slots::{PART, part_key, reserved_key};
use super::*;
use crate::error::Failure;
use crate::kinds::command::{Cas, Command, Mode, Operation, Reply};
use crate::kinds::gets::MAX_LINE;
use crate::kinds::item::own_length;
use crate::kinds::machine::{Inputs, Order, Outcome, Step};
use crate::kinds::many::{Items, Keys};

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
        other => panic!("{other:?}"),
    }
}

fn append(data: &[u8]) -> Result<Box<dyn Machine>, &'static str> {
    let store = Request::Store { verb: Verb::Append, data, flags: 0, exptime: 0 };
    begin(&settings(), b"k", 1, store, &Arc::default(), Order::Kept, NOW)
}

fn read(key: &[u8]) -> Box<dyn Machine> {
    begin(&settings(), key, 1, Request::Get, &Arc::default(), Order::Kept, NOW).unwrap()
}

fn reserved(machine: &mut dyn Machine, end: u64) -> Step {
    sent(machine.resume(smallvec![], &inputs(NOW)));
    machine.resume(smallvec![Reply::Number(end, CAS, None)], &inputs(NOW))
}

#[test]
fn an_entry_goes_to_the_part_in_which_its_place_begins() {
    for (end, part) in [(5, 0), (PART, 0), (PART + 4, 0), (PART + 5, 1), (PART * 8 + 4, 7)] {
        let mut machine = append(b"entry").unwrap();
        let commands = sent(reserved(&mut *machine, end));
        assert_eq!(commands[0].key, part_key(b"k", SLOT, part).unwrap(), "{end}");
    }
}

/// Appends `data` when a reply has shown that so many bytes are reserved.
fn append_behind(ends: &Arc<LogEnds>, seen: u64, data: &[u8]) -> Box<dyn Machine> {
    ends.saw(b"k", SLOT, seen);
    let store = Request::Store { verb: Verb::Append, data, flags: 0, exptime: 0 };
    begin(&settings(), b"k", 1, store, ends, Order::Kept, NOW).unwrap()
}

#[test]
fn an_append_to_a_slot_that_is_known_is_one_round_trip() {
    for (seen, part) in [(5, 0), (PART - 1, 0), (PART, 1), (PART * 8 - 1, 7)] {
        let mut machine = append_behind(&Arc::default(), seen, b"entry");
        let commands = sent(machine.resume(smallvec![], &inputs(NOW)));
        let keys: Vec<_> = commands.iter().map(|command| command.key.clone()).collect();
        assert_eq!(keys, [reserved_key(b"k", SLOT).unwrap(), part_key(b"k", SLOT, part).unwrap()]);
        let replies = smallvec![Reply::Number(seen + 5, CAS, None), Reply::Stored(CAS)];
        assert_eq!(machine.resume(replies, &inputs(NOW)), Step::Done(Outcome::Stored(7)));
    }
    // The slot is full as far as is known: nothing is appended before its place is.
    let mut machine = append_behind(&Arc::default(), PART * 8, b"entry");
    assert_eq!(sent(machine.resume(smallvec![], &inputs(NOW))).len(), 1);
}

#[test]
fn a_part_that_cannot_be_appended_to_is_left_for_that_of_the_place() {
    // The part does not exist yet, or others have filled it meanwhile.
    for (seen, end, part, mode) in
        [(PART, PART + 5, 1, Mode::Add), (PART - 5, PART * 2 + 5, 2, Mode::Append), (PART, 5, 0, Mode::Add)]
    {
        let ends = Arc::default();
        let mut machine = append_behind(&ends, seen, b"entry");
        sent(machine.resume(smallvec![], &inputs(NOW)));
        let replies = smallvec![Reply::Number(end, CAS, None), Reply::NotStored];
        let commands = sent(machine.resume(replies, &inputs(NOW)));
        assert_eq!(commands[0].key, part_key(b"k", SLOT, part).unwrap());
        assert!(matches!(commands[0].operation, Operation::Store { mode: of, .. } if of == mode));
        // The server has restarted: what was seen is forgotten.
        assert_eq!(ends.get(b"k", SLOT), (end >= seen).then_some(end));
    }
}

#[test]
fn an_entry_that_no_reader_would_find_is_not_acknowledged() {
    let ends = Arc::default();
    let mut machine = append_behind(&ends, PART * 3, b"entry");
    sent(machine.resume(smallvec![], &inputs(NOW)));
    let replies = smallvec![Reply::Number(5, CAS, None), Reply::Stored(CAS)];
    let step = machine.resume(replies, &inputs(NOW));
    assert_eq!(step, Step::Done(Outcome::Failed(Failure::Lost)));
    assert_eq!(ends.get(b"k", SLOT), None);
}

#[test]
fn a_tail_that_has_seen_everything_asks_for_nothing_more() {
    let place = format!("k@{}", Cursor { first: SLOT - 1, seen: vec![vec![3, 4], vec![5]] }.text());
    let number =
        |slot, bytes: &'static str| (reserved_key(b"k", slot).unwrap(), Bytes::from_static(bytes.as_bytes()));
    let replies =
        |last| smallvec![Reply::Items(Items::from_iter([number(SLOT - 1, "7"), number(SLOT, last)]))];
    let mut machine = read(place.as_bytes());
    sent(machine.resume(smallvec![], &inputs(NOW)));
    let Step::Done(Outcome::Value { data, .. }) = machine.resume(replies("5"), &inputs(NOW)) else {
        panic!("not done")
    };
    assert_eq!(data, format!("{}\n", &place[2..]));
    // What is new in a slot may have come behind something in the slot before.
    let mut machine = read(place.as_bytes());
    sent(machine.resume(smallvec![], &inputs(NOW)));
    let commands = sent(machine.resume(replies("6"), &inputs(NOW)));
    let keys = [(SLOT, 0), (SLOT - 1, 0)].map(|(slot, part)| part_key(b"k", slot, part).unwrap());
    assert_eq!(commands[0].operation, Operation::GetMany(Keys::from_iter(keys)));
}

#[test]
fn a_full_slot_says_so_and_the_next_one_has_room() {
    let mut machine = append(b"entry").unwrap();
    let end = PART * MAX_PARTS as u64 + 5;
    assert_eq!(reserved(&mut *machine, end), Step::Done(Outcome::Refused(SLOT_FULL)));
    // An append that is overtaken by the end of the slot reserves in the next one.
    let mut machine = append(b"entry").unwrap();
    sent(machine.resume(smallvec![], &inputs(NOW)));
    let again = machine.resume(smallvec![Reply::Number(end, CAS, None)], &inputs(NOW + 10_000));
    assert_eq!(sent(again)[0].key, reserved_key(b"k", SLOT + 1).unwrap());
}

#[test]
fn an_entry_that_comes_when_no_tail_looks_at_its_slot_is_not_acknowledged() {
    for (later, expected) in
        [(0, Outcome::Stored(7)), (19_999, Outcome::Stored(7)), (20_000, Outcome::Failed(Failure::TimedOut))]
    {
        let mut machine = append(b"entry").unwrap();
        sent(reserved(&mut *machine, 5));
        let step = machine.resume(smallvec![Reply::Stored(CAS)], &inputs(NOW + later));
        assert_eq!(step, Step::Done(expected), "{later}");
    }
}

#[test]
fn an_append_is_not_tried_for_ever() {
    let mut machine = append(b"entry").unwrap();
    sent(reserved(&mut *machine, 5));
    for _ in 1..MAX_ROUNDS {
        sent(machine.resume(smallvec![Reply::NotStored], &inputs(NOW)));
    }
    let step = machine.resume(smallvec![Reply::NotStored], &inputs(NOW));
    assert_eq!(step, Step::Done(Outcome::Failed(Failure::Lost)));
}

#[test]
fn an_entry_and_the_key_of_a_log_have_limits() {
    assert!(append(&vec![b'x'; MAX_ENTRY]).is_ok());
    assert_eq!(append(&vec![b'x'; MAX_ENTRY + 1]).err(), Some(ENTRY_TOO_LARGE));
    assert_eq!(append(b"").err(), Some(ENTRY_TOO_LARGE));
    let key = [b'k'; MAX_OWN + 1];
    assert!(begin(&settings(), &key[1..], MAX_OWN, Request::Get, &Arc::default(), Order::Kept, NOW).is_ok());
    assert_eq!(
        begin(&settings(), &key, MAX_OWN + 1, Request::Get, &Arc::default(), Order::Kept, NOW).err(),
        Some(TOO_LONG)
    );
}

#[test]
fn the_items_of_a_log_are_read_by_lines_that_memcached_takes() {
    let commands = sent(read(b"k").resume(smallvec![], &inputs(NOW)));
    let mut all = 0;
    for command in &commands {
        let Operation::GetMany(keys) = &command.operation else { panic!("{command:?}") };
        assert!(keys.line().len() <= MAX_LINE);
        all += keys.iter().count();
    }
    assert_eq!((all, commands.len()), (102, 2));
}

#[test]
fn the_newest_part_is_read_first() {
    let mut machine = read(b"k");
    sent(machine.resume(smallvec![], &inputs(NOW)));
    let full = |slot| (reserved_key(b"k", slot).unwrap(), Bytes::from((PART + 1).to_string()));
    let commands = sent(
        machine.resume(smallvec![Reply::Items(Items::from_iter([full(SLOT - 1), full(SLOT)]))], &inputs(NOW)),
    );
    let expected = [(SLOT, 1), (SLOT, 0), (SLOT - 1, 1), (SLOT - 1, 0)];
    let expected = expected.map(|(slot, part)| part_key(b"k", slot, part).unwrap());
    assert_eq!(commands[0].operation, Operation::GetMany(Keys::from_iter(expected)));
}

/// The parts that a read asks for.
fn asked(step: Step) -> Vec<ItemKey> {
    match &sent(step)[..] {
        [Command { operation: Operation::GetMany(keys), .. }] => {
            keys.iter().map(ItemKey::from_slice).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_the_order_is_not_kept_parts_are_read_again_until_those_behind_the_newest_have_not_grown() {
    let parts = [(SLOT, 1), (SLOT, 0), (SLOT - 1, 0)].map(|(slot, part)| part_key(b"k", slot, part).unwrap());
    let items = |data: &[(usize, &'static str)]| {
        smallvec![Reply::Items(Items::from_iter(data.iter().map(|(at, data)| (&parts[*at], *data))))]
    };
    let slots = [(SLOT - 1, 1), (SLOT, PART + 1)]
        .map(|(slot, bytes)| (reserved_key(b"k", slot).unwrap(), Bytes::from(bytes.to_string())));
    let begun = || {
        let mut machine =
            begin(&settings(), b"k", 1, Request::Get, &Arc::default(), Order::NotKept, NOW).unwrap();
        sent(machine.resume(smallvec![], &inputs(NOW)));
        let reserved = smallvec![Reply::Items(Items::from_iter(slots.clone()))];
        assert_eq!(asked(machine.resume(reserved, &inputs(NOW))), parts);
        let step = machine.resume(items(&[(0, "c"), (1, "b"), (2, "a")]), &inputs(NOW));
        assert_eq!(asked(step), parts[1..]);
        machine
    };
    let data = |step| match step {
        Step::Done(Outcome::Value { data, .. }) => data,
        other => panic!("{other:?}"),
    };
    assert_eq!(data(begun().resume(items(&[(1, "b"), (2, "a")]), &inputs(NOW))), "abc");
    // What was appended to a part before, while the newest was read, is read too, and then those behind it once more.
    let mut machine = begun();
    assert_eq!(asked(machine.resume(items(&[(1, "bb"), (2, "a")]), &inputs(NOW))), parts[2..]);
    assert_eq!(data(machine.resume(items(&[(2, "aa")]), &inputs(NOW))), "aabbc");
}

#[test]
fn a_tail_that_has_seen_as_much_as_is_reserved_reads_on_where_an_entry_may_be_there_before_its_place() {
    let cursor = Cursor { first: SLOT, seen: vec![vec![5]] }.text();
    for (order, reads) in [(Order::Kept, false), (Order::NotKept, true)] {
        let key = format!("k@{cursor}");
        let mut machine =
            begin(&settings(), key.as_bytes(), 1, Request::Get, &Arc::default(), order, NOW).unwrap();
        sent(machine.resume(smallvec![], &inputs(NOW)));
        let reserved = (reserved_key(b"k", SLOT).unwrap(), Bytes::from_static(b"5"));
        let step = machine.resume(smallvec![Reply::Items(Items::from_iter([reserved]))], &inputs(NOW));
        assert_eq!(matches!(step, Step::Send(_)), reads, "{order:?}");
    }
}

#[test]
fn an_answer_is_never_cut_and_a_tail_goes_on() {
    let full: Vec<_> = (SLOT - 6..=SLOT - 1)
        .map(|slot| (reserved_key(b"k", slot).unwrap(), Bytes::from((PART * 8).to_string())))
        .collect();
    let mut machine = read(b"k");
    sent(machine.resume(smallvec![], &inputs(NOW)));
    let step = machine.resume(smallvec![Reply::Items(Items::from_iter(full.clone()))], &inputs(NOW));
    assert_eq!(step, Step::Done(Outcome::Failed(Failure::TooLarge)));
    let mut place = b"k@0".to_vec();
    for expected in [SLOT - 2, SLOT - 1] {
        let mut machine = read(&place);
        sent(machine.resume(smallvec![], &inputs(NOW)));
        sent(machine.resume(smallvec![Reply::Items(Items::from_iter(full.clone()))], &inputs(NOW)));
        let Step::Done(Outcome::Value { data, .. }) =
            machine.resume(smallvec![Reply::Items(Items::default())], &inputs(NOW))
        else {
            panic!("no value")
        };
        place = [b"k@", data.trim_ascii_end()].concat();
        let Some(Place::Behind(cursor)) = parse(data.trim_ascii_end()) else { panic!("{data:?}") };
        assert_eq!(cursor.first, expected);
    }
}

#[test]
fn an_entry_that_was_seen_is_not_seen_again_whatever_slot_it_is_in() {
    let slot_items = |data: &'static str| {
        let length = Bytes::from(data.len().to_string());
        let reserved = Reply::Items(Items::from_iter([(reserved_key(b"k", SLOT).unwrap(), length)]));
        (reserved, Reply::Items(Items::from_iter([(part_key(b"k", SLOT, 0).unwrap(), data)])))
    };
    let mut place = "0".to_owned();
    for (now, stored, new) in [
        (NOW, "a\n", "a\n"),
        (NOW, "a\n", ""),
        (NOW + 9_999, "a\nb\n", "b\n"),
        (NOW + 19_999, "a\nb\nc\n", "c\n"),
    ] {
        let key = format!("k@{place}");
        let mut machine =
            begin(&settings(), key.as_bytes(), 1, Request::Get, &Arc::default(), Order::Kept, now).unwrap();
        let (reserved, parts) = slot_items(stored);
        sent(machine.resume(smallvec![], &inputs(now)));
        let step = match machine.resume(smallvec![reserved], &inputs(now)) {
            Step::Send(_) => machine.resume(smallvec![parts], &inputs(now)),
            step => step,
        };
        let Step::Done(Outcome::Value { data, .. }) = step else { panic!("no value") };
        let text = String::from_utf8(data.to_vec()).unwrap();
        let (next, entries) = text.split_once('\n').unwrap();
        assert_eq!(entries, new);
        place = next.to_owned();
    }
}

#[test]
fn a_command_that_logs_do_not_have_is_refused_with_those_that_they_have() {
    for request in [Request::Delete, Request::Other, Request::Count { decr: false, delta: 1, initial: None }]
    {
        assert_eq!(
            begin(&settings(), b"k", 1, request, &Arc::default(), Order::Kept, NOW).err(),
            Some(COMMANDS)
        );
    }
}

#[test]
fn the_own_key_of_a_log_ends_at_the_first_at_sign_behind_the_prefix() {
    for (prefix, key, length) in [(4, "log:a", 5), (4, "log:a@0", 5), (4, "log:a@b@0", 5), (2, "a@b@0", 3)] {
        assert_eq!(own_length(b'@', prefix, key.as_bytes()), length, "{key}");
    }
}
