//! How often a decision that lost a race is made again.

/// How many times a read, a delete, a bump or a fill is repeated when other writers win the race. Then the
/// server counts as overloaded.
pub const MAX_ROUNDS: u8 = 16;

/// How long a write is repeated when other writers win the race, in milliseconds.
pub(super) const MAX_RETRY_MS: u64 = 2_000;
