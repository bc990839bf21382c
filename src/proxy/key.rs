//! What the pipeline knows of a key: its class, and for a guarded key its server, tags and guard.

use smallvec::SmallVec;

use super::place::{Place, TagPlaces};
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
    /// Where the key is kept.
    pub(crate) place: Place,
    /// The key.
    pub(crate) key: SmallVec<[u8; 32]>,
    /// The names of its tags: those of the rule, then those that came with a value.
    pub(crate) tags: SmallVec<[TagName; 2]>,
    /// How many of `tags` came with a value.
    pub(crate) explicit_tags: usize,
    /// Where the tags are kept; `None` if their pool does not fail over.
    pub(crate) tag_places: Option<Box<TagPlaces>>,
}

impl GuardedKey {
    /// The tags that came with a value.
    pub(crate) fn explicit_tags(&self) -> TagNames {
        self.tags[self.tags.len() - self.explicit_tags..].to_vec()
    }

    /// Whether it was known when the operation began where the key is kept.
    pub(crate) fn has_view(&self) -> bool {
        self.place.fence.is_some()
    }

    /// Stands for the fences of the key and its tags.
    pub(crate) fn fences(&self) -> u64 {
        let tags = self.tag_places.iter().flat_map(|tags| tags.fences.as_flattened());
        fold(std::iter::once(self.place.fence()).chain(tags.copied()))
    }

    /// Stands for the fences of its n-th tag.
    pub(crate) fn fences_of_tag(&self, tag: usize) -> u64 {
        self.tag_places.as_ref().map_or(0, |tags| fold(tags.fences[tag].into_iter()))
    }
}

/// A number for these fences, 0 if all of them are. Fences are never used again, so other ones have another number, except for one
/// case in 2^64.
pub(crate) fn fold(fences: impl Iterator<Item = u64>) -> u64 {
    fences.fold(0, |sum, fence| (sum.rotate_left(23) ^ fence).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
