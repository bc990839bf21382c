//! Malformed input affects only its sender: it receives an error or its connection is closed, and no other client notices. Every
//! known mistake, and mutations of valid commands, each 200 times, next to clients whose every byte is checked.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::{Client, show};
use crate::world::{Kennel, addresses, guarded, memcacheds, raw, sidecar_toml, within};

pub(crate) const ROUNDS: usize = 200;
/// The number of mutations, and how many share one seed.
const MUTANTS: u64 = 60;

/// One attack.
struct Poison {
    name: &'static str,
    bytes: Vec<u8>,
    then: Then,
    /// If the connection is closed: the last line before that.
    last_line: &'static str,
}

/// What happens to the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It remains: the rounds are sent one after the other.
    Answered,
    /// It is closed, possibly after a reply: one connection per round.
    Closed,
    /// The client closes in the middle of a request.
    CutOff,
}

/// Every known mistake, with keys of this prefix.
fn poisons(prefix: &str) -> Vec<Poison> {
    let key = format!("{prefix}poison");
    let long = "k".repeat(251 - prefix.len());
    let long = format!("{prefix}{long}");
    // A line beyond all buffers, with as few keys as it can have: 600 are 150 KB.
    let many = format!("{} ", &long[..250]).repeat(600);
    let mut all = Vec::new();
    let mut add = |then: Then, name: &'static str, text: String, last_line: &'static str| {
        let bytes = text.replace('@', &key).replace('#', &long).into_bytes();
        all.push(Poison { name, bytes, then, last_line });
    };
    use Then::{Answered, Closed, CutOff};
    for (name, text) in [
        ("a key of 251 bytes", "get #\r\n"),
        ("one long key among others", "get @ # @\r\n"),
        ("a long key, gets", "gets # @\r\n"),
        ("a long key, gat", "gat 0 # @\r\n"),
        ("a long key, set", "set # 0 0 1\r\nx\r\n"),
        ("a long key, incr", "incr # 1\r\n"),
        ("a long key, touch", "touch # 1\r\n"),
        ("a long key, delete", "delete #\r\n"),
        ("a long key, mg", "mg # v\r\n"),
        ("a long key, ms", "ms # 1\r\nx\r\n"),
        ("a long key, md", "md #\r\n"),
        ("a long key, ma", "ma #\r\n"),
        ("no key", "get\r\ngets\r\nget \r\ndelete\r\nincr\r\ntouch\r\nset\r\nmg\r\nms\r\n"),
        ("no length", "set @ 0 0\r\n"),
        ("a negative length", "set @ 0 0 -1\r\n"),
        ("a length that is no number", "set @ 0 0 x\r\nversion\r\n"),
        ("a length beyond 32 bits", "set @ 0 0 4294967297\r\n"),
        ("negative flags", "set @ -1 0 1\r\nx\r\n"),
        ("flags beyond 32 bits", "set @ 4294967296 0 1\r\nx\r\n"),
        ("flags that are no number", "set @ x 0 1\r\nversion\r\n"),
        ("an exptime that is no number", "set @ 0 x 1\r\nversion\r\ngat x @\r\ntouch @ x\r\n"),
        ("a block longer than announced", "set @ 0 0 1\r\nxyz\r\n"),
        ("a block longer than announced, that goes on as a command", "set @ 0 0 1\r\nx get @\r\n"),
        ("a block that ends in LF alone", "set @ 0 0 1\r\nx\nversion\r\n"),
        ("a CAS that is no number", "cas @ 0 0 1 x\r\nversion\r\n"),
        ("no CAS", "cas @ 0 0 1\r\nx\r\n"),
        ("too many words", "set @ 0 0 1 noreply noreply\r\nget @ @ @\r\ndelete @ 0 noreply x\r\n"),
        ("a delta that is no number", "incr @ x\r\ndecr @ -1\r\nincr @ 18446744073709551616\r\n"),
        ("unknown commands", "bogus\r\nGET @\r\nSet @ 0 0 1\r\n\r\n \r\n\tget @\r\n\u{1}\r\n"),
        ("NULs", "get @\0 x\r\nset @\0 0 0 1\r\n\0\r\n\0get @\r\nget \0\r\n"),
        ("bytes that are no text", "get \u{7f}\u{80}\u{fe}\r\n\u{ff}\r\n"),
        ("a NUL in a meta key", "mg @\0 v\r\nms @\0 1\r\nx\r\n"),
        ("a block of meta commands longer than announced", "ms @ 1\r\nxyz\r\n"),
        ("a negative meta length", "ms @ -1\r\n"),
        ("a meta length that is no number", "ms @ x\r\nversion\r\n"),
        ("a meta length behind the flags", "ms @ T0 1\r\nversion\r\n"),
        ("no meta length", "ms @\r\n"),
        ("meta flags twice", "mg @ v v\r\nms @ 1 T1 T2\r\nx\r\nmd @ q q\r\nma @ N0 N0\r\n"),
        ("meta flags there are not", "mg @ !\r\nms @ 1 !\r\nx\r\nmd @ !\r\nma @ !\r\n"),
        (
            "meta tokens that are no numbers",
            "mg @ Nx Tx Rx\r\nms @ 1 Cx\r\nx\r\nma @ Dx Jx\r\nms @ 1 Fx\r\nx\r\n",
        ),
        ("meta modes there are not", "ms @ 1 MX\r\nx\r\nma @ MX\r\nms @ 1 MSS\r\nx\r\n"),
        ("an opaque of 32 bytes", "mg @ Oxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"),
        ("twenty meta flags", "mg @ v t f c s k q O1 h l u x y z a d e g i j m n\r\n"),
        ("base64 that is none", "mg !!! b v\r\nms !!! 1 b\r\nx\r\nmd = b\r\nma ==== b\r\nme ! b\r\n"),
        (
            "a base64 key of a long key",
            "mg a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tr= b v\r\n",
        ),
        ("a meta debug of nothing", "me\r\nme # \r\n"),
        (
            "commands of one server",
            "cache_memlimit x\r\nlru_crawler x\r\nslabs x\r\nwatch x\r\nshutdown\r\nlru\r\n",
        ),
        ("an exptime without keys", "gat 0\r\ngat\r\ngats 1\r\n"),
        ("a value that is too large", "set @ 0 0 1100000 noreply\r\n?\r\nversion\r\n"),
    ] {
        add(Answered, name, text.replace('?', &"v".repeat(1_100_000)), "");
    }
    let bad_format = "CLIENT_ERROR bad command line format\r\n";
    let bad_exptime = "CLIENT_ERROR invalid exptime argument\r\n";
    for (name, text, last_line) in [
        (
            "a request of HTTP",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nget @\r\n".to_owned(),
            "",
        ),
        ("a line of 3 KiB that is no get", format!("delete @ {}\r\n", "0 ".repeat(1500)), ""),
        ("a line without an end", "a".repeat(5000), ""),
        ("a long get with a long key at its end", format!("get {many}# @\r\n"), bad_format),
        ("a long get with a NUL and no end", format!("get {many}\0{}", "x".repeat(70_000)), bad_format),
        ("a long gat without a number", format!("gat {many}\r\n"), bad_exptime),
        ("quit with something behind it", "quit\r\nget @\r\n".to_owned(), ""),
    ] {
        add(Closed, name, text, last_line);
    }
    for (name, text) in [
        ("half a line", "get @"),
        ("half a get of several keys", "get @ @ @ @"),
        ("half a storage line", "set @ 0 0 10"),
        ("half a block", "set @ 0 0 10\r\nxyz"),
        ("half a meta block", "ms @ 10 T0\r\nxyz"),
        ("a length that lies", "set @ 0 0 1000000\r\nget @\r\nversion\r\n"),
        ("a meta length that lies", "ms @ 1000000\r\nmg @ v\r\nmn\r\n"),
        ("half a block that is skipped", "set @ 0 0 2000000\r\nget @\r\n"),
        ("requests whose replies are not read", "get @\r\nincr @ 1\r\nmg @ v\r\nget @ @ @\r\nget @"),
    ] {
        add(CutOff, name, text.to_owned(), "");
    }
    all
}

