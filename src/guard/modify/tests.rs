use bytes::{Bytes, BytesMut};

use super::*;
use crate::guard::command::{GetFlags, StoreMode, delete};
use crate::guard::envelope::{Envelope, Header, LockRecord, Opened, TagName};
use crate::guard::expiry::Expiry;
use crate::guard::fixtures::{self, at, cas, found, inputs, new_value, sealed_store};
use crate::guard::new_value::NewValue;
use crate::guard::policy::Policy;
use crate::guard::tags::get_tag;

#[test]
fn a_count_that_is_written_a_second_late_does_not_extend_the_ttl() {
    let policy = Policy::default();
    let inputs = inputs(&policy, &[]);
    let item = |value, number, ttl| ServerReply::Item(Item { ttl, ..fixtures::item(value, number) });
    // Beyond thirty days the exptime is Unix time.
    let month = 60 * 60 * 24 * 30;
    for (ttl, sent) in [(90, [90, 89]), (month + 90, [1_702_592_090, 1_702_592_089])] {
        let (mut modify, _) = Modify::start(Change::Count(Count { delta: 1, ..Count::default() }), &inputs);
        let read = Event::Replies(smallvec![item("7", 1, Some(ttl))]);
        let Step::Send(commands) = modify.resume(read, &inputs) else { panic!("no store") };
        assert!(
            matches!(commands[1].operation, Operation::Store { exptime, .. } if exptime == sent[0]),
            "{commands:?}"
        );
        let replies = smallvec![item("", 1, Some(ttl - 1)), ServerReply::Stored(cas(2))];
        let Step::Send(commands) = modify.resume(Event::Replies(replies), &inputs) else {
            panic!("its TTL is not restored")
        };
        let Operation::Get(GetFlags { touch, .. }) = commands[0].operation else { panic!("{commands:?}") };
        assert_eq!(touch, Some(sent[1]));
        let end = modify.resume(Event::Replies(smallvec![item("", 2, Some(ttl))]), &inputs);
        let counted = Counted { number: 8, cas: cas(2), ttl: Some(ttl), created: false };
        assert_eq!(end, Step::Done(ModifyEnd::Counted(counted)));
    }
}

#[test]
fn a_fill_of_another_sidecars_win_uses_the_lock_only_if_it_is_older_than_the_mark() {
    let policy = Policy::default();
    let name = TagName::from_slice(b"posts");
    let tags = [name.clone()];
    let inputs = inputs(&policy, &tags);
    let item =
        |value: Bytes, number, stale| ServerReply::Item(Item { stale, ..fixtures::item(value, number) });
    let versions = |version| [(name.clone(), version)].into_iter().collect();
    // Sealed at 100, won at 200, and bumped to 300 since.
    let mut old = BytesMut::new();
    Envelope { stale_for: 60, built_at: 1, rebuild: 1, fence: 0, tags: versions(100) }
        .seal(&mut old)
        .unwrap();
    old.extend_from_slice(b"old");
    let mut record = BytesMut::new();
    LockRecord { granted_at: 1, sidecar: 9, fence: 0, tags: versions(200) }.encode(&mut record).unwrap();
    let (old, record) = (old.freeze(), record.freeze());
    for (lock, sealed, unlocks) in [(Some(8), 200, Some(8)), (Some(10), 100, None), (None, 100, None)] {
        let change =
            Change::Cas { number: 9, new_value: new_value("new"), sees_stale: true, invalidate: false };
        let (mut modify, commands) = Modify::start(change, &inputs);
        assert_eq!(commands.last(), Some(&get(ItemRef::Lock)));
        let lock = lock.map_or(ServerReply::Absent, |number| item(record.clone(), number, false));
        let replies = smallvec![item(old.clone(), 9, true), item(Bytes::from_static(b"300"), 3, false), lock];
        let Step::Send(commands) = modify.resume(Event::Replies(replies), &inputs) else {
            panic!("no store")
        };
        let Operation::Store { value, cas: Some(Cas { number: 9, .. }), .. } = &commands[0].operation else {
            panic!("{commands:?}")
        };
        let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { panic!("{value:?}") };
        assert_eq!(envelope.tags().map(|(_, version)| version).collect::<Vec<_>>(), [sealed]);
        let unlock = unlocks.map(|number| delete(ItemRef::Lock, Some(cas(number))));
        assert_eq!(commands.get(1), unlock.as_ref());
    }
}

