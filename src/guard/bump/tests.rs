use smallvec::smallvec;

use super::*;
use crate::guard::command::{Cas, Item, ItemRef, Operation, ServerCommand};
use crate::guard::fixtures::{self, cas, found, on, store_version as store};
use crate::guard::inputs::Now;
use crate::guard::tag_version::{MS_BITS, incarnation_of, version, version_of};
use crate::guard::tags::{TagServer, get_tag};

const CAS: Cas = cas(1);
const DOWN: ServerReply = ServerReply::Failed(Failure::Down);
const TAG: ItemRef = ItemRef::Tag(0);
const NOW: Now = Now { wall: 3_000, mono: 0 };

#[test]
fn a_lost_tag_never_repeats_a_version_even_if_a_clock_is_behind() {
    let at = |wall, random_unit, copies, run: &mut dyn FnMut(&Inputs<'_>) -> Commands| {
        on(wall, copies, |inputs| run(&Inputs { random_unit, ..*inputs }))
    };
    let bumped = |wall, random_unit, copies, current: Item| {
        let commands = at(wall, random_unit, copies, &mut |inputs| {
            let (mut bump, _) = Bump::start(inputs);
            let replies = TagServer::all(copies).iter().map(|_| ServerReply::Item(current.clone())).collect();
            let Step::Send(commands) = bump.resume(Event::Replies(replies), inputs) else {
                panic!("no store")
            };
            commands
        });
        let Operation::Store { value, flags, .. } = &commands[0].operation else { panic!("{commands:?}") };
        let item = fixtures::item("", 9);
        Item { value: value.body.clone(), flags: *flags, ..item }
    };
    let nothing = fixtures::item("", 1);
    for (copies, incarnations) in [(false, true), (true, false)] {
        let first = bumped(2_000, 0.3, copies, nothing.clone());
        let moved = bumped(2_500, 0.9, copies, first.clone());
        assert_eq!(
            (&moved.value[..], moved.flags, moved.flags > 0),
            (&b"2500"[..], first.flags, incarnations)
        );
        // Lost, created by a sidecar whose clock is behind, and bumped to the same millisecond.
        let again = bumped(2_500, 0.1, copies, bumped(1_000, 0.7, copies, nothing.clone()));
        assert_eq!(again.value, moved.value);
        assert_eq!(version_of(&again, 0, NOW) != version_of(&moved, 0, NOW), incarnations);
        assert_eq!(version_of(&again, 0, NOW).map(version_millis), Some(2_500));
    }
    let versions = [version(5, u32::MAX), version(u64::MAX, 0)];
    assert_eq!(versions.map(version_millis), [5, (1 << MS_BITS) - 1]);
    assert_eq!(versions.map(incarnation_of), [(1 << 20) - 1, 0]);
}

fn bump(rounds: &[(&[ServerCommand], &[ServerReply])]) -> Option<BumpEnd> {
    let (mut bump, mut commands) = on(100, true, Bump::start);
    for (wall, (expected, replies)) in (100..).zip(rounds) {
        assert_eq!(&commands[..], *expected);
        let replies = Event::Replies(replies.iter().cloned().collect());
        match on(wall, true, |inputs| bump.resume(replies, inputs)) {
            Step::Send(more) => commands = more,
            Step::Done(end) => return Some(end),
            Step::AddTags(_) | Step::Wait(_) => panic!("a bump neither adds tags nor waits"),
        }
    }
    None
}

#[test]
fn a_bump_is_done_once_every_reachable_copy_has_it() {
    let reads: &[ServerCommand] = &[get_tag(TAG), get_tag(ItemRef::TagCopy(0))];
    let existing: &[ServerReply] = &[found("50", 7), found("70", 8)];
    let both: &[ServerCommand] = &[store(TAG, 100, cas(7)), store(ItemRef::TagCopy(0), 100, cas(8))];
    let stored = || ServerReply::Stored(CAS);
    assert_eq!(bump(&[(reads, existing), (both, &[stored(), stored()])]), Some(BumpEnd::Bumped(100)));
    assert_eq!(bump(&[(reads, existing), (both, &[DOWN, stored()])]), Some(BumpEnd::Bumped(100)));
    assert_eq!(bump(&[(reads, existing), (both, &[DOWN, DOWN])]), Some(BumpEnd::Failed(Failure::Down)));
    let refused = ServerReply::Failed(Failure::Refused);
    let failed = Some(BumpEnd::Failed(Failure::Refused));
    assert_eq!(bump(&[(reads, existing), (both, &[stored(), refused.clone()])]), failed);
    assert_eq!(bump(&[(reads, &[found("50", 7), refused])]), failed);
    let one: &[ServerCommand] = &[store(TAG, 100, cas(7))];
    assert_eq!(bump(&[(reads, &[found("50", 7), DOWN]), (one, &[stored()])]), Some(BumpEnd::Bumped(100)));
    // Another sidecar has bumped the tag since, but only one copy has that version.
    let again: &[ServerReply] = &[found("120", 9), found("70", 8)];
    let rest: &[ServerCommand] = &[store(ItemRef::TagCopy(0), 120, cas(8))];
    let end = bump(&[
        (reads, existing),
        (both, &[ServerReply::Exists, ServerReply::Exists]),
        (reads, again),
        (rest, &[stored()]),
    ]);
    assert_eq!(end, Some(BumpEnd::Bumped(120)));
    // A reader has updated the copy that was behind, which is no bump.
    let repaired: &[ServerReply] = &[found("70", 9), found("70", 8)];
    let anew: &[ServerCommand] = &[store(TAG, 102, cas(9)), store(ItemRef::TagCopy(0), 102, cas(8))];
    let end = bump(&[
        (reads, existing),
        (both, &[ServerReply::Exists, ServerReply::Exists]),
        (reads, repaired),
        (anew, &[stored(), stored()]),
    ]);
    assert_eq!(end, Some(BumpEnd::Bumped(102)));
    let elsewhere: &[ServerReply] = &[found("120", 9), found("120", 8)];
    let end =
        bump(&[(reads, existing), (both, &[ServerReply::Exists, ServerReply::Exists]), (reads, elsewhere)]);
    assert_eq!(end, Some(BumpEnd::Bumped(120)));
}

