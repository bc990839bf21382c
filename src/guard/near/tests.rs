use bytes::BytesMut;

use super::*;
use crate::guard::command::Usage;
use crate::guard::envelope::Envelope;
use crate::guard::fixtures::cas;
use crate::guard::freshness::StaleReasons;
use crate::guard::leases::MissToken;
use crate::guard::tag_version::Versions;

/// The `near` of every read here, in ms.
const NEAR: u64 = 50;
const ROOM: usize = 1 << 20;

fn at(mono: u64) -> Now {
    Now { wall: 1_700_000_000_000 + mono, mono }
}

fn tag(name: &str) -> TagName {
    TagName::from_slice(name.as_bytes())
}

fn hit(payload: &'static [u8], ttl: Option<u32>, tags: &[&str]) -> Hit {
    let mut header = BytesMut::new();
    let tags = tags.iter().map(|name| (tag(name), 1)).collect();
    Envelope { stale_for: 60, built_at: 1, rebuild: 0, fence: 0, tags }.seal(&mut header).unwrap();
    Hit {
        payload: Bytes::from_static(payload),
        flags: 7,
        cas: cas(3),
        ttl,
        stale_ms: 0,
        stale: StaleReasons::default(),
        rebuild: 0,
        usage: Usage::default(),
        header: header.freeze(),
    }
}

/// A worker, and a key whose rule names one tag.
struct Worker {
    near: NearValues<&'static str>,
    key: Rc<[u8]>,
    tags: Vec<TagName>,
}

impl Worker {
    fn new(budget: usize) -> Worker {
        Worker { near: NearValues::new(budget), key: Rc::from(&b"k"[..]), tags: vec![tag("own")] }
    }

    fn lookup(&mut self, now: u64, changes: &Changes) -> NearLookup<&'static str> {
        let request = NearRequest { key: &self.key, tags: &self.tags, near: NEAR, fences: 0 };
        self.near.lookup(&request, at(now), changes)
    }

    fn reads(&mut self, now: u64, changes: &Changes) -> NearRead<&'static str> {
        match self.lookup(now, changes) {
            NearLookup::Read(reading) => reading,
            other => panic!("no read of its own: {other:?}"),
        }
    }

    fn joins(&mut self, now: u64, changes: &Changes) -> Rc<InFlightRead<&'static str>> {
        match self.lookup(now, changes) {
            NearLookup::Join(in_flight) => in_flight,
            other => panic!("no join: {other:?}"),
        }
    }

    fn end(
        &mut self,
        reading: NearRead<&'static str>,
        end: Option<&ReadEnd>,
        now: u64,
        changes: &Changes,
    ) -> (Vec<&'static str>, SharedResult) {
        let request = NearRequest { key: &self.key, tags: &self.tags, near: NEAR, fences: 0 };
        self.near.end_read(&request, reading, end, at(now), changes)
    }

    /// Reads the value in one millisecond.
    fn fetch(&mut self, hit: Hit, now: u64, changes: &Changes) {
        let reading = self.reads(now, changes);
        self.end(reading, Some(&ReadEnd::Fresh(hit)), now + 1, changes);
    }

    fn may_serve(&mut self, now: u64, changes: &Changes) -> Option<Bytes> {
        match self.lookup(now, changes) {
            NearLookup::Hit(value) => Some(value.hit().payload.clone()),
            _ => None,
        }
    }
}

fn fresh() -> ReadEnd {
    ReadEnd::Fresh(hit(b"v", Some(60), &["own"]))
}

#[test]
fn a_hit_is_served_again_until_near_has_passed_since_its_read_was_sent() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let reading = worker.reads(1000, &changes);
    worker.end(reading, Some(&fresh()), 1040, &changes);
    assert_eq!(worker.may_serve(1049, &changes).as_deref(), Some(&b"v"[..]));
    assert_eq!(worker.may_serve(1050, &changes), None, "its age counts from 1000, when it was sent");
}

