//! The state of a modifying command, and the conditions under which it may write.

use crate::guard::command::{Item, Operation, StoreMode};
use crate::guard::freshness::Hit;
use crate::guard::inputs::Inputs;
use crate::guard::leases::Observed;
use crate::guard::tag_version::{NEVER, Versions};
use crate::guard::tags::TagRead;

use super::change::{Change, Count, Counted, ModifyEnd};
use super::store::{initial_value, store_value};

/// A command that reads before it writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Modify {
    pub(super) change: Change,
    /// What the client's miss saw, if it received one.
    pub(super) observed: Option<Observed>,
    /// The read leaves a stub if the key is absent.
    pub(super) leaves_stub: bool,
    pub(super) state: State,
    /// The lock, possibly another sidecar's, if the command may fill a win.
    pub(super) lock: Option<Item>,
    /// Start time on the monotonic clock, in ms.
    pub(super) began: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum State {
    Reading,
    /// The item has tags that its rule does not name. They are read first.
    AddingTags {
        item: Option<Item>,
    },
    ReadingTags {
        item: Option<Item>,
        tag_read: Box<TagRead>,
    },
    /// `old_ttl`: the TTL of the old item when it was read, in seconds, if the new item must expire with it.
    Writing {
        counted: Counted,
        old_ttl: Option<u32>,
    },
    /// The item was written in a later second than it was read and would expire too late: its TTL is being
    /// restored. `old_ttl` is `None` if the item was another client's, which gets its own TTL back.
    RestoringExpiry {
        counted: Counted,
        old_ttl: Option<u32>,
    },
    Touching {
        old: Hit,
    },
    UndoingTouch,
}

impl Modify {
    /// Whether the command creates a missing item and its reply shows whether it did.
    pub fn creates_value(&self) -> bool {
        matches!(
            self.change,
            Change::Count(Count { create: Some(_), .. })
                | Change::Append { create: Some(_), .. }
                | Change::Prepend { create: Some(_), .. }
        )
    }

    /// Whether `current` is not the item that the command may be stored over.
    pub(super) fn violates_condition(
        &self,
        current: Option<&Item>,
        versions: &Versions,
        inputs: &Inputs<'_>,
    ) -> bool {
        let may_store = |observed: &Observed| {
            let follows = |item| {
                observed.is_current(versions, inputs) && observed.is_followed_by(item, versions, inputs)
            };
            let is_allowed = |item| {
                observed.is_same(item) || observed.may_replace(item, versions, inputs) || follows(item)
            };
            observed.fence == inputs.fence
                && observed.plan == inputs.policy.plan
                && current.is_some_and(is_allowed)
        };
        self.observed.as_ref().is_some_and(|observed| !may_store(observed))
    }

    pub(super) fn sees_stale(&self) -> bool {
        matches!(self.change, Change::Cas { sees_stale: true, .. })
    }

    /// Whether an absent item would be created. The read then leaves a stub to store over, for the same
    /// reason as in a [`Set`](crate::guard::Set). It leaves none for an item that expires at once or is too large
    /// with its header, or for a command that may be stored only over another item.
    pub(super) fn may_create(&self, inputs: &Inputs<'_>) -> bool {
        let created = match &self.change {
            Change::Add(new_value) => store_value(new_value, StoreMode::Add, None, |_| NEVER, inputs),
            Change::Count(Count { create: Some((expiry, initial)), explicit, .. })
                if self.observed.is_none() =>
            {
                store_value(
                    &initial_value(*expiry, *initial, *explicit),
                    StoreMode::Add,
                    None,
                    |_| NEVER,
                    inputs,
                )
            }
            change => match change.create() {
                Some(new_value) if self.observed.is_none() => {
                    store_value(new_value, StoreMode::Add, None, |_| NEVER, inputs)
                }
                _ => return false,
            },
        };
        // The length of a header does not depend on the versions.
        matches!(
            created.operation,
            Operation::Store { value, flags, exptime: 0.., .. } if !inputs.refuses(value.len(), flags)
        )
    }

    pub(super) fn done(&self, counted: Counted) -> ModifyEnd {
        match &self.change {
            Change::Count(_) => ModifyEnd::Counted(counted),
            Change::Touch(_) => ModifyEnd::Touched(Hit::nothing()),
            Change::Append { .. } | Change::Prepend { .. } => {
                let size = usize::try_from(counted.number).unwrap_or(usize::MAX);
                ModifyEnd::Extended { cas: counted.cas, size, created: counted.created }
            }
            _ => ModifyEnd::Stored(counted.cas),
        }
    }

    /// The lock of the winner that first received this CAS number. It is older than the number, because a win
    /// marks the value after it has taken the lock; a renewal makes it younger. The versions it records were
    /// read before any client received the number.
    pub(super) fn lock_before(&self, number: u64) -> Option<&Item> {
        self.lock.as_ref().filter(|lock| lock.cas.number < number)
    }
}
