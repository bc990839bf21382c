//! The interface of the state machines.

use super::command::{Commands, Replies};
use super::envelope::TagNames;
use super::inputs::Inputs;

/// A client operation on one guarded key, step by step.
pub trait Machine {
    /// How it ends.
    type End;

    /// Whether it may change what its key holds, or its tag.
    const CHANGES: bool = true;

    /// Whether its tag has left every version that was read before: made to grow by it, or found grown by somebody else.
    fn bumped(_end: &Self::End) -> bool {
        false
    }

    /// Goes on: with the answers to what it asked last, or after a wait.
    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<Self::End>;
}

/// What a machine wants next.
#[allow(clippy::large_enum_variant, reason = "asked on every round: boxing would allocate each time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<End> {
    /// One round trip.
    Send(Commands),
    /// These are tags of the item too, though not of its rule: from now on they stand behind the others in [`Inputs::tags`]. Goes
    /// on with [`Event::TagsAdded`].
    AddTags(TagNames),
    /// To be woken when the key may have changed, at the latest at this moment of the monotonic clock.
    Wait(u64),
    /// Nothing any more.
    Done(End),
}

/// What a waiting or asking machine is told.
#[allow(clippy::large_enum_variant, reason = "answered on every round: boxing would allocate each time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The answers to what it asked.
    Replies(Replies),
    /// The scene has the tags now.
    TagsAdded,
    /// The key may have changed.
    Woken,
    /// The wait must end: its time is over, or somebody would wait behind it.
    WaitEnded,
}

impl Event {
    /// The answers, for machines that never wait.
    pub(super) fn replies(self) -> Replies {
        match self {
            Event::Replies(replies) => replies,
            Event::TagsAdded | Event::Woken | Event::WaitEnded => Replies::new(),
        }
    }
}
