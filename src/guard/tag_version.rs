//! Versions of tags.
//!
//! The item of a tag holds, as ASCII decimal, the wall-clock millisecond at which the tag last changed, followed in a pool with
//! failover by a space and the fence of the place where it is kept, and in its flags
//! the number of the tag's *incarnation*, which is drawn when the tag is created. Together they are the version. Versions
//! compare by equality: a tag that was lost is created with another incarnation number, so its versions differ from all
//! earlier ones even if a clock that is behind repeats a millisecond.

use bytes::Bytes;
use smallvec::SmallVec;

use super::command::{Item, ItemRef};
use super::envelope::TagName;
use super::inputs::Inputs;

/// Versions of a key's tags, in the order of [`Inputs::tags`].
pub type Versions = SmallVec<[u64; 4]>;

/// A version that no tag ever has. A value sealed with it is stale from the start.
pub(super) const NEVER: u64 = 0;

/// How many bits of a version are the millisecond; sufficient until the year 2527. The incarnation is above
/// them.
pub(super) const MS_BITS: u32 = 44;

/// The largest difference assumed between the clocks of two sidecars, in milliseconds. A tag that changed by
/// less than this before a miss may have changed after it.
pub(super) const CLOCK_SKEW_MS: u64 = 10_000;

/// The version of this incarnation at this millisecond.
pub fn version(ms: u64, incarnation: u32) -> u64 {
    ms.min((1 << MS_BITS) - 1) | u64::from(incarnation) << MS_BITS
}

/// The version in the item of a tag; `None` if it has none, or was stored under another fence: then it may have missed a bump.
pub fn version_of(item: &Item, fence: u64) -> Option<u64> {
    let (ms, stored_under) = parse_tag(&item.value)?;
    (stored_under == fence).then(|| version(ms, item.flags))
}

impl Inputs<'_> {
    /// The version in this item, which was read as `item`. `None` if it has none that counts.
    pub fn version_in(&self, found: &Item, item: ItemRef) -> Option<u64> {
        match item {
            ItemRef::Tag(tag) => self.version_of(found, tag, false),
            ItemRef::TagCopy(tag) => self.version_of(found, tag, true),
            ItemRef::Value | ItemRef::Lock => None,
        }
    }

    /// The version in the item of a tag, or of its copy, if it was stored under a fence that counts.
    pub(super) fn version_of(&self, item: &Item, tag: u8, copy: bool) -> Option<u64> {
        let other =
            self.inherited_tag_fences.get(usize::from(tag)).map_or(0, |fences| fences[usize::from(copy)]);
        let version = version_of(item, self.tag_fence(tag, copy));
        version.or_else(|| version_of(item, other).filter(|_| other != 0))
    }
}

/// The millisecond stored under a tag; `None` if it is not a number.
pub fn parse_version(value: &[u8]) -> Option<u64> {
    parse_tag(value).map(|(ms, _)| ms)
}

/// The millisecond and the fence stored under a tag. Without a fence that is 0.
fn parse_tag(value: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(value).ok()?.trim_end();
    match text.split_once(' ') {
        Some((ms, fence)) => Some((ms.parse().ok()?, fence.parse().ok()?)),
        None => Some((text.parse().ok()?, 0)),
    }
}

/// The value of a tag's item: [`version_of`] reads it.
pub fn tag_value(version: u64, fence: u64) -> Bytes {
    let ms = version_millis(version);
    Bytes::from(if fence == 0 { ms.to_string() } else { format!("{ms} {fence}") })
}

/// The millisecond of a version: when the tag last changed.
pub fn version_millis(version: u64) -> u64 {
    version & ((1 << MS_BITS) - 1)
}

/// The incarnation number of a version.
pub fn incarnation_of(version: u64) -> u32 {
    (version >> MS_BITS) as u32
}

/// Whether the tag may have changed at this time of the wall clock or later.
pub(super) fn may_have_moved(version: u64, since: u64) -> bool {
    version_millis(version) + CLOCK_SKEW_MS >= since
}

/// The version of one of the [`Inputs::tags`].
pub(super) fn known_version(name: &TagName, versions: &Versions, inputs: &Inputs<'_>) -> Option<u64> {
    inputs.tags.iter().zip(versions).find(|(tag, _)| *tag == name).map(|(_, version)| *version)
}

/// The version of a tag that is created now. With two copies, which two sidecars may create at the same time,
/// the larger version counts and must be the later one; the incarnation is therefore 0.
pub(super) fn created_version(inputs: &Inputs<'_>) -> u64 {
    let incarnations = f64::from(1 << (u64::BITS - MS_BITS));
    let incarnation = if inputs.copies { 0 } else { (inputs.random_unit * incarnations) as u32 };
    version(inputs.now.wall, incarnation)
}
