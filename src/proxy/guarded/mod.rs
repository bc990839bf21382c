//! Guarded keys and tags: carries out the decisions of the guard.
//!
//! A request runs a state machine of the guard ([`driver`]), which sends meta commands ([`round_trip`], [`wire`]). Between
//! requests, leases are renewed and released, and keys that requests wait for are polled.

pub(crate) mod meta_get;
pub(crate) mod read;
pub(crate) mod write;
pub(crate) mod invalidation;
mod tag_command;
pub(crate) mod tag_get;
pub mod explicit_tags;
mod near;
mod elsewhere;
mod take_over;
mod tag_take_over;
mod outage;
mod misses;
pub(crate) mod tag_reads;
mod driver;
mod key_polling;
mod lease_renewal;
mod lease_release;
mod round_trip;
pub(crate) mod tag_servers;
pub mod wire;
