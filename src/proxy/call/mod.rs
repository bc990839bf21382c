//! One request: it begins when it has been parsed, and is polled until its reply is complete.

mod begin;
mod binary;
mod get;
mod long_get;
mod poll;

pub use long_get::LongGetState;
pub use poll::Call;
