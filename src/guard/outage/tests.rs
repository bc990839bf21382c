use std::time::Duration;

use super::expiry::SWEPT_AT_ONCE;
use super::*;
use crate::guard::leases::Build;
use crate::looked_at;

const KEY: &[u8] = b"k";
const NOW: u64 = 10_000;

fn at(mono: u64) -> Now {
    Now { wall: 0, mono }
}

/// A connection that has had no miss of its own.
fn writer(owner: Owner, pooled: bool) -> Writer {
    Writer { owner, known_miss: KnownMiss::No, pooled }
}

fn policy() -> Policy {
    Policy { cold_wait: Duration::from_secs(2), outage_ttl: Duration::from_secs(1), ..Policy::default() }
}

fn value(text: &'static str) -> OutageValue {
    OutageValue { payload: Bytes::from_static(text.as_bytes()), flags: 7 }
}

/// A table of which each key has the tag `t`; waiters are numbers.
struct Table {
    outages: Outages<u32>,
    policy: Policy,
}

impl Table {
    fn new(memory: usize) -> Table {
        Table { outages: Outages::new(memory), policy: policy() }
    }

    fn read(&mut self, key: &[u8], owner: u64, waiter: u32, now: u64) -> OutageRead {
        let tags = [TagName::from_slice(b"t")];
        let request =
            OutageRequest { key, tags: &tags, owner: owner.into(), may_wait: waiter > 0, waited: None };
        self.outages.read(request, at(now), &self.policy, || waiter)
    }

    /// Those to whom it is handed; nobody else is freed.
    fn built(&mut self, key: &[u8], owner: u64, text: &'static str, now: u64) -> Option<Vec<u32>> {
        let built = self.outages.built(key, writer(owner.into(), false), &value(text), at(now), &self.policy);
        built.map(|Awaited { served, freed }| {
            assert!(freed.is_empty());
            served
        })
    }

    /// One client builds `KEY` and two wait.
    fn awaited() -> Table {
        let mut table = Table::new(1 << 20);
        assert_eq!(table.read(KEY, 1, 1, NOW), OutageRead::Miss);
        for waiter in [2, 3] {
            let read = table.read(KEY, waiter.into(), waiter, NOW);
            assert!(matches!(read, OutageRead::Wait { let_through_at, .. } if let_through_at == NOW + 2_000));
        }
        table
    }
}

#[test]
fn one_builds_the_others_wait_and_are_handed_what_it_stores_which_is_then_kept_for_outage_ttl() {
    let mut table = Table::awaited();
    assert_eq!(table.built(KEY, 1, "new", NOW + 200), Some(vec![2, 3]));
    assert_eq!(table.read(KEY, 4, 4, NOW + 1_199), OutageRead::Serve(value("new")));
    assert_eq!(table.read(KEY, 4, 4, NOW + 1_200), OutageRead::Miss, "the next one builds again");
    assert!(matches!(table.read(KEY, 5, 5, NOW + 1_200), OutageRead::Wait { .. }));
}

#[test]
fn with_outage_ttl_zero_a_value_is_handed_on_and_not_kept() {
    let mut table = Table::awaited();
    table.policy.outage_ttl = Duration::ZERO;
    assert_eq!(table.built(KEY, 1, "new", NOW + 200), Some(vec![2, 3]));
    assert_eq!(table.read(KEY, 4, 4, NOW + 201), OutageRead::Miss);
    assert_eq!(table.outages.kept(), (0, 0));
}

#[test]
fn only_a_builders_value_is_kept() {
    let mut table = Table::awaited();
    assert_eq!(table.built(KEY, 2, "blind", NOW), None);
    let peers = Owner { connection: 9, peers: 5 };
    let read = |owner| OutageRequest { key: b"p", tags: &[], owner, may_wait: true, waited: None };
    let builder = Owner { connection: 8, peers: 5 };
    table.outages.read(read(builder), at(NOW), &policy(), || 0);
    for (pooled, is_kept) in [(false, false), (true, true)] {
        let built = table.outages.built(b"p", writer(peers, pooled), &value("new"), at(NOW), &policy());
        assert_eq!(built.is_some(), is_kept, "only in a pool does its set end another connection's miss");
    }
}

