//! Every kind on two servers of which one forgets everything, command by command, with the round trips of each.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::OnCopies;
use crate::error::Failure;
use crate::kinds::command::{Cas, Command, Mode, Operation, Replies, Reply, Value};
use crate::kinds::dispatch::{begin, split, split_store};
use crate::kinds::item::ItemKey;
use crate::kinds::lock::HoldMachine;
use crate::kinds::machine::{Inputs, Machine, Outcome, Side, Step};
use crate::kinds::memory::Memory;
use crate::kinds::request::{Request, Verb};
use crate::kinds::settings::{Copied, Counter, Kind, List, Lock, Log, Table, Window};

const NOW: u64 = 1_700_000_000_000;

/// Two servers that carry out what copies need.
#[derive(Default)]
struct Servers {
    items: HashMap<(bool, ItemKey), (Bytes, u32, u64)>,
    cas: u64,
    random: u64,
    memory: Memory,
    /// The server that does not reply.
    silent: Option<Side>,
    /// Whether the next store of a second copy behind one of a first copy is lost, and whether there was one.
    loses_second: Option<bool>,
}

impl Servers {
    /// A server forgets everything.
    fn lose(&mut self, side: Side) {
        self.items.retain(|(second, _), _| *second != (side == Side::Second));
    }

    fn execute(&mut self, side: Side, Command { key, operation }: Command) -> Reply {
        if self.silent == Some(side) {
            return Reply::Failed(Failure::TimedOut);
        }
        match (side, &operation, &mut self.loses_second) {
            (Side::First, Operation::Store { .. }, Some(behind)) => *behind = true,
            (Side::Second, Operation::Store { .. }, Some(true)) => {
                self.loses_second = None;
                return Reply::Failed(Failure::TimedOut);
            }
            _ => {}
        }
        let at = (side == Side::Second, key);
        let held = self.items.get(&at).cloned();
        let cas = |number| Cas { number, epoch: 1 };
        let mut store = |value: Bytes, flags| {
            self.cas += 1;
            self.items.insert(at.clone(), (value, flags, self.cas));
            cas(self.cas)
        };
        match (operation, held) {
            (Operation::Get | Operation::GetOrStub, Some((data, flags, number))) => {
                Reply::Item(Value { data, flags, cas: cas(number), ttl: None })
            }
            (Operation::Get, None) => Reply::Absent,
            (Operation::GetOrStub, None) => {
                let data = Bytes::new();
                Reply::Item(Value { data: data.clone(), flags: 0, cas: store(data, 0), ttl: None })
            }
            (Operation::Store { mode: Mode::Set, cas: Some(over), .. }, Some((.., number)))
                if over != cas(number) =>
            {
                Reply::Exists
            }
            (Operation::Store { mode: Mode::Set, cas: Some(_), .. }, None) => Reply::Absent,
            (Operation::Store { mode: Mode::Set, cas: Some(_), value, flags, .. }, Some(_)) => {
                Reply::Stored(store(value, flags))
            }
            (operation, _) => panic!("{operation:?} is not for a copy"),
        }
    }

    /// Runs a machine to its end. Returns the number of round trips too.
    fn run(&mut self, machine: &mut dyn Machine) -> (Outcome, usize) {
        let mut replies = Replies::new();
        for trips in 0..100 {
            self.random += 1;
            match machine.resume(replies, &Inputs { now: NOW, random: self.random }) {
                Step::Done(outcome) => return (outcome, trips),
                Step::SendCopies(commands) => {
                    replies =
                        commands.into_iter().map(|(side, command)| self.execute(side, command)).collect();
                }
                Step::Send(commands) => panic!("{commands:?} name no copy"),
            }
        }
        panic!("it does not end")
    }

    fn command(&mut self, kind: &Kind, key: &str, request: Request<'_>) -> (Outcome, usize) {
        let kind = Kind::Copied(Copied { of: Some(Box::new(kind.clone())) });
        let mut length = split(&kind, 0, key.as_bytes());
        if let Request::Store { .. } = request {
            length = split_store(&kind, length, key.as_bytes());
        }
        let mut machine = begin(&kind, key.as_bytes(), length, request, &self.memory, NOW).unwrap();
        self.run(&mut *machine)
    }

