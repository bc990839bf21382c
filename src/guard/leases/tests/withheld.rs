use super::*;

fn withheld() -> Leases<u32> {
    let mut leases = leased();
    leases.withhold(KEY, 1.into());
    leases
}

#[test]
fn no_set_of_another_connection_fills_a_win_whose_client_is_not_told_of_it() {
    let mut leases = withheld();
    assert_eq!(pooled(&mut leases, 2), Attribution::NoMiss);
    assert_eq!(leases.attribute_by_cas(KEY, 7, 2.into(), false), Attribution::NoMiss);
    // A builder without a server, whose set may come over any connection of its client.
    leases.record_miss(KEY, 3.into(), MissToken::unanswered(NOW), &Policy::default());
    assert_eq!(fill(&mut leases, 2), (None, false, false));
    assert_eq!(leases.deliver(KEY, 1.into()), Some(7));
    assert_eq!(fill(&mut leases, 2), (Some(7), true, false));
}

#[test]
fn a_win_that_is_not_needed_is_released_and_leaves_no_miss() {
    let mut leases = withheld();
    let ended = leases.give_up(KEY, 1.into());
    assert!(matches!(&ended[..], [Ended { end: LeaseEnd::Released, commands, .. }] if commands.len() == 1));
    assert_eq!(leases.keys.len(), 0);
    assert_eq!(leases.deliver(KEY, 1.into()), None);
    // During a renewal, the CAS is not known: its end releases the lease.
    let mut leases: Leases<u32> = Leases::default();
    let id = leases.grant(KEY, 1.into(), token(7), &Policy::default()).0.unwrap();
    renews(&mut leases, id, NOW);
    assert_eq!(leases.give_up(KEY, 1.into()), []);
    let renewed = leases.renewed(KEY, id, &[ServerReply::Stored(cas(8))], NOW.mono);
    assert!(matches!(renewed, Err((Some(LeaseEnd::Disconnected), commands)) if commands.len() == 1));
    // What was invalidated is no lease, and leaves nothing either.
    let mut leases = withheld();
    leases.invalidate(KEY, 9.into());
    assert_eq!((leases.give_up(KEY, 1.into()), leases.keys.len()), (Vec::new(), 0));
}

#[test]
fn a_lease_of_another_client_is_a_build_until_it_ends() {
    let policy = Policy::default();
    let build = |leases: &Leases<u32>, mono| leases.build(KEY, 2.into(), Now { mono, ..NOW });
    let found = build(&leased(), NOW.mono).expect("a build");
    assert_eq!((found.owner, found.began), (1.into(), NOW.mono));
    assert_eq!(leased().build(KEY, 1.into(), NOW), None, "its own");
    assert_eq!(build(&leased(), found.until), None, "too late");
    assert_eq!(build(&withheld(), NOW.mono), None, "its client does not build yet");
    let mut leases = leased();
    leases.invalidate(KEY, 9.into());
    assert_eq!(build(&leases, NOW.mono), None, "what it builds is out of date");
    let mut leases: Leases<u32> = Leases::default();
    leases.record_miss(KEY, 1.into(), token(7), &policy);
    assert_eq!(build(&leases, NOW.mono), None, "nobody waits for a client without a lease");
}
