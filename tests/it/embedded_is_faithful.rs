//! The embedded memcached responds as a real memcached 1.6.45 does, byte for byte, including CAS numbers.
//!
//! Both get the same commands, one at a time, and must return the same replies. Time is real: the embedded server's clock is set
//! to the real one's, and no command is sent while the real one's second may change.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test, which is what it should do")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use kennel::embedded::Embedded;
use kennel::embedded::server::Clock;
use tokio::time::Instant;

use crate::world::Memcached;

/// How long commands are sent after a second has begun.
const BURST: Duration = Duration::from_millis(500);

const PATIENCE: Duration = Duration::from_secs(20);

/// A real memcached.
struct Real(Memcached);

impl Real {
    fn start() -> Real {
        // Its background threads hold an item now and then, which affects `incr`.
        Real(Memcached::newest(&["-o", "no_lru_maintainer,no_lru_crawler"]))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.0.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

/// The reply to one command; an `mn` after it marks the end of a quiet one.
fn execute(stream: &mut (impl Read + Write), command: &[u8]) -> Vec<u8> {
    stream.write_all(&[command, b"mn\r\n"].concat()).unwrap();
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    while !(reply.ends_with(b"\r\nMN\r\n") || reply == b"MN\r\n") {
        let read = stream.read(&mut buffer).unwrap_or_else(|error| {
            panic!("{error} after {:?} to {:?}", show(&reply), show(command));
        });
        assert_ne!(read, 0, "closed after {:?} to {:?}", show(&reply), show(command));
        reply.extend_from_slice(&buffer[..read]);
    }
    reply.truncate(reply.len() - b"MN\r\n".len());
    reply
}

fn show(bytes: &[u8]) -> String {
    let shown = bytes[..bytes.len().min(200)].escape_ascii().to_string();
    if bytes.len() > 200 { format!("{shown}… ({} bytes)", bytes.len()) } else { shown }
}

/// A value of `stats`.
fn figure(stream: &mut (impl Read + Write), name: &str) -> u64 {
    let stats = String::from_utf8(execute(stream, b"stats\r\n")).unwrap();
    let start = format!("STAT {name} ");
    let line = stats.lines().find(|line| line.starts_with(&start)).expect("memcached lists it");
    line[start.len()..].trim_end().parse().unwrap()
}

/// A real server and an embedded one.
struct Both {
    real: TcpStream,
    embedded: std::os::unix::net::UnixStream,
    now: &'static AtomicU64,
    /// The last commands and replies, for the report.
    history: Vec<String>,
    compared: usize,
    _server: Embedded,
    _real: Real,
}

impl Both {
    /// `clock` must read `now`.
    fn start(now: &'static AtomicU64, clock: Clock) -> Both {
        let server = Real::start();
        let mut real = server.connect();
        let (time, uptime) = (figure(&mut real, "time"), figure(&mut real, "uptime"));
        now.store((time - uptime) * 1000, Ordering::SeqCst);
        let embedded = Embedded::start(64 << 20, clock).unwrap();
        let stream = embedded.connect().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let history = Vec::new();
        Both { real, embedded: stream, now, history, compared: 0, _server: embedded, _real: server }
    }

    /// Waits until the real server's second changes, and sets the other clock to it.
    fn wait_for_the_next_second(&mut self) -> u64 {
        let before = figure(&mut self.real, "time");
        loop {
            sleep(Duration::from_millis(5));
            let time = figure(&mut self.real, "time");
            if time != before {
                self.now.store(time * 1000, Ordering::SeqCst);
                return time;
            }
        }
    }

    /// Sends a command to both and returns their common reply.
    fn execute(&mut self, command: &[u8]) -> Vec<u8> {
        let real = execute(&mut self.real, command);
        let embedded = execute(&mut self.embedded, command);
        self.compared += 1;
        self.history.push(format!("{} -> {}", show(command), show(&real)));
        if forget_last_access(&real) != forget_last_access(&embedded) {
            let from = self.history.len().saturating_sub(40);
            panic!(
                "command {}:\n{}\nbut the embedded one replied {}",
                self.compared,
                self.history[from..].join("\n"),
                show(&embedded)
            );
        }
        real
    }
}

/// `me` without `la`: the time at which memcached records an access depends on its background threads.
fn forget_last_access(reply: &[u8]) -> Vec<u8> {
    match (reply.starts_with(b"ME "), String::from_utf8(reply.to_vec())) {
        (true, Ok(text)) => {
            let words: Vec<&str> = text.split(' ').filter(|word| !word.starts_with("la=")).collect();
            words.join(" ").into_bytes()
        }
        _ => reply.to_vec(),
    }
}

/// Draws commands over few keys, so that they interact.
struct Draw {
    rng: fastrand::Rng,
    time: u64,
    /// The last CAS received; most comparisons use a number close to it.
    cas: u64,
}

impl Draw {
    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.rng.usize(..choices.len())]
    }

    fn key(&mut self) -> String {
        format!("k{}", self.rng.u8(..6))
    }