/// Sends everything, then shuts down sending, and returns what was received until the connection was closed.
pub(crate) fn attack(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out above zero");
    let mut reader = stream.try_clone().expect("a socket can be cloned");
    let answered = std::thread::spawn(move || {
        let mut reply = Vec::new();
        match reader.read_to_end(&mut reply) {
            Err(e) if e.kind() != ErrorKind::ConnectionReset => panic!("neither answered nor closed: {e}"),
            _ => reply,
        }
    });
    // If the connection has been closed, not everything can be sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    answered.join().unwrap_or_else(|_| panic!("of {}", show(bytes)))
}

/// Sends it and closes, without and with a reset.
pub(crate) fn cut_off(address: SocketAddr, bytes: &[u8], resets: bool) {
    let mut client = Client::tcp(address);
    client.send(bytes);
    if resets {
        client.reset();
    }
}

/// What an unaffected client sends, in one piece, and what it must receive, byte by byte.
fn other_client(prefix: &str, round: usize, meta: bool) -> (String, String) {
    let (a, b, n) =
        (format!("{prefix}a:{round}"), format!("{prefix}b:{round}"), format!("{prefix}n:{round}"));
    let value = format!("value {round} ").repeat(1 + round % 50);
    let size = value.len();
    let mut send =
        format!("set {a} 7 60 {size}\r\n{value}\r\nset {b} 0 60 2\r\nbb\r\nset {n} 0 60 2\r\n41\r\n");
    let mut expected = "STORED\r\n".repeat(3);
    send += &format!("get {a}\r\nincr {n} 1\r\nget {b} {a} {b} {n}\r\n");
    expected += &format!("VALUE {a} 7 {size}\r\n{value}\r\nEND\r\n42\r\nVALUE {b} 0 2\r\nbb\r\n");
    expected +=
        &format!("VALUE {a} 7 {size}\r\n{value}\r\nVALUE {b} 0 2\r\nbb\r\nVALUE {n} 0 2\r\n42\r\nEND\r\n");
    if meta {
        send += &format!("mg {a} v f k O{round}\r\n");
        expected += &format!("VA {size} f7 k{a} O{round}\r\n{value}\r\n");
    }
    send += &format!("delete {a}\r\ndelete {b}\r\nmn\r\n");
    expected += "DELETED\r\nDELETED\r\nMN\r\n";
    (send, expected)
}

