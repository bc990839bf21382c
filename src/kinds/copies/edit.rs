//! What is done to a value that has two copies.

use std::fmt::Debug;

use super::record::Record;
use crate::error::Failure;

/// Which copies a read needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Either.
    One,
    /// The second: it must not return what perhaps only the first has, which may be undone.
    Second,
    /// Both: afterwards, they are the same.
    Both,
}

/// A command, or several, on one value.
pub(super) trait Edit: Debug {
    type End: Debug;

    /// Whether it may change the value.
    fn changes(&self) -> bool;

    /// Applies it to the record of the value. The error is how it ends if nothing changes. It may be applied again, to another record.
    fn apply(&mut self, record: &Record, now: u64) -> Result<Record, Self::End>;

    /// How it ends once both copies have this record, which it made when it was applied last.
    fn made(&mut self, record: &Record, now: u64) -> Self::End;

    /// How it ends if it only reads. `None`: there is no copy.
    fn read(&mut self, record: Option<&Record>, now: u64) -> Self::End;

    /// Which copies a read needs.
    fn needs(&self) -> Needs {
        Needs::One
    }

    /// How it ends if a server gave no usable reply.
    fn failed(failure: Failure) -> Self::End;

    /// How it ends if the value is larger than a server accepts.
    fn too_large() -> Self::End;
}
