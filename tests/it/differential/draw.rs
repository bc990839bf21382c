//! Random and hostile commands over few keys, so that they interact.

use super::stream::{Command, Cut, Part, Stream, Turn};
use super::vet::{Mode, Vetted, vet};

/// Numbers at every limit, and invalid ones.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "9",
    "10",
    "99",
    "+1",
    "-0",
    "-1",
    "007",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "4294967299",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "-9223372036854775808",
    "-9223372036854775809",
    "x",
    "1x",
    "x1",
    "0x10",
    "1.5",
    "1e3",
    "+",
    "-",
    "--1",
    "\t1",
    "1\t",
    "1\t2",
    "1\r2",
    "\u{661}",
];

const TIMES: &[&str] = &[
    "0",
    "0",
    "0",
    "0",
    "10000",
    "100000",
    "2592000",
    "2592001",
    "1000000000",
    "2147483647",
    "2147483648",
    "-1",
    "-0",
    "+0",
    "+10000",
    "0010000",
    "4294967295",
    "4294967296",
    "4294977296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-2147483648",
    "99999999999",
    "x",
    "1x",
    "-",
    "10000\t",
];

const VALUES: &[&str] = &[
    "",
    "x",
    "0",
    "1",
    "9",
    "10",
    "99",
    "100",
    "12345678901234567890",
    "18446744073709551615",
    "18446744073709551616",
    "007",
    " 7",
    "7 ",
    "+7",
    "7x",
    "\r\n",
    "\n",
    "\r",
    "\r\nEND\r\n",
    "END\r\n",
    "get k\r\n",
    "\0",
    "\0\0\r\n",
    "\t1",
    "VALUE k 0 1\r\n",
    "000000000000000000000000000001",
];

/// Draws one stream.
pub(super) struct Draw {
    pub(super) rng: fastrand::Rng,
    mode: Mode,
    connection: usize,
}

impl Draw {
    /// The stream of `seed`: about this many commands.
    pub(super) fn stream(seed: u64, mode: Mode, commands: usize) -> Stream {
        let mut draw = Draw { rng: fastrand::Rng::with_seed(seed), mode, connection: 0 };
        let connections = draw.rng.usize(1..=5);
        let mut stream = Stream::default();
        while stream.len() < commands {
            draw.connection = draw.rng.usize(..connections);
            draw.turns(&mut stream);
        }
        stream
    }

    /// What one connection sends, in as many turns as it takes.
    fn turns(&mut self, stream: &mut Stream) {
        let wanted = self.rng.usize(1..=40);
        let mut turn: Vec<Command> = Vec::new();
        let mut known = Vetted::default();
        for _ in 0..wanted {
            let (command, vetted) = self.command();
            let counts_what_was_read = vetted.counts.iter().any(|key| known.reads.contains(key));
            if (vetted.alone || counts_what_was_read) && !turn.is_empty() {
                self.end(std::mem::take(&mut turn), std::mem::take(&mut known), stream);
            }
            if turn.is_empty() {
                known.early = vetted.early;
            }
            known.reads.extend(vetted.reads);
            let over = vetted.alone || vetted.closes;
            turn.push(command);
            if over {
                self.end(std::mem::take(&mut turn), std::mem::take(&mut known), stream);
            }
        }
        if !turn.is_empty() {
            self.end(turn, known, stream);
        }
    }

    fn end(&mut self, commands: Vec<Command>, known: Vetted, stream: &mut Stream) {
        let length: usize = commands.iter().map(|command| command.render(|_| None).len()).sum();
        let cut = match self.rng.u8(..8) {
            0 if length < 600 => Cut::Bytes,
            0..=3 if length < 100_000 => Cut::Random(self.rng.u64(..)),
            _ => Cut::Whole,
        };
        let possible = known.early.min(commands[0].fixed());
        let early = if self.rng.u8(..4) == 0 && possible > 0 { self.rng.usize(1..=possible) } else { 0 };
        stream.0.push(Turn { connection: self.connection, commands, cut, early });
    }

