//! The limit of one client's outstanding requests: a client that exceeds it is delayed, and each of its requests is still
//! executed once, in order, with a complete reply.

use std::time::Duration;

use crate::client::{Client, set_command};
use crate::gate::Gate;
use crate::world::{Kennel, Memcached, direct, eventually, guarded, memcacheds, raw, sidecar_toml};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A server, the gate in front of it, and a sidecar with one worker that connects to it through the gate. Held commands do not
/// time out.
fn held() -> (Vec<Memcached>, Gate, Kennel) {
    let servers = memcacheds(1);
    let gate = Gate::start(servers[0].address);
    let rules = [guarded("hot", "hot:*", "cold_wait = \"0ms\""), raw("raw", "*")];
    let toml = sidecar_toml(&[gate.address()], &rules)
        .replace("workers = 2", "workers = 1\nmax_buffered = \"512MiB\"")
        .replace("request_timeout = \"500ms\"", "request_timeout = \"20s\"");
    (servers, gate, Kennel::start(&toml))
}

fn sum(kennel: &Kennel, name: &str) -> f64 {
    kennel.metrics().sum(name, &[])
}

/// Waits until the maximum number of commands has been sent to the server, and checks that no more follow.
fn until_in_flight(kennel: &Kennel, most: f64) {
    eventually("it is held back", || {
        let in_flight = sum(kennel, "kennel_upstream_in_flight");
        assert!(in_flight <= most, "{in_flight} are on their way");
        in_flight == most && kennel.metrics().sum("kennel_limit_reached_total", &["limit=\"requests\""]) > 0.0
    });
}

#[test]
fn a_client_with_a_thousand_answers_behind_one_that_is_still_to_come_is_held_back_and_told_all_in_order() {
    let (_servers, gate, kennel) = held();
    let mut client = kennel.client();
    client.store("raw:k", b"value", 0);
    gate.hold_replies();
    // The requests after it need no server.
    let (requests, replies) =
        (&b"mn\r\nnonsense\r\nversion\r\n"[..], &b"MN\r\nERROR\r\nVERSION 1.6.45\r\n"[..]);
    client.send(&[b"get raw:k\r\n", &requests.repeat(1_000)[..]].concat());
    until_in_flight(&kennel, 1.0);
    gate.release();
    assert_eq!(client.only_value("raw:k").as_deref(), Some(&b"value"[..]));
    assert!(client.bytes(1_000 * replies.len()) == replies.repeat(1_000));
}

#[test]
fn a_client_with_hundreds_of_keys_being_read_is_held_back_and_told_each_in_order() {
    let (_servers, gate, kennel) = held();
    let mut client = kennel.client();
    for n in 0..1_000 {
        client.store(&format!("raw:{n}"), format!("value {n}").as_bytes(), 0);
    }
    // Its values are small, so it may read as many keys as any client.
    for n in 0..100 {
        assert!(client.get(&format!("raw:{n}")).is_some());
    }
    gate.hold_replies();
    // Half of them exist, and none is requested twice.
    let key_of =
        |n: usize| if n.is_multiple_of(2) { format!("raw:{}", n / 2) } else { format!("raw:none:{n}") };
    client.send((0..2_000).map(|n| format!("get {}\r\n", key_of(n))).collect::<String>().as_bytes());
    until_in_flight(&kennel, 256.0);
    gate.release();
    for n in 0..2_000_usize {
        let value = n.is_multiple_of(2).then(|| format!("value {}", n / 2).into_bytes());
        assert_eq!(client.only_value(&key_of(n)), value, "{n}");
    }
}

#[test]
fn a_client_with_megabytes_of_requests_on_their_way_is_held_back_and_none_is_lost() {
    let (servers, gate, kennel) = held();
    let mut client = kennel.client();
    client.store("raw:0", b"x", 0);
    let value = |n: usize| vec![b'a' + n as u8; 1_000 * KIB];
    gate.hold_replies();
    std::thread::scope(|scope| {
        let mut sender = client.sender();
        scope.spawn(move || {
            for n in 0..24 {
                sender.send(&set_command(&format!("raw:{n}"), &value(n), 0));
            }
        });
        // Of 1,000 KiB and a line each, 17 exceed 16 MiB.
        until_in_flight(&kennel, 17.0);
        gate.release();
        for n in 0..24 {
            assert_eq!(client.line(), "STORED", "{n}");
        }
    });
    let mut server = direct(&servers[0]);
    for n in 0..24 {
        assert!(server.get(&format!("raw:{n}")) == Some(value(n)), "{n}");
    }
}

#[test]
fn what_waits_for_a_clients_own_earlier_request_is_not_read_further_and_takes_effect_in_order() {
    let (_servers, gate, kennel) = held();
    let (mut client, mut other) = (kennel.client(), kennel.client());
    let value = |n: usize| format!("{n:08}").repeat(KIB).into_bytes();
    client.store("hot:k", &value(0), 0);
    let before = sum(&kennel, "kennel_bytes_read_total");
    gate.hold_replies();
    std::thread::scope(|scope| {
        let mut sender = client.sender();
        scope.spawn(move || {
            // Each waits for the one before it.
            (1..=1_000).for_each(|n| sender.send(&set_command("hot:k", &value(n), 0)));
        });
        // 64 KiB that wait; those being executed; and the rest of the last read. Of 8 MiB that are sent.
        let read = || sum(&kennel, "kennel_bytes_read_total") - before;
        eventually("it is not read further", || {
            let seen = read();
            (0..20).for_each(|_| assert_eq!(other.execute("mn"), "MN"));
            seen >= (64 * KIB) as f64 && read() - seen <= 100.0 * 4.0
        });
        assert!(read() < (512 * KIB) as f64, "{} bytes", read());
        gate.release();
        for n in 1..=1_000 {
            assert_eq!(client.line(), "STORED", "{n}");
        }
    });
    assert!(client.get("hot:k") == Some(value(1_000)));
}

#[test]
fn who_is_not_answered_before_the_drain_is_over_is_cut_off_and_the_sidecar_ends_in_time() {
    let (servers, gate, kennel) = held();
    let mut client = kennel.client();
    client.store("raw:k", b"old", 0);
    gate.hold("set");
    client.send(b"set raw:k 0 0 3\r\nnew\r\nget raw:k\r\n");
    gate.until_held();
    let (status, took) = kennel.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!((Duration::from_secs(4)..Duration::from_secs(5)).contains(&took), "{took:?}");
    // Nothing is acknowledged that was not done.
    assert_eq!(client.rest(), b"");
    assert_eq!(direct(&servers[0]).get("raw:k").as_deref(), Some(&b"old"[..]));
}

#[test]
fn a_disconnected_client_that_stays_takes_no_place_for_long() {
    let (_servers, _gate, kennel) = held();
    let mut stays: Vec<Client> = (0..3).map(|_| kennel.client()).collect();
    for client in &mut stays {
        // A binary get without a key, which closes the connection.
        client.send(&[&[0x80, 0x00][..], &[0; 22], &vec![0; MIB]].concat());
        assert!(client.rest().ends_with(b"Invalid arguments"));
    }
    eventually("their places are free", || sum(&kennel, "kennel_client_connections") == 0.0);
    drop(stays);
}
