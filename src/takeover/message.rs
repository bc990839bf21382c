//! The messages between two processes, as bytes. Versions of Kennel that differ must at least understand that they differ.
//!
//! A message is a list of fields that are separated by zero bytes: `kennel-takeover`, the version of the protocol, the name of the
//! message, and what it carries. Later versions keep the first two.

use std::fmt;
use std::path::PathBuf;

use crate::failover::Wish;
use crate::listener::ListenerName;
use crate::proxy::{MAX_MOVED_MISSES, MovedMiss};
use crate::session::ClientProtocol;

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;
/// The most clients of one message.
pub const MAX_CLIENTS: usize = 12;
const MAGIC: &str = "kennel-takeover";

/// What the two processes tell each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first one: the sender asks to take over.
    TakeOver,
    /// The first one: the sender has been taken over, and delivers clients.
    Deliver,
    /// The conversation is over, for this reason.
    Refused(String),
    /// A listener. Its sockets come with it.
    Listener {
        /// Address or path in the configuration.
        name: ListenerName,
        /// Whether its clients use connection pools.
        pooled: bool,
        /// Whether the file of the Unix socket is removed when it is closed.
        owns_file: bool,
    },
    /// The listeners are complete. The control socket comes with it.
    Welcome {
        /// The seed of the hashes of keys.
        seed: u64,
        /// The process. What the system tells is the one that has made the control socket.
        process: u32,
    },
    /// The new process could serve now.
    Ready,
    /// The new process may serve now.
    Committed,
    /// The new process serves.
    Serving,
    /// Clients. Their connections come with it, in this order.
    Clients(Vec<MovedClient>),
    /// The clients of the last message have been taken over.
    Taken,
    /// The first one: the receiver is to read its configuration again. The reply is `Done`, or `Refused` with the mistakes.
    Reload(ReloadMode),
    /// The first one: the receiver is to store lost copies of this pool again, or only to count them. The reply is `Done`, or `Refused`
    /// with why not all are there.
    Repair {
        /// The pool.
        pool: String,
        /// Whether they are only counted.
        only_count: bool,
    },
    /// The first one: the keys of the server of this name are to move to their standby servers, or to return. The reply is `Done`, or
    /// `Refused`.
    Move(Wish, String),
    /// What has been done, found, or would change.
    Done(String),
}

/// How a configuration is read again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReloadMode {
    /// It is refused if it would lose something.
    #[default]
    Careful,
    /// It is taken all the same.
    Force,
    /// It is not taken: what would change is told.
    DryRun,
}

/// What one process tells another of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedClient {
    /// Listener that accepted the client.
    pub listener: ListenerName,
    /// The protocol that it has begun to speak.
    pub protocol: Option<ClientProtocol>,
    /// What it has missed.
    pub misses: Vec<MovedMiss>,
}

/// A message that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is not one of these messages.
    Message,
    /// The sender has another version of the protocol.
    Protocol(u32),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Message => f.write_str("a message that is none of Kennel's"),
            Malformed::Protocol(theirs) => write!(
                f,
                "its version of Kennel hands over with protocol {theirs}, this one with protocol {PROTOCOL}: restart \
                 instead"
            ),
        }
    }
}

impl std::error::Error for Malformed {}

