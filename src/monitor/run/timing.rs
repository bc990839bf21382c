//! The times of an agreement, from the configuration of its pool.

use std::time::Duration;

use crate::failover::Timing;
use crate::upstream::FailoverSpec;

/// A view lasts this part of a window while a planned move is announced: requests wait for a little more than that.
const MOVING: u32 = 5;
/// The shortest view while a planned move is announced.
const SHORTEST_MOVING: Duration = Duration::from_millis(200);
/// The limit of the doubling of `recover_after`.
const RECOVER_AT_MOST: Duration = Duration::from_secs(5 * 60);

/// In milliseconds.
pub(super) fn timing(spec: &FailoverSpec) -> Timing {
    Timing {
        window: millis(spec.window),
        moving: millis((spec.window / MOVING).max(SHORTEST_MOVING).min(spec.window)),
        fail_after: millis(spec.fail_after).into(),
        recover_after: millis(spec.recover_after).into(),
        recover_at_most: millis(RECOVER_AT_MOST).into(),
    }
}

pub(super) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