#[test]
fn no_value_is_served_after_the_time_at_which_it_may_be_stale() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    for (ttl, from, until) in [(Some(1), 1000, 1000), (Some(2), 2000, 2050), (None, 3000, 3050)] {
        worker.fetch(hit(b"v", ttl, &["own"]), from, &changes);
        assert_eq!(worker.may_serve(until - 1, &changes).is_some(), until > from, "a TTL of {ttl:?}");
        assert_eq!(worker.may_serve(until, &changes), None, "a TTL of {ttl:?}");
    }
    // A TTL of 2 s lasts at least one second; more is not certain.
    let request = NearRequest { key: &worker.key, tags: &worker.tags, near: 10_000, fences: 0 };
    let NearLookup::Read(reading) = worker.near.lookup(&request, at(5000), &changes) else { panic!() };
    let end = ReadEnd::Fresh(hit(b"v", Some(2), &["own"]));
    worker.near.end_read(&request, reading, Some(&end), at(5001), &changes);
    assert!(matches!(worker.near.lookup(&request, at(5999), &changes), NearLookup::Hit(_)));
    assert!(matches!(worker.near.lookup(&request, at(6000), &changes), NearLookup::Read(_)));
}

#[test]
fn a_value_is_dropped_at_once_by_a_change_of_its_key_of_its_tags_or_of_everything_and_by_no_other() {
    let changes = Changes::new(true);
    for change in
        [Changed::Key(b"k"), Changed::Tag(b"own"), Changed::Tag(b"came with it"), Changed::Everything]
    {
        let mut worker = Worker::new(ROOM);
        worker.fetch(hit(b"v", None, &["own", "came with it"]), 1000, &changes);
        changes.note(Changed::Key(b"another"));
        changes.note(Changed::Tag(b"another"));
        changes.note(Changed::Tag(b"k"));
        assert!(worker.may_serve(1002, &changes).is_some(), "before {change:?}");
        changes.note(change);
        assert_eq!(worker.may_serve(1002, &changes), None, "after {change:?}");
    }
}

#[test]
fn a_read_that_was_sent_before_the_end_of_a_change_is_not_stored() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    // The change begins; a read is sent, and the server carries it out first; the change is acknowledged.
    changes.note(Changed::Key(b"k"));
    let reading = worker.reads(1000, &changes);
    worker.end(reading, Some(&fresh()), 1001, &changes);
    assert!(
        worker.may_serve(1001, &changes).is_some(),
        "the server may yet carry out the change after every read that is sent now"
    );
    changes.note(Changed::Key(b"k"));
    assert_eq!(worker.may_serve(1002, &changes), None);
    // The reply arrives after the acknowledgement.
    let reading = worker.reads(1003, &changes);
    changes.note(Changed::Key(b"k"));
    worker.end(reading, Some(&fresh()), 1004, &changes);
    assert_eq!(worker.may_serve(1004, &changes), None);
}

#[test]
fn a_value_with_a_tag_beyond_its_rule_is_stored_unless_a_tag_was_bumped_during_the_read() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let end = ReadEnd::Fresh(hit(b"v", None, &["own", "added"]));
    let reading = worker.reads(1000, &changes);
    changes.note(Changed::Tag(b"added"));
    worker.end(reading, Some(&end), 1001, &changes);
    assert_eq!(worker.may_serve(1001, &changes), None, "it may have been bumped after the read");
    let reading = worker.reads(1002, &changes);
    worker.end(reading, Some(&end), 1003, &changes);
    assert!(worker.may_serve(1003, &changes).is_some());
}

#[test]
fn requests_join_a_read_in_progress_and_share_its_result() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let reading = worker.reads(1000, &changes);
    let moment = worker.near.last_read();
    worker.joins(1001, &changes).join("a");
    worker.joins(1001, &changes).join("b");
    let (wakers, result) = worker.end(reading, Some(&fresh()), 1002, &changes);
    assert_eq!(wakers, ["a", "b"]);
    let SharedResult::Fresh(value) = result else { panic!("{result:?}") };
    assert!(worker.near.may_serve(&value, moment, 0, at(1002), &changes));
    assert!(
        !worker.near.may_serve(&value, moment, 0, at(1050), &changes),
        "it was sent before the request arrived, and is too old"
    );
    changes.note(Changed::Key(b"k"));
    assert!(
        !worker.near.may_serve(&value, moment, 0, at(1002), &changes),
        "it was sent before the request arrived, and has changed"
    );
    assert!(worker.near.may_serve(&value, 0, 0, at(9000), &changes), "it was sent after the request arrived");
}

