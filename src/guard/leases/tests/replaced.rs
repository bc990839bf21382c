//! What a renewal finds in place of the value that was won.

use bytes::BytesMut;

use super::*;
use crate::guard::command::{ServerCommand, get, peek};
use crate::guard::envelope::{Envelope, Tags, built_at};

/// A value over the marked one of `won`, or over another item, with this many seconds left. Of these, it is stale for 60.
fn stored_over(number: u64, ttl: u32) -> Item {
    let mut value = BytesMut::new();
    let built_at = built_at(NOW.wall, StubId::of(number).number());
    let envelope = Envelope { stale_for: 60, built_at, rebuild: 0, fence: 0, tags: Tags::new() };
    envelope.seal(&mut value).unwrap();
    value.extend_from_slice(b"v");
    let (value, size) = (value.freeze(), 25);
    Item { value, size, cas: cas(11), ttl: Some(ttl), ..item("", 11) }
}

/// A lease with lock 8 over a value that it has marked, whose CAS is 7.
fn won() -> MissToken {
    MissToken { lock: Some(cas(8)), origin: Some(StubId::of(7)), ..token(7) }
}

#[test]
#[allow(clippy::result_large_err, reason = "as in `Leases::renewed`")]
fn a_lease_outlives_a_renewal_only_over_its_value_or_one_that_followed_it_and_is_out_of_date_too() {
    let policy = Policy::default();
    let own = Item { size: 3, stale: true, ..item("", 7) };
    let marked = Item { stale: true, ..stored_over(7, 90) };
    let found = ServerReply::Item;
    for (reply, reads, is_kept) in [
        (found(own), false, true),
        (ServerReply::Failed(Failure::TimedOut), false, true),
        (ServerReply::Absent, false, false),
        (found(stored_over(7, 60)), true, true),
        // It is fresh, was deleted in between, or its mark may be a delete.
        (found(stored_over(7, 61)), true, false),
        (found(stored_over(6, 60)), true, false),
        (found(marked), true, false),
        (found(Item { cas: cas(11), ..item("plain", 11) }), true, false),
    ] {
        let mut leases: Leases<u32> = Leases::default();
        let id = leases.grant(KEY, 1.into(), won(), &policy).0.unwrap();
        let mut renew = |look: ServerCommand| {
            let Due::Renew(commands) = leases.due(KEY, id, NOW, &policy, &[], 5) else { panic!("not due") };
            assert_eq!(commands[1..], [look], "{reply:?}");
            leases.renewed(KEY, id, &[ServerReply::Stored(cas(10)), reply.clone()], NOW.mono)
        };
        let mut renewed = renew(peek(ItemRef::Value));
        if reads {
            let (lock, token) = (ServerReply::Stored(cas(10)), renewed.unwrap());
            let due_after =
                |reply| Leases::<u32>::due_after(&token, &[lock.clone(), reply], &policy, NOW) - NOW.mono;
            assert_eq!(due_after(reply.clone()), 0);
            assert_ne!(due_after(ServerReply::Failed(Failure::TimedOut)), 0, "not again and again");
            renewed = renew(get(ItemRef::Value));
        }
        if is_kept {
            let token = renewed.unwrap();
            assert_eq!((token.lock, token.observed_cas), (Some(cas(10)), Some(cas(7))));
            // It is known from now on.
            assert!(renew(peek(ItemRef::Value)).is_ok_and(|token| token.replacement != Replacement::Unread));
        } else {
            let unlock = Commands::from_iter([delete(ItemRef::Lock, Some(cas(10)))]);
            assert_eq!(renewed.unwrap_err(), (Some(LeaseEnd::Lost), unlock), "{reply:?}");
            // It may be stored only over what it saw, which has gone.
            assert_eq!(fill(&mut leases, 1), (Some(7), false, false));
        }
    }
}
