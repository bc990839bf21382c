//! Promise 6: a client receives the replies to its own requests, in order, whatever other clients, slow and failing servers,
//! timeouts and malformed bytes do.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::gate::Gate;
use crate::slow_server::SlowServer;
use crate::world::{Kennel, addresses, eventually, guarded, holder, memcacheds, raw, sidecar_toml};

const CLIENTS: usize = 500;
const KEYS: usize = 200;
const ROUNDS: usize = 4;
/// Requests that a client sends before it reads a reply.
const DEPTH: usize = 12;

/// The value of a key contains the key, and is long enough to be cut in the middle.
fn value_of(key: &str) -> String {
    format!("the value of {key};").repeat(1 + key.len() % 7 * 10)
}

/// One request of a pipeline, and the permitted replies.
enum Request {
    Get { keys: Vec<String> },
    MetaGet { key: String, opaque: String },
    Set { own: String },
    NoOp,
    TooLongKey,
    Nonsense,
}

impl Request {
    fn random(client: usize, serial: usize, random: &mut fastrand::Rng) -> Request {
        let mut key = || format!("{}{}", ["raw:", "hot:"][random.usize(0..2)], random.usize(0..KEYS));
        match serial % 8 {
            0..=2 => Request::Get { keys: vec![key()] },
            3 | 4 => Request::Get { keys: (0..6).map(|_| key()).collect() },
            5 => Request::MetaGet {
                key: format!("raw:{}", random.usize(0..KEYS)),
                opaque: format!("o{client}.{serial}"),
            },
            6 => Request::Set { own: format!("own:{client}") },
            _ => match random.u32(0..4) {
                0 => Request::TooLongKey,
                1 => Request::Nonsense,
                _ => Request::NoOp,
            },
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Request::Get { keys } => format!("get {}\r\n", keys.join(" ")).into_bytes(),
            Request::MetaGet { key, opaque } => format!("mg {key} k O{opaque} v\r\n").into_bytes(),
            Request::Set { own } => crate::client::set_command(own, value_of(own).as_bytes(), 0),
            Request::NoOp => b"mn\r\n".to_vec(),
            Request::TooLongKey => [b"get ", &[b'k'; 251][..], b"\r\n"].concat(),
            Request::Nonsense => b"nonsense of one client\r\n".to_vec(),
        }
    }

    /// Reads this request's reply and nothing else; panics on another's. Returns the number of values.
    fn check_reply(&self, client: &mut Client) -> usize {
        match self {
            Request::Get { keys } => {
                let items = match client.items() {
                    Ok(items) => items,
                    Err(line) => panic!("get {keys:?} was answered {line}; a failure is a miss"),
                };
                let mut requested = keys.iter();
                for item in &items {
                    assert!(
                        requested.any(|k| *k == item.key),
                        "requested for {keys:?} in this order, given {}",
                        item.key
                    );
                    let value = String::from_utf8_lossy(&item.value);
                    assert_eq!(value, value_of(&item.key), "another key's value under {}", item.key);
                }
                items.len()
            }
            Request::MetaGet { key, opaque } => {
                let line = client.line();
                if line == format!("EN k{key} O{opaque}") {
                    return 0;
                }
                let value = value_of(key);
                assert_eq!(line, format!("VA {} k{key} O{opaque}", value.len()), "the reply to {opaque}");
                client.expect(format!("{value}\r\n").as_bytes());
                1
            }
            Request::Set { own } => {
                let line = client.line();
                assert!(line == "STORED" || line.starts_with("SERVER_ERROR"), "set {own}: {line}");
                0
            }
            Request::NoOp => {
                client.expect(b"MN\r\n");
                0
            }
            Request::TooLongKey => {
                client.expect(b"CLIENT_ERROR bad command line format\r\n");
                0
            }
            Request::Nonsense => {
                client.expect(b"ERROR\r\n");
                0
            }
        }
    }
}

