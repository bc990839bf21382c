//! The inputs of a decision besides the replies of the servers.

use super::envelope::{TagName, TagNames};
use super::policy::Policy;

/// The time of a decision, as read by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Now {
    /// Wall clock in Unix milliseconds, for tag versions and envelopes. It may be adjusted backwards.
    pub wall: u64,
    /// Monotonic clock in milliseconds from an arbitrary origin, for waits and leases.
    pub mono: u64,
}

/// What a decision depends on, besides the replies.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// Policy of the key's rule.
    pub policy: &'a Policy,
    /// The names of the rule's tags for this key, followed by those that a state machine has added with
    /// `Step::AddTags`.
    pub tags: &'a [TagName],
    /// How many of `tags` were added.
    pub added_tags: usize,
    /// Identifies this sidecar: a random number drawn at its start.
    pub sidecar: u64,
    /// The largest value that the key's server has room for, in bytes, header included.
    pub max_value: usize,
    /// Whether two servers keep each tag.
    pub copies: bool,
    /// The fence of the place where the key is kept; 0 in a pool without failover. What was stored under another fence may have
    /// missed an invalidation.
    pub fence: u64,
    /// Another fence that counts there: that of the same place in the previous placement, after a change of the pool's servers; 0 if
    /// there is none.
    pub inherited: u64,
    /// The fences of the places of each of `tags`: where it is kept, and where its copy is. Empty in a pool without failover.
    pub tag_fences: &'a [[u64; 2]],
    /// The other fences that count for them, 0 where there is none.
    pub inherited_tag_fences: &'a [[u64; 2]],
    /// Time at which the machine runs: the guard reads no clock.
    pub now: Now,
    /// Whether this request may wait: nothing is pipelined behind it and its connection holds no lease.
    pub may_wait: bool,
    /// A random number, uniform in (0, 1].
    pub random_unit: f64,
}

impl Inputs<'_> {
    /// The tags that the rule names.
    pub(super) fn rule_tags(&self) -> &[TagName] {
        &self.tags[..self.tags.len().saturating_sub(self.added_tags)]
    }

    /// Whether what was stored under this fence counts.
    pub(super) fn counts(&self, fence: u64) -> bool {
        fence == self.fence || fence == self.inherited && fence != 0
    }

    /// The fence of the place of a tag, or of its copy.
    pub(super) fn tag_fence(&self, tag: u8, copy: bool) -> u64 {
        self.tag_fences.get(usize::from(tag)).map_or(0, |fences| fences[usize::from(copy)])
    }

    /// The names that are not among `tags`.
    pub(super) fn unknown_of<'n>(&self, names: impl IntoIterator<Item = &'n [u8]>) -> TagNames {
        let mut unknown = TagNames::new();
        for name in names {
            let known = |tags: &[TagName]| tags.iter().any(|tag| &tag[..] == name);
            if !known(self.tags) && !known(&unknown) {
                unknown.push(TagName::from_slice(name));
            }
        }
        unknown
    }

    /// Whether the key's server refuses a value of this length in bytes, header included, with these client flags. Such a
    /// value is not sent: when memcached refuses an `ms` it also drops the old item, and of its classic
    /// commands only `set` may do that.
    pub(super) fn refuses(&self, length: usize, flags: u32) -> bool {
        let overhead = ITEM_OVERHEAD + if flags == 0 { 0 } else { size_of_val(&flags) };
        length > self.max_value.saturating_add(SPARE - overhead)
    }
}

/// What [`Inputs::max_value`] leaves of `item_size_max` for memcached's own use, besides the key, in bytes.
const SPARE: usize = 512;
/// What memcached 1.6 adds to an item besides its key and flags, in bytes: the structure (48), its CAS (8), the end of the key (1)
/// and of the value (2). It refuses items whose sum is above `item_size_max`.
const ITEM_OVERHEAD: usize = 59;
