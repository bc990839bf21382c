//! What the pipeline knows of a key: its class, and for a guarded key its server, tags and guard.

use smallvec::SmallVec;

use crate::guard::{TagName, TagNames};

/// How a key is handled.
pub(crate) enum KeyClass {
    /// Forwarded unchanged to this pool. `rule` is its index in the metrics.
    Raw { pool: usize, rule: usize },
    /// Handled by the guard.
    Guarded(GuardedKey),
    /// The key of the tag with this name.
    Tag(TagName),
}

/// A guarded key with what its rule defines for it.
#[derive(Debug, Clone)]
pub(crate) struct GuardedKey {
    /// Index of the key's guard in the plan.
    pub(crate) guard: usize,
    /// Index of the key's server in its pool.
    pub(crate) server: usize,
    /// The key.
    pub(crate) key: SmallVec<[u8; 32]>,
    /// The names of its tags: those of the rule, then those that came with a value.
    pub(crate) tags: SmallVec<[TagName; 2]>,
    /// How many of `tags` came with a value.
    pub(crate) explicit_tags: usize,
}

impl GuardedKey {
    /// The tags that came with a value.
    pub(crate) fn explicit_tags(&self) -> TagNames {
        self.tags[self.tags.len() - self.explicit_tags..].to_vec()
    }

    /// The same key with further tags that its rule does not name.
    pub(crate) fn with_tags(&self, tags: TagNames) -> GuardedKey {
        let mut key = self.clone();
        key.explicit_tags += tags.len();
        key.tags.extend(tags);
        key
    }
}
