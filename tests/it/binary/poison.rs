//! Malformed packets affect only their sender, next to clients of both protocols whose every byte is checked; and under load every
//! reply belongs to its own request.

use std::time::Duration;

use super::packet::*;
use crate::client::Client;
use crate::poison::{ROUNDS, attack, beside_other_clients, cut_off};
use crate::world::{Kennel, addresses, eventually, guarded, memcacheds, raw, sidecar_toml, without_failover};

/// The keys that are attacked with: raw and guarded.
const KEYS: [&str; 2] = ["raw:p:poison", "hot:p:poison"];

/// Packets that are answered, and after which the connection goes on.
fn answered(key: &str) -> Vec<(&'static str, Packet)> {
    let big = vec![b'v'; 1_100_000];
    vec![
        ("an unknown command with a body", Packet::new(0x40, key).with_extras(&[1]).with_value("v")),
        ("verbosity", Packet::new(0x1b, b"").with_extras(&[1])),
        ("a value that is too large", Packet::store(SET, key, &big, 0)),
        ("a quiet value that is too large", Packet::store(SETQ, key, &big, 0)),
        ("an append that is too large", Packet::new(APPEND, key).with_value(&big)),
        ("SASL where there is none", Packet::new(SASL_AUTH, "PLAIN").with_value("\0a\0b")),
        ("a long message of SASL", Packet::new(SASL_STEP, "PLAIN").with_value(&big)),
        ("a number that is none", Packet::count(INCREMENT, format!("{key}:text"), 0, u32::MAX)),
        ("statistics that there are not", Packet::new(STAT, "x".repeat(250))),
        ("a key of every byte", Packet::store(SET, (0..250).collect::<Vec<u8>>(), "v", 0)),
        ("a key that would be a command", Packet::new(GETK, "x\r\nflush_all\r\nget y")),
        ("a value that would be a command", Packet::store(SET, key, "\r\nflush_all\r\nmn\r\n", 0)),
    ]
}

/// Packets that close their connection, and the status of the reply before that.
fn closing(key: &str) -> Vec<(&'static str, Vec<u8>, u16)> {
    let bytes = |packet: Packet| packet.bytes();
    vec![
        ("a key of 251 bytes", bytes(Packet::new(GET, [b'k'; 251])), INVALID),
        ("a key of 65,535 bytes", bytes(Packet::new(SET, vec![b'k'; 65_535])), INVALID),
        ("no key", bytes(Packet::new(GETQ, b"")), INVALID),
        ("extras of a get", bytes(Packet::new(GET, key).with_extras(&[1])), INVALID),
        ("no extras of a set", bytes(Packet::new(SET, key).with_value("v")), INVALID),
        ("a body shorter than its key", bytes(Packet::new(GET, key).with_body(3)), UNKNOWN_COMMAND),
        (
            "a body shorter than its extras",
            bytes(Packet::store(SET, key, "", 0).with_body(7)),
            UNKNOWN_COMMAND,
        ),
        ("a body of 4 GiB", bytes(Packet::store(SET, key, "v", 0).with_body(u32::MAX)), INVALID),
        ("an unknown body of 4 GiB", bytes(Packet::new(0x40, key).with_body(u32::MAX)), INVALID),
        ("a quit with a key", bytes(Packet::new(QUIT, key)), INVALID),
    ]
}

/// Packets that end in the middle.
fn halves(key: &str) -> Vec<(&'static str, Vec<u8>)> {
    let set = Packet::store(SET, key, "value", 0).bytes();
    vec![
        ("one byte", vec![0x80]),
        ("half a header", set[..12].to_vec()),
        ("a header", set[..24].to_vec()),
        ("half a key", set[..40].to_vec()),
        ("half a value", set[..set.len() - 2].to_vec()),
        ("a length that lies", Packet::store(SET, key, "v", 0).with_body(1_000_000).bytes()),
        ("half a value that is skipped", Packet::store(SET, key, "v", 0).with_body(900_000_000).bytes()),
        ("gets without a noop", Packet::new(GETKQ, key).bytes().repeat(50)),
        ("requests whose replies are not read", [Packet::new(GETK, key).bytes().repeat(50), set].concat()),
    ]
}

#[test]
fn every_known_binary_mistake_200_times_harms_nobody_else() {
    beside_other_clients(|kennel, unharmed| {
        for key in KEYS {
            for (name, packet) in answered(key) {
                let rounds = if packet.value.len() > 100_000 { ROUNDS / 20 } else { ROUNDS };
                let noop = Packet::new(NOOP, b"").with_opaque(9);
                let text = Packet::store(SET, format!("{key}:text"), "text", 0);
                let all = [text.bytes(), packet.bytes().repeat(rounds), noop.bytes()].concat();
                let answers = Answer::read_all(&attack(kennel.address(), &all));
                let last = answers.last().expect("a reply");
                assert_eq!((last.opcode, last.opaque), (NOOP, 9), "{name}");
                assert_eq!(answers.len(), rounds + 2, "{name}: {:?}", answers.get(1));
                unharmed(name);
            }
            for (name, bytes, status) in closing(key) {
                for _ in 0..ROUNDS {
                    let answers = Answer::read_all(&attack(kennel.address(), &bytes));
                    assert_eq!(
                        answers.iter().map(|answer| answer.status).collect::<Vec<_>>(),
                        [status],
                        "{name}"
                    );
                }
                unharmed(name);
            }
            for (name, bytes) in halves(key) {
                (0..ROUNDS).for_each(|n| cut_off(kennel.address(), &bytes, n % 2 == 0));
                unharmed(name);
            }
        }
        for bytes in [&b"get k\r\n"[..], b"\x81", b"\0\0\0\0"] {
            let noop = Packet::new(NOOP, b"").bytes();
            let answers = Answer::read_all(&attack(kennel.address(), &[&noop, bytes].concat()));
            assert_eq!(answers.len(), 1, "the connection is closed where no packet begins");
        }
    });
}