    /// A command on a raw value.
    fn raw(&mut self, key: &str, request: Request<'_>) -> Outcome {
        let kind = Kind::Copied(Copied { of: None });
        let mut machine = begin(&kind, key.as_bytes(), key.len(), request, &self.memory, NOW).unwrap();
        self.run(&mut *machine).0
    }

    /// What the copies hold.
    fn records(&self, key: &str) -> [Option<Bytes>; 2] {
        let item = |second| self.items.get(&(second, ItemKey::from_slice(key.as_bytes())));
        [false, true].map(|second| item(second).map(|(data, ..)| data.clone()))
    }

    /// The value, or nothing, and the round trips.
    fn get(&mut self, kind: &Kind, key: &str) -> (String, usize) {
        match self.command(kind, key, Request::Get) {
            (Outcome::Value { data, .. }, trips) => (String::from_utf8(data.to_vec()).unwrap(), trips),
            (Outcome::Miss, trips) => (String::new(), trips),
            other => panic!("{other:?}"),
        }
    }

    /// Whether the value is stored, and the round trips.
    fn store(&mut self, kind: &Kind, verb: Verb, key: &str, data: &str) -> (bool, usize) {
        let request = Request::Store { verb, data: data.as_bytes(), flags: 0, exptime: 0 };
        match self.command(kind, key, request) {
            (Outcome::Stored(_), trips) => (true, trips),
            (Outcome::NotStored, trips) => (false, trips),
            other => panic!("{other:?}"),
        }
    }
}

/// What was acknowledged is there when either server has forgotten everything, and what one read has found is on both again.
fn survives(servers: &mut Servers, kind: &Kind, expected: &[(&str, &str)]) {
    for side in [None, Some(Side::First), Some(Side::Second), Some(Side::First)] {
        if let Some(side) = side {
            servers.lose(side);
        }
        for (key, value) in expected {
            assert_eq!(servers.get(kind, key).0, *value, "{key}, {side:?}");
        }
    }
}

fn append(data: &str) -> (Verb, &str) {
    (Verb::Append, data)
}

#[test]
fn a_list_outlives_either_server() {
    let servers = &mut Servers::default();
    for ttl in [0, 60] {
        let kind = Kind::List(List { ttl: Duration::from_secs(ttl) });
        let key = format!("l{ttl}");
        let commands = [append("+ann\n"), append("+ann\n-ann"), append("+user:1\n+b")];
        let all = commands.map(|(verb, lines)| servers.store(&kind, verb, &key, lines));
        assert_eq!(all, [5, 3, 3].map(|trips| (true, trips)), "{ttl}");
        survives(servers, &kind, &[(&key, "user:1\nb\n")]);
        assert_eq!(servers.get(&kind, &format!("{key}@b")), ("1".to_owned(), 1));
        assert_eq!(servers.command(&kind, &key, Request::Delete).0, Outcome::Deleted);
        assert_eq!(servers.command(&kind, &key, Request::Delete).0, Outcome::NotFound);
        assert_eq!(servers.get(&kind, &key).0, "");
    }
}

#[test]
fn a_log_outlives_either_server_and_a_tail_sees_each_entry_once() {
    let servers = &mut Servers::default();
    let kind = Kind::Log(Log { window: Duration::from_secs(60), slot: Duration::from_secs(10) });
    for (entry, trips) in [("a\n", 10), ("b\n", 3), ("c\n", 3)] {
        assert_eq!(servers.store(&kind, Verb::Append, "g", entry), (true, trips), "{entry}");
    }
    let (seen, _) = servers.get(&kind, "g@0");
    let cursor = seen.strip_suffix("\na\nb\nc\n").unwrap();
    survives(servers, &kind, &[("g", "a\nb\nc\n")]);
    servers.store(&kind, Verb::Append, "g", "d\n");
    let (behind, _) = servers.get(&kind, &format!("g@{cursor}"));
    assert_eq!(behind.split_once('\n').unwrap().1, "d\n");
}

