//! How long the clients of a listener wait before they hang up.
//!
//! A client whose read timeout is shorter than `cold_wait` takes the sidecar for a dead server, which is worse than a miss. Kennel does
//! not know the timeout, but it sees when a client hangs up while it waits. Two that have hung up after about the same time have
//! the same timeout: from then on, waits of this listener are shorter.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A client that hangs up earlier has not done so because it has waited for too long.
const SHORTEST: Duration = Duration::from_millis(100);
/// How many of the last times are compared.
const COMPARED: usize = 8;
/// Waits take this share of the time after which clients have hung up.
const SHARE: (u32, u32) = (4, 5);

/// The patience of a listener's clients.
#[derive(Debug)]
pub(super) struct Patience {
    /// Milliseconds; `u64::MAX` while nothing is known.
    limit: AtomicU64,
    hang_ups: Mutex<VecDeque<Duration>>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { limit: AtomicU64::new(u64::MAX), hang_ups: Mutex::default() }
    }
}

impl Patience {
    /// The longest wait in milliseconds, if clients are known to hang up.
    pub(super) fn limit_ms(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    /// A client has hung up when it had waited for this long. Returns the longest wait from now on if that has changed.
    pub(super) fn hung_up(&self, waited: Duration) -> Option<Duration> {
        if waited < SHORTEST {
            return None;
        }
        let mut hang_ups = self.hang_ups.lock().unwrap_or_else(PoisonError::into_inner);
        let same = hang_ups.iter().copied().filter(|earlier| agree(*earlier, waited)).min();
        if hang_ups.len() == COMPARED {
            hang_ups.pop_front();
        }
        hang_ups.push_back(waited);
        let limit = same?.min(waited) * SHARE.0 / SHARE.1;
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        (limit_ms < self.limit.fetch_min(limit_ms, Relaxed)).then_some(limit)
    }
}

/// Whether two times are those of one timeout, as measured on a busy machine.
fn agree(one: Duration, other: Duration) -> bool {
    one.abs_diff(other) <= Duration::from_millis(50) + one.max(other) / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hung_up(patience: &Patience, ms: u64) -> Option<u128> {
        patience.hung_up(Duration::from_millis(ms)).map(|limit| limit.as_millis())
    }

    #[test]
    fn two_clients_that_hang_up_after_the_same_time_shorten_the_waits_of_all() {
        let patience = Patience::default();
        assert_eq!(patience.limit_ms(), None);
        assert_eq!(hung_up(&patience, 1000), None);
        assert_eq!(hung_up(&patience, 1010), Some(800));
        assert_eq!(patience.limit_ms(), Some(800));
        assert_eq!(hung_up(&patience, 1005), None, "nothing new");
    }

    #[test]
    fn clients_that_go_for_other_reasons_shorten_nothing() {
        let patience = Patience::default();
        for ms in [10, 20, 30, 300, 700, 1900] {
            assert_eq!(hung_up(&patience, ms), None, "{ms}");
        }
        assert_eq!(patience.limit_ms(), None);
        for n in 1..=COMPARED as u64 {
            hung_up(&patience, 10_000 * n.pow(3));
        }
        assert_eq!(hung_up(&patience, 300), None, "long ago");
    }

    #[test]
    fn the_least_patient_clients_decide() {
        let patience = Patience::default();
        for ms in [2000, 2000, 500, 500] {
            hung_up(&patience, ms);
        }
        assert_eq!(patience.limit_ms(), Some(400));
        assert_eq!([2000, 2000].map(|ms| hung_up(&patience, ms)), [None; 2]);
        assert_eq!(patience.limit_ms(), Some(400));
    }
}
