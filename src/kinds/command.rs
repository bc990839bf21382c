//! The commands of a kind to the server, and the replies.

use bytes::Bytes;
use smallvec::SmallVec;

use super::item::ItemKey;
use super::many::{Items, Keys};
use crate::error::Failure;

/// The CAS number of an item, and the epoch of the connection that read it: it is not valid in another one, because a server that
/// has restarted counts from one again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cas {
    /// As returned by the server.
    pub number: u64,
    /// How many connections to that server had been made when the item was read.
    pub epoch: u32,
}

/// One command to the server of a structure's items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The item that it is for. [`Operation::GetMany`] has keys of its own, and none here.
    pub key: ItemKey,
    /// What the command does to the item.
    pub operation: Operation,
}

/// The commands of one round trip. The server receives them in this order.
pub type Commands = Vec<Command>;

/// The replies to [`Commands`], in the same order.
pub type Replies = SmallVec<[Reply; 2]>;

/// Under which condition an item is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Whether or not there is one.
    Set,
    /// Only if there is none.
    Add,
    /// Behind the value that is there, whose flags and exptime remain.
    Append,
}

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// `mg … v t f c`. The reply is an [`Reply::Item`] or [`Reply::Absent`].
    Get,
    /// `mg … v t f c N30`: the same, and an item that is not there is created empty for 30 s, so that it has a CAS.
    GetOrStub,
    /// A classic `get` of several items. The reply is [`Reply::Items`].
    GetMany(Keys),
    /// `ms`. The reply is [`Reply::Stored`], [`Reply::NotStored`], [`Reply::Exists`] or [`Reply::Absent`].
    Store {
        /// Condition under which it stores.
        mode: Mode,
        /// Bytes to store.
        value: Bytes,
        /// The flags of the client that stored it.
        flags: u32,
        /// As memcached interprets it.
        exptime: i64,
        /// Only if the item still has this CAS.
        cas: Option<Cas>,
    },
    /// `mg … s c`. The reply is a [`Reply::Size`] or [`Reply::Absent`].
    Size {
        /// The item's exptime from now on; `None`: as it was.
        exptime: Option<i64>,
    },
    /// `ma`, which creates a number that is not there. The reply is a [`Reply::Number`] or [`Reply::NotANumber`].
    Count {
        /// Whether it subtracts.
        decr: bool,
        /// Number to add or subtract.
        delta: u64,
        /// The number that it creates.
        initial: u64,
        /// The exptime of a number that it creates.
        exptime: i64,
    },
    /// `md`. The reply is [`Reply::Done`], [`Reply::Absent`] or [`Reply::Exists`].
    Delete {
        /// Only if the item still has this CAS.
        cas: Option<Cas>,
    },
}

impl Operation {
    /// The epoch of the CAS that it names: over another connection it must not be sent, and [`Reply::Exists`] is its reply.
    pub fn epoch(&self) -> Option<u32> {
        match self {
            Operation::Store { cas, .. } | Operation::Delete { cas } => cas.map(|cas| cas.epoch),
            Operation::Get
            | Operation::GetOrStub
            | Operation::GetMany(_)
            | Operation::Size { .. }
            | Operation::Count { .. } => None,
        }
    }
}

/// What a server holds under an item's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Its bytes, without flags and exptime.
    pub data: Bytes,
    /// The flags of the client that stored it.
    pub flags: u32,
    /// CAS number of the item.
    pub cas: Cas,
    /// The seconds that it still lives; `None`: for ever.
    pub ttl: Option<u32>,
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The item of [`Operation::Get`] or [`Operation::GetOrStub`].
    Item(Value),
    /// The items of [`Operation::GetMany`] that there are.
    Items(Items),
    /// The size of the item's value in bytes, and its CAS.
    Size(usize, Cas),
    /// There is no such item.
    Absent,
    /// Stored with this CAS.
    Stored(Cas),
    /// There is such an item, or, for an append, there is none or no room.
    NotStored,
    /// The item has another CAS.
    Exists,
    /// Carried out, without a value to return.
    Done,
    /// The number after the change, and the CAS and remaining seconds of the item.
    Number(u64, Cas, Option<u32>),
    /// The item is no number.
    NotANumber,
    /// The value is larger than the server accepts.
    TooLarge,
    /// There is no reply, and whether the command was carried out is unknown.
    Failed(Failure),
}
