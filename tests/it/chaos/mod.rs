//! The promises while everything fails at once: three memcacheds, three sidecars, two hundred clients, and a thread that kills and
//! suspends the servers, kills the sidecars, and delays and cuts their connections. In the test of this file the memcacheds have
//! hardly any memory, and faults are short; in the one of `outages` they last until a server counts as dead, and may affect a
//! single sidecar.
//!
//! `KENNEL_CHAOS_SECONDS=600` sets the duration, `KENNEL_CHAOS_SEED=7` draws another course of events. The seed determines the
//! course, but not its outcome, because time is real.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use tokio::time::Instant;

use crate::world::{Kennel, Memcached, direct, guarded};

mod actors;
mod history;
mod network;
mod outages;

use actors::{Actor, Kind, PER_GROUP, SharedState};
use history::{Coverage, Event, Key, check};
use network::Network;

/// Per kind of key.
const KEYS: usize = 12;
const READERS: usize = 170;
const WRITERS: usize = 16;
const INVALIDATORS: usize = 14;
/// Hardly any memory, and the least recently *stored* item is evicted first: tags, locks and stubs are evicted however often they
/// are used.
const SMALL: [&str; 4] = ["-m", "2", "-o", "no_lru_maintainer"];

/// How often each event was caused.
#[derive(Debug, Default)]
struct Done {
    servers_killed: usize,
    servers_stopped: usize,
    sidecars_killed: usize,
    cut: usize,
    delays: usize,
    /// Small items that were evicted: tags, locks, stubs and filler items are of one size.
    evicted: u64,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// `long`: the TTL of every second key, in seconds, if it is not short.
fn keys(long: Option<u64>) -> Vec<(Kind, Key)> {
    let mut keys: Vec<(Kind, Key)> = Vec::new();
    let mut key = |kind, name, stale_for| {
        let short = if stale_for > 0 { 2 } else { 4 };
        let ttl = long.filter(|_| keys.len() % 2 == 1).unwrap_or(short);
        keys.push((kind, Key { name, ttl, stale_for }));
    };
    for n in 0..KEYS {
        key(Kind::Deleted, format!("d:{n}"), 0);
    }
    for n in 0..KEYS {
        key(Kind::Blind, format!("b:{n}"), 0);
    }
    for n in 0..KEYS {
        key(Kind::Dropped, format!("t:{}:{n}", n / PER_GROUP), 0);
    }
    for n in 0..KEYS {
        key(Kind::Stale, format!("s:{}:{n}", n / PER_GROUP), 3);
    }
    keys
}

/// A sidecar's configuration. Whatever their addresses, the servers have the same names on every ring.
fn configuration(servers: &[String]) -> String {
    let servers = servers.iter().enumerate();
    let servers: Vec<String> =
        servers.map(|(n, address)| format!("{{ address = {address:?}, name = \"server-{n}\" }}")).collect();
    let common = "lock_ttl = \"1s\"\nmax_rebuild = \"10s\"\ncold_wait = \"300ms\"\ncold_limit = \"1s\"\n";
    let strict = format!("{common}stale_for = \"0s\"\n");
    let rules = [
        guarded("d", "d:*", &strict),
        guarded("b", "b:*", &strict),
        guarded("t", "t:{g}:*", &format!("{strict}tags = [\"t:{{g}}\"]\non_tag = \"drop\"\n")),
        guarded("s", "s:{g}:*", &format!("{common}stale_for = \"3s\"\ntags = [\"s:{{g}}\"]\n")),
    ];
    format!(
        "[listen]\ntcp = [\"127.0.0.1:0\"]\nworkers = 2\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n[pools.main]\n\
         servers = [{}]\nconnect_timeout = \"100ms\"\nrequest_timeout = \"200ms\"\n\n{}",
        servers.join(", "),
        rules.join("\n")
    )
}

/// The processes that are killed and suspended, and the proxies between them.
struct Setup {
    random: fastrand::Rng,
    servers: Vec<Memcached>,
    networks: Vec<Network>,
    configurations: Vec<String>,
    sidecars: Vec<Option<Kennel>>,
    done: Done,
}

impl Setup {
    fn start(seed: u64) -> Setup {
        let servers: Vec<Memcached> = (0..3).map(|_| Memcached::start(&SMALL)).collect();
        let networks: Vec<Network> =
            servers.iter().map(|server| Network::start(server.address, seed)).collect();
        let through: Vec<String> = networks.iter().map(Network::address).collect();
        let past: Vec<String> = servers.iter().map(Memcached::address).collect();
        // Commands of the last sidecar overtake those that the others' connections delay.
        let configurations: Vec<String> = [&through, &through, &past].map(|to| configuration(to)).into();
        let sidecars = configurations.iter().map(|toml| Some(Kennel::start(toml))).collect();
        let random = fastrand::Rng::with_seed(seed);
        Setup { random, servers, networks, configurations, sidecars, done: Done::default() }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.sidecars.iter().flatten().map(Kennel::address).collect()
    }