    /// A permitted command. Other commands follow a block that is announced but missing. A store with the CAS that memcached has
    /// kept follows a refused `ms`.
    fn command(&mut self) -> (Command, Vetted) {
        loop {
            let mut command = self.any();
            while let Some(vetted) = vet(&command, self.mode) {
                match vetted.lacks {
                    0 if vetted.puts_by => command.push(b"set put-by 0 0 0\r\n\r\n"),
                    0 if vetted.closes || command.ends() => return (command, vetted),
                    0 => command.push(b"\r\n"),
                    1..=4096 => {
                        let filler = [&b"get filler\r\n"[..], b"\r\n", b"mn\r\n", b"delete filler\n"];
                        command.push(filler[self.rng.usize(..filler.len())]);
                    }
                    _ => break,
                }
            }
        }
    }

    fn any(&mut self) -> Command {
        let mut command = match self.rng.u16(..400) {
            0..2 => self.large(),
            2..4 => self.huge_get(),
            4..5 => Command::parse(self.pick_bytes(&[
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(),
                b"POST /x HTTP/1.0\r\n",
                b"<<a*4000>>",
                b"set <<k*3000>>",
                b"PUT x HTTP/\n",
                b"x HTTP/1.1\r\n",
                b"HTTP/1.1\r\n",
                b"get x HTTP/1.1\r\n",
            ])),
            5..6 => Command::parse(self.pick_bytes(&[
                b"quit\r\n",
                b"quit noreply\r\n",
                b"quit x\n",
                b" quit\r\n",
            ])),
            6..16 => self.junk(),
            16..20 => self.long_key(),
            20..28 => Command::parse(self.pick_bytes(&[
                b"version\r\n".as_slice(),
                b"verbosity 0\r\n",
                b"verbosity\r\n",
                b"verbosity 0 noreply\r\n",
                b"verbosity x\r\n",
                b"verbosity 0 0 0\r\n",
                b"version x\r\n",
                b"mn\r\n",
                b"mn x y\r\n",
            ])),
            28..30 => self.flush(),
            30..230 => self.meta(),
            _ => self.classic(),
        };
        if self.rng.u8(..12) == 0 {
            self.spoil(&mut command);
        }
        command
    }