#[test]
fn five_hundred_clients_pipelining_through_slow_and_failing_servers_get_their_own_replies() {
    let servers = memcacheds(3);
    let slow: Vec<SlowServer> =
        (0..3).map(|i| SlowServer::start(servers[i].address, 1000 * i as u64)).collect();
    let addresses: Vec<String> = slow.iter().map(SlowServer::address).collect();
    // cold_wait is 0 where it could only slow the test down: every get has requests after it anyway.
    let hot = "stale_for = \"60s\"\nlock_ttl = \"5s\"\ncold_wait = \"0ms\"\ntags = [\"posts\"]";
    let rules = [guarded("hot", "hot:*", hot), raw("raw", "*")];
    let kennel = Kennel::start(&sidecar_toml(&addresses, &rules));
    let mut first = kennel.client();
    for n in 0..KEYS {
        for key in [format!("raw:{n}"), format!("hot:{n}")] {
            first.store(&key, value_of(&key).as_bytes(), 0);
        }
    }
    slow.iter().for_each(|s| s.rage(true));
    let values = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for n in 0..CLIENTS {
            let (kennel, values) = (&kennel, &values);
            let client = move || {
                let mut random = fastrand::Rng::with_seed(n as u64);
                let mut client = kennel.client();
                for round in 0..ROUNDS {
                    let serials = (0..DEPTH).map(|i| round * DEPTH + i);
                    let requests: Vec<Request> =
                        serials.map(|serial| Request::random(n, n + serial, &mut random)).collect();
                    client.send(&requests.iter().flat_map(Request::bytes).collect::<Vec<u8>>());
                    let brought: usize = requests.iter().map(|r| r.check_reply(&mut client)).sum();
                    values.fetch_add(brought, Ordering::Relaxed);
                }
            };
            let builder = std::thread::Builder::new().stack_size(512 << 10);
            builder.spawn_scoped(s, client).expect("a thread a client");
        }
    });
    slow.iter().for_each(|s| s.rage(false));
    let (stalls, cuts) =
        slow.iter().map(SlowServer::stalls_and_cuts).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert!(
        stalls > 0 && cuts > 0,
        "{stalls} stalls, {cuts} cuts: the servers behaved, this run proves nothing"
    );
    let values = values.into_inner();
    assert!(values > CLIENTS, "{values} values: hardly anything was served, this run proves nothing");
    for n in 0..KEYS {
        let key = format!("raw:{n}");
        eventually("what the servers hold is served again", || {
            first.get(&key).as_deref() == Some(value_of(&key).as_bytes())
        });
    }
}

#[test]
fn a_client_that_leaves_with_replies_outstanding_shifts_no_other_clients_replies() {
    let servers = memcacheds(1);
    let slow = SlowServer::start(servers[0].address, 7);
    let kennel = Kennel::start(&sidecar_toml(&[slow.address()], &[raw("raw", "*")]));
    let mut stays = kennel.client();
    stays.store("raw:big", &vec![b'x'; 100_000], 0);
    stays.store("raw:mine", b"mine", 0);
    for _ in 0..50 {
        let mut leaving = kennel.client();
        leaving.send(&b"get raw:big raw:big raw:big\r\n".repeat(20));
        leaving.send(b"set raw:cut 0 0 1000\r\nonly the beginn");
        drop(leaving);
        assert_eq!(stays.get("raw:mine").as_deref(), Some(&b"mine"[..]));
        assert_eq!(stays.get("raw:none"), None);
    }
    assert_eq!(stays.get("raw:cut"), None, "half a request is no request");
}

#[test]
fn a_client_that_reads_nothing_does_not_stop_the_others() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&[servers[0].address()], &[raw("raw", "*")]));
    let mut other = kennel.client();
    other.store("raw:big", &vec![b'x'; 500_000], 0);
    let mut deaf = kennel.client();
    deaf.send(&b"get raw:big\r\n".repeat(100));
    for _ in 0..200 {
        let (value, took) = crate::world::timed(|| other.get("raw:none"));
        assert_eq!(value, None);
        assert!(took < Duration::from_secs(2), "waited {took:?} behind a client that does not read");
    }
    for n in 0..100 {
        // Bounded memory may cost it values while it did not read, but never the order or the end of a reply.
        let value = deaf.only_value("raw:big");
        assert!(value.is_none_or(|v| v.len() == 500_000), "reply {n}");
    }
}

