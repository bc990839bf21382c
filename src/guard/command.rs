//! The commands sent to servers and the replies: memcached's meta commands as values.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Failure;

use super::policy::Policy;

/// An item's CAS number, and which connection life it was read in.
///
/// A restarted server counts again from one, so a number alone may name two different items. Whoever sends a
/// conditional command on a connection of another epoch must answer [`ServerReply::Exists`] without sending it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cas {
    /// As the server gave it.
    pub number: u64,
    /// How often connections to that server had been made when it was read.
    pub epoch: u32,
}

impl Cas {
    /// No item's: memcached counts from one.
    pub const NONE: Cas = Cas { number: 0, epoch: 0 };
}

/// Which item a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ItemRef {
    /// The guarded key itself.
    Value,
    /// Its lock, which lives on the same server.
    Lock,
    /// The rule's n-th tag for this key.
    Tag(u8),
    /// The same tag on the second server that keeps it.
    TagCopy(u8),
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerCommand {
    /// About which item.
    pub at: ItemRef,
    /// What to do with it.
    pub what: Operation,
}

/// The commands of one round trip. Those about one server arrive there in this order.
pub type Commands = SmallVec<[ServerCommand; 4]>;

/// The answers to them, in the same order.
pub type Replies = SmallVec<[ServerReply; 4]>;

/// What to do with an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `mg … t f c s`.
    Get(GetFlags),
    /// `ms … c`.
    Store {
        /// `M`: under which condition.
        mode: StoreMode,
        /// The value: a header of ours, then the client's bytes.
        value: Stored,
        /// `F`.
        flags: u32,
        /// `T`, as memcached reads an exptime.
        exptime: i64,
        /// `C`: only if the item's CAS is still this.
        cas: Option<Cas>,
        /// `E`: the CAS that the client wants it to have.
        explicit: Option<u64>,
    },
    /// `md`.
    Delete {
        /// `C`: only if the item's CAS is still this.
        cas: Option<Cas>,
    },
    /// `md … I`: keep it, as stale, under a new CAS.
    MarkStale {
        /// `T`: for this many seconds; `None` leaves its exptime as it is.
        seconds: Option<u32>,
        /// `C`: only if the item's CAS is still this.
        cas: Option<Cas>,
        /// `E`: the CAS that the client wants it to have.
        explicit: Option<u64>,
    },
}

/// What a look at an item gives and does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GetFlags {
    /// `v`: with its value.
    pub value: bool,
    /// `h l`: whether it was hit before, and for how long it has not been.
    pub usage: bool,
    /// `u`: without counting as a use of it.
    pub unseen: bool,
    /// `N`: on a miss, leave a stub that lasts this many seconds.
    pub vivify: Option<u32>,
    /// `T`: give it this exptime (what is answered is the old one).
    pub touch: Option<i64>,
}

/// Under which condition a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreMode {
    /// Always.
    Set,
    /// Only if the key is absent.
    Add,
    /// Behind what is there.
    Append,
}

/// A value to store, in two parts so that the client's bytes are never copied to put a header before them.
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

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.header.len() + self.body.len()
    }

    /// Whether there is not one byte, as in a stub.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a server answered.
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
    /// `EX`: the CAS is another.
    Exists,
    /// The server refuses an item of this size, and has dropped the old one.
    TooLarge,
    /// There is no answer, and whether the command was carried out is not known.
    Failed(Failure),
}

/// An item as `mg` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Item {
    /// The whole stored value, header included; empty if it was not asked for.
    pub value: Bytes,
    /// Its size in bytes, also when the value was not asked for.
    pub size: usize,
    /// The client's flags.
    pub flags: u32,
    /// Its CAS.
    pub cas: Cas,
    /// Whole seconds it has left at most; `None`: it never expires.
    pub ttl: Option<u32>,
    /// `W`: the server chose this reader to build it.
    pub won: bool,
    /// `X`: marked stale.
    pub stale: bool,
    /// How it has been used; as it is in a new item if that was not asked.
    pub usage: Usage,
}

/// How an item has been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Usage {
    /// `h`: it has been hit since it was stored.
    pub hit: bool,
    /// `l`: seconds since that was last so.
    pub idle: u32,
}

/// A get of the whole item.
pub(super) fn get(at: ItemRef) -> ServerCommand {
    ServerCommand { at, what: Operation::Get(GetFlags { value: true, ..GetFlags::default() }) }
}

/// A get of all but its value.
pub(super) fn peek(at: ItemRef) -> ServerCommand {
    ServerCommand { at, what: Operation::Get(GetFlags::default()) }
}

/// A look at the key that leaves a stub if nothing is there: so there is always a CAS to store over, which any invalidation
/// moves or removes.
pub(super) fn peek_or_stub(policy: &Policy) -> ServerCommand {
    let vivify = Some(policy.lock_seconds());
    ServerCommand { at: ItemRef::Value, what: Operation::Get(GetFlags { vivify, ..GetFlags::default() }) }
}

/// The same, with the value.
pub(super) fn get_or_stub(policy: &Policy) -> ServerCommand {
    let vivify = Some(policy.lock_seconds());
    ServerCommand {
        at: ItemRef::Value,
        what: Operation::Get(GetFlags { value: true, vivify, ..GetFlags::default() }),
    }
}

/// A delete, conditional if a CAS is given.
pub(super) fn delete(at: ItemRef, cas: Option<Cas>) -> ServerCommand {
    ServerCommand { at, what: Operation::Delete { cas } }
}