#[test]
fn a_bump_that_loses_every_race_is_not_acknowledged() {
    // Each time another writer stores the same version, under another CAS, between the read and the store.
    let (mut bump, mut commands) = on(100, false, Bump::start);
    for round in 0..2 * u64::from(MAX_ROUNDS) {
        let reads = round % 2 == 0;
        assert!(
            matches!(
                (&commands[0].operation, reads),
                (Operation::Get(_), true) | (Operation::Store { .. }, false)
            ),
            "{commands:?}"
        );
        let reply = if reads { found("50", 7 + round) } else { ServerReply::Exists };
        let step = on(100, false, |inputs| bump.resume(Event::Replies(smallvec![reply]), inputs));
        let Step::Send(more) = step else { panic!("round {round}: {step:?}") };
        commands = more;
    }
    let reply = Event::Replies(smallvec![found("50", 99)]);
    let end = on(100, false, |inputs| bump.resume(reply, inputs));
    assert_eq!(end, Step::Done(BumpEnd::Failed(Failure::Overloaded)));
}

#[test]
fn under_a_fence_a_bump_needs_every_copy() {
    for (fences, is_done) in [(&[][..], true), (&[[7, 8]][..], false)] {
        let with_fences = |run: &mut dyn FnMut(&Inputs<'_>) -> Step<BumpEnd>| {
            on(100, true, |inputs| run(&Inputs { tag_fences: fences, ..*inputs }))
        };
        let value = if fences.is_empty() { "50" } else { "50 7" };
        let (mut bump, _) = on(100, true, Bump::start);
        let replies = smallvec![found(value, 3), DOWN];
        let step = with_fences(&mut |inputs| bump.resume(Event::Replies(replies.clone()), inputs));
        assert_eq!(matches!(step, Step::Send(_)), is_done, "{step:?}");
        if !is_done {
            assert_eq!(step, Step::Done(BumpEnd::Failed(Failure::Down)));
        }
    }
}

/// The version to which a bump moves a tag whose copies have these items; the error that it ends with otherwise.
fn bumped(wall: u64, copies: bool, items: &[&Item]) -> Result<u64, Failure> {
    let replies = items.iter().map(|item| ServerReply::Item((*item).clone())).collect();
    let (mut bump, _) = on(wall, copies, Bump::start);
    match on(wall, copies, |inputs| bump.resume(Event::Replies(replies), inputs)) {
        Step::Send(commands) => {
            assert_eq!(commands.len(), items.len(), "each copy");
            let Operation::Store { value, flags, .. } = &commands[0].operation else {
                panic!("{commands:?}")
            };
            let read = crate::guard::read_tag(&value.body, *flags, Now { wall, mono: 0 });
            Ok(read.expect("what a bump leaves is a version").0)
        }
        Step::Done(BumpEnd::Failed(failure)) => Err(failure),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_bump_leaves_a_version_that_no_value_was_sealed_with_whatever_it_finds() {
    const DAY: u64 = 86_400_000;
    let wall = fixtures::WALL;
    let now = Now { wall, mono: 0 };
    let item = |value: String, flags| Item { flags, ..fixtures::item(value, 7) };
    let no_version =
        ["", "garbage", "+5", "5 ", "0", "17592186044415", "17592186044416", "99999999999999999999"];
    let mut found: Vec<Item> = no_version.map(|value| item(value.to_owned(), 0)).into();
    found.push(item((wall + 7 * DAY).to_string(), 0));
    found.push(item(wall.to_string(), 1 << 20));
    for lost in &found {
        assert_eq!(version_of(lost, 0, now), None, "{lost:?}");
        assert_eq!(bumped(wall, false, &[lost]).map(version_millis), Ok(wall));
        assert_eq!(bumped(wall, true, &[lost, lost]), Ok(wall));
        // The other copy has a version, also one of a clock that is ahead.
        for (ms, to) in [(wall - 5, wall), (wall + DAY - 1, wall + DAY)] {
            let valid = item(ms.to_string(), 0);
            assert_eq!(bumped(wall, true, &[lost, &valid]), Ok(to));
            assert_eq!(bumped(wall, true, &[&valid, lost]), Ok(to));
        }
    }
    let ahead = item((wall + 5).to_string(), 9);
    assert_eq!(bumped(wall, false, &[&ahead]), Ok(version(wall + 6, 9)));
    // There is no later version.
    let last = (1 << MS_BITS) - 1;
    for wall in [last - 1, last, last + 1, u64::MAX] {
        let latest = item(last.to_string(), 0);
        assert_eq!(bumped(wall, false, &[&latest]), Err(Failure::Refused));
        let created = bumped(wall, false, &[&item(String::new(), 0)]);
        assert_eq!(created.is_ok(), wall <= last);
    }
}
