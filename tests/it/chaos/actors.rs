//! The applications: they read, rebuild after a miss, write without a miss, and invalidate. Each records what it observes.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::history::{Event, Key, Observation};

/// A response after this time counts as none.
const HANGS: Duration = Duration::from_secs(10);
/// The number of keys per tag.
pub(super) const PER_GROUP: usize = 4;

/// How a key is invalidated, and which commands are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// By a delete; nothing stale is ever served.
    Deleted,
    /// The same, and some clients set it without a miss.
    Blind,
    /// By its group's tag; nothing stale is ever served.
    Dropped,
    /// By its group's tag; the old value is served as stale, and meta clients see that it is.
    Stale,
}

/// What the actors share.
pub(super) struct SharedState {
    pub(super) keys: Vec<(Kind, Key)>,
    /// The source of truth: each key's version.
    pub(super) source: Vec<AtomicU64>,
    pub(super) sidecars: Vec<Mutex<SidecarAddress>>,
    pub(super) over: AtomicBool,
    writes: AtomicU64,
    start: Instant,
}

/// The address of a sidecar.
#[derive(Debug, Clone, Copy)]
pub(super) struct SidecarAddress {
    /// `None` while there is none, from before it is killed.
    address: Option<SocketAddr>,
    /// How often it has been killed.
    kills: usize,
}

