//! The three copies of a server's record: where they are, and the commands and replies of the agreement on the wire.

use std::collections::VecDeque;
use std::io::Write;

use bytes::Bytes;

use super::link::{Answer, Link, Outgoing};
use crate::failover::{COPIES, Cas, Command, Item, Operation, RESERVED_PREFIX, Reply};
use crate::protocol::reply::{Status, meta};
use crate::upstream::NoReply;
use crate::upstream::ring::Ring;

/// TTL of a copy of a record in seconds. Each read renews it, so it ends only once no process of the placement has run for this long.
/// Then the next process draws a new fence, and nothing counts that was stored before: it has missed what was invalidated meanwhile
/// by processes of another placement.
const RECORD_SECONDS: u32 = 600;

/// The keys of a server's items. Each item has the same key in all copies.
pub(super) struct Keys {
    place: String,
    suspicion: String,
    alive: String,
}

impl Keys {
    /// The keys of a server of this identity under this placement of keys: another placement has other records.
    pub(super) fn new(placement: u64, identity: u64) -> Keys {
        let key = |item: &str| format!("{RESERVED_PREFIX}{item}:{placement:016x}{identity:016x}");
        Keys { place: key("place"), suspicion: key("suspect"), alive: key("alive") }
    }

    /// The servers that keep the copies of the record of `server`: itself, and the two that the ring without it gives for the
    /// record's key.
    pub(super) fn holders(&self, ring: &Ring, server: usize) -> [usize; COPIES] {
        let key = self.place.as_bytes();
        let first = ring.server_without(key, &[server]);
        [server, first, ring.server_without(key, &[server, first])]
    }

    /// The command that deletes a copy of the record.
    pub(super) fn forget(&self) -> String {
        format!("md {}\r\n", self.place)
    }

    /// The command that reads the record without renewing it and without counting as a use.
    pub(super) fn look(&self) -> Vec<u8> {
        format!("mg {} v c u\r\n", self.place).into_bytes()
    }

    fn of(&self, item: Item) -> &str {
        match item {
            Item::Record => &self.place,
            Item::Suspicion => &self.suspicion,
            Item::Alive => &self.alive,
        }
    }

    fn encode(&self, command: &Command) -> Outgoing {
        let key = self.of(command.item);
        let mut bytes = Vec::new();
        let mut cas_epoch = None;
        // Writing to memory cannot fail.
        let _ = match &command.operation {
            Operation::ReadOrStub(ttl) => write!(bytes, "mg {key} v c T{RECORD_SECONDS} N{ttl}\r\n"),
            Operation::Read => write!(bytes, "mg {key} v c\r\n"),
            Operation::Replace(value, cas) => {
                cas_epoch = Some(cas.epoch);
                write!(bytes, "ms {key} {} C{} T{RECORD_SECONDS}\r\n", value.len(), cas.number)
                    .and_then(|()| bytes.write_all(value))
                    .and_then(|()| bytes.write_all(b"\r\n"))
            }
            Operation::Set(value, ttl) => write!(bytes, "ms {key} {} T{ttl}\r\n", value.len())
                .and_then(|()| bytes.write_all(value))
                .and_then(|()| bytes.write_all(b"\r\n")),
        };
        Outgoing { bytes: Bytes::from(bytes), cas_epoch }
    }
}

/// Sends the commands to their copies at the same time. Returns their replies in order.
pub(super) async fn send(links: &[Link; COPIES], keys: &Keys, commands: &[Command]) -> Vec<Reply> {
    let to = |copy: usize| commands.iter().filter(move |command| command.copy == copy);
    let sending = |copy: usize| {
        let outgoing: Vec<Outgoing> = to(copy).map(|command| keys.encode(command)).collect();
        async move {
            match outgoing.is_empty() {
                true => Vec::new(),
                false => links[copy].send(outgoing).await,
            }
        }
    };
    let (first, second, third) = tokio::join!(sending(0), sending(1), sending(2));
    let mut answers = [first, second, third].map(VecDeque::from);
    let reply = |command: &Command| match answers[command.copy].pop_front() {
        Some(answer) => decode(&command.operation, &answer),
        None => Reply::Failed { refused: false },
    };
    commands.iter().map(reply).collect()
}

