//! What a read may request and how it ends.

use crate::error::Failure;
use crate::guard::freshness::Hit;
use crate::guard::leases::MissToken;

/// What a reader that speaks meta commands wants besides the value (protocol.txt, "Meta Get").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadOptions {
    /// `R`: to refresh the value if it is fresh for less than so many seconds.
    pub recache: Option<u32>,
    /// `N`: to be told at once that somebody else builds the value, in place of waiting for it.
    pub at_once: bool,
    /// `h l`: how it has been used.
    pub usage: bool,
    /// `u`: that this does not count as a use.
    pub unseen: bool,
}

/// How a read ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEnd {
    /// Serve this as a hit.
    Fresh(Hit),
    /// Serve this as a hit; somebody else refreshes it early.
    Refreshing(Hit),
    /// Serve this; it is stale, and somebody is rebuilding it, or nobody can now.
    Stale(Hit),
    /// The client has the right to rebuild, and is told a miss, unless it can be told more than that.
    Won {
        /// What was seen at that moment, for the fill.
        lease: MissToken,
        /// The value was still fresh: this refreshes it early.
        early: bool,
        /// What stands there, if it may be served meanwhile.
        old: Option<Hit>,
    },
    /// The client is told a miss, without that right.
    Missed {
        /// What was seen, so that a `set` that follows cannot undo an invalidation.
        seen: MissToken,
        /// Somebody else is rebuilding it.
        held: bool,
    },
    /// The key's server did not answer.
    Failed(Failure),
}