#[test]
fn a_clients_own_requests_for_one_guarded_key_take_effect_in_the_order_it_sent_them() {
    let servers = memcacheds(3);
    // A set reads the tags first and takes two round trips, a get takes one.
    let hot = "stale_for = \"60s\"\ncold_wait = \"0ms\"\ntags = [\"posts\"]";
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", hot)]));
    let mut client = kennel.client();
    let (mut sent, mut expected) = (String::new(), String::new());
    for n in 100..150 {
        sent +=
            &format!("set hot:k 0 60 3\r\n{n}\r\nget hot:k\r\nincr hot:k 100\r\nget hot:k hot:none{n}\r\n");
        let (first, second) = (n, n + 100);
        expected += &format!("STORED\r\nVALUE hot:k 0 3\r\n{first}\r\nEND\r\n");
        expected += &format!("{second}\r\nVALUE hot:k 0 3\r\n{second}\r\nEND\r\n");
        sent += "delete hot:k\r\ndelete hot:k\r\n";
        expected += "DELETED\r\nNOT_FOUND\r\n";
    }
    client.send(sent.as_bytes());
    client.expect(expected.as_bytes());
    // A bump takes two round trips, and its key is another.
    for n in 0..20 {
        client.store("hot:tagged", b"v", 60);
        client.send(b"delete @tag:posts\r\nget hot:tagged\r\n");
        assert_eq!(client.line(), "DELETED", "round {n}");
        assert_eq!(client.only_value("hot:tagged"), None, "round {n}");
    }
}

#[test]
fn a_reply_that_comes_after_its_time_out_is_nobody_elses() {
    let servers = memcacheds(1);
    let gate = Gate::start(servers[0].address);
    // One worker, and so one connection.
    let toml = sidecar_toml(&[gate.address()], &[raw("raw", "*")]).replace("workers = 2", "workers = 1");
    let kennel = Kennel::start(&toml);
    let (mut first, mut second) = (kennel.client(), kennel.client());
    first.store("raw:a", b"10", 0);
    second.store("raw:b", b"100", 0);
    for n in 1..4 {
        gate.hold_replies();
        let reply = first.execute("incr raw:a 1");
        assert!(reply.starts_with("SERVER_ERROR"), "timed out: {reply}");
        second.send(b"incr raw:b 1\r\n");
        second.silent_for(Duration::from_millis(50));
        gate.release();
        assert_eq!(second.line(), (100 + n).to_string());
        assert_eq!(first.get("raw:a"), Some((10 + n).to_string().into_bytes()));
    }
}

#[test]
fn what_a_server_did_not_take_before_its_connection_broke_is_not_sent_to_it_later() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("raw", "*")]));
    let mut client = kennel.client();
    client.store("raw:k", b"mine", 0);
    servers[0].stop();
    // Far more than the kernel buffers. From the middle of one of these on, the rest would be taken for commands.
    let value = b"\r\nset raw:k 0 0 5 noreply\r\nwrong".repeat(30_000);
    const SETS: usize = 20;
    client.send(&crate::client::set_command("raw:other", &value, 0).repeat(SETS));
    for n in 0..SETS {
        let reply = client.line();
        assert!(reply.starts_with("SERVER_ERROR"), "set {n}, on a stopped server: {reply}");
    }
    let stalled = || kennel.metrics().sum("kennel_upstream_up", &[]) == 0.0;
    eventually("the connection is given up", stalled);
    servers[0].cont();
    eventually("the server is used again", || client.get("raw:k").is_some());
    for _ in 0..20 {
        assert_eq!(client.get("raw:k").as_deref(), Some(&b"mine"[..]));
    }
}

