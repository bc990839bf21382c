//! The linearizability checker's own tests: histories that are linearizable, and histories that are not.

#[path = "mod.rs"]
#[allow(dead_code, reason = "the simulation and the integration tests use more of it")]
mod linearizability;

mod tests;