/// Inputs for a server with room for values of this size, under a rule with these tags.
fn on<T>(max_value: usize, tags: &[TagName], run: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let policy = Policy::default();
    run(&Inputs { max_value, ..inputs(&policy, tags) })
}

#[test]
fn a_value_that_may_be_as_old_as_a_miss_replaces_only_what_the_miss_saw() {
    let create = Some((Expiry::Seconds(60), 5));
    let count = Change::Count(Count { create, ..Count::default() });
    for (change, current) in [(Change::Replace(new_value("v")), "new"), (count, "")] {
        for (observed, stored_over) in [(None, Some(7)), (Some(7), Some(7)), (Some(6), None), (Some(0), None)]
        {
            let observed = observed.map(|number| Observed { cas: cas(number), ..Observed::none() });
            let (mut modify, commands) =
                on(1 << 20, &[], |inputs| Modify::with_condition(change.clone(), observed.clone(), inputs));
            // A stub could not be stored over.
            let leaves_stub =
                matches!(commands[0].operation, Operation::Get(GetFlags { vivify: Some(_), .. }));
            assert_eq!(leaves_stub, current.is_empty() && observed.is_none());
            let mut resume =
                |reply| on(1 << 20, &[], |inputs| modify.resume(Event::Replies(smallvec![reply]), inputs));
            let step = resume(found(current, 7));
            let Some(stored_over) = stored_over else {
                // For a `replace` there is an item, which is newer.
                let end = if current.is_empty() { ModifyEnd::NotStored } else { ModifyEnd::Dropped };
                assert_eq!(step, Step::Done(end));
                continue;
            };
            let Step::Send(commands) = step else { panic!("{step:?}") };
            let Operation::Store { cas, .. } = commands[0].operation else { panic!("{commands:?}") };
            assert_eq!(cas.map(|cas| cas.number), Some(stored_over));
            // Another writer wins the race.
            let Step::Send(_) = resume(ServerReply::Exists) else { panic!("no further read") };
            let again = resume(found(current, 8));
            assert_eq!(matches!(again, Step::Done(_)), observed.is_some(), "{again:?}");
        }
    }
}

#[test]
fn a_count_that_may_be_as_old_as_a_miss_does_not_create_an_absent_item() {
    let create = Some((Expiry::Seconds(60), 5));
    let count = Change::Count(Count { create, ..Count::default() });
    let observed = Some(Observed { cas: cas(7), ..Observed::none() });
    let (mut modify, _) = on(1 << 20, &[], |inputs| Modify::with_condition(count, observed, inputs));
    let end =
        on(1 << 20, &[], |inputs| modify.resume(Event::Replies(smallvec![ServerReply::Absent]), inputs));
    assert_eq!(end, Step::Done(ModifyEnd::NotStored));
}

#[test]
fn what_a_header_makes_too_large_leaves_no_stub() {
    let tags = [TagName::from_slice(b"posts")];
    let max_value = 1000;
    let leaves_stub = |commands: &Commands| {
        matches!(commands[0].operation, Operation::Get(GetFlags { vivify: Some(_), .. }))
    };
    let mut stored = [false, false];
    for length in 1400..1600 {
        let change = Change::Add(new_value(vec![b'v'; length]));
        let (mut modify, commands) = on(max_value, &tags, |inputs| Modify::start(change, inputs));
        let replies = smallvec![
            if leaves_stub(&commands) { found("", 7) } else { ServerReply::Absent },
            found("100", 3)
        ];
        match on(max_value, &tags, |inputs| modify.resume(Event::Replies(replies), inputs)) {
            Step::Send(_) => assert!(leaves_stub(&commands), "{length}"),
            Step::Done(end) => {
                assert_eq!((end, leaves_stub(&commands)), (ModifyEnd::TooLarge, false), "{length}")
            }
            other => panic!("{other:?}"),
        }
        stored[usize::from(leaves_stub(&commands))] = true;
    }
    assert_eq!(stored, [true; 2], "both were tried");
}

