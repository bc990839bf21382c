//! Who builds values.

/// Who misses or stores a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builder {
    /// Number of the connection.
    pub connection: u64,
    /// Connections with the same number may belong to one client.
    pub peers: u64,
    /// A store may end the miss of another connection of the same client.
    pub pooled: bool,
}

impl Builder {
    /// Whether it may be the same client as `other`.
    pub(super) fn may_be(self, other: Builder) -> bool {
        self.connection == other.connection || self.pooled && self.peers == other.peers
    }
}
