//! Commands at the limits and beyond them.

use super::draw::Draw;
use super::stream::{Command, Part};

impl Draw {
    /// A value at or above an item's limit.
    pub(super) fn large(&mut self) -> Command {
        let key = [self.key(), b"L".to_vec()].concat();
        let length = match self.rng.u8(..4) {
            0 => self.rng.usize(1_048_300..1_048_640),
            1 => [1_000_000, 1_048_064, 1_048_376, 1_048_575, 1_048_576, 1_048_577, 1_100_000]
                [self.rng.usize(..7)],
            2 => self.rng.usize(100_000..1_048_000),
            _ => self.rng.usize(4000..100_000),
        };
        let key: &[u8] = if key.len() > 250 { b"L" } else { &key };
        let (noreply, verb) = (self.noreply(), self.of(&["set", "add", "append", "replace", "ms"]));
        let mut command = Command::default();
        command.push(&[verb.as_bytes(), b" ", key].concat());
        command.push(
            match verb {
                "ms" => format!(" {length}\r\n"),
                _ => format!(" 0 0 {length}{noreply}\r\n"),
            }
            .as_bytes(),
        );
        command.0.push(Part::Repeat(b'L', length));
        command.push(b"\r\n");
        command.push(&[b"get ", key, b"\r\n"].concat());
        if self.rng.bool() {
            command.push(&[b"delete ", key, b"\r\n"].concat());
        }
        command
    }

    /// A `get` of very many keys, some of which exist.
    pub(super) fn huge_get(&mut self) -> Command {
        let mut command = Command::parse(self.of(&["get", "gets"]).as_bytes());
        for at in 0..self.rng.usize(20..2000) {
            let key = if at % 7 > 0 { format!("absent{at}").into_bytes() } else { self.key() };
            command.push(&[b" ", &key[..]].concat());
        }
        command.push(b"\r\n");
        command
    }

    pub(super) fn long_key(&mut self) -> Command {
        let key = vec![b'l'; self.rng.usize(251..400)];
        let before = self.of(&[
            "get ", "get a b ", "gets ", "gat 0 ", "gat 0 a ", "delete ", "incr ", "touch ", "mg ", "md ",
            "ma ", "me ", "set ", "add ", "ms ", "append ", "cas ",
        ]);
        let behind = match before {
            "set " | "add " | "append " => " 0 0 1\r\nx\r\n",
            "cas " => " 0 0 1 1\r\nx\r\n",
            "ms " => " 1\r\nx\r\n",
            "incr " | "touch " => " 0\r\n",
            _ => "\r\n",
        };
        let touched = match before {
            "gat 0 a " if self.rng.bool() => {
                [b"gat 10000 ", &self.key()[..], b" ", &self.key()[..], b" "].concat()
            }
            before => before.as_bytes().to_vec(),
        };
        Command(vec![Part::Bytes([&touched[..], &key, behind.as_bytes()].concat())])
    }

    /// Bytes that are not a command.
    pub(super) fn junk(&mut self) -> Command {
        let line: Vec<u8> = match self.rng.u8(..4) {
            0 => (0..self.rng.usize(..30)).map(|_| self.rng.u8(..)).collect(),
            1 => self
                .of(&[
                    "",
                    " ",
                    "  ",
                    "\r",
                    "\t",
                    "bogus",
                    "bogus noreply",
                    "GET a",
                    "get",
                    "gets",
                    "gat",
                    "gat 0",
                    "mg",
                    "ms",
                    "md",
                    "ma",
                    "me",
                    "mx a",
                    "m",
                    "g",
                    "set",
                    "set a",
                    "set a 0",
                    "set a 0 0",
                    "delete",
                    "incr",
                    "incr a",
                    "touch",
                    "touch a",
                    "cas a 0 0 1",
                    "\u{0}get a",
                    "get\u{0} a",
                    "get a\u{0} b",
                    "END",
                    "STORED",
                    "noreply",
                    "getx a",
                    "get\ta",
                    "misc",
                    "mn noreply",
                    "flush_allx",
                    "incr a b c d",
                ])
                .as_bytes()
                .to_vec(),
            2 => [b"get ".to_vec(), (0..self.rng.usize(1..12)).map(|_| self.rng.u8(..)).collect()].concat(),
            _ => {
                let word = self.of(&[
                    "set",
                    "get",
                    "mg",
                    "ms",
                    "delete",
                    "incr",
                    "touch",
                    "gat",
                    "cas",
                    "verbosity",
                ]);
                let words = (0..self.rng.usize(..28)).map(|_| match self.rng.u8(..3) {
                    0 => "noreply".to_owned(),
                    1 => self.number(),
                    _ => "a".to_owned(),
                });
                [vec![word.to_owned()], words.collect()].concat().join(" ").into_bytes()
            }
        };
        let end: &[u8] = if self.rng.u8(..4) == 0 { b"\n" } else { b"\r\n" };
        Command(vec![Part::Bytes([&line, end].concat())])
    }

    /// Makes a command nearly valid: changes one thing in its first bytes.
    pub(super) fn spoil(&mut self, command: &mut Command) {
        let Some(Part::Bytes(bytes)) = command.0.first_mut() else { return };
        let line = bytes.iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(bytes.len());
        let spaces: Vec<usize> = (0..line).filter(|&at| bytes[at] == b' ').collect();
        let at = match spaces.is_empty() {
            true => line,
            false => spaces[self.rng.usize(..spaces.len())],
        };
        let insert =
            |bytes: &mut Vec<u8>, at: usize, what: &[u8]| drop(bytes.splice(at..at, what.iter().copied()));
        match self.rng.u8(..12) {
            0 => insert(bytes, at, b" noreply"),
            1 => insert(bytes, at, b" "),
            2 => insert(bytes, at, b" 0"),
            3 => insert(bytes, 0, b" "),
            4 => insert(bytes, self.rng.usize(..=line), b"\0"),
            5 => insert(bytes, self.rng.usize(..=line), b"\t"),
            6 => insert(bytes, at, &b" a".repeat(self.rng.usize(1..30))),
            7 if self.rng.bool() => bytes.iter_mut().take(1).for_each(|byte| *byte = 0x80),
            7 => bytes.iter_mut().take(1).for_each(|byte| byte.make_ascii_uppercase()),
            8 if at < line => drop(bytes.remove(at)),
            9 => {
                let number = self.number();
                insert(bytes, at, format!(" {number}").as_bytes());
            }
            10 => {
                let end = bytes[at..line].iter().skip(1).position(|&byte| byte == b' ');
                bytes.drain(at..end.map_or(line, |end| at + 1 + end));
            }
            _ => insert(bytes, line, b" "),
        }
    }
}