impl Message {
    /// Encodes the message for the socket.
    pub fn encode(&self) -> Vec<u8> {
        let mut fields = vec![MAGIC.to_owned(), PROTOCOL.to_string()];
        let mut add = |name: &str, more: Vec<String>| {
            fields.push(name.to_owned());
            fields.extend(more);
        };
        match self {
            Message::TakeOver => add("take-over", vec![env!("CARGO_PKG_VERSION").to_owned()]),
            Message::Deliver => add("deliver", vec![]),
            Message::Refused(why) => add("refused", vec![why.replace('\0', " ")]),
            Message::Listener { name, pooled, owns_file } => {
                let (kind, address) = name_fields(name);
                add("listener", vec![kind, address, pooled.to_string(), owns_file.to_string()]);
            }
            Message::Welcome { seed, process } => add("welcome", vec![seed.to_string(), process.to_string()]),
            Message::Ready => add("ready", vec![]),
            Message::Committed => add("committed", vec![]),
            Message::Serving => add("serving", vec![]),
            Message::Clients(clients) => {
                let of_client = |client: &MovedClient| {
                    let (kind, address) = name_fields(&client.listener);
                    [kind, address, protocol_name(client.protocol).to_owned(), misses_field(&client.misses)]
                };
                add("clients", clients.iter().flat_map(of_client).collect());
            }
            Message::Taken => add("taken", vec![]),
            Message::Reload(ReloadMode::Careful) => add("reload", vec![]),
            Message::Reload(ReloadMode::Force) => add("reload", vec!["force".to_owned()]),
            Message::Reload(ReloadMode::DryRun) => add("reload", vec!["dry-run".to_owned()]),
            Message::Move(wish, server) => {
                add("move", vec![wish_name(*wish).to_owned(), server.replace('\0', " ")])
            }
            Message::Repair { pool, only_count } => add("repair", vec![pool.clone(), only_count.to_string()]),
            Message::Done(what) => add("done", vec![what.replace('\0', " ")]),
        }
        fields.join("\0").into_bytes()
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let text = str::from_utf8(bytes).map_err(|_| Malformed::Message)?;
        let mut fields = text.split('\0');
        let mut next = || fields.next().ok_or(Malformed::Message);
        if next()? != MAGIC {
            return Err(Malformed::Message);
        }
        let version = next()?.parse().map_err(|_| Malformed::Message)?;
        if version != PROTOCOL {
            return Err(Malformed::Protocol(version));
        }
        let name = next()?;
        let rest: Vec<_> = fields.collect();
        let message = match (name, &rest[..]) {
            ("take-over", _) => Message::TakeOver,
            ("deliver", []) => Message::Deliver,
            ("refused", [why]) => Message::Refused((*why).to_owned()),
            ("listener", [kind, address, pooled, owns_file]) => Message::Listener {
                name: listener_name(kind, address)?,
                pooled: parse(pooled)?,
                owns_file: parse(owns_file)?,
            },
            ("welcome", [seed, process]) => Message::Welcome { seed: parse(seed)?, process: parse(process)? },
            ("ready", []) => Message::Ready,
            ("committed", []) => Message::Committed,
            ("serving", []) => Message::Serving,
            ("clients", rest) if rest.len().is_multiple_of(4) && rest.len() <= 4 * MAX_CLIENTS => {
                let client = |fields: &[&str]| {
                    let listener = listener_name(fields[0], fields[1])?;
                    Ok(MovedClient {
                        listener,
                        protocol: protocol_of(fields[2])?,
                        misses: misses(fields[3])?,
                    })
                };
                Message::Clients(rest.chunks(4).map(client).collect::<Result<_, _>>()?)
            }
            ("taken", []) => Message::Taken,
            ("reload", []) => Message::Reload(ReloadMode::Careful),
            ("reload", ["force"]) => Message::Reload(ReloadMode::Force),
            ("reload", ["dry-run"]) => Message::Reload(ReloadMode::DryRun),
            ("move", [wish, server]) => Message::Move(wish_of(wish)?, (*server).to_owned()),
            ("repair", [pool, only_count]) => {
                Message::Repair { pool: (*pool).to_owned(), only_count: parse(only_count)? }
            }
            ("done", [what]) => Message::Done((*what).to_owned()),
            _ => return Err(Malformed::Message),
        };
        Ok(message)
    }
}

fn name_fields(name: &ListenerName) -> (String, String) {
    let kind = match name {
        ListenerName::Tcp(_) => "tcp",
        ListenerName::Unix(_) => "unix",
        ListenerName::Admin(_) => "admin",
    };
    // A path of the configuration is UTF-8.
    (kind.to_owned(), name.to_string())
}

fn listener_name(kind: &str, address: &str) -> Result<ListenerName, Malformed> {
    match kind {
        "tcp" => Ok(ListenerName::Tcp(address.to_owned())),
        "unix" => Ok(ListenerName::Unix(PathBuf::from(address))),
        "admin" => Ok(ListenerName::Admin(address.to_owned())),
        _ => Err(Malformed::Message),
    }
}

fn wish_name(wish: Wish) -> &'static str {
    match wish {
        Wish::Drain => "drain",
        Wish::Return => "undrain",
    }
}

fn wish_of(name: &str) -> Result<Wish, Malformed> {
    [Wish::Drain, Wish::Return].into_iter().find(|wish| wish_name(*wish) == name).ok_or(Malformed::Message)
}

fn protocol_name(protocol: Option<ClientProtocol>) -> &'static str {
    match protocol {
        None => "any",
        Some(ClientProtocol::Text) => "text",
        Some(ClientProtocol::Binary) => "binary",
    }
}

