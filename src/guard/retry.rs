//! How often a decision that lost a race is made again.

/// How often a decision that lost a race is tried again before the server is called overloaded.
pub(super) const MAX_ROUNDS: u8 = 16;

/// For how long a write that others keep overtaking is tried again, in ms.
pub(super) const PATIENCE_MS: u64 = 2_000;
