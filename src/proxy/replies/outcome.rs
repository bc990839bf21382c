//! Outcomes of commands on guarded keys, independent of the protocol that the client speaks.

use bytes::Bytes;

use crate::error::Failure;
use crate::guard::{Cas, Counted, Hit};

/// The outcome of a command that writes.
#[derive(Debug, Clone)]
pub(crate) enum WriteOutcome {
    /// Stored with this CAS; [`Cas::NONE`] if the value has been dropped.
    Stored(Cas),
    /// Appended or prepended: the CAS, and the length of the value.
    Extended(Cas, usize),
    NotStored,
    Exists,
    NotFound,
    Deleted,
    Touched {
        /// The client's flags of the item.
        flags: u32,
        cas: Cas,
    },
    Counted(Counted),
    /// The tag has this version now.
    Bumped {
        version: u64,
        /// The command was a delete, whose reply has no number.
        delete: bool,
    },
    NotANumber,
    TooLarge,
    Failed(Failure),
    /// This line of the text protocol.
    Verbatim(Bytes),
}

/// The outcome of a read of one key.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Value(Hit, ItemMarks),
    /// The client won the right to rebuild the value. `old` may be served meanwhile. Classic clients receive a miss, and so
    /// does an `mg` whose flags do not show that the client understands `W`.
    Won {
        old: Option<Hit>,
        marks: ItemMarks,
    },
    /// A miss. The CAS is that of the stub if another client rebuilds the value.
    Miss(Option<u64>),
    Failed(Failure),
}

impl ReadOutcome {
    /// The length of the value in bytes; 0: there is none.
    pub(crate) fn length(&self) -> usize {
        if let ReadOutcome::Value(hit, _) = self { hit.payload.len() } else { 0 }
    }
}

/// What only meta replies say about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemMarks {
    pub(crate) cas: u64,
    /// `X`
    pub(crate) stale: bool,
    /// `Z`: another client rebuilds it.
    pub(crate) held: bool,
    /// `W`: this client rebuilds it.
    pub(crate) won: bool,
    /// The item is a stub without a value.
    pub(crate) stub: bool,
}

impl ItemMarks {
    /// The marks of a fresh value with this CAS.
    pub(crate) fn of(cas: u64) -> ItemMarks {
        ItemMarks { cas, stale: false, held: false, won: false, stub: false }
    }
}
