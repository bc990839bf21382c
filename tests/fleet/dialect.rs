//! How a client says a command, and what the reply means: classic, meta or binary, quiet or not.

use super::linearizability::{Command, Response};
use super::mixed_commands;

/// What a connection speaks. memcached derives binary from the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Classic,
    Meta,
    Binary,
}

/// The opcodes of a `noop`, and of a `get` and its quiet one.
const NOOP: u8 = 0x0a;
const GET: u8 = 0x00;
const GETQ: u8 = 0x09;
/// The length of a binary header.
const HEADER: usize = 24;

/// What a reply means that says no more than that the command was carried out.
fn done(command: &Command) -> Response {
    match command {
        Command::Delete => Response::Deleted,
        Command::Touch => Response::Touched,
        _ => Response::Stored,
    }
}

/// The value of a command that stores one.
pub fn value_of(command: &Command) -> Option<&str> {
    match command {
        Command::Set(value)
        | Command::Add(value)
        | Command::Replace(value)
        | Command::Append(value)
        | Command::Prepend(value)
        | Command::Cas { value, .. } => Some(value),
        _ => None,
    }
}

impl Dialect {
    pub fn of(client: usize) -> Dialect {
        [Dialect::Classic, Dialect::Meta, Dialect::Binary][client % 3]
    }

    /// Whether a quiet command's outcome can be told. One that fails says so, and so does a hit; the rest is silence.
    pub fn can_be_quiet(self, command: &Command) -> bool {
        match command {
            Command::Count { .. } | Command::Touch => false,
            // A quiet `md` conceals `NF`.
            Command::Delete => self == Dialect::Binary,
            _ => self != Dialect::Classic,
        }
    }

    /// The bytes of a command. What it stores has this exptime. A quiet one has a `noop` behind it.
    pub fn encode(self, key: &str, command: &Command, exptime: u32, quiet: bool) -> Vec<u8> {
        match self {
            Dialect::Classic => classic(key, command, exptime).into_bytes(),
            Dialect::Meta => meta(key, command, exptime, quiet).into_bytes(),
            Dialect::Binary => binary(key, command, exptime, quiet),
        }
    }

    /// The length of the reply at the beginning of these bytes, if it is complete.
    pub fn complete(self, bytes: &[u8], quiet: bool) -> Option<usize> {
        match self {
            Dialect::Binary => {
                let mut at = 0;
                loop {
                    let body = u32::from_be_bytes(bytes.get(at + 8..at + 12)?.try_into().ok()?);
                    let is_last = !quiet || bytes[at + 1] == NOOP;
                    at += HEADER + body as usize;
                    if is_last {
                        return (bytes.len() >= at).then_some(at);
                    }
                }
            }
            _ if quiet => find(bytes, b"MN\r\n").map(|at| at + 4),
            _ => {
                let first = find(bytes, b"\r\n")? + 2;
                let line = std::str::from_utf8(&bytes[..first]).expect("a line is text");
                let words: Vec<&str> = line.trim_end().split(' ').collect();
                let length = |at: usize| words[at].parse::<usize>().expect("a length") + 2;
                let end = match words[0] {
                    "VALUE" => first + length(3) + b"END\r\n".len(),
                    "VA" => first + length(1),
                    _ => first,
                };
                (bytes.len() >= end).then_some(end)
            }
        }
    }

