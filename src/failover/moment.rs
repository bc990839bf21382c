//! The time of a decision.

/// The time of a decision, in ms, as read by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    /// Monotonic clock.
    pub mono: u64,
    /// Wall clock, since 1970.
    pub wall: u64,
}
