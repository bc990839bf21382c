use super::*;
use crate::guard::command::Item;
use crate::guard::fixtures::{cas, found, on, store_version as store};
use crate::guard::version_of;

const CAS: Cas = cas(1);
const DOWN: ServerReply = ServerReply::Failed(Failure::Down);
const TAG: ItemRef = ItemRef::Tag(0);

/// Reads one tag. Each round has the expected commands and the replies to them.
fn read_tag(copies: bool, rounds: &[(&[ServerCommand], &[ServerReply])]) -> Result<TagRead, Failure> {
    let mut tag_read = TagRead::new(1);
    for (wall, (expected, replies)) in (100..).zip(rounds) {
        let mut commands = Commands::new();
        on(wall, copies, |inputs| tag_read.push_commands(&mut commands, inputs));
        assert_eq!(&commands[..], *expected);
        on(wall, copies, |inputs| tag_read.absorb(replies, inputs))?;
    }
    Ok(tag_read)
}

#[test]
fn a_tag_has_the_version_that_was_stored_and_not_the_time_of_the_reply() {
    let rounds: &[(&[ServerCommand], &[ServerReply])] =
        &[(&[get_tag(TAG)], &[found("", 7)]), (&[store(TAG, 101, cas(7))], &[ServerReply::Stored(CAS)])];
    let tag_read = read_tag(false, rounds).unwrap();
    assert_eq!(tag_read.versions().unwrap()[..], [101]);
    assert!(tag_read.lost);
}

#[test]
fn of_two_copies_the_larger_counts_and_the_other_is_updated() {
    let reads = &[get_tag(TAG), get_tag(ItemRef::TagCopy(0))];
    for (replies, repair) in [
        ([found("50", 7), found("60", 8)], Some(store(TAG, 60, cas(7)))),
        ([found("60", 8), found("50", 7)], Some(store(ItemRef::TagCopy(0), 60, cas(7)))),
        ([found("", 7), found("60", 8)], Some(store(TAG, 60, cas(7)))),
        ([found("60", 8), found("x", 7)], Some(store(ItemRef::TagCopy(0), 60, cas(7)))),
        ([found("60", 8), found("60", 7)], None),
        ([DOWN, found("60", 7)], None),
        ([found("60", 7), DOWN], None),
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
            // Another writer wins the race, and may have stored a newer version.
            let repaired = (std::slice::from_ref(&repair), &[ServerReply::Exists][..]);
            assert!(read_tag(true, &[(reads, &replies), repaired]).unwrap().known().is_none());
            let newer = [found("70", 9), found("70", 10)];
            let again = read_tag(true, &[(reads, &replies), repaired, (reads, &newer)]).unwrap();
            assert_eq!(again.versions().unwrap()[..], [70]);
        }
    }
    assert_eq!(read_tag(true, &[(reads, &[DOWN, DOWN])]).unwrap_err(), Failure::Down);
}

#[test]
fn a_tag_that_no_reachable_server_has_is_lost_and_created_on_all_of_them() {
    let reads = &[get_tag(TAG), get_tag(ItemRef::TagCopy(0))];
    let both = [store(TAG, 101, cas(3)), store(ItemRef::TagCopy(0), 101, cas(4))];
    let missing = &[found("", 3), found("", 4)];
    let created =
        read_tag(true, &[(reads, missing), (&both, &[ServerReply::Stored(CAS), ServerReply::Stored(CAS)])]);
    let created = created.unwrap();
    assert!(created.lost && created.versions().unwrap()[..] == [101]);
    let raced = read_tag(
        true,
        &[
            (reads, missing),
            (&both, &[ServerReply::Stored(CAS), ServerReply::Exists]),
            (reads, &[found("101", 2), found("99", 7)]),
            (&[store(ItemRef::TagCopy(0), 101, cas(7))], &[ServerReply::Stored(CAS)]),
        ],
    );
    assert_eq!(raced.unwrap().versions().unwrap()[..], [101]);
    let alone = read_tag(true, &[(reads, &[found("", 3), DOWN]), (&both[..1], &[ServerReply::Stored(CAS)])]);
    assert!(alone.unwrap().lost);
}

#[test]
fn a_tag_of_another_fence_is_lost_and_created_under_the_current_one() {
    let policy = crate::guard::policy::Policy::default();
    let tags = [b"tag".as_slice().into()];
    for (stored, fence, is_lost) in
        [("50", 0, false), ("50 7", 7, false), ("50", 7, true), ("50 7", 8, true), ("50 7", 0, true)]
    {
        let fences = [[fence; 2]];
        let inputs = Inputs { tag_fences: &fences, ..crate::guard::fixtures::inputs(&policy, &tags) };
        let mut tag_read = TagRead::new(1);
        tag_read.absorb(&[found(stored, 3)], &inputs).unwrap();
        assert_eq!((tag_read.lost, tag_read.versions().is_none()), (is_lost, is_lost), "{stored} {fence}");
        let mut commands = Commands::new();
        tag_read.push_commands(&mut commands, &inputs);
        if is_lost {
            let Operation::Store { value, cas, .. } = &commands[0].operation else { panic!("{commands:?}") };
            let item = Item { value: value.body.clone(), ..crate::guard::fixtures::item("", 3) };
            assert_eq!(
                (version_of(&item, fence, inputs.now).is_some(), cas.map(|cas| cas.number)),
                (true, Some(3))
            );
        }
    }
}