#[test]
fn no_request_joins_a_read_that_was_sent_before_a_change() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let old = worker.reads(1000, &changes);
    changes.note(Changed::Tag(b"own"));
    let new = worker.reads(1001, &changes);
    worker.joins(1002, &changes).join("after");
    assert_eq!(worker.end(old, Some(&fresh()), 1003, &changes).0, [""; 0]);
    worker.joins(1003, &changes).join("and another");
    assert_eq!(worker.end(new, Some(&fresh()), 1004, &changes).0, ["after", "and another"]);
}

#[test]
fn a_result_that_cannot_be_shared_releases_the_joined_requests_and_stops_joins_for_a_while() {
    let changes = Changes::new(true);
    let stale = ReadEnd::Stale(hit(b"v", Some(0), &["own"]));
    let missed = ReadEnd::Missed { seen: MissToken::unanswered(at(1)), held: true };
    let lease = MissToken { versions: Versions::new(), ..MissToken::unanswered(at(1)) };
    let won = ReadEnd::Won { lease, early: false, old: None };
    for end in [Some(&stale), Some(&missed), Some(&won), None] {
        let mut worker = Worker::new(ROOM);
        let reading = worker.reads(1000, &changes);
        worker.joins(1001, &changes).join("a");
        let (wakers, result) = worker.end(reading, end, 1002, &changes);
        assert!(wakers == ["a"] && matches!(result, SharedResult::Nothing), "{end:?}: {result:?}");
        let first = worker.reads(1003, &changes);
        let second = worker.reads(1003, &changes);
        // The first one that finds a value shares it again.
        worker.end(first, Some(&fresh()), 1004, &changes);
        assert!(worker.may_serve(1004, &changes).is_some());
        worker.end(second, Some(&missed), 1005, &changes);
        assert_eq!(worker.may_serve(1005, &changes), None, "a later read counts");
    }
}

#[test]
fn an_earlier_read_does_not_replace_the_result_of_a_later_one() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let early = worker.reads(1000, &changes);
    let request = NearRequest { key: &worker.key, tags: &worker.tags, near: NEAR, fences: 0 };
    let late = worker.near.start_read(&request, at(1001), &changes);
    worker.end(late, Some(&ReadEnd::Fresh(hit(b"new", None, &["own"]))), 1002, &changes);
    worker.end(early, Some(&ReadEnd::Fresh(hit(b"old", None, &["own"]))), 1003, &changes);
    assert_eq!(worker.may_serve(1003, &changes).as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_failure_is_shared_and_a_dropped_read_is_not_joined() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let reading = worker.reads(1000, &changes);
    worker.joins(1001, &changes).join("a");
    let failed = ReadEnd::Failed(Failure::TimedOut);
    let (wakers, result) = worker.end(reading, Some(&failed), 1002, &changes);
    assert!(wakers == ["a"] && matches!(result, SharedResult::Failed(Failure::TimedOut)), "{result:?}");
    let gone = worker.reads(1003, &changes);
    drop(gone);
    worker.reads(1004, &changes);
}

#[test]
fn a_joined_request_waits_no_longer_than_near_and_no_longer_than_the_limit() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let _slow = worker.reads(1000, &changes);
    assert_eq!(worker.joins(1001, &changes).until(), 1000 + NEAR);
    worker.reads(1050, &changes);
    let request = NearRequest { key: &worker.key, tags: &worker.tags, near: 10_000, fences: 0 };
    let NearLookup::Read(_slow) = worker.near.lookup(&request, at(3000), &changes) else { panic!() };
    let NearLookup::Join(in_flight) = worker.near.lookup(&request, at(3001), &changes) else { panic!() };
    assert_eq!(in_flight.until(), 3000 + MAX_JOINED_MS);
    for _ in 0..MAX_JOINED {
        in_flight.join("one");
    }
    assert!(matches!(worker.near.lookup(&request, at(3002), &changes), NearLookup::Read(_)), "it is full");
}

