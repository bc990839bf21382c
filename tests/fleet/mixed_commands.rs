//! Random commands for a few keys, which sidecars with different rules share, and what must hold of each reply: it is made of what clients
//! have sent. It has no header, no empty value, no flags of a stub, and a number where only numbers are.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kennel::random::Random;

/// What sidecars have, in turns.
pub const RULES: [&str; 5] = [
    "[[rules]]\nname = \"pages\"\nmatch = \"mixed:*\"\nstale_for = \"5s\"\nlock_ttl = \"2s\"\ncold_wait = \"20ms\"\nmax_rebuild = \"10s\"\n",
    "",
    "[[rules]]\nname = \"watched\"\nmatch = \"mixed:*\"\nkind = \"observe\"\n",
    "[[rules]]\nname = \"tagged\"\nmatch = \"mixed:{kind}:*\"\ntags = [\"kind:{kind}\", \"all\"]\non_tag = \"drop\"\nstale_for = \"9s\"\n\
     lock_ttl = \"2s\"\ncold_wait = \"0ms\"\nmax_rebuild = \"10s\"\n",
    "[[rules]]\nname = \"numbers\"\nmatch = \"mixed:number:*\"\ntags = [\"numbers\"]\nlock_ttl = \"2s\"\ncold_wait = \"20ms\"\nmax_rebuild = \"10s\"\n",
];

/// The flags of all that clients store. What a server creates has 0.
const FLAGS: u32 = 7;
/// Exptimes in seconds, among them some that last longer than any stub.
const EXPTIMES: [u32; 5] = [0, 0, 2, 30, 100_000];

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const NOOP: u8 = 0x0a;
const GETKQ: u8 = 0x0d;
const GAT: u8 = 0x1d;
/// The length of a binary header.
const HEADER: usize = 24;

/// What the clients of a run have sent.
pub type Sent = Arc<Mutex<BTreeSet<String>>>;

/// The keys of one kind of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
}

impl Kind {
    fn key(self, at: u64) -> String {
        format!("mixed:{}:{at}", if self == Kind::Text { "text" } else { "number" })
    }

    fn of(key: &str) -> Kind {
        if key.contains(":text:") { Kind::Text } else { Kind::Number }
    }
}

/// What is sent at once: a command, and one that always has a reply.
pub struct Request {
    pub bytes: Vec<u8>,
    key: String,
    reads: bool,
    /// It asks for empty items that were created for a reader.
    with_stubs: bool,
}

/// A value as a client receives it.
struct Hit {
    key: Option<String>,
    flags: Option<u32>,
    value: String,
    /// It was created for a reader, as the reply says.
    is_stub: bool,
}

/// A reply. The lines and statuses that are no values.
#[derive(Default)]
pub struct Told {
    hits: Vec<Hit>,
    other: Vec<String>,
    unique: Option<u64>,
}

/// One client.
pub struct Talker {
    sent: Sent,
    random: Random,
    number: usize,
    is_binary: bool,
    values: usize,
}

impl Talker {
    pub fn new(number: usize, random: Random, sent: Sent) -> Talker {
        Talker { sent, random, number, is_binary: number.is_multiple_of(4), values: 0 }
    }

    /// What it sends next. `last`: what it has sent, and the reply.
    pub fn next(&mut self, last: Option<(&Request, &Told)>) -> Request {
        if let Some((Request { key, reads: true, .. }, told)) = last {
            let (kind, is_miss) = (Kind::of(key), told.hits.iter().all(|hit| hit.value.is_empty()));
            match self.below(3) {
                0 if is_miss => return self.store(key, kind),
                1 => return self.change(key, kind, told.unique),
                _ => {}
            }
        }
        let kind = if self.below(2) == 0 { Kind::Text } else { Kind::Number };
        let key = kind.key(self.below(2));
        match self.below(20) {
            0 if !self.is_binary => {
                let tag = ["kind:text", "kind:number", "all", "numbers"][self.below(4) as usize];
                self.request(&key, format!("delete @tag:{tag}\r\n").into_bytes())
            }
            1..8 => self.change(&key, kind, None),
            _ => self.read(&key, kind),
        }
    }

    fn request(&self, key: &str, mut bytes: Vec<u8>) -> Request {
        match self.is_binary {
            true => bytes.extend(packet(NOOP, &[], "", "", 0)),
            false => bytes.extend(b"mn\r\n"),
        }
        Request { bytes, key: key.to_owned(), reads: false, with_stubs: false }
    }

    /// The length of the reply at the beginning of these bytes, if it is complete.
    pub fn complete(&self, bytes: &[u8]) -> Option<usize> {
        match self.is_binary {
            true => packets(bytes),
            false => bytes.ends_with(b"MN\r\n").then_some(bytes.len()),
        }
    }

