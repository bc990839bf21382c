//! A memcached small enough to be part of a state: one item, its lock, one tag. It has no clock: that an item expires is a step.

use std::hash::{Hash, Hasher};

use bytes::Bytes;
use kennel::guard::{Cas, GetFlags, Item, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Usage};

use super::canon::Who;
use super::plan::policy;

/// CASes have their own range so that they differ from other numbers.
pub const FIRST_CAS: u64 = 1 << 50;
/// The largest number that a version has room for: no bump is later.
pub const SPOILT: &[u8] = b"17592186044415";
pub const FIRST_CAS_OF_TAGS: u64 = FIRST_CAS + (1 << 19);

/// The remaining time of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Term {
    Endless,
    /// More than `stale_for`.
    Fresh,
    /// Some of `stale_for`.
    Stale,
    /// Less than a second.
    Last,
    /// That of a lock or stub.
    Hold,
    /// That of a stub stored for a missing tag.
    Missing,
}

/// The item stored under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Bytes,
    flags: u32,
    pub cas: u64,
    pub term: Term,
    /// Marked by `md I`.
    pub stale: bool,
    /// A client has received its mark as a win.
    offered: bool,
    /// The sidecar that wrote it, if that still runs. memcached does not know it.
    pub by: Option<usize>,
}

/// The server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub item: Option<Entry>,
    pub lock: Option<Entry>,
    pub tag: Option<Entry>,
    /// The last CAS assigned.
    pub last: u64,
    /// A CAS that is assigned before the next.
    pub again: Option<u64>,
    /// The last CAS of a tag, whose server may be another.
    pub last_of_tags: u64,
}

impl Term {
    fn of(exptime: i64) -> Term {
        let (lock, stale) = (i64::from(policy().lock_seconds()), i64::from(policy().stale_seconds()));
        match exptime {
            0 => Term::Endless,
            1 => Term::Last,
            30 => Term::Missing,
            seconds if seconds == lock => Term::Hold,
            seconds if seconds > stale => Term::Fresh,
            _ => Term::Stale,
        }
    }

    /// As returned by `t`.
    fn seconds(self) -> Option<u32> {
        let stale = policy().stale_seconds();
        match self {
            Term::Endless => None,
            Term::Fresh => Some(stale + super::plan::TTL as u32),
            Term::Stale => Some(stale / 2),
            Term::Last => Some(1),
            Term::Hold => Some(policy().lock_seconds()),
            Term::Missing => Some(30),
        }
    }
}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Entry { value, flags, cas, term, stale, offered, by } = self;
        // Which client received a value's mark decides nothing; which client received a stub's mark decides everything.
        let offered = *offered && self.is_stub();
        (value, flags, cas, term, stale, offered, by.map(Who)).hash(state);
    }
}

impl Entry {
    pub fn is_stub(&self) -> bool {
        self.value.is_empty()
    }

    /// Whether it is neither marked nor past its soft expiry.
    pub fn is_in_time(&self) -> bool {
        !self.is_stub() && !self.stale && matches!(self.term, Term::Fresh | Term::Endless)
    }
}

impl Server {
    pub fn start() -> Server {
        Server {
            item: None,
            lock: None,
            tag: None,
            again: None,
            last: FIRST_CAS,
            last_of_tags: FIRST_CAS_OF_TAGS,
        }
    }

    pub fn at(&mut self, at: ItemRef) -> &mut Option<Entry> {
        match at {
            ItemRef::Value => &mut self.item,
            ItemRef::Lock => &mut self.lock,
            ItemRef::Tag(_) | ItemRef::TagCopy(_) => &mut self.tag,
        }
    }

    /// A program that bypasses Kennel stores something under the key of the tag.
    pub fn spoil_tag(&mut self) {
        let (cas, value) = (self.next(ItemRef::Tag(0)), Bytes::from_static(SPOILT));
        let term = Term::Endless;
        self.tag = Some(Entry { value, flags: 0, cas, term, stale: false, offered: false, by: None });
    }

