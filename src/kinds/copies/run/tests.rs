//! The round trips of one change or read, one by one.

use bytes::Bytes;
use smallvec::smallvec;

use super::super::value::begin;
use super::*;
use crate::kinds::command::Value;
use crate::kinds::machine::{Machine, Outcome, Step};
use crate::kinds::request::Request;
use crate::kinds::settings::Counter;

const NOW: u64 = 1_700_000_000_000;

fn inputs(now: u64) -> Inputs {
    Inputs { now, random: 99 }
}

fn machine(request: Request<'_>) -> Box<dyn Machine> {
    let settings = Counter { ttl: Duration::ZERO };
    Box::new(begin(Some(&settings), Duration::ZERO, b"k", request, NOW).unwrap())
}

fn count() -> Box<dyn Machine> {
    machine(Request::Count { decr: false, delta: 3, initial: None })
}

fn cas(number: u64) -> Cas {
    Cas { number, epoch: 1 }
}

fn item(data: Bytes, number: u64) -> Reply {
    Reply::Item(Value { data, flags: 0, cas: cas(number), ttl: None })
}

fn record(life: u64, change: u64, data: &'static str) -> Record {
    let data = Some(Bytes::from_static(data.as_bytes()));
    Record { life, change, ends: 0, flags: 0, data }
}

fn copy(life: u64, change: u64, data: &'static str, number: u64) -> Reply {
    item(record(life, change, data).encode(), number)
}

fn stub(number: u64) -> Reply {
    item(Bytes::new(), number)
}

/// The store that a step consists of: on which copy, what, and over which CAS.
fn stored(step: Step) -> (Side, Record, u64) {
    let Step::SendCopies(mut commands) = step else { panic!("{step:?}") };
    let (side, command) = commands.pop().unwrap();
    let Operation::Store { value, cas: Some(over), .. } = command.operation else { panic!("{command:?}") };
    let item = Value { data: value, flags: 0, cas: over, ttl: None };
    let Some(Found::Record(record, _)) = Record::decode(&item) else { panic!("{item:?}") };
    (side, record, over.number)
}

fn read_again(step: &Step, side: Side) {
    let Step::SendCopies(commands) = step else { panic!("{step:?}") };
    assert!(commands.len() == 1 && commands[0].0 == side, "{commands:?}");
}

/// The step behind those that read the first copy again.
fn lost(machine: &mut dyn Machine, mut step: Step, first: &Reply) -> Step {
    for _ in 0..if *first == stub(21) { LOOKS } else { 1 } {
        read_again(&step, Side::First);
        step = machine.resume(smallvec![first.clone()], &inputs(NOW));
    }
    step
}

#[test]
fn a_value_begins_with_its_life_in_the_second_copy() {
    let mut count = count();
    count.resume(smallvec![], &inputs(NOW));
    read_again(&count.resume(smallvec![stub(21), stub(31)], &inputs(NOW)), Side::First);
    let step = count.resume(smallvec![stub(21)], &inputs(NOW));
    let nothing = Record { life: 99, ..Record::nothing(NOW) };
    assert_eq!(stored(step), (Side::Second, nothing, 31));
    let step = count.resume(smallvec![Reply::Stored(cas(32))], &inputs(NOW));
    assert_eq!(stored(step), (Side::First, record(99, 1, "3"), 21));
    let step = count.resume(smallvec![Reply::Stored(cas(22))], &inputs(NOW));
    assert_eq!(stored(step), (Side::Second, record(99, 1, "3"), 32));
}

#[test]
fn a_change_is_made_to_the_first_copy_then_to_the_second_and_then_acknowledged() {
    let mut count = count();
    count.resume(smallvec![], &inputs(NOW));
    let step = count.resume(smallvec![copy(7, 4, "10", 21), copy(7, 4, "10", 31)], &inputs(NOW));
    assert_eq!(stored(step), (Side::First, record(7, 5, "13"), 21));
    let step = count.resume(smallvec![Reply::Stored(cas(22))], &inputs(NOW));
    assert_eq!(stored(step), (Side::Second, record(7, 5, "13"), 31));
    let step = count.resume(smallvec![Reply::Stored(cas(32))], &inputs(NOW));
    assert_eq!(step, Step::Done(Outcome::Counted(13, 12, None)));
}

#[test]
fn a_first_copy_that_is_lost_or_of_another_life_begins_from_the_second_which_has_the_new_life_first() {
    for first in [stub(21), copy(8, 9, "99", 21)] {
        let mut count = count();
        count.resume(smallvec![], &inputs(NOW));
        let step = count.resume(smallvec![first.clone(), copy(7, 4, "10", 31)], &inputs(NOW));
        let step = lost(count.as_mut(), step, &first);
        assert_eq!(stored(step), (Side::Second, record(99, 4, "10"), 31));
        let step = count.resume(smallvec![Reply::Stored(cas(32))], &inputs(NOW));
        assert_eq!(stored(step), (Side::First, record(99, 5, "13"), 21));
        let step = count.resume(smallvec![Reply::Stored(cas(22))], &inputs(NOW));
        assert_eq!(stored(step), (Side::Second, record(99, 5, "13"), 32));
    }
}