pub(super) fn decode(operation: &Operation, answer: &Answer) -> Reply {
    let (bytes, epoch) = match answer {
        Answer::Reply(bytes, epoch) => (bytes, *epoch),
        Answer::StaleCas => return Reply::Conflict,
        Answer::None(why) => return Reply::Failed { refused: *why == NoReply::Refused },
    };
    let reply = meta(bytes);
    let is_read = matches!(operation, Operation::ReadOrStub(_) | Operation::Read);
    match (reply.status, reply.number(b'c')) {
        // A server without CAS reports 0 for all items.
        (Status::Va, Some(number @ 1..)) if is_read => {
            Reply::Found(reply.data.to_vec(), Cas { number, epoch })
        }
        // With `N`, a server that is full and does not evict.
        (Status::En, _) if *operation == Operation::Read => Reply::Absent,
        (Status::Hd, _) if !is_read => Reply::Stored,
        (Status::Ex | Status::Nf | Status::Ns, _) if !is_read => Reply::Conflict,
        _ => Reply::Failed { refused: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAS: Cas = Cas { number: 7, epoch: 2 };

    #[test]
    fn commands_are_written_as_meta_commands() {
        let keys = Keys::new(0xab, 1);
        let id = "00000000000000ab0000000000000001";
        for (item, operation, expected, cas_epoch) in [
            (
                Item::Record,
                Operation::ReadOrStub(60),
                format!("mg @kennel:place:{id} v c T600 N60\r\n"),
                None,
            ),
            (Item::Alive, Operation::Read, format!("mg @kennel:alive:{id} v c\r\n"), None),
            (
                Item::Record,
                Operation::Replace(b"ab c".to_vec(), CAS),
                format!("ms @kennel:place:{id} 4 C7 T600\r\nab c\r\n"),
                Some(2),
            ),
            (
                Item::Suspicion,
                Operation::Set(b"5".to_vec(), 9),
                format!("ms @kennel:suspect:{id} 1 T9\r\n5\r\n"),
                None,
            ),
        ] {
            let outgoing = keys.encode(&Command { copy: 0, item, operation });
            assert_eq!((&outgoing.bytes[..], outgoing.cas_epoch), (expected.as_bytes(), cas_epoch));
        }
    }

    #[test]
    fn replies_are_read_by_the_kind_of_their_command_and_anything_else_is_no_reply() {
        let read = || Operation::ReadOrStub(60);
        let store = || Operation::Replace(Vec::new(), CAS);
        let no_reply = Reply::Failed { refused: false };
        for (operation, bytes, expected) in [
            (read(), "VA 2 c7\r\nhi\r\n", Reply::Found(b"hi".to_vec(), CAS)),
            (read(), "VA 0 c7 W\r\n\r\n", Reply::Found(Vec::new(), CAS)),
            (read(), "VA 2 c0\r\nhi\r\n", no_reply.clone()),
            (read(), "EN\r\n", no_reply.clone()),
            (Operation::Read, "EN\r\n", Reply::Absent),
            (read(), "HD\r\n", no_reply.clone()),
            (store(), "HD\r\n", Reply::Stored),
            (Operation::Set(Vec::new(), 1), "HD\r\n", Reply::Stored),
            (store(), "EX\r\n", Reply::Conflict),
            (store(), "NF\r\n", Reply::Conflict),
            (store(), "NS\r\n", Reply::Conflict),
            (store(), "SERVER_ERROR out of memory storing object\r\n", no_reply.clone()),
            (read(), "ERROR\r\n", no_reply.clone()),
        ] {
            let answer = Answer::Reply(Bytes::from(bytes), CAS.epoch);
            assert_eq!(decode(&operation, &answer), expected, "{operation:?} {bytes:?}");
        }
        assert_eq!(decode(&store(), &Answer::StaleCas), Reply::Conflict);
        assert_eq!(decode(&read(), &Answer::None(NoReply::Refused)), Reply::Failed { refused: true });
        for why in [NoReply::Silent, NoReply::Lost] {
            assert_eq!(decode(&read(), &Answer::None(why)), no_reply);
        }
    }
}
