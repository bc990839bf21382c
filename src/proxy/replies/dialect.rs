//! The protocol that a command came in: its reply is written in the same one.

use bytes::BytesMut;

use super::meta::MetaDialect;
use super::outcome::WriteOutcome;
use super::{binary, classic};
use crate::protocol::binary::Head;

/// Classic, meta or binary.
#[derive(Debug)]
pub(crate) enum Dialect {
    Classic,
    Meta(MetaDialect),
    Binary(Head),
}

impl Dialect {
    /// Appends the reply to a command that writes a key under this fence.
    pub(crate) fn write(&self, outcome: &WriteOutcome, fence: u64, out: &mut BytesMut) {
        match (self, outcome) {
            (Dialect::Binary(head), _) => binary::write(*head, outcome, fence, out),
            // Errors are the same in both text protocols.
            (
                _,
                WriteOutcome::NotANumber
                | WriteOutcome::TooLarge
                | WriteOutcome::Failed(_)
                | WriteOutcome::Verbatim(_),
            )
            | (Dialect::Classic, _) => classic::write(outcome, out),
            (Dialect::Meta(meta), _) => meta.write(outcome, fence, out),
        }
    }
}
