//! Sends the same random packets to a real memcached and to Kennel: no reply may differ, except for the CAS numbers, which must
//! refer to the same items. `KENNEL_DIFF_SEED` and `KENNEL_DIFF_COMMANDS` select another seed and length, as for text.
//!
//! Left out, because memcached and Kennel differ: `version`, whose reply is Kennel's own; `stat`; an unknown command with a body,
//! of which memcached discards a part twice; a key of more than 16 KiB, at which memcached resets the connection; a body of more
//! than 1 GiB, which older versions accept. Also an exptime from 2^31 as a TTL; a byte that begins
//! no packet behind other commands, whose unsent replies memcached discards (`poison.rs` tests that Kennel sends them); and a count in
//! one turn with another command on its key, because memcached pads the shorter number unless the old one still waits to be sent.
//! Before guarded keys also several connections, `flush`, an exptime in the past, and values near the limit of an item, as for text.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::packet::*;
use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, guarded, raw, sidecar_toml, without_failover};

/// No background threads, whose work depends on time; enough memory, so that nothing is evicted.
const QUIET: &[&str] = &["-t", "1", "-m", "512", "-o", "no_lru_maintainer,no_lru_crawler"];
/// Nobody waits, and no lease ends because the machine is slow.
const CALM: &str = "cold_wait = \"0ms\"\nlock_ttl = \"60s\"\nmax_rebuild = \"120s\"";
/// Packets between two restarts from an empty server.
const STREAM: usize = 300;
/// The opaque of the `noop` that ends a turn.
const LAST: u32 = u32::MAX;

/// What Kennel does with the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Raw,
    Guarded,
}

/// What a request names in place of a CAS: each side receives its own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedCas {
    None,
    /// The last one that the side showed for the key.
    Last,
    /// One that no item has.
    Wrong,
}

/// One connection's packets, before their replies are read.
#[derive(Debug, Clone)]
struct Turn {
    connection: usize,
    packets: Vec<(Packet, NamedCas)>,
    /// Sent behind the `noop`: it closes the connection.
    end: Option<Packet>,
}

/// A reply with the place of its CAS among those that the side has shown of the key, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown(Answer);

/// One side's connections, and what it has shown.
struct Side {
    address: SocketAddr,
    open: HashMap<usize, Client>,
    last: HashMap<Vec<u8>, u64>,
    /// The CAS numbers shown of each key. Two servers may have used the same number.
    numbers: HashMap<Vec<u8>, Vec<u64>>,
}

impl Side {
    fn new(address: SocketAddr) -> Side {
        Side { address, open: HashMap::new(), last: HashMap::new(), numbers: HashMap::new() }
    }

    /// Sends a turn, and returns the replies.
    fn turn(&mut self, turn: &Turn) -> Vec<Shown> {
        let mut bytes = Vec::new();
        for (packet, cas) in &turn.packets {
            let cas = match cas {
                NamedCas::None => 0,
                NamedCas::Last => self.last.get(&packet.key).copied().unwrap_or(u64::MAX),
                NamedCas::Wrong => u64::MAX,
            };
            bytes.extend(packet.clone().with_cas(cas).bytes());
        }
        bytes.extend(Packet::new(NOOP, b"").with_opaque(LAST).bytes());
        bytes.extend(turn.end.iter().flat_map(Packet::bytes));
        let mut client = match self.open.remove(&turn.connection) {
            Some(client) => client,
            None => Client::tcp(self.address),
        };
        client.send(&bytes);
        let answers = match turn.end {
            Some(_) => Answer::read_all(&client.rest()),
            None => {
                let mut client = BinaryClient(client);
                let mut answers = Vec::new();
                while answers.last().is_none_or(|last: &Answer| (last.opcode, last.opaque) != (NOOP, LAST)) {
                    answers.push(client.receive());
                }
                self.open.insert(turn.connection, client.0);
                answers
            }
        };
        answers.into_iter().map(|answer| self.shown(answer, turn)).collect()
    }

