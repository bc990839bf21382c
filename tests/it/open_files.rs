//! A low limit of open files: the process accepts fewer clients than max_connections, and neither its servers nor its admin
//! listener lack files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::client::Client;
use crate::world::{Kennel, addresses, eventually, guarded, memcacheds, raw, sidecar_toml, temp_dir};

/// More than two workers, two servers and the admin listener need.
const LIMIT: usize = 240;
const CLIENTS: usize = 400;

fn toml(servers: &[String]) -> String {
    sidecar_toml(servers, &[guarded("hot", "hot:*", ""), raw("raw", "*")])
}

/// The numbers in the warning: the configured one, the lowered one.
fn lowered(text: &str) -> (usize, usize) {
    let line =
        text.lines().find(|line| line.contains("listen.max_connections")).unwrap_or_else(|| panic!("{text}"));
    let numbers: Vec<usize> =
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.contains(&10_000) && numbers.contains(&LIMIT), "{line}");
    let clients = line.split("to ").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    (10_000, clients.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}")))
}

#[test]
fn with_more_clients_than_descriptors_connected_clients_are_served_and_the_others_get_an_error() {
    let mut servers = memcacheds(2);
    let kennel = Kennel::start_with_open_files(LIMIT, &toml(&addresses(&servers)));
    let (_, fit) = lowered(&kennel.log());
    assert!((50..LIMIT).contains(&fit), "{fit}");
    // Connections to the admin listener take nothing from the clients.
    let idle: Vec<TcpStream> =
        (0..80).map(|_| TcpStream::connect(kennel.admin()).expect("a connection")).collect();
    let (mut inside, mut refused) = (Vec::new(), 0);
    for n in 0..CLIENTS {
        let mut client = Client::tcp(kennel.address());
        client.send(b"version\r\n");
        let reply = client.line();
        if reply.starts_with("VERSION ") {
            inside.push(client);
        } else {
            assert_eq!(reply, "ERROR Too many open connections", "client {n}");
            refused += 1;
        }
    }
    assert_eq!((inside.len(), refused), (fit, CLIENTS - fit));
    let mut all_served = |round: &str| {
        for (n, client) in inside.iter_mut().enumerate() {
            for kind in ["raw", "hot"] {
                let (key, value) = (format!("{kind}:{round}:{n}"), n.to_string());
                client.store(&key, value.as_bytes(), 60);
                assert_eq!(client.get(&key), Some(value.into_bytes()), "{key}");
            }
        }
    };
    all_served("before");
    // A connection to a server can be replaced, however many clients there are.
    servers.iter_mut().for_each(|server| server.restart());
    eventually("the servers are used again", || kennel.metrics().sum("kennel_upstream_up", &[]) == 2.0);
    all_served("after");
    assert!(kennel.http("/healthz").contains("200 OK"));
    assert_eq!(kennel.metrics().sum("kennel_client_connections_refused_total", &[]), refused as f64);
    assert!(!kennel.log().contains("os error 24"), "{}", kennel.log());
    drop(idle);
    drop(inside);
    eventually("there is room again", || {
        let mut stream = TcpStream::connect(kennel.address()).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
        let mut reply = [0; 8];
        stream.write_all(b"version\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && reply == *b"VERSION "
    });
}

#[test]
fn many_who_come_at_once_and_must_be_refused_take_no_descriptor_from_anybody_else() {
    let mut servers = memcacheds(2);
    let kennel = Kennel::start_with_open_files(LIMIT, &toml(&addresses(&servers)));
    let (_, fit) = lowered(&kennel.log());
    let mut streams: Vec<TcpStream> = Vec::new();
    kennel.standing_still(|| {
        streams.extend(
            (0..CLIENTS).map(|_| TcpStream::connect(kennel.address()).expect("a place in the queue")),
        );
    });
    servers.iter_mut().for_each(|server| server.restart());
    let mut served = 0;
    for mut stream in &streams {
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
        // Refused clients may already be gone.
        let _ = stream.write_all(b"get raw\r\n");
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).expect("a reply");
        match &reply {
            b"END\r\n" => served += 1,
            reply => assert_eq!(reply, b"ERROR"),
        }
    }
    assert_eq!(served, fit);
    assert!(!kennel.log().contains("os error 24"), "{}", kennel.log());
}

#[test]
fn check_reports_how_many_clients_the_descriptors_allow() {
    let dir = temp_dir();
    let file = dir.join("kennel.toml");
    std::fs::write(&file, toml(&["10.0.0.1:11211".to_owned()])).expect("write the configuration");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("ulimit -n {LIMIT}; exec \"$0\" \"$@\""),
        env!("CARGO_BIN_EXE_kennel"),
        "check",
    ]);
    let output = command.arg(&file).output().expect("run kennel check");
    let _ = std::fs::remove_dir_all(&dir);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!((50..LIMIT).contains(&lowered(&text).1), "{text}");
    assert!(text.contains("warning: listen.max_connections"), "{text}");
}