    /// One after the other, each kind of fault at least once before any recurs.
    fn inject_faults(&mut self, shared: &SharedState, until: Instant) {
        let mut faults: Vec<u8> = Vec::new();
        while Instant::now() < until || !faults.is_empty() {
            if faults.is_empty() {
                faults = (0..6).collect();
                self.random.shuffle(&mut faults);
            }
            match faults.pop() {
                Some(0) => self.kill_server(),
                Some(1) => self.kill_sidecar(shared),
                Some(2) => self.cut(),
                Some(3) => self.delay(),
                // Twice: once shorter than a connection tolerates, once longer.
                Some(4) => self.stop_server(100..700),
                _ => self.stop_server(900..3000),
            }
            self.pause(50..400);
        }
    }

    fn kill_server(&mut self) {
        let server = self.random.usize(0..self.servers.len());
        self.done.evicted += evicted(&self.servers[server]);
        self.servers[server].restart();
        self.done.servers_killed += 1;
    }

    fn stop_server(&mut self, millis: std::ops::Range<u64>) {
        let server = self.random.usize(0..self.servers.len());
        self.servers[server].stop();
        self.pause(millis);
        // Sometimes its connections are cut meanwhile, without losing what was sent on them.
        if self.random.bool() {
            self.done.cut += self.networks[server].cut();
            self.pause(0..300);
        }
        self.servers[server].cont();
        self.done.servers_stopped += 1;
    }

    fn kill_sidecar(&mut self, shared: &SharedState) {
        let sidecar = self.random.usize(0..self.sidecars.len());
        let kennel = self.sidecars[sidecar].take().expect("it runs");
        assert!(!kennel.log().contains("panicked"), "{}", kennel.log());
        shared.set_unreachable(sidecar);
        kennel.kill();
        self.pause(0..300);
        let kennel = Kennel::start(&self.configurations[sidecar]);
        shared.set_address(sidecar, kennel.address());
        self.sidecars[sidecar] = Some(kennel);
        self.done.sidecars_killed += 1;
    }

    fn cut(&mut self) {
        let server = self.random.usize(0..self.networks.len());
        self.done.cut += self.networks[server].cut();
    }

    fn delay(&mut self) {
        let server = self.random.usize(0..self.networks.len());
        // In one direction or both; so short that some requests are in time, or so long that none is.
        let delays = [0, 1].map(|_| [0, 50, 200, 800][self.random.usize(0..4)]);
        self.networks[server].delay(if delays == [0, 0] { [200, 0] } else { delays });
        self.pause(200..1500);
        // What is on its way is still held when the connections end.
        if self.random.bool() {
            self.done.cut += self.networks[server].cut();
        }
        self.networks[server].delay([0, 0]);
        self.done.delays += 1;
    }

    fn pause(&mut self, millis: std::ops::Range<u64>) {
        std::thread::sleep(Duration::from_millis(self.random.u64(millis)));
    }
}

/// How many items of the smallest sizes it has evicted since its start.
fn evicted(server: &Memcached) -> u64 {
    let mut client = direct(server);
    client.send(b"stats items\r\n");
    let mut evicted = 0;
    loop {
        let line = client.line();
        if line == "END" {
            return evicted;
        }
        let words: Vec<&str> = line.split([' ', ':']).collect();
        if let ["STAT", "items", "1" | "2", "evicted", n] = words[..] {
            evicted += n.parse::<u64>().expect("a number");
        }
    }
}

/// Fills a server's memory with small items until the end of the test.
fn fill(server: SocketAddr, shared: &SharedState, filled: &AtomicU64) {
    let mut round = 0;
    while !shared.over.load(Ordering::SeqCst) {
        let connected = TcpStream::connect_timeout(&server, Duration::from_millis(200));
        if let Ok(mut stream) = connected {
            // A suspended server accepts nothing.
            let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
            let mut load = Vec::new();
            for n in 0..12_000 {
                // Up to the size of a tag or stub, and of a lock.
                let _ = write!(load, "set fill:{round}:{n} 0 0 {} noreply\r\n", 4 + n % 40);
                load.extend(std::iter::repeat_n(b'x', 4 + n % 40));
                load.extend_from_slice(b"\r\n");
            }
            filled.fetch_add(u64::from(stream.write_all(&load).is_ok()), Ordering::SeqCst);
            round += 1;
        }
        std::thread::sleep(Duration::from_millis(700));
    }
}

/// Ends the actors also if the test fails, otherwise they would keep it from ending.
struct EndActors<'a>(&'a SharedState);

