//! The admin listener serves monitoring even while other clients occupy it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::world::{Kennel, addresses, guarded, memcacheds, raw, sidecar_toml, timed};

#[test]
fn idle_connections_at_the_admins_address_keep_no_probe_out_and_are_closed_after_seconds() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("all", "*", "")]));
    let connect = || TcpStream::connect(kennel.admin()).expect("a connection");
    let mut idle: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    // Connections with an incomplete request.
    idle.iter_mut().step_by(3).for_each(|stream| {
        // A connection that was closed to make room may not be replaced by it.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost:");
    });
    for path in ["/healthz", "/readyz", "/metrics"] {
        let (response, took) = timed(|| kennel.http(path));
        assert!(response.contains("200 OK") && took < Duration::from_secs(2), "{path}: {took:?}: {response}");
    }
    // Connections that were not closed to make room for others.
    let ((), took) = timed(|| {
        for stream in &mut idle {
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
            let mut response = Vec::new();
            let ended = stream.read_to_end(&mut response);
            assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        }
    });
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn slow_requests_watchers_that_read_nothing_and_huge_queries_at_the_admins_address_harm_no_client() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("all", "*", "")]));
    let key = "a".repeat(200);
    let mut client = kennel.client();
    client.store(&key, b"v", 60);
    // Patterns that are slow to compare with a naive algorithm, for each event of a client.
    let slow_pattern = format!("*{}b", "a*".repeat(100));
    let watchers: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(kennel.admin()).expect("a connection");
            write!(stream, "GET /trace?key={slow_pattern} HTTP/1.0\r\n\r\n").expect("a request");
            let mut status = [0; 12];
            stream.read_exact(&mut status).expect("a status");
            assert_eq!(&status[9..], b"200", "a watcher");
            stream
        })
        .collect();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        // Headers that arrive byte by byte.
        scope.spawn(|| {
            let connect = || TcpStream::connect(kennel.admin()).expect("a connection");
            let mut slow: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
            for byte in b"GET /metrics HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
                slow.iter_mut().for_each(|stream| drop(stream.write_all(&[*byte])));
                thread::sleep(Duration::from_millis(20));
                if end.load(SeqCst) {
                    return;
                }
            }
        });
        scope.spawn(|| {
            let parameters = "a=1&".repeat(100);
            let huge = "x".repeat(1024 * 1024);
            while !end.load(SeqCst) {
                for (path, expected) in [
                    (format!("/hot?{parameters}"), "at most 32 parameters"),
                    (format!("/explain?key={}", "k".repeat(8000)), " 400 "),
                    (format!("/trace?key={}", "*".repeat(8000)), " 400 "),
                ] {
                    let reply = kennel.http(&path);
                    assert!(reply.contains(expected), "{}: {reply}", &path[..20]);
                }
                // It is too long to be read: refused or cut off.
                let reply = kennel.http(&format!("/explain?key={huge}"));
                assert!(!reply.contains(" 200 "), "{reply}");
            }
        });
        let slowest = (0..2000).map(|_| timed(|| assert!(client.get(&key).is_some())).1).max();
        end.store(true, SeqCst);
        // Most take a tenth of a millisecond. This machine may be busy.
        assert!(slowest < Some(Duration::from_secs(1)), "{slowest:?}");
    });
    drop(watchers);
    assert!(kennel.http("/readyz").contains(" 200 "));
    assert!(!kennel.log().contains("panicked"), "{}", kennel.log());
}

/// `curl -s http://127.0.0.1:9111/PATH | FILTER`, without curl.
#[test]
fn each_question_to_the_admin_address_on_the_page_for_operators_has_an_answer() {
    let servers = memcacheds(2);
    let sidecar = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("all", "*")]));
    let mut asked = 0;
    let page = include_str!("../../docs/operations.md");
    for question in page.lines().filter_map(|line| line.strip_prefix("curl -s http://127.0.0.1:9111")) {
        let (path, rest) = question.split_once(' ').unwrap_or((question, ""));
        let filter = rest.split_once("| ").map_or("cat", |(_, filter)| filter);
        let reply = sidecar.http(path);
        let (head, body) = reply.split_once("\r\n\r\n").expect("a reply");
        assert!(head.contains("200 OK"), "{question}: {head}");
        let mut filtered = Command::new("sh");
        filtered.args(["-c", filter]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut filtered = filtered.spawn().expect("run sh");
        let mut input = filtered.stdin.take().expect("a pipe");
        let body = body.to_owned();
        let writing = thread::spawn(move || input.write_all(body.as_bytes()));
        let found = filtered.wait_with_output().expect("it ends");
        writing.join().expect("no panic").expect("sh reads");
        assert!(!found.stdout.is_empty(), "nothing is found by: {question}");
        asked += 1;
    }
    assert!(asked >= 4, "{asked}");
}