#[test]
fn a_change_ends_what_is_kept_and_what_is_being_built() {
    type Change = fn(&mut Outages<u32>) -> Vec<u32>;
    let changes: [Change; 3] = [
        |outages| outages.changed(KEY),
        |outages| outages.bumped(&TagName::from_slice(b"t")),
        |outages| outages.flushed(),
    ];
    for change in changes {
        let mut table = Table::awaited();
        assert_eq!(change(&mut table.outages), [2, 3], "they are woken, and the first of them builds");
        assert_eq!(table.built(KEY, 1, "old", NOW), None, "begun before the change");
        assert_eq!(table.read(KEY, 2, 2, NOW), OutageRead::Miss);
        assert_eq!(table.built(KEY, 2, "new", NOW), Some(Vec::new()));
        change(&mut table.outages);
        assert_eq!(table.read(KEY, 3, 3, NOW), OutageRead::Miss);
    }
    let mut table = Table::awaited();
    assert_eq!(table.outages.bumped(&TagName::from_slice(b"other")), [] as [u32; 0]);
    table.outages.add_tags(KEY, &[TagName::from_slice(b"other")]);
    assert_eq!(table.outages.bumped(&TagName::from_slice(b"other")), [2, 3]);
}

#[test]
fn a_builder_that_leaves_frees_the_key_at_once_and_after_two_nobody_waits() {
    let mut table = Table::awaited();
    assert_eq!(table.outages.disconnect(1.into(), at(NOW)), [2, 3]);
    assert_eq!(table.read(KEY, 2, 2, NOW), OutageRead::Miss);
    assert!(matches!(table.read(KEY, 3, 3, NOW), OutageRead::Wait { .. }));
    assert_eq!(table.outages.disconnect(2.into(), at(NOW)), [3]);
    assert_eq!(table.read(KEY, 3, 3, NOW), OutageRead::Miss);
    for owner in [4, 5] {
        assert_eq!(table.read(KEY, owner.into(), owner, NOW), OutageRead::SecondMiss, "never filled");
    }
    assert_eq!(table.built(KEY, 3, "new", NOW), Some(Vec::new()));
    table.outages.disconnect(4.into(), at(NOW));
    table.outages.disconnect(5.into(), at(NOW));
    table.outages.sweep(NOW + NO_WAIT_MS + 2_000);
    assert!(table.outages.is_empty() && table.outages.by_owner.is_empty());
}

#[test]
fn one_more_is_let_through_per_cold_wait() {
    let mut table = Table::awaited();
    let OutageRead::Wait { waiter, .. } = table.read(KEY, 4, 4, NOW) else { panic!("it waits") };
    let policy = policy();
    let mut ask = |now| table.outages.let_through(KEY, (4.into(), waiter), at(now), &policy);
    assert_eq!(ask(NOW + 1_999), Err(NOW + 2_000));
    assert_eq!(ask(NOW + 2_000), Ok(()));
    assert_eq!(ask(NOW + 2_001), Err(NOW + 4_000));
    assert_eq!(table.built(KEY, 4, "new", NOW + 2_100), Some(vec![2, 3]), "it builds, and waits no more");
}

#[test]
fn whoever_must_not_wait_receives_a_miss_and_so_does_everybody_without_cold_wait() {
    let mut table = Table::awaited();
    assert_eq!(table.read(KEY, 4, 0, NOW), OutageRead::SecondMiss);
    assert_eq!(table.read(KEY, 1, 1, NOW), OutageRead::SecondMiss, "nobody waits for itself");
    table.policy.cold_wait = Duration::ZERO;
    assert_eq!(table.read(KEY, 5, 5, NOW), OutageRead::SecondMiss);
    assert_eq!(table.built(KEY, 5, "new", NOW), Some(vec![2, 3]));
}

