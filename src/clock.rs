//! What time it is on the wall: the one place that asks.
//!
//! Wall time is needed for tag versions, absolute exptimes and `built_at`, never for measuring how long something took:
//! that is tokio's monotonic clock, which tests can pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by the system's clock; 0 on a machine that believes it is earlier than that. It may step back.
pub fn unix_ms() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the one place where wall time enters")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Where wall time is read from: the system, or a [`ManualClock`] that a test moves. Clones show the same time.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that stands at [`ManualClock::START_MS`] until its hand is moved.
    pub fn manual() -> (Clock, ManualClock) {
        let now = Arc::new(AtomicU64::new(ManualClock::START_MS));
        (Clock(Source::Manual(Arc::clone(&now))), ManualClock(now))
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Source::System => unix_ms(),
            Source::Manual(now) => now.load(Ordering::SeqCst),
        }
    }
}

/// What moves a manual clock. Only a test holds one, so production code cannot set the time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Where a manual clock starts: 2023-11-14T22:13:20Z, far enough from 0 that a subtraction does not hide a mistake.
    pub const START_MS: u64 = 1_700_000_000_000;

    /// Moves the clock forward by whole milliseconds; the rest of `by` is dropped.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Sets the clock, backwards too, as NTP may.
    pub fn set_ms(&self, unix_ms: u64) {
        self.0.store(unix_ms, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_its_hand_moves() {
        let (clock, hand) = Clock::manual();
        let clone = clock.clone();
        assert_eq!(clock.now_ms(), ManualClock::START_MS);
        hand.advance(Duration::from_micros(1_500_999));
        assert_eq!(clock.now_ms(), ManualClock::START_MS + 1_500);
        assert_eq!(clone.now_ms(), clock.now_ms());
        hand.set_ms(7);
        assert_eq!(clone.now_ms(), 7);
    }

    #[test]
    fn the_system_clock_agrees_with_the_time_of_a_file_written_now() {
        let path = std::env::temp_dir().join(format!("kennel-clock-{}", std::process::id()));
        let before = Clock::system().now_ms();
        std::fs::write(&path, b"x").unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::remove_file(&path).unwrap();
        let written = written.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        // File times come from the kernel's coarse clock, a few milliseconds behind.
        assert!(written.abs_diff(before) < 5_000, "{written} against {before}");
    }
}