#[test]
fn memory_is_limited_and_the_oldest_value_is_removed_first() {
    let (mut worker, changes) = (Worker::new(8 * (ENTRY_BYTES + 1)), Changes::new(true));
    let fetch = |worker: &mut Worker, key: u8, payload: &'static [u8], now| {
        worker.key = Rc::from(&[key][..]);
        worker.fetch(hit(payload, None, &["own"]), now, &changes);
        assert!(worker.near.bytes() <= 8 * (ENTRY_BYTES + 1));
    };
    for key in 0..100 {
        fetch(&mut worker, key, b"", 1000);
    }
    assert_eq!((worker.near.keys.len(), worker.near.take_evicted(), worker.near.take_evicted()), (8, 92, 0));
    for key in [0, 91, 92, 99] {
        worker.key = Rc::from(&[key][..]);
        assert_eq!(worker.may_serve(1002, &changes).is_some(), key >= 92, "{key}");
    }
    // A large value is not stored and removes no other.
    static LARGE: [u8; 2 * ENTRY_BYTES] = [0; 2 * ENTRY_BYTES];
    fetch(&mut worker, 100, &LARGE, 1003);
    assert_eq!((worker.near.keys.len(), worker.near.take_evicted()), (8, 1));
    // An expired value is no loss.
    fetch(&mut worker, 101, b"", 2000);
    assert_eq!((worker.near.keys.len(), worker.near.take_evicted()), (1, 0));
    assert_eq!(worker.near.bytes(), ENTRY_BYTES + 1);
    worker.near.sweep(at(3000));
    assert_eq!((worker.near.keys.len(), worker.near.bytes(), worker.near.order.len()), (0, 0, 0));
}

#[test]
fn a_full_memory_costs_a_read_no_more_than_an_empty_one_and_the_sweep_goes_in_small_steps() {
    const KEYS: usize = 2_000;
    let (mut worker, changes) = (Worker::new(KEYS * (ENTRY_BYTES + 2)), Changes::new(true));
    let fetch = |worker: &mut Worker, key: usize, now| {
        worker.key = Rc::from(&(key as u16).to_le_bytes()[..]);
        looked_at::during(|| worker.fetch(hit(b"", None, &["own"]), now, &changes))
    };
    assert!((0..KEYS).all(|key| fetch(&mut worker, key, 1000) == 1));
    assert_eq!(worker.near.keys.len(), KEYS);
    // The oldest makes room; and where all have expired, a few of them are removed.
    assert_eq!(fetch(&mut worker, KEYS, 1000), 2);
    assert_eq!(fetch(&mut worker, KEYS, 2000), MAX_REMOVED as u64 + 1);
    let mut is_unfinished = true;
    while is_unfinished {
        let cost = looked_at::during(|| is_unfinished = worker.near.sweep(at(3000)));
        assert!(cost <= MAX_REMOVED as u64 + 1, "{cost}");
    }
    assert_eq!((worker.near.keys.len(), worker.near.bytes()), (0, 0));
}

#[test]
fn a_read_that_is_given_up_is_forgotten_at_once() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let (first, _joined) = (worker.reads(1000, &changes), worker.joins(1001, &changes));
    let second = worker.reads(1000 + NEAR, &changes);
    drop(first);
    assert_eq!(worker.near.in_flight.borrow().len(), 1);
    drop(second);
    assert_eq!(worker.near.in_flight.borrow().len(), 0);
}

#[test]
fn a_key_that_is_read_and_changed_continuously_does_not_fill_the_memory() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let other = Rc::from(&b"other"[..]);
    let hot = std::mem::replace(&mut worker.key, other);
    worker.fetch(hit(b"v", None, &["own"]), 1000, &changes);
    worker.key = hot;
    for _ in 0..10_000 {
        worker.fetch(hit(b"v", None, &["own"]), 1001, &changes);
        changes.note(Changed::Key(b"k"));
    }
    assert_eq!(worker.near.order.len(), 2);
    assert_eq!(worker.near.bytes(), 2 * ENTRY_BYTES + "kvotherv".len());
}

#[test]
fn a_stored_value_does_not_retain_the_buffer_it_was_received_in() {
    let (mut worker, changes) = (Worker::new(ROOM), Changes::new(true));
    let came = hit(b"v", None, &["own"]);
    let address = came.payload.as_ptr();
    worker.fetch(came, 1000, &changes);
    let NearLookup::Hit(value) = worker.lookup(1001, &changes) else { panic!() };
    assert_ne!(value.hit().payload.as_ptr(), address);
    assert_eq!((value.hit().flags, value.hit().cas.number, value.hit().header.len()), (7, 3, 0));
}

#[test]
fn changes_are_not_counted_if_no_rule_uses_near() {
    let changes = Changes::new(false);
    changes.note(Changed::Everything);
    assert_eq!((changes.counts.len(), changes.sum(&[EVERYTHING])), (0, 0));
}
