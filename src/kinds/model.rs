//! A memcached for tests of the state machines, and machines that run against it in any order of their commands.

use std::collections::{HashMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::command::{Cas, Command, Mode, Operation, Replies, Reply, Value};
use super::item::ItemKey;
use super::machine::{Inputs, Machine, Outcome, Step};

/// A server with items, whose TTLs it counts down.
#[derive(Debug)]
pub(super) struct Store {
    items: HashMap<ItemKey, Stored>,
    cas: u64,
    /// In seconds since 1970.
    pub(super) now: u64,
    /// The largest value, in bytes.
    pub(super) max_value: usize,
}

#[derive(Debug, Clone)]
struct Stored {
    data: Bytes,
    flags: u32,
    cas: u64,
    /// When it expires, in seconds since 1970.
    end: Option<u64>,
}

impl Store {
    pub(super) fn new() -> Store {
        Store { items: HashMap::new(), cas: 0, now: 1_700_000_000, max_value: 1_000_000 }
    }

    pub(super) fn inputs(&self) -> Inputs {
        Inputs { now: self.now * 1000, random: 0 }
    }

    /// The value of an item.
    pub(super) fn data(&mut self, key: &[u8]) -> Option<Bytes> {
        self.item(&ItemKey::from_slice(key)).map(|item| item.data)
    }

    /// Stores an item, as a client without Kennel does.
    pub(super) fn put(&mut self, key: &[u8], data: &[u8]) {
        self.store(&ItemKey::from_slice(key), Bytes::copy_from_slice(data), 0, None);
    }

    /// The sizes of all items in bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.items.values().map(|item| item.data.len())
    }

    /// Removes an item, as an eviction does.
    pub(super) fn evict(&mut self, key: &[u8]) {
        self.items.remove(key);
    }

    fn item(&mut self, key: &ItemKey) -> Option<Stored> {
        if self.items.get(key)?.end.is_some_and(|end| end <= self.now) {
            self.items.remove(key);
        }
        self.items.get(key).cloned()
    }

    fn end(&self, exptime: i64) -> Option<u64> {
        match exptime {
            0 => None,
            1..=2_592_000 => Some(self.now + exptime.unsigned_abs()),
            exptime if exptime < 0 => Some(0),
            exptime => Some(exptime.unsigned_abs()),
        }
    }

    fn store(&mut self, key: &ItemKey, data: Bytes, flags: u32, end: Option<u64>) -> Reply {
        self.cas += 1;
        self.items.insert(key.clone(), Stored { data, flags, cas: self.cas, end });
        Reply::Stored(cas(self.cas))
    }

    pub(super) fn execute(&mut self, Command { key, operation }: &Command) -> Reply {
        let item = self.item(key);
        match operation {
            Operation::Get => match item {
                Some(Stored { data, flags, cas: number, end }) => {
                    let ttl = end.map(|end| u32::try_from(end - self.now).unwrap());
                    Reply::Item(Value { data, flags, cas: cas(number), ttl })
                }
                None => Reply::Absent,
            },
            Operation::Size { exptime } => match item {
                Some(item) => {
                    if let Some(exptime) = exptime {
                        let end = self.end(*exptime);
                        self.items.get_mut(key).unwrap().end = end;
                    }
                    Reply::Size(item.data.len(), cas(item.cas))
                }
                None => Reply::Absent,
            },
            Operation::Store { mode, value, flags, exptime, cas: over } => {
                if value.len() > self.max_value {
                    self.items.remove(key);
                    return Reply::TooLarge;
                }
                match (mode, over, item) {
                    (Mode::Add, _, Some(_)) | (Mode::Append, _, None) => Reply::NotStored,
                    (_, Some(_), None) => Reply::Absent,
                    (_, Some(over), Some(item)) if over.number != item.cas => Reply::Exists,
                    (Mode::Append, _, Some(item)) if item.data.len() + value.len() > self.max_value => {
                        Reply::NotStored
                    }
                    (Mode::Append, _, Some(item)) => {
                        let mut data = BytesMut::from(&item.data[..]);
                        data.extend_from_slice(value);
                        self.store(key, data.freeze(), item.flags, item.end)
                    }
                    _ => self.store(key, value.clone(), *flags, self.end(*exptime)),
                }
            }
            Operation::Delete { cas: over } => match (over, item) {
                (_, None) => Reply::Absent,
                (Some(over), Some(item)) if over.number != item.cas => Reply::Exists,
                _ => {
                    self.items.remove(key);
                    Reply::Done
                }
            },
            Operation::GetOrStub | Operation::GetMany(_) | Operation::Count { .. } => {
                panic!("no machine here sends {operation:?}")
            }
        }
    }
}

fn cas(number: u64) -> Cas {
    Cas { number, epoch: 1 }
}

/// What a test does to a command on its way to the server; `None` loses it. A defence that a test takes away so must be missed.
pub(super) type Mutant = fn(Command) -> Option<Command>;

/// A machine whose commands are executed one by one.
pub(super) struct Task {
    machine: Box<dyn Machine>,
    commands: VecDeque<Command>,
    replies: Replies,
    /// A command of the client itself, which is sent before the last one of the first round trip, until that.
    own: Option<Command>,
    /// How many replies are received before that of the client's own command.
    own_reply: Option<usize>,
}

impl Task {
    pub(super) fn new(machine: Box<dyn Machine>) -> Task {
        Task { machine, commands: VecDeque::new(), replies: Replies::new(), own: None, own_reply: None }
    }

    /// A machine around a command of the client.
    pub(super) fn around(machine: Box<dyn Machine>, own: Command) -> Task {
        Task { own: Some(own), ..Task::new(machine) }
    }

    /// The server executes one command, or the machine is given the replies. Returns the outcome, once there is one.
    pub(super) fn step(&mut self, store: &mut Store, mutant: Mutant) -> Option<Outcome> {
        if let Some(command) = self.commands.pop_front() {
            let reply = mutant(command).map(|command| store.execute(&command));
            self.replies.push(reply.unwrap_or(Reply::Absent));
            return None;
        }
        let mut replies = std::mem::take(&mut self.replies);
        if let Some(at) = self.own_reply.take() {
            replies.remove(at);
        }
        match self.machine.resume(replies, &store.inputs()) {
            Step::Done(outcome) => Some(outcome),
            Step::SendCopies(commands) => panic!("{commands:?} is for copies"),
            Step::Send(commands) => {
                self.commands = commands.into();
                if let Some(own) = self.own.take() {
                    let at = self.commands.len() - 1;
                    self.commands.insert(at, own);
                    self.own_reply = Some(at);
                }
                None
            }
        }
    }

    /// Runs to the end, without others in between. Returns the number of round trips too.
    pub(super) fn run(mut self, store: &mut Store) -> (Outcome, usize) {
        let mut trips = 0;
        loop {
            let is_sent = self.commands.is_empty();
            if let Some(outcome) = self.step(store, Some) {
                return (outcome, trips);
            }
            trips += usize::from(is_sent);
        }
    }
}

/// Random numbers that are the same in each run (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}
