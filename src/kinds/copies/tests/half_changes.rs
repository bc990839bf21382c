//! A change that the first copy has and the second one lacks: what comes next is answered as if the change had been made, and no
//! command is answered before it is.

use super::*;

const KEY: &str = "r:0";

fn store(verb: Verb, data: &'static [u8]) -> Request<'static> {
    Request::Store { verb, data, flags: 3, exptime: 0 }
}

/// Every classic command. `cas`: that of the value before the change.
fn commands(cas: u64) -> Vec<Request<'static>> {
    vec![
        Request::Get,
        store(Verb::Set, b"1"),
        store(Verb::Add, b"2"),
        store(Verb::Replace, b"3"),
        store(Verb::Append, b"4"),
        store(Verb::Prepend, b"5"),
        store(Verb::Cas(cas), b"6"),
        Request::Count { decr: false, delta: 7, initial: None },
        Request::Count { decr: true, delta: 1, initial: None },
        Request::Touch { exptime: 100 },
        Request::Touch { exptime: -1 },
        Request::Delete,
    ]
}

/// Servers with this value, and its CAS.
fn with(before: Option<&'static [u8]>) -> (Servers, u64) {
    let mut servers = Servers::default();
    match before.map(|data| servers.raw(KEY, store(Verb::Set, data))) {
        Some(Outcome::Stored(cas)) => (servers, cas),
        _ => (servers, 0),
    }
}

#[test]
fn every_command_behind_half_a_change_has_the_outcome_that_it_has_behind_the_change() {
    let mut halves = 0;
    for before in [None, Some(&b"10"[..]), Some(b"x")] {
        let (_, cas) = with(before);
        for change in commands(cas) {
            let (mut servers, _) = with(before);
            servers.loses_second = Some(false);
            if servers.raw(KEY, change) != Outcome::Failed(Failure::TimedOut) {
                continue;
            }
            halves += 1;
            for next in [commands(cas), vec![change]].concat() {
                for reads in [false, true] {
                    let name = format!("{before:?}, half {change:?}, read: {reads}, then {next:?}");
                    let (mut servers, _) = with(before);
                    let (mut whole, _) = with(before);
                    servers.loses_second = Some(false);
                    servers.raw(KEY, change);
                    whole.raw(KEY, change);
                    if reads {
                        assert_eq!(servers.raw(KEY, Request::Get), whole.raw(KEY, Request::Get), "{name}");
                        let [first, second] = servers.records(KEY);
                        assert_eq!(first, second, "{name}: behind the read");
                    }
                    assert_eq!(servers.raw(KEY, next), whole.raw(KEY, next), "{name}");
                    let [first, second] = servers.records(KEY);
                    assert_eq!(first, second, "{name}");
                    assert_eq!(servers.raw(KEY, Request::Get), whole.raw(KEY, Request::Get), "{name}");
                }
            }
        }
    }
    assert!(halves > 12, "{halves}");
}

#[test]
fn what_is_decided_on_half_a_change_is_not_answered_while_it_cannot_be_completed() {
    let (mut servers, _) = with(Some(b"7"));
    servers.loses_second = Some(false);
    assert_eq!(servers.raw(KEY, Request::Delete), Outcome::Failed(Failure::TimedOut));
    for _ in 0..3 {
        servers.loses_second = Some(true);
        assert_eq!(servers.raw(KEY, Request::Delete), Outcome::Failed(Failure::TimedOut));
    }
    // Nothing is lost with the first copy, because nothing was acknowledged.
    servers.lose(Side::First);
    assert_eq!(servers.raw(KEY, Request::Delete), Outcome::Deleted);
}

#[test]
fn a_command_says_which_items_it_has_left_half_changed() {
    let kind = Kind::Copied(Copied { of: None });
    let left = |servers: &mut Servers, request| {
        let mut machine = begin(&kind, KEY.as_bytes(), KEY.len(), request, &servers.memory, NOW).unwrap();
        servers.run(&mut *machine);
        machine.unfinished()
    };
    let (mut servers, _) = with(Some(b"7"));
    assert_eq!(left(&mut servers, Request::Delete), Vec::<ItemKey>::new());
    servers.loses_second = Some(false);
    assert_eq!(left(&mut servers, store(Verb::Set, b"1")), vec![ItemKey::from_slice(KEY.as_bytes())]);
    servers.loses_second = Some(true);
    assert_eq!(left(&mut servers, Request::Get), vec![ItemKey::from_slice(KEY.as_bytes())]);
    assert_eq!(left(&mut servers, Request::Get), Vec::<ItemKey>::new());
    // Of a structure, those of its items.
    let list = Kind::Copied(Copied { of: Some(Box::new(Kind::List(List { ttl: Duration::ZERO }))) });
    let append = Request::Store { verb: Verb::Append, data: b"+a\n", flags: 0, exptime: 0 };
    servers.loses_second = Some(false);
    let mut machine = begin(&list, b"l", 1, append, &servers.memory, NOW).unwrap();
    assert!(matches!(servers.run(&mut *machine).0, Outcome::Failed(Failure::TimedOut)));
    let left = machine.unfinished();
    assert!(left.len() == 1 && left[0].starts_with(b"l@kennel:"), "{left:?}");
}