#[test]
fn a_value_that_is_stored_after_max_rebuild_is_handed_to_nobody_later() {
    let mut table = Table::awaited();
    table.policy.max_rebuild = Duration::from_secs(3);
    assert_eq!(table.read(b"late", 1, 1, NOW), OutageRead::Miss);
    assert_eq!(table.built(b"late", 1, "new", NOW + 3_000), Some(Vec::new()));
    assert_eq!(table.read(b"late", 2, 2, NOW + 3_000), OutageRead::Miss);
}

#[test]
fn the_memory_for_kept_values_is_bounded_and_the_oldest_makes_room() {
    let mut table = Table::new(4 * (VALUE_BYTES + 20));
    for (n, key) in [b"a", b"b", b"c", b"d", b"e"].into_iter().enumerate() {
        assert_eq!(table.read(key, 1, 1, NOW + n as u64), OutageRead::Miss);
        table.built(key, 1, "0123456789", NOW + n as u64);
    }
    assert_eq!((table.outages.kept().0, table.outages.take_evicted()), (4, 1));
    assert_eq!(table.read(b"a", 2, 2, NOW + 9), OutageRead::Miss);
    assert_eq!(table.read(b"b", 2, 2, NOW + 9), OutageRead::Serve(value("0123456789")));
    // Larger than a quarter.
    table.read(b"f", 1, 1, NOW);
    assert_eq!(table.built(b"f", 1, "0123456789012345678901234567890123456789", NOW), Some(Vec::new()));
    assert_eq!(table.read(b"f", 2, 2, NOW), OutageRead::Miss);
    table.outages.sweep(NOW + 1_100);
    assert_eq!(table.outages.kept(), (0, 0));
}

#[test]
fn the_number_of_keys_and_of_builders_is_bounded() {
    let mut table = Table::new(0);
    for n in 0..MAX_OUTAGE_KEYS {
        assert_eq!(table.read(n.to_string().as_bytes(), 1, 1, NOW), OutageRead::Miss);
    }
    assert_eq!(table.read(b"more", 1, 1, NOW), OutageRead::Full);
    for owner in 0..2 * MAX_BUILDERS as u64 {
        assert_eq!(table.read(b"0", owner, 0, NOW), OutageRead::SecondMiss);
    }
    assert_eq!(table.outages.keys[&b"0"[..]].builders.len(), MAX_BUILDERS);
    // All are over after max_rebuild.
    assert_eq!(table.read(b"more", 1, 1, NOW + 60_000), OutageRead::Miss);
    assert_eq!(table.outages.len(), MAX_OUTAGE_KEYS + 1 - MAX_REMOVED);
    while table.outages.sweep(NOW + 60_000) {}
    assert_eq!(table.outages.len(), 1);
}

#[test]
fn at_the_limit_no_request_costs_more_than_with_a_few_keys() {
    let mut table = Table::new(1 << 20);
    for n in 0..MAX_OUTAGE_KEYS {
        assert_eq!(table.read(n.to_string().as_bytes(), 1, 1, NOW + n as u64), OutageRead::Miss);
    }
    let later = NOW + MAX_OUTAGE_KEYS as u64;
    let looked_at = |table: &mut Table, does: &mut dyn FnMut(&mut Table)| looked_at::during(|| does(table));
    // Nothing is over: one look, however many keys there are.
    let full = &mut |table: &mut Table| assert_eq!(table.read(b"more", 2, 2, later), OutageRead::Full);
    assert_eq!(looked_at(&mut table, full), 1);
    // The connection that builds all of them ends one of its builds.
    let built = &mut |table: &mut Table| {
        table.built(b"7", 1, "new", later);
    };
    assert_eq!(looked_at(&mut table, built), 0);
    assert_eq!(looked_at(&mut table, &mut |table| drop(table.outages.changed(b"8"))), 0);
    let bump = &mut |table: &mut Table| drop(table.outages.bumped(&TagName::from_slice(b"other")));
    assert_eq!(looked_at(&mut table, bump), 0);
    assert_eq!(table.read(b"8", 2, 2, later), OutageRead::Miss);
    // Many are over: a read removes a few of them, and has room.
    let over = NOW + 60_000 + 1_000;
    let room = &mut |table: &mut Table| assert_eq!(table.read(b"more", 2, 2, over), OutageRead::Miss);
    assert_eq!(looked_at(&mut table, room), MAX_REMOVED as u64);
    // What has no entry has no place in the indexes.
    table.outages.bumped(&TagName::from_slice(b"t"));
    let Outages { keys, by_owner, by_tag, due, .. } = &table.outages;
    assert!(keys.is_empty() && by_owner.is_empty() && by_tag.is_empty() && due.is_empty());
}