#[test]
fn a_window_outlives_either_server() {
    let servers = &mut Servers::default();
    let kind =
        Kind::Window(Window { window: Duration::from_secs(50), slots: 5, smooth: false, unique: false });
    for (sum, trips) in [(2, 5), (4, 3)] {
        let count = Request::Count { decr: false, delta: 2, initial: None };
        let (outcome, took) = servers.command(&kind, "w", count);
        assert!(matches!(outcome, Outcome::Counted(found, ..) if found == sum), "{outcome:?}");
        assert_eq!(took, trips);
    }
    survives(servers, &kind, &[("w", "4")]);
    assert_eq!(servers.command(&kind, "w", Request::Delete).0, Outcome::Deleted);
    assert_eq!(servers.get(&kind, "w").0, "0");
}

#[test]
fn a_visitor_counts_once_on_either_server_and_again_behind_a_delete() {
    let servers = &mut Servers::default();
    let kind =
        Kind::Window(Window { window: Duration::from_secs(50), slots: 5, smooth: false, unique: true });
    for (stored, trips) in [(true, 11), (false, 1)] {
        assert_eq!(servers.store(&kind, Verb::Add, "w:joe", ""), (stored, trips));
    }
    // The first delete leaves a number, the second another one. No marker is lost in between.
    for _ in 0..2 {
        assert_eq!(servers.command(&kind, "w", Request::Delete).0, Outcome::Deleted);
        assert!(servers.store(&kind, Verb::Add, "w:joe", "").0);
        assert!(!servers.store(&kind, Verb::Add, "w:joe", "").0);
    }
    for side in [Side::First, Side::Second] {
        servers.lose(side);
        assert!(!servers.store(&kind, Verb::Add, "w:joe", "").0, "{side:?}");
        assert_eq!(servers.get(&kind, "w").0, "1", "{side:?}");
    }
    survives(servers, &kind, &[("w", "1")]);
}

#[test]
fn a_table_outlives_either_server() {
    let servers = &mut Servers::default();
    let kind = Kind::Table(Table { ttl: Duration::ZERO });
    assert_eq!(servers.store(&kind, Verb::Set, "t/ann", "1"), (true, 12));
    assert_eq!(servers.store(&kind, Verb::Set, "t/ann", "2"), (true, 5));
    assert_eq!(servers.store(&kind, Verb::Add, "t/ann", "3"), (false, 2), "its name is noted");
    let count = Request::Count { decr: false, delta: 1, initial: Some((40, None)) };
    assert!(matches!(servers.command(&kind, "t/n", count).0, Outcome::Counted(40, ..)));
    assert_eq!((servers.get(&kind, "t").1, servers.get(&kind, "t/ann").1), (2, 1));
    survives(servers, &kind, &[("t/ann", "2"), ("t", "ann\nn\n")]);
    assert_eq!(servers.command(&kind, "t/n", Request::Delete).0, Outcome::Deleted);
    survives(servers, &kind, &[("t", "ann\n")]);
    assert_eq!(servers.command(&kind, "t", Request::Delete).0, Outcome::Deleted);
    assert_eq!((servers.get(&kind, "t").0, servers.get(&kind, "t/ann").0), (String::new(), String::new()));
}

#[test]
fn an_element_of_a_table_lives_no_longer_than_its_rule_says() {
    let servers = &mut Servers::default();
    let kind = Kind::Table(Table { ttl: Duration::from_secs(60) });
    let ttl = |servers: &mut Servers| match servers.command(&kind, "t/ann", Request::Get).0 {
        Outcome::Value { ttl, .. } => ttl,
        other => panic!("{other:?}"),
    };
    servers.store(&kind, Verb::Set, "t/ann", "1");
    assert_eq!(ttl(servers), Some(60));
    servers.command(&kind, "t/ann", Request::Touch { exptime: 30 });
    assert_eq!(ttl(servers), Some(30));
    servers.command(&kind, "t/ann", Request::Touch { exptime: 3_000 });
    assert_eq!(ttl(servers), Some(60));
}

