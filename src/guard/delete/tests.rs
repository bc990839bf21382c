use bytes::BytesMut;

use super::*;
use crate::guard::command::Item;
use crate::guard::envelope::{Envelope, Tags};
use crate::guard::fixtures::{self, cas, inputs};
use crate::guard::policy::Policy;

#[test]
fn a_delete_that_leaves_a_stale_value_does_not_extend_its_ttl() {
    let policy = Policy { on_delete: OnInvalidate::Stale, ..Policy::default() };
    let inputs = inputs(&policy, &[]);
    let mut value = BytesMut::new();
    Envelope { stale_for: 60, built_at: 1, rebuild: 1, fence: 0, tags: Tags::new() }
        .seal(&mut value)
        .unwrap();
    value.extend_from_slice(b"old");
    let value = value.freeze();
    for (ttl, seconds) in [(None, Some(60)), (Some(90), Some(60)), (Some(60), None), (Some(1), None)] {
        let item = Item { ttl, ..fixtures::item(value.clone(), 7) };
        let (mut delete, _) = Delete::start(&inputs);
        let step = delete.resume(Event::Replies(smallvec![ServerReply::Item(item)]), &inputs);
        let Step::Send(commands) = step else { panic!("{step:?}") };
        let mark = Operation::MarkStale { seconds, cas: Some(cas(7)), explicit: None };
        assert_eq!(commands[1].operation, mark, "{ttl:?}: setting the same TTL again would extend it");
    }
}

#[test]
fn a_delete_with_a_cas_deletes_only_the_lock_that_it_has_read() {
    let policy = Policy::default();
    let inputs = inputs(&policy, &[]);
    let item = |number| ServerReply::Item(Item { stale: true, ..fixtures::item("old", number) });
    for stale in [false, true] {
        for (lock, unlocks) in [(item(5), Some(5)), (ServerReply::Absent, None)] {
            let removal = Removal { compare: Some(7), stale, ..Removal::default() };
            let (mut delete, _) = Delete::with_removal(removal, &inputs);
            let step = delete.resume(Event::Replies(smallvec![item(7), lock]), &inputs);
            let Step::Send(commands) = step else { panic!("{step:?}") };
            let unlock = unlocks.map(|number| super::delete(ItemRef::Lock, Some(cas(number))));
            // The lock comes first: whoever finds it after a mark of its own has not read this one.
            assert_eq!(commands.iter().rev().nth(1), unlock.as_ref());
            // Another client has replaced it: the item is read again and has another CAS.
            let replies = commands.iter().map(|_| ServerReply::Exists).collect();
            let Step::Send(_) = delete.resume(Event::Replies(replies), &inputs) else {
                panic!("no further read")
            };
            let end = delete.resume(Event::Replies(smallvec![item(9), item(6)]), &inputs);
            assert_eq!(end, Step::Done(DeleteEnd::Exists));
        }
    }
}

#[test]
fn a_delete_that_loses_every_race_is_not_acknowledged() {
    let policy = Policy { on_delete: OnInvalidate::Stale, ..Policy::default() };
    let inputs = inputs(&policy, &[]);
    let item = |number| ServerReply::Item(fixtures::item("old", number));
    let (mut delete, _) = Delete::start(&inputs);
    for round in 0..=u64::from(MAX_ROUNDS) {
        let marks = delete.resume(Event::Replies(smallvec![item(round)]), &inputs);
        let Step::Send(commands) = marks else { panic!("round {round}: {marks:?}") };
        assert!(matches!(commands[1].operation, Operation::MarkStale { .. }), "{commands:?}");
        let replies = commands.iter().map(|_| ServerReply::Exists).collect();
        let step = delete.resume(Event::Replies(replies), &inputs);
        match round == u64::from(MAX_ROUNDS) {
            true => assert_eq!(step, Step::Done(DeleteEnd::Failed(Failure::Overloaded))),
            false => assert!(matches!(step, Step::Send(_)), "round {round}: {step:?}"),
        }
    }
}

#[test]
fn a_value_that_ends_with_its_exptime_is_deleted_as_present_until_it_is_stale() {
    let policy = Policy { stale_before_expiry: true, ..Policy::default() };
    let inputs = inputs(&policy, &[]);
    let mut sealed = BytesMut::new();
    Envelope { stale_for: 20, built_at: 1, rebuild: 1, fence: 0, tags: Tags::new() }
        .seal(&mut sealed)
        .unwrap();
    sealed.extend_from_slice(b"v");
    // Both are within the 60 s of the rule.
    for (ttl, end) in [(40, DeleteEnd::Deleted), (20, DeleteEnd::NotFound)] {
        let (mut delete, commands) = Delete::start(&inputs);
        assert_eq!(commands[0], get(ItemRef::Value), "the header is needed");
        let item = Item { ttl: Some(ttl), ..fixtures::item(sealed.clone().freeze(), 7) };
        let replies = smallvec![ServerReply::Item(item), ServerReply::Done, ServerReply::Absent];
        assert_eq!(delete.resume(Event::Replies(replies), &inputs), Step::Done(end), "{ttl}");
    }
}
