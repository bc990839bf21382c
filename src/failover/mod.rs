//! Failing over: where the keys of a server are kept while it is away, agreed on by all sidecars.
//!
//! **Architecture invariant:** as in the guard, nothing here performs I/O, reads a clock or draws a random number.
//!
//! - `record`: where the keys of one server are; three servers keep a copy
//! - `command`: what is sent to them
//! - `suspicion`: how processes ask each other whether a server answers
//! - `copy`: what its copies say together
//! - `planned`: moves that operators ask for, and how requests wait for them
//! - `agreement`: one process's part in the agreement on one server's place
//! - `views`: the result, as the workers read it
//! - `placements`: which placements of keys are in use in the fleet
//! - `rule_marks`: which rules are
//! - `repair`: which servers have all copies that they should have

mod agreement;
mod command;
mod copy;
mod moment;
pub mod placements;
mod planned;
mod record;
pub mod repair;
mod restoring;
pub mod rule_marks;
mod suspicion;
mod views;

pub use agreement::{Agreement, Status, Timing};
pub use command::{Cas, Command, Item, Operation, Reply};
pub use copy::COPIES;
pub use moment::Moment;
pub use planned::{Hold, Wish};
pub use record::{Record, fence, fence_millis};
pub use views::{View, Views};

/// The prefix of the keys under which the records are kept. Clients must not use it.
pub const RESERVED_PREFIX: &str = "@kennel:";