#[test]
fn a_lock_outlives_either_server_and_its_numbers_grow() {
    for fence in [false, true] {
        let servers = &mut Servers::default();
        let kind = Kind::Lock(Lock { ttl: Duration::from_secs(30), fence });
        let mut last = 0;
        let trips = if fence { [13, 14] } else { [5, 3] };
        for (side, trips) in [Side::First, Side::Second].into_iter().zip(trips) {
            let take = Request::Store { verb: Verb::Add, data: b"me", flags: 0, exptime: 0 };
            let (Outcome::Locked(mut hold), took) = servers.command(&kind, "k", take) else {
                panic!("it is free")
            };
            assert_eq!(took, trips, "{fence}");
            servers.lose(side);
            assert_eq!(servers.command(&kind, "k", take).0, Outcome::NotStored, "{side:?}");
            let renewed = servers.run(&mut OnCopies::new(HoldMachine::renew(&mut hold))).0;
            assert!(matches!(renewed, Outcome::Stored(_)), "{renewed:?}");
            if fence {
                let owner = servers.get(&kind, "k").0;
                let number: u64 = owner.strip_prefix("me ").unwrap().parse().unwrap();
                assert!(number > last, "{number} after {last}");
                last = number;
            }
            let released = servers.run(&mut OnCopies::new(HoldMachine::release(&mut hold)));
            assert_eq!(released.0, Outcome::Deleted);
        }
    }
}

#[test]
fn a_log_and_the_names_of_a_table_are_not_read_from_a_first_copy_alone() {
    let servers = &mut Servers::default();
    let log = Kind::Log(Log { window: Duration::from_secs(60), slot: Duration::from_secs(10) });
    let table = Kind::Table(Table { ttl: Duration::ZERO });
    let list = Kind::List(List { ttl: Duration::ZERO });
    servers.store(&log, Verb::Append, "g", "a\n");
    // Each item exists: of one that does not, a single server cannot tell.
    for n in 0..40 {
        servers.store(&table, Verb::Set, &format!("t/{n}"), "1");
        servers.store(&list, Verb::Append, "l", &format!("+{n}"));
    }
    let now = NOW / 1000;
    for (kind, key, side, is_read) in [
        (&log, format!("g@{now}-{now}"), Side::First, true),
        (&log, format!("g@{now}-{now}"), Side::Second, false),
        (&table, "t".to_owned(), Side::First, true),
        (&table, "t".to_owned(), Side::Second, false),
        (&table, "t/1".to_owned(), Side::Second, true),
        (&list, "l".to_owned(), Side::Second, true),
    ] {
        servers.silent = Some(side);
        let outcome = servers.command(kind, &key, Request::Get).0;
        match is_read {
            true => assert!(matches!(outcome, Outcome::Value { .. }), "{key}, {side:?}: {outcome:?}"),
            false => assert_eq!(outcome, Outcome::Failed(Failure::TimedOut), "{key}, {side:?}"),
        }
    }
}

#[test]
fn a_key_that_leaves_no_room_for_the_keys_of_copies_is_refused() {
    let copied = |kind| Kind::Copied(Copied { of: Some(Box::new(kind)) });
    let list = copied(Kind::List(List { ttl: Duration::ZERO }));
    let table = copied(Kind::Table(Table { ttl: Duration::ZERO }));
    let counter = copied(Kind::Counter(Counter { ttl: Duration::ZERO }));
    for (kind, own, rest, longest) in
        [(&list, b'k', "", 201), (&table, b'k', "/ann", 221), (&counter, b'k', "", 225)]
    {
        for (length, is_right) in [(longest, true), (longest + 1, false)] {
            let key = [&vec![own; length][..], rest.as_bytes()].concat();
            let request = Request::Get;
            let begun = begin(kind, &key, length, request, &Memory::default(), NOW);
            assert_eq!(begun.is_ok(), is_right, "{length}");
        }
    }
}

mod half_changes;