/// A server that accepts connections like a memcached, and replies with these bytes to everything but `stats` and `version`. It
/// ends with the test's process.
fn canned_server(canned: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut reader, mut writer) = (&stream, &stream);
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = reader.read(&mut buffer) {
                    let reply = match &buffer[..read] {
                        requested if requested.starts_with(b"stats") => b"END\r\n",
                        requested if requested.ends_with(b"version\r\n") => {
                            &b"ERROR\r\nVERSION 1.6.45\r\n"[..]
                        }
                        _ => canned,
                    };
                    if writer.write_all(reply).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_server_that_answers_what_was_not_asked_is_believed_in_nothing_and_its_connection_is_remade() {
    let replies: [(&'static [u8], &str); 4] = [
        (b"VALUE raw:other 0 5\r\nwrong\r\nEND\r\n", "get raw:a"),
        (b"VALUE raw:other 0 5\r\nwrong\r\nEND\r\n", "get raw:a raw:b"),
        (b"VALUE raw:a 0 5\r\nwrong\r\nVALUE raw:b 0 5\r\nwrong\r\nEND\r\n", "get raw:b raw:a"),
        (b"END\r\nSTORED\r\n", "get raw:a"),
    ];
    for (canned, command) in replies {
        let rules = [raw("raw", "*")];
        let kennel = Kennel::start(&sidecar_toml(&[canned_server(canned)], &rules));
        let mut client = kennel.client();
        let connections = || kennel.metrics().sum("kennel_upstream_connections_total", &[]);
        eventually("both workers are connected", || connections() >= 2.0);
        let before = connections();
        client.send(format!("{command}\r\n").as_bytes());
        let items = client.items().expect("a lie is a miss");
        let requested: Vec<&str> = command.split(' ').skip(1).collect();
        assert!(items.iter().all(|i| requested.contains(&&*i.key)), "{command}: {items:?}");
        eventually("the connection is remade", || {
            // Of one worker: a request is needed for the connection to be checked.
            connections() > before
        });
        assert_eq!(
            client.execute("version").split(' ').next(),
            Some("VERSION"),
            "the client is still connected"
        );
    }
}

#[test]
fn a_multi_get_whose_server_replies_with_an_error_is_an_error_if_the_pool_says_so() {
    let error = canned_server(b"SERVER_ERROR out of memory writing get response\r\n");
    let toml = sidecar_toml(&[error], &[raw("raw", "*")]);
    for (on_error, reply) in [("miss", "END"), ("error", "SERVER_ERROR server refused")] {
        let kennel = Kennel::start(
            &toml.replace("request_timeout", &format!("on_error = \"{on_error}\"\nrequest_timeout")),
        );
        let mut client = kennel.client();
        eventually("the server is connected", || {
            kennel.metrics().sum("kennel_upstream_connections_total", &[]) >= 2.0
        });
        assert_eq!(client.execute("get raw:a raw:b"), reply);
        assert_eq!(client.execute("gets raw:a raw:b raw:c"), reply);
    }
}

#[test]
fn a_long_get_whose_first_part_fails_is_answered_by_its_error_alone() {
    let servers = memcacheds(2);
    let rules = [guarded("hot", "hot:*", "stale_for = \"30s\"\ncold_wait = \"0ms\"")];
    let toml = sidecar_toml(&addresses(&servers), &rules);
    let kennel = Kennel::start(&toml.replace("request_timeout", "on_error = \"error\"\nrequest_timeout"));
    let mut client = kennel.client();
    let keys: Vec<String> = (0..600).map(|i| format!("hot:{i}")).collect();
    keys.iter().for_each(|key| client.store(key, b"v", 600));
    let (quick, slow): (Vec<&String>, Vec<&String>) = keys.iter().partition(|key| holder(&servers, key) == 0);
    // Its second part does not need the suspended server, and is done long before the first.
    let long: Vec<&str> =
        quick[..127].iter().chain(&slow[..1]).chain(&quick[..5]).map(|key| &key[..]).collect();
    servers[1].stop();
    client.send(format!("get {}\r\nget {}\r\n", long.join(" "), quick[9]).as_bytes());
    assert_eq!(client.line(), "SERVER_ERROR server timed out");
    assert_eq!(client.only_value(quick[9]).as_deref(), Some(&b"v"[..]));
    assert_eq!(client.execute("mn"), "MN");
    servers[1].cont();
}