    fn exptime(&mut self) -> String {
        match self.rng.u8(..10) {
            0 => (self.time + 1 + self.rng.u64(..60)).to_string(),
            1 => (self.time - self.rng.u64(..60)).to_string(),
            2..=4 => "0".to_owned(),
            _ => self.of(&["-1", "1", "2", "3", "100", "2592000", "2592001", "4294967396"]).to_owned(),
        }
    }

    /// None has a minus sign: memcached rejects a number above 2^63 if a minus happens to follow it in memory.
    fn value(&mut self) -> String {
        match self.rng.u8(..4) {
            0 => self.rng.u64(..).to_string(),
            1 => self.rng.u8(..120).to_string(),
            2 => self.of(&["9", "99", "10", "0", "18446744073709551615", "18446744073709551616"]).to_owned(),
            _ => self.of(&["", "x", "abc", " 7", "+7", "7 x", "7x", "007", "7\r\n", "\t1"]).to_owned(),
        }
    }

    fn cas(&mut self) -> u64 {
        match self.rng.u8(..8) {
            0 => 0,
            1 => self.cas + 1000,
            2 | 3 => self.cas.saturating_sub(self.rng.u64(..20)),
            _ => self.cas,
        }
    }

    /// Some of these meta flags, in any order, each at most once; 20 words would be too many.
    fn flags(&mut self, letters: &str) -> String {
        let mut letters: Vec<char> = letters.chars().collect();
        self.rng.shuffle(&mut letters);
        letters.truncate(self.rng.usize(..letters.len().min(10)));
        let mut flags = String::new();
        for letter in letters {
            let token = match letter {
                'O' => "opaque".to_owned(),
                'N' | 'T' => self.exptime(),
                'R' => self.of(&["0", "1", "2", "50", "200", "-1", "3000000000"]).to_owned(),
                'C' => self.cas().to_string(),
                'F' => self.of(&["0", "1", "4294967295", "4294967296"]).to_owned(),
                'D' | 'J' => self.of(&["0", "1", "7", "100", "18446744073709551615"]).to_owned(),
                _ => String::new(),
            };
            flags.push_str(&format!(" {letter}{token}"));
        }
        flags
    }

    /// The key of a meta command, sometimes in base64.
    fn meta_key(&mut self) -> (String, &'static str) {
        match self.rng.u8(..8) {
            0 => (self.of(&["azA=", "azE=", "azI=", "azM="]).to_owned(), " b"),
            _ => (self.key(), ""),
        }
    }

    fn command(&mut self) -> String {
        let noreply = if self.rng.u8(..10) == 0 { " noreply" } else { "" };
        match self.rng.u8(..40) {
            0..=5 => {
                let verb = self.of(&["set", "set", "add", "replace", "append", "prepend"]);
                let (key, exptime, value) = (self.key(), self.exptime(), self.value());
                let flags = self.of(&["0", "5", "4294967295"]);
                format!("{verb} {key} {flags} {exptime} {}{noreply}\r\n{value}\r\n", value.len())
            }
            6 | 7 => {
                let (key, exptime, value, cas) = (self.key(), self.exptime(), self.value(), self.cas());
                format!("cas {key} 3 {exptime} {} {cas}{noreply}\r\n{value}\r\n", value.len())
            }
            8..=10 => {
                let verb = self.of(&["get", "gets", "gets"]);
                format!("{verb} {} {}\r\n", self.key(), self.key())
            }
            11 => {
                let verb = self.of(&["gat", "gats"]);
                format!("{verb} {} {} {}\r\n", self.exptime(), self.key(), self.key())
            }
            12..=14 => {
                let verb = self.of(&["incr", "decr"]);
                let delta = self.of(&["0", "1", "9", "90", "100000", "18446744073709551615"]);
                format!("{verb} {} {delta}{noreply}\r\n", self.key())
            }
            15 => format!("touch {} {}{noreply}\r\n", self.key(), self.exptime()),
            16 => format!("delete {}{noreply}\r\n", self.key()),
            17 => match self.rng.u8(..40) {
                0 => "flush_all\r\n".to_owned(),
                1 => format!("flush_all {}{noreply}\r\n", self.of(&["0", "1", "2", "3", "-1"])),
                _ => format!("me {}\r\n", self.key()),
            },
            18..=25 => {
                let (key, binary) = self.meta_key();
                format!("mg {key}{binary}{}\r\n", self.flags("kvtfcsOqNRThu"))
            }
            26..=31 => {
                let (key, binary) = self.meta_key();
                let mode = self.of(&["", "", "", "", " ME", " MA", " MP", " MR", " MS"]);
                let (flags, value) = (self.flags("CFITkOqc"), self.value());
                format!("ms {key} {}{binary}{mode}{flags} S\r\n{value}\r\n", value.len())
                    .replace(" S\r\n", "\r\n")
            }
            32..=34 => {
                let (key, binary) = self.meta_key();
                format!("md {key}{binary}{}\r\n", self.flags("CITqkO"))
            }
            _ => {
                let (key, binary) = self.meta_key();
                let mode = self.of(&["", "", " MI", " M+", " MD", " M-"]);
                format!("ma {key}{binary}{mode}{}\r\n", self.flags("CNJDTtcvqkO"))
            }
        }
    }

