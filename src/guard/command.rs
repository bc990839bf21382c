//! The commands sent to servers and the replies: memcached's meta commands as values.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Failure;

use super::policy::Policy;

/// The CAS number of an item, and the epoch of the connection that read it.
///
/// A restarted server counts from one again, so one number may identify two different items. A conditional
/// command on a connection of another epoch must not be sent; its reply is [`ServerReply::Exists`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cas {
    /// As returned by the server.
    pub number: u64,
    /// How many connections to that server had been made when the item was read.
    pub epoch: u32,
}

impl Cas {
    /// The CAS of no item: memcached counts from one.
    pub const NONE: Cas = Cas { number: 0, epoch: 0 };
}

/// Which item a command addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ItemRef {
    /// The item under the client's own key.
    Value,
    /// The lock of the guarded key, on the same server.
    Lock,
    /// The n-th tag of the key.
    Tag(u8),
    /// The same tag on the second server that keeps it.
    TagCopy(u8),
}

/// A command to a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerCommand {
    /// Which item it addresses.
    pub item: ItemRef,
    /// What it does with the item.
    pub operation: Operation,
}

/// The commands of one round trip. Each server receives its commands in this order.
pub type Commands = SmallVec<[ServerCommand; 4]>;

/// The replies to [`Commands`], in the same order.
pub type Replies = SmallVec<[ServerReply; 4]>;

/// What a command does with an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `mg … t f c s`.
    Get(GetFlags),
    /// `ms … c`.
    Store {
        /// `M`: under which condition.
        mode: StoreMode,
        /// The value: Kennel's header, then the client's bytes.
        value: Stored,
        /// `F`: client flags.
        flags: u32,
        /// `T`: exptime, as memcached interprets it.
        exptime: i64,
        /// `C`: only if the item still has this CAS.
        cas: Option<Cas>,
        /// `E`: the CAS that the client assigns.
        explicit: Option<u64>,
    },
    /// `md`.
    Delete {
        /// `C`: only if the item still has this CAS.
        cas: Option<Cas>,
    },
    /// `md … I`: keeps the item, as stale, under a new CAS.
    MarkStale {
        /// `T`: the new TTL in seconds; `None` keeps the exptime.
        seconds: Option<u32>,
        /// `C`: only if the item still has this CAS.
        cas: Option<Cas>,
        /// `E`: the CAS that the client assigns.
        explicit: Option<u64>,
    },
}

/// What a get returns and changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GetFlags {
    /// `v`: return the value.
    pub value: bool,
    /// `h l`: return whether it has been hit, and the seconds since the last access.
    pub usage: bool,
    /// `u`: do not count as an access.
    pub unseen: bool,
    /// `N`: on a miss, leave a stub with this TTL in seconds.
    pub vivify: Option<u32>,
    /// `T`: set this exptime. The reply has the old one.
    pub touch: Option<i64>,
}

impl GetFlags {
    /// The value, and nothing is left or changed.
    pub const VALUE: GetFlags =
        GetFlags { value: true, usage: false, unseen: false, vivify: None, touch: None };
}

/// Under which condition a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreMode {
    /// Stores whatever is there.
    Set,
    /// Only if the key is absent.
    Add,
    /// Behind the existing value.
    Append,
}

/// A value to store, in two parts so that a header can be prepended without copying the client's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Stored {
    /// The envelope's header; empty for a plain value.
    pub header: Bytes,
    /// The client's bytes.
    pub body: Bytes,
}

impl Stored {
    /// A value without a header.
    pub fn plain(body: Bytes) -> Stored {
        Stored { header: Bytes::new(), body }
    }

    /// Length in bytes, header included.
    pub fn len(&self) -> usize {
        self.header.len() + self.body.len()
    }

    /// Whether both parts are empty, as in a stub.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The reply of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ServerReply {
    /// `VA` or `HD` to `mg`.
    Item(Item),
    /// `EN` or `NF`: there is no such item.
    Absent,
    /// `HD` to `ms`: stored under this CAS.
    Stored(Cas),
    /// `HD` to `md`.
    Done,
    /// `NS`: the condition of the mode did not hold.
    NotStored,
    /// `EX`: the item has another CAS.
    Exists,
    /// The server refuses an item of this size and has dropped the old one.
    TooLarge,
    /// There is no usable reply. It is unknown whether the command was carried out.
    Failed(Failure),
}

/// An item as returned by `mg`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Item {
    /// The whole stored value, header included; empty if it was not requested.
    pub value: Bytes,
    /// Size of the value in bytes, also if the value was not requested.
    pub size: usize,
    /// Client flags of the item.
    pub flags: u32,
    /// CAS number of the item, with its epoch.
    pub cas: Cas,
    /// Remaining TTL in whole seconds, rounded up; `None`: it never expires.
    pub ttl: Option<u32>,
    /// `W`: the server chose this reader to build the value.
    pub won: bool,
    /// `X`: marked stale.
    pub stale: bool,
    /// How it has been used; the default if that was not requested.
    pub usage: Usage,
}

/// How an item has been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Usage {
    /// `h`: it has been hit since it was stored.
    pub hit: bool,
    /// `l`: seconds since the last access.
    pub idle: u32,
}

/// A get of an item with its value.
pub(super) fn get(item: ItemRef) -> ServerCommand {
    ServerCommand { item, operation: Operation::Get(GetFlags::VALUE) }
}

/// A get of an item without its value.
pub(super) fn peek(item: ItemRef) -> ServerCommand {
    ServerCommand { item, operation: Operation::Get(GetFlags::default()) }
}

/// A get of the guarded key that leaves a stub if the key is absent. There is then always a CAS to store over, which any
/// invalidation changes or removes.
pub(super) fn get_or_stub(policy: &Policy) -> ServerCommand {
    let vivify = Some(policy.lock_seconds());
    ServerCommand {
        item: ItemRef::Value,
        operation: Operation::Get(GetFlags { value: true, vivify, ..GetFlags::default() }),
    }
}

/// A delete, conditional if a CAS is given.
pub(super) fn delete(item: ItemRef, cas: Option<Cas>) -> ServerCommand {
    ServerCommand { item, operation: Operation::Delete { cas } }
}
