use bytes::BytesMut;
use smallvec::smallvec;

use super::*;
use crate::guard::command::{Cas, Item, Replies};
use crate::guard::envelope::{Envelope, built_at};
use crate::guard::fixtures::{self, at, cas, found, new_value, sealed_store};
use crate::guard::stub::StubId;

const SEEN: Cas = cas(11);

/// The token of a miss over stub 11, while the tag had version 50.
fn token() -> MissToken {
    at(0, |inputs| MissToken::of_stub(SEEN, (StubId::of(SEEN.number), 0), smallvec![50], inputs))
}

/// A value sealed at this version and stored over the stub with this number.
fn sealed(version: u64, stub: u64, stale: bool) -> ServerReply {
    let tags = [(TagName::from_slice(b"tag"), version)].into_iter().collect();
    let built_at = built_at(7, StubId::of(stub).number());
    let mut value = BytesMut::new();
    Envelope { stale_for: 60, built_at, rebuild: 0, fence: 0, tags }.seal(&mut value).unwrap();
    let item = fixtures::item("", 20);
    ServerReply::Item(Item { size: value.len(), value: value.freeze(), stale, ..item })
}

/// The same, read from a server that has been restarted.
fn after_restart(existing: ServerReply) -> ServerReply {
    let ServerReply::Item(item) = existing else { panic!("not an item") };
    ServerReply::Item(Item { cas: Cas { epoch: 2, ..item.cas }, ..item })
}

#[test]
fn a_set_replaces_what_was_stored_over_its_stub_unless_a_tag_has_changed_and_others_only_what_is_out_of_date()
{
    const ALL: [bool; 3] = [true; 3];
    const SET: [bool; 3] = [true, false, false];
    const NONE: [bool; 3] = [false; 3];
    let cases = [
        (sealed(49, 11, false), "50", ALL),
        (sealed(50, 11, false), "50", SET),
        (sealed(49, 11, false), "51", NONE),
        (sealed(49, 12, false), "50", NONE),
        (sealed(49, 0, false), "50", NONE),
        (found("of another program", 20), "50", NONE),
        // Its writer knew of a bump that this reader has not seen.
        (sealed(51, 11, false), "50", NONE),
        (sealed(49, 11, true), "50", NONE),
        (after_restart(sealed(49, 11, false)), "50", NONE),
    ];
    for (existing, tag, replaces) in cases {
        for (kind, replaces) in [FillKind::Set, FillKind::Compare, FillKind::Add].into_iter().zip(replaces) {
            let (mut fill, step) = at(0, |inputs| Fill::start(&token(), new_value("7"), kind, inputs));
            let mut resume = |replies: Replies| at(1, |inputs| fill.resume(Event::Replies(replies), inputs));
            let step = if kind == FillKind::Add { resume(smallvec![found("50", 2)]) } else { step };
            let Step::Send(commands) = step else { panic!("{step:?}") };
            assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(11), Some(50)));
            let Step::Send(commands) = resume(smallvec![ServerReply::Exists]) else { panic!("no read") };
            assert_eq!(commands[0], get(ItemRef::Value));
            let end = resume(smallvec![existing.clone(), ServerReply::Absent, found(tag, 3)]);
            match (replaces, end) {
                (true, Step::Send(commands)) => {
                    assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(20), Some(50)))
                }
                (false, end) => {
                    assert_eq!(end, Step::Done(FillEnd::Dropped { exists: true }), "{kind:?} {existing:?}")
                }
                (true, end) => panic!("{kind:?} {existing:?}: {end:?}"),
            }
        }
    }
}

#[test]
fn a_set_that_loses_every_race_against_other_sets_fails() {
    let (mut fill, _) = at(0, |inputs| Fill::start(&token(), new_value("7"), FillKind::Set, inputs));
    let mut resume = |replies: Replies| at(1, |inputs| fill.resume(Event::Replies(replies), inputs));
    for _ in 0..MAX_ROUNDS {
        resume(smallvec![ServerReply::Exists]);
        resume(smallvec![sealed(50, 11, false), ServerReply::Absent, found("50", 3)]);
    }
    resume(smallvec![ServerReply::Exists]);
    let end = resume(smallvec![sealed(50, 11, false), ServerReply::Absent, found("50", 3)]);
    assert_eq!(end, Step::Done(FillEnd::Failed(Failure::Overloaded)));
}

#[test]
fn the_winner_of_a_stale_value_replaces_what_was_stored_over_its_mark() {
    let lease = MissToken { stub: None, lock: Some(cas(9)), ..token() };
    for (origin, stored) in [(11, true), (12, false)] {
        let (mut fill, _) = at(0, |inputs| Fill::start(&lease, new_value("7"), FillKind::Set, inputs));
        let mut resume = |replies: Replies| at(1, |inputs| fill.resume(Event::Replies(replies), inputs));
        resume(smallvec![ServerReply::Exists, ServerReply::Done]);
        let end = resume(smallvec![sealed(50, origin, false), ServerReply::Absent, found("50", 3)]);
        assert_eq!(matches!(end, Step::Send(_)), stored, "{end:?}");
    }
}

