//! A schedule: who sends what, and in which order, as data, as text, and as bytes.
//!
//! The text of a schedule is what a failure prints and what a regression consists of. Each line is one step: all of it is sent
//! before a response is read. `3 get a; set a 100 | 4 delete a` sends two commands in one piece on connection 3, one on
//! connection 4, then reads the three responses.

use std::fmt::{self, Display, Formatter};

use crate::client::Client;
use crate::linearizability::{Command, Response};

/// A unique that memcached has not assigned.
const MADE_UP: u64 = (1 << 62) + 1;

macro_rules! verbs {
    ($($name:ident $text:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Verb { $($name),* }

        impl Verb {
            fn text(self) -> &'static str {
                match self { $(Verb::$name => $text),* }
            }

            fn parse(text: &str) -> Option<Verb> {
                match text { $($text => Some(Verb::$name),)* _ => None }
            }
        }
    };
}

// Meta commands with a mode are named by its letter.
verbs! {
    Get "get", Gets "gets", Gat "gat", Gats "gats",
    Set "set", Add "add", Replace "replace", Append "append", Prepend "prepend", Cas "cas",
    Incr "incr", Decr "decr", Delete "delete", Touch "touch", Flush "flush_all", Bump "bump",
    MetaGet "mg", MetaGetN "mgN",
    MetaSet "ms", MetaAdd "msE", MetaReplace "msR", MetaAppend "msA", MetaPrepend "msP", MetaCas "msC",
    MetaIncr "ma", MetaIncrN "maN", MetaDelete "md",
    Reconnect "reconnect",
}

/// One command. Its keys are letters, which the run maps to keys of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) keys: Vec<char>,
    /// The value; the delta of a count; the initial value of `maN`.
    pub(super) word: String,
}

/// What one connection sends in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) connection: usize,
    pub(super) requests: Vec<Request>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) steps: Vec<Vec<Turn>>,
}

impl Schedule {
    pub(super) fn parse(text: &str) -> Schedule {
        let turn = |text: &str| {
            let (connection, requests) = text.trim().split_once(' ').expect("a connection and its commands");
            Turn {
                connection: connection.parse().expect("the number of a connection"),
                requests: requests.split(';').map(Request::parse).collect(),
            }
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        Schedule { steps: lines.map(|line| line.split('|').map(turn).collect()).collect() }
    }

    pub(super) fn commands(&self) -> usize {
        self.steps.iter().flatten().map(|turn| turn.requests.len()).sum()
    }
}

impl Request {
    fn parse(text: &str) -> Request {
        let mut words = text.split_whitespace();
        let verb = words.next().and_then(Verb::parse).unwrap_or_else(|| panic!("no command: {text}"));
        let (mut keys, mut word) = (Vec::new(), String::new());
        for text in words {
            match text.as_bytes() {
                [key @ b'a'..=b'c'] => keys.push(char::from(*key)),
                _ => word = text.to_owned(),
            }
        }
        Request { verb, keys, word }
    }

    /// The bytes to send. `key` returns the key of a letter, `tag` is the tag of all of them, `unique` is the last one that this
    /// client received.
    pub(super) fn bytes(&self, key: impl Fn(char) -> String, tag: &str, unique: Option<u64>) -> String {
        let (verb, word) = (self.verb.text(), &self.word);
        let keys: Vec<String> = self.keys.iter().map(|letter| key(*letter)).collect();
        let keys = keys.join(" ");
        let (size, unique) = (word.len(), unique.unwrap_or(MADE_UP));
        // Some with an exptime so far away that nothing expires.
        let exptime = if self.keys.first() == Some(&'b') { 80_000 } else { 0 };
        let meta_set = |flags: &str| format!("ms {keys} {size} T{exptime}{flags}\r\n{word}\r\n");
        match self.verb {
            Verb::Get | Verb::Gets | Verb::Delete => format!("{verb} {keys}\r\n"),
            Verb::Gat | Verb::Gats => format!("{verb} {exptime} {keys}\r\n"),
            Verb::Touch => format!("touch {keys} {exptime}\r\n"),
            Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend => {
                format!("{verb} {keys} 0 {exptime} {size}\r\n{word}\r\n")
            }
            Verb::Cas => format!("cas {keys} 0 {exptime} {size} {unique}\r\n{word}\r\n"),
            Verb::Incr | Verb::Decr => format!("{verb} {keys} {word}\r\n"),
            Verb::Flush => "flush_all\r\n".to_owned(),
            Verb::Bump => format!("delete @tag:{tag}\r\n"),
            Verb::MetaGet => format!("mg {keys} v c\r\n"),
            Verb::MetaGetN => format!("mg {keys} v c N60\r\n"),
            Verb::MetaSet => meta_set(""),
            Verb::MetaAdd => meta_set(" ME"),
            Verb::MetaReplace => meta_set(" MR"),
            Verb::MetaAppend => meta_set(" MA"),
            Verb::MetaPrepend => meta_set(" MP"),
            Verb::MetaCas => meta_set(&format!(" C{unique}")),
            Verb::MetaIncr => format!("ma {keys} v D{word}\r\n"),
            Verb::MetaIncrN => format!("ma {keys} v D1 N0 J{word}\r\n"),
            Verb::MetaDelete => format!("md {keys}\r\n"),
            Verb::Reconnect => panic!("a new connection is not sent"),
        }
    }