#[test]
fn the_sweep_looks_only_at_keys_of_which_something_is_over() {
    let mut table = Table::new(1 << 20);
    for n in 0..1_000 {
        assert_eq!(table.read(n.to_string().as_bytes(), 1, 1, NOW + n), OutageRead::Miss);
    }
    assert_eq!(looked_at::during(|| assert!(!table.outages.sweep(NOW + 60_000 + 9))), 11);
    assert_eq!(table.outages.len(), 990);
    let mut is_unfinished = true;
    while is_unfinished {
        let cost = looked_at::during(|| is_unfinished = table.outages.sweep(NOW + 70_000));
        assert!(cost <= SWEPT_AT_ONCE as u64, "{cost}");
    }
    assert!(table.outages.is_empty() && table.outages.by_owner.is_empty());
}

#[test]
fn under_a_strict_rule_a_value_is_handed_to_those_who_waited_before_its_build_began_and_to_nobody_else() {
    let mut table = Table::awaited();
    table.policy.stale_for = Duration::ZERO;
    let outages = &mut table.outages;
    let built = outages.built(KEY, writer(1.into(), false), &value("first"), at(NOW), &table.policy);
    // Something may have been invalidated elsewhere between the beginning of the build and that of their reads.
    assert_eq!(built, Some(Awaited { served: Vec::new(), freed: vec![2, 3] }));
    assert_eq!(outages.kept(), (0, 0));
    // The first of them builds, and the other one, which goes on waiting, has waited for longer than this build takes.
    let mut read = |owner: u64, waited| {
        let request = OutageRequest { key: KEY, tags: &[], owner: owner.into(), may_wait: true, waited };
        outages.read(request, at(NOW), &table.policy, || owner as u32)
    };
    assert_eq!(read(2, Some(2)), OutageRead::Miss);
    assert!(matches!(read(3, Some(3)), OutageRead::Wait { waiter: 3, .. }));
    assert!(matches!(read(4, None), OutageRead::Wait { .. }));
    // A second miss of the builder does not make its value newer.
    assert_eq!(read(2, None), OutageRead::SecondMiss);
    let built = outages.built(KEY, writer(2.into(), false), &value("second"), at(NOW), &table.policy);
    assert_eq!(built, Some(Awaited { served: vec![3], freed: vec![4] }));
}