impl Drop for EndActors<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

/// What the actors observed.
struct Observed {
    events: Vec<Event>,
    keys: Vec<Key>,
}

/// Runs the actors while `inject` injects faults. When it returns, every fault must have ended; then every key becomes fresh.
/// `fillers` are servers whose memory is filled meanwhile.
fn observe(
    seed: u64,
    keys: Vec<(Kind, Key)>,
    sidecars: &[SocketAddr],
    fillers: &[SocketAddr],
    inject: impl FnOnce(&SharedState),
) -> Observed {
    let shared = SharedState::new(keys, sidecars);
    let filled = AtomicU64::new(0);
    let mut events: Vec<Event> = Vec::new();
    std::thread::scope(|scope| {
        let end_actors = EndActors(&shared);
        for server in fillers {
            let (address, shared, filled) = (*server, &shared, &filled);
            scope.spawn(move || fill(address, shared, filled));
        }
        let act = |number: usize| {
            let actor = Actor::new(&shared, number, seed);
            let run = move || match number {
                0..READERS => actor.read_and_rebuild(),
                n if n < READERS + WRITERS => actor.write(),
                _ => actor.invalidate(),
            };
            Builder::new().stack_size(256 * 1024).spawn_scoped(scope, run).expect("a thread")
        };
        let actors: Vec<ScopedJoinHandle<'_, Vec<Event>>> =
            (0..READERS + WRITERS + INVALIDATORS).map(act).collect();
        inject(&shared);
        drop(end_actors);
        for actor in actors {
            events.extend(actor.join().expect("no actor panics"));
        }
    });
    events.extend(
        Actor::new(&shared, READERS + WRITERS + INVALIDATORS, seed).becomes_fresh(Duration::from_secs(30)),
    );
    println!("{} events, {} fillings", events.len(), filled.load(Ordering::SeqCst));
    Observed { events, keys: shared.keys.iter().map(|(_, key)| key.clone()).collect() }
}

/// Checks the promises, and that the actors saw everything that they can.
fn verify(seed: u64, observed: &Observed, suspended: u64) {
    let coverage = check(&observed.events, &observed.keys, suspended)
        .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    println!("{coverage:?}");
    let Coverage { fresh, stale, missed, refused, stored, blind, acked, unacked, lost, .. } = coverage;
    let happened = [fresh, stale, missed, refused, stored, blind, acked, unacked, lost];
    assert!(happened.iter().all(|times| *times > 0), "hardly tested: {coverage:?}");
}

/// The duration and the seed, which are printed.
fn seconds_and_seed(default: u64) -> (u64, u64) {
    let (seconds, seed) = (number("KENNEL_CHAOS_SECONDS", default), number("KENNEL_CHAOS_SEED", 1));
    println!("KENNEL_CHAOS_SEED={seed} KENNEL_CHAOS_SECONDS={seconds}");
    (seconds, seed)
}

fn assert_no_panic(sidecars: &[Option<Kennel>]) {
    for kennel in sidecars.iter().flatten() {
        assert!(!kennel.log().contains("panicked"), "{}", kennel.log());
    }
}

#[test]
fn whatever_fails_no_value_is_resurrected_and_nobody_hangs_and_every_key_becomes_fresh_again() {
    let (seconds, seed) = seconds_and_seed(12);
    let mut setup = Setup::start(seed);
    let servers: Vec<SocketAddr> = setup.servers.iter().map(|server| server.address).collect();
    let observed = observe(seed, keys(None), &setup.addresses(), &servers, |shared| {
        setup.inject_faults(shared, Instant::now() + Duration::from_secs(seconds));
        setup.done.evicted += setup.servers.iter().map(evicted).sum::<u64>();
    });
    assert_no_panic(&setup.sidecars);
    println!("{:?}", setup.done);
    verify(seed, &observed, 3);
    let Done { servers_killed, servers_stopped, sidecars_killed, cut, delays, evicted } = setup.done;
    assert!(evicted > 0, "hardly tested: nothing was evicted");
    let faults = [servers_killed, servers_stopped, sidecars_killed, cut, delays];
    assert!(faults.iter().all(|times| *times > 0), "hardly tested: {:?}", setup.done);
}