    /// What a complete reply means.
    pub fn decode(self, command: &Command, reply: &[u8]) -> Response {
        if self == Dialect::Binary {
            return packet(command, reply);
        }
        let text = std::str::from_utf8(reply).unwrap_or_else(|_| panic!("no text: {reply:?}"));
        let (first, rest) = text.split_once("\r\n").unwrap_or_default();
        let value = rest.split("\r\n").next().unwrap_or_default();
        let words: Vec<&str> = first.split(' ').collect();
        match words[..] {
            ["END" | "EN"] => Response::Miss,
            // The silence of a quiet command.
            ["MN"] if *command == Command::Get => Response::Miss,
            ["MN" | "HD", ..] => done(command),
            ["STORED"] => Response::Stored,
            ["NOT_STORED"] | ["NS", ..] => Response::NotStored,
            ["EXISTS"] | ["EX", ..] => Response::Exists,
            ["NOT_FOUND"] | ["NF", ..] => Response::NotFound,
            // A touch is an `mg` without a value.
            ["DELETED"] => Response::Deleted,
            ["TOUCHED"] => Response::Touched,
            ["SERVER_ERROR", ..] => Response::Unknown,
            ["CLIENT_ERROR", "cannot", ..] => Response::NotANumber,
            ["VALUE", _, _, _, ref unique @ ..] => {
                let unique = unique.first().and_then(|unique| unique.parse().ok());
                Response::Hit { value: value.trim_end().to_owned(), unique }
            }
            ["VA", _, ref flags @ ..] => match value.parse() {
                Ok(number) if matches!(command, Command::Count { .. }) => Response::Number(number),
                // The stub of a client that builds the value.
                _ if value.is_empty() => Response::Miss,
                _ => {
                    let unique = flags.iter().find_map(|flag| flag.strip_prefix('c')?.parse().ok());
                    Response::Hit { value: value.trim_end().to_owned(), unique }
                }
            },
            [number] if number.parse::<u64>().is_ok() => Response::Number(number.parse().expect("it is one")),
            _ => panic!("no reply of memcached to {command}: {text:?}"),
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

fn classic(key: &str, command: &Command, exptime: u32) -> String {
    let store = |word: &str, value: &str, unique: &str| {
        format!("{word} {key} 0 {exptime} {}{unique}\r\n{value}\r\n", value.len())
    };
    match command {
        Command::Get => format!("gets {key}\r\n"),
        Command::Set(value) => store("set", value, ""),
        Command::Add(value) => store("add", value, ""),
        Command::Replace(value) => store("replace", value, ""),
        Command::Append(value) => store("append", value, ""),
        Command::Prepend(value) => store("prepend", value, ""),
        Command::Cas { unique, value } => store("cas", value, &format!(" {unique}")),
        Command::Count { delta, decr, .. } => {
            format!("{} {key} {delta}\r\n", if *decr { "decr" } else { "incr" })
        }
        Command::Delete => format!("delete {key}\r\n"),
        Command::Touch => format!("touch {key} 0\r\n"),
        Command::Look | Command::Flush | Command::Bump => unreachable!("no program sends it"),
    }
}

fn meta(key: &str, command: &Command, exptime: u32, quiet: bool) -> String {
    let (q, end) = if quiet { (" q", "mn\r\n") } else { ("", "") };
    let store =
        |mode: &str, value: &str| format!("ms {key} {} T{exptime}{mode}{q}\r\n{value}\r\n{end}", value.len());
    match command {
        Command::Get => format!("mg {key} v c{q}\r\n{end}"),
        Command::Set(value) => store("", value),
        Command::Add(value) => store(" ME", value),
        Command::Replace(value) => store(" MR", value),
        Command::Append(value) => store(" MA", value),
        Command::Prepend(value) => store(" MP", value),
        Command::Cas { unique, value } => store(&format!(" C{unique}"), value),
        Command::Count { delta, decr, initial } => {
            let mode = if *decr { " MD" } else { "" };
            let create = initial.map_or(String::new(), |initial| format!(" N0 J{initial}"));
            format!("ma {key} v D{delta}{mode}{create}\r\n")
        }
        Command::Delete => format!("md {key}{q}\r\n{end}"),
        Command::Touch => format!("touch {key} 0\r\n"),
        Command::Look | Command::Flush | Command::Bump => unreachable!("no program sends it"),
    }
}

fn binary(key: &str, command: &Command, exptime: u32, quiet: bool) -> Vec<u8> {
    let (opcode, quiet_opcode) = match command {
        Command::Get => (GET, GETQ),
        Command::Set(_) | Command::Cas { .. } => (0x01, 0x11),
        Command::Add(_) => (0x02, 0x12),
        Command::Replace(_) => (0x03, 0x13),
        Command::Append(_) => (0x0e, 0x19),
        Command::Prepend(_) => (0x0f, 0x1a),
        Command::Count { decr: false, .. } => (0x05, 0x15),
        Command::Count { decr: true, .. } => (0x06, 0x16),
        Command::Delete => (0x04, 0x14),
        Command::Touch => (0x1c, 0x1c),
        Command::Look | Command::Flush | Command::Bump => unreachable!("no program sends it"),
    };
    let extras = match command {
        Command::Set(_) | Command::Add(_) | Command::Replace(_) | Command::Cas { .. } => {
            [[0; 4], exptime.to_be_bytes()].concat()
        }
        Command::Touch => vec![0; 4],
        Command::Count { delta, initial, .. } => {
            // The exptime 0xffffffff creates nothing.
            let exptime = if initial.is_some() { [0; 4] } else { [0xff; 4] };
            let initial = initial.unwrap_or(0).to_be_bytes();
            [&delta.to_be_bytes()[..], &initial, &exptime].concat()
        }
        _ => Vec::new(),
    };
    let unique = if let Command::Cas { unique, .. } = command { *unique } else { 0 };
    let value = value_of(command).unwrap_or_default();
    let mut bytes =
        mixed_commands::packet(if quiet { quiet_opcode } else { opcode }, &extras, key, value, unique);
    if quiet {
        bytes.extend([&[0x80, NOOP][..], &[0; HEADER - 2]].concat());
    }
    bytes
}

/// What the first packet means.
fn packet(command: &Command, reply: &[u8]) -> Response {
    let number = |from: usize| u64::from_be_bytes(reply[from..from + 8].try_into().expect("eight bytes"));
    let (opcode, extras) = (reply[1], usize::from(reply[4]));
    let length = u32::from_be_bytes(reply[8..12].try_into().expect("four bytes")) as usize;
    let value = || String::from_utf8_lossy(&reply[HEADER + extras..HEADER + length]).trim_end().to_owned();
    match (u16::from_be_bytes([reply[6], reply[7]]), command) {
        // The silence of a quiet command.
        (0, Command::Get) if opcode == NOOP => Response::Miss,
        (0, Command::Get) => Response::Hit { value: value(), unique: Some(number(16)) },
        (0, Command::Count { .. }) => Response::Number(number(HEADER)),
        (0, _) => done(command),
        (1, Command::Get) => Response::Miss,
        // Half of the commands that are refused say why.
        (1, Command::Replace(_)) | (2, Command::Add(_)) | (5, _) => Response::NotStored,
        (1, _) => Response::NotFound,
        (2, _) => Response::Exists,
        (6, _) => Response::NotANumber,
        (0x82.., _) => Response::Unknown,
        (status, _) => panic!("no reply of memcached to {command}: {status:#x} {:?}", value()),
    }
}
