use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::*;
use crate::guard::command::Cas;
use crate::guard::envelope::{Envelope, LockRecord, TagName, built_at};
use crate::guard::fixtures::{self, cas, inputs};
use crate::guard::inputs::Now;
use crate::guard::machine::Wait;
use crate::guard::tag_version::NEVER;
use crate::guard::tags::get_tag;

fn policy() -> Policy {
    Policy {
        stale_for: Duration::from_secs(10),
        lock_ttl: Duration::from_secs(2),
        max_rebuild: Duration::from_secs(20),
        stale_wait: Duration::ZERO,
        cold_wait: Duration::from_secs(1),
        cold_limit: Duration::from_secs(5),
        outage_ttl: Duration::ZERO,
        on_tag: OnInvalidate::Stale,
        on_delete: OnInvalidate::Drop,
        stale_before_expiry: false,
        early_beta: 0.0,
        max_ttl: Duration::ZERO,
        near: Duration::ZERO,
        plan: 0,
    }
}

fn item(value: Bytes, number: u64) -> ServerReply {
    ServerReply::Item(Item { ttl: Some(60), ..fixtures::item(value, number) })
}

fn sealed(name: &TagName, version: u64) -> Bytes {
    let tags = [(name.clone(), version)].into_iter().collect();
    let mut value = BytesMut::new();
    Envelope { stale_for: 10, built_at: 0, rebuild: 0, fence: 0, tags }.seal(&mut value).unwrap();
    value.extend_from_slice(b"old");
    value.freeze()
}

fn lock(name: &TagName, version: u64) -> Bytes {
    let tags = [(name.clone(), version)].into_iter().collect();
    let mut value = BytesMut::new();
    LockRecord { granted_at: fixtures::WALL, sidecar: 9, fence: 0, tags }.encode(&mut value).unwrap();
    value.freeze()
}