    fn next(&mut self, at: ItemRef) -> u64 {
        let last = match at {
            ItemRef::Value | ItemRef::Lock => match self.again.take() {
                Some(again) => return again,
                None => &mut self.last,
            },
            ItemRef::Tag(_) | ItemRef::TagCopy(_) => &mut self.last_of_tags,
        };
        *last += 1;
        *last
    }

    /// Executes a command.
    pub fn execute(&mut self, command: &ServerCommand, epoch: u32, by: Option<usize>) -> ServerReply {
        let stored = self.at(command.item).clone();
        match (&command.operation, stored) {
            (Operation::Get(look), stored) => self.get(command.item, look, stored, epoch, by),
            (Operation::Store { mode: StoreMode::Add, .. }, Some(_)) => ServerReply::NotStored,
            (
                Operation::Store { cas: Some(_), .. }
                | Operation::Delete { .. }
                | Operation::MarkStale { .. },
                None,
            ) => ServerReply::Absent,
            (
                Operation::Store { cas: Some(cas), .. }
                | Operation::Delete { cas: Some(cas) }
                | Operation::MarkStale { cas: Some(cas), .. },
                Some(stored),
            ) if cas.number != stored.cas => ServerReply::Exists,
            (Operation::Store { value, flags, exptime, .. }, _) => {
                let number = self.next(command.item);
                let value: Bytes = [&value.header[..], &value.body[..]].concat().into();
                // A released stub remains for as long as a client may fill it.
                let term = if *flags >= 1 << 31 { Term::Hold } else { Term::of(*exptime) };
                let entry =
                    Entry { value, flags: *flags, cas: number, term, stale: false, offered: false, by };
                *self.at(command.item) = Some(entry);
                ServerReply::Stored(Cas { number, epoch })
            }
            (Operation::Delete { .. }, Some(_)) => {
                *self.at(command.item) = None;
                ServerReply::Done
            }
            (Operation::MarkStale { seconds, .. }, Some(stored)) => {
                let cas = self.next(command.item);
                let term = seconds.map_or(stored.term, |seconds| Term::of(i64::from(seconds)));
                *self.at(command.item) = Some(Entry { cas, term, stale: true, offered: false, ..stored });
                ServerReply::Done
            }
        }
    }