/// Runs `attacks` next to two clients of the only worker, which shares its only connection to the only server. Between two
/// attacks, each client is checked from the beginning.
pub(crate) fn beside_other_clients(attacks: impl FnOnce(&Kennel, &dyn Fn(&str))) {
    let servers = memcacheds(1);
    let rules = [guarded("hot", "hot:*", "cold_wait = \"0ms\"\nlock_ttl = \"1s\""), raw("raw", "*")];
    let toml = sidecar_toml(&addresses(&servers), &rules).replace("workers = 2", "workers = 1");
    let kennel = Kennel::start(&toml.replace("request_timeout = \"500ms\"", "request_timeout = \"10s\""));
    let over = AtomicBool::new(false);
    let rounds = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for (prefix, meta, done) in [("raw:i", true, &rounds[0]), ("hot:i", false, &rounds[1])] {
            let (kennel, over) = (&kennel, &over);
            scope.spawn(move || {
                let mut client = kennel.client();
                while !over.load(Ordering::SeqCst) {
                    let (send, expected) = other_client(prefix, done.load(Ordering::SeqCst), meta);
                    client.send(send.as_bytes());
                    client.expect(expected.as_bytes());
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let both = || rounds.each_ref().map(|done| done.load(Ordering::SeqCst));
        let unharmed = |name: &str| {
            let before = both();
            within(
                Duration::from_secs(15),
                &format!("the other clients get their replies beside: {name}"),
                || both().iter().zip(before).all(|(now, before)| *now >= before + 2),
            );
        };
        // Whatever an attack finds, the other clients must be stopped, otherwise the scope waits for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attacks(&kennel, &unharmed)));
        over.store(true, Ordering::SeqCst);
        if let Err(why) = result {
            std::panic::resume_unwind(why);
        }
    });
    let metrics = kennel.metrics();
    let upstream = |outcome: &str| metrics.sum("kennel_upstream_requests_total", &[outcome]);
    for outcome in
        ["outcome=\"timeout\"", "outcome=\"down\"", "outcome=\"garbage\"", "outcome=\"overloaded\""]
    {
        assert_eq!(upstream(outcome), 0.0, "{outcome}");
    }
    assert_eq!(
        metrics.sum("kennel_upstream_connections_total", &[]),
        1.0,
        "the shared connection was remade"
    );
}

fn every_known_mistake(prefix: &str) {
    beside_other_clients(|kennel, unharmed| {
        for Poison { name, bytes, then, last_line } in poisons(prefix) {
            match then {
                Then::Answered => {
                    let mut all = bytes.repeat(ROUNDS);
                    all.extend_from_slice(b"mn\r\n");
                    let reply = attack(kennel.address(), &all);
                    assert!(reply.ends_with(b"MN\r\n"), "{name}: {}", show(&reply));
                    let lines = reply.split(|byte| *byte == b'\n').count();
                    assert!(lines > ROUNDS, "{name}: {lines} lines: {}", show(&reply));
                }
                Then::Closed => {
                    for _ in 0..ROUNDS {
                        let reply = attack(kennel.address(), &bytes);
                        assert!(reply.ends_with(last_line.as_bytes()), "{name}: {}", show(&reply));
                        assert_eq!(last_line.is_empty(), reply.is_empty(), "{name}: {}", show(&reply));
                    }
                }
                Then::CutOff => (0..ROUNDS).for_each(|n| cut_off(kennel.address(), &bytes, n % 2 == 0)),
            }
            unharmed(name);
        }
    });
}

#[test]
fn every_known_mistake_200_times_harms_nobody_else_at_a_raw_key() {
    every_known_mistake("raw:p:");
}

#[test]
fn every_known_mistake_200_times_harms_no_other_client_at_a_guarded_key() {
    every_known_mistake("hot:p:");
}

/// An invalid command made of valid ones.
fn mutant(random: &mut fastrand::Rng) -> Vec<u8> {
    let good = [
        "get raw:p:1\r\n",
        "gets raw:p:1 hot:p:1 raw:p:2\r\n",
        "gat 10 raw:p:1 hot:p:2\r\n",
        "set raw:p:1 5 60 10\r\n0123456789\r\n",
        "set hot:p:1 5 60 10 noreply\r\n0123456789\r\n",
        "add hot:p:2 0 0 3\r\nabc\r\n",
        "append raw:p:1 0 0 3\r\nabc\r\n",
        "cas hot:p:1 0 0 3 12\r\nabc\r\n",
        "incr raw:p:1 12\r\n",
        "decr hot:p:1 3\r\n",
        "touch hot:p:2 -1\r\n",
        "delete hot:p:1\r\n",
        "mg raw:p:1 v t f c k Oabc N30\r\n",
        "ms raw:p:1 5 T60 F3 c ME\r\nhello\r\n",
        "md raw:p:1 q I T30\r\n",
        "ma raw:p:9 N0 J5 v D2\r\n",
        "mg cmF3OnA6MQ== b v k\r\n",
        "mn\r\n",
        "version\r\n",
        "verbosity 1\r\n",
    ];
    let mut bytes: Vec<u8> =
        (0..random.usize(1..4)).flat_map(|_| random.choice(good).expect("not empty").bytes()).collect();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(0..bytes.len());
        match random.u8(0..8) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.insert(at, random.u8(..)),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, *random.choice(b" \r\n\0-9").expect("not empty")),
            4 => bytes.truncate(at + 1),
            5 => {
                let piece = bytes[at..].to_vec();
                bytes.extend(piece);
            }
            6 => bytes.splice(at..at, vec![b'9'; random.usize(1..300)]).for_each(drop),
            _ => bytes[at] ^= 1 << random.u8(0..8),
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[test]
fn mutated_commands_200_times_each_harm_no_other_client() {
    let seed =
        std::env::var("KENNEL_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_080_327);
    beside_other_clients(|kennel, unharmed| {
        for n in 0..MUTANTS {
            let mut random = fastrand::Rng::with_seed(seed + n);
            // The same one 200 times, then 200 different ones.
            let one = mutant(&mut random).repeat(ROUNDS);
            let many: Vec<u8> = (0..ROUNDS).flat_map(|_| mutant(&mut random)).collect();
            for bytes in [one, many] {
                attack(kennel.address(), &bytes);
                cut_off(kennel.address(), &bytes[..random.usize(1..bytes.len())], n % 2 == 0);
            }
            unharmed(&format!("mutant {n} of seed {seed}"));
        }
    });
}
