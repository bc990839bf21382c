//! A miss token in the table: its owner, and whether it is a lease.

use crate::guard::command::Commands;

use super::miss_token::MissToken;

/// A client's connection. Unique in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Number of the connection.
    pub connection: u64,
    /// Connections with the same number may belong to one client with a connection pool.
    pub peers: u64,
}

impl From<u64> for Owner {
    fn from(connection: u64) -> Self {
        Owner { connection, peers: 0 }
    }
}

/// Identifies a miss token. Unique in the process, ascending.
pub type MissTokenId = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EntryKind {
    /// The right to rebuild. `renewing`: a renewal is in progress. `orphan`: the connection was closed during
    /// it.
    Lease { renewing: bool, orphan: bool },
    /// A miss without that right.
    Miss,
    /// The key was invalidated through this sidecar by the connection `by`: the `set` is dropped.
    Invalidated { by: Owner },
    /// A `set` of another connection was attributed to this miss. The owner's own `set` may follow and must
    /// not count as one without a miss. `invalidated`: that `set` is dropped.
    Taken { invalidated: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) id: MissTokenId,
    pub(super) owner: Owner,
    pub(super) kind: EntryKind,
    pub(super) token: MissToken,
    /// The CAS number that the client may have received with its miss. A renewal changes only the token's.
    pub(super) shown_cas: Option<u64>,
    /// The client has not been told of its win yet.
    pub(super) withheld: bool,
    /// The renewal in progress replaces the stale value by a stub.
    pub(super) clearing: bool,
    /// The rule's limit for a rebuild, in milliseconds.
    pub(super) max_rebuild: u64,
    /// A `set` of another connection that could fill this miss has been counted.
    pub(super) paired: bool,
    /// The connection has read the key again, or bumped a tag, since the miss: `token` has later versions. A value that another
    /// connection built after the same miss may be older.
    pub(super) raised: bool,
}

impl Entry {
    pub(super) fn is_lease(&self) -> bool {
        matches!(self.kind, EntryKind::Lease { .. })
    }

    pub(super) fn release(&self) -> Commands {
        self.token.release_within(self.max_rebuild)
    }

    /// When it is too late for a fill, on the monotonic clock in ms.
    pub(super) fn ends(&self) -> u64 {
        self.token.at.mono.saturating_add(self.max_rebuild)
    }
}