#[test]
fn a_command_that_creates_an_item_stores_over_a_stub() {
    let create = Some((Expiry::Seconds(60), 5));
    for change in [Change::Add(new_value("7")), Change::Count(Count { create, ..Count::default() })] {
        let (mut modify, commands) = at(0, |inputs| Modify::start(change, inputs));
        assert!(
            matches!(commands[0].operation, Operation::Get(GetFlags { vivify: Some(6), .. })),
            "{commands:?}"
        );
        let replies = Event::Replies(smallvec![found("", 11), found("50", 3)]);
        let Step::Send(commands) = at(1, |inputs| modify.resume(replies, inputs)) else { panic!("no store") };
        assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(11), Some(50)));
    }
}

#[test]
fn a_change_that_the_server_would_refuse_is_not_sent_because_the_refusal_drops_the_old_value() {
    // What memcached itself adds, besides the key: see `Inputs::refuses`.
    let max_value = 1000;
    let largest = max_value + 512 - 59;
    let value = |length, flags| NewValue { flags, ..new_value(vec![b'v'; length]) };
    let more = |length| Bytes::from(vec![b'v'; length]);
    let old = ServerReply::Item(Item { flags: 5, ..fixtures::item("old", 7) });
    for (flags, room) in [(0, largest), (5, largest - 4)] {
        for excess in [0, 1] {
            let length = room + excess;
            let cas = |new_value| Change::Cas { number: 7, new_value, sees_stale: false, invalidate: false };
            // The old value keeps its flags when it is extended.
            let added = largest - 4 - "old".len() + excess;
            let (compare, explicit, create) = (None, None, None);
            let append = Change::Append { more: more(added), compare, explicit, create: create.clone() };
            let prepend = Change::Prepend { more: more(added), compare, explicit, create };
            for (change, refused) in [
                (Change::Replace(value(length, flags)), ModifyEnd::TooLarge),
                (cas(value(length, flags)), ModifyEnd::TooLarge),
                (append, ModifyEnd::NotStored),
                (prepend, ModifyEnd::NotStored),
            ] {
                let (mut modify, _) = on(max_value, &[], |inputs| Modify::start(change, inputs));
                let replies = Event::Replies(smallvec![old.clone()]);
                let step = on(max_value, &[], |inputs| modify.resume(replies, inputs));
                match excess {
                    0 => assert!(matches!(step, Step::Send(_)), "{refused:?} of {length}: {step:?}"),
                    _ => assert_eq!(step, Step::Done(refused), "{length}"),
                }
            }
        }
    }
}

#[test]
fn an_item_that_is_newer_than_the_tags_read_with_it_is_judged_by_those_read_behind_it() {
    let newer = || ServerReply::Item(fixtures::sealed(51, 12));
    for (again, is_there) in [("51", true), ("52", false)] {
        let (mut modify, _) = at(0, |inputs| Modify::start(Change::Add(new_value("7")), inputs));
        let mut resume = |replies| at(1, |inputs| modify.resume(Event::Replies(replies), inputs));
        let step = resume(smallvec![newer(), found("50", 3)]);
        assert_eq!(step, Step::Send(smallvec![get_tag(ItemRef::Tag(0))]));
        match resume(smallvec![found(again, 4)]) {
            Step::Send(commands) if !is_there => {
                assert_eq!(sealed_store(&commands), (StoreMode::Set, Some(12), Some(52)));
            }
            step => assert_eq!((step, is_there), (Step::Done(ModifyEnd::NotStored), true)),
        }
    }
}

#[test]
fn what_is_stored_as_stale_over_a_value_that_is_being_rebuilt_leaves_the_lock_of_the_rebuild() {
    let policy = Policy::default();
    let inputs = inputs(&policy, &[]);
    let marked = || ServerReply::Item(Item { stale: true, ..fixtures::item("old", 9) });
    for (number, unlocks) in [(9, true), (8, false)] {
        let change = Change::Cas { number, new_value: new_value("v"), sees_stale: true, invalidate: true };
        let (mut modify, _) = Modify::start(change, &inputs);
        let replies = smallvec![marked(), found("a lock", 7)];
        let Step::Send(commands) = modify.resume(Event::Replies(replies), &inputs) else {
            panic!("no store")
        };
        assert_eq!(commands[1..].contains(&delete(ItemRef::Lock, Some(cas(7)))), unlocks, "{commands:?}");
    }
}
