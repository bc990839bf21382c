use super::*;
use crate::guard::fixtures::{self, cas, inputs};
use crate::guard::inputs::Now;
use crate::guard::policy::Policy;

const CAS: Cas = cas(1);
const DOWN: ServerReply = ServerReply::Failed(Failure::Down);
const TAG: ItemRef = ItemRef::Tag(0);

/// Inputs at this time, with tags on one server or on two.
fn on<T>(wall: u64, copies: bool, run: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let policy = Policy::default();
    run(&Inputs { now: Now { wall, mono: 0 }, copies, ..inputs(&policy, &[]) })
}

/// A reply with an item that never expires.
fn item(value: &'static str, number: u64) -> ServerReply {
    ServerReply::Item(fixtures::item(value, number))
}

/// Gathers one tag: for each round, what is asked, and what is then answered.
fn read_tag(copies: bool, rounds: &[(&[ServerCommand], &[ServerReply])]) -> Result<TagRead, Failure> {
    let mut tag_read = TagRead::new(1);
    for (wall, (asked, answered)) in (100..).zip(rounds) {
        let mut commands = Commands::new();
        on(wall, copies, |inputs| tag_read.push_commands(&mut commands, inputs));
        assert_eq!(&commands[..], *asked);
        on(wall, copies, |inputs| tag_read.absorb(answered, inputs))?;
    }
    Ok(tag_read)
}

#[test]
fn a_tag_has_the_version_that_was_stored_and_not_the_moment_of_the_answer() {
    let rounds: &[(&[ServerCommand], &[ServerReply])] = &[
        (&[get_tag(TAG)], &[item("", 7)]),
        (&[store_version(TAG, 101, cas(7))], &[ServerReply::Stored(CAS)]),
    ];
    let tag_read = read_tag(false, rounds).unwrap();
    assert_eq!(tag_read.versions().unwrap()[..], [101]);
    assert!(tag_read.lost);
}

#[test]
fn of_two_copies_the_larger_counts_and_the_other_is_brought_up() {
    let reads = &[get_tag(TAG), get_tag(ItemRef::TagCopy(0))];
    for (replies, repair) in [
        ([item("50", 7), item("60", 8)], Some(store_version(TAG, 60, cas(7)))),
        ([item("60", 8), item("50", 7)], Some(store_version(ItemRef::TagCopy(0), 60, cas(7)))),
        ([item("", 7), item("60", 8)], Some(store_version(TAG, 60, cas(7)))),
        ([item("60", 8), item("x", 7)], Some(store_version(ItemRef::TagCopy(0), 60, cas(7)))),
        ([item("60", 8), item("60", 7)], None),
        ([DOWN, item("60", 7)], None),
        ([item("60", 7), DOWN], None),
    ] {
        let tag_read = read_tag(true, &[(reads, &replies)]).unwrap();
        assert_eq!(tag_read.known().unwrap()[..], [60]);
        assert!(!tag_read.lost);
        assert_eq!(tag_read.versions().is_none(), repair.is_some());
        if let Some(repair) = repair {
            for reply in [ServerReply::Stored(CAS), DOWN] {
                let repaired =
                    read_tag(true, &[(reads, &replies), (std::slice::from_ref(&repair), &[reply])]).unwrap();
                assert_eq!(repaired.versions().unwrap()[..], [60]);
            }
            // Somebody was quicker, and may have written more than that.
            let repaired = (std::slice::from_ref(&repair), &[ServerReply::Exists][..]);
            assert!(read_tag(true, &[(reads, &replies), repaired]).unwrap().known().is_none());
            let newer = [item("70", 9), item("70", 10)];
            let again = read_tag(true, &[(reads, &replies), repaired, (reads, &newer)]).unwrap();
            assert_eq!(again.versions().unwrap()[..], [70]);
        }
    }
    assert_eq!(read_tag(true, &[(reads, &[DOWN, DOWN])]).unwrap_err(), Failure::Down);
}

#[test]
fn a_tag_that_no_reachable_server_has_is_lost_and_created_on_all_of_them() {
    let reads = &[get_tag(TAG), get_tag(ItemRef::TagCopy(0))];
    let both = [store_version(TAG, 101, cas(3)), store_version(ItemRef::TagCopy(0), 101, cas(4))];
    let missing = &[item("", 3), item("", 4)];
    let created =
        read_tag(true, &[(reads, missing), (&both, &[ServerReply::Stored(CAS), ServerReply::Stored(CAS)])]);
    let created = created.unwrap();
    assert!(created.lost && created.versions().unwrap()[..] == [101]);
    let raced = read_tag(
        true,
        &[
            (reads, missing),
            (&both, &[ServerReply::Stored(CAS), ServerReply::Exists]),
            (reads, &[item("101", 2), item("99", 7)]),
            (&[store_version(ItemRef::TagCopy(0), 101, cas(7))], &[ServerReply::Stored(CAS)]),
        ],
    );
    assert_eq!(raced.unwrap().versions().unwrap()[..], [101]);
    let alone = read_tag(true, &[(reads, &[item("", 3), DOWN]), (&both[..1], &[ServerReply::Stored(CAS)])]);
    assert!(alone.unwrap().lost);
}
