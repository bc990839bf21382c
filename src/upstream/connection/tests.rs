use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use bytes::BufMut;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::*;
use crate::metrics::{Metrics, ServerName};
use crate::random::Random;
use crate::upstream::capabilities::{Capabilities, ProbeFailure};
use crate::upstream::connection_error::ConnectionError;
use crate::upstream::read_buffer::ReadBuffer;
use crate::upstream::socket::Socket;

const GET: GetKind = GetKind { exptime: None, cas: false };

fn connection() -> Rc<Connection> {
    let server = ServerName { pool: "main".into(), server: "a".into() };
    let metrics = Metrics::new(Vec::new(), vec![server], 1);
    let server = Server::embedded();
    let first_attempt = server.first_attempt();
    Connection::new(Arc::new(server), first_attempt, metrics.worker(0).server(0))
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection that is up, and two clients.
fn with_two_clients() -> (Rc<Connection>, Rc<PendingReplies>, Rc<PendingReplies>) {
    let connection = connection();
    connection.state.borrow_mut().phase = Phase::Up;
    (connection, Rc::default(), Rc::default())
}

/// Reads several keys together.
fn get_all(connection: &Connection, client: &Rc<PendingReplies>, keys: &[&str], kind: GetKind) -> ReplyId {
    let one_of = |last, key: &&str| Some(connection.get_one_of(client, key.as_bytes(), kind, last));
    keys.iter().fold(None, one_of).unwrap()
}

fn line(connection: &Connection, client: &Rc<PendingReplies>, text: &str) -> ReplyId {
    connection.send(client, Shape::Line, |out| out.extend_from_slice(text.as_bytes()))
}

fn queued(connection: &Connection) -> String {
    String::from_utf8(connection.state.borrow().output.to_vec()).unwrap()
}

/// Reads a stream as if all of it had arrived at once. Returns the number of reads.
fn read(connection: &Connection, mut stream: &[u8]) -> usize {
    let (mut input, mut reads) = (ReadBuffer::new(), 0);
    while !stream.is_empty() {
        let mut space = input.free_space();
        let (piece, rest) = stream.split_at(stream.len().min(space.remaining_mut()));
        space.put_slice(piece);
        (stream, reads) = (rest, reads + 1);
        connection.deliver_all(&mut input).unwrap();
    }
    reads
}

/// A reply, with the end of a `get` that was batched.
fn reply(client: &PendingReplies, id: ReplyId) -> String {
    let bytes = match client.take(id) {
        Some(Reply::Answered { bytes, .. }) => bytes.to_vec(),
        Some(Reply::Part { bytes, .. }) => [&bytes, &b"END\r\n"[..]].concat(),
        other => panic!("{other:?}"),
    };
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_large_reply_with_many_values_takes_few_reads_and_leaves_the_next_one_intact() {
    for size in [100, 1_000, 20_000] {
        let keys: Vec<String> = (0..100).map(|i| format!("a:longer:key:{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let value = |key: &&str| format!("VALUE {key} 0 {size}\r\n{}\r\n", "x".repeat(size));
        let many = keys.iter().map(value).collect::<String>() + "END\r\n";
        let (connection, client, _) = with_two_clients();
        let sent = [
            get_all(&connection, &client, &keys, GET),
            line(&connection, &client, "set k 0 0 0\r\n\r\n"),
            get_all(&connection, &client, &keys, GET),
            line(&connection, &client, "incr k 1\r\n"),
        ];
        let stream = [&many, "STORED\r\n", &many, "12\r\n"].concat();
        let reads = read(&connection, stream.as_bytes());
        assert!(reads <= 10 + stream.len() / (8 * 1024), "{reads} of {}", stream.len());
        let replies = sent.map(|id| reply(&client, id));
        assert!(replies[0] == many && replies[2] == many);
        assert_eq!((&replies[1][..], &replies[3][..]), ("STORED\r\n", "12\r\n"));
    }
}

#[test]
fn clients_on_one_line_get_their_own_values_of_any_size() {
    for size in [100, 1_000, 20_000] {
        let value = |key: &&str| format!("VALUE {key} 0 {size}\r\n{}\r\n", "x".repeat(size));
        let (connection, one, other) = with_two_clients();
        let sent = [
            (&one, get_all(&connection, &one, &["a", "b", "c"], GET), &["a", "c"][..]),
            (&other, get_all(&connection, &other, &["d", "e", "f"], GET), &["f"]),
            (&one, get_all(&connection, &one, &["g", "h"], GET), &[]),
            (&other, connection.get(&other, b"i", GET), &["i"]),
            (&one, get_all(&connection, &one, &["j", "k"], GET), &["k"]),
        ];
        let behind = line(&connection, &other, "touch x 1\r\n");
        assert_eq!(queued(&connection), "get a b c d e f g h i j k\r\ntouch x 1\r\n");
        // b, d, e, g, h and j are not there.
        let stream = ["a", "c", "f", "i", "k"].iter().map(value).collect::<String>() + "END\r\nTOUCHED\r\n";
        let reads = read(&connection, stream.as_bytes());
        assert!(reads <= 10 + stream.len() / (8 * 1024), "{reads} of {}", stream.len());
        for (client, id, keys) in sent {
            let expected = keys.iter().map(value).collect::<String>() + "END\r\n";
            assert!(reply(client, id) == expected, "{keys:?}");
        }
        assert_eq!(reply(&other, behind), "TOUCHED\r\n");
        assert!(connection.state.borrow().key_digests.first(1).is_empty());
    }
}

#[test]
fn the_reply_to_a_timed_out_request_is_discarded() {
    let (connection, one, other) = with_two_clients();
    get_all(&connection, &one, &["a", "b"], GET);
    let ids =
        [get_all(&connection, &other, &["c", "d"], GET), get_all(&connection, &other, &["e", "f"], GET)];
    {
        let mut state = connection.state.borrow_mut();
        state.pending[0].requester = None;
        state.timed_out = 1;
    }
    read(&connection, b"VALUE b 0 1\r\nb\r\nVALUE d 0 1\r\nd\r\nVALUE e 0 0\r\n\r\nEND\r\n");
    let replies = ids.map(|id| reply(&other, id));
    assert_eq!(replies, ["VALUE d 0 1\r\nd\r\nEND\r\n", "VALUE e 0 0\r\n\r\nEND\r\n"]);
    assert_eq!(connection.state.borrow().timed_out, 0);
}

#[test]
fn a_get_does_not_join_one_before_a_later_read_of_its_key() {
    let (connection, one, other) = with_two_clients();
    connection.get(&other, b"a", GET);
    connection.get(&one, b"a", GET);
    get_all(&connection, &one, &["a", "b"], GET);
    connection.get(&one, b"a", GET);
    connection.get(&other, b"a", GET);
    // Also if it is not the first key of that read.
    connection.get(&one, b"z", GetKind { cas: true, ..GET });
    get_all(&connection, &one, &["y", "a"], GET);
    connection.get(&one, b"a", GET);
    let lines = ["get a", "get a b", "get a", "gets z", "get y a", "get a", ""];
    assert_eq!(queued(&connection), lines.join("\r\n"));
    let sharers: Vec<usize> =
        connection.state.borrow().pending.iter().map(|request| request.sharers.len()).collect();
    assert_eq!(sharers, [1, 0, 1, 0, 0, 0]);
}

#[test]
fn touches_with_the_same_exptime_share_a_line_and_end_sharing() {
    let (connection, one, other) = with_two_clients();
    let until = |exptime, cas| GetKind { exptime: Some(exptime), cas };
    connection.get(&one, b"a", GET);
    connection.get(&one, b"b", until(60, false));
    get_all(&connection, &other, &["c", "d"], until(60, false));
    connection.get(&one, b"e", until(60, true));
    connection.get(&one, b"f", until(0, true));
    connection.get(&other, b"a", GET);
    assert_eq!(queued(&connection), "get a\r\ngat 60 b c d\r\ngats 60 e\r\ngats 0 f\r\nget a\r\n");
}

#[test]
fn a_distrusted_reply_ends_its_own_connection_and_no_later_one() {
    let connection = connection();
    let distrusted = |epoch| {
        connection.distrust(epoch);
        std::mem::take(&mut connection.state.borrow_mut().distrusted)
    };
    assert!(!distrusted(9));
    (connection.state.borrow_mut().phase, connection.state.borrow_mut().epoch) = (Phase::Up, 3);
    assert_eq!([2, 3, 4].map(distrusted), [false, true, true]);
}

/// A connection that is not up yet, with commands of a client and of the guard, in turn.
fn with_early_commands() -> (Rc<Connection>, Rc<PendingReplies>, [ReplyId; 4]) {
    let (connection, client) = (connection(), Rc::<PendingReplies>::default());
    let guard =
        |text: &str| connection.send_guard(&client, None, |out| out.extend_from_slice(text.as_bytes()));
    let ids = [
        connection.get(&client, b"a", GET),
        guard("mg k v\r\n"),
        connection.get(&client, b"b", GET),
        connection.read(&client, |out| out.extend_from_slice(b"mg l v\r\n")).0,
    ];
    (connection, client, ids)
}

#[test]
fn early_commands_are_sent_if_the_server_can_guard() {
    let (connection, client, ids) = with_early_commands();
    connection.opened(connection.server.connected(), &Capabilities::default());
    assert_eq!(queued(&connection), "get a b\r\nmg k v\r\nmg l v\r\n");
    let sent: Vec<Instant> = connection.state.borrow().pending.iter().map(|request| request.sent).collect();
    assert!(sent.is_sorted(), "the first one times out first");
    read(&connection, b"END\r\nEN\r\nHD\r\n");
    assert_eq!(ids.map(|id| reply(&client, id)), ["END\r\n", "EN\r\n", "END\r\n", "HD\r\n"]);
}

#[test]
fn a_command_with_a_cas_is_sent_over_a_first_connection_that_is_not_later() {
    let (connection, client) = (connection(), Rc::<PendingReplies>::default());
    connection.server.connected();
    // Two CAS values that were read over another worker's connections: before this one was made, and after.
    let [old, new] = [1, 2].map(|epoch| {
        let text = format!("md k{epoch} C1\r\n");
        connection.send_guard(&client, Some(epoch), |out| out.extend_from_slice(text.as_bytes()))
    });
    let read_early = connection.send_guard(&client, None, |out| out.extend_from_slice(b"mg k v c\r\n"));
    assert!([old, new].iter().all(|id| !client.has_arrived(*id)), "the attempt is in progress");
    let made = connection.server.connected();
    // Another worker connects before anything is read over this connection, so what is read is valid over both.
    let later = connection.server.connected();
    connection.opened(made, &Capabilities::default());
    assert!(matches!(client.take(old), Some(Reply::StaleCas)));
    assert_eq!(queued(&connection), "md k2 C1\r\nmg k v c\r\n");
    read(&connection, b"HD\r\nEN\r\n");
    assert_eq!(reply(&client, new), "HD\r\n");
    let reply = client.take(read_early);
    assert!(matches!(reply, Some(Reply::Answered { epoch, .. }) if epoch == later), "{reply:?}");
}

#[test]
fn a_server_is_guarded_once_a_later_probe_is_conclusive() {
    let (connection, client, ids) = with_early_commands();
    let found = |missing_feature| Capabilities { missing_feature, ..Capabilities::default() };
    connection
        .opened(connection.server.connected(), &found(Some(MissingFeature::Unknown(ProbeFailure::Full))));
    for id in [ids[1], ids[3]] {
        assert!(matches!(client.take(id), Some(Reply::Failed(Failure::Unguarded))));
    }
    connection.set_capabilities(&found(None));
    connection.send_guard(&client, Some(1), |out| out.extend_from_slice(b"md k C1\r\n"));
    assert_eq!(queued(&connection), "get a b\r\nmd k C1\r\n", "over the same connection");
    assert_eq!((connection.missing_feature(), connection.server.epoch()), (None, 1));
}

#[test]
fn a_server_that_cannot_guard_gets_no_commands_of_the_guard() {
    let (connection, client, [a, k, b, l]) = with_early_commands();
    connection.opened(
        connection.server.connected(),
        &Capabilities { missing_feature: Some(MissingFeature::Cas), ..Capabilities::default() },
    );
    let later = [
        connection.send_guard(&client, Some(0), |out| out.extend_from_slice(b"md k C1\r\n")),
        connection.read(&client, |out| out.extend_from_slice(b"mg k v\r\n")).0,
    ];
    for id in [k, l, later[0], later[1]] {
        let reply = client.take(id);
        assert!(matches!(reply, Some(Reply::Failed(Failure::Unguarded))), "{reply:?}");
    }
    assert_eq!(queued(&connection), "get a b\r\n");
    read(&connection, b"END\r\n");
    assert_eq!([a, b].map(|id| reply(&client, id)), ["END\r\n"; 2]);
    // The next server at this address may be able to.
    connection.opened(connection.server.connected(), &Capabilities::default());
    connection.send_guard(&client, None, |out| out.extend_from_slice(b"mg k v\r\n"));
    assert_eq!(queued(&connection), "get a b\r\nmg k v\r\n");
}

#[test]
fn with_too_many_pending_requests_further_ones_are_refused_and_replies_still_match() {
    let (connection, one, other) = with_two_clients();
    let touch =
        |client: &Rc<PendingReplies>, n: usize| line(&connection, client, &format!("incr k{n} 1\r\n"));
    let ids: Vec<ReplyId> =
        (0..MAX_PENDING).map(|n| touch(if n % 2 == 0 { &one } else { &other }, n)).collect();
    let before = connection.state.borrow().output.len();
    for refused in [touch(&one, 0), connection.get(&other, b"a", GET)] {
        let reply = one.take(refused).or_else(|| other.take(refused));
        assert!(matches!(reply, Some(Reply::Failed(Failure::Overloaded))), "{reply:?}");
    }
    assert_eq!(connection.state.borrow().output.len(), before, "nothing of it was queued");
    let replies: String = (0..MAX_PENDING).map(|n| format!("{n}\r\n")).collect();
    read(&connection, replies.as_bytes());
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(reply(if n % 2 == 0 { &one } else { &other }, id), format!("{n}\r\n"));
    }
    let again = touch(&one, 0);
    read(&connection, b"7\r\n");
    assert_eq!(reply(&one, again), "7\r\n");
}

#[tokio::test]
async fn large_requests_wait_for_a_slow_server_before_any_request_is_refused() {
    let (connection, one, other) = with_two_clients();
    let large = format!("set k 0 0 {0}\r\n{1}\r\n", 1 << 20, "x".repeat(1 << 20));
    assert!(!connection.is_congested(&one));
    for _ in 0..CONGESTED >> 20 {
        line(&connection, &one, &large);
    }
    assert!(connection.is_congested(&one), "the next large request waits");
    let small = line(&connection, &other, "incr n 1\r\n");
    assert!(!other.has_arrived(small), "it is queued");
    // Further large requests are refused, and no queued command is lost.
    while connection.state.borrow().output.len() < MAX_OUTPUT {
        line(&connection, &one, &large);
    }
    let before = connection.state.borrow().output.len();
    let refused = line(&connection, &one, &large);
    assert!(matches!(one.take(refused), Some(Reply::Failed(Failure::Overloaded))));
    assert_eq!(connection.state.borrow().output.len(), before);
    // The server reads again: the waiting client is woken before the queue is empty.
    let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
    let mut ours = Socket::Unix(ours);
    let (woken, mut left) = (Arc::new(Woken::default()), None);
    one.wake_on_next(&Context::from_waker(&Arc::clone(&woken).into()));
    let writing = poll_fn(|cx| {
        assert!(!matches!(connection.poll_write(&mut ours, cx), Poll::Ready(_)));
        let waiting = connection.state.borrow().output.len();
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
    assert!(left.is_some_and(|left| (1..CONGESTED).contains(&left)), "{left:?} left when it was woken");
    assert!(!connection.is_congested(&one));
}

fn text(reply: Reply) -> String {
    let Reply::Answered { bytes, .. } = reply else { panic!("{reply:?}") };
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_read_joins_an_identical_one_unless_a_change_is_queued_between() {
    let connection = connection();
    let (one, other) = (Rc::new(PendingReplies::default()), Rc::new(PendingReplies::default()));
    let send = |command: &'static str, shape| {
        connection.send(&one, shape, |out| out.extend_from_slice(command.as_bytes()))
    };
    let read = |replies: &Rc<PendingReplies>| -> (ReplyId, bool) {
        connection.read(replies, |out| out.extend_from_slice(b"mg k v\r\n"))
    };
    let checks = async {
        let first = send("ms k 3\r\nold\r\n", Shape::Meta);
        assert_eq!(text(one.receive(first).await), "HD\r\n");
        let (early, shared) = read(&one);
        assert!(!shared);
        let got = connection.get_one_of(&one, b"x", GetKind::default(), None);
        let (late, shared) = read(&other);
        assert!(shared);
        let set = send("ms k 3\r\nnew\r\n", Shape::Meta);
        let (behind, shared) = read(&other);
        assert!(!shared);
        for (replies, id, expected) in [
            (&one, early, "VA 3\r\nold\r\n"),
            (&one, got, "END\r\n"),
            (&other, late, "VA 3\r\nold\r\n"),
            (&one, set, "HD\r\n"),
            (&other, behind, "VA 3\r\nnew\r\n"),
        ] {
            assert_eq!(text(replies.receive(id).await), expected);
        }
        let (first, _) = read(&one);
        let touched = connection.get(&other, b"k", GetKind { exptime: Some(60), cas: false });
        let (behind, shared) = read(&one);
        assert!(!shared);
        for (replies, id, expected) in [
            (&one, first, "VA 3\r\nnew\r\n"),
            (&other, touched, "VALUE k 0 3\r\nnew\r\nEND\r\n"),
            (&one, behind, "VA 3\r\nnew\r\n"),
        ] {
            assert_eq!(text(replies.receive(id).await), expected);
        }
        // The first one was written long ago.
        let (alone, shared) = read(&one);
        assert!(!shared);
        assert_eq!(text(one.receive(alone).await), "VA 3\r\nnew\r\n");
    };
    tokio::select! {
        () = checks => {}
        () = Rc::clone(&connection).drive(Random::seeded(1)) => unreachable!("it is driven until it is dropped"),
    }
}

#[test]
fn what_is_queued_while_an_idle_connection_is_closed_is_sent_over_the_next_one_unless_its_cas_is_too_old() {
    let (connection, client, other) = with_two_clients();
    connection.state.borrow_mut().is_behind = false;
    let guard = |cas_epoch, text: &str| {
        connection.send_guard(&client, cas_epoch, |out| out.extend_from_slice(text.as_bytes()))
    };
    connection.server.connected();
    let ids = [
        connection.get(&client, b"a", GET),
        guard(None, "mg k v\r\n"),
        connection.get(&other, b"b", GET),
        guard(Some(1), "md k C1\r\n"),
        line(&connection, &client, "touch x 1\r\n"),
        connection.read(&client, |out| out.extend_from_slice(b"mg l v\r\n")).0,
    ];
    assert!(matches!(connection.ended(ConnectionError::Closed), ConnectionError::Idle));
    connection.hold();
    let later = guard(None, "mg m v\r\n");
    assert_eq!(queued(&connection), "get a\r\nget b\r\ntouch x 1\r\n");
    connection.opened(connection.server.connected(), &Capabilities::default());
    assert!(matches!(client.take(ids[3]), Some(Reply::StaleCas)));
    assert_eq!(queued(&connection), "get a\r\nget b\r\ntouch x 1\r\nmg k v\r\nmg l v\r\nmg m v\r\n");
    read(&connection, b"END\r\nEND\r\nTOUCHED\r\nEN\r\nHD\r\nHD\r\n");
    for (client, id, expected) in [
        (&client, ids[0], "END\r\n"),
        (&other, ids[2], "END\r\n"),
        (&client, ids[4], "TOUCHED\r\n"),
        (&client, ids[1], "EN\r\n"),
        (&client, ids[5], "HD\r\n"),
        (&client, later, "HD\r\n"),
    ] {
        assert_eq!(reply(client, id), expected);
    }
    // Of what has been sent, nobody knows whether it was carried out.
    line(&connection, &client, "incr n 1\r\n");
    connection.state.borrow_mut().unwritten = 0;
    assert!(matches!(connection.ended(ConnectionError::Closed), ConnectionError::Closed));
}

#[test]
fn a_server_is_to_blame_for_its_own_time_and_not_for_the_queue_before_a_request() {
    let (connection, client, _) = with_two_clients();
    let sent = Instant::now();
    let after = |ms: u64| sent + Duration::from_millis(ms);
    let blamed = |ahead: u32, now: u64| connection.servers_share(sent, ahead, after(now)).as_millis();
    assert_eq!(blamed(0, 400), 400);
    assert_eq!(blamed(20_000, 400), 400, "it has answered nothing");
    connection.answered_at.set(Some(after(390)));
    assert_eq!([blamed(0, 400), blamed(1_000, 400), blamed(20_000, 400)], [400, 300, 10]);
    // Each request knows how many are ahead of it, and a reply that nobody waits for any more is an answer too.
    for _ in 0..3 {
        line(&connection, &client, "incr n 1\r\n");
    }
    let ahead: Vec<u32> = connection.state.borrow().pending.iter().map(|request| request.ahead).collect();
    assert_eq!(ahead, [0, 1, 2]);
    connection.answered_at.set(None);
    if let Some(request) = connection.state.borrow_mut().pending.front_mut() {
        request.requester = None;
    }
    read(&connection, b"1\r\n");
    assert!(connection.answered_at.get().is_some());
}
