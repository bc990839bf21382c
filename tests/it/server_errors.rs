//! A server that replies with an error line: which gets are errors, which are misses, and that nothing else fails.

use std::io::Write;

use crate::between::{Between, pump};
use crate::binary::packet::{Answer, BinaryClient, GET, GETKQ, NOT_FOUND, Packet, SERVER_ERROR, SUCCESS};
use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, eventually, guarded, memcacheds, raw, sidecar_toml};

const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";

/// In front of a server that has no memory for the reply to any line with this word.
fn refusing(server: &Memcached, word: &'static str) -> Between {
    Between::start(server.address, move |mut client, mut server, over| {
        let handles = (client.try_clone(), server.try_clone());
        let (Ok(mut to_client), Ok(mut to_server)) = handles else { return };
        let (of_requests, of_replies) = (over.clone(), over.clone());
        std::thread::spawn(move || {
            pump(&mut client, &of_requests, |bytes| {
                let mut sent = Vec::new();
                for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                    match String::from_utf8_lossy(line).contains(word) {
                        // The server replies with `ERROR` in its place.
                        true => sent.extend_from_slice(b"refuse\r\n"),
                        false => sent.extend_from_slice(line),
                    }
                }
                to_server.write_all(&sent).is_ok()
            });
        });
        std::thread::spawn(move || {
            pump(&mut server, &of_replies, |bytes| {
                let lines = bytes.split_inclusive(|byte| *byte == b'\n');
                let replies = lines.map(|line| if line == b"ERROR\r\n" { NO_MEMORY } else { line });
                to_client.write_all(&replies.collect::<Vec<_>>().concat()).is_ok()
            });
        });
    })
}

/// Two servers, of which one refuses every line with this word. Every key is on the server that its name begins with.
struct World {
    _between: Between,
    _servers: Vec<Memcached>,
    kennel: Kennel,
}

fn world(on_error: &str) -> World {
    let servers = memcacheds(2);
    let between = refusing(&servers[1], "refused");
    let mut toml = sidecar_toml(
        &[addresses(&servers)[0].clone()],
        &[
            guarded("refusing-guarded", "1:g:*", "pool = \"other\"\ncold_wait = \"0ms\""),
            raw("refusing-raw", "1:*").replace("kind", "pool = \"other\"\nkind"),
            guarded("guarded", "0:g:*", "cold_wait = \"0ms\""),
            raw("raw", "*"),
        ],
    );
    let other = format!(
        "[pools.other]\nservers = [\"{}\"]\non_error = \"{on_error}\"\n\n[[rules]]",
        between.address()
    );
    toml = toml.replacen("[[rules]]", &other, 1);
    let kennel = Kennel::start(&toml.replace("workers = 2", "workers = 1"));
    eventually("both servers are connected", || {
        kennel.metrics().sum("kennel_upstream_connections_total", &[]) >= 2.0
    });
    let mut client = kennel.client();
    for key in ["0:k", "0:g:k", "1:k", "1:g:k"] {
        client.store(key, b"v", 60);
    }
    World { _between: between, _servers: servers, kennel }
}

/// The keys that a get returns, or its error.
fn keys(client: &mut Client, request: &str) -> Result<Vec<String>, String> {
    client.send(format!("{request}\r\n").as_bytes());
    client.items().map(|items| items.into_iter().map(|item| item.key).collect())
}

const REQUESTS: &[(&str, &[&str])] = &[
    ("get 0:k 1:refused", &["0:k"]),
    ("gets 1:refused 0:k 0:g:k", &["0:k", "0:g:k"]),
    ("get 0:k 1:g:refused", &["0:k"]),
    ("gets 1:g:refused 1:g:k 0:g:k", &["1:g:k", "0:g:k"]),
    ("gat 60 0:k 1:refused", &["0:k"]),
    ("get 1:refused", &[]),
    ("get 1:g:refused", &[]),
];

#[test]
fn a_get_of_which_a_server_refuses_a_key_is_an_error_and_the_next_get_is_not() {
    let world = world("error");
    let mut client = world.kennel.client();
    for (request, _) in REQUESTS {
        let reply = keys(&mut client, request);
        assert!(matches!(&reply, Err(line) if line.starts_with("SERVER_ERROR")), "{request}: {reply:?}");
        assert_eq!(keys(&mut client, "get 0:k 1:k 1:g:k").map(|keys| keys.len()), Ok(3), "after {request}");
    }
    // Of a long get too, wherever the key is.
    for at in [0, 150, 399] {
        let mut long: Vec<String> = (0..400).map(|i| format!("{}:{i}", i % 2)).collect();
        long[at] = "1:refused".to_owned();
        let reply = keys(&mut client, &format!("get {}", long.join(" ")));
        assert!(matches!(&reply, Err(line) if line.starts_with("SERVER_ERROR")), "{at}: {reply:?}");
        assert_eq!(keys(&mut client, "get 0:k 1:k"), Ok(vec!["0:k".to_owned(), "1:k".to_owned()]));
    }
}

#[test]
fn a_get_of_which_a_server_refuses_a_key_is_a_miss_of_this_key_otherwise() {
    let world = world("miss");
    let mut client = world.kennel.client();
    for (request, hits) in REQUESTS.iter().filter(|(request, _)| request.split(' ').count() > 2) {
        let hits: Vec<String> = hits.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(keys(&mut client, request), Ok(hits), "{request}");
    }
    // A single raw key is exact.
    assert_eq!(
        keys(&mut client, "get 1:refused"),
        Err("SERVER_ERROR out of memory writing get response".to_owned())
    );
    assert_eq!(keys(&mut client, "get 1:g:refused"), Ok(Vec::new()));
    assert_eq!(keys(&mut client, "get 1:k"), Ok(vec!["1:k".to_owned()]));
}

#[test]
fn of_a_sequence_of_binary_gets_only_the_refused_one_is_an_error() {
    for (on_error, status) in [("error", Some(SERVER_ERROR)), ("miss", None)] {
        let world = world(on_error);
        let mut client = BinaryClient::new(world.kennel.address());
        for refused in ["1:refused", "1:g:refused"] {
            let of = |(key, opaque): (&&str, u32)| Packet::new(GETKQ, key).with_opaque(opaque);
            let answers =
                client.pipeline(&["0:k", refused, "0:g:k"].iter().zip(1..).map(of).collect::<Vec<_>>());
            let told = |answer: &Answer| (answer.opaque, answer.status);
            let expected: Vec<_> = [(1, Some(SUCCESS)), (2, status), (3, Some(SUCCESS))]
                .into_iter()
                .filter_map(|(opaque, status)| Some((opaque, status?)))
                .collect();
            assert_eq!(answers.iter().map(told).collect::<Vec<_>>(), expected, "{on_error}: {refused}");
        }
        // A single raw key is exact.
        assert_eq!(client.ask(Packet::new(GET, "1:refused")).status, SERVER_ERROR);
        let answer = client.ask(Packet::new(GET, "1:g:refused"));
        assert_eq!(answer.status, status.unwrap_or(NOT_FOUND), "{on_error}");
        assert_ne!(client.get("0:k"), None);
        assert_eq!(client.get("1:g:absent"), None);
    }
}
