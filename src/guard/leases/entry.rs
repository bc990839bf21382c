//! A miss token in the table: its owner, and whether it is a lease.

use crate::guard::command::Commands;

use super::miss_token::MissToken;

/// A client's connection, for as long as the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Its number.
    pub connection: u64,
    /// Which connections may belong to one client with a pool: those with the same number.
    pub peers: u64,
}

impl From<u64> for Owner {
    fn from(connection: u64) -> Self {
        Owner { connection, peers: 0 }
    }
}

/// One ticket, for as long as the process lives.
pub type MissTokenId = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EntryKind {
    /// The right to rebuild. `renewing`: a renewal is on its way. `orphan`: its client left meanwhile.
    Lease { renewing: bool, orphan: bool },
    /// A miss without that right.
    Miss,
    /// Whoever builds it builds in vain, for it was invalidated through this sidecar: the `set` is dropped. `by`: whose delete that was.
    Invalidated { by: Owner },
    /// A miss whose `set` came on another connection, or so it seemed: its own client may come yet, and must not pass for
    /// one that was told no miss. `doomed`: that `set` is dropped.
    Taken { invalidated: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) id: MissTokenId,
    pub(super) owner: Owner,
    pub(super) kind: EntryKind,
    pub(super) token: MissToken,
    /// The CAS number that the client may have been shown with its miss; renewals move the ticket's.
    pub(super) shown_cas: Option<u64>,
    /// The renewal on its way puts a stub in the stale value's place.
    pub(super) clearing: bool,
    /// How long its rule lets a rebuild take, in ms.
    pub(super) max_rebuild: u64,
    /// A `set` of another connection that could be its fill has been counted.
    pub(super) paired: bool,
}

impl Entry {
    pub(super) fn is_lease(&self) -> bool {
        matches!(self.kind, EntryKind::Lease { .. })
    }

    pub(super) fn release(&self) -> Commands {
        self.token.release_within(self.max_rebuild)
    }

    /// When (monotonic ms) it is too late to be filled.
    pub(super) fn ends(&self) -> u64 {
        self.token.at.mono.saturating_add(self.max_rebuild)
    }
}
