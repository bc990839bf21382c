//! Runs one stream on two sides: sends the same bytes to both, and collects the replies.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use kennel::embedded::Embedded;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::names::Names;
use super::stream::{Command, Cut, Part, Stream, Turn};
use super::vet::Mode;
use crate::client::show;
use crate::world::{Kennel, Memcached, addresses, guarded, raw, sidecar_toml, with_long_windows};

/// One thread, so that what a reply refers to is released before another client is read; no background threads, whose work
/// depends on time; enough memory, so that nothing is evicted.
const QUIET: &[&str] = &["-t", "1", "-m", "1024", "-o", "no_lru_maintainer,no_lru_crawler"];

/// How long the end of a reply may take before a side counts as stuck. Nothing waits this long unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// Precedes the number of a stream in a guarded key: keys are new for every run.
const RUN: &[u8] = b"@@@@@@";

/// The two sides of the comparison.
pub(super) struct Sides {
    mode: Mode,
    reference: Memcached,
    other: Other,
    runtime: tokio::runtime::Runtime,
    runs: u32,
    /// Deletes of every key of the last stream.
    deletes: Vec<u8>,
}

enum Other {
    Kennel { kennel: Kennel, _servers: Vec<Memcached> },
    Embedded(Embedded),
}

/// The result of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every reply was the same.
    Same,
    /// Neither side came to an end, because of the stream.
    Stuck(usize),
    /// The replies to this turn differed.
    Different { turn: usize, memcached: String, other: String, silent: bool },
}

impl Outcome {
    /// Whether a side timed out.
    pub(super) fn silent(&self) -> bool {
        match self {
            Outcome::Same => false,
            Outcome::Stuck(_) => true,
            Outcome::Different { silent, .. } => *silent,
        }
    }
}

/// The replies to one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TurnReply {
    replies: Vec<u8>,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Marker,
    Closed,
    Stuck,
}

trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

/// One side's connections.
struct Side<'a> {
    target: Target<'a>,
    open: HashMap<usize, Box<dyn Wire>>,
    names: Names,
    patience: Duration,
}

#[derive(Clone, Copy)]
enum Target<'a> {
    Tcp(SocketAddr),
    Embedded(&'a Embedded),
}

/// memcached returns a stale value to its winner, whatever the command.
const KNOWS_W: &str = "meta_winner = \"stale\"";