#[test]
fn a_first_copy_that_was_read_before_it_was_stored_is_not_lost() {
    for second in [copy(7, 4, "10", 31), stub(31)] {
        let mut count = count();
        count.resume(smallvec![], &inputs(NOW));
        read_again(&count.resume(smallvec![stub(21), second], &inputs(NOW)), Side::First);
        let step = count.resume(smallvec![copy(7, 5, "14", 23)], &inputs(NOW));
        assert_eq!(stored(step), (Side::First, record(7, 6, "17"), 23));
    }
}

#[test]
fn a_change_that_finds_the_second_copy_changed_is_acknowledged_only_if_that_has_it() {
    let begun = || {
        let mut count = count();
        count.resume(smallvec![], &inputs(NOW));
        count.resume(smallvec![copy(7, 4, "10", 21), copy(7, 4, "10", 31)], &inputs(NOW));
        count.resume(smallvec![Reply::Stored(cas(22))], &inputs(NOW));
        read_again(&count.resume(smallvec![Reply::Exists], &inputs(NOW)), Side::Second);
        count
    };
    let step = begun().resume(smallvec![copy(7, 6, "14", 33)], &inputs(NOW));
    assert_eq!(step, Step::Done(Outcome::Counted(13, 12, None)), "it has this change and a later one");
    let step = begun().resume(smallvec![copy(7, 4, "10", 33)], &inputs(NOW));
    assert_eq!(stored(step), (Side::Second, record(7, 5, "13"), 33), "an earlier change");
    let failed = Step::Done(Outcome::Failed(Failure::Down));
    assert_eq!(begun().resume(smallvec![copy(8, 6, "14", 33)], &inputs(NOW)), failed, "another life");
    // It was lost: what counts is whether the first copy still has the change.
    let lost = || {
        let mut count = begun();
        read_again(&count.resume(smallvec![stub(33)], &inputs(NOW)), Side::First);
        count
    };
    let step = lost().resume(smallvec![copy(7, 6, "14", 23)], &inputs(NOW));
    assert_eq!(stored(step), (Side::Second, record(7, 6, "14"), 33));
    for first in [Reply::Absent, copy(8, 6, "14", 23)] {
        assert_eq!(lost().resume(smallvec![first], &inputs(NOW)), failed);
    }
}

