//! The clients: each reads hot keys in a closed loop, and after anything but a value builds one and stores it, as applications
//! do.

use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::frontend::Running;
use super::record::{Build, Notes, Outcome, Read};
use super::{BUILD, KEYS_PER_SERVER, SERVER_TIMEOUT, SERVERS, VICTIM, Variant};

/// The longest wait for a proxy's reply: longer than all of its own limits.
const PROXY_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two requests of a client, in ms.
const PAUSE: std::ops::Range<u64> = 5..15;
/// The exptime of values: longer than a run.
const EXPTIME: u32 = 3600;
/// The length of a value in bytes, at least.
const VALUE: usize = 100;
/// The longest time until a value can be stored at the start.
const READY: Duration = Duration::from_secs(15);

/// A hot key.
pub(crate) struct Key {
    name: String,
    /// Its server.
    home: usize,
    /// The number of the latest build that was stored.
    stored: AtomicU64,
    /// Values of builds up to this number were deleted, and the delete was acknowledged.
    deleted: AtomicU64,
}

impl Key {
    fn new(name: String, home: usize) -> Key {
        Key { name, home, stored: AtomicU64::new(0), deleted: AtomicU64::new(0) }
    }
}

/// What the clients share.
pub(crate) struct Workload {
    keys: Vec<Key>,
    builds: AtomicU64,
    /// The beginning of the first measured second.
    pub(crate) start: Instant,
    pub(crate) over: AtomicBool,
}

impl Workload {
    pub(crate) fn new(keys: Vec<Key>, start: Instant) -> Workload {
        // The first values have the number 1.
        Workload { keys, builds: AtomicU64::new(1), start, over: AtomicBool::new(false) }
    }
}

/// One client.
pub(crate) struct Client<'a> {
    workload: &'a Workload,
    random: fastrand::Rng,
    peers: Peers,
    notes: Notes,
}

impl<'a> Client<'a> {
    pub(crate) fn new(
        number: usize,
        variant: Variant,
        running: &Running,
        workload: &'a Workload,
    ) -> Client<'a> {
        let random = fastrand::Rng::with_seed(number as u64);
        Client { workload, random, peers: Peers::new(number, variant, running), notes: Notes::default() }
    }

    /// Until the end of the run. An error: a reply that cannot be one.
    pub(crate) fn run(mut self) -> Result<Notes, String> {
        while !self.workload.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(self.random.u64(PAUSE)));
            let index = self.random.usize(0..self.workload.keys.len());
            let begin = Instant::now();
            let outcome = self.read(index)?;
            let home = self.workload.keys[index].home;
            if let Some(end) = self.now() {
                self.notes.reads.push(Read {
                    end,
                    took: begin.elapsed(),
                    of_others: home != VICTIM,
                    outcome,
                });
            }
            if matches!(outcome, Outcome::Miss | Outcome::Failed) {
                self.build(index)?;
            }
        }
        Ok(self.notes)
    }

    /// Deletes each key of the server that fails once, as after a change of the source.
    pub(crate) fn delete(mut self) {
        for key in self.workload.keys.iter().filter(|key| key.home == VICTIM) {
            let builds = self.workload.builds.load(Ordering::SeqCst);
            let reply = self.peers.execute(key.home, format!("delete {}\r\n", key.name).as_bytes());
            if matches!(&reply, Ok(Reply::Line(line)) if line == "DELETED" || line == "NOT_FOUND") {
                key.deleted.store(builds, Ordering::SeqCst);
            }
        }
    }

    fn read(&mut self, index: usize) -> Result<Outcome, String> {
        let key = &self.workload.keys[index];
        let (stored, deleted) = (key.stored.load(Ordering::SeqCst), key.deleted.load(Ordering::SeqCst));
        match self.peers.execute(key.home, format!("get {}\r\n", key.name).as_bytes()) {
            Ok(Reply::Line(line)) if line == "END" => Ok(Outcome::Miss),
            Ok(Reply::Line(line)) if line.starts_with("SERVER_ERROR") => Ok(Outcome::Failed),
            Ok(Reply::Line(line)) => Err(format!("get {}: {line}", key.name)),
            Ok(Reply::Value(body)) => match number(&body, &key.name) {
                Some(number) if number <= deleted => Ok(Outcome::Deleted),
                Some(number) if number < stored => Ok(Outcome::Old),
                Some(_) => Ok(Outcome::Hit),
                None => Err(format!("not a value of {}: {body}", key.name)),
            },
            Err(_) => Ok(Outcome::Failed),
        }
    }

    fn build(&mut self, index: usize) -> Result<(), String> {
        let key = &self.workload.keys[index];
        let number = self.workload.builds.fetch_add(1, Ordering::SeqCst) + 1;
        let begin = self.now();
        std::thread::sleep(BUILD);
        if let Some((begin, end)) = begin.zip(self.now()) {
            self.notes.builds.push(Build { key: index, begin, end });
        }
        match self.peers.execute(key.home, &set(&key.name, number)) {
            Ok(Reply::Line(line)) if line == "STORED" => {
                key.stored.fetch_max(number, Ordering::SeqCst);
            }
            Ok(Reply::Line(line)) if !line.starts_with("SERVER_ERROR") => {
                return Err(format!("set {}: {line}", key.name));
            }
            Ok(Reply::Value(body)) => return Err(format!("set {}: the value {body}", key.name)),
            Ok(Reply::Line(_)) | Err(_) => self.notes.refused.extend(self.now()),
        }
        Ok(())
    }

    /// The time since the start; `None` before it.
    fn now(&self) -> Option<Duration> {
        Instant::now().checked_duration_since(self.workload.start)
    }
}

