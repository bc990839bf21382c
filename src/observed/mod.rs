//! What happens to keys that no rule guards: how often clients build their values, and how many of these builds a guard would have
//! spared.
//!
//! `builds` pairs a miss with the store of a `builder` that follows it, `renewals` finds stores without a miss, `shape` tells which keys
//! are of one family, and `families` counts what happens to each.

mod builder;
mod builds;
mod families;
mod renewals;
mod shape;

pub use builder::Builder;
pub use builds::{Build, MAX_AT_ONCE, MAX_BUILD, MAX_OPEN, OpenBuilds, Stored};
pub use families::{Deed, Families, Family, MAX_FAMILIES, MAX_OF_WORD};
pub use renewals::Renewal;
