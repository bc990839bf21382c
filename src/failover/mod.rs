//! Failing over: where the keys of a server are kept while it is away, agreed on by all sidecars.
//!
//! **Architecture invariant:** as in the guard, nothing here performs I/O, reads a clock or draws a random number.

pub mod placements;
mod views;

pub use views::{View, Views};
