use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use bytes::BufMut;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::*;
use crate::metrics::{Metrics, ServerName};
use crate::upstream::capabilities::{Capabilities, ProbeFailure};
use crate::upstream::{Address, ServerSpec};

const GET: GetKind = GetKind { exptime: None, cas: false };

fn connection() -> Rc<Connection> {
    let server = ServerName { pool: "main".into(), server: "a".into() };
    let metrics = Metrics::new(Vec::new(), vec![server], 1);
    let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
    let spec = ServerSpec { address, weight: 1, name: None };
    let server = Server::new(0, &spec, second, second, || 1_700_000_000_000).unwrap();
    let first_attempt = server.first_attempt();
    Connection::new(Arc::new(server), first_attempt, metrics.worker(0))
}

/// Whether somebody was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection that has been made, and the inboxes of two who ask.
fn asked_by_two() -> (Rc<Connection>, Rc<PendingReplies>, Rc<PendingReplies>) {
    let connection = connection();
    connection.state.borrow_mut().phase = Phase::Up;
    (connection, Rc::default(), Rc::default())
}

/// Asks for several keys.
fn ask(connection: &Connection, inbox: &Rc<PendingReplies>, keys: &[&str], how: GetKind) -> ReplyId {
    let one_of = |last, key: &&str| Some(connection.get_one_of(inbox, key.as_bytes(), how, last));
    keys.iter().fold(None, one_of).unwrap()
}

fn line(connection: &Connection, inbox: &Rc<PendingReplies>, text: &str) -> ReplyId {
    connection.send(inbox, Shape::Line, |out| out.extend_from_slice(text.as_bytes()))
}

fn queued(connection: &Connection) -> String {
    String::from_utf8(connection.state.borrow().out.to_vec()).unwrap()
}

/// Reads all of it, as if it had arrived at once; gives in how many pieces.
fn read(connection: &Connection, mut stream: &[u8]) -> usize {
    let (mut reading, mut reads) = (ReadBuffer::new(), 0);
    while !stream.is_empty() {
        let mut room = reading.room();
        let (piece, rest) = stream.split_at(stream.len().min(room.remaining_mut()));
        room.put_slice(piece);
        (stream, reads) = (rest, reads + 1);
        connection.hand_out(&mut reading).unwrap();
    }
    reads
}