fn sent(step: Step<ReadEnd>) -> Commands {
    match step {
        Step::Send(commands) => commands,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_is_not_marked_stale_before_its_lock_is_taken_over() {
    let (policy, name) = (policy(), TagName::from_slice(b"t"));
    let tags = [name.clone()];
    let inputs = inputs(&policy, &tags);
    let (mut read, _) = Read::start(&inputs);
    let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
    let tag = item(Bytes::from_static(b"200"), 1);
    let claim = sent(resume(smallvec![item(sealed(&name, 100), 7), tag.clone()]));
    assert_eq!(claim[0].item, ItemRef::Lock);
    let held = smallvec![ServerReply::NotStored, item(Bytes::new(), 7), item(lock(&name, 100), 5)];
    let take_over = sent(resume(held));
    assert_eq!(take_over.len(), 1, "{take_over:?}");
    assert!(
        matches!(take_over[0].operation, Operation::Store { cas: Some(Cas { number: 5, .. }), .. }),
        "{take_over:?}"
    );
    // It was released and claimed by another client: the item is read again, and nothing else.
    let again = sent(resume(smallvec![ServerReply::Exists]));
    assert!(again.iter().all(|command| matches!(command.operation, Operation::Get(_))), "{again:?}");
}

#[test]
fn a_lock_that_no_rebuild_can_have_holds_nobody() {
    let policy = policy();
    let inputs = inputs(&policy, &[]);
    let taken_at = |granted_at| {
        let mut value = BytesMut::new();
        LockRecord { granted_at, sidecar: 9, fence: 0, tags: [].into_iter().collect() }
            .encode(&mut value)
            .unwrap();
        value.freeze()
    };
    const DAY: u64 = 86_400_000;
    for (lock, holds) in [
        (taken_at(fixtures::WALL), true),
        // Clocks may differ, here by 9 s after the longest rebuild.
        (taken_at(fixtures::WALL - 29_000), true),
        (taken_at(fixtures::WALL + DAY), true),
        (taken_at(fixtures::WALL - 30_001), false),
        (taken_at(fixtures::WALL + DAY + 1), false),
        (taken_at(0), false),
        (Bytes::from_static(b"x"), false),
        (Bytes::new(), false),
    ] {
        let ServerReply::Item(old) = item(Bytes::from_static(b"old"), 7) else { panic!("not an item") };
        let stale = || ServerReply::Item(Item { stale: true, ..old.clone() });
        let (mut read, _) = Read::start(&inputs);
        sent(read.resume(Event::Replies(smallvec![stale()]), &inputs));
        let held = smallvec![ServerReply::NotStored, stale(), item(lock.clone(), 5)];
        match read.resume(Event::Replies(held), &inputs) {
            Step::Done(ReadEnd::Stale(_)) => assert!(holds, "{lock:?}"),
            step => {
                assert!(!holds, "{lock:?}: {step:?}");
                let taken = sent(step);
                let is_taken =
                    matches!(taken[0].operation, Operation::Store { cas: Some(Cas { number: 5, .. }), .. });
                assert!(is_taken && taken[0].item == ItemRef::Lock, "{taken:?}");
            }
        }
    }
}

#[test]
fn a_wait_ends_before_the_stale_value_expires() {
    let policy = Policy { stale_wait: Duration::from_secs(30), ..policy() };
    let name = TagName::from_slice(b"t");
    for (ttl, until) in [(Some(9), 8_000), (Some(1), 0), (None, 30_000)] {
        let tags = [name.clone()];
        let inputs = inputs(&policy, &tags);
        let (mut read, _) = Read::start(&inputs);
        let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
        let ServerReply::Item(stale) = item(sealed(&name, 200), 7) else { panic!("not an item") };
        let stale = ServerReply::Item(Item { ttl, stale: true, ..stale });
        sent(resume(smallvec![stale, item(Bytes::from_static(b"200"), 1)]));
        let held =
            resume(smallvec![ServerReply::NotStored, item(Bytes::new(), 7), item(lock(&name, 200), 5)]);
        match until {
            0 => assert!(matches!(held, Step::Done(ReadEnd::Stale(_))), "{ttl:?}: {held:?}"),
            until => assert_eq!(held, Step::Wait(Wait { until, let_through_at: None }), "{ttl:?}"),
        }
    }
}

#[test]
fn a_reader_without_a_value_to_serve_waits_for_cold_limit_even_if_the_value_expires_sooner() {
    let policy = Policy { on_tag: OnInvalidate::Drop, cold_wait: Duration::from_secs(2), ..policy() };
    let tags = [TagName::from_slice(b"t")];
    let inputs = inputs(&policy, &tags);
    let (mut read, _) = Read::start(&inputs);
    let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
    let ServerReply::Item(moved) = item(sealed(&tags[0], 100), 7) else { panic!("not an item") };
    let moved = ServerReply::Item(Item { ttl: Some(1), ..moved });
    sent(resume(smallvec![moved, item(Bytes::from_static(b"200"), 1)]));
    let held = resume(smallvec![ServerReply::NotStored, item(Bytes::new(), 7), item(lock(&tags[0], 200), 5)]);
    assert_eq!(held, Step::Wait(Wait { until: 5_000, let_through_at: Some(2_000) }));
}

/// A value whose tag has changed, stored over this stub; 0: it is unknown over which.
fn stored_over(stub: u64, name: &TagName) -> Bytes {
    let tags = [(name.clone(), 100)].into_iter().collect();
    let mut value = BytesMut::new();
    let built_at = built_at(5, StubId::of(stub).number());
    Envelope { stale_for: 10, built_at, rebuild: 0, fence: 0, tags }.seal(&mut value).unwrap();
    value.freeze()
}

#[test]
fn every_reader_of_a_value_that_may_not_be_served_derives_the_same_stub_identity() {
    let policy = Policy { on_tag: OnInvalidate::Drop, cold_wait: Duration::ZERO, ..policy() };
    let tags = [TagName::from_slice(b"t")];
    let inputs = inputs(&policy, &tags);
    let mut unknown = Vec::new();
    for stub in [3, 0] {
        for wins in [true, false] {
            let (mut read, _) = Read::start(&inputs);
            let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
            let moved = || item(stored_over(stub, &tags[0]), 7);
            sent(resume(smallvec![moved(), item(Bytes::from_static(b"200"), 1)]));
            let end = if wins {
                let lock = ServerReply::Stored(cas(8));
                let placeholder = sent(resume(smallvec![lock, moved(), ServerReply::Absent]));
                let Operation::Store { value, cas: Some(Cas { number: 7, .. }), .. } =
                    &placeholder[0].operation
                else {
                    panic!("{placeholder:?}")
                };
                let Opened::Sealed { envelope, .. } = Header::open(&value.header) else {
                    panic!("{value:?}")
                };
                assert_eq!((envelope.tags().next(), value.body.len()), (Some((&b"t"[..], NEVER)), 0));
                assert!(stub == 0 || envelope.stub() == StubId::of(stub).number());
                resume(smallvec![ServerReply::Stored(cas(9)), marked_as(9), marked_as(8)])
            } else {
                resume(smallvec![ServerReply::NotStored, moved(), item(lock(&tags[0], 200), 5)])
            };
            let seen = match end {
                Step::Done(ReadEnd::Won { lease, .. }) if wins => lease,
                Step::Done(ReadEnd::Missed { seen, held: true }) if !wins => seen,
                end => panic!("{end:?}"),
            };
            assert_eq!(seen.observed_cas.map(|cas| cas.number), Some(if wins { 9 } else { 7 }));
            match stub {
                0 => unknown.push(seen.stub.unwrap()),
                stub => assert_eq!(seen.stub, Some(StubId::of(stub))),
            }
        }
    }
    assert_eq!(unknown[0], unknown[1], "known by its header");
}

#[test]
fn an_unreadable_value_is_marked_and_never_replaced_and_a_placeholder_is_never_served() {
    for on_tag in [OnInvalidate::Stale, OnInvalidate::Drop] {
        let policy = Policy { on_tag, ..policy() };
        let tags = [TagName::from_slice(b"t")];
        let inputs = inputs(&policy, &tags);
        let mut newer = BytesMut::from(&stored_over(3, &tags[0])[..]);
        newer[4] += 1;
        let mut placeholder = BytesMut::new();
        let never = [(tags[0].clone(), NEVER)].into_iter().collect();
        Envelope { stale_for: 10, built_at: 0, rebuild: 0, fence: 0, tags: never }
            .seal(&mut placeholder)
            .unwrap();
        for (value, replaced) in
            [(newer.freeze(), false), (placeholder.freeze(), on_tag == OnInvalidate::Drop)]
        {
            let (mut read, _) = Read::start(&inputs);
            let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
            let current = || item(value.clone(), 7);
            let claim = sent(resume(smallvec![current(), item(Bytes::from_static(b"200"), 1)]));
            assert_eq!(claim[0].item, ItemRef::Lock);
            let (mut loser, _) = Read::start(&inputs);
            let mut resume_loser = |replies: Replies| loser.resume(Event::Replies(replies), &inputs);
            sent(resume_loser(smallvec![current(), item(Bytes::from_static(b"200"), 1)]));
            let waits =
                resume_loser(smallvec![ServerReply::NotStored, current(), item(lock(&tags[0], 200), 5)]);
            // A takeover would mark it, and the earlier fill could not be stored.
            let let_through_at = Some(if replaced { 1_000 } else { 5_000 });
            let wait = Wait { until: 5_000, let_through_at };
            assert_eq!(waits, Step::Wait(wait), "as without a value: it may not be served");
            let lock = ServerReply::Stored(cas(8));
            let mark = sent(resume(smallvec![lock, current(), ServerReply::Absent]));
            assert_eq!(matches!(mark[0].operation, Operation::Store { .. }), replaced, "{mark:?}");
        }
    }
}

#[test]
fn a_value_that_a_delete_has_marked_meanwhile_is_not_replaced_by_a_placeholder() {
    let policy = Policy { on_tag: OnInvalidate::Drop, ..policy() };
    let tags = [TagName::from_slice(b"t")];
    let inputs = inputs(&policy, &tags);
    let (mut read, _) = Read::start(&inputs);
    let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
    let moved = || item(stored_over(3, &tags[0]), 7);
    sent(resume(smallvec![moved(), item(Bytes::from_static(b"200"), 1)]));
    sent(resume(smallvec![ServerReply::Stored(cas(8)), moved(), ServerReply::Absent]));
    let next = sent(resume(smallvec![ServerReply::Exists, marked_as(9), marked_as(8)]));
    assert_eq!(next[0], delete(ItemRef::Lock, Some(cas(8))));
    assert_eq!(next[1].item, ItemRef::Value, "it reads again");
}

/// A read of a stale value that has acquired the lock, and its mark.
fn marking(inputs: &Inputs<'_>) -> (Read, Commands) {
    let (mut read, _) = Read::start(inputs);
    let ServerReply::Item(stale) = item(sealed(&inputs.tags[0], 100), 7) else { panic!("not an item") };
    let stale = || ServerReply::Item(Item { stale: true, ..stale.clone() });
    let mut resume = |replies: Replies| read.resume(Event::Replies(replies), inputs);
    sent(resume(smallvec![stale(), item(Bytes::from_static(b"200"), 1)]));
    let mark = sent(resume(smallvec![ServerReply::Stored(cas(8)), stale(), ServerReply::Absent]));
    (read, mark)
}

fn marked_as(number: u64) -> ServerReply {
    let ServerReply::Item(item) = item(Bytes::new(), number) else { panic!("not an item") };
    ServerReply::Item(Item { stale: true, size: 9, ..item })
}

#[test]
fn a_win_over_a_stale_value_has_the_cas_of_its_own_mark() {
    let policy = policy();
    let tags = [TagName::from_slice(b"t")];
    let inputs = inputs(&policy, &tags);
    let (mut read, mark) = marking(&inputs);
    let observed_cas = Some(cas(7));
    assert_eq!(mark[0].operation, Operation::MarkStale { seconds: None, cas: observed_cas, explicit: None });
    let end = read.resume(Event::Replies(smallvec![ServerReply::Done, marked_as(9), marked_as(8)]), &inputs);
    let Step::Done(ReadEnd::Won { lease, .. }) = end else { panic!("{end:?}") };
    assert_eq!(lease.observed_cas.map(|cas| cas.number), Some(9));
    assert_eq!(lease.lock.map(|cas| cas.number), Some(8));
}

#[test]
fn a_read_that_loses_the_lock_after_its_mark_does_not_win_by_the_next_readers_mark() {
    let policy = policy();
    let tags = [TagName::from_slice(b"t")];
    let inputs = inputs(&policy, &tags);
    let (mut read, _) = marking(&inputs);
    let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
    // This read's mark is 9. Another client has stored the lock as 10 and marked the value as 11 before the
    // get.
    let next = sent(resume(smallvec![ServerReply::Done, marked_as(11), marked_as(10)]));
    assert!(
        matches!(next[0].operation, Operation::Store { cas: Some(Cas { number: 8, .. }), .. }),
        "{next:?}"
    );
    assert_eq!(sent(resume(smallvec![ServerReply::Exists]))[0].item, ItemRef::Value);
}

#[test]
fn a_value_that_another_read_has_marked_is_marked_again_by_the_holder_of_the_lock() {
    let policy = policy();
    let tags = [TagName::from_slice(b"t")];
    let inputs = inputs(&policy, &tags);
    for (reply, is_ours) in [(ServerReply::Stored(cas(10)), true), (ServerReply::Exists, false)] {
        let (mut read, _) = marking(&inputs);
        let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
        let lock = sent(resume(smallvec![ServerReply::Exists, marked_as(9)]));
        assert!(
            matches!(lock[0].operation, Operation::Store { cas: Some(Cas { number: 8, .. }), .. }),
            "{lock:?}"
        );
        let next = sent(resume(smallvec![reply]));
        let again = Operation::MarkStale { seconds: None, cas: Some(cas(9)), explicit: None };
        assert_eq!(next[0].operation == again, is_ours, "{next:?}");
    }
    // It has been filled: there is nothing to win.
    let (mut read, _) = marking(&inputs);
    let filled = item(sealed(&tags[0], 200), 11);
    let next = sent(read.resume(Event::Replies(smallvec![ServerReply::Exists, filled]), &inputs));
    assert_eq!(next[0], delete(ItemRef::Lock, Some(cas(8))));
}

#[test]
fn a_read_that_loses_every_race_returns_what_it_has_and_leaves_no_lock() {
    for (on_tag, stale) in [(OnInvalidate::Stale, true), (OnInvalidate::Drop, false)] {
        let policy = Policy { on_tag, ..policy() };
        let tags = [TagName::from_slice(b"t")];
        let inputs = inputs(&policy, &tags);
        let (mut read, _) = Read::start(&inputs);
        let (mut number, mut holds, mut rounds) = (7, false, 0);
        // Its tag has changed, and between the get and the lock another client has stored another such value.
        let mut replies: Replies =
            smallvec![item(sealed(&tags[0], 100), number), item(Bytes::from_static(b"200"), 1)];
        let end = loop {
            rounds += 1;
            let commands = match read.resume(Event::Replies(std::mem::take(&mut replies)), &inputs) {
                Step::Send(commands) => commands,
                Step::Done(end) => break end,
                step => panic!("{step:?}"),
            };
            for command in &commands {
                replies.push(match (&command.item, &command.operation) {
                    (ItemRef::Lock, Operation::Store { .. }) => {
                        number += 1;
                        assert!(!std::mem::replace(&mut holds, true));
                        ServerReply::Stored(cas(1_000))
                    }
                    (ItemRef::Lock, Operation::Delete { cas: Some(_) }) => {
                        assert!(std::mem::replace(&mut holds, false));
                        ServerReply::Done
                    }
                    (ItemRef::Lock, _) => ServerReply::Absent,
                    (ItemRef::Tag(_), _) => item(Bytes::from_static(b"200"), 1),
                    _ => item(sealed(&tags[0], 100), number),
                });
            }
            assert!(rounds < 100, "it gives up");
        };
        assert!(rounds > usize::from(MAX_ROUNDS), "{rounds} rounds");
        assert!(!holds, "the lock is free for the next reader");
        match end {
            ReadEnd::Stale(_) if stale => {}
            ReadEnd::Missed { .. } if !stale => {}
            end => panic!("{end:?}"),
        }
    }
}

/// A read at `at` ms that has found this stub, and what it does next.
fn at_stub(flags: u32, ttl: u32, at: u64, policy: &Policy) -> (Read, Step<ReadEnd>) {
    let inputs = Inputs { now: Now { wall: 0, mono: at }, ..inputs(policy, &[]) };
    let (mut read, _) = Read::start(&inputs);
    let step = read.resume(Event::Replies(smallvec![stub(flags, ttl, 7)]), &inputs);
    (read, step)
}

fn stub(flags: u32, ttl: u32, number: u64) -> ServerReply {
    ServerReply::Item(Item { ttl: Some(ttl), flags, ..fixtures::item("", number) })
}

#[test]
fn a_reader_may_be_let_through_once_the_builder_has_had_cold_wait() {
    let policy = policy();
    // Its lock_ttl is 2 s, so its TTL is 3 s at first, or just below.
    for (flags, ttl, at) in [
        (0, 3, 11_000),
        (0, 2, 11_000),
        (0, 1, 10_000),
        (StubId::of(5).flags() | 2, 3, 10_488),
        (StubId::of(5).flags() | 40, 3, 1_000),
    ] {
        let wait = Wait { until: 15_000, let_through_at: Some(at) };
        assert_eq!(at_stub(flags, ttl, 10_000, &policy).1, Step::Wait(wait), "{flags:x} {ttl}");
    }
    let never = Policy { cold_wait: Duration::ZERO, ..policy };
    assert!(matches!(at_stub(0, 3, 10_000, &never).1, Step::Done(ReadEnd::Missed { held: true, .. })));
}

#[test]
fn a_reader_that_is_let_through_takes_the_same_build_over_and_no_later_one() {
    let policy = policy();
    let later = Inputs { now: Now { wall: 0, mono: 11_000 }, ..inputs(&policy, &[]) };
    // Renewed meanwhile, by the same builder, or taken over by another one.
    for (turn, takes) in [(0, true), (1, false)] {
        let (mut read, _) = at_stub(0, 3, 10_000, &policy);
        sent(read.resume(Event::LetThrough, &later));
        let flags = StubId::of(7).flags() | turn << 28 | 3;
        let step = read.resume(Event::Replies(smallvec![stub(flags, 3, 9)]), &later);
        if !takes {
            assert_eq!(step, Step::Wait(Wait { until: 15_000, let_through_at: Some(11_232) }));
            continue;
        }
        let commands = sent(step);
        let Operation::Store { flags, cas: Some(Cas { number: 9, .. }), .. } = commands[0].operation else {
            panic!("{commands:?}")
        };
        assert_eq!(flags, StubId::of(7).flags() | 1 << 28, "its age begins anew");
        // Another one was faster.
        let (mut slower, stored) = (read.clone(), ServerReply::Stored(cas(10)));
        sent(slower.resume(Event::Replies(smallvec![ServerReply::Exists]), &later));
        let Step::Done(ReadEnd::Won { lease, .. }) = read.resume(Event::Replies(smallvec![stored]), &later)
        else {
            panic!("it has taken over")
        };
        assert_eq!((lease.turn, lease.stub), (1, Some(StubId::of(7))));
    }
}

#[test]
fn a_lock_of_another_fence_is_taken_over() {
    let policy = policy();
    for (fence, is_taken) in [(7, false), (8, true)] {
        let inputs = Inputs { fence, ..inputs(&policy, &[]) };
        let mut record = BytesMut::new();
        let held =
            LockRecord { granted_at: fixtures::WALL, sidecar: 9, fence: 7, tags: [].into_iter().collect() };
        held.encode(&mut record).unwrap();
        let (mut read, _) = Read::start(&inputs);
        let mut resume = |replies: Replies| read.resume(Event::Replies(replies), &inputs);
        let claim = sent(resume(smallvec![item(Bytes::from_static(b"plain"), 7)]));
        assert_eq!(claim.last().unwrap().item, ItemRef::Lock);
        let held = item(record.freeze(), 5);
        let step = resume(smallvec![ServerReply::NotStored, item(Bytes::new(), 7), held]);
        assert_eq!(matches!(step, Step::Send(_)), is_taken, "{step:?}");
    }
}

#[test]
fn a_value_that_is_newer_than_the_tags_read_with_it_is_not_claimed_before_they_are_read_again() {
    let newer = || ServerReply::Item(fixtures::sealed(51, 12));
    for (again, is_fresh) in [("51", true), ("52", false)] {
        let (mut read, _) = fixtures::at(0, Read::start);
        let mut resume = |replies| fixtures::at(1, |inputs| read.resume(Event::Replies(replies), inputs));
        let step = resume(smallvec![newer(), fixtures::found("50", 3)]);
        assert_eq!(step, Step::Send(smallvec![get_tag(ItemRef::Tag(0))]));
        match resume(smallvec![fixtures::found(again, 4)]) {
            Step::Done(ReadEnd::Fresh(hit)) => assert_eq!((&hit.payload[..], is_fresh), (&b"v"[..], true)),
            Step::Send(commands) => assert!(commands[0].item == ItemRef::Lock && !is_fresh, "{commands:?}"),
            step => panic!("{step:?}"),
        }
    }
}
