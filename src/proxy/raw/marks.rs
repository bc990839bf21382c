//! What is known of the leases and marks that clients of raw keys use themselves.

use super::shown::{cas_of, ends_early, is_gone};
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::client_marks::{Marks, Stale};
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::Reply;

impl Proxy {
    /// Whether a client of this process has won an empty item of a raw key, for longer than a stub lasts.
    pub(crate) fn is_won(&self, key: &[u8]) -> bool {
        self.client_marks.of(self.hash(key)).is_won
    }

    /// Whether a look at a raw key may take a win that cannot be given back. Then [`Proxy::is_safe`] must be asked first.
    pub(crate) fn may_take_win(&self, key: &[u8], connection: &Connection) -> bool {
        self.client_marks.of(self.hash(key)).stale.is_some()
            && !connection.server().capabilities().is_some_and(|known| known.keeps_cas())
    }

    /// Whether a look takes no win of the item with this reply to [`put_expiry`](super::shown::put_expiry): clients have marked
    /// another one, or it ends as early as a stub.
    pub(crate) fn is_safe(&self, key: &[u8], reply: &Reply) -> bool {
        match self.client_marks.of(self.hash(key)).stale {
            Some(Stale::Cas(stale)) => cas_of(reply) != Some(stale) || ends_early(reply),
            Some(Stale::Unknown) => ends_early(reply) || is_gone(reply),
            None => true,
        }
    }

    /// Remembers that a client has marked an item stale.
    pub(super) fn note_stale(&self, key: &[u8], stale: Stale) {
        self.client_marks.add(self.hash(key), Marks { stale: Some(stale), ..Marks::default() });
    }

    /// Remembers that a client has won an empty item, for longer than a stub lasts.
    pub(super) fn note_win(&self, key: &[u8]) {
        self.client_marks.add(self.hash(key), Marks { is_won: true, ..Marks::default() });
    }
}