/// What was said, with the end of a `get` where that stands beside others on its line.
fn said(inbox: &PendingReplies, ticket: ReplyId) -> String {
    let bytes = match inbox.take(ticket) {
        Some(Reply::Answered { bytes, .. }) => bytes.to_vec(),
        Some(Reply::Part { bytes, .. }) => [&bytes, &b"END\r\n"[..]].concat(),
        other => panic!("{other:?}"),
    };
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_large_answer_of_many_values_is_read_in_few_pieces_and_the_next_one_is_left_whole() {
    for size in [100, 1_000, 20_000] {
        let keys: Vec<String> = (0..100).map(|i| format!("a:longer:key:{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let value = |key: &&str| format!("VALUE {key} 0 {size}\r\n{}\r\n", "x".repeat(size));
        let many = keys.iter().map(value).collect::<String>() + "END\r\n";
        let (connection, inbox, _) = asked_by_two();
        let asked = [
            ask(&connection, &inbox, &keys, GET),
            line(&connection, &inbox, "set k 0 0 0\r\n\r\n"),
            ask(&connection, &inbox, &keys, GET),
            line(&connection, &inbox, "incr k 1\r\n"),
        ];
        let stream = [&many, "STORED\r\n", &many, "12\r\n"].concat();
        let reads = read(&connection, stream.as_bytes());
        assert!(reads <= 10 + stream.len() / (8 * 1024), "{reads} of {}", stream.len());
        let said = asked.map(|ticket| said(&inbox, ticket));
        assert!(said[0] == many && said[2] == many);
        assert_eq!((&said[1][..], &said[3][..]), ("STORED\r\n", "12\r\n"));
    }
}

#[test]
fn who_asked_for_keys_on_one_line_are_told_their_own_however_large_and_what_is_behind_is_left_whole() {
    for size in [100, 1_000, 20_000] {
        let value = |key: &&str| format!("VALUE {key} 0 {size}\r\n{}\r\n", "x".repeat(size));
        let (connection, one, other) = asked_by_two();
        let asked = [
            (&one, ask(&connection, &one, &["a", "b", "c"], GET), &["a", "c"][..]),
            (&other, ask(&connection, &other, &["d", "e", "f"], GET), &["f"]),
            (&one, ask(&connection, &one, &["g", "h"], GET), &[]),
            (&other, connection.get(&other, b"i", GET), &["i"]),
            (&one, ask(&connection, &one, &["j", "k"], GET), &["k"]),
        ];
        let behind = line(&connection, &other, "touch x 1\r\n");
        assert_eq!(queued(&connection), "get a b c d e f g h i j k\r\ntouch x 1\r\n");
        // b, d, e, g, h and j are not there.
        let stream = ["a", "c", "f", "i", "k"].iter().map(value).collect::<String>() + "END\r\nTOUCHED\r\n";
        let reads = read(&connection, stream.as_bytes());
        assert!(reads <= 10 + stream.len() / (8 * 1024), "{reads} of {}", stream.len());
        for (inbox, ticket, keys) in asked {
            let right = keys.iter().map(value).collect::<String>() + "END\r\n";
            assert!(said(inbox, ticket) == right, "{keys:?}");
        }
        assert_eq!(said(&other, behind), "TOUCHED\r\n");
        assert!(connection.state.borrow().names.first(1).is_empty());
    }
}

#[test]
fn what_is_said_to_who_waits_no_longer_is_nobody_elses() {
    let (connection, one, other) = asked_by_two();
    ask(&connection, &one, &["a", "b"], GET);
    let told = [ask(&connection, &other, &["c", "d"], GET), ask(&connection, &other, &["e", "f"], GET)];
    {
        let mut state = connection.state.borrow_mut();
        state.owed[0].asker = None;
        state.timed_out = 1;
    }
    read(&connection, b"VALUE b 0 1\r\nb\r\nVALUE d 0 1\r\nd\r\nVALUE e 0 0\r\n\r\nEND\r\n");
    let told = told.map(|ticket| said(&other, ticket));
    assert_eq!(told, ["VALUE d 0 1\r\nd\r\nEND\r\n", "VALUE e 0 0\r\n\r\nEND\r\n"]);
    assert_eq!(connection.state.borrow().timed_out, 0);
}

#[test]
fn a_get_joins_none_that_stands_before_another_of_its_key() {
    let (connection, one, other) = asked_by_two();
    connection.get(&other, b"a", GET);
    connection.get(&one, b"a", GET);
    ask(&connection, &one, &["a", "b"], GET);
    connection.get(&one, b"a", GET);
    connection.get(&other, b"a", GET);
    // The same where it is not the first of those that are asked for together.
    connection.get(&one, b"z", GetKind { cas: true, ..GET });
    ask(&connection, &one, &["y", "a"], GET);
    connection.get(&one, b"a", GET);
    let lines = ["get a", "get a b", "get a", "gets z", "get y a", "get a", ""];
    assert_eq!(queued(&connection), lines.join("\r\n"));
    let sharers: Vec<usize> = connection.state.borrow().owed.iter().map(|owed| owed.sharers.len()).collect();
    assert_eq!(sharers, [1, 0, 1, 0, 0, 0]);
}

#[test]
fn touches_of_the_same_exptime_share_a_line_and_what_is_read_behind_them_is_read_anew() {
    let (connection, one, other) = asked_by_two();
    let until = |exptime, cas| GetKind { exptime: Some(exptime), cas };
    connection.get(&one, b"a", GET);
    connection.get(&one, b"b", until(60, false));
    ask(&connection, &other, &["c", "d"], until(60, false));
    connection.get(&one, b"e", until(60, true));
    connection.get(&one, b"f", until(0, true));
    connection.get(&other, b"a", GET);
    assert_eq!(queued(&connection), "get a\r\ngat 60 b c d\r\ngats 60 e\r\ngats 0 f\r\nget a\r\n");
}

#[test]
fn what_is_not_believed_ends_the_connection_that_it_came_over_and_no_later_one() {
    let connection = connection();
    let distrusted = |epoch| {
        connection.distrust(epoch);
        std::mem::take(&mut connection.state.borrow_mut().distrusted)
    };
    assert!(!distrusted(9));
    (connection.state.borrow_mut().phase, connection.state.borrow_mut().made) = (Phase::Up, 3);
    assert_eq!([2, 3, 4].map(distrusted), [false, true, true]);
}

/// A connection that is still to be made, with a command of a client, one of the guard, and another of each behind them.
fn asked_early() -> (Rc<Connection>, Rc<PendingReplies>, [ReplyId; 4]) {
    let (connection, inbox) = (connection(), Rc::<PendingReplies>::default());
    let guard = |text: &str| connection.ask(&inbox, None, |out| out.extend_from_slice(text.as_bytes()));
    let tickets = [
        connection.get(&inbox, b"a", GET),
        guard("mg k v\r\n"),
        connection.get(&inbox, b"b", GET),
        connection.read(&inbox, |out| out.extend_from_slice(b"mg l v\r\n")).0,
    ];
    (connection, inbox, tickets)
}

#[test]
fn what_was_asked_before_the_first_connection_is_sent_if_the_server_can_guard() {
    let (connection, inbox, tickets) = asked_early();
    connection.opened(connection.server.connected(), &Capabilities::default());
    assert_eq!(queued(&connection), "get a b\r\nmg k v\r\nmg l v\r\n");
    let since: Vec<Instant> = connection.state.borrow().owed.iter().map(|owed| owed.since).collect();
    assert!(since.is_sorted(), "the first is the first to time out");
    read(&connection, b"END\r\nEN\r\nHD\r\n");
    assert_eq!(tickets.map(|ticket| said(&inbox, ticket)), ["END\r\n", "EN\r\n", "END\r\n", "HD\r\n"]);
}

#[test]
fn what_depends_on_a_cas_waits_for_the_first_connection_and_is_sent_if_that_is_no_younger() {
    let (connection, inbox) = (connection(), Rc::<PendingReplies>::default());
    connection.server.connected();
    // Two that were read over another worker's connections: before this one was made, and after.
    let [old, new] = [1, 2].map(|epoch| {
        let text = format!("md k{epoch} C1\r\n");
        connection.ask(&inbox, Some(epoch), |out| out.extend_from_slice(text.as_bytes()))
    });
    let read_early = connection.ask(&inbox, None, |out| out.extend_from_slice(b"mg k v c\r\n"));
    assert!([old, new].iter().all(|ticket| !inbox.is_here(*ticket)), "the attempt is not over");
    let made = connection.server.connected();
    // Another worker's, before anything is read over this one: what is read holds over that one too.
    let later = connection.server.connected();
    connection.opened(made, &Capabilities::default());
    assert!(matches!(inbox.take(old), Some(Reply::Moved)));
    assert_eq!(queued(&connection), "md k2 C1\r\nmg k v c\r\n");
    read(&connection, b"HD\r\nEN\r\n");
    assert_eq!(said(&inbox, new), "HD\r\n");
    let reply = inbox.take(read_early);
    assert!(matches!(reply, Some(Reply::Answered { epoch, .. }) if epoch == later), "{reply:?}");
}

#[test]
fn a_server_of_which_nothing_is_known_is_guarded_from_when_that_is_found_out() {
    let (connection, inbox, tickets) = asked_early();
    let found = |missing_feature| Capabilities { missing_feature, ..Capabilities::default() };
    connection
        .opened(connection.server.connected(), &found(Some(MissingFeature::Unknown(ProbeFailure::Full))));
    for ticket in [tickets[1], tickets[3]] {
        assert!(matches!(inbox.take(ticket), Some(Reply::Failed(Failure::Unguarded))));
    }
    connection.found(&found(None));
    connection.ask(&inbox, Some(1), |out| out.extend_from_slice(b"md k C1\r\n"));
    assert_eq!(queued(&connection), "get a b\r\nmd k C1\r\n", "over the same connection");
    assert_eq!((connection.missing_feature(), connection.server.epoch()), (None, 1));
}

#[test]
fn a_server_that_cannot_guard_is_sent_what_clients_ask_and_nothing_of_the_guard() {
    let (connection, inbox, [a, k, b, l]) = asked_early();
    connection.opened(
        connection.server.connected(),
        &Capabilities { missing_feature: Some(MissingFeature::Cas), ..Capabilities::default() },
    );
    let later = [
        connection.ask(&inbox, Some(0), |out| out.extend_from_slice(b"md k C1\r\n")),
        connection.read(&inbox, |out| out.extend_from_slice(b"mg k v\r\n")).0,
    ];
    for ticket in [k, l, later[0], later[1]] {
        let reply = inbox.take(ticket);
        assert!(matches!(reply, Some(Reply::Failed(Failure::Unguarded))), "{reply:?}");
    }
    assert_eq!(queued(&connection), "get a b\r\n");
    read(&connection, b"END\r\n");
    assert_eq!([a, b].map(|ticket| said(&inbox, ticket)), ["END\r\n"; 2]);
    // The next connection may be to a server that can.
    connection.opened(connection.server.connected(), &Capabilities::default());
    connection.ask(&inbox, None, |out| out.extend_from_slice(b"mg k v\r\n"));
    assert_eq!(queued(&connection), "get a b\r\nmg k v\r\n");
}

#[test]
fn a_server_that_owes_too_much_is_asked_no_more_and_every_reply_is_still_its_askers() {
    let (connection, one, other) = asked_by_two();
    let touch = |inbox: &Rc<PendingReplies>, n: usize| line(&connection, inbox, &format!("incr k{n} 1\r\n"));
    let asked: Vec<ReplyId> =
        (0..MAX_OWED).map(|n| touch(if n % 2 == 0 { &one } else { &other }, n)).collect();
    let before = connection.state.borrow().out.len();
    for refused in [touch(&one, 0), connection.get(&other, b"a", GET)] {
        let reply = one.take(refused).or_else(|| other.take(refused));
        assert!(matches!(reply, Some(Reply::Failed(Failure::Overloaded))), "{reply:?}");
    }
    assert_eq!(connection.state.borrow().out.len(), before, "nothing of it was queued");
    let replies: String = (0..MAX_OWED).map(|n| format!("{n}\r\n")).collect();
    read(&connection, replies.as_bytes());
    for (n, ticket) in asked.into_iter().enumerate() {
        assert_eq!(said(if n % 2 == 0 { &one } else { &other }, ticket), format!("{n}\r\n"));
    }
    let again = touch(&one, 0);
    read(&connection, b"7\r\n");
    assert_eq!(said(&one, again), "7\r\n");
}

#[tokio::test]
async fn large_requests_wait_for_a_server_that_takes_nothing_before_any_request_is_refused() {
    let (connection, one, other) = asked_by_two();
    let large = format!("set k 0 0 {0}\r\n{1}\r\n", 1 << 20, "x".repeat(1 << 20));
    assert!(!connection.is_congested(&one));
    for _ in 0..MAX_EASY >> 20 {
        line(&connection, &one, &large);
    }
    assert!(connection.is_congested(&one), "its next one waits");
    let small = line(&connection, &other, "incr n 1\r\n");
    assert!(!other.is_here(small), "it is not refused");
    // Whoever sends on all the same is told so, and loses nobody else's command.
    while connection.state.borrow().out.len() < MAX_OUT {
        line(&connection, &one, &large);
    }
    let before = connection.state.borrow().out.len();
    let refused = line(&connection, &one, &large);
    assert!(matches!(one.take(refused), Some(Reply::Failed(Failure::Overloaded))));
    assert_eq!(connection.state.borrow().out.len(), before);
    // The server takes it: whoever waits is woken before it has taken all.
    let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
    let mut ours = Socket::Right(ours);
    let (woken, mut left) = (Arc::new(Woken::default()), None);
    one.wake_on_next(&Context::from_waker(&Arc::clone(&woken).into()));
    let writing = poll_fn(|cx| {
        assert!(!matches!(connection.poll_write(&mut ours, cx), Poll::Ready(_)));
        let waiting = connection.state.borrow().out.len();
        if woken.0.load(Ordering::Relaxed) {
            left.get_or_insert(waiting);
        }
        if waiting == 0 { Poll::Ready(()) } else { Poll::Pending }
    });
    let reading = async {
        let mut taken = 0;
        while taken < before {
            taken += theirs.read(&mut vec![0; 1 << 20]).await.unwrap();
        }
    };
    timeout(Duration::from_secs(20), async { tokio::join!(writing, reading) }).await.unwrap();
    assert!(left.is_some_and(|left| (1..MAX_EASY).contains(&left)), "{left:?} left when it was woken");
    assert!(!connection.is_congested(&one));
}

#[test]
fn a_value_larger_than_any_server_may_send_is_garbage() {
    for (length, believed) in [(1 << 30, true), ((1 << 30) + 1, false)] {
        let mut reading = ReadBuffer::new();
        reading.room().put_slice(format!("VALUE a 0 {length}\r\nx").as_bytes());
        assert_eq!(reading.frame(Shape::Values, &[]).is_ok(), believed, "{length}");
    }
}
