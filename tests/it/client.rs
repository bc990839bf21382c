//! One client connection, byte by byte: it sends exactly what it is given and checks everything that it reads.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a reply may take before the test fails. Far above every limit that a test configures.
const PATIENCE: Duration = Duration::from_secs(40);

/// A blocking connection to a sidecar or to a memcached. Every method that reads panics after 40 s without data and on a closed
/// connection, because no guarantee permits either.
pub(crate) struct Client {
    stream: Stream,
    /// Received but not yet consumed.
    buffer: Vec<u8>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One item of a reply to `get` or `gets`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its key.
    pub(crate) key: String,
    /// The client's flags.
    pub(crate) flags: u32,
    /// The data block.
    pub(crate) value: Vec<u8>,
    /// The fifth word of the `VALUE` line: only `gets` and `gats` return it.
    pub(crate) cas: Option<u64>,
}

impl Client {
    /// Connects over TCP with TCP_NODELAY, so that one write is one packet.
    pub(crate) fn tcp(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("connect to {address}: {e}"));
        stream.set_nodelay(true).expect("TCP_NODELAY on an open socket");
        let client = Client { stream: Stream::Tcp(stream), buffer: Vec::new() };
        client.set_patience(PATIENCE);
        client
    }

    /// Connects to a Unix socket.
    pub(crate) fn unix(path: &Path) -> Client {
        let stream =
            UnixStream::connect(path).unwrap_or_else(|e| panic!("connect to {}: {e}", path.display()));
        let client = Client { stream: Stream::Unix(stream), buffer: Vec::new() };
        client.set_patience(PATIENCE);
        client
    }

    /// The same connection, for another thread to send on while this one reads.
    pub(crate) fn sender(&self) -> Client {
        let stream = match &self.stream {
            Stream::Tcp(s) => {
                s.set_write_timeout(Some(2 * PATIENCE)).and_then(|()| s.try_clone()).map(Stream::Tcp)
            }
            Stream::Unix(s) => {
                s.set_write_timeout(Some(2 * PATIENCE)).and_then(|()| s.try_clone()).map(Stream::Unix)
            }
        };
        Client { stream: stream.expect("another descriptor"), buffer: Vec::new() }
    }

    /// Sends `bytes` as they are. If the peer has closed, the next read panics.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let sent = match &mut self.stream {
            Stream::Tcp(s) => s.write_all(bytes),
            Stream::Unix(s) => s.write_all(bytes),
        };
        match sent {
            Err(e) if !closed(&e) => panic!("send {}: {e}", show(bytes)),
            _ => {}
        }
    }

    /// Shuts down the sending direction and keeps reading.
    pub(crate) fn half_close(&mut self) {
        match &self.stream {
            Stream::Tcp(s) => s.shutdown(Shutdown::Write),
            Stream::Unix(s) => s.shutdown(Shutdown::Write),
        }
        .expect("half-close an open socket");
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        let linger = Some(Duration::ZERO);
        match &self.stream {
            Stream::Tcp(s) => socket2::SockRef::from(s).set_linger(linger),
            Stream::Unix(s) => socket2::SockRef::from(s).set_linger(linger),
        }
        .expect("SO_LINGER on an open socket");
    }

    /// The next line, without its CRLF.
    pub(crate) fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return line;
            }
            self.more("a line");
        }
    }

    /// Sends one command line (CRLF is added) and returns the first line of the reply.
    pub(crate) fn execute(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        self.line()
    }

    /// Reads as many bytes as `expected` has and compares them.
    pub(crate) fn expect(&mut self, expected: &[u8]) {
        let got = self.bytes(expected.len());
        assert_eq!(show(&got), show(expected), "then came {}", show(&self.buffer));
    }

    /// The next `n` bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        while self.buffer.len() < n {
            self.more("a data block");
        }
        self.buffer.drain(..n).collect()
    }

    /// Everything up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.receive("the end of the connection") {}
        std::mem::take(&mut self.buffer)
    }

    /// Everything up to and including `end`, or up to the end of the connection if that comes first.
    pub(crate) fn until(&mut self, end: &[u8]) -> Vec<u8> {
        while !self.buffer.ends_with(end) && self.receive("the end of the replies") {}
        std::mem::take(&mut self.buffer)
    }

    /// `get` of one key: its value, or `None` for a miss.
    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.only_value(key)
    }

    /// The reply to a `get` of this one key that was sent earlier.
    pub(crate) fn only_value(&mut self, key: &str) -> Option<Vec<u8>> {
        let mut items = self.items().unwrap_or_else(|e| panic!("get {key}: {e}"));
        assert!(items.len() <= 1 && items.iter().all(|i| i.key == key), "get {key}: {items:?}");
        items.pop().map(|i| i.value)
    }

    /// `gets` of one key: value and CAS.
    pub(crate) fn gets(&mut self, key: &str) -> Option<(Vec<u8>, u64)> {
        self.send(format!("gets {key}\r\n").as_bytes());
        let mut items = self.items().unwrap_or_else(|e| panic!("gets {key}: {e}"));
        assert!(items.len() <= 1 && items.iter().all(|i| i.key == key), "gets {key}: {items:?}");
        items.pop().map(|i| (i.value, i.cas.expect("gets answers with the CAS")))
    }

    /// `get` of several keys: the hits, in the order of the reply.
    pub(crate) fn get_many(&mut self, keys: &[&str]) -> Vec<Item> {
        self.send(format!("get {}\r\n", keys.join(" ")).as_bytes());
        self.items().unwrap_or_else(|e| panic!("get {keys:?}: {e}"))
    }

    /// Reads the reply to a `get`, `gets`, `gat` or `gats`: its items, or the error line.
    pub(crate) fn items(&mut self) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        loop {
            let line = self.line();
            if line == "END" {
                return Ok(items);
            }
            let words: Vec<&str> = line.split(' ').collect();
            let (["VALUE", key, flags, size] | ["VALUE", key, flags, size, _]) = words[..] else {
                return Err(line);
            };
            let size: usize = size.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            let value = self.bytes(size);
            self.expect(b"\r\n");
            items.push(Item {
                key: key.to_owned(),
                flags: flags.parse().unwrap_or_else(|e| panic!("{line}: {e}")),
                value,
                cas: words.get(4).map(|c| c.parse().unwrap_or_else(|e| panic!("{line}: {e}"))),
            });
        }
    }

    /// `set` with flags 0. Returns the line of the reply.
    pub(crate) fn set(&mut self, key: &str, value: &[u8], exptime: i64) -> String {
        self.send(&set_command(key, value, exptime));
        self.line()
    }

    /// `set` that must return `STORED`.
    pub(crate) fn store(&mut self, key: &str, value: &[u8], exptime: i64) {
        assert_eq!(self.set(key, value, exptime), "STORED", "set {key}");
    }

    /// `delete`. Returns the line of the reply.
    pub(crate) fn delete(&mut self, key: &str) -> String {
        self.execute(&format!("delete {key}"))
    }

    /// The item's remaining TTL in seconds, -1 for none, without counting as a read; `None` if the item is absent. For a
    /// connection to a server, not to a sidecar.
    pub(crate) fn ttl(&mut self, key: &str) -> Option<i64> {
        let line = self.execute(&format!("mg {key} t"));
        if line == "EN" {
            return None;
        }
        let ttl = line.strip_prefix("HD t").and_then(|rest| rest.split(' ').next());
        let ttl = ttl.unwrap_or_else(|| panic!("mg {key} t: {line}"));
        Some(ttl.parse().unwrap_or_else(|e| panic!("mg {key} t: {line}: {e}")))
    }

    /// Asserts that nothing arrives for this long.
    pub(crate) fn silent_for(&mut self, time: Duration) {
        assert!(self.buffer.is_empty(), "not silent: {}", show(&self.buffer));
        self.set_patience(time);
        let mut chunk = [0; 4096];
        let got = match &mut self.stream {
            Stream::Tcp(s) => s.read(&mut chunk),
            Stream::Unix(s) => s.read(&mut chunk),
        };
        self.set_patience(PATIENCE);
        match got {
            Err(e) if silent(&e) => {}
            Ok(0) => panic!("the connection was closed instead of staying silent"),
            Ok(n) => panic!("not silent for {time:?}: {}", show(&chunk[..n])),
            Err(e) => panic!("not silent for {time:?}: {e}"),
        }
    }

    fn set_patience(&self, time: Duration) {
        match &self.stream {
            Stream::Tcp(s) => s.set_read_timeout(Some(time)),
            Stream::Unix(s) => s.set_read_timeout(Some(time)),
        }
        .expect("a time-out above zero");
    }

    fn more(&mut self, what: &str) {
        if !self.receive(what) {
            panic!("the connection was closed before {what}; unread: {}", show(&self.buffer));
        }
    }

    /// Receives once; false at the end of the connection.
    fn receive(&mut self, what: &str) -> bool {
        let mut chunk = [0; 65536];
        loop {
            let got = match &mut self.stream {
                Stream::Tcp(s) => s.read(&mut chunk),
                Stream::Unix(s) => s.read(&mut chunk),
            };
            match got {
                Ok(n) => {
                    self.buffer.extend_from_slice(&chunk[..n]);
                    return n > 0;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if closed(&e) => return false,
                Err(e) if silent(&e) => {
                    panic!("no {what} within {PATIENCE:?}; unread: {}", show(&self.buffer));
                }
                Err(e) => panic!("waiting for {what}: {e}"),
            }
        }
    }
}

/// The bytes of a `set` with flags 0.
pub(crate) fn set_command(key: &str, value: &[u8], exptime: i64) -> Vec<u8> {
    let mut command = format!("set {key} 0 {exptime} {}\r\n", value.len()).into_bytes();
    command.extend_from_slice(value);
    command.extend_from_slice(b"\r\n");
    command
}

/// Bytes for a failure message: escaped, and shortened in the middle.
pub(crate) fn show(bytes: &[u8]) -> String {
    if bytes.len() <= 2000 {
        return bytes.escape_ascii().to_string();
    }
    let (head, tail) = (&bytes[..800], &bytes[bytes.len() - 200..]);
    format!("{} [{} bytes] {}", head.escape_ascii(), bytes.len() - 1000, tail.escape_ascii())
}

fn closed(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

fn silent(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
