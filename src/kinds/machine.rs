//! What a kind's state machine takes and gives.

use bytes::Bytes;

use super::command::{Command, Commands, Replies};
use super::hold::Hold;
use super::item::ItemKey;
use crate::error::Failure;

/// What a decision depends on, besides replies.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// Wall time in ms since 1970.
    pub now: u64,
    /// Drawn for this decision alone: tokens of locks and lives of records are made of it.
    pub random: u64,
}

/// A client's command on a key with a kind, while it is carried out. It begins with the replies to no commands.
pub trait Machine: std::fmt::Debug {
    /// The replies to the commands that it returned last. All of them have arrived.
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step;

    /// Once it is done: the items of which the first copy may have been left with a change that the second one lacks.
    fn unfinished(&self) -> Vec<ItemKey> {
        Vec::new()
    }
}

impl Machine for Box<dyn Machine> {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        (**self).resume(replies, inputs)
    }

    fn unfinished(&self) -> Vec<ItemKey> {
        (**self).unfinished()
    }
}

/// Whether the commands of a round trip are carried out in the order in which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// They are: by one server, which numbers its items in one sequence too.
    Kept,
    /// Only those on the same item are.
    NotKept,
}

/// What a machine wants next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// These commands are sent in one round trip.
    Send(Commands),
    /// These commands are sent in one round trip, each to the server of one copy.
    SendCopies(Vec<(Side, Command)>),
    /// The command is done.
    Done(Outcome),
}

/// One of two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that orders all changes.
    First,
    /// The one that follows it.
    Second,
}

/// How a client's command ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The reply to a read.
    Value {
        /// Value for the client.
        data: Bytes,
        /// The flags of the client that stored it, 0 if several have.
        flags: u32,
        /// The item's CAS, 0 if it is made of several.
        cas: u64,
        /// The seconds that it still lives; `None`: for ever, or not known.
        ttl: Option<u32>,
    },
    /// The client receives a miss.
    Miss,
    /// Stored: the client has this lock from now on.
    Locked(Box<Hold>),
    /// Stored with this CAS, 0 if it is made of several items.
    Stored(u64),
    /// Not stored, because there is such an item.
    NotStored,
    /// Not stored, because the item has another CAS.
    Exists,
    /// The item ends at another time. Its flags and CAS.
    Touched(u32, u64),
    /// The client receives `DELETED`.
    Deleted,
    /// There was nothing to delete.
    NotFound,
    /// The number after the change, the item's CAS, and the seconds that it still lives.
    Counted(u64, u64, Option<u32>),
    /// The item is no number.
    NotANumber,
    /// The client's error, as a line with its CRLF.
    Refused(&'static str),
    /// The value is larger than the server accepts.
    TooLarge,
    /// The server gave no usable reply. Whether the command was carried out is unknown.
    Failed(Failure),
}
