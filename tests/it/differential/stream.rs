//! A stream: turns of commands on a few connections, and its text.
//!
//! The minimiser prints a stream's text, and a regression consists of it: `(connection, bytes)` for every turn. In the bytes,
//! `<<cas:k>>` is the CAS that the sender last received of the key `k`, `<<cas:k-1>>` one less, and `<<x*1000>>` a thousand times
//! the letter x.

use std::fmt::Write as _;

/// Replaces a CAS that was never received: no item has it.
pub(super) const NO_CAS: u64 = 1 << 62;

/// A piece of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Literal bytes.
    Bytes(Vec<u8>),
    /// One byte, repeated.
    Repeat(u8, usize),
    /// The last CAS of this key, minus an offset: each side is sent its own.
    Cas(Vec<u8>, u64),
}

/// One command with its data block, or something similar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Command(pub(super) Vec<Part>);

impl Command {
    /// Its bytes, with `cas` in place of CAS numbers.
    pub(super) fn render(&self, cas: impl Fn(&[u8]) -> Option<u64>) -> Vec<u8> {
        let mut out = Vec::new();
        for part in &self.0 {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Repeat(byte, times) => out.extend_from_slice(&vec![*byte; *times]),
                Part::Cas(key, less) => {
                    let number = cas(key).map_or(NO_CAS, |number| number.saturating_sub(*less));
                    out.extend_from_slice(number.to_string().as_bytes());
                }
            }
        }
        out
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(Part::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.0.push(Part::Bytes(bytes.to_vec())),
        }
    }

    /// Whether it ends in a line end.
    pub(super) fn ends(&self) -> bool {
        matches!(self.0.last(), Some(Part::Bytes(bytes)) if bytes.ends_with(b"\n"))
    }

    /// How many bytes precede anything that is determined only when it is sent.
    pub(super) fn fixed(&self) -> usize {
        match self.0.first() {
            Some(Part::Bytes(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    /// Its text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.0 {
            // Writing to a string cannot fail.
            let _ = match part {
                Part::Bytes(bytes) => write!(text, "{}", bytes.escape_ascii()),
                Part::Repeat(byte, times) => write!(text, "<<{}*{times}>>", *byte as char),
                Part::Cas(key, 0) => write!(text, "<<cas:{}>>", key.escape_ascii()),
                Part::Cas(key, less) => write!(text, "<<cas:{}-{less}>>", key.escape_ascii()),
            };
        }
        text
    }

    /// Parses a command from its text, with escapes resolved (as in a byte string literal).
    pub(super) fn parse(mut text: &[u8]) -> Command {
        let mut command = Command::default();
        let find = |text: &[u8], what: &[u8]| text.windows(2).position(|pair| pair == what);
        while let Some(open) = find(text, b"<<") {
            let close = open + find(&text[open..], b">>").expect("<< is closed by >>");
            command.push(&text[..open]);
            let inside = &text[open + 2..close];
            command.0.push(match inside.strip_prefix(b"cas:") {
                Some(key) => match key.iter().position(|&byte| byte == b'-') {
                    Some(minus) => Part::Cas(key[..minus].to_vec(), number(&key[minus + 1..])),
                    None => Part::Cas(key.to_vec(), 0),
                },
                None => Part::Repeat(inside[0], number(&inside[2..]) as usize),
            });
            text = &text[close + 2..];
        }
        command.push(text);
        command
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).expect("digits").parse().expect("a number")
}

/// How a turn's bytes are split into writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// One write.
    Whole,
    /// One write per byte.
    Bytes,
    /// Writes of lengths that this seed draws.
    Random(u64),
}

/// What one connection sends before its replies are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    /// The connection.
    pub(super) connection: usize,
    /// In order.
    pub(super) commands: Vec<Command>,
    /// How its bytes are split.
    pub(super) cut: Cut,
    /// This many of its first bytes are sent at the end of the connection's preceding turn, and wait incomplete while other
    /// connections have their turns.
    pub(super) early: usize,
}

/// A whole conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stream(pub(super) Vec<Turn>);

impl Stream {
    /// Parses a stream from its text: each turn as one command.
    pub(super) fn parse(turns: &[(usize, &[u8])]) -> Stream {
        let turn = |&(connection, text): &(usize, &[u8])| Turn {
            connection,
            commands: vec![Command::parse(text)],
            cut: Cut::Whole,
            early: 0,
        };
        Stream(turns.iter().map(turn).collect())
    }

    /// These bytes as turns of one connection.
    pub(super) fn plain(turns: [Vec<u8>; 3]) -> Stream {
        let turn = |bytes| Turn {
            connection: 0,
            commands: vec![Command(vec![Part::Bytes(bytes)])],
            cut: Cut::Whole,
            early: 0,
        };
        Stream(turns.into_iter().map(turn).collect())
    }

    /// The number of commands.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|turn| turn.commands.len()).sum()
    }

    /// Its text, ready to be added to the table of regressions.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("&[\n");
        for turn in &self.0 {
            let commands: String = turn.commands.iter().map(Command::text).collect();
            let _ = write!(text, "    ({}, b\"{commands}\"),", turn.connection);
            if turn.cut != Cut::Whole || turn.early > 0 {
                let _ = write!(text, " // {:?}, {} bytes early", turn.cut, turn.early);
            }
            text.push('\n');
        }
        text + "]"
    }
}

#[test]
fn a_stream_is_read_back_as_it_was_written_down() {
    let text: &[u8] =
        b"set k\xff 0 0 1000\r\n<<x*1000>>\r\ncas k 0 0 1 <<cas:k>>\r\ny\r\nmd k C<<cas:k-1>>\r\n";
    let command = Command::parse(text);
    assert_eq!(command.0.len(), 7, "{command:?}");
    let sent = command.render(|key| (key == b"k").then_some(8));
    assert!(sent.starts_with(b"set k\xff 0 0 1000\r\nxxx"), "{}", sent.escape_ascii());
    assert!(sent.ends_with(b"x\r\ncas k 0 0 1 8\r\ny\r\nmd k C7\r\n"), "{}", sent.escape_ascii());
    assert_eq!(command.text(), text.escape_ascii().to_string());
}
