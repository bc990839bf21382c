//! What a read may request and how it ends.

use crate::error::Failure;
use crate::guard::freshness::Hit;
use crate::guard::inputs::Inputs;
use crate::guard::leases::{MissToken, Unread};
use crate::guard::tag_version::Versions;

/// What a meta client requests besides the value (protocol.txt, "Meta Get").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadOptions {
    /// `R`: refresh the value if it is fresh for less than this many seconds.
    pub recache: Option<u32>,
    /// `N`: return a miss at once if another client builds the value, instead of waiting.
    pub at_once: bool,
    /// `h l`: return how it has been used.
    pub usage: bool,
    /// `u`: do not count as an access.
    pub unseen: bool,
    /// When the request began, if earlier than this read, on the monotonic clock in ms: its waits are limited from there.
    pub began: Option<u64>,
}

/// How a read ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEnd {
    /// Serve this as a hit.
    Fresh(Hit),
    /// Serve this as a hit. Another client refreshes it early.
    Refreshing(Hit),
    /// Serve this stale value. Another client rebuilds it, or it cannot be rebuilt now.
    Stale(Hit),
    /// The client receives a miss and the right to rebuild. A meta client may receive the old value as well.
    Won {
        /// What was seen, for the fill.
        lease: MissToken,
        /// The value was still fresh: this is an early refresh.
        early: bool,
        /// The old value, if it may be served meanwhile.
        old: Option<Hit>,
    },
    /// The client receives a miss without that right.
    Missed {
        /// What was seen, so that a later `set` cannot undo an invalidation.
        seen: MissToken,
        /// Another client is rebuilding the value.
        held: bool,
    },
    /// The key's server did not reply.
    Failed(Failure),
}

impl ReadEnd {
    /// A miss for which nothing may be stored, and why.
    pub(super) fn unread(why: Unread, inputs: &Inputs<'_>) -> ReadEnd {
        let seen = MissToken { unread: Some(why), ..MissToken::new(None, Versions::new(), inputs) };
        ReadEnd::Missed { seen, held: false }
    }
}
