//! What happens to keys that no rule guards: how often clients build their values, and how many of these builds a guard would have
//! spared.
//!
//! `builds` pairs a miss with the store that follows it.

mod builds;

pub use builds::{Build, Builder, MAX_AT_ONCE, MAX_BUILD, MAX_OPEN, OpenBuilds, Stored};