#[test]
fn under_a_strict_rule_the_sets_of_a_pool_are_as_old_as_the_oldest_build_that_they_may_end() {
    let mut table = Table::new(1 << 20);
    table.policy = Policy { stale_for: Duration::ZERO, cold_wait: Duration::from_secs(1), ..policy() };
    let connection = |connection| Owner { connection, peers: 5 };
    let outages = &mut table.outages;
    let mut read = |connection, now| {
        let request = OutageRequest { key: KEY, tags: &[], owner: connection, may_wait: true, waited: None };
        outages.read(request, at(now), &table.policy, || 0)
    };
    assert_eq!(read(connection(1), NOW), OutageRead::Miss);
    let OutageRead::Wait { waiter: let_through, .. } = read(connection(2), NOW) else { panic!() };
    assert!(matches!(read(9.into(), NOW), OutageRead::Wait { .. }));
    let reader = (connection(2), let_through);
    assert_eq!(outages.let_through(KEY, reader, at(NOW + 1_000), &table.policy), Ok(()));
    // Whose build this is, is not known. The next one may be the first build.
    let mut built = |by| {
        let built = outages.built(KEY, writer(by, true), &value("new"), at(NOW + 1_000), &table.policy);
        built.map(|awaited| (awaited.served.len(), awaited.freed.len()))
    };
    assert_eq!(built(connection(3)), Some((0, 1)));
    let mut read = |connection| {
        let request =
            OutageRequest { key: KEY, tags: &[], owner: connection, may_wait: true, waited: Some(3) };
        table.outages.read(request, at(NOW + 1_000), &table.policy, || 0)
    };
    assert!(matches!(read(9.into()), OutageRead::Wait { .. }), "the one that was let through builds");
    let built = table.outages.built(KEY, writer(connection(1), true), &value("old"), at(NOW), &table.policy);
    assert_eq!(built.map(|awaited| (awaited.served.len(), awaited.freed.len())), Some((0, 1)));
}

fn request(owner: u64, may_wait: bool) -> OutageRequest<'static> {
    OutageRequest { key: KEY, tags: &[], owner: owner.into(), may_wait, waited: None }
}

#[test]
fn a_winner_waits_for_a_build_without_a_server_and_is_never_served_what_is_kept() {
    let mut table = Table::awaited();
    let policy = policy();
    let mut wait = |owner, may_wait| {
        table.outages.await_build(request(owner, may_wait), at(NOW), &policy, || owner as u32)
    };
    assert_eq!(wait(9, false), None, "it must not wait");
    assert_eq!(wait(1, true), None, "nobody waits for itself");
    assert!(
        matches!(wait(9, true), Some(OutageRead::Wait { let_through_at, .. }) if let_through_at == NOW + 2_000)
    );
    assert!(
        table.outages.is_built(KEY, 9.into(), at(NOW)) && !table.outages.is_built(KEY, 1.into(), at(NOW))
    );
    assert_eq!(table.built(KEY, 1, "new", NOW + 200), Some(vec![2, 3, 9]));
    assert_eq!(table.read(KEY, 4, 4, NOW + 201), OutageRead::Serve(value("new")));
    let wait = table.outages.await_build(request(9, true), at(NOW + 201), &policy, || 9);
    assert_eq!(wait, None, "a server has answered, and nobody builds");
    assert!(!table.outages.is_built(KEY, 9.into(), at(NOW + 201)));
}

/// A client that has won `KEY` half a second before `NOW`.
fn winner() -> Build {
    let added_tags = vec![TagName::from_slice(b"added")];
    Build { owner: 1.into(), began: NOW - 500, until: NOW + 1_000, added_tags }
}

/// The second client has found no builder, and gives way to the winner; the third one waits.
fn given_way(policy: &Policy) -> Table {
    let mut table = Table::new(1 << 20);
    table.policy = policy.clone();
    assert_eq!(table.read(KEY, 2, 2, NOW), OutageRead::Miss);
    let wait = table.outages.give_way(request(2, true), winner(), at(NOW), policy, || 2);
    assert!(matches!(wait, Some(OutageRead::Wait { let_through_at, .. }) if let_through_at == NOW + 1_500));
    assert!(matches!(table.read(KEY, 3, 3, NOW), OutageRead::Wait { .. }));
    table
}

