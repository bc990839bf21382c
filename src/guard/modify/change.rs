//! What a modifying command requests, and how it ends.

use bytes::Bytes;

use crate::error::Failure;
use crate::guard::command::Cas;
use crate::guard::expiry::Expiry;
use crate::guard::freshness::Hit;
use crate::guard::new_value::NewValue;

/// A change to an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// `add`: store if there is no logical item.
    Add(NewValue),
    /// `replace`: store if there is one.
    Replace(NewValue),
    /// `append`.
    Append {
        /// The bytes to append.
        more: Bytes,
        /// `C`: only if the item has this CAS number.
        compare: Option<u64>,
        /// `E`: the CAS that the client assigns.
        explicit: Option<u64>,
        /// `N`: the value to store if there is no item.
        create: Option<Box<NewValue>>,
    },
    /// `prepend`.
    Prepend {
        /// The bytes to prepend.
        more: Bytes,
        /// `C`: only if the item has this CAS number.
        compare: Option<u64>,
        /// `E`: the CAS that the client assigns.
        explicit: Option<u64>,
        /// `N`: the value to store if there is no item.
        create: Option<Box<NewValue>>,
    },
    /// `cas`: store if the item has this CAS number.
    Cas {
        /// CAS number that the client compares with.
        number: u64,
        /// The value to store.
        new_value: NewValue,
        /// Meta clients receive the CAS of stale items and stubs, and may store over those too.
        sees_stale: bool,
        /// `I`: if the item's CAS number is higher, store all the same, as stale.
        invalidate: bool,
    },
    /// `incr`, `decr` and `ma`.
    Count(Count),
    /// `touch` and `gat`.
    Touch(Expiry),
    /// `md x`: remove the item's value and client flags.
    Empty {
        /// `C`: only if the item has this CAS number.
        compare: Option<u64>,
        /// `T`: the new expiry.
        expiry: Expiry,
        /// `E`: the CAS that the client assigns.
        explicit: Option<u64>,
    },
}

/// What `incr` and `decr` request, and the further options of `ma` (protocol.txt, "Meta Arithmetic").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Count {
    /// Decrement instead of increment.
    pub decr: bool,
    /// Number to add or subtract.
    pub delta: u64,
    /// `C`: only if the item has this CAS number.
    pub compare: Option<u64>,
    /// `N` and `J`: expiry and initial number if there is no item.
    pub create: Option<(Expiry, u64)>,
    /// `T`: the new expiry.
    pub expiry: Option<Expiry>,
    /// `E`: the CAS that the client assigns.
    pub explicit: Option<u64>,
}

/// The result of `incr`, `decr` and `ma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counted {
    /// Number after the command.
    pub number: u64,
    /// CAS number of the stored item.
    pub cas: Cas,
    /// Whole seconds until the soft expiry that the item had; `None` if it had none or was created.
    pub ttl: Option<u32>,
    /// There was no item.
    pub created: bool,
}

impl Change {
    /// The value to store if there is no item.
    pub(super) fn create(&self) -> Option<&NewValue> {
        match self {
            Change::Append { create, .. } | Change::Prepend { create, .. } => create.as_deref(),
            _ => None,
        }
    }

    /// Length in bytes of the value that the client sent, and its flags.
    pub(super) fn sent(&self) -> (usize, u32) {
        match self {
            Change::Add(new_value) | Change::Replace(new_value) | Change::Cas { new_value, .. } => {
                (new_value.body.len(), new_value.flags)
            }
            Change::Append { more, .. } | Change::Prepend { more, .. } => (more.len(), 0),
            Change::Count(_) | Change::Touch(_) | Change::Empty { .. } => (0, 0),
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModifyEnd {
    /// Stored under this CAS; [`Cas::NONE`] if the command removed the item.
    Stored(Cas),
    /// `append`, `prepend`: stored.
    Extended {
        /// CAS number of the stored item.
        cas: Cas,
        /// New length of the value in bytes.
        size: usize,
        /// There was no item.
        created: bool,
    },
    /// The condition did not hold.
    NotStored,
    /// `replace`: there is an item, and it is newer than the client's miss. The value is dropped, and the
    /// reply is the same as if it had been stored.
    Dropped,
    /// `cas`: the item has another CAS.
    Exists,
    /// There is no logical item.
    NotFound,
    /// `incr`, `decr`, `ma`: the new number.
    Counted(Counted),
    /// `incr`, `decr`: the value is not a number.
    NotANumber,
    /// `touch`, `gat`: the item, with its new expiry.
    Touched(Hit),
    /// The server refuses values of this size.
    TooLarge,
    /// It is unknown whether the item was changed.
    Failed(Failure),
}

impl Counted {
    pub(super) const NOTHING: Counted = Counted { number: 0, cas: Cas::NONE, ttl: None, created: false };
}

/// The result of an append: its number is the value's new length.
pub(super) fn appended(size: usize, created: bool) -> Counted {
    Counted { number: size as u64, created, ..Counted::NOTHING }
}