/// Valid packets, one of them changed.
fn mutant(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.usize(1..4) {
        let key = *random.choice(&["raw:p:1", "hot:p:1", "raw p\n", "@tag:x"]).expect("not empty");
        let packet = match random.u8(0..10) {
            0 => Packet::new(GETKQ, key),
            1 => Packet::store(SETQ, key, "value", 60),
            2 => Packet::count(INCREMENT, key, 5, 60),
            3 => Packet::new(APPEND, key).with_value("more"),
            4 => Packet::new(GAT, key).with_extras(&[60]),
            5 => Packet::new(DELETEQ, key),
            6 => Packet::new(NOOP, b""),
            7 => Packet::new(STAT, "items"),
            8 => Packet::new(SASL_AUTH, "PLAIN").with_value("\0a\0b"),
            _ => Packet::new(TOUCH, key).with_extras(&[60]),
        };
        bytes.extend(packet.bytes());
    }
    for _ in 0..random.usize(1..6) {
        let at = random.usize(0..bytes.len());
        match random.u8(0..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.insert(at, random.u8(..)),
            2 if bytes.len() > 1 => drop(bytes.remove(at)),
            3 => bytes.truncate(at + 1),
            _ => bytes[at] ^= 1 << random.u8(0..8),
        }
    }
    bytes[0] = 0x80;
    // A packet that flushes would harm others by right.
    bytes
}

/// Whether these bytes contain the opcode of a flush where a packet may begin.
fn may_flush(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair[0] == 0x80 && matches!(pair[1], FLUSH | 0x18))
}

#[test]
fn mutated_packets_200_times_each_harm_no_other_client() {
    const SEED: u64 = 20_080_327;
    beside_other_clients(|kennel, unharmed| {
        for n in 0..30 {
            let mut random = fastrand::Rng::with_seed(SEED + n);
            let one = mutant(&mut random).repeat(ROUNDS);
            for bytes in [one, (0..ROUNDS).flat_map(|_| mutant(&mut random)).collect()] {
                if may_flush(&bytes) {
                    continue;
                }
                attack(kennel.address(), &bytes);
                cut_off(kennel.address(), &bytes[..random.usize(1..bytes.len())], n % 2 == 0);
            }
            unharmed(&format!("mutant {n} of seed {SEED}"));
        }
    });
}

#[test]
fn every_opaque_comes_back_to_its_own_request_and_in_order() {
    let servers = memcacheds(3);
    let rules = [guarded("hot", "hot:*", "cold_wait = \"0ms\""), raw("raw", "*")];
    let kennel = Kennel::start(&without_failover(&sidecar_toml(&addresses(&servers), &rules)));
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let address = kennel.address();
            scope.spawn(move || {
                let mut client = BinaryClient::new(address);
                let mut random = fastrand::Rng::with_seed(u64::from(thread));
                for round in 0..40 {
                    let mut expected = Vec::new();
                    let mut packets = Vec::new();
                    for n in 0..random.u32(1..200) {
                        let opaque = thread << 24 | round << 12 | n;
                        let kind = *random.choice(&["raw", "hot"]).expect("not empty");
                        let (own, absent) = (format!("{kind}:{thread}:{}", n % 7), format!("{kind}:no:{n}"));
                        let text = format!("{thread} {round} {n}");
                        // A packet, and the status of its reply: none if it is silent.
                        let (packet, status) = match random.u8(..8) {
                            0 => (Packet::store(SET, &own, &text, 60), Some(SUCCESS)),
                            1 => (Packet::store(SETQ, &own, &text, 60), None),
                            2 => (Packet::new(GETQ, &absent), None),
                            3 => (Packet::new(GETK, &absent), Some(NOT_FOUND)),
                            4 => (Packet::new(DELETEQ, &absent), Some(NOT_FOUND)),
                            5 => (Packet::store(0x13, &absent, "v", 60), Some(NOT_FOUND)),
                            6 => (Packet::new(0x19, &absent).with_value("v"), Some(NOT_STORED)),
                            _ => (Packet::new(0x40, b"key"), Some(UNKNOWN_COMMAND)),
                        };
                        expected.extend(status.map(|status| (packet.opcode, opaque, status)));
                        packets.push(packet.with_opaque(opaque));
                    }
                    let answers = client.pipeline(&packets);
                    let shown = answers.iter().map(|answer| (answer.opcode, answer.opaque, answer.status));
                    assert_eq!(shown.collect::<Vec<_>>(), expected);
                }
            });
        }
    });
}

#[test]
fn a_client_that_reads_no_replies_is_not_read_from() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("raw", "*")]));
    let mut client = BinaryClient::new(kennel.address());
    assert_eq!(client.ask(Packet::store(SET, "k", vec![b'v'; 500_000], 0)).status, SUCCESS);
    let gets = Packet::new(GETK, "k").bytes().repeat(200);
    let mut sender = client.0.sender();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(&gets));
        let limit = || kennel.metrics().sum("kennel_limit_reached_total", &[]);
        eventually("a limit is reached", || limit() >= 1.0);
        // The reference client is served meanwhile.
        let mut other: Client = kennel.client();
        assert_eq!(other.execute("set other 0 0 1\r\nx"), "STORED");
        for _ in 0..200 {
            assert_eq!(client.receive().value.len(), 500_000);
        }
    });
    client.0.silent_for(Duration::from_millis(20));
}
