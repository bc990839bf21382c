//! Slow, greedy and idle clients: the configuration bounds the memory that they can use in the sidecar, and other clients are not
//! affected: every byte of theirs is correct and none is late by a timeout. No time is measured here.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, eventually, guarded, memcacheds, raw, sidecar_toml, temp_dir,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// One worker, one server, and additional lines of `[listen]`.
fn sidecar(listen: &str) -> (Vec<Memcached>, Kennel) {
    // With its default of 64 MiB, memcached evicts what a hundred clients store at once.
    let servers = vec![Memcached::start(&["-m", "1024"])];
    let rules = [guarded("hot", "hot:*", "cold_wait = \"10s\"\nlock_ttl = \"1s\""), raw("raw", "*")];
    let toml = sidecar_toml(&addresses(&servers), &rules)
        .replace("workers = 2", &format!("workers = 1\n{listen}"))
        .replace("request_timeout = \"500ms\"", "request_timeout = \"10s\"");
    (servers, Kennel::start(&toml))
}

/// The sidecar's peak resident memory, in bytes.
pub(crate) fn peak(kennel: &Kennel) -> usize {
    let mut client = kennel.client();
    client.send(b"stats\r\n");
    let stats = String::from_utf8(client.until(b"END\r\n")).expect("stats are text");
    let pid = stats.lines().find_map(|line| line.strip_prefix("STAT pid ")).expect("its pid");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    let kib: usize = peak.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib * KIB
}

fn reached(kennel: &Kennel, limit: &str) -> f64 {
    kennel.metrics().sum("kennel_limit_reached_total", &[&format!("limit={limit:?}")])
}

/// Runs `others` while a client reads and writes; that client's replies must be correct byte for byte before, meanwhile and
/// after.
fn beside_an_innocent(kennel: &Kennel, others: impl FnOnce()) {
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let step = || {
        let before = rounds.load(Ordering::SeqCst);
        eventually("the innocent is answered", || rounds.load(Ordering::SeqCst) >= before + 2);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = kennel.client();
            while !over.load(Ordering::SeqCst) {
                let n = rounds.load(Ordering::SeqCst);
                let value = format!("value {n} ").repeat(1 + n % 2000);
                for key in [format!("innocent:{n}"), format!("hot:innocent:{n}")] {
                    client.store(&key, value.as_bytes(), 60);
                    assert!(client.get(&key).as_deref() == Some(value.as_bytes()), "{key}");
                    assert_eq!(client.delete(&key), "DELETED");
                }
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        });
        step();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            others();
            step();
        }));
        over.store(true, Ordering::SeqCst);
        if let Err(why) = result {
            std::panic::resume_unwind(why);
        }
    });
}

#[test]
fn a_client_that_sends_and_never_reads_is_held_back_and_costs_a_bounded_amount() {
    let (_servers, kennel) = sidecar("max_buffered = \"512MiB\"");
    kennel.client().store("raw:100k", &vec![b'v'; 100 * KIB], 0);
    let before = peak(&kennel);
    let mut deaf = kennel.client();
    beside_an_innocent(&kennel, || {
        // 200 MB of replies.
        deaf.send(&b"get raw:100k\r\n".repeat(2000));
        eventually("it is held back", || reached(&kennel, "unread") + reached(&kennel, "requests") > 0.0);
    });
    // MAX_AWAITED, MAX_OUTPUT, and a read buffer grown to hold one value; never 200 MB.
    let cost = peak(&kennel) - before;
    assert!(cost < 40 * MIB, "{} KiB", cost / KIB);
    // Now it reads: every reply is there, complete.
    let one = [&b"VALUE raw:100k 0 102400\r\n"[..], &vec![b'v'; 100 * KIB], b"\r\nEND\r\n"].concat();
    for _ in 0..2000 {
        assert!(deaf.bytes(one.len()) == one);
    }
}

