//! The clients that wait until a connection has less to write.

use std::collections::HashSet;
use std::rc::Rc;

use crate::upstream::pending_replies::PendingReplies;

/// Each of them once, in the order in which they began to wait.
#[derive(Default)]
pub(super) struct WaitingForRoom {
    clients: Vec<Rc<PendingReplies>>,
    known: HashSet<*const PendingReplies>,
}

impl WaitingForRoom {
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(super) fn add(&mut self, client: &Rc<PendingReplies>) {
        if self.known.insert(Rc::as_ptr(client)) {
            self.clients.push(Rc::clone(client));
        }
    }

    /// None of them waits any more: each looks again.
    pub(super) fn wake_all(&mut self) {
        self.known.clear();
        self.clients.drain(..).for_each(|client| client.wake());
    }
}
