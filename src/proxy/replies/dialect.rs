//! The protocol that a command came in: its reply is written in the same one.

use bytes::BytesMut;

use super::classic;
use super::meta::MetaDialect;
use super::outcome::WriteOutcome;

/// Classic or meta.
#[derive(Debug)]
pub(crate) enum Dialect {
    Classic,
    Meta(MetaDialect),
}

impl Dialect {
    /// Appends the reply to a command that writes a key under this fence.
    pub(crate) fn write(&self, outcome: &WriteOutcome, fence: u64, out: &mut BytesMut) {
        match (self, outcome) {
            // Errors are the same in both.
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
