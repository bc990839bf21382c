//! Versions of tags.
//!
//! The item of a tag holds, as ASCII decimal, the wall-clock millisecond at which the tag last changed, followed in a pool with
//! failover by a space and the fence of the place where it is kept, and in its flags
//! the number of the tag's *incarnation*, which is drawn when the tag is created. Together they are the version. Versions
//! compare by equality: a tag that was lost is created with another incarnation number, so its versions differ from all
//! earlier ones even if a clock that is behind repeats a millisecond.
//!
//! Whoever writes to the server directly can store anything there. An item that holds no version, or one that is too far in the
//! future for any bump to be later, counts as lost.

use bytes::Bytes;
use smallvec::SmallVec;

use super::command::{Item, ItemRef};
use super::envelope::TagName;
use super::inputs::{Inputs, Now};
use crate::protocol::decimal::read_decimal;

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

/// The last millisecond that a version can have.
const LAST_MS: u64 = (1 << MS_BITS) - 1;
/// The last incarnation number.
const LAST_INCARNATION: u32 = (1 << (u64::BITS - MS_BITS)) - 1;

/// A time that is further ahead of the wall clock than this, in milliseconds, was not written by a sidecar: a tag with such a
/// version is lost, and a lock that was granted then holds nobody.
pub(super) const FUTURE_MS: u64 = 24 * 60 * 60 * 1000;

/// The version of this incarnation at this millisecond.
pub fn version(ms: u64, incarnation: u32) -> u64 {
    ms.min(LAST_MS) | u64::from(incarnation & LAST_INCARNATION) << MS_BITS
}

/// Why an item under the key of a tag, which is no stub, is not its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagFault {
    /// It has another form.
    Malformed,
    /// Its time is more than a day ahead of the wall clock.
    Future,
}

/// Reads the item of a tag with this value and these flags: its version, and the fence that it was stored under, 0 if there is none.
pub fn read_tag(value: &[u8], flags: u32, now: Now) -> Result<(u64, u64), TagFault> {
    let parsed = || {
        let (ms, fence) = match value.iter().position(|byte| *byte == b' ') {
            // An item without a fence does not have the number 0 either.
            Some(space) => (&value[..space], read_decimal(&value[space + 1..]).filter(|fence| *fence != 0)?),
            None => (value, 0),
        };
        // 0 would be `NEVER`.
        let fits = |ms: u64| ms > 0 && ms <= LAST_MS && flags <= LAST_INCARNATION;
        Some((read_decimal(ms)?, fence)).filter(|(ms, _)| fits(*ms))
    };
    let (ms, fence) = parsed().ok_or(TagFault::Malformed)?;
    match ms > now.wall.saturating_add(FUTURE_MS) {
        true => Err(TagFault::Future),
        false => Ok((version(ms, flags), fence)),
    }
}

/// The version in the item of a tag; `None` if it has none, or was stored under another fence: then it may have missed a bump.
pub fn version_of(item: &Item, fence: u64, now: Now) -> Option<u64> {
    let (version, stored_under) = read_tag(&item.value, item.flags, now).ok()?;
    (stored_under == fence).then_some(version)
}

/// Why the item of a tag has no version under any fence; `None` if it has, or is a stub.
pub fn tag_fault(item: &Item, now: Now) -> Option<TagFault> {
    read_tag(&item.value, item.flags, now).err().filter(|_| item.size > 0)
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
        let version = version_of(item, self.tag_fence(tag, copy), self.now);
        version.or_else(|| version_of(item, other, self.now).filter(|_| other != 0))
    }
}

/// The value of a tag's item: [`version_of`] reads it.
pub fn tag_value(version: u64, fence: u64) -> Bytes {
    let ms = version_millis(version);
    Bytes::from(if fence == 0 { ms.to_string() } else { format!("{ms} {fence}") })
}

/// The millisecond of a version: when the tag last changed.
pub fn version_millis(version: u64) -> u64 {
    version & LAST_MS
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

/// The version to which a bump moves a tag from this one; `None` if there is none that differs.
pub(super) fn bumped_version(now: Option<u64>, inputs: &Inputs<'_>) -> Option<u64> {
    let (least, created) = (now.map_or(0, |now| version_millis(now) + 1), created_version(inputs));
    let incarnation = incarnation_of(now.unwrap_or(created));
    let ms = inputs.now.wall.max(least);
    (ms <= LAST_MS).then(|| version(ms, incarnation))
}

/// The version of a tag that is created now. With two copies, which two sidecars may create at the same time,
/// the larger version counts and must be the later one; the incarnation is therefore 0.
pub(super) fn created_version(inputs: &Inputs<'_>) -> u64 {
    let incarnations = f64::from(1 << (u64::BITS - MS_BITS));
    let incarnation = if inputs.copies { 0 } else { (inputs.random_unit * incarnations) as u32 };
    version(inputs.now.wall, incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: u64 = 1_700_000_000_000;
    const NOW: Now = Now { wall: WALL, mono: 0 };

    #[test]
    fn a_tag_has_the_version_that_a_sidecar_may_have_stored_and_no_other() {
        let read = |value: &str, flags| read_tag(value.as_bytes(), flags, NOW);
        let (last, tomorrow) = (LAST_INCARNATION, WALL + FUTURE_MS);
        assert_eq!(read("1", 0), Ok((1, 0)));
        assert_eq!(read("1 18446744073709551615", last), Ok((1 | u64::from(last) << MS_BITS, u64::MAX)));
        assert_eq!(read(&format!("{tomorrow} 7"), 3), Ok((tomorrow | 3 << MS_BITS, 7)));
        for future in [tomorrow + 1, WALL + 7 * FUTURE_MS, LAST_MS] {
            assert_eq!(read(&future.to_string(), 0), Err(TagFault::Future));
            assert_eq!(read(&format!("{future} 7"), 0), Err(TagFault::Future));
        }
        let malformed = [
            "",
            " ",
            "0",
            "0 7",
            "+5",
            "-5",
            " 5",
            "5 ",
            "5\r\n",
            "5 0",
            "5 7 8",
            "5  7",
            "5 +7",
            "x",
            "5x",
            "1e3",
            "17592186044416",
            "18446744073709551616",
            "99999999999999999999",
            "5 18446744073709551616",
        ];
        for value in malformed {
            assert_eq!(read(value, 0), Err(TagFault::Malformed), "{value:?}");
        }
        // These flags would be those of another incarnation without their upper bits.
        for flags in [last + 1, u32::MAX] {
            assert_eq!(read("5", flags), Err(TagFault::Malformed));
        }
        // At the end of time nothing is in the future.
        let at_the_end = Now { wall: u64::MAX, mono: 0 };
        assert_eq!(read_tag(LAST_MS.to_string().as_bytes(), 0, at_the_end), Ok((LAST_MS, 0)));
    }

    #[test]
    fn what_is_stored_for_a_version_is_read_as_that_version() {
        for (ms, incarnation, fence) in [(1, 0, 0), (WALL, 7, 0), (WALL + FUTURE_MS, LAST_INCARNATION, 9)] {
            let version = version(ms, incarnation);
            let value = tag_value(version, fence);
            assert_eq!(read_tag(&value, incarnation_of(version), NOW), Ok((version, fence)));
        }
    }
}