    fn get(
        &mut self,
        at: ItemRef,
        look: &GetFlags,
        stored: Option<Entry>,
        epoch: u32,
        by: Option<usize>,
    ) -> ServerReply {
        let mut item = Item {
            value: Bytes::new(),
            size: 0,
            flags: 0,
            cas: Cas { number: 0, epoch },
            ttl: None,
            won: false,
            stale: false,
            usage: Usage::default(),
        };
        match stored {
            Some(entry) => {
                item.won = entry.stale && !entry.offered;
                item.size = entry.value.len();
                item.flags = entry.flags;
                item.cas.number = entry.cas;
                item.ttl = entry.term.seconds();
                item.stale = entry.stale;
                let offered = entry.offered || entry.stale;
                if look.value {
                    item.value = entry.value.clone();
                }
                *self.at(at) = Some(Entry { offered, ..entry });
                ServerReply::Item(item)
            }
            None if look.vivify.is_some() => {
                let cas = self.next(at);
                let term = Term::of(i64::from(look.vivify.unwrap_or(0)));
                let value = Bytes::new();
                let stub = Entry { value, flags: 0, cas, term, stale: false, offered: true, by };
                *self.at(at) = Some(stub);
                item.cas.number = cas;
                item.won = true;
                ServerReply::Item(item)
            }
            None => ServerReply::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kennel::embedded::Store;
    use kennel::guard::Stored;
    use kennel::protocol::parse::parse;
    use kennel::protocol::request::{Limits, Parsed};
    use kennel::proxy::wire;
    use kennel::random::Random;
    use kennel::upstream::pending_replies::Reply;

    use super::*;

    const WALL: u64 = 1_700_000_000_000;

    fn through_the_wire(store: &mut Store, command: &ServerCommand) -> ServerReply {
        let key: &[u8] = match command.item {
            ItemRef::Value => b"k",
            ItemRef::Lock => b"l",
            ItemRef::Tag(_) | ItemRef::TagCopy(_) => b"t",
        };
        let (mut buffer, mut reply) = (BytesMut::new(), Vec::new());
        wire::encode(&command.operation, key, &mut buffer);
        match parse(&buffer, &Limits { max_value: 1 << 20 }) {
            Parsed::Request { request, .. } => store.execute(&request, WALL, &mut reply),
            other => panic!("{} {other:?}", buffer.escape_ascii()),
        };
        wire::decode(command, Reply::Answered { bytes: reply.into(), epoch: 1 })
    }

    /// Commands as the guard sends them, with CASes that it may remember.
    fn any(random: &mut Random, known: &[Cas]) -> ServerCommand {
        let at = [ItemRef::Value, ItemRef::Value, ItemRef::Lock, ItemRef::Tag(0)][random.below(4) as usize];
        let known = (!known.is_empty()).then(|| known[random.below(known.len() as u64) as usize]);
        let cas = known.filter(|_| random.below(3) > 0);
        let body = Bytes::from_static([&b""[..], b"v1", b"v22"][random.below(3) as usize]);
        let operation = match random.below(8) {
            0..=2 => {
                let vivify = match at {
                    ItemRef::Value => Some(6),
                    ItemRef::Tag(_) => Some(30),
                    _ => None,
                };
                let vivify = vivify.filter(|_| random.below(2) == 0);
                Operation::Get(GetFlags { value: random.below(2) == 0, vivify, ..GetFlags::default() })
            }
            3..=4 => {
                let (mode, cas) =
                    if random.below(3) == 0 { (StoreMode::Add, None) } else { (StoreMode::Set, cas) };
                let exptime = [0, 6, 20 + super::super::plan::TTL as i64][random.below(3) as usize];
                let flags = random.below(3) as u32;
                Operation::Store { mode, value: Stored::plain(body), flags, exptime, cas, explicit: None }
            }
            5 => Operation::Delete { cas },
            _ => Operation::MarkStale { seconds: None, cas, explicit: None },
        };
        ServerCommand { item: at, operation }
    }

    #[test]
    fn the_models_server_replies_to_the_guards_commands_as_the_embedded_memcached_does() {
        for seed in 0..300 {
            let mut random = Random::seeded(seed);
            let (mut model, mut store) = (Server::start(), Store::new(64 << 20, WALL));
            // The same items, each server with its own CASes.
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for step in 0..60 {
                let command = any(&mut random, &ours);
                let mut same = command.clone();
                if let Operation::Store { cas: Some(cas), .. }
                | Operation::Delete { cas: Some(cas) }
                | Operation::MarkStale { cas: Some(cas), .. } = &mut same.operation
                {
                    *cas = theirs[ours.iter().position(|known| known == cas).unwrap()];
                }
                let mut replies = [model.execute(&command, 1, None), through_the_wire(&mut store, &same)];
                let numbers = replies.each_mut().map(|reply| match reply {
                    ServerReply::Item(Item { cas, .. }) | ServerReply::Stored(cas) => {
                        Some(std::mem::replace(cas, Cas::NONE))
                    }
                    _ => None,
                });
                assert_eq!(replies[0], replies[1], "seed {seed}, step {step}: {command:?}");
                if let [Some(our), Some(their)] = numbers {
                    match ours.iter().position(|known| *known == our) {
                        Some(at) => assert_eq!(theirs[at], their, "seed {seed}, step {step}: {command:?}"),
                        None => {
                            assert!(!theirs.contains(&their), "seed {seed}, step {step}: {command:?}");
                            ours.push(our);
                            theirs.push(their);
                        }
                    }
                }
            }
        }
    }
}
