//! Commands that write a guarded key or a tag: which state machine of the guard runs them, and what its outcome means to the
//! client.

pub(crate) mod command;
mod binary;
mod begin;
mod fill;
mod poll;
mod state;

pub(crate) use state::GuardedWrite;
