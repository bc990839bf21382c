//! What is recorded: one operation on one key by one connection.

use std::fmt::{self, Display, Formatter};

/// One command on one key, and its response. A command on several keys is one operation in the history of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    /// The connection's number. A new connection has a new number.
    pub(crate) connection: usize,
    /// The number of the client that owns the connection. It differs from `connection` only for a client with a pool.
    pub(crate) client: usize,
    /// When the command was sent, and when its response had been read. Any unit, but the same clock for all.
    pub(crate) invoked: u64,
    pub(crate) responded: u64,
    pub(crate) command: Command,
    pub(crate) response: Response,
}

/// What a command means for its key. Classic and meta commands with the same meaning are one variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// `get`, `gets`, `gat`, `gats`, `mg`.
    Get,
    /// `set`, `ms`.
    Set(String),
    /// `add`, `ms ME`.
    Add(String),
    /// `replace`, `ms MR`.
    Replace(String),
    /// `append`, `ms MA`.
    Append(String),
    /// `prepend`, `ms MP`.
    Prepend(String),
    /// `cas`, `ms C`.
    Cas { unique: u64, value: String },
    /// `incr`, `decr`, `ma`; `initial`: the initial value of `ma N J`.
    Count { delta: u64, decr: bool, initial: Option<u64> },
    /// `delete`, `md`.
    Delete,
    /// `touch`.
    Touch,
    /// A listing, or a tail: whether the key is there.
    Look,
    /// `flush_all`.
    Flush,
    /// The bump of a tag of the key, whose rule has `on_tag = "drop"`. It does not end a miss: a later store is newer than this
    /// bump, but may be older than other changes.
    Bump,
}

/// The response. Meta responses are given as their classic equivalents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Response {
    /// A value, and its CAS unique if the command requested it.
    Hit { value: String, unique: Option<u64> },
    /// `END`, `EN`.
    Miss,
    /// `STORED`, `HD` to `ms`.
    Stored,
    /// `NOT_STORED`, `NS`.
    NotStored,
    /// `EXISTS`, `EX`.
    Exists,
    /// `NOT_FOUND`, `NF`.
    NotFound,
    /// The number of an `incr`, a `decr` or an `ma`.
    Number(u64),
    /// `CLIENT_ERROR cannot increment or decrement non-numeric value`.
    NotANumber,
    /// `DELETED`, `HD` to `md`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// A listing has it. `NotFound`: it does not.
    Found,
    /// `OK` to `flush_all`.
    Flushed,
    /// `SERVER_ERROR` or no response: the command may have taken effect, may take effect later, or never.
    Unknown,
}

impl Invocation {
    /// The latest moment at which it takes effect.
    pub(crate) fn deadline(&self) -> u64 {
        if self.response == Response::Unknown { u64::MAX } else { self.responded }
    }

    /// Whether its response is a miss.
    pub(crate) fn missed(&self) -> bool {
        self.response == Response::Miss
    }

    /// Whether, with this response, it changes nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        let fails = matches!(
            self.response,
            Response::NotFound
                | Response::NotStored
                | Response::Exists
                | Response::NotANumber
                | Response::Touched
                | Response::Found
        );
        match self.command {
            Command::Get => self.response != Response::Unknown,
            Command::Delete | Command::Flush | Command::Bump => false,
            _ => fails,
        }
    }

    /// The value that it stores, if it is known from the command and the response.
    pub(crate) fn stores(&self) -> Option<String> {
        match (&self.command, &self.response) {
            (Command::Count { .. }, Response::Number(number)) => Some(number.to_string()),
            (
                Command::Set(value)
                | Command::Add(value)
                | Command::Replace(value)
                | Command::Cas { value, .. },
                Response::Stored | Response::Unknown,
            ) => Some(value.clone()),
            _ => None,
        }
    }

    /// Whether it ends its connection's outstanding miss: the connection has stored, deleted, or read the value.
    pub(crate) fn ends_miss(&self) -> bool {
        self.command != Command::Bump
            && matches!(
                self.response,
                Response::Hit { .. }
                    | Response::Stored
                    | Response::Number(_)
                    | Response::Deleted
                    | Response::Flushed
            )
            || matches!((&self.command, &self.response), (Command::Delete, Response::NotFound))
    }
}

impl Display for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Command::Get => write!(f, "get"),
            Command::Set(value) => write!(f, "set {value}"),
            Command::Add(value) => write!(f, "add {value}"),
            Command::Replace(value) => write!(f, "replace {value}"),
            Command::Append(value) => write!(f, "append {value}"),
            Command::Prepend(value) => write!(f, "prepend {value}"),
            Command::Cas { unique, value } => write!(f, "cas {unique} {value}"),
            Command::Count { delta, decr, initial } => {
                write!(f, "{} {delta}", if *decr { "decr" } else { "incr" })?;
                initial.map_or(Ok(()), |initial| write!(f, " else {initial}"))
            }
            Command::Delete => write!(f, "delete"),
            Command::Touch => write!(f, "touch"),
            Command::Look => write!(f, "look"),
            Command::Flush => write!(f, "flush_all"),
            Command::Bump => write!(f, "bump"),
        }
    }
}

impl Display for Response {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Response::Hit { value, unique: None } => write!(f, "VALUE {value}"),
            Response::Hit { value, unique: Some(unique) } => write!(f, "VALUE {value} (cas {unique})"),
            Response::Miss => write!(f, "END"),
            Response::Stored => write!(f, "STORED"),
            Response::NotStored => write!(f, "NOT_STORED"),
            Response::Exists => write!(f, "EXISTS"),
            Response::NotFound => write!(f, "NOT_FOUND"),
            Response::Number(number) => write!(f, "{number}"),
            Response::NotANumber => write!(f, "CLIENT_ERROR not a number"),
            Response::Deleted => write!(f, "DELETED"),
            Response::Touched => write!(f, "TOUCHED"),
            Response::Found => write!(f, "found"),
            Response::Flushed => write!(f, "OK"),
            Response::Unknown => write!(f, "SERVER_ERROR or no response"),
        }
    }
}

/// The history for a reader, in the order of the invocations. `placed` are the indexes of the operations in the longest prefix of
/// an order that was found; the others are marked with `!`.
pub(crate) fn show(history: &[Invocation], placed: &[usize]) -> String {
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|at| (history[*at].invoked, history[*at].responded));
    let line = |at: usize| {
        let Invocation { connection, client, invoked, responded, command, response } = &history[at];
        let mark = if placed.is_empty() || placed.contains(&at) { ' ' } else { '!' };
        let who = if client == connection { format!("{client}") } else { format!("{client}/{connection}") };
        format!("{mark} {invoked:>8} ..{responded:>8}  {who:>6}: {command} -> {response}")
    };
    order.into_iter().map(line).collect::<Vec<_>>().join("\n")
}
