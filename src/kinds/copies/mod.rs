//! A value on two servers, so that it outlives either of them.
//!
//! Each copy is an item with a record: the value, where it stands in the sequence of changes, and the life that this sequence
//! belongs to. Every change is made to the first copy over the CAS that was read, so the first copy orders them. Then the second
//! copy is brought to it, and the change is acknowledged. So each copy that is there has every acknowledged change.
//!
//! A first copy that is lost, or not there yet, begins a new life from the second. The new life is written to the second copy before
//! the first one is stored. A change of the former life that has not reached the second copy finds another life there, and is never
//! acknowledged. A second copy that is lost is stored with the next change of the first.
//!
//! A raw value and a counter are one such item. The other kinds have several: their machines are carried out on them as if they were on
//! one server, without its order of commands on different items.
//!
//! The keys of the copies carry the fences of their places, which the caller adds: what a returning server still has is under
//! another key.

mod value;
mod machine;
mod round_trip;
mod run;
mod operations;
mod change;
mod edit;
mod record;

pub(super) use change::COMMANDS;
pub use machine::OnCopies;
pub(super) use record::check_length;
pub use record::{COPY_BYTES, HEADER, KEPT_WITHOUT_VALUE, SeenCopy, copy_key, seen_copy, split_copy_key};
pub(super) use value::begin;
pub use value::complete;

#[cfg(test)]
mod tests;
