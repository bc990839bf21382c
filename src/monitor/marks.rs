//! The marks of a pool: which placements of its keys, and which rules, the processes of the fleet use. One task for each server reads the
//! server's record, and renews the marks of this process in it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::copies::decode;
use super::link::{Link, Outgoing};
use super::pool_status::PoolStatus;
use super::status::mono;
use super::ticks::Ticks;
use crate::clock::Clock;
use crate::failover::placements::Placements;
use crate::failover::rule_marks::{RuleMarks, is_of_rules};
use crate::failover::{Cas, Operation, Reply, View, Views};
use crate::random::Random;
use crate::upstream::server::Server;

/// How often a record is read.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// A poll is skipped if the last one was less than this long ago: the ticks of a pool may come more often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(800);
/// Seconds after which a record that nobody writes any longer expires.
const TTL: u32 = 60;

/// What the marks on all servers of a pool say together.
pub(super) struct Marks {
    placements: RefCell<Placements>,
    rules: RefCell<RuleMarks>,
    /// The key of the record, the same on each server.
    key: String,
    status: Arc<PoolStatus>,
    withheld: Withheld,
    start: Instant,
    clock: Clock,
}

/// What is withheld from the workers while a placement is in use that is not adjacent: the views of the pool.
pub(super) struct Withheld {
    views: Option<Arc<Views>>,
    servers: usize,
    /// Without failover, the places are fixed: nobody else publishes the views.
    are_fixed: bool,
    now: Cell<bool>,
}

/// Reads and writes the record of one server.
pub(super) struct Marker {
    pub(super) marks: Rc<Marks>,
    pub(super) link: Link,
    pub(super) server: Arc<Server>,
    /// The index of the server in its pool.
    pub(super) at: usize,
    pub(super) random: Rc<RefCell<Random>>,
}

impl Marks {
    /// Nothing is known of other processes yet. The record's key depends on the keyspace only: processes that place keys
    /// differently must find each other's marks, on the servers that they share.
    pub(super) fn new(
        keyspace: &str,
        status: Arc<PoolStatus>,
        withheld: Withheld,
        start: Instant,
        clock: Clock,
    ) -> Marks {
        let placements = RefCell::new(Placements::new(status.own()));
        let (key, rules) = (format!("@kennel:marks:{keyspace}"), RefCell::default());
        Marks { placements, rules, key, status, withheld, start, clock }
    }

    /// Whether the guarded keys of the pool are withheld.
    pub(super) fn withholds(&self) -> bool {
        self.withheld.now.get()
    }

    /// Takes a server's record. Returns what must replace it.
    fn observe(&self, server: usize, record: &[u8], random: u64) -> Option<Vec<u8>> {
        let now = mono(self.start);
        let placements = self.placements.borrow_mut().observe(server, record, now, random);
        let mut rules = self.rules.borrow_mut();
        if let Some(own) = self.status.own_rules() {
            rules.set_own(own, self.clock.now_ms());
        }
        let rules = rules.observe(server, record, now, random);
        if placements.is_none() && rules.is_none() {
            return None;
        }
        let kept = |of_rules: bool| {
            let text = std::str::from_utf8(record).unwrap_or_default();
            let lines = text.lines().filter(|line| is_of_rules(line) == of_rules);
            lines.map(|line| format!("{line}\n")).collect::<String>().into_bytes()
        };
        Some([placements.unwrap_or_else(|| kept(false)), rules.unwrap_or_else(|| kept(true))].concat())
    }

    fn update(&self) {
        let (placements, now) = (self.placements.borrow(), mono(self.start));
        let unknown = placements.unknown(now);
        self.withheld.set(!unknown.is_empty());
        self.status.observe(placements.in_use(now).len(), unknown);
        self.status.observe_rules(self.rules.borrow().in_use(now), self.clock.now_ms());
    }
}

impl Withheld {
    /// Withholds these views, if there are any. `fixed`: the pool does not fail over, so they are valid at all other times.
    pub(super) fn new(views: Option<Arc<Views>>, servers: usize, are_fixed: bool) -> Withheld {
        Withheld { views, servers, are_fixed, now: Cell::new(false) }
    }

    fn set(&self, unknown: bool) {
        let withhold = unknown && self.views.is_some();
        if self.now.replace(withhold) == withhold {
            return;
        }
        match withhold {
            true => self.publish(None),
            false if self.are_fixed => self.publish(Some((FIXED, FOREVER))),
            // The next round of each server publishes its view.
            false => {}
        }
    }

    fn publish(&self, view: Option<(View, u64)>) {
        let Some(views) = &self.views else { return };
        (0..self.servers).for_each(|server| views.publish(server, view));
    }
}

/// The place of a server that does not fail over: as in a pool without views, nothing stored there carries a fence.
const FIXED: View = View { fence: 0, standby: false, inherited: 0 };
/// In ms. Half of the largest number, because views store one bit beside it.
const FOREVER: u64 = u64::MAX >> 1;

/// Views of servers that do not fail over, all valid.
pub(super) fn fixed_views(servers: usize) -> Views {
    let views = Views::new(servers);
    (0..servers).for_each(|server| views.publish(server, Some((FIXED, FOREVER))));
    views
}