    /// What a reply tells, or what is wrong with it.
    pub fn told(&self, request: &Request, reply: &[u8]) -> Result<Told, String> {
        let told = if self.is_binary { told_packets(reply) } else { told_lines(reply) };
        let problem = told.hits.iter().find_map(|hit| self.problem(request, hit));
        let refused = || told.other.iter().find(|line| line.contains("ERROR")).cloned();
        match problem.or_else(refused) {
            None => Ok(told),
            Some(problem) => {
                let (sent, reply) = (request.bytes.escape_ascii(), reply.escape_ascii());
                Err(format!("client {} is told {problem}: {sent} {reply}", self.number))
            }
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn exptime(&mut self) -> u32 {
        EXPTIMES[self.below(EXPTIMES.len() as u64) as usize]
    }

    fn value(&mut self, kind: Kind) -> String {
        self.values += 1;
        let value = match kind {
            Kind::Text => format!("v{}.{};", self.number, self.values),
            Kind::Number => (self.number * 1_000_000 + self.values * 1_000).to_string(),
        };
        self.sent.lock().expect("no client panics with it").insert(value.clone());
        value
    }

    /// What is wrong with a value.
    fn problem(&self, request: &Request, hit: &Hit) -> Option<String> {
        let Hit { value, flags, .. } = hit;
        let value = value.trim_end();
        if flags.is_some_and(|flags| flags != 0 && flags != FLAGS) {
            return Some(format!("flags {flags:?} with {value:?}"));
        }
        if value.is_empty() {
            return (!(request.with_stubs && hit.is_stub)).then(|| "an empty value".to_owned());
        }
        let sent = self.sent.lock().expect("no client panics with it");
        let is_sent = match Kind::of(hit.key.as_deref().unwrap_or(&request.key)) {
            Kind::Text => value.split_inclusive(';').all(|part| sent.contains(part)),
            Kind::Number => value.bytes().all(|byte| byte.is_ascii_digit()),
        };
        (!is_sent).then(|| format!("{value:?}, which nobody has sent"))
    }

    fn read(&mut self, key: &str, kind: Kind) -> Request {
        let (exptime, choice) = (self.exptime(), self.below(8));
        let several = format!("{key} {} {}", kind.key(0), kind.key(1));
        let bytes = match (self.is_binary, choice) {
            (true, 0) => packet(GAT, &exptime.to_be_bytes(), key, "", 0),
            (true, 1) => [0, 1].map(|at| packet(GETKQ, &[], &kind.key(at), "", 0)).concat(),
            (true, _) => packet(GET, &[], key, "", 0),
            (_, 0) => format!("gat {exptime} {key}\r\n").into_bytes(),
            (_, 1) => format!("gats {exptime} {several}\r\n").into_bytes(),
            (_, 2) => format!("get {several}\r\n").into_bytes(),
            (_, 3) => format!("mg {key} v f T{exptime}\r\n").into_bytes(),
            (_, 4) => format!("mg {key} v f k N30\r\n").into_bytes(),
            (_, 5) => format!("mg {key} s v t\r\n").into_bytes(),
            (_, 6) => format!("gets {key}\r\n").into_bytes(),
            _ => format!("get {key}\r\n").into_bytes(),
        };
        let with_stubs = !self.is_binary && choice == 4;
        Request { reads: true, with_stubs, ..self.request(key, bytes) }
    }

    fn store(&mut self, key: &str, kind: Kind) -> Request {
        let (exptime, value) = (self.exptime(), self.value(kind));
        let bytes = match self.is_binary {
            true => packet(SET, &[FLAGS.to_be_bytes(), exptime.to_be_bytes()].concat(), key, &value, 0),
            false => format!("set {key} {FLAGS} {exptime} {}\r\n{value}\r\n", value.len()).into_bytes(),
        };
        self.request(key, bytes)
    }

    fn change(&mut self, key: &str, kind: Kind, unique: Option<u64>) -> Request {
        let (exptime, value, choice) = (self.exptime(), self.value(kind), self.below(14));
        // Numbers are not extended.
        let choice = if kind == Kind::Number && (4..6).contains(&choice) { 10 } else { choice };
        let unique = unique.unwrap_or(1);
        let bytes = match self.is_binary {
            true => {
                let extras = [&FLAGS.to_be_bytes()[..], &exptime.to_be_bytes()].concat();
                let count = |create: bool| {
                    let exptime = if create { 0 } else { u32::MAX };
                    [&1u64.to_be_bytes()[..], &5_000u64.to_be_bytes(), &exptime.to_be_bytes()].concat()
                };
                match choice {
                    0 | 1 => packet(0x01, &extras, key, &value, 0),
                    2 => packet(0x02, &extras, key, &value, 0),
                    3 => packet(0x03, &extras, key, &value, 0),
                    4 => packet(0x0e, &[], key, &value, 0),
                    5 => packet(0x0f, &[], key, &value, 0),
                    6 => packet(0x01, &extras, key, &value, unique),
                    7 | 8 => packet(0x1c, &exptime.to_be_bytes(), key, "", 0),
                    9..12 if kind == Kind::Number => packet(0x05, &count(choice == 9), key, "", 0),
                    _ => packet(0x04, &[], key, "", 0),
                }
            }
            false => {
                let length = value.len();
                let classic = |verb: &str, unique: &str| {
                    format!("{verb} {key} {FLAGS} {exptime} {length}{unique}\r\n{value}\r\n")
                };
                let meta = |mode: &str| format!("ms {key} {length} F{FLAGS} T{exptime}{mode}\r\n{value}\r\n");
                let is_meta = self.below(2) == 0;
                match choice {
                    0 => classic("set", ""),
                    1 => meta(""),
                    2 => {
                        if is_meta {
                            meta(" ME")
                        } else {
                            classic("add", "")
                        }
                    }
                    3 => {
                        if is_meta {
                            meta(" MR")
                        } else {
                            classic("replace", "")
                        }
                    }
                    4 => {
                        if is_meta {
                            meta(" MA")
                        } else {
                            classic("append", "")
                        }
                    }
                    5 => {
                        if is_meta {
                            meta(" MP N30")
                        } else {
                            classic("prepend", "")
                        }
                    }
                    6 => {
                        if is_meta {
                            meta(&format!(" C{unique}"))
                        } else {
                            classic("cas", &format!(" {unique}"))
                        }
                    }
                    7 | 8 => format!("touch {key} {exptime}\r\n"),
                    9 if kind == Kind::Number => format!("ma {key} v N0 J5000\r\n"),
                    10 | 11 if kind == Kind::Number => {
                        if is_meta {
                            format!("ma {key} v\r\n")
                        } else {
                            format!("incr {key} 1\r\n")
                        }
                    }
                    12 => format!("md {key} I T30\r\n"),
                    _ => {
                        if is_meta {
                            format!("md {key}\r\n")
                        } else {
                            format!("delete {key}\r\n")
                        }
                    }
                }
                .into_bytes()
            }
        };
        self.request(key, bytes)
    }
}

/// A binary command.
pub fn packet(opcode: u8, extras: &[u8], key: &str, value: &str, unique: u64) -> Vec<u8> {
    let length = u32::try_from(extras.len() + key.len() + value.len()).expect("it is short");
    let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    packet.extend_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&[0; 4]);
    packet.extend_from_slice(&unique.to_be_bytes());
    [&packet[..], extras, key.as_bytes(), value.as_bytes()].concat()
}

fn body(bytes: &[u8]) -> Option<usize> {
    Some(u32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?) as usize)
}

