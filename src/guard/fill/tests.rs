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
    at(0, |inputs| MissToken::of_stub(SEEN, StubId::of(SEEN.number), smallvec![50], inputs))
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
fn a_fill_replaces_a_value_that_was_out_of_date_before_its_miss_and_stored_over_the_same_stub() {
    let cases = [
        (sealed(49, 11, false), "50", true),
        (sealed(50, 11, false), "50", false),
        (sealed(49, 11, false), "51", false),
        (sealed(49, 12, false), "50", false),
        (sealed(49, 0, false), "50", false),
        // Its writer knew of a bump that this reader has not seen.
        (sealed(51, 11, false), "50", false),
        (sealed(49, 11, true), "50", false),
        (after_restart(sealed(49, 11, false)), "50", false),
    ];
    for (existing, tag, replaces) in cases {
        let (mut fill, step) = at(0, |inputs| Fill::start(&token(), new_value("7"), false, inputs));
        let Step::Send(commands) = step else { panic!("{step:?}") };
        assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(11), Some(50)));
        let mut resume = |replies: Replies| at(1, |inputs| fill.resume(Event::Replies(replies), inputs));
        let Step::Send(commands) = resume(smallvec![ServerReply::Exists]) else { panic!("no further read") };
        assert_eq!(commands[0], get(ItemRef::Value));
        let end = resume(smallvec![existing.clone(), ServerReply::Absent, found(tag, 3)]);
        match (replaces, end) {
            (true, Step::Send(commands)) => {
                assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(20), Some(50)))
            }
            (false, end) => assert_eq!(end, Step::Done(FillEnd::Dropped { exists: true }), "{existing:?}"),
            (true, end) => panic!("{end:?}"),
        }
    }
}

#[test]
fn an_outdated_fill_does_not_replace_a_renewed_stub() {
    for (tag, stored) in [("50", true), ("51", false)] {
        let (mut fill, _) = at(0, |inputs| Fill::start(&token(), new_value("7"), false, inputs));
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
        let (started, step) = Fill::start(&seen, new_value("7"), false, inputs);
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
    let (mut fill, _) = at(0, |inputs| Fill::start(&token(), new_value("7"), false, inputs));
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
        let (mut fill, step) = at(0, |inputs| Fill::start(&token(), new_value("7"), true, inputs));
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
        at(5, |inputs| Fill::start(token, new_value("v"), false, &Inputs { fence, tags: &[], ..*inputs }).1)
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