impl Marker {
    /// Polls at these ticks until it is dropped.
    pub(super) async fn run(self, mut ticks: Ticks) {
        loop {
            let began = Instant::now();
            // Nothing is stored on a server that cannot compare a CAS, and nothing on one that may be full.
            if self.server.capabilities().is_some_and(|found| found.missing_feature.is_none()) {
                self.poll().await;
            }
            // Without a reply too: marks that are not seen to change end.
            self.marks.update();
            while began.elapsed() < SHORTEST_PAUSE {
                ticks.next().await;
            }
        }
    }

    async fn poll(&self) {
        let read = Operation::ReadOrStub(TTL);
        let answers = self.link.send(vec![encode(&self.marks.key, &read)]).await;
        let reply = answers.first().map(|answer| decode(&read, answer));
        if let Some(Reply::Found(record, cas)) = reply {
            let random = self.random.borrow_mut().below(u64::MAX);
            if let Some(new) = self.marks.observe(self.at, &record, random) {
                // Whether another process was faster shows in the next read.
                let write = Operation::Replace(new, cas);
                self.link.send(vec![encode(&self.marks.key, &write)]).await;
            }
        }
    }
}

fn encode(key: &str, operation: &Operation) -> Outgoing {
    match operation {
        Operation::Replace(record, Cas { number, epoch }) => {
            let head = format!("ms {key} {} C{number} T{TTL}\r\n", record.len());
            let bytes = Bytes::from([head.as_bytes(), record, b"\r\n"].concat());
            Outgoing { bytes, cas_epoch: Some(*epoch) }
        }
        _ => Outgoing { bytes: Bytes::from(format!("mg {key} v c N{TTL}\r\n")), cas_epoch: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::placements::Step;
    use crate::upstream::UnknownPlacement;

    const KEYSPACE: &str = "main";

    fn marks(own: u64, views: Option<&Arc<Views>>, are_fixed: bool) -> Marks {
        let status = PoolStatus::new(KEYSPACE.into(), Step::only(own), UnknownPlacement::Miss);
        let withheld = Withheld::new(views.cloned(), 2, are_fixed);
        Marks::new(KEYSPACE, Arc::new(status), withheld, Instant::now(), Clock::system())
    }

    /// Lets the mark of another process change in the record of the first server.
    fn see(marks: &Marks, other: u64) {
        let mut foreign = Placements::new(Step::only(other));
        for now in [0, 3_000] {
            let record = foreign.observe(0, b"", now, now).unwrap();
            marks.observe(0, &record, now);
        }
        marks.update();
    }

    #[test]
    fn commands_are_written_as_meta_commands() {
        let read = encode("@kennel:marks:main", &Operation::ReadOrStub(TTL));
        assert_eq!((&read.bytes[..], read.cas_epoch), (&b"mg @kennel:marks:main v c N60\r\n"[..], None));
        let cas = Cas { number: 7, epoch: 2 };
        let write = encode("@kennel:marks:main", &Operation::Replace(b"ab\n".to_vec(), cas));
        let expected = &b"ms @kennel:marks:main 3 C7 T60\r\nab\n\r\n"[..];
        assert_eq!((&write.bytes[..], write.cas_epoch), (expected, Some(2)));
    }

    #[test]
    fn the_marks_of_rules_stand_beside_those_of_placements_and_neither_drops_the_others() {
        let own = marks(3, None, false);
        let record = own.observe(0, b"", 1).unwrap();
        let count = |record: &[u8]| {
            let text = std::str::from_utf8(record).unwrap();
            [true, false].map(|of_rules| text.lines().filter(|line| is_of_rules(line) == of_rules).count())
        };
        assert_eq!(count(&record), [0, 1], "the rules are not known yet");
        own.status.set_rules(7);
        let record = own.observe(0, &record, 2).unwrap();
        assert_eq!(count(&record), [1, 1]);
        let other = marks(4, None, false);
        other.status.set_rules(8);
        assert_eq!(count(&other.observe(0, &record, 3).unwrap()), [2, 2]);
    }

    #[test]
    fn fixed_places_are_valid_unless_a_placement_is_not_adjacent() {
        let views = Arc::new(fixed_views(2));
        let marks = marks(3, Some(&views), true);
        assert_eq!([0, 1].map(|server| views.get(server, FOREVER - 1)), [Some(FIXED); 2]);
        see(&marks, 3);
        assert!(!marks.withholds());
        see(&marks, 4);
        assert!(marks.withholds());
        assert_eq!([0, 1].map(|server| views.get(server, 0)), [None; 2]);
        marks.withheld.set(false);
        assert_eq!([0, 1].map(|server| views.get(server, 0)), [Some(FIXED); 2]);
    }

    #[test]
    fn views_of_a_pool_that_fails_over_are_withdrawn_and_not_made_up() {
        let views = Arc::new(Views::new(2));
        let marks = marks(3, Some(&views), false);
        assert_eq!(views.get(0, 0), None);
        let view = View { fence: 7, standby: true, inherited: 0 };
        views.publish(0, Some((view, 100)));
        see(&marks, 4);
        assert_eq!(views.get(0, 0), None);
        marks.withheld.set(false);
        assert_eq!(views.get(0, 0), None);
    }

    #[test]
    fn a_pool_that_goes_on_serving_withholds_nothing() {
        let marks = marks(3, None, false);
        see(&marks, 4);
        assert!(!marks.withholds());
    }
}
