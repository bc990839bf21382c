//! Versions of tags.
//!
//! The item of a tag holds, as ASCII decimal, the wall-clock millisecond at which the tag last changed, and in its flags
//! the number of the tag's *incarnation*, which is drawn when the tag is created. Together they are the version. Versions
//! compare by equality: a tag that was lost is created with another incarnation number, so its versions differ from all
//! earlier ones even if a clock that is behind repeats a millisecond.

use smallvec::SmallVec;

use super::command::Item;
use super::envelope::TagName;
use super::inputs::Inputs;

/// The versions of a rule's tags, in the rule's order.
pub type Versions = SmallVec<[u64; 4]>;

/// A version that no tag ever has: what is sealed with it is stale from the start.
pub(super) const NEVER: u64 = 0;

/// The bits of a version that are the millisecond; they last until the year 2527. Above them is the number of the life.
pub(super) const MS_BITS: u32 = 44;

/// How far apart the clocks of two sidecars are trusted to be at most, in ms: a tag that moved so shortly before a miss may have
/// moved after it.
const CLOCK_SKEW_MS: u64 = 10_000;

/// A version: this millisecond of this life.
pub fn version(ms: u64, incarnation: u32) -> u64 {
    ms.min((1 << MS_BITS) - 1) | u64::from(incarnation) << MS_BITS
}

/// The version that an item of a tag says; `None` if it says none.
pub fn version_of(item: &Item) -> Option<u64> {
    parse_version(&item.value).map(|ms| version(ms, item.flags))
}

/// A tag's millisecond as stored; `None` if it is not a number.
pub fn parse_version(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim_end().parse().ok()
}

/// The millisecond of a version: when the tag last moved.
pub fn version_millis(version: u64) -> u64 {
    version & ((1 << MS_BITS) - 1)
}

/// The number of the life.
pub fn incarnation_of(version: u64) -> u32 {
    (version >> MS_BITS) as u32
}

/// Whether a tag may have moved at this moment of the wall clock or after it.
pub(super) fn may_have_moved(version: u64, since: u64) -> bool {
    version_millis(version) + CLOCK_SKEW_MS >= since
}

/// Which of a scene's tags has which version.
pub(super) fn known_version(name: &TagName, versions: &Versions, inputs: &Inputs<'_>) -> Option<u64> {
    inputs.tags.iter().zip(versions).find(|(tag, _)| *tag == name).map(|(_, version)| *version)
}

/// A tag is created at this moment. Of two copies, created by two, the larger counts: their incarnations must compare as the moments do.
pub(super) fn created_version(inputs: &Inputs<'_>) -> u64 {
    let incarnations = f64::from(1 << (u64::BITS - MS_BITS));
    let incarnation = if inputs.copies { 0 } else { (inputs.chance * incarnations) as u32 };
    version(inputs.now.wall, incarnation)
}
