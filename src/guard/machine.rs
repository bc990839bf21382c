//! The interface of the state machines.

use std::time::Duration;

use crate::error::Failure;

use super::command::{Commands, Replies};
use super::envelope::TagNames;
use super::inputs::Inputs;

/// A client operation on one guarded key, as a state machine.
pub trait Machine {
    /// The result of the operation.
    type End;

    /// Whether the operation may change the item of its key or of its tag.
    const CHANGES: bool = true;

    /// Whether the tag no longer has any version that was read earlier: this operation bumped it, or found it
    /// bumped.
    fn bumped(_end: &Self::End) -> bool {
        false
    }

    /// The end of an operation that may have taken effect in a place where it no longer counts, and must not be acknowledged.
    /// `None` if its end promises nothing that a change of the place could break.
    fn failed(_failure: Failure) -> Option<Self::End> {
        None
    }

    /// Continues with the replies to the last commands, or after a wait.
    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<Self::End>;
}

/// What a state machine requests next.
#[allow(clippy::large_enum_variant, reason = "returned in every round: boxing would allocate each time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<End> {
    /// Send these commands in one round trip.
    Send(Commands),
    /// Add these tags, which the item has besides those of its rule, to [`Inputs::tags`], behind the others.
    /// The state machine continues with [`Event::TagsAdded`].
    AddTags(TagNames),
    /// Wake the state machine when the key may have changed.
    Wait(Wait),
    /// The operation has ended.
    Done(End),
}

/// How long a state machine waits at most. Both are times of the monotonic clock, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wait {
    /// When the wait must end.
    pub until: u64,
    /// From when the state machine may be let through, to build the value although another client builds it.
    /// `None`: there is an old value to serve.
    pub let_through_at: Option<u64>,
}

impl Wait {
    /// How long to wait until the first of the two times.
    pub fn pause(&self, now: u64) -> Duration {
        let first = self.let_through_at.map_or(self.until, |at| at.min(self.until));
        Duration::from_millis(first.saturating_sub(now))
    }
}

/// With what a state machine continues.
#[allow(clippy::large_enum_variant, reason = "passed in every round: boxing would allocate each time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The replies to its commands.
    Replies(Replies),
    /// [`Inputs::tags`] has the requested tags.
    TagsAdded,
    /// The key may have changed.
    Woken,
    /// Of all that wait for the key, this state machine may build the value too, if no other sidecar's does.
    LetThrough,
    /// The wait must end: its time is over, or another request is queued behind it.
    WaitEnded,
}

impl Event {
    /// The replies, for state machines that never wait.
    pub(super) fn replies(self) -> Replies {
        match self {
            Event::Replies(replies) => replies,
            Event::TagsAdded | Event::Woken | Event::LetThrough | Event::WaitEnded => Replies::new(),
        }
    }
}
