//! Gets of raw keys that wait to be sent are sent together, and each receives the values that it requested.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::between::{Between, pump};
use crate::client::{Client, set_command};
use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, sidecar_toml};

/// With one worker: only commands on one connection can be combined.
fn sidecar() -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[]);
    (servers, Kennel::start(&toml.replace("workers = 2", "workers = 1")))
}

fn key(i: usize) -> String {
    format!("raw:{}{i}", "x".repeat(i % 60))
}

/// Every third key is absent; some values are small, some large.
fn value(i: usize) -> Option<Vec<u8>> {
    let size = match i % 7 {
        0 => 0,
        1 => 5_000,
        2 => 40_000,
        size => size * 20,
    };
    (i % 3 != 2).then(|| format!("{i} VALUE raw: 0 3\r\nEND\r\n").bytes().cycle().take(size).collect())
}

fn fill(client: &mut Client) {
    for i in 0..200 {
        if let Some(value) = value(i) {
            client.store(&key(i), &value, 60);
        }
    }
}

#[test]
fn gets_that_arrive_together_each_get_their_own_value_or_a_miss() {
    let (_servers, sidecar) = sidecar();
    let mut clients: Vec<_> = (0..20).map(|_| sidecar.client()).collect();
    fill(&mut clients[0]);
    for verb in ["get", "gets"] {
        let ask = |n: usize| (0..50).map(move |i| (n * 7 + i * 11) % 200);
        sidecar.standing_still(|| {
            for (n, client) in clients.iter_mut().enumerate() {
                let all: String = ask(n).map(|i| format!("{verb} {}\r\n", key(i))).collect();
                client.send(all.as_bytes());
            }
        });
        for (n, client) in clients.iter_mut().enumerate() {
            for i in ask(n) {
                assert_eq!(client.only_value(&key(i)), value(i), "{verb} {}", key(i));
            }
        }
    }
}

#[test]
fn gets_of_many_keys_that_arrive_together_each_get_their_values_in_the_order_requested() {
    let (_servers, sidecar) = sidecar();
    let mut clients: Vec<_> = (0..20).map(|_| sidecar.client()).collect();
    fill(&mut clients[0]);
    for verb in ["get", "gets", "gat 60", "gats 60"] {
        // Some have a key twice, and many have the same key.
        let ask = |n: usize| (0..n * 5).map(move |i| (n * 3 + i * 7) % 200).chain([n, n]);
        sidecar.standing_still(|| {
            for (n, client) in clients.iter_mut().enumerate() {
                let keys: Vec<String> = ask(n).map(key).collect();
                client.send(format!("{verb} {}\r\nget {}\r\n", keys.join(" "), key(n)).as_bytes());
            }
        });
        for (n, client) in clients.iter_mut().enumerate() {
            let items = client.items().expect("values");
            assert!(items.iter().all(|item| item.cas.is_some() == verb.contains("s")), "{verb}");
            let received: Vec<_> = items.into_iter().map(|item| (item.key, item.value)).collect();
            let right: Vec<_> = ask(n).filter_map(|i| Some((key(i), value(i)?))).collect();
            assert!(received == right, "{verb}, client {n}: {} of {} values", received.len(), right.len());
            assert_eq!(client.only_value(&key(n)), value(n));
        }
    }
}

/// A proxy in front of a server that records each `get` line, and replies itself if `replies` returns a reply.
fn before(
    server: &Memcached,
    replies: impl Fn(&str) -> Option<&'static str> + Clone + Send + 'static,
) -> (Between, Arc<Mutex<Vec<String>>>) {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let shared = noted.clone();
    let between = Between::start(server.address, move |mut client, mut server, over| {
        let (mut to_client, mut to_server) =
            (client.try_clone().expect("a second handle"), server.try_clone().expect("a second handle"));
        let (mut reply_to, noted, replies) =
            (client.try_clone().expect("a second handle"), shared.clone(), replies.clone());
        let (of_requests, of_replies) = (over.clone(), over.clone());
        std::thread::spawn(move || {
            pump(&mut client, &of_requests, |bytes| {
                let lines = String::from_utf8_lossy(bytes);
                let gets = || lines.lines().filter(|line| line.starts_with("get "));
                noted
                    .lock()
                    .expect("no thread panics while it holds the lock")
                    .extend(gets().map(str::to_owned));
                match gets().find_map(&replies) {
                    Some(reply) => reply_to.write_all(reply.as_bytes()).is_ok(),
                    None => to_server.write_all(bytes).is_ok(),
                }
            });
        });
        std::thread::spawn(move || {
            pump(&mut server, &of_replies, |bytes| to_client.write_all(bytes).is_ok());
        });
    });
    (between, noted)
}