fn protocol_of(name: &str) -> Result<Option<ClientProtocol>, Malformed> {
    let all = [None, Some(ClientProtocol::Text), Some(ClientProtocol::Binary)];
    all.into_iter().find(|protocol| protocol_name(*protocol) == name).ok_or(Malformed::Message)
}

fn misses_field(misses: &[MovedMiss]) -> String {
    let one = |miss: &MovedMiss| format!("{:x} {:x} {}", miss.key, miss.seconds, u8::from(miss.refused));
    misses.iter().map(one).collect::<Vec<_>>().join(",")
}

fn misses(field: &str) -> Result<Vec<MovedMiss>, Malformed> {
    let one = |text: &str| {
        let mut words = text.split(' ');
        let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
        let (key, seconds, refused) = (hex()?, u32::try_from(hex()?).ok()?, hex()? == 1);
        words.next().is_none().then_some(MovedMiss { key, seconds, refused })
    };
    if field.is_empty() {
        return Ok(Vec::new());
    }
    let all: Option<Vec<_>> = field.split(',').take(MAX_MOVED_MISSES + 1).map(one).collect();
    all.filter(|all| all.len() <= MAX_MOVED_MISSES).ok_or(Malformed::Message)
}

fn parse<T: std::str::FromStr>(field: &str) -> Result<T, Malformed> {
    field.parse().map_err(|_| Malformed::Message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let tcp = ListenerName::Tcp("[::1]:11211".to_owned());
        let unix = ListenerName::Unix("/run/a b\n/k.sock".into());
        let miss = |key| MovedMiss { key, seconds: 600, refused: key == 7 };
        let full = MovedClient {
            listener: unix.clone(),
            protocol: Some(ClientProtocol::Binary),
            misses: (0..MAX_MOVED_MISSES as u64).map(|key| miss(u64::MAX - key)).collect(),
        };
        vec![
            Message::TakeOver,
            Message::Deliver,
            Message::Refused("no".to_owned()),
            Message::Listener { name: tcp.clone(), pooled: true, owns_file: false },
            Message::Listener { name: unix, pooled: false, owns_file: true },
            Message::Listener {
                name: ListenerName::Admin("a:1".to_owned()),
                pooled: false,
                owns_file: false,
            },
            Message::Welcome { seed: u64::MAX, process: 7 },
            Message::Ready,
            Message::Committed,
            Message::Serving,
            Message::Clients(vec![]),
            Message::Clients(vec![
                MovedClient { listener: tcp.clone(), protocol: None, misses: vec![miss(7)] },
                MovedClient { listener: tcp, protocol: Some(ClientProtocol::Text), misses: vec![] },
                full.clone(),
            ]),
            Message::Clients(vec![full; MAX_CLIENTS]),
            Message::Taken,
            Message::Reload(ReloadMode::Careful),
            Message::Reload(ReloadMode::Force),
            Message::Reload(ReloadMode::DryRun),
            Message::Repair { pool: "main".to_owned(), only_count: true },
            Message::Move(Wish::Drain, "10.0.0.1:11211".to_owned()),
            Message::Move(Wish::Return, "10.0.0.1:11211".to_owned()),
            Message::Done("rules: 2 now\n".to_owned()),
        ]
    }

    #[test]
    fn each_message_is_read_as_it_was_written_and_fits() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= super::super::channel::MAX_MESSAGE, "{}", bytes.len());
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_refused_or_another_message_and_never_a_panic() {
        for message in all() {
            let bytes = message.encode();
            for at in (0..bytes.len()).take(200) {
                let _ = Message::decode(&bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 0x21;
                let _ = Message::decode(&changed);
            }
        }
        assert_eq!(Message::decode(b"get k\r\n"), Err(Malformed::Message));
        assert_eq!(Message::decode(b"\xff"), Err(Malformed::Message));
        let mut many = Message::Clients(vec![]).encode();
        many.extend(b"\0tcp\0a:1\0text\0".repeat(MAX_CLIENTS + 1));
        assert_eq!(Message::decode(&many), Err(Malformed::Message));
    }

    #[test]
    fn another_version_says_which_one_it_is() {
        let later = b"kennel-takeover\x002\0something new";
        let refused = Message::decode(later).unwrap_err();
        assert_eq!(refused, Malformed::Protocol(2));
        assert!(refused.to_string().contains("protocol 2, this one with protocol 1"), "{refused}");
    }
}