impl SharedState {
    pub(super) fn new(keys: Vec<(Kind, Key)>, sidecars: &[SocketAddr]) -> SharedState {
        let address_of_sidecar =
            |address: &SocketAddr| Mutex::new(SidecarAddress { address: Some(*address), kills: 0 });
        SharedState {
            source: keys.iter().map(|_| AtomicU64::new(1)).collect(),
            keys,
            sidecars: sidecars.iter().map(address_of_sidecar).collect(),
            over: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    /// The sidecar is about to be killed.
    pub(super) fn set_unreachable(&self, sidecar: usize) {
        let mut address_of_sidecar = self.sidecars[sidecar].lock().expect("no holder panics");
        *address_of_sidecar = SidecarAddress { address: None, kills: address_of_sidecar.kills + 1 };
    }

    /// The sidecar is reachable at this address from now on.
    pub(super) fn set_address(&self, sidecar: usize, address: SocketAddr) {
        self.sidecars[sidecar].lock().expect("no holder panics").address = Some(address);
    }

    fn sidecar(&self, sidecar: usize) -> SidecarAddress {
        *self.sidecars[sidecar].lock().expect("no holder panics")
    }

    /// In microseconds since the start, as in the history.
    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

/// One client of one sidecar.
pub(super) struct Actor<'a> {
    shared: &'a SharedState,
    number: usize,
    sidecar: usize,
    random: fastrand::Rng,
    connection: Option<Connection>,
    history: Vec<Event>,
}

struct Connection {
    stream: BufReader<TcpStream>,
    /// How often its sidecar had been killed when the client was created.
    kills: usize,
}

/// The meaning of a reply without a value.
enum Reply {
    Value { body: Vec<u8>, flags: String },
    Line(String),
}

impl<'a> Actor<'a> {
    pub(super) fn new(shared: &'a SharedState, number: usize, seed: u64) -> Actor<'a> {
        let sidecar = number % shared.sidecars.len();
        let random = fastrand::Rng::with_seed(seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Actor { shared, number, sidecar, random, connection: None, history: Vec::new() }
    }

    /// Reads, and rebuilds after a miss.
    pub(super) fn read_and_rebuild(mut self) -> Vec<Event> {
        while !self.shared.over.load(Ordering::SeqCst) {
            let key = self.random.usize(0..self.shared.keys.len());
            if self.read(key) {
                self.pause(0, 30);
                self.store(key, false);
            }
            self.pause(10, 80);
        }
        self.history
    }

    /// Writes without a miss.
    pub(super) fn write(mut self) -> Vec<Event> {
        let keys: Vec<usize> = self.keys(|kind| kind == Kind::Blind);
        while !self.shared.over.load(Ordering::SeqCst) {
            let key = keys[self.random.usize(0..keys.len())];
            self.store(key, true);
            self.pause(10, 150);
        }
        self.history
    }

    /// Changes the source, and then invalidates.
    pub(super) fn invalidate(mut self) -> Vec<Event> {
        while !self.shared.over.load(Ordering::SeqCst) {
            let key = self.random.usize(0..self.shared.keys.len());
            self.move_on(key);
            self.pause(20, 200);
        }
        self.history
    }

    /// Afterwards: every key can be invalidated, and is then fresh through every sidecar.
    pub(super) fn becomes_fresh(mut self, limit: Duration) -> Vec<Event> {
        let began = Instant::now();
        for key in 0..self.shared.keys.len() {
            let name = self.shared.keys[key].1.name.clone();
            while !self.move_on(key) {
                assert!(began.elapsed() < limit, "{name} cannot be invalidated: {:?}", self.history.last());
                self.pause(20, 40);
            }
            let version = self.shared.source[key].load(Ordering::SeqCst);
            for sidecar in 0..self.shared.sidecars.len() {
                (self.sidecar, self.connection) = (sidecar, None);
                loop {
                    let missed = self.read(key);
                    if missed {
                        self.store(key, false);
                    }
                    let fresh = |event: &Event| matches!(event.what, Observation::Served { version: served, stale: false, .. } if served == version);
                    if !missed && self.history.last().is_some_and(fresh) {
                        break;
                    }
                    let last = self.history.last();
                    assert!(began.elapsed() < limit, "{name} does not become fresh: {last:?}");
                    self.pause(20, 40);
                }
            }
        }
        self.history
    }

    fn keys(&self, of: impl Fn(Kind) -> bool) -> Vec<usize> {
        (0..self.shared.keys.len()).filter(|key| of(self.shared.keys[*key].0)).collect()
    }

    /// True if it is to rebuild the key.
    fn read(&mut self, key: usize) -> bool {
        let (kind, Key { name, .. }) = &self.shared.keys[key];
        let meta = *kind == Kind::Stale;
        // Half of them request `W`, and win with the old value; the others receive a miss.
        let flags = if meta && self.random.bool() { " R0" } else { "" };
        let command = if meta { format!("mg {name} v{flags}\r\n") } else { format!("get {name}\r\n") };
        let begin = self.shared.now();
        let (what, rebuilds) = match self.execute(command.as_bytes(), !meta) {
            Ok(Reply::Value { body, flags }) => {
                let (stale, won) = (meta && flags.contains('X'), meta && flags.contains('W'));
                (parsed(&body, name, stale), won)
            }
            Ok(Reply::Line(line)) if matches!(&line[..], "END" | "EN") => (Observation::Missed, true),
            Ok(Reply::Line(line)) if line.starts_with("SERVER_ERROR") => (Observation::Refused, false),
            Ok(Reply::Line(line)) => (Observation::WrongValue(line), false),
            Err(what) => (what, false),
        };
        self.note(key, begin, what);
        rebuilds
    }

    /// Stores the source's current version.
    fn store(&mut self, key: usize, blind: bool) {
        let version = self.shared.source[key].load(Ordering::SeqCst);
        self.pause(0, 20);
        let write = self.shared.writes.fetch_add(1, Ordering::SeqCst);
        let (kind, Key { name, ttl, .. }) = &self.shared.keys[key];
        let body = format!("{name} {version} {write} {}", "x".repeat(self.random.usize(0..400)));
        let size = body.len();
        let verb = if self.random.u8(0..5) == 0 { "add" } else { "set" };
        let command = match kind {
            Kind::Stale => format!("ms {name} {size} T{ttl}\r\n{body}\r\n"),
            _ => format!("{verb} {name} 0 {ttl} {size}\r\n{body}\r\n"),
        };
        let begin = self.shared.now();
        let (stored, trouble) = match self.execute(command.as_bytes(), false) {
            Ok(Reply::Line(line)) => match &line[..] {
                "STORED" | "HD" => (true, None),
                "NOT_STORED" | "NS" => (false, None),
                line if line.starts_with("SERVER_ERROR") => (false, None),
                line => (false, Some(Observation::WrongValue(line.into()))),
            },
            Ok(Reply::Value { .. }) => (false, Some(Observation::WrongValue("a value".into()))),
            Err(what) => (false, Some(what)),
        };
        self.note(key, begin, Observation::Wrote { version, write, blind, stored });
        if let Some(what) = trouble {
            self.note(key, begin, what);
        }
    }

    /// Changes the source and invalidates. True if the invalidation was acknowledged.
    fn move_on(&mut self, key: usize) -> bool {
        let (kind, Key { name, .. }) = &self.shared.keys[key];
        let (keys, command) = match kind {
            Kind::Deleted | Kind::Blind => (key..key + 1, format!("delete {name}\r\n")),
            Kind::Dropped | Kind::Stale => {
                let first = key - key % PER_GROUP;
                let (group, _) = name.rsplit_once(':').expect("a key of a group");
                (first..first + PER_GROUP, format!("delete @tag:{group}\r\n"))
            }
        };
        let shared = self.shared;
        let moved: Vec<(usize, u64)> =
            keys.map(|key| (key, shared.source[key].fetch_add(1, Ordering::SeqCst) + 1)).collect();
        let begin = self.shared.now();
        let (acked, trouble) = match self.execute(command.as_bytes(), false) {
            Ok(Reply::Line(line)) => match &line[..] {
                "DELETED" | "NOT_FOUND" => (true, None),
                line if line.starts_with("SERVER_ERROR") => (false, None),
                line => (false, Some(Observation::WrongValue(line.into()))),
            },
            Ok(Reply::Value { .. }) => (false, Some(Observation::WrongValue("a value".into()))),
            Err(what) => (false, Some(what)),
        };
        for (key, version) in moved {
            self.note(key, begin, Observation::Invalidated { version, acked });
        }
        if let Some(what) = trouble {
            self.note(key, begin, what);
        }
        acked
    }

    fn note(&mut self, key: usize, begin: u64, what: Observation) {
        let (actor, end) = ((self.number, self.sidecar), self.shared.now());
        self.history.push(Event { key, actor, begin, end, what });
    }

    /// Sends it, on a new connection if there is none. `ends`: an `END` follows a value.
    fn execute(&mut self, command: &[u8], ends: bool) -> Result<Reply, Observation> {
        let address_of_sidecar = self.shared.sidecar(self.sidecar);
        let reply =
            self.connection(address_of_sidecar).and_then(|connection| connection.execute(command, ends));
        reply.map_err(|error| {
            let kills =
                self.connection.take().map_or(address_of_sidecar.kills, |connection| connection.kills);
            let killed =
                address_of_sidecar.address.is_none() || self.shared.sidecar(self.sidecar).kills > kills;
            self.pause(20, 100);
            match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Observation::TimedOut,
                _ if killed => Observation::Lost,
                _ => Observation::Closed,
            }
        })
    }

    fn connection(&mut self, address_of_sidecar: SidecarAddress) -> io::Result<&mut Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let address = address_of_sidecar.address.ok_or(ErrorKind::ConnectionRefused)?;
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(HANGS))?;
                Connection { stream: BufReader::new(stream), kills: address_of_sidecar.kills }
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// The time that an application needs, in ms.
    fn pause(&mut self, least: u64, most: u64) {
        std::thread::sleep(Duration::from_millis(self.random.u64(least..=most)));
    }
}

impl Connection {
    fn execute(&mut self, command: &[u8], ends: bool) -> io::Result<Reply> {
        self.stream.get_mut().write_all(command)?;
        let line = self.line()?;
        let mut words = line.split(' ');
        let (size, flags) = match words.next() {
            Some("VALUE") => (words.nth(2), String::new()),
            Some("VA") => (words.next(), words.collect()),
            _ => return Ok(Reply::Line(line)),
        };
        let Some(size) = size.and_then(|size| size.parse::<usize>().ok()) else {
            return Ok(Reply::Line(line));
        };
        let mut body = vec![0; size + 2];
        self.stream.read_exact(&mut body)?;
        // The key's name is also in the line of a classic value.
        let named = !ends || body.starts_with(line.split(' ').nth(1).unwrap_or_default().as_bytes());
        let end = if ends { self.line()? } else { "END".to_owned() };
        if !named || end != "END" || !body.ends_with(b"\r\n") {
            return Ok(Reply::Line(format!("{line} {} {end}", body.escape_ascii())));
        }
        body.truncate(size);
        Ok(Reply::Value { body, flags })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

/// The version in a value, if it is one of this key.
fn parsed(body: &[u8], name: &str, stale: bool) -> Observation {
    let text = String::from_utf8_lossy(body);
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        [key, version, write, _] if key == name => match (version.parse(), write.parse()) {
            (Ok(version), Ok(write)) => Observation::Served { version, write, stale },
            _ => Observation::WrongValue(text.into_owned()),
        },
        _ => Observation::WrongValue(text.into_owned()),
    }
}
