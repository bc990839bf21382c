//! A slow server is a sick server: its requests fail at once, and the keys of the others are as fast as before.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::between::{Between, Stopped, pump};
use crate::client::Client;
use crate::world::{Kennel, Memcached, direct, eventually, memcacheds, raw, sidecar_toml, within};

/// Passes chunks on, and counts requests other than probes.
#[derive(Default)]
struct Relay {
    slow: AtomicBool,
    chunks: AtomicUsize,
    requests: AtomicUsize,
}

impl Relay {
    /// Delays every `nth` chunk by `delay` while it is slow.
    fn start(self: &Arc<Self>, target: &Memcached, nth: usize, delay: Duration) -> Between {
        let relay = Arc::clone(self);
        let target = target.address().parse().expect("an address");
        Between::start(target, move |client, server, over| {
            let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { return };
            relay.direction(client, server, over, (nth, delay), true);
            relay.direction(to, from, over, (nth, delay), false);
        })
    }

    fn direction(
        self: &Arc<Self>,
        mut from: TcpStream,
        mut to: TcpStream,
        over: &Stopped,
        (nth, delay): (usize, Duration),
        requests: bool,
    ) {
        let (relay, over) = (Arc::clone(self), over.clone());
        std::thread::spawn(move || {
            pump(&mut from, &over, |bytes| {
                if requests && bytes != b"mn\r\n" {
                    relay.requests.fetch_add(1, SeqCst);
                }
                if relay.slow.load(SeqCst) && relay.chunks.fetch_add(1, SeqCst).is_multiple_of(nth) {
                    std::thread::sleep(delay);
                }
                to.write_all(bytes).is_ok()
            });
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

fn is_healthy(kennel: &Kennel) -> bool {
    kennel.metrics().sum("kennel_upstream_healthy", &[]) == 2.0
}

fn changes(kennel: &Kennel, to: &str) -> f64 {
    kennel.metrics().sum("kennel_upstream_health_changes_total", &[&format!("to={to:?}")])
}

/// Twenty clients, each of which reads `key` until `over` holds.
fn read_until(kennel: &Kennel, key: &str, over: impl FnMut() -> bool) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut client = kennel.client();
                while !stop.load(SeqCst) {
                    client.get(key);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        within(Duration::from_secs(30), "the health changes", over);
        stop.store(true, SeqCst);
    });
}

/// A sidecar with a server behind the relay and one without, and a key of each.
fn world(relay: &Arc<Relay>, nth: usize, delay: Duration) -> (Vec<Memcached>, Between, Kennel, [String; 2]) {
    let servers = memcacheds(2);
    let between = relay.start(&servers[0], nth, delay);
    let kennel = Kennel::start(&sidecar_toml(&[between.address(), servers[1].address()], &[raw("all", "*")]));
    let mut client = kennel.client();
    let mut keys = [None, None];
    for n in 0..100 {
        let key = format!("k{n}");
        client.send(format!("set {key} 0 0 1\r\nv\r\n").as_bytes());
        assert_eq!(client.line(), "STORED");
        let at = usize::from(direct(&servers[0]).ttl(&key).is_none());
        keys[at].get_or_insert(key);
    }
    (servers, between, kennel, keys.map(|key| key.expect("a key of each server")))
}

fn values(client: &mut Client, keys: &[String; 2]) -> usize {
    client.get_many(&[&keys[0], &keys[1]]).len()
}

#[test]
fn a_slow_server_gets_no_requests_until_it_is_fast_again_and_then_few_at_first() {
    let relay = Arc::new(Relay::default());
    let (_servers, _between, kennel, keys) = world(&relay, 1, Duration::from_millis(400));
    assert!(is_healthy(&kennel));
    relay.slow.store(true, SeqCst);
    read_until(&kennel, &keys[0], || !is_healthy(&kennel));
    eventually("what was sent has ended", || kennel.metrics().sum("kennel_upstream_in_flight", &[]) == 0.0);
    // A connection that was given up may be made anew: its probe is over before requests are counted.
    let down = || kennel.metrics().sum("kennel_upstream_requests_total", &["outcome=\"down\""]);
    let timeouts = || kennel.metrics().sum("kennel_upstream_requests_total", &["outcome=\"timeout\""]);
    let (before, timed_out) = (down(), timeouts());
    let mut client = kennel.client();
    for _ in 0..100 {
        // The healthy server's part is answered; the other's is a miss.
        assert_eq!(values(&mut client, &keys), 1);
    }
    assert_eq!((down() - before, timeouts()), (100.0, timed_out));
    relay.slow.store(false, SeqCst);
    eventually("the probes are answered in time", || changes(&kennel, "half_open") >= 1.0);
    let before = relay.requests.load(SeqCst);
    for _ in 0..100 {
        values(&mut client, &keys);
    }
    assert!(relay.requests.load(SeqCst) - before < 100, "all requests were sent at once");
    within(Duration::from_secs(30), "it is healthy again", || is_healthy(&kennel));
    assert_eq!(values(&mut client, &keys), 2);
    assert_eq!(kennel.log().matches(" sick: it answers too slowly").count() as f64, changes(&kennel, "sick"));
}

#[test]
fn a_server_whose_connection_stalls_now_and_then_becomes_sick() {
    let relay = Arc::new(Relay::default());
    let (_servers, _between, kennel, keys) = world(&relay, 2, Duration::from_millis(300));
    relay.slow.store(true, SeqCst);
    read_until(&kennel, &keys[0], || changes(&kennel, "sick") >= 1.0);
}

/// A closed loop: each client reads a key of each server in turn. Run it with `--no-capture` to see the numbers.
#[test]
fn a_slow_server_does_not_slow_down_the_clients_of_the_other() {
    let relay = Arc::new(Relay::default());
    let (_servers, _between, kennel, keys) = world(&relay, 1, Duration::from_millis(400));
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut client = kennel.client();
                while !stop.load(SeqCst) {
                    client.get(&keys[0]);
                    answered.fetch_add(usize::from(client.get(&keys[1]).is_some()), SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let in_a_second = || {
            let before = answered.load(SeqCst);
            std::thread::sleep(Duration::from_secs(1));
            answered.load(SeqCst) - before
        };
        let healthy = in_a_second();
        relay.slow.store(true, SeqCst);
        let since: Vec<usize> = (0..6).map(|_| in_a_second()).collect();
        println!("hits of the other server a second: {healthy} before, {since:?} with the slow one");
        stop.store(true, SeqCst);
        // Without the defence each client waits half a second for each read of the slow server: 40 a second.
        assert!(since[3..].iter().all(|&hits| hits > 100), "{healthy}, then {since:?}");
    });
}
