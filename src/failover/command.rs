//! What a process sends to the servers that keep the copies of a record, and what they reply.

/// The CAS number of an item, and the epoch of the connection that read it. A server that restarts counts from one again, so a
/// command with a CAS is sent only over a connection of its epoch or an earlier one; otherwise its reply is
/// [`Reply::Conflict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cas {
    /// As returned by the server.
    pub number: u64,
    /// How many connections to that server had been made.
    pub epoch: u32,
}

/// Which item of a server's place a command addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Item {
    /// Where the server's keys are.
    Record,
    /// A process has no answer from the server.
    Suspicion,
    /// Another process has one.
    Alive,
}

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads the item. If it is absent, leaves a stub with this TTL in seconds, so that a later store can name its CAS.
    ReadOrStub(u32),
    /// Reads the item.
    Read,
    /// Stores a value over exactly the item with this CAS. It never expires.
    Replace(Vec<u8>, Cas),
    /// Stores a value with this TTL in seconds, whatever is there.
    Set(Vec<u8>, u32),
}

/// A command to one of the three servers that keep a copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Command {
    /// 0: the server itself; 1 and 2: its witnesses.
    pub copy: usize,
    /// Which of the items there.
    pub item: Item,
    /// What to do with it.
    pub operation: Operation,
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The item; empty if this read left the stub, or an earlier one did.
    Found(Vec<u8>, Cas),
    /// The item is not there.
    Absent,
    /// The write was carried out.
    Stored,
    /// The item has another CAS, or is gone.
    Conflict,
    /// No usable reply. It is unknown whether the command was carried out, or will be.
    Failed {
        /// The server refused the connection: nothing listens there.
        refused: bool,
    },
}
