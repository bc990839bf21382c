//! What a process remembers of the structures of a rule from one command to the next. Nothing depends on it but the number of
//! round trips.

use std::sync::Arc;

use super::log::LogEnds;

/// The memory of a rule's structures, which all workers share.
#[derive(Debug, Default)]
pub struct Memory {
    pub(super) log_ends: Arc<LogEnds>,
}
