//! A command that writes a guarded key or a tag, in flight.

use tokio::sync::oneshot;

use super::fill::{PendingFill, StoreKind};
use crate::guard::leases::Observed;
use crate::guard::{Change, Delete, Fill, Modify, NewValue, Removal, Set};
use crate::metrics::{Outcome, WaitEnd};
use crate::proxy::guarded::driver::Driver;
use crate::proxy::guarded::elsewhere::{DeleteElsewhere, TagBump};
use crate::proxy::key::GuardedKey;
use crate::proxy::replies::dialect::Dialect;
use crate::proxy::replies::outcome::WriteOutcome;

/// A command in flight.
pub(crate) struct GuardedWrite {
    pub(super) key: GuardedKey,
    pub(super) dialect: Dialect,
    pub(super) state: State,
    /// The length of the value that it stores, in bytes.
    pub(super) bytes: usize,
    /// The previous placement has been invalidated.
    pub(super) invalidated: bool,
}

/// What the command is doing.
pub(super) enum State {
    /// Waiting for the renewal of its lease, which is in flight.
    Renewal {
        woken: oneshot::Receiver<WaitEnd>,
        then: AfterRenewal,
    },
    Fill {
        driver: Driver<Fill>,
        fill: PendingFill,
    },
    Set(Driver<Set>),
    Modify(Driver<Modify>),
    Delete {
        driver: Driver<Delete>,
        /// The reply in place of the delete's own. `None`: the outcome has been counted already.
        instead: Option<(WriteOutcome, Option<Outcome>)>,
    },
    Bump {
        bump: TagBump,
        /// Whether the command is a delete, whose reply has no number.
        delete: bool,
    },
    /// The previous placement is being invalidated, before this is done.
    Before(Box<(DeleteElsewhere, Option<LocalChange>)>),
    /// The other placement is being invalidated, before this reply.
    Behind {
        delete: Box<DeleteElsewhere>,
        reply: WriteOutcome,
        outcome: Outcome,
        /// The outcome has been counted.
        counted: bool,
    },
    /// The outcome is known.
    Reply(WriteOutcome, Outcome),
}

/// What is done with the item where the key is read.
pub(super) enum LocalChange {
    Set(NewValue),
    Modify(Change, Option<Observed>),
    Delete(Removal, Option<(WriteOutcome, Option<Outcome>)>),
}

/// What begins when the renewal has ended.
#[derive(Debug, Clone)]
pub(super) enum AfterRenewal {
    Store(StoreKind, NewValue),
    Modify(Change),
    Remove(Removal),
}