/// The length of the packets up to a `noop`, if that is complete.
fn packets(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let is_last = *bytes.get(at + 1)? == NOOP;
        at += HEADER + body(&bytes[at..])?;
        if is_last {
            return (bytes.len() >= at).then_some(at);
        }
    }
}

fn told_packets(mut bytes: &[u8]) -> Told {
    let mut told = Told::default();
    while let Some(length) = body(bytes) {
        let (packet, rest) = bytes.split_at(HEADER + length);
        bytes = rest;
        let (key, extras) = (usize::from(packet[3]), usize::from(packet[4]));
        let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
        let value = text(&packet[HEADER + extras + key..]);
        match (u16::from_be_bytes([packet[6], packet[7]]), packet[1]) {
            (0, GET | GETKQ | GAT) => {
                told.unique = Some(u64::from_be_bytes(packet[16..24].try_into().expect("eight bytes")));
                let flags = packet[HEADER..HEADER + 4].try_into().expect("four bytes");
                told.hits.push(Hit {
                    key: (key > 0).then(|| text(&packet[HEADER + extras..][..key])),
                    flags: Some(u32::from_be_bytes(flags)),
                    value,
                    is_stub: false,
                });
            }
            (0 | 1 | 2 | 5, _) => {}
            (status, _) => told.other.push(format!("ERROR {status:#x} {value}")),
        }
    }
    told
}

fn told_lines(bytes: &[u8]) -> Told {
    let (mut told, mut rest) = (Told::default(), bytes);
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end + 2..];
        let words: Vec<&str> = line.split(' ').collect();
        let (length, key, flags) = match words[..] {
            ["VALUE", key, flags, length, ref unique @ ..] => {
                told.unique = unique.first().and_then(|unique| unique.parse().ok());
                (length, Some(key), flags.parse().ok())
            }
            ["VA", length, ref tokens @ ..] => {
                let token = |flag| tokens.iter().find_map(|token| token.strip_prefix(flag));
                (length, token('k'), token('f').and_then(|flags| flags.parse().ok()))
            }
            _ => {
                told.other.push(line);
                continue;
            }
        };
        let length: usize = length.parse().expect("a length");
        let is_stub = words[0] == "VA" && words[2..].iter().any(|token| ["W", "Z"].contains(token));
        let (key, value) = (key.map(str::to_owned), String::from_utf8_lossy(&rest[..length]).into_owned());
        told.hits.push(Hit { key, flags, value, is_stub });
        rest = &rest[length + 2..];
    }
    told
}