impl Sides {
    /// Starts both.
    pub(super) fn start(mode: Mode) -> Sides {
        let start = if mode.oldest() { Memcached::start } else { Memcached::newest };
        let servers = |n| -> Vec<Memcached> { (0..n).map(|_| start(QUIET)).collect() };
        let kennel = |n, rule: String| {
            let servers = servers(n);
            let toml = sidecar_toml(&addresses(&servers), &[rule]);
            // Only the machine is slow here.
            let toml = toml.replace("request_timeout = \"500ms\"", "request_timeout = \"30s\"");
            let toml = if mode.fails_over() { with_long_windows(&toml) } else { toml };
            Other::Kennel { kennel: Kennel::start(&toml), _servers: servers }
        };
        let other = match mode {
            Mode::Raw(n) | Mode::RawOldest(n) => kennel(n, raw("everything", "*")),
            Mode::Guarded(n) => {
                kennel(n, guarded("guarded", "g:*", &format!("cold_wait = \"0ms\"\n{KNOWS_W}")))
            }
            // It waits wherever nothing follows; but the end of the turn always follows.
            Mode::Tagged(n) | Mode::TaggedOldest(n) => {
                let tags = format!("tags = [\"all\", \"of:{{x}}\"]\n{KNOWS_W}");
                kennel(n, guarded("drawn", "g:{x}:*", &tags) + &guarded("short", "g:{x}", &tags))
            }
            Mode::Embedded => {
                Other::Embedded(Embedded::start(1 << 30, kennel::clock::unix_ms).expect("a thread"))
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Sides { mode, reference: Memcached::newest(QUIET), other, runtime, runs: 0, deletes: Vec::new() }
    }

    /// The two sides' names.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Runs a stream on both, each empty at the beginning.
    pub(super) fn run(&mut self, stream: &Stream) -> Outcome {
        self.patiently(stream, PATIENCE)
    }

    /// The same, with another time limit.
    pub(super) fn patiently(&mut self, stream: &Stream, patience: Duration) -> Outcome {
        self.runs += 1;
        let pool = self.mode.pool();
        let target = match &self.other {
            Other::Kennel { kennel, .. } => Target::Tcp(kennel.address()),
            Other::Embedded(embedded) => Target::Embedded(embedded),
        };
        let names = || match self.mode.guarded() {
            true => Names::new(pool).guarded(),
            false => Names::new(pool),
        };
        let mut sides = [
            Side::new(Target::Tcp(self.reference.address), names().memcached(), patience),
            Side::new(target, names(), patience),
        ];
        // Other keys need no new names: they are empty.
        let runs = if self.mode.guarded() { self.runs } else { 0 };
        self.runtime.block_on(async {
            let deletes = every_key(stream);
            // A flushed item remains until it is read, and another flush can restore it. A flush loses the records of failover.
            let before = std::mem::replace(&mut self.deletes, deletes.clone());
            let flush = b"flush_all\r\n".to_vec();
            let empty = Stream::plain(match self.mode.fails_over() {
                true => [before, deletes, b"mn\r\n".to_vec()],
                false => [flush.clone(), deletes, flush],
            });
            for turn in 0..3 {
                let [left, right] = &mut sides;
                tokio::join!(left.turn(&empty, turn, 0), right.turn(&empty, turn, 0));
            }
            for side in &mut sides {
                side.open.clear();
            }
            for at in 0..stream.0.len() {
                let [left, right] = &mut sides;
                let (left, right) = tokio::join!(left.turn(stream, at, runs), right.turn(stream, at, runs));
                if (left.end, right.end) == (End::Stuck, End::Stuck) {
                    return Outcome::Stuck(at);
                }
                if left != right {
                    let describe = |reply: &TurnReply| format!("{} [{:?}]", show(&reply.replies), reply.end);
                    let (memcached, other) = differing(&left.replies, &right.replies)
                        .unwrap_or_else(|| (describe(&left), describe(&right)));
                    let silent = left.end == End::Stuck || right.end == End::Stuck;
                    return Outcome::Different { turn: at, memcached, other, silent };
                }
            }
            Outcome::Same
        })
    }
}

/// Both replies from a little before the first difference, if there is one within their lengths.
fn differing(left: &[u8], right: &[u8]) -> Option<(String, String)> {
    let at = left.iter().zip(right).position(|(l, r)| l != r)?;
    let from = at.saturating_sub(120);
    let cut = |bytes: &[u8]| bytes[from..bytes.len().min(at + 200)].escape_ascii().to_string();
    Some((format!("…{}", cut(left)), format!("…{}", cut(right))))
}

/// Also a `delete` of every word of the stream that may be a key in base64.
fn every_key(stream: &Stream) -> Vec<u8> {
    let mut keys: HashSet<Vec<u8>> = HashSet::new();
    for command in stream.0.iter().flat_map(|turn| &turn.commands) {
        // Only values repeat.
        let short = command.0.iter().filter(|part| !matches!(part, Part::Repeat(_, 300..)));
        let bytes = Command(short.cloned().collect()).render(|_| None);
        for line in bytes.split(|&byte| byte == b'\n') {
            let lines = [line, line.strip_suffix(b"\r").unwrap_or(line)];
            for word in lines.iter().flat_map(|line| line.split(|byte| b" \0".contains(byte))) {
                // They are never stored.
                if word.starts_with(b"absent") {
                    continue;
                }
                let groups = word.len() > 3 && word.len().is_multiple_of(4);
                keys.extend(groups.then(|| kennel::protocol::base64::decode(word)).flatten());
                keys.insert(word.to_vec());
            }
        }
    }
    let legal =
        |key: &&Vec<u8>| (1..=250).contains(&key.len()) && !key.iter().any(|byte| b" \n\0".contains(byte));
    keys.iter().filter(legal).flat_map(|key| [b"delete ", &key[..], b" 0\r\n"].concat()).collect()
}

impl<'a> Side<'a> {
    fn new(target: Target<'a>, names: Names, patience: Duration) -> Side<'a> {
        Side { target, open: HashMap::new(), names, patience }
    }

    async fn turn(&mut self, stream: &Stream, at: usize, run: u32) -> TurnReply {
        let turn = &stream.0[at];
        let mut bytes = self.bytes(turn, run);
        // What the connection's preceding turn has sent early.
        let before = stream.0[..at].iter().rposition(|earlier| earlier.connection == turn.connection);
        let known = self.open.remove(&turn.connection);
        // A connection's first byte selects the protocol.
        if known.is_none() && bytes.first() == Some(&0x80) {
            bytes.splice(..0, *b"mn\r\n");
        }
        let sent = if before.is_some() && known.is_some() { turn.early.min(bytes.len()) } else { 0 };
        let mut wire = match known {
            Some(wire) => wire,
            None => self.connect().await,
        };
        let next = stream.0[at + 1..].iter().find(|later| later.connection == turn.connection);
        let next = next.filter(|next| next.early > 0);
        let early = next.map_or_else(Vec::new, |next| {
            let first = next.commands.first().map_or(0, |command| command.fixed());
            let bytes = self.bytes(next, run);
            bytes[..next.early.min(first).min(bytes.len())].to_vec()
        });
        let marker = format!("md ~ O{at}z\r\n");
        // After a line without an end nothing can be sent: the connection will be closed.
        let ends = bytes.ends_with(b"\n");
        let whole = [&bytes[sent..], if ends { marker.as_bytes() } else { b"" }].concat();
        let (mut read, mut write) = tokio::io::split(&mut wire);
        let end = format!("NF O{at}z\r\n");
        let mut replies = Vec::new();
        let end = tokio::select! {
            end = receive(&mut read, end.as_bytes(), &mut replies) => end,
            () = send(&mut write, &whole, turn.cut) => End::Stuck,
            () = tokio::time::sleep(self.patience) => End::Stuck,
        };
        if end == End::Marker {
            // A peer that has closed is noticed by the next read.
            let _ = write.write_all(&early).await;
            self.open.insert(turn.connection, wire);
        }
        TurnReply { replies: self.names.normalise(&replies), end }
    }

    fn bytes(&self, turn: &Turn, run: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for command in &turn.commands {
            bytes.extend_from_slice(&command.render(|key| self.names.last(&renamed(key.to_vec(), run))));
        }
        renamed(bytes, run)
    }

    async fn connect(&self) -> Box<dyn Wire> {
        match self.target {
            Target::Tcp(address) => {
                let stream = tokio::net::TcpStream::connect(address).await;
                let stream = stream.unwrap_or_else(|error| panic!("connect to {address}: {error}"));
                stream.set_nodelay(true).expect("TCP_NODELAY on an open socket");
                Box::new(stream)
            }
            Target::Embedded(embedded) => {
                let stream = embedded.connect().expect("the thread runs");
                Box::new(tokio::net::UnixStream::from_std(stream).expect("a non-blocking socket"))
            }
        }
    }
}

/// Guarded keys are new for every run, so that what the sidecar stores about them does not affect the next one.
fn renamed(mut bytes: Vec<u8>, run: u32) -> Vec<u8> {
    let places: Vec<usize> = match run {
        0 => Vec::new(),
        _ => memchr::memmem::find_iter(&bytes, RUN).collect(),
    };
    let number = format!("{run:06x}");
    for at in places {
        bytes[at..at + RUN.len()].copy_from_slice(number.as_bytes());
    }
    bytes
}

/// Reads until the replies end in `end`, or the connection ends.
async fn receive(read: &mut (impl AsyncRead + Unpin), end: &[u8], replies: &mut Vec<u8>) -> End {
    loop {
        match read.read_buf(replies).await {
            // Closing a connection with unread data resets it.
            Ok(0) | Err(_) => return End::Closed,
            Ok(_) if replies.ends_with(end) => return End::Marker,
            Ok(_) => {}
        }
    }
}

/// Writes the bytes in pieces and does not return: the reader determines the end.
async fn send(write: &mut (impl AsyncWrite + Unpin), bytes: &[u8], cut: Cut) {
    let mut rest = bytes;
    let mut rng = fastrand::Rng::with_seed(if let Cut::Random(seed) = cut { seed } else { 0 });
    while !rest.is_empty() {
        let length = match cut {
            Cut::Whole => rest.len(),
            Cut::Bytes => 1,
            Cut::Random(_) if rng.bool() => rng.usize(1..4),
            Cut::Random(_) => rng.usize(1..400),
        };
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        if write.write_all(piece).await.is_err() {
            break;
        }
        if cut != Cut::Whole && rng.u8(..4) == 0 {
            tokio::task::yield_now().await;
        }
        rest = behind;
    }
    std::future::pending().await
}