    fn shown(&mut self, answer: Answer, turn: &Turn) -> Shown {
        if answer.cas == 0 {
            return Shown(answer);
        }
        let packet =
            turn.packets.iter().map(|(packet, _)| packet).find(|packet| packet.opaque == answer.opaque);
        let key = &packet.expect("the reply is to a request").key;
        self.last.insert(key.clone(), answer.cas);
        let shown = self.numbers.entry(key.clone()).or_default();
        if !shown.contains(&answer.cas) {
            shown.push(answer.cas);
        }
        let place = shown.iter().position(|cas| *cas == answer.cas).expect("it was added");
        Shown(Answer { cas: place as u64 + 1, ..answer })
    }
}

/// Draws turns.
struct Draw {
    rng: fastrand::Rng,
    mode: Mode,
    opaque: u32,
}

impl Draw {
    fn turns(&mut self) -> Vec<Turn> {
        let connections = if self.mode == Mode::Raw { self.rng.usize(1..=3) } else { 1 };
        let (mut turns, mut drawn) = (Vec::new(), 0);
        while drawn < STREAM {
            let mut packets: Vec<(Packet, NamedCas)> = Vec::new();
            for _ in 0..self.rng.usize(1..20) {
                let (packet, cas) = self.packet();
                // memcached pads a counted value with spaces, but not while it writes a reply that has the old one.
                let counts = matches!(packet.opcode, INCREMENT | DECREMENT | 0x15 | 0x16);
                if counts && packets.iter().any(|(before, _)| before.key == packet.key) {
                    break;
                }
                packets.push((packet, cas));
            }
            if packets.is_empty() {
                continue;
            }
            drawn += packets.len();
            let end = (self.rng.u8(..20) == 0).then(|| self.closing());
            turns.push(Turn { connection: self.rng.usize(..connections), packets, end });
        }
        turns
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(..of.len())]
    }

    fn key(&mut self) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => b"a key\r\nwith\0bytes".to_vec(),
            1 => b" ".repeat(self.rng.usize(1..4)),
            2 => [b'x'].repeat(250),
            // Too long for base64.
            3 => b"long \n".repeat(40),
            4 => b"\x80\xff\t\r".to_vec(),
            _ => format!("key{}", self.rng.u8(..5)).into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => Vec::new(),
            1 => b"VALUE k 0 1\r\nEND\r\n\0".to_vec(),
            2 => vec![b'v'; self.rng.usize(1000..60_000)],
            3 => b"18446744073709551615".to_vec(),
            4 => self.one(&[&b" 7"[..], b"007", b"7x", b"-1", b"18446744073709551616", b"5 "]).to_vec(),
            // Around the limit of an item, and above that of the parser.
            5 if self.mode == Mode::Raw && self.rng.u8(..4) == 0 => {
                vec![b'w'; *self.one(&[1_048_200, 1_048_300, 1_048_512, 1_048_576, 1_048_577, 1_100_000])]
            }
            _ => self.rng.u16(..300).to_string().into_bytes(),
        }
    }

    fn exptime(&mut self) -> u32 {
        let times = [0, 0, 0, 0, 1000, 2_592_000, i32::MAX as u32, 1 << 31, u32::MAX - 1];
        match (self.mode, self.rng.u8(..12)) {
            // A time in the past.
            (Mode::Raw, 0) => 1_000_000_000,
            _ => *self.one(&times),
        }
    }

    fn packet(&mut self) -> (Packet, NamedCas) {
        self.opaque += 1;
        let key = self.key();
        let quiet = self.rng.u8(..3) == 0;
        let of = |loud: u8, quiet_one: u8| if quiet { quiet_one } else { loud };
        let packet = match self.rng.u8(..40) {
            0..6 => Packet::new(of(GET, GETQ), key),
            6..12 => Packet::new(of(GETK, GETKQ), key),
            12..15 => {
                let opcode = *self.one(&[GAT, GATQ, GATK, GATKQ]);
                Packet::new(opcode, key).with_extras(&[self.exptime()])
            }
            15..17 => Packet::new(TOUCH, key).with_extras(&[self.exptime()]),
            17..23 => {
                let mut value = self.value();
                // Kennel stores such a key under a shorter one, so that a larger value fits.
                if key.len() > 186 && value.len() > 1_000_000 {
                    value.truncate(9);
                }
                Packet::store(of(SET, SETQ), key, value, self.exptime())
            }
            23..26 => Packet::store(of(ADD, 0x12), key, self.value(), self.exptime()),
            26..28 => Packet::store(of(REPLACE, 0x13), key, self.value(), self.exptime()),
            28..30 => Packet::new(of(APPEND, 0x19), key).with_value(self.value()),
            30..32 => Packet::new(of(PREPEND, 0x1a), key).with_value(self.value()),
            32..35 => Packet::new(of(DELETE, DELETEQ), key),
            35..38 => {
                let opcode = *self.one(&[INCREMENT, DECREMENT, 0x15, 0x16]);
                let exptime = if self.rng.bool() { u32::MAX } else { self.exptime() };
                let delta = *self.one(&[0, 1, 7, u32::MAX]);
                let high = *self.one(&[0, 0, u32::MAX]);
                let initial = [*self.one(&[0, u32::MAX]), self.rng.u32(..20)];
                Packet::new(opcode, key).with_extras(&[high, delta, initial[0], initial[1], exptime])
            }
            38 if self.mode == Mode::Raw && self.rng.u8(..8) == 0 => {
                let delay: &[u32] = if self.rng.bool() { &[] } else { &[0] };
                Packet::new(of(FLUSH, 0x18), b"").with_extras(delay)
            }
            38 => Packet::new(NOOP, b""),
            // Unknown commands, and SASL where there is none.
            _ => match self.rng.u8(..4) {
                0 => Packet::new(SASL_AUTH, b"PLAIN").with_value(b"\0user\0password"),
                1 => Packet::new(SASL_STEP, b"PLAIN").with_value(b""),
                2 => Packet::new(SASL_LIST, b""),
                _ => Packet::new(*self.one(&[0x1b, 0x1f, 0x25, 0x40, 0x7f, 0xff]), b""),
            },
        };
        let cas = match self.rng.u8(..6) {
            0 => NamedCas::Last,
            1 => NamedCas::Wrong,
            _ => NamedCas::None,
        };
        let named = !packet.key.is_empty() && !matches!(packet.opcode, SASL_AUTH | SASL_STEP);
        (packet.with_opaque(self.opaque), if named { cas } else { NamedCas::None })
    }

    /// A packet that closes the connection.
    fn closing(&mut self) -> Packet {
        let key = b"key0";
        match self.rng.u8(..10) {
            0 => Packet::new(QUIT, b""),
            1 => Packet::new(0x17, b""),
            2 => Packet::new(GET, [b'k'; 251]),
            3 => Packet::new(GET, b""),
            4 => Packet::new(GETKQ, key).with_extras(&[1]),
            5 => Packet::new(SET, key).with_value(b"v"),
            6 => Packet::new(GET, key).with_body(2),
            7 => Packet::store(SET, key, b"", 0).with_body(5),
            8 => Packet::new(INCREMENT, key).with_extras(&[1, 2, 3]),
            _ => Packet::new(*self.one(&[QUIT, NOOP, VERSION, FLUSH, SASL_LIST]), key),
        }
        .with_opaque(7)
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// The first turn whose replies differ.
fn difference(turns: &[Turn], sides: [SocketAddr; 2]) -> Option<String> {
    let [mut memcached, mut kennel] = sides.map(Side::new);
    for (at, turn) in turns.iter().enumerate() {
        let (left, right) = (memcached.turn(turn), kennel.turn(turn));
        if left != right {
            let first = left.iter().zip(&right).position(|(left, right)| left != right);
            let first = first.unwrap_or(left.len().min(right.len()));
            let show = |shown: Option<&Shown>| {
                shown.map(|Shown(answer)| {
                    let mut answer = answer.clone();
                    answer.value.truncate(60);
                    format!("{answer:?}")
                })
            };
            let of = left.get(first).or(right.get(first)).map(|Shown(answer)| answer.opaque);
            let sent = turn.packets.iter().find(|(packet, _)| Some(packet.opaque) == of);
            return Some(format!(
                "turn {at}, sent {sent:?}, end {:?}\nmemcached {:?}\nkennel    {:?}",
                turn.end,
                show(left.get(first)),
                show(right.get(first)),
            ));
        }
    }
    None
}

/// Compares streams until this many packets have had the same replies.
fn compare(mode: Mode, start: fn(&[&str]) -> Memcached, servers: usize, rules: &[String]) {
    let behind: Vec<Memcached> = (0..servers).map(|_| start(QUIET)).collect();
    let toml = without_failover(&sidecar_toml(&addresses(&behind), rules));
    // Only the machine is slow here.
    let kennel = Kennel::start(&toml.replace("request_timeout = \"500ms\"", "request_timeout = \"30s\""));
    let seed = from_environment("KENNEL_DIFF_SEED", 1);
    let packets = from_environment("KENNEL_DIFF_COMMANDS", 6_000);
    for seed in seed..seed + packets.div_ceil(STREAM as u64) {
        // The reference is new, and the servers behind Kennel are flushed, which ends every lease too.
        let reference = Memcached::newest(QUIET);
        let flushed = BinaryClient::new(kennel.address()).ask(Packet::new(FLUSH, b""));
        assert_eq!(flushed.status, SUCCESS);
        let mut draw = Draw { rng: fastrand::Rng::with_seed(seed), mode, opaque: 0 };
        let turns = draw.turns();
        if let Some(difference) = difference(&turns, [reference.address, kennel.address()]) {
            panic!("{mode:?}, KENNEL_DIFF_SEED={seed}: {difference}");
        }
    }
}

#[test]
fn binary_replies_before_one_server_are_those_of_memcached() {
    compare(Mode::Raw, Memcached::newest, 1, &[raw("everything", "*")]);
}

#[test]
fn binary_replies_before_three_servers_are_those_of_one_memcached() {
    compare(Mode::Raw, Memcached::newest, 3, &[raw("everything", "*")]);
}

#[test]
fn binary_replies_before_the_oldest_servers_are_those_of_the_newest() {
    compare(Mode::Raw, Memcached::start, 3, &[raw("everything", "*")]);
}

#[test]
fn binary_replies_for_guarded_keys_are_those_of_memcached() {
    compare(Mode::Guarded, Memcached::newest, 3, &[guarded("everything", "*", CALM)]);
}

#[test]
fn binary_replies_for_guarded_keys_with_tags_are_those_of_memcached() {
    let tags = format!("{CALM}\ntags = [\"all\"]");
    compare(Mode::Guarded, Memcached::start, 2, &[guarded("everything", "*", &tags)]);
}

#[test]
fn a_difference_is_found() {
    let sides = [Memcached::newest(QUIET), Memcached::newest(QUIET)];
    let mut draw = Draw { rng: fastrand::Rng::with_seed(1), mode: Mode::Raw, opaque: 0 };
    let turns = draw.turns();
    let addresses = [sides[0].address, sides[1].address];
    assert_eq!(difference(&turns, addresses), None, "memcached and memcached");
    // The same again on a server that already has values.
    let empty = Memcached::newest(QUIET);
    assert!(difference(&turns, [empty.address, sides[1].address]).is_some());
}