#[test]
fn a_read_returns_what_either_copy_has_and_stores_a_lost_one_again() {
    let read = |first, second| {
        let mut get = machine(Request::Get);
        get.resume(smallvec![], &inputs(NOW));
        let step = get.resume(smallvec![first, second], &inputs(NOW));
        (get, step)
    };
    let down = || Reply::Failed(Failure::Down);
    let value = |step: &Step| match step {
        Step::Done(Outcome::Value { data, .. }) => String::from_utf8(data.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    for (first, second, expected) in [
        (copy(7, 4, "10", 1), copy(7, 5, "11", 2), "11"),
        (copy(7, 5, "11", 1), down(), "11"),
        (down(), copy(7, 4, "10", 2), "10"),
    ] {
        assert_eq!(value(&read(first, second).1), expected);
    }
    assert_eq!(read(Reply::Absent, Reply::Absent).1, Step::Done(Outcome::Miss));
    assert_eq!(read(Reply::Absent, down()).1, Step::Done(Outcome::Failed(Failure::Down)));
    let (mut get, step) = read(Reply::Absent, copy(7, 4, "10", 31));
    assert!(matches!(step, Step::SendCopies(ref commands) if commands.len() == 2));
    let step = get.resume(smallvec![stub(21), copy(7, 4, "10", 31)], &inputs(NOW));
    let step = lost(get.as_mut(), step, &stub(21));
    assert_eq!(stored(step), (Side::Second, record(99, 4, "10"), 31));
    assert_eq!(value(&get.resume(smallvec![down()], &inputs(NOW))), "10", "whether that succeeds or not");
}

#[test]
fn a_change_that_loses_every_race_fails() {
    let lost = |pause: u64| {
        let mut count = count();
        let mut now = NOW;
        let mut step = count.resume(smallvec![], &inputs(now));
        for round in 1u32.. {
            now += pause;
            let replies = match &step {
                Step::SendCopies(commands) => {
                    let reply = |operation: &Operation| match operation {
                        Operation::Store { .. } => Reply::Exists,
                        _ => stub(1),
                    };
                    commands.iter().map(|(_, command)| reply(&command.operation)).collect()
                }
                Step::Done(outcome) => return (outcome.clone(), round),
                Step::Send(_) => panic!("{step:?}"),
            };
            step = count.resume(replies, &inputs(now));
        }
        unreachable!("the loop ends")
    };
    let overloaded = Outcome::Failed(Failure::Overloaded);
    let (ended, rounds) = lost(0);
    assert!(ended == overloaded && (MAX_ROUNDS..MAX_ROUNDS + 6).contains(&rounds), "{ended:?}, {rounds}");
    // A change is tried again after three round trips.
    assert_eq!(lost(MAX_RETRY_MS / 4), (overloaded, 7));
}

#[test]
fn a_command_that_no_other_comes_between_may_take_as_long_as_its_replies() {
    let mut now = NOW;
    let mut count = count();
    count.resume(smallvec![], &inputs(now));
    for reply in [smallvec![copy(7, 4, "10", 21), copy(7, 4, "10", 31)], smallvec![Reply::Stored(cas(22))]] {
        now += 2 * MAX_RETRY_MS;
        assert!(matches!(count.resume(reply, &inputs(now)), Step::SendCopies(_)));
    }
    let step = count.resume(smallvec![Reply::Stored(cas(32))], &inputs(now));
    assert!(matches!(step, Step::Done(Outcome::Counted(13, ..))), "{step:?}");
}

#[test]
fn a_read_that_finds_the_lost_copy_stored_again_stores_nothing() {
    let mut get = machine(Request::Get);
    get.resume(smallvec![], &inputs(NOW));
    get.resume(smallvec![Reply::Absent, copy(7, 4, "10", 31)], &inputs(NOW));
    let step = get.resume(smallvec![copy(9, 6, "11", 22), copy(9, 6, "11", 33)], &inputs(NOW));
    assert!(matches!(step, Step::Done(Outcome::Value { ref data, .. }) if data == "11"), "{step:?}");
}

#[test]
fn a_change_that_makes_nothing_of_an_absent_value_stores_nothing() {
    let mut delete = machine(Request::Delete);
    delete.resume(smallvec![], &inputs(NOW));
    read_again(&delete.resume(smallvec![stub(21), stub(31)], &inputs(NOW)), Side::First);
    assert_eq!(delete.resume(smallvec![stub(21)], &inputs(NOW)), Step::Done(Outcome::NotFound));
}

/// A read that has found these copies.
fn read(first: Reply, second: Reply) -> (Box<dyn Machine>, Step) {
    let mut get = machine(Request::Get);
    get.resume(smallvec![], &inputs(NOW));
    let step = get.resume(smallvec![first, second], &inputs(NOW));
    (get, step)
}

fn is_value(step: &Step, expected: &str) -> bool {
    matches!(step, Step::Done(Outcome::Value { data, .. }) if data == expected)
}

#[test]
fn a_read_completes_a_change_that_only_the_first_copy_has() {
    let half = || read(copy(7, 5, "11", 21), copy(7, 4, "10", 31));
    assert_eq!(stored(half().1), (Side::Second, record(7, 5, "11"), 31));
    let completes = |reply| half().0.resume(smallvec![reply], &inputs(NOW));
    assert!(is_value(&completes(Reply::Stored(cas(32))), "11"));
    // The first copy has it.
    assert!(is_value(&completes(Reply::Failed(Failure::TimedOut)), "11"));
    // Another command has come between.
    let again = |second| {
        let (mut get, _) = half();
        read_again(&get.resume(smallvec![Reply::Exists], &inputs(NOW)), Side::Second);
        let step = get.resume(smallvec![second], &inputs(NOW));
        (get, step)
    };
    assert!(is_value(&again(copy(7, 6, "12", 33)).1, "11"));
    // The first copy was lost, and the second began anew.
    let (mut get, step) = again(copy(9, 4, "10", 33));
    assert!(matches!(step, Step::SendCopies(ref commands) if commands.len() == 2), "{step:?}");
    let step = get.resume(smallvec![copy(9, 4, "10", 22), copy(9, 4, "10", 33)], &inputs(NOW));
    assert!(is_value(&step, "10"));
}

#[test]
fn a_read_of_two_lives_returns_that_of_the_second_copy_and_gives_it_to_both() {
    let (mut get, step) = read(copy(8, 5, "11", 21), copy(7, 4, "10", 31));
    assert!(matches!(step, Step::SendCopies(ref commands) if commands.len() == 2));
    let step = get.resume(smallvec![copy(8, 5, "11", 21), copy(7, 4, "10", 31)], &inputs(NOW));
    let step = lost(get.as_mut(), step, &copy(8, 5, "11", 21));
    assert_eq!(stored(step), (Side::Second, record(99, 4, "10"), 31));
    let step = get.resume(smallvec![Reply::Stored(cas(32))], &inputs(NOW));
    assert_eq!(stored(step), (Side::First, record(99, 5, "10"), 21));
    get.resume(smallvec![Reply::Stored(cas(22))], &inputs(NOW));
    assert!(is_value(&get.resume(smallvec![Reply::Stored(cas(33))], &inputs(NOW)), "10"));
}

#[test]
fn a_change_that_is_refused_completes_what_it_was_refused_for() {
    let mut add =
        machine(Request::Store { verb: crate::kinds::request::Verb::Add, data: b"1", flags: 0, exptime: 0 });
    add.resume(smallvec![], &inputs(NOW));
    let step = add.resume(smallvec![copy(7, 5, "11", 21), copy(7, 4, "10", 31)], &inputs(NOW));
    assert_eq!(stored(step), (Side::Second, record(7, 5, "11"), 31));
    assert_eq!(add.resume(smallvec![Reply::Stored(cas(32))], &inputs(NOW)), Step::Done(Outcome::NotStored));
}