/// Stores hot keys, as many of each server, finds out which server each is on, and waits until every frontend serves them.
pub(crate) fn fill(variant: Variant, running: &Running) -> Result<Vec<Key>, String> {
    let (mut peers, begun) = (Peers::new(0, variant, running), Instant::now());
    let (mut keys, mut counts): (Vec<Key>, _) = (Vec::new(), [0; SERVERS]);
    for n in 0.. {
        let (name, modulo) = (format!("page:{n}"), n % SERVERS);
        loop {
            match peers.execute(modulo, &set(&name, 1)) {
                Ok(Reply::Line(line)) if line == "STORED" => break,
                other if begun.elapsed() > READY => return Err(format!("cannot store {name}: {other:?}")),
                // A proxy may need a moment before it can store.
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        let home = home(&name, running)?;
        if counts[home] < KEYS_PER_SERVER {
            counts[home] += 1;
            keys.push(Key::new(name, home));
        }
        if counts == [KEYS_PER_SERVER; SERVERS] {
            break;
        }
    }
    for frontend in 0..running.frontend_addresses.len() {
        let mut peers = Peers::new(frontend, variant, running);
        for Key { name, home, .. } in &keys {
            while !matches!(peers.execute(*home, format!("get {name}\r\n").as_bytes()), Ok(Reply::Value(_))) {
                if begun.elapsed() > READY {
                    return Err(format!("{name} is not served by frontend {frontend}"));
                }
                let _ = peers.execute(*home, &set(name, 1));
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(keys)
}

/// The server that has the key.
fn home(name: &str, running: &Running) -> Result<usize, String> {
    for (server, address) in running.server_addresses.iter().enumerate() {
        let mut connection = None;
        let reply = execute(&mut connection, *address, SERVER_TIMEOUT, format!("mg {name}\r\n").as_bytes());
        if matches!(&reply, Ok(Reply::Line(line)) if line.starts_with("HD")) {
            return Ok(server);
        }
    }
    Err(format!("{name} is on no server"))
}

fn set(name: &str, number: u64) -> Vec<u8> {
    let body = format!("{:VALUE$}", format!("{name} {number} "));
    format!("set {name} 0 {EXPTIME} {}\r\n{body}\r\n", body.len()).into_bytes()
}

/// The number of the build of a value of this key.
fn number(body: &str, name: &str) -> Option<u64> {
    let mut words = body.split_whitespace();
    if words.next()? == name { words.next()?.parse().ok() } else { None }
}

#[derive(Debug)]
enum Reply {
    Value(String),
    Line(String),
}

/// The connections of a client: to its frontend, or to every server.
struct Peers {
    peers: Vec<(SocketAddr, Option<BufReader<TcpStream>>)>,
    timeout: Duration,
}

impl Peers {
    fn new(number: usize, variant: Variant, running: &Running) -> Peers {
        let (addresses, timeout) = match variant {
            Variant::Direct => (running.server_addresses.clone(), SERVER_TIMEOUT),
            _ => {
                let frontends = &running.frontend_addresses;
                (vec![frontends[number % frontends.len()]], PROXY_TIMEOUT)
            }
        };
        Peers { peers: addresses.into_iter().map(|address| (address, None)).collect(), timeout }
    }

    /// Sends it to the frontend, or without one to the key's server. After an error the next request connects anew.
    fn execute(&mut self, home: usize, request: &[u8]) -> io::Result<Reply> {
        let count = self.peers.len();
        let (address, connection) = &mut self.peers[home % count];
        let reply = execute(connection, *address, self.timeout, request);
        if reply.is_err() {
            *connection = None;
        }
        reply
    }
}

fn execute(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    timeout: Duration,
    request: &[u8],
) -> io::Result<Reply> {
    if connection.is_none() {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        *connection = Some(BufReader::new(stream));
    }
    let stream = connection.as_mut().expect("just connected");
    stream.get_mut().write_all(request)?;
    let first = line(stream)?;
    if !first.starts_with("VALUE ") {
        return Ok(Reply::Line(first));
    }
    let size = first.split(' ').nth(3).and_then(|size| size.parse::<usize>().ok());
    let mut body = vec![0; size.ok_or(ErrorKind::InvalidData)? + 2];
    stream.read_exact(&mut body)?;
    if line(stream)? != "END" {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(Reply::Value(String::from_utf8_lossy(&body).into_owned()))
}

fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_its_key_and_its_build_and_has_its_length() {
        let request = String::from_utf8(set("page:7", 12)).unwrap();
        let (first, body) = request.split_once("\r\n").unwrap();
        assert_eq!(first, format!("set page:7 0 {EXPTIME} {VALUE}"));
        assert_eq!(body.len(), VALUE + 2);
        assert_eq!((number(body, "page:7"), number(body, "page:70")), (Some(12), None));
    }
}
