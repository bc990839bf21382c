use bytes::BytesMut;
use smallvec::smallvec;

use super::*;
use crate::guard::command::Operation;
use crate::guard::envelope::{Envelope, Header, Opened, Tags, built_at};
use crate::guard::fixtures::{self, at, found, new_value, sealed_store};
use crate::guard::policy::Policy;
use crate::guard::tags::get_tag;

#[test]
fn a_set_is_stored_only_over_the_item_that_it_read_and_dropped_if_a_tag_has_changed_since_its_first_read() {
    let (mut set, commands) = at(0, |inputs| Set::start(new_value("7"), inputs));
    assert_eq!(commands[0], get_or_stub(&Policy::default()));
    let mut resume = |mono, replies: &[ServerReply]| {
        let replies = Event::Replies(replies.iter().cloned().collect());
        at(mono, |inputs| set.resume(replies, inputs))
    };
    let Step::Send(commands) = resume(1, &[found("", 11), found("50", 3)]) else { panic!("no store") };
    assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(11), Some(50)));
    // Other writers win the race, for as long as the set is repeated.
    for (mono, lost) in [(2, ServerReply::Exists), (3, ServerReply::Absent)] {
        let Step::Send(commands) = resume(mono, &[lost]) else { panic!("no further read") };
        assert_eq!((commands.len(), &commands[0]), (2, &get_or_stub(&Policy::default())));
        let again = resume(mono, &[found("another's", 12), found("50", 3)]);
        let Step::Send(commands) = again else { panic!("no store") };
        assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(12), Some(50)));
    }
    resume(4, &[ServerReply::Exists]);
    let moved = resume(4, &[found("another's", 13), found("51", 4)]);
    assert_eq!(moved, Step::Done(SetEnd::Dropped), "it would be stale, and the existing value is fresh");
}

#[test]
fn a_set_that_loses_every_race_fails_and_one_that_is_dropped_leaves_no_stub() {
    let (mut set, _) = at(0, |inputs| Set::start(new_value("7"), inputs));
    let mut resume = |mono, replies: &[ServerReply]| {
        let replies = Event::Replies(replies.iter().cloned().collect());
        at(mono, |inputs| set.resume(replies, inputs))
    };
    resume(1, &[found("", 11), found("50", 3)]);
    resume(1, &[ServerReply::Exists]);
    let stub = fixtures::item("", 12);
    let cas = stub.cas;
    let own = ServerReply::Item(Item { won: true, ..stub });
    let left = resume(2, &[own, found("51", 4)]);
    assert_eq!(left, Step::Send(smallvec![delete(ItemRef::Value, Some(cas))]));
    assert_eq!(resume(3, &[ServerReply::Done]), Step::Done(SetEnd::Dropped));
    let (mut set, _) = at(0, |inputs| Set::start(new_value("7"), inputs));
    let mut resume = |mono, replies: &[ServerReply]| {
        let replies = Event::Replies(replies.iter().cloned().collect());
        at(mono, |inputs| set.resume(replies, inputs))
    };
    resume(1, &[found("", 11), found("50", 3)]);
    let end = Step::Done(SetEnd::Failed(Failure::Overloaded));
    assert_eq!(resume(MAX_RETRY_MS, &[ServerReply::Exists]), end);
}

#[test]
fn what_a_set_stores_records_what_it_follows() {
    let header = |stub: u64| {
        let mut header = BytesMut::new();
        let built_at = built_at(7, StubId::of(stub).number());
        Envelope { stale_for: 60, built_at, rebuild: 0, fence: 0, tags: Tags::new() }
            .seal(&mut header)
            .unwrap();
        header.freeze()
    };
    let stub = fixtures::item("", 11);
    let renewed = Item { flags: StubId::of(9).flags(), ..stub.clone() };
    let value = fixtures::item(header(9), 12);
    // A mark may be a delete.
    let marked = Item { stale: true, ..value.clone() };
    for (found, follows) in
        [(stub, 11), (renewed, 9), (value, 9), (marked, 12), (fixtures::item("of another program", 13), 13)]
    {
        let (mut set, _) = at(0, |inputs| Set::start(new_value("7"), inputs));
        let replies = smallvec![ServerReply::Item(found.clone()), fixtures::found("50", 3)];
        let Step::Send(commands) = at(1, |inputs| set.resume(Event::Replies(replies), inputs)) else {
            panic!("no store")
        };
        let Operation::Store { value, .. } = &commands[0].operation else { panic!("{commands:?}") };
        let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { panic!("{value:?}") };
        assert_eq!(envelope.stub(), StubId::of(follows).number(), "{found:?}");
    }
}

#[test]
fn a_set_that_was_begun_before_a_bump_does_not_replace_what_was_set_behind_it() {
    for (again, stored) in [("51", None), ("50", Some(50))] {
        let (mut set, _) = at(0, |inputs| Set::start(new_value("7"), inputs));
        let mut resume = |replies: &[ServerReply]| {
            let replies = Event::Replies(replies.iter().cloned().collect());
            at(1, |inputs| set.resume(replies, inputs))
        };
        // The tag was read before the bump, the key after it. Or the tag was lost, and created anew by a clock that is behind.
        let newer = ServerReply::Item(fixtures::sealed(51, 12));
        let Step::Send(commands) = resume(&[newer, found("50", 3)]) else { panic!("no further read") };
        assert_eq!(commands[..], [get_tag(ItemRef::Tag(0))]);
        match (resume(&[found(again, 4)]), stored) {
            (Step::Send(commands), Some(version)) => {
                assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(12), Some(version)));
            }
            (step, _) => assert_eq!((step, stored), (Step::Done(SetEnd::Dropped), None)),
        }
    }
}