    /// Its meaning for each of its keys; the key is `None` for all keys.
    pub(super) fn commands(&self, unique: Option<u64>) -> Vec<(Option<char>, Command)> {
        let word = || self.word.clone();
        let unique = unique.unwrap_or(MADE_UP);
        let number = || self.word.parse().expect("a number");
        let command = match self.verb {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats | Verb::MetaGet | Verb::MetaGetN => Command::Get,
            Verb::Set | Verb::MetaSet => Command::Set(word()),
            Verb::Add | Verb::MetaAdd => Command::Add(word()),
            Verb::Replace | Verb::MetaReplace => Command::Replace(word()),
            Verb::Append => Command::Append(word()),
            Verb::Prepend => Command::Prepend(word()),
            // memcached's `MA` and `MP` without `N` mean the same.
            Verb::MetaAppend => Command::Append(word()),
            Verb::MetaPrepend => Command::Prepend(word()),
            Verb::Cas | Verb::MetaCas => Command::Cas { unique, value: word() },
            Verb::Incr | Verb::MetaIncr => Command::Count { delta: number(), decr: false, initial: None },
            Verb::Decr => Command::Count { delta: number(), decr: true, initial: None },
            Verb::MetaIncrN => Command::Count { delta: 1, decr: false, initial: Some(number()) },
            Verb::Delete | Verb::MetaDelete => Command::Delete,
            Verb::Touch => Command::Touch,
            Verb::Flush => return vec![(None, Command::Flush)],
            Verb::Bump => return vec![(None, Command::Bump)],
            Verb::Reconnect => return Vec::new(),
        };
        self.keys.iter().map(|key| (Some(*key), command.clone())).collect()
    }

    /// Reads the response: one per key, or one for all.
    pub(super) fn responses(&self, client: &mut Client, key: impl Fn(char) -> String) -> Vec<Response> {
        match self.verb {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats => {
                let Ok(items) = client.items() else { return vec![Response::Unknown; self.keys.len()] };
                let answer = |letter: &char| {
                    let item = items.iter().find(|item| item.key == key(*letter));
                    item.map_or(Response::Miss, |item| hit(&item.value, item.cas))
                };
                self.keys.iter().map(answer).collect()
            }
            Verb::MetaGet | Verb::MetaGetN | Verb::MetaIncr | Verb::MetaIncrN => vec![self.meta(client)],
            _ => vec![line(&client.line())],
        }
    }

    fn meta(&self, client: &mut Client) -> Response {
        let head = client.line();
        let Some(rest) = head.strip_prefix("VA ") else { return line(&head) };
        let mut words = rest.split(' ');
        let size: usize = words.next().and_then(|size| size.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        let unique = words.find_map(|flag| flag.strip_prefix('c')?.parse().ok());
        let value = client.bytes(size);
        client.expect(b"\r\n");
        match self.verb {
            // The stub of the client that builds it.
            _ if value.is_empty() => Response::Miss,
            Verb::MetaGet | Verb::MetaGetN => hit(&value, unique),
            _ => line(&String::from_utf8_lossy(&value)),
        }
    }
}

/// memcached pads a number that has become shorter.
fn hit(value: &[u8], unique: Option<u64>) -> Response {
    Response::Hit { value: String::from_utf8_lossy(value).trim_end().to_owned(), unique }
}

fn line(line: &str) -> Response {
    match line {
        "STORED" => Response::Stored,
        "NOT_STORED" | "NS" => Response::NotStored,
        "EXISTS" | "EX" => Response::Exists,
        "NOT_FOUND" | "NF" => Response::NotFound,
        "DELETED" => Response::Deleted,
        "TOUCHED" => Response::Touched,
        "OK" => Response::Flushed,
        "EN" => Response::Miss,
        "HD" => Response::Stored,
        "CLIENT_ERROR cannot increment or decrement non-numeric value" => Response::NotANumber,
        _ if line.starts_with("SERVER_ERROR") => Response::Unknown,
        _ => match line.parse() {
            Ok(number) => Response::Number(number),
            Err(_) => panic!("not a reply of memcached: {line}"),
        },
    }
}

impl Request {
    /// The same response as the model's for this command: `HD` of a delete is `DELETED`, and so on.
    pub(super) fn as_classic(&self, answer: Response) -> Response {
        match (self.verb, answer) {
            (Verb::MetaDelete, Response::Stored) => Response::Deleted,
            (Verb::Bump, Response::Deleted) => Response::Flushed,
            (_, answer) => answer,
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verb.text())?;
        self.keys.iter().try_for_each(|key| write!(f, " {key}"))?;
        if self.word.is_empty() { Ok(()) } else { write!(f, " {}", self.word) }
    }
}

impl Display for Turn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let requests: Vec<String> = self.requests.iter().map(Request::to_string).collect();
        write!(f, "{} {}", self.connection, requests.join("; "))
    }
}

impl Display for Schedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let turns: Vec<String> = step.iter().map(Turn::to_string).collect();
            writeln!(f, "{}", turns.join(" | "))?;
        }
        Ok(())
    }
}