#[test]
fn large_answers_behind_small_ones_pass_the_budget_and_the_greediest_is_disconnected() {
    let (_servers, kennel) = sidecar("max_buffered = \"32MiB\"");
    let mut client = kennel.client();
    client.store("raw:small", b"s", 0);
    client.store("raw:large", &vec![b'v'; 1000 * KIB], 0);
    let before = peak(&kennel);
    let mut deaf: Vec<Client> = (0..10).map(|_| kennel.client()).collect();
    beside_an_innocent(&kennel, || {
        for client in &mut deaf {
            // Their recent replies are small, so they may have many outstanding requests.
            client.send(&b"get raw:small\r\n".repeat(500));
            for _ in 0..500 {
                client.expect(b"VALUE raw:small 0 1\r\ns\r\nEND\r\n");
            }
        }
        for client in &mut deaf {
            client.send(&b"get raw:large\r\n".repeat(200));
        }
        eventually("the budget is passed", || reached(&kennel, "buffered") > 0.0);
    });
    // The budget, and twice the largest value for reading and for writing.
    let cost = peak(&kennel) - before;
    assert!(cost < 32 * MIB + 24 * MIB, "{} KiB", cost / KIB);
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_gets_the_same_replies() {
    let (_servers, kennel) = sidecar("");
    let mut slow = kennel.client();
    beside_an_innocent(&kennel, || {
        for byte in b"set raw:k 0 0 5\r\nhello\r\nget raw:k none raw:k\r\nmg raw:k v\r\n" {
            slow.send(&[*byte]);
            std::thread::yield_now();
        }
        slow.expect(
            b"STORED\r\nVALUE raw:k 0 5\r\nhello\r\nVALUE raw:k 0 5\r\nhello\r\nEND\r\nVA 5\r\nhello\r\n",
        );
    });
}

#[test]
fn a_request_that_is_never_whole_is_idleness_too() {
    let (_servers, kennel) = sidecar("idle_timeout = \"400ms\"");
    let mut slow = kennel.client();
    slow.send(b"set raw:k 0 0 1000\r\n");
    // Enough bytes to appear active, but never a complete request. Sending fails once the connection is closed.
    eventually("its connection is closed", || {
        slow.send(b"x");
        reached(&kennel, "idle") > 0.0
    });
    assert_eq!(slow.rest(), b"");
    assert_eq!(kennel.client().get("raw:k"), None);
}

#[test]
fn a_client_that_does_nothing_is_disconnected_and_one_that_asks_waits_or_rebuilds_is_not() {
    let (_servers, kennel) = sidecar("idle_timeout = \"400ms\"");
    let (mut idle, mut winner, mut waiter) = (kennel.client(), kennel.client(), kennel.client());
    assert_eq!(winner.get("hot:page"), None);
    waiter.send(b"get hot:page\r\n");
    let mut lively = kennel.client();
    eventually("the idle connection is closed", || {
        assert_eq!(lively.execute("mn"), "MN");
        reached(&kennel, "idle") >= 1.0
    });
    assert_eq!(idle.rest(), b"");
    // Far longer than the idle timeout: both are still connected, because one rebuilds and the other waits for it.
    for _ in 0..120 {
        assert_eq!(lively.execute("mn"), "MN");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(reached(&kennel, "idle"), 1.0);
    winner.store("hot:page", b"rebuilt", 60);
    assert_eq!(waiter.only_value("hot:page").as_deref(), Some(&b"rebuilt"[..]));
    // This ends its lease.
    eventually("they are idle too", || reached(&kennel, "idle") >= 3.0);
    assert_eq!((winner.rest(), waiter.rest()), (Vec::new(), Vec::new()));
}

#[test]
fn without_an_idle_timeout_no_client_is_closed() {
    let (_servers, kennel) = sidecar("");
    let mut idle = kennel.client();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(idle.execute("mn"), "MN");
    assert_eq!(reached(&kennel, "idle"), 0.0);
}

#[test]
fn thousands_of_idle_clients_cost_little_and_the_next_one_is_served() {
    let (_servers, kennel) = sidecar("max_buffered = \"32MiB\"");
    let before = peak(&kennel);
    let mut idle = Vec::new();
    beside_an_innocent(&kennel, || {
        while idle.len() < 2000 {
            // Every other client has requested something large once.
            let mut client = kennel.client();
            if idle.len() % 2 == 0 {
                let key = format!("raw:{}", idle.len() % 20);
                client.store(&key, &vec![b'v'; 200 * KIB], 0);
                assert_eq!(client.get(&key).map(|value| value.len()), Some(200 * KIB));
            }
            idle.push(client);
        }
        eventually("all are in", || kennel.metrics().sum("kennel_client_connections", &[]) >= 2000.0);
    });
    let cost = peak(&kennel) - before;
    assert!(cost < 2000 * 24 * KIB + 32 * MIB + 8 * MIB, "{} bytes each", cost / 2000);
    assert_eq!(reached(&kennel, "buffered"), 0.0);
    for client in idle.iter_mut().step_by(97) {
        assert_eq!(client.execute("mn"), "MN");
    }
}

#[test]
fn a_value_of_a_mebibyte_goes_through_a_hundred_connections_at_once() {
    let (_servers, kennel) = sidecar("max_buffered = \"512MiB\"");
    let value: Vec<u8> = (0..1000 * KIB).map(|n| (n % 251) as u8).collect();
    let before = peak(&kennel);
    beside_an_innocent(&kennel, || {
        std::thread::scope(|scope| {
            for n in 0..100 {
                let (kennel, value) = (&kennel, &value);
                scope.spawn(move || {
                    let mut client = kennel.client();
                    let key = format!("raw:{n}");
                    client.store(&key, value, 0);
                    assert!(client.get(&key).as_ref() == Some(value), "{key}");
                });
            }
        });
    });
    // Each holds a value twice at most: as received and as sent.
    let cost = peak(&kennel) - before;
    assert!(cost < 2 * 100 * MIB + 64 * MIB, "{} MiB", cost / MIB);
    assert_eq!(reached(&kennel, "buffered"), 0.0);
}

#[test]
fn a_get_of_a_million_keys_is_answered_whole_and_is_never_held_whole() {
    let (_servers, kennel) = sidecar("");
    let mut client = kennel.client();
    let stored = |n: usize| n % 5000 == 17;
    for n in (0..1_000_000).filter(|n| stored(*n)) {
        client.store(&format!("r:{n:08}"), format!("value {n}").as_bytes(), 0);
    }
    let before = peak(&kennel);
    let line: String = (0..1_000_000).map(|n| format!(" r:{n:08}")).collect();
    assert!(line.len() > 10 * MIB);
    beside_an_innocent(&kennel, || {
        client.send(format!("get{line}\r\nmn\r\n").as_bytes());
        let items = client.items().expect("values");
        let wanted = (0..1_000_000).filter(|n| stored(*n));
        assert_eq!(items.len(), 200);
        for (item, n) in items.iter().zip(wanted) {
            assert_eq!((&item.key, &item.value), (&format!("r:{n:08}"), &format!("value {n}").into_bytes()));
        }
        // One END, and then the reply to the next request.
        assert_eq!(client.line(), "MN");
    });
    let cost = peak(&kennel) - before;
    assert!(cost < 4 * MIB, "{} KiB", cost / KIB);
}

#[test]
fn a_long_get_whose_server_dies_in_the_middle_ends_with_one_error_or_is_a_miss() {
    for (on_error, end) in [("error", "SERVER_ERROR"), ("miss", "END")] {
        let mut servers = memcacheds(1);
        let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")])
            .replace("[pools.main]", &format!("[pools.main]\non_error = {on_error:?}"));
        let kennel = Kennel::start(&toml);
        let mut client = kennel.client();
        client.store("raw:0", b"x", 0);
        let half: String = (0..2000).map(|n| format!(" raw:{n}")).collect();
        client.send(format!("get{half}").as_bytes());
        // A line of 20 KiB is not parsed before it ends, so another one is used, whose first half is.
        let long: String = (0..20_000).map(|n| format!(" raw:{n}")).collect();
        client.send(long.as_bytes());
        assert_eq!(client.line(), "VALUE raw:0 0 1");
        assert_eq!(client.line(), "x");
        servers[0].kill();
        eventually("the sidecar knows", || kennel.metrics().sum("kennel_upstream_up", &[]) == 0.0);
        client.send(format!("{long}\r\nmn\r\n").as_bytes());
        let rest = String::from_utf8(client.until(b"MN\r\n")).expect("text");
        let lines: Vec<&str> =
            rest.split("\r\n").filter(|line| !line.starts_with("VALUE ") && *line != "x").collect();
        assert!(lines[0].starts_with(end) && lines[1..] == ["MN", ""], "{on_error}: {lines:?}");
    }
}

/// A binary get whose header closes the connection: its extras are not those of a get.
fn malformed_get() -> Vec<u8> {
    let mut request = vec![0; 24];
    (request[0], request[4], request[11]) = (0x80, 4, 4);
    request.extend_from_slice(b"1234");
    request
}

#[test]
fn binary_clients_are_counted() {
    let (_servers, kennel) = sidecar("");
    for _ in 0..3 {
        let mut client = kennel.client();
        let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
        for byte in noop {
            client.send(&[byte]);
        }
        assert_eq!(client.bytes(24)[..8], [0x81, 0x0a, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(kennel.client().execute("mn"), "MN");
    assert_eq!(kennel.metrics().sum("kennel_client_connections_binary_total", &[]), 3.0);
}

#[test]
fn a_client_that_is_disconnected_while_it_sends_receives_the_error_first() {
    let (_servers, kennel) = sidecar("");
    for _ in 0..20 {
        let mut client = kennel.client();
        client.send(&[malformed_get(), vec![0; 2 * MIB]].concat());
        client.half_close();
        assert!(client.rest().ends_with(b"Invalid arguments"));
    }
}

#[test]
fn pylibmc_may_use_its_binary_protocol() {
    let (_servers, kennel) = sidecar("");
    let python = std::env::var("KENNEL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/libraries/binary_client.py");
    let (host, port) = (kennel.address().ip().to_string(), kennel.address().port().to_string());
    let output =
        std::process::Command::new(&python).args([script, &host, &port]).output().expect("run python");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.ends_with("OK\n"), "{stdout}\n{stderr}");
}

#[test]
fn every_limit_that_a_client_reaches_is_counted() {
    let (_servers, kennel) = sidecar("");
    let mut client = kennel.client();
    client.send(format!("set raw:k 0 0 {0}\r\n{1}\r\nmn\r\n", 2 * MIB, "v".repeat(2 * MIB)).as_bytes());
    assert_eq!(
        (client.line(), client.line()),
        ("SERVER_ERROR object too large for cache".into(), "MN".into())
    );
    assert_eq!(reached(&kennel, "value"), 1.0);
    let mut long = TcpStream::connect(kennel.address()).expect("connect");
    std::io::Write::write_all(&mut long, &[b'x'; 4000]).expect("send");
    eventually("its connection is closed", || reached(&kennel, "line") == 1.0);
    // 1,025 requests after one without a reply.
    assert_eq!(client.get("hot:held"), None);
    let mut deep = kennel.client();
    deep.send(&[&b"get hot:held\r\n"[..], &b"get raw:k\r\n".repeat(1100)].concat());
    eventually("it is held back", || reached(&kennel, "requests") >= 1.0);
}

#[test]
fn a_large_set_behind_one_that_nobody_answers_is_read_to_its_end_when_memory_is_tight() {
    let (_servers, kennel) = sidecar("max_buffered = \"16MiB\"");
    // Half of the budget is used: no client has more than one outstanding request.
    let mut hogs: Vec<Client> = (0..10).map(|_| kennel.client()).collect();
    for hog in &mut hogs {
        hog.send(b"set raw:hog 0 0 1000000\r\n");
        hog.send(&vec![b'h'; 900_000]);
    }
    let set = |key: &str, size: usize, noreply: &str| {
        [format!("set {key} 0 0 {size}{noreply}\r\n").into_bytes(), vec![b'x'; size], b"\r\n".to_vec()]
            .concat()
    };
    let mut client = kennel.client();
    for _ in 0..8 {
        client.send(&[set("raw:a", 140_000, " noreply"), set("raw:b", 400_000, "")].concat());
        assert_eq!(client.line(), "STORED");
    }
    for hog in &mut hogs {
        hog.send(&[&vec![b'h'; 100_000][..], b"\r\n"].concat());
        assert_eq!(hog.line(), "STORED");
    }
}

#[test]
fn what_is_said_from_near_counts_for_whoever_does_not_take_it() {
    let servers = memcacheds(1);
    let rules = [guarded("near", "n:*", "near = \"10s\"")];
    // Unix sockets buffer little.
    let directory = temp_dir();
    let unix = format!("unix = [{:?}]", directory.join("k.sock").display().to_string());
    let toml = sidecar_toml(&addresses(&servers), &rules)
        .replace("workers = 2", &format!("workers = 1\nmax_buffered = \"16MiB\"\n{unix}"));
    let kennel = Kennel::start(&toml);
    let mut reader = kennel.client();
    for key in ["n:0", "n:1"] {
        reader.store(key, &vec![b'v'; 400 * KIB], 0);
        assert!(reader.get(key).is_some());
    }
    let mut slow: Vec<Client> = (0..60).map(|_| kennel.unix_client()).collect();
    let hits = || kennel.metrics().sum("kennel_requests_total", &["outcome=\"hit\""]);
    for key in ["n:0", "n:1"] {
        for client in &mut slow {
            let before = hits();
            client.send(format!("get {key}\r\n").as_bytes());
            eventually("it gets a reply, or its connection is closed", || {
                hits() > before || reached(&kennel, "buffered") >= 1.0
            });
        }
    }
    eventually("one connection is closed", || reached(&kennel, "buffered") >= 1.0);
    assert!(reader.get("n:1").is_some());
    std::fs::remove_dir_all(directory).expect("it is there");
}
