//! What the calls of one long get share. A get of many keys is one call for each part of its keys.

use std::cell::Cell;
use std::rc::Rc;

/// What the parts of one long get share.
#[derive(Debug, Default)]
pub struct LongGetState {
    /// An error has been sent in place of the remaining reply.
    failed: Cell<bool>,
}

/// One part of a long get.
pub(super) struct GetPart {
    pub(super) long_get: Rc<LongGetState>,
    /// Whether `END` follows this part.
    pub(super) last: bool,
}

impl LongGetState {
    /// Whether the reply has ended with an error.
    pub(super) fn is_over(&self) -> bool {
        self.failed.get()
    }

    /// Ends the reply: an error is sent now.
    pub(super) fn fail(&self) {
        self.failed.set(true);
    }
}