fn behind(between: &Between) -> Kennel {
    let toml = sidecar_toml(&[between.address()], &[]).replace("workers = 2", "workers = 1");
    Kennel::start(&toml.replace("request_timeout", "on_error = \"error\"\nrequest_timeout"))
}

#[test]
fn what_arrives_together_is_one_line_to_the_server_without_a_key_twice() {
    let servers = memcacheds(1);
    let (between, noted) = before(&servers[0], |_| None);
    let sidecar = behind(&between);
    let mut clients: Vec<_> = (0..16).map(|_| sidecar.client()).collect();
    fill(&mut clients[0]);
    sidecar.standing_still(|| {
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(format!("get {}\r\n", key(n / 2)).as_bytes());
        }
    });
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.only_value(&key(n / 2)), value(n / 2));
    }
    let noted = noted.lock().expect("no thread panics while it holds the lock");
    let mut keys: Vec<&str> = noted.iter().flat_map(|line| line.split(' ').skip(1)).collect();
    assert!(noted.len() < 8, "{noted:?}");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 8, "{noted:?}");
}

#[test]
fn a_servers_error_to_a_line_goes_to_all_gets_on_it_and_the_next_are_served() {
    let servers = memcacheds(1);
    let no = |line: &str| line.contains("raw:no").then_some("SERVER_ERROR out of memory\r\n");
    let (between, noted) = before(&servers[0], no);
    let sidecar = behind(&between);
    let mut client = sidecar.client();
    client.store("raw:yes", b"v", 60);
    client.send(b"get raw:a\r\nget raw:no\r\nget raw:b\r\n");
    for _ in 0..3 {
        assert_eq!(client.line(), "SERVER_ERROR out of memory", "{noted:?}");
    }
    assert_eq!(client.get("raw:yes").as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_value_that_is_nobodys_is_told_to_nobody() {
    let servers = memcacheds(1);
    for lie in [
        "VALUE raw:x 0 1\r\nx\r\nEND\r\n",
        "VALUE raw:a 0 1\r\na\r\nVALUE raw:x 0 1\r\nx\r\nEND\r\n",
        "VALUE raw:b 0 1\r\nb\r\nVALUE raw:a 0 1\r\na\r\nEND\r\n",
        "VALUE raw:b 0 1\r\nb\r\nVALUE raw:b 0 1\r\nb\r\nEND\r\n",
    ] {
        let (between, _noted) = before(&servers[0], move |line| line.contains("raw:a").then_some(lie));
        let sidecar = behind(&between);
        let mut client = sidecar.client();
        client.store("raw:yes", b"v", 60);
        client.send(b"get raw:a\r\nget raw:b\r\n");
        let replies: Vec<_> = ["a", "b"].map(|key| (key, reply_lines(&mut client))).into();
        for (key, reply) in &replies {
            let right = format!("VALUE raw:{key} 0 1/{key}/END");
            assert!(
                *reply == right || reply == "END" || reply.starts_with("SERVER_ERROR"),
                "{lie:?}: {replies:?}"
            );
        }
        assert!(replies.iter().any(|(_, reply)| reply.starts_with("SERVER_ERROR")), "{lie:?}: {replies:?}");
        // On a new connection.
        eventually("it is served", || {
            client.send(b"get raw:yes\r\n");
            reply_lines(&mut client) == "VALUE raw:yes 0 1/v/END"
        });
    }
}

/// The lines of one reply.
fn reply_lines(client: &mut Client) -> String {
    let mut lines = vec![client.line()];
    while lines.last().is_some_and(|line| line != "END" && !line.starts_with("SERVER_ERROR")) {
        lines.push(client.line());
    }
    lines.join("/")
}

#[test]
fn a_get_after_a_clients_own_set_does_not_share_the_reply_of_the_get_before_it() {
    let (_servers, sidecar) = sidecar();
    let (mut client, mut other) = (sidecar.client(), sidecar.client());
    client.store("raw:k", b"v0", 60);
    for round in 1..50 {
        let (old, new) = (format!("v{}", round - 1), format!("v{round}"));
        let mut all = b"get raw:k\r\nget raw:j\r\nget raw:k\r\n".to_vec();
        all.extend(set_command("raw:k", new.as_bytes(), 60));
        all.extend(b"get raw:k\r\n");
        sidecar.standing_still(|| {
            other.send(b"get raw:k\r\n");
            client.send(&all);
        });
        assert_eq!(client.only_value("raw:k").as_deref(), Some(old.as_bytes()));
        assert_eq!(client.only_value("raw:j"), None);
        assert_eq!(client.only_value("raw:k").as_deref(), Some(old.as_bytes()));
        assert_eq!(client.line(), "STORED");
        assert_eq!(client.only_value("raw:k").as_deref(), Some(new.as_bytes()));
        assert!(other.only_value("raw:k").is_some());
    }
}