#[test]
fn an_outdated_fill_does_not_replace_a_renewed_stub() {
    for (tag, stored) in [("50", true), ("51", false)] {
        let (mut fill, _) = at(0, |inputs| Fill::start(&token(), new_value("7"), FillKind::Set, inputs));
        let mut resume = |replies: Replies| at(1, |inputs| fill.resume(Event::Replies(replies), inputs));
        resume(smallvec![ServerReply::Exists]);
        let renewed = fixtures::item("", 12);
        let renewed = ServerReply::Item(Item { flags: StubId::of(SEEN.number).flags(), ..renewed });
        let end = resume(smallvec![renewed, ServerReply::Absent, found(tag, 3)]);
        assert_eq!(matches!(end, Step::Send(_)), stored, "{end:?}");
    }
}

#[test]
fn a_value_without_room_for_a_header_is_stored_over_its_renewed_stub() {
    let run = |mono, run: &mut dyn FnMut(&Inputs<'_>) -> Step<FillEnd>| {
        at(mono, |inputs| run(&Inputs { tags: &[], max_value: 1, ..*inputs }))
    };
    let seen = MissToken { versions: Versions::new(), ..token() };
    let mut fill = None;
    let step = run(0, &mut |inputs| {
        let (started, step) = Fill::start(&seen, new_value("7"), FillKind::Set, inputs);
        fill = Some(started);
        step
    });
    assert!(matches!(step, Step::Send(_)), "{step:?}");
    let mut fill = fill.unwrap();
    let mut resume =
        |replies: Replies| run(1, &mut |inputs| fill.resume(Event::Replies(replies.clone()), inputs));
    resume(smallvec![ServerReply::Exists]);
    let renewed = fixtures::item("", 12);
    let renewed = ServerReply::Item(Item { flags: StubId::of(SEEN.number).flags(), ..renewed });
    let Step::Send(commands) = resume(smallvec![renewed, ServerReply::Absent]) else { panic!("no store") };
    let Operation::Store { value, cas, .. } = &commands[0].operation else { panic!("{commands:?}") };
    assert_eq!((value.header.len(), cas.map(|cas| cas.number)), (0, Some(12)));
}

#[test]
fn a_fill_that_replaces_a_value_during_its_rebuild_deletes_the_lock_once_it_is_stored() {
    let (mut fill, _) = at(0, |inputs| Fill::start(&token(), new_value("7"), FillKind::Set, inputs));
    let mut resume = |replies: Replies| at(1, |inputs| fill.resume(Event::Replies(replies), inputs));
    resume(smallvec![ServerReply::Exists]);
    let Step::Send(commands) = resume(smallvec![sealed(49, 11, false), found("lock", 9), found("50", 3)])
    else {
        panic!("no store")
    };
    assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(20), Some(50)));
    let stored = cas(30);
    let unlock = resume(smallvec![ServerReply::Stored(stored)]);
    let lock = Some(cas(9));
    assert_eq!(unlock, Step::Send(smallvec![delete(ItemRef::Lock, lock)]));
    let end = resume(smallvec![ServerReply::Done]);
    assert_eq!(end, Step::Done(FillEnd::Stored { cas: stored, plain: false }));
}

#[test]
fn an_add_is_stored_only_if_no_tag_has_moved_since_its_miss() {
    for (tag, stored) in [("50", true), ("51", false)] {
        let (mut fill, step) = at(0, |inputs| Fill::start(&token(), new_value("7"), FillKind::Add, inputs));
        let Step::Send(commands) = step else { panic!("{step:?}") };
        assert!(commands.iter().all(|command| command.item == ItemRef::Tag(0)), "{commands:?}");
        let replies = Event::Replies(smallvec![found(tag, 3)]);
        match at(1, |inputs| fill.resume(replies, inputs)) {
            Step::Send(commands) if stored => {
                assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(11), Some(50)))
            }
            end => assert_eq!((end, stored), (Step::Done(FillEnd::Outdated), false)),
        }
    }
}

#[test]
fn a_fill_is_dropped_under_another_fence_and_sealed_with_its_own() {
    let under = |fence: u64, token: &MissToken| {
        at(5, |inputs| {
            Fill::start(token, new_value("v"), FillKind::Set, &Inputs { fence, tags: &[], ..*inputs }).1
        })
    };
    let token = MissToken { fence: 7, ..token() };
    for fence in [0, 8] {
        assert_eq!(under(fence, &token), Step::Done(FillEnd::Dropped { exists: false }));
    }
    let Step::Send(commands) = under(7, &token) else { panic!("not stored") };
    let Operation::Store { value, .. } = &commands[0].operation else { panic!("{commands:?}") };
    let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { panic!("{value:?}") };
    assert_eq!(envelope.fence, 7);
}
