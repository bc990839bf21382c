//! Wall time. No other file reads it.
//!
//! Wall time is used for tag versions, absolute exptimes and `built_at`. Durations are measured with tokio's monotonic clock,
//! which tests can pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Unix time in milliseconds by the system's clock; 0 if the clock shows a time before 1970. It may step back.
pub fn unix_ms() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the only place that reads wall time")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A source of wall time: the system, or a [`ManualClock`] in tests. Clones show the same time.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<AtomicU64>),
    /// Shows the manual time at this instant, and goes on from there.
    Running(Instant, Arc<AtomicU64>),
}

impl Clock {
    /// The clock of the machine.
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that shows [`ManualClock::START_MS`] until it is set.
    pub fn manual() -> (Clock, ManualClock) {
        let now = Arc::new(AtomicU64::new(ManualClock::START_MS));
        (Clock(Source::Manual(Arc::clone(&now))), ManualClock(now))
    }

    /// A clock that shows [`ManualClock::START_MS`] now, and runs with tokio's monotonic clock. Only [`ManualClock::advance`] and
    /// [`ManualClock::set_back`] change it.
    pub fn running() -> (Clock, ManualClock) {
        let start = Arc::new(AtomicU64::new(ManualClock::START_MS));
        (Clock(Source::Running(Instant::now(), Arc::clone(&start))), ManualClock(start))
    }

    /// Unix time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Source::System => unix_ms(),
            Source::Manual(now) => now.load(Ordering::SeqCst),
            Source::Running(since, start) => {
                let passed = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                start.load(Ordering::SeqCst).saturating_add(passed)
            }
        }
    }
}

/// Sets a manual clock. Only tests create one, so production code cannot set the time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// The initial time: 2023-11-14T22:13:20Z. It is far from 0, so that saturating subtractions do not hide errors.
    pub const START_MS: u64 = 1_700_000_000_000;

    /// Moves the clock forward by `by`, rounded down to milliseconds.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Moves the clock back by `by`, rounded down to milliseconds.
    pub fn set_back(&self, by: Duration) {
        self.0.fetch_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Sets the clock, forward or backward.
    pub fn set_ms(&self, unix_ms: u64) {
        self.0.store(unix_ms, Ordering::SeqCst);
    }
}

/// The last millisecond of the year 9999. A later version is not printed as a time.
const MAX_TIME: u64 = 253_402_300_799_999;

/// A version as a time in RFC 3339 format; `None` after the year 9999.
pub(crate) fn utc(ms: u64) -> Option<String> {
    if ms > MAX_TIME {
        return None;
    }
    let (seconds, mut day, mut year) = (ms / 1000, ms / 86_400_000, 1970);
    let months = loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = 365 + u64::from(leap);
        if day < days {
            break [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        }
        day -= days;
        year += 1;
    };
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    let (month, day) = (month + 1, day + 1);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000))
}

/// The time that [`utc`] prints, in milliseconds since 1970; the fraction of a second may be missing. `None`: it is no such time.
pub(crate) fn parse_utc(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<u64>().ok()
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !separators.iter().all(|(at, byte)| text.as_bytes().get(*at) == Some(byte)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let ms = match text.len() {
        20 => 0,
        24 if text.as_bytes()[19] == b'.' => number(20, 23)?,
        _ => return None,
    };
    let is_valid = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !text.ends_with('Z') || !is_valid || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years begin in March, so that a leap day is at the end of one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = ((days.checked_sub(719_468)? * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1000 + ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_changes_only_when_it_is_set() {
        let (clock, manual) = Clock::manual();
        let clone = clock.clone();
        assert_eq!(clock.now_ms(), ManualClock::START_MS);
        manual.advance(Duration::from_micros(1_500_999));
        assert_eq!(clock.now_ms(), ManualClock::START_MS + 1_500);
        assert_eq!(clone.now_ms(), clock.now_ms());
        manual.set_ms(7);
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
        // File times come from the kernel's coarse clock, which is a few milliseconds late.
        assert!(written.abs_diff(before) < 5_000, "{written} against {before}");
    }

    #[test]
    fn a_version_is_printed_as_a_time() {
        // By `date -u -d @…`.
        for (ms, output) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (MAX_TIME, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(utc(ms).as_deref(), Some(output));
        }
        assert_eq!(utc(MAX_TIME + 1), None);
        for ms in (0..MAX_TIME).step_by(86_400_123 * 997).chain([MAX_TIME]) {
            assert_eq!(parse_utc(&utc(ms).unwrap()), Some(ms));
        }
        assert_eq!(parse_utc("1970-01-02T00:00:00Z"), Some(86_400_000));
        for text in
            ["", "x", "1970-01-02", "1970-01-02 00:00:00Z", "1970-13-02T00:00:00Z", "1970-01-02T00:00:00.000"]
        {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }
}
