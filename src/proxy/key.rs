//! What the pipeline knows of a key: its class, and for a guarded key its server, tags and guard.

use smallvec::SmallVec;

use crate::guard::{TagName, TagNames};

/// Where an item is kept, by the view of its server at the time at which the operation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the server that has the item.
    pub(crate) server: usize,
    /// Index of the server whose place this is: where the ring puts the key.
    pub(crate) home: usize,
    /// The fence; 0 in a pool without failover. `None`: there was no valid view.
    pub(crate) fence: Option<u64>,
    /// Another fence that counts there: see [`View::inherited`](crate::failover::View::inherited).
    pub(crate) inherited: u64,
}

/// Where the tags of a key are kept, in their order: each tag, and its copy.
#[derive(Debug, Clone, Default)]
pub(crate) struct TagPlaces {
    pub(crate) places: SmallVec<[[Place; 2]; 1]>,
    /// Their fences, 0 without a valid view.
    pub(crate) fences: SmallVec<[[u64; 2]; 1]>,
    /// The other fences that count there, 0 where there is none.
    pub(crate) inherited: SmallVec<[[u64; 2]; 1]>,
}

impl TagPlaces {
    /// The n-th tag is kept in these places.
    pub(crate) fn push(&mut self, places: [Place; 2]) {
        self.places.push(places);
        self.fences.push(places.map(|place| place.fence()));
        self.inherited.push(places.map(|place| place.inherited));
    }

    fn fold(&self, tag: usize) -> u64 {
        fold(self.fences[tag].into_iter().chain(self.inherited[tag]))
    }
}

impl Place {
    /// In a pool that does not fail over.
    pub(crate) fn fixed(server: usize) -> Place {
        Place { server, home: server, fence: Some(0), inherited: 0 }
    }

    /// The fence, 0 without a valid view: then no command is sent.
    pub(crate) fn fence(&self) -> u64 {
        self.fence.unwrap_or(0)
    }

    /// Whether what was stored there under this fence counts.
    pub(crate) fn counts(&self, fence: u64) -> bool {
        self.fence == Some(fence) || fence == self.inherited && fence != 0
    }

    /// Whether the item is on a standby server.
    pub(crate) fn is_standby(&self) -> bool {
        self.server != self.home
    }
}

/// How a key is handled.
pub(crate) enum KeyClass {
    /// Forwarded unchanged to this pool. `rule` is its index in the metrics.
    Raw { pool: usize, rule: usize },
    /// Handled by the guard.
    Guarded(GuardedKey),
    /// The key of the tag with this name.
    Tag(TagName),
    /// The key of a structure, or of a part of one.
    Structure(StructureKey),
    /// A key that no client may use, and the error for it.
    Reserved(&'static str),
}

/// What a client sent as the key of a structure.
#[derive(Debug, Clone)]
pub(crate) struct StructureKey {
    /// Index of its rule's structure in the plan.
    pub(crate) structure: usize,
    /// Index of the server that has all items of the structure.
    pub(crate) server: usize,
    pub(crate) key: SmallVec<[u8; 32]>,
    /// The length of the structure's own key. What follows it names a part.
    pub(crate) length: usize,
}

impl StructureKey {
    /// The structure's own key.
    pub(crate) fn own_key(&self) -> &[u8] {
        &self.key[..self.length]
    }
}

/// A guarded key with what its rule defines for it.
#[derive(Debug, Clone)]
pub(crate) struct GuardedKey {
    /// Index of the key's guard in the plan.
    pub(crate) guard: usize,
    /// Where the key is kept.
    pub(crate) place: Place,
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
        let tags = self.tag_places.iter().flat_map(|tags| [&tags.fences, &tags.inherited]);
        let tags = tags.flat_map(|fences| fences.as_flattened());
        fold([self.place.fence(), self.place.inherited].into_iter().chain(tags.copied()))
    }

    /// Stands for the fences of its n-th tag.
    pub(crate) fn fences_of_tag(&self, tag: usize) -> u64 {
        self.tag_places.as_ref().map_or(0, |tags| tags.fold(tag))
    }
}

/// A number for these fences, 0 if all of them are. Fences are never used again, so other ones have another number, except for one
/// case in 2^64.
pub(crate) fn fold(fences: impl Iterator<Item = u64>) -> u64 {
    fences.fold(0, |sum, fence| (sum.rotate_left(23) ^ fence).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
