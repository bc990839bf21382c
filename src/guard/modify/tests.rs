use super::super::Now;
use super::*;
use crate::guard::leases::Observed;

#[test]
fn a_value_counts_as_a_number_when_memcached_would_count_with_it() {
    for (value, counted) in [
        ("10", Some((11, "11"))),
        (" 7", Some((8, "8 "))),
        ("+4", Some((5, "5 "))),
        ("5 x", Some((6, "6  "))),
        ("995 -3", Some((996, "996   "))),
        ("5\0x", Some((6, "6  "))),
        ("0000000000000000000000007", Some((8, "8                        "))),
        ("18446744073709551615", Some((0, "0                   "))),
        ("18446744073709551616", None),
        ("-3", None),
        ("5x", None),
        ("", None),
    ] {
        let counted = counted.map(|(number, text): (u64, &'static str)| (number, Bytes::from(text)));
        assert_eq!(count(value.as_bytes(), false, 1), counted, "{value:?}");
    }
}

#[test]
fn a_cas_over_a_plain_value_does_not_vouch_for_a_tag_that_it_names() {
    let policy = crate::guard::Policy::default();
    let tags = [b"own".as_slice().into(), b"named".as_slice().into()];
    let scene = Inputs {
        policy: &policy,
        tags: &tags,
        sidecar: 1,
        room: 1 << 20,
        learnt: 1,
        copies: false,
        now: Now { wall: 1_700_000_000_000, mono: 5 },
        patient: false,
        chance: 1.0,
    };
    let hit = Hit { header: Bytes::new(), payload: Bytes::from_static(b"large"), ..Hit::nothing() };
    // Both have moved since the plain value was read; only the first is one of which it was known that it has none.
    let versions = Versions::from_slice(&[7, 1_700_000_000_000]);
    let sealed = |name: &TagName| sealed_version(name, &hit, Some(&versions), &scene);
    assert_eq!([sealed(&tags[0]), sealed(&tags[1])], [7, NEVER]);
}

#[test]
fn a_count_that_is_written_a_second_late_ends_no_later_than_before() {
    let policy = crate::guard::Policy::default();
    let now = Now { wall: 1_700_000_000_000, mono: 5 };
    let scene = Inputs {
        policy: &policy,
        tags: &[],
        sidecar: 1,
        room: 1 << 20,
        learnt: 0,
        copies: false,
        now,
        patient: false,
        chance: 1.0,
    };
    let cas = |number| Cas { number, epoch: 1 };
    let item = |value: &'static str, number, ttl| {
        let value = Bytes::from(value);
        let size = value.len();
        ServerReply::Item(Item {
            value,
            size,
            flags: 0,
            cas: cas(number),
            ttl,
            won: false,
            stale: false,
            usage: Usage::default(),
        })
    };
    // Beyond thirty days memcached wants to be told the moment.
    let month = 60 * 60 * 24 * 30;
    for (ttl, sent) in [(90, [90, 89]), (month + 90, [1_702_592_090, 1_702_592_089])] {
        let (mut modify, _) = Modify::start(Change::Count(Count { delta: 1, ..Count::default() }), &scene);
        let read = Event::Replies(smallvec![item("7", 1, Some(ttl))]);
        let Step::Send(asks) = modify.resume(read, &scene) else { panic!("it is there") };
        assert!(matches!(asks[1].what, Operation::Store { exptime, .. } if exptime == sent[0]), "{asks:?}");
        let answers = smallvec![item("", 1, Some(ttl - 1)), ServerReply::Stored(cas(2))];
        let Step::Send(asks) = modify.resume(Event::Replies(answers), &scene) else {
            panic!("its end is put back")
        };
        let Operation::Get(GetFlags { touch, .. }) = asks[0].what else { panic!("{asks:?}") };
        assert_eq!(touch, Some(sent[1]));
        let end = modify.resume(Event::Replies(smallvec![item("", 2, Some(ttl))]), &scene);
        let counted = Counted { number: 8, cas: cas(2), ttl: Some(ttl), created: false };
        assert_eq!(end, Step::Done(ModifyEnd::Counted(counted)));
    }
}

#[test]
fn a_fill_of_anothers_win_believes_its_lock_only_if_that_is_older_than_the_mark() {
    use crate::guard::envelope::Envelope;

    let policy = crate::guard::Policy::default();
    let name = TagName::from_slice(b"posts");
    let tags = [name.clone()];
    let now = Now { wall: 1_700_000_000_000, mono: 5 };
    let (learnt, sidecar, room, copies, patient, chance) = (0, 1, 1 << 20, false, false, 1.0);
    let scene = Inputs { policy: &policy, tags: &tags, learnt, sidecar, room, copies, now, patient, chance };
    let item = |value: Bytes, number, stale| {
        let (cas, size, usage) = (Cas { number, epoch: 1 }, value.len(), Usage::default());
        ServerReply::Item(Item { value, size, flags: 0, cas, ttl: None, won: false, stale, usage })
    };
    let versions = |version| [(name.clone(), version)].into_iter().collect();
    // Sealed with 100; won when the tag was 200; and it has moved since, to 300.
    let mut old = BytesMut::new();
    Envelope { stale_for: 60, built_at: 1, rebuild: 1, tags: versions(100) }.seal(&mut old).unwrap();
    old.extend_from_slice(b"old");
    let mut record = BytesMut::new();
    LockRecord { granted_at: 1, sidecar: 9, tags: versions(200) }.encode(&mut record).unwrap();
    let (old, record) = (old.freeze(), record.freeze());
    for (lock, sealed, freed) in [(Some(8), 200, Some(8)), (Some(10), 100, None), (None, 100, None)] {
        let body = Bytes::from_static(b"new");
        let lifetime = Expiry::Seconds(60);
        let offer = NewValue { body, flags: 0, lifetime, explicit: None, tags: TagNames::new() };
        let change = Change::Cas { number: 9, offer, sees_stale: true, invalidate: false };
        let (mut modify, asks) = Modify::start(change, &scene);
        assert_eq!(asks.last(), Some(&get(ItemRef::Lock)));
        let lock = lock.map_or(ServerReply::Absent, |number| item(record.clone(), number, false));
        let answers = smallvec![item(old.clone(), 9, true), item(Bytes::from_static(b"300"), 3, false), lock];
        let Step::Send(asks) = modify.resume(Event::Replies(answers), &scene) else { panic!("it is stored") };
        let Operation::Store { value, cas: Some(Cas { number: 9, .. }), .. } = &asks[0].what else {
            panic!("{asks:?}")
        };
        let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { panic!("{value:?}") };
        assert_eq!(envelope.tags().map(|(_, version)| version).collect::<Vec<_>>(), [sealed]);
        let behind = freed.map(|number| delete(ItemRef::Lock, Some(Cas { number, epoch: 1 })));
        assert_eq!(asks.get(1), behind.as_ref());
    }
}

/// At a server with so much room, under a rule with these tags.
fn on<T>(room: usize, tags: &[TagName], run: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let policy = crate::guard::Policy::default();
    let now = Now { wall: 1_700_000_000_000, mono: 5 };
    let (learnt, sidecar, copies, patient, chance) = (0, 1, false, false, 1.0);
    run(&Inputs { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance })
}

fn item(value: &'static str, number: u64) -> ServerReply {
    let value = Bytes::from_static(value.as_bytes());
    let (cas, size, usage) = (Cas { number, epoch: 1 }, value.len(), Usage::default());
    ServerReply::Item(Item { value, size, flags: 0, cas, ttl: None, won: false, stale: false, usage })
}

fn offer(body: Bytes) -> NewValue {
    NewValue { body, flags: 0, lifetime: Expiry::Seconds(60), explicit: None, tags: TagNames::new() }
}

#[test]
fn what_may_be_as_old_as_a_miss_replaces_nothing_but_what_that_saw() {
    let create = Some((Expiry::Seconds(60), 5));
    let count = Change::Count(Count { create, ..Count::default() });
    for (change, stands) in [(Change::Replace(offer(Bytes::from_static(b"v"))), "new"), (count, "")] {
        for (over, stored_over) in [(None, Some(7)), (Some(7), Some(7)), (Some(6), None), (Some(0), None)] {
            let over = over.map(|number| Observed { cas: Cas { number, epoch: 1 }, ..Observed::none() });
            let (mut modify, asks) =
                on(1 << 20, &[], |scene| Modify::bound(change.clone(), over.clone(), scene));
            // A stub would be nobody's.
            let leaves_stub = matches!(asks[0].what, Operation::Get(GetFlags { vivify: Some(_), .. }));
            assert_eq!(leaves_stub, stands.is_empty() && over.is_none());
            let mut told =
                |answer| on(1 << 20, &[], |scene| modify.resume(Event::Replies(smallvec![answer]), scene));
            let step = told(item(stands, 7));
            let Some(stored_over) = stored_over else {
                // To a `replace` there is an item; what is there is newer.
                let end = if stands.is_empty() { ModifyEnd::NotStored } else { ModifyEnd::Dropped };
                assert_eq!(step, Step::Done(end));
                continue;
            };
            let Step::Send(asks) = step else { panic!("{step:?}") };
            let Operation::Store { cas, .. } = asks[0].what else { panic!("{asks:?}") };
            assert_eq!(cas.map(|cas| cas.number), Some(stored_over));
            // Somebody was quicker.
            let Step::Send(_) = told(ServerReply::Exists) else { panic!("it looks again") };
            let again = told(item(stands, 8));
            assert_eq!(matches!(again, Step::Done(_)), over.is_some(), "{again:?}");
        }
    }
}

#[test]
fn a_count_that_may_be_as_old_as_a_miss_begins_nothing_where_nothing_stands() {
    let create = Some((Expiry::Seconds(60), 5));
    let count = Change::Count(Count { create, ..Count::default() });
    let over = Some(Observed { cas: Cas { number: 7, epoch: 1 }, ..Observed::none() });
    let (mut modify, _) = on(1 << 20, &[], |scene| Modify::bound(count, over, scene));
    let end = on(1 << 20, &[], |scene| modify.resume(Event::Replies(smallvec![ServerReply::Absent]), scene));
    assert_eq!(end, Step::Done(ModifyEnd::NotStored));
}

#[test]
fn what_a_header_makes_too_large_leaves_no_stub() {
    let tags = [TagName::from_slice(b"posts")];
    let room = 1000;
    let leaves_stub =
        |asks: &Commands| matches!(asks[0].what, Operation::Get(GetFlags { vivify: Some(_), .. }));
    let mut stored = [false, false];
    for length in 1400..1600 {
        let change = Change::Add(offer(Bytes::from(vec![b'v'; length])));
        let (mut modify, asks) = on(room, &tags, |scene| Modify::start(change, scene));
        let answers =
            smallvec![if leaves_stub(&asks) { item("", 7) } else { ServerReply::Absent }, item("100", 3)];
        match on(room, &tags, |scene| modify.resume(Event::Replies(answers), scene)) {
            Step::Send(_) => assert!(leaves_stub(&asks), "{length}"),
            Step::Done(end) => {
                assert_eq!((end, leaves_stub(&asks)), (ModifyEnd::TooLarge, false), "{length}")
            }
            other => panic!("{other:?}"),
        }
        stored[usize::from(leaves_stub(&asks))] = true;
    }
    assert_eq!(stored, [true; 2], "both were tried");
}