    /// Stores the CAS of a reply.
    fn learn(&mut self, reply: &[u8]) {
        let text = String::from_utf8_lossy(reply);
        let line = text.lines().next().unwrap_or("");
        let words: Vec<&str> = line.split(' ').collect();
        let cas = match words.first() {
            Some(&"VALUE") => words.get(4).copied(),
            _ => words.iter().find_map(|word| word.strip_prefix('c')),
        };
        if let Some(cas) = cas.and_then(|digits| digits.parse().ok())
            && cas != 0
        {
            self.cas = cas;
        }
    }
}

#[test]
fn random_commands_get_the_replies_of_a_real_memcached() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut both = Both::start(&NOW, || NOW.load(Ordering::SeqCst));
    for seed in 0..8 {
        let time = both.wait_for_the_next_second();
        let turned = Instant::now();
        let mut draw = Draw { rng: fastrand::Rng::with_seed(seed), time, cas: 1 };
        both.history.push(format!("-- seed {seed}"));
        for _ in 0..3000 {
            if turned.elapsed() > BURST {
                break;
            }
            let command = draw.command();
            let reply = both.execute(command.as_bytes());
            draw.learn(&reply);
        }
        assert_eq!(figure(&mut both.real, "time"), time, "this machine stood still for too long");
    }
    assert!(both.compared > 1000, "only {} commands were compared", both.compared);
}

#[test]
fn what_surprises_in_memcached_surprises_here_too() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let mut both = Both::start(&NOW, || NOW.load(Ordering::SeqCst));
    both.wait_for_the_next_second();
    for command in [
        "mg cold N10 v c t\r\n",
        "mg cold N10 v c t\r\n",
        "get cold\r\n",
        "add cold 0 0 1\r\nx\r\n",
        "ms cold 5 C1 T100 c\r\nhello\r\n",
        "mg cold v t\r\n",
        "set n 5 0 1\r\n9\r\n",
        "md n I T30\r\n",
        "ma n T50 t v c\r\n",
        "mg n t f v s c\r\n",
        "decr n 1\r\n",
        "get n\r\n",
        "md n I T30\r\n",
        "get n\r\n",
        "mg n v t\r\n",
        "mg n v t\r\n",
        "append n 0 0 1\r\n1\r\n",
        "mg n v t\r\n",
        "set r 0 100 1\r\n1\r\n",
        "mg r R100\r\n",
        "mg r R101\r\n",
        "mg r R101\r\n",
        "touch r -1\r\n",
        "mg r\r\n",
        "mg r N-1 t\r\n",
        "set n 0 0 2\r\n-7\r\n",
        "incr n 1\r\n",
        "set n 0 0 2\r\n-0\r\n",
        "incr n 1\r\n",
        "set n 0 0 30\r\n000000000000000000000000000001\r\n",
        "incr n 1\r\n",
        "get n\r\n",
        "mg n v C0\r\n",
        "ms fresh 3 C1 MA N100 s c k\r\nabc\r\n",
        "ms fresh 3 MP N100 s t\r\nabc\r\n",
        "ms fresh 3 MR s F7\r\nabc\r\n",
        "mg fresh t f s v\r\n",
        "me fresh\r\n",
        "md fresh x\r\n",
        "mg fresh t f s v c\r\n",
        "ms k 1 E77 c\r\n9\r\n",
        "ma k E99 c v\r\n",
        "mg k c v C99\r\n",
        "md k x I T50\r\n",
        "mg k t f s v c\r\n",
        "set k x 0 7\r\nversion\r\n",
        "version\r\n",
        "verbosity 1\r\n",
        "stats reset\r\n",
        "stats nonsense\r\n",
        "stats detail\r\n",
        "stats sizes\r\n",
        "stats detail dump\r\n",
        "flush_all noreply\r\n",
        "get n\r\n",
    ] {
        both.execute(command.as_bytes());
    }
    // According to memcached, an item with a key of one byte may hold this much within the limit of 1 MiB.
    for (length, key) in
        [(1_048_516, "k"), (1_048_517, "k"), (1_048_515, "kk"), (1_048_516, "kk"), (2_000_000, "k")]
    {
        let data = "x".repeat(length);
        for store in
            ["set KEY 0 0 LEN", "ms KEY LEN c", "ms KEY LEN ME", "append KEY 0 0 LEN", "add KEY 0 0 LEN"]
        {
            let line = store.replace("KEY", key).replace("LEN", &length.to_string());
            both.execute(format!("set {key} 0 0 1\r\n1\r\n").as_bytes());
            both.execute(format!("{line}\r\n{data}\r\n").as_bytes());
            both.execute(format!("mg {key} s\r\n").as_bytes());
        }
    }
    let half = format!("append k 0 0 600000\r\n{}\r\n", "x".repeat(600_000));
    for command in ["set k 0 0 1\r\n1\r\n", &half, "mg k s\r\n", &half, "mg k s\r\n"] {
        both.execute(command.as_bytes());
    }
}
