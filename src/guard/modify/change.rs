//! What a modifying command requests, and how it ends.

use bytes::Bytes;

use crate::error::Failure;
use crate::guard::command::Cas;
use crate::guard::expiry::Expiry;
use crate::guard::freshness::Hit;
use crate::guard::new_value::NewValue;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// `add`: store if there is no logical item.
    Add(NewValue),
    /// `replace`: store if there is one.
    Replace(NewValue),
    /// `append`.
    Append {
        /// What to put behind the value.
        more: Bytes,
        /// `C`: only if the item's CAS number is this.
        compare: Option<u64>,
        /// `E`: the CAS that the client wants it to have.
        explicit: Option<u64>,
        /// `N`: what to store if there is no item.
        create: Option<Box<NewValue>>,
    },
    /// `prepend`.
    Prepend {
        /// What to put before the value.
        more: Bytes,
        /// `C`: only if the item's CAS number is this.
        compare: Option<u64>,
        /// `E`: the CAS that the client wants it to have.
        explicit: Option<u64>,
        /// `N`: what to store if there is no item.
        create: Option<Box<NewValue>>,
    },
    /// `cas`: store if the item's CAS number is this.
    Cas {
        /// The number.
        number: u64,
        /// What to store.
        offer: NewValue,
        /// Meta clients are shown stale items and stubs with their CAS, and may name those too.
        sees_stale: bool,
        /// `I`: if the item's CAS number is higher, store all the same, as stale.
        invalidate: bool,
    },
    /// `incr`, `decr` and `ma`.
    Count(Count),
    /// `touch` and `gat`.
    Touch(Expiry),
    /// `md x`: leave the item with neither value nor flags.
    Empty {
        /// `C`: only if the item's CAS number is this.
        compare: Option<u64>,
        /// `T`.
        lifetime: Expiry,
        /// `E`: the CAS that the client wants it to have.
        explicit: Option<u64>,
    },
}

/// What `incr` and `decr` do, and what `ma` may say beyond them (protocol.txt, "Meta Arithmetic").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Count {
    /// Down instead of up.
    pub decr: bool,
    /// By how much.
    pub delta: u64,
    /// `C`: only if the item's CAS number is this.
    pub compare: Option<u64>,
    /// `N` and `J`: what to begin with if there is no item, and how long that lasts.
    pub create: Option<(Expiry, u64)>,
    /// `T`: how long the item lasts from now on.
    pub lifetime: Option<Expiry>,
    /// `E`: the CAS that the client wants it to have.
    pub explicit: Option<u64>,
}

/// What counting gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counted {
    /// The number as it is now.
    pub number: u64,
    /// The item's CAS.
    pub cas: Cas,
    /// Whole seconds until the soft expiry that it had; `None`: none, or it was created.
    pub ttl: Option<u32>,
    /// There was no item.
    pub created: bool,
}

impl Change {
    /// What an append is to store if there is no item.
    pub(super) fn create(&self) -> Option<&NewValue> {
        match self {
            Change::Append { create, .. } | Change::Prepend { create, .. } => create.as_deref(),
            _ => None,
        }
    }

    /// How many bytes of a value the client sent with it.
    pub(super) fn sent(&self) -> usize {
        match self {
            Change::Add(offer) | Change::Replace(offer) | Change::Cas { offer, .. } => offer.body.len(),
            Change::Append { more, .. } | Change::Prepend { more, .. } => more.len(),
            Change::Count(_) | Change::Touch(_) | Change::Empty { .. } => 0,
        }
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModifyEnd {
    /// Stored, under this CAS; [`Cas::NONE`] if it ended with this very command.
    Stored(Cas),
    /// `append`, `prepend`: stored.
    Extended {
        /// The item's CAS.
        cas: Cas,
        /// How many bytes the value has now.
        size: usize,
        /// There was no item.
        created: bool,
    },
    /// The condition did not hold.
    NotStored,
    /// `replace`: there is an item, and it is newer than the miss that the client was told. The value is dropped, and the client is
    /// told that it was stored.
    Dropped,
    /// `cas`: the item is another by now.
    Exists,
    /// There is no logical item.
    NotFound,
    /// `incr`, `decr`, `ma`: the new number.
    Counted(Counted),
    /// `incr`, `decr`: the value is not a number.
    NotANumber,
    /// `touch`, `gat`: what was there, with its new lifetime.
    Touched(Hit),
    /// The server refuses values of this size.
    TooLarge,
    /// Whether it was done is not known.
    Failed(Failure),
}

impl Counted {
    pub(super) const NOTHING: Counted = Counted { number: 0, cas: Cas::NONE, ttl: None, created: false };
}

/// What an append has made: its number is the value's size.
pub(super) fn appended(size: usize, created: bool) -> Counted {
    Counted { number: size as u64, created, ..Counted::NOTHING }
}