#[test]
fn a_client_that_won_before_the_server_failed_is_the_builder() {
    assert_eq!(given_way(&policy()).built(KEY, 1, "new", NOW + 100), Some(vec![2, 3]));
    assert_eq!(given_way(&policy()).built(KEY, 2, "blind", NOW), None, "it builds nothing");
    assert_eq!(given_way(&policy()).outages.disconnect(1.into(), at(NOW)), [2, 3]);
    assert_eq!(given_way(&policy()).outages.disconnect(2.into(), at(NOW)), [] as [u32; 0]);
    assert_eq!(given_way(&policy()).outages.bumped(&TagName::from_slice(b"added")), [2, 3]);
    assert_eq!(given_way(&policy()).read(KEY, 4, 4, NOW + 1_000), OutageRead::Miss, "its set is too late");
    // It read the database before they asked for the value.
    let strict = Policy { stale_for: Duration::ZERO, ..policy() };
    let built =
        given_way(&strict).outages.built(KEY, writer(1.into(), false), &value("new"), at(NOW), &strict);
    assert_eq!(built, Some(Awaited { served: Vec::new(), freed: vec![2, 3] }));
}

#[test]
fn a_builder_gives_way_only_while_it_is_the_only_one_and_may_wait() {
    let gives_way = |table: &mut Table, may_wait| {
        let policy = table.policy.clone();
        table.outages.give_way(request(2, may_wait), winner(), at(NOW), &policy, || 2).is_some()
    };
    let builds = || {
        let mut table = Table::new(1 << 20);
        assert_eq!(table.read(KEY, 2, 2, NOW), OutageRead::Miss);
        table
    };
    assert!(gives_way(&mut builds(), true));
    let mut table = builds();
    assert!(!gives_way(&mut table, false));
    assert_eq!(table.built(KEY, 2, "new", NOW), Some(Vec::new()), "it builds");
    let mut table = builds();
    assert_eq!(table.read(KEY, 3, 0, NOW), OutageRead::SecondMiss);
    assert!(!gives_way(&mut table, true), "a third client builds too");
    let mut table = builds();
    table.outages.changed(KEY);
    assert!(!gives_way(&mut table, true), "what the winner builds is out of date");
    let mut table = builds();
    assert!(table.outages.await_build(request(1, true), at(NOW), &policy(), || 1).is_some());
    assert!(!gives_way(&mut table, true), "the winner has found this build, and waits for it");
}

#[test]
fn nobody_waits_for_a_builder_that_has_had_cold_wait_once_another_one_was_let_through() {
    let mut table = Table::awaited();
    let OutageRead::Wait { waiter, .. } = table.read(KEY, 4, 4, NOW) else { panic!("it waits") };
    let asked = table.outages.let_through(KEY, (4.into(), waiter), at(NOW + 2_000), &policy());
    assert_eq!(asked, Ok(()));
    assert_eq!(table.outages.disconnect(4.into(), at(NOW + 2_100)), [2, 3], "though the first one builds");
    assert_eq!(table.read(KEY, 5, 5, NOW + 2_100), OutageRead::Miss);
    assert!(!table.outages.is_built(KEY, 5.into(), at(NOW + 2_100)));
    assert!(matches!(table.read(KEY, 6, 6, NOW + 2_100), OutageRead::Wait { .. }));
    assert_eq!(table.built(KEY, 1, "late", NOW + 2_200), Some(vec![6]), "it is handed on all the same");
}

#[test]
fn a_set_for_a_miss_of_its_own_connection_does_not_end_the_build_of_a_peer() {
    let connection = |number| Owner { connection: number, peers: 7 };
    let mut table = Table::new(1 << 20);
    // The first one's build was invalidated, and the second one builds anew.
    let owner = connection(2);
    let request = OutageRequest { key: KEY, tags: &[], owner, may_wait: true, waited: None };
    assert_eq!(table.outages.read(request, at(NOW), &table.policy, || 2), OutageRead::Miss);
    let late = Writer { known_miss: KnownMiss::Yes, ..writer(connection(1), true) };
    assert_eq!(table.outages.built(KEY, late, &value("old"), at(NOW), &table.policy), None);
    let blind = writer(connection(1), true);
    assert!(table.outages.built(KEY, blind, &value("new"), at(NOW), &table.policy).is_some());
}