    pub(super) fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.rng.usize(..choices.len())]
    }

    fn pick_bytes<'a>(&mut self, choices: &[&'a [u8]]) -> &'a [u8] {
        choices[self.rng.usize(..choices.len())]
    }

    /// One of few keys; a guarded one belongs to its connection.
    pub(super) fn key(&mut self) -> Vec<u8> {
        let prefix = match self.mode.guarded() && self.rng.u8(..8) > 0 {
            true => format!("g:@@@@@@:{}:", self.connection),
            false => String::new(),
        };
        let key = match self.rng.u8(..24) {
            0 => vec![b'k'; 250 - prefix.len()],
            1 => b"\x01\x7f\xd0\xba\xff".to_vec(),
            2 => b"tab\tbed".to_vec(),
            3 => b"c\rr".to_vec(),
            4 => b"noreply".to_vec(),
            5 => b"0".to_vec(),
            6..10 => b"n".to_vec(),
            at => vec![b"abcdef"[usize::from(at) % 6]],
        };
        [prefix.into_bytes(), key].concat()
    }

    pub(super) fn number(&mut self) -> String {
        match self.rng.u8(..3) {
            0 => self.of(NUMBERS).to_owned(),
            _ => self.rng.u8(..20).to_string(),
        }
    }

    fn time(&mut self) -> String {
        match self.rng.u8(..2) {
            0 => self.of(TIMES).to_owned(),
            _ => self.of(&["0", "0", "10000"]).to_owned(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.u8(..8) {
            0 => (0..self.rng.usize(..40)).map(|_| self.rng.u8(..)).collect(),
            1 => vec![b'v'; self.rng.usize(..3000)],
            2..4 => (self.rng.u64(..) >> self.rng.u8(2..64)).to_string().into_bytes(),
            4 => self.rng.u8(..).to_string().into_bytes(),
            5 => self.of(&["7", "30", "\t9", " 8 ", "-1", "-0", "+3"]).as_bytes().to_vec(),
            _ => self.of(VALUES).as_bytes().to_vec(),
        }
    }

    pub(super) fn noreply(&mut self) -> &'static str {
        if self.rng.u8(..10) == 0 { " noreply" } else { "" }
    }

    /// The line of a storage command and its block, sometimes with a wrong length.
    fn store(&mut self, head: &[u8], tail: &[u8], cas: Option<Part>) -> Command {
        let value = self.value();
        let length = match self.rng.u8(..40) {
            0 => self.number(),
            1 => (value.len() + self.rng.usize(1..60)).to_string(),
            2 => value.len().saturating_sub(self.rng.usize(1..6)).to_string(),
            3 => format!("0{}", value.len()),
            _ => value.len().to_string(),
        };
        let mut command = Command(vec![Part::Bytes([head, b" ", length.as_bytes()].concat())]);
        command.0.extend(cas.map(|cas| [Part::Bytes(b" ".to_vec()), cas]).into_iter().flatten());
        command.push(tail);
        command.push(if self.rng.u8(..30) == 0 { b"\n" } else { b"\r\n" });
        command.push(&value);
        command.push(match self.rng.u8(..40) {
            0 => b"\n",
            1 => b"xx\r\n",
            2 => b"\n\r\n",
            _ => b"\r\n",
        });
        command
    }

    /// The last CAS of the key, or one close to it.
    fn cas(&mut self, key: &[u8]) -> Part {
        match self.rng.u8(..10) {
            0 => Part::Bytes(self.of(NUMBERS).as_bytes().to_vec()),
            1 | 2 => Part::Cas(key.to_vec(), 1),
            _ => Part::Cas(key.to_vec(), 0),
        }
    }

    fn classic(&mut self) -> Command {
        let key = self.key();
        let noreply = self.noreply();
        let line = |parts: &[&[u8]]| Command(vec![Part::Bytes([&parts.join(&b' '), &b""[..]].concat())]);
        let mut command = match self.rng.u8(..32) {
            0..10 => {
                let verb = self.of(&["set", "set", "set", "add", "replace", "append", "prepend"]);
                let (flags, time) = (self.number(), self.time());
                let head = [verb.as_bytes(), &key, flags.as_bytes(), time.as_bytes()].join(&b' ');
                return self.store(&head, noreply.as_bytes(), None);
            }
            10..13 => {
                let (time, cas) = (self.time(), self.cas(&key));
                let head = [b"cas", &key[..], b"5", time.as_bytes()].join(&b' ');
                return self.store(&head, noreply.as_bytes(), Some(cas));
            }
            13..20 => {
                let mut words =
                    vec![self.of(&["get", "get", "gets", "gets", "bget"]).as_bytes().to_vec(), key];
                (0..self.rng.usize(..6)).for_each(|_| words.push(self.key()));
                line(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
            }
            20..22 => {
                let verb = self.of(&["gat", "gats"]).as_bytes().to_vec();
                let mut words = vec![verb, self.time().into_bytes(), key];
                (0..self.rng.usize(..4)).for_each(|_| words.push(self.key()));
                line(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
            }
            22..26 => line(&[self.of(&["incr", "decr"]).as_bytes(), &key, self.number().as_bytes()]),
            26..28 => line(&[b"touch", &key, self.time().as_bytes()]),
            _ => line(&[b"delete", &key]),
        };
        command.push(noreply.as_bytes());
        command.push(if self.rng.u8(..30) == 0 { b"\n" } else { b"\r\n" });
        command
    }

    fn meta(&mut self) -> Command {
        let mut key = self.key();
        let mut base64 = "";
        if self.rng.u8(..8) == 0 {
            let mut text = Vec::new();
            kennel::protocol::base64::encode(&key, &mut text);
            (key, base64) = (text, " b");
        }
        let (verb, letters, mode) = match self.rng.u8(..20) {
            0..8 => ("mg", "kvtfcsOqNRThlu", ""),
            8..14 => {
                ("ms", "CFITkOqc", self.of(&["", "", "", " ME", " MA", " MP", " MR", " MS", " Ma", " MX"]))
            }
            14..17 => ("md", "CITqkO", ""),
            17..19 => {
                ("ma", "CNJDTtcvqkO", self.of(&["", "", " MI", " M+", " MD", " M-", " Mi", " MX", " M"]))
            }
            _ => ("me", "", ""),
        };
        let mut letters: Vec<char> = letters.chars().collect();
        self.rng.shuffle(&mut letters);
        letters.truncate(self.rng.usize(..=letters.len()));
        if self.mode.pool() && letters.contains(&'c') && !letters.contains(&'k') {
            letters.push('k');
        }
        if self.rng.u8(..20) == 0 {
            let more = "abcdefghiklmnopqrstuvwxyzACDEFGHIJKLMNOPRSTXYZ0-\u{1}";
            letters.extend(more.chars().nth(self.rng.usize(..more.len())));
        }
        let mut flags = Command(vec![Part::Bytes(format!("{base64}{mode}").into_bytes())]);
        for letter in letters {
            flags.push(format!(" {letter}").as_bytes());
            match letter {
                'O' => flags.push(
                    self.of(&["", "1", "opaque", "ckt7", "1234567890123456789012345678901"]).as_bytes(),
                ),
                'C' => flags.0.push(self.cas(&key)),
                'N' | 'T' => flags.push(self.time().as_bytes()),
                'R' => {
                    flags.push(self.of(&["0", "30", "50000", "1000000000", "4294967295", "x", ""]).as_bytes())
                }
                'F' | 'D' | 'J' => flags.push(self.number().as_bytes()),
                _ if self.rng.u8(..40) == 0 => flags.push(b"7"),
                _ => {}
            }
        }
        let head = [verb.as_bytes(), &key].join(&b' ');
        let mut command = match verb {
            "ms" => self.store(&head, b"", None),
            _ => Command(vec![Part::Bytes([&head, &b"\r\n"[..]].concat())]),
        };
        // The flags are inserted before the end of the line, the first of the command's parts.
        let Some(Part::Bytes(bytes)) = command.0.first_mut() else { return command };
        let end = bytes.iter().position(|byte| b"\r\n".contains(byte) && !key.contains(byte));
        let behind = bytes.split_off(end.unwrap_or(bytes.len()).max(head.len()));
        command.0.extend(flags.0.clone());
        command.push(&behind);
        if self.mode.guarded() {
            self.settle(&head, &flags, base64, &mut command);
        }
        command
    }

    /// If the command leaves its key in a state that shows who guards it: reads the key, and stores something.
    fn settle(&mut self, head: &[u8], flags: &Command, base64: &str, command: &mut Command) {
        let text = flags.render(|_| None);
        let flag = |letter: u8| text.split(|&byte| byte == b' ').find(|word| word.first() == Some(&letter));
        let (verb, key) = head.split_at(2);
        let says: &[u8] = match (verb, flag(b'N'), flag(b'R'), flag(b'I')) {
            (b"mg", Some(says), ..) | (b"mg", None, Some(says), _) => says,
            (b"md", .., Some(_)) => b"q",
            _ => return,
        };
        if says.starts_with(b"N") {
            let before = match self.rng.u8(..3) {
                0 => self.store(&[b"ms", key].concat(), base64.as_bytes(), None),
                _ => Command(vec![Part::Bytes([b"md", key, base64.as_bytes(), b"\r\n"].concat())]),
            };
            command.0.splice(..0, before.0);
        }
        for _ in 0..self.rng.usize(..3) {
            let more = self.of(&["", " v k", " s O7", " k c v f", " q v", " u"]);
            command.push(&[b"mg", key, base64.as_bytes(), b" ", says, more.as_bytes(), b"\r\n"].concat());
        }
        let store = match (base64, self.rng.bool()) {
            ("", true) => self.store(&[b"set", key, b" 3 0"].concat(), b"", None),
            _ => self.store(&[b"ms", key].concat(), [base64, " k c"].concat().as_bytes(), None),
        };
        command.0.extend(store.0);
    }

    fn flush(&mut self) -> Command {
        let delay = self.of(&["", "", "", " 0", " -1", "", " 00", " x", " 0 0", " 0 0 0", " noreply x"]);
        Command::parse(format!("flush_all{delay}{}\r\n", self.noreply()).as_bytes())
    }
}

#[test]
fn a_seed_draws_the_same_stream_again() {
    for mode in [Mode::Raw(3), Mode::Embedded, Mode::Guarded(1)] {
        let stream = Draw::stream(7, mode, 300);
        assert!(stream.len() >= 300);
        assert_eq!(stream, Draw::stream(7, mode, 300));
        assert_ne!(stream, Draw::stream(8, mode, 300));
    }
}
