//! How many lines a log may have.

use std::time::Duration;

use tokio::time::Instant;

/// The most lines of one worker about slow requests in [`INTERVAL`].
pub const MAX_LINES: u32 = 10;
/// The interval of [`MAX_LINES`].
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Permits [`MAX_LINES`] in each [`INTERVAL`], and counts the others.
#[derive(Debug, Default)]
pub struct RateLimit {
    began: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl RateLimit {
    /// Whether a line may be written now. If so, how many were suppressed before it.
    pub fn permit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= INTERVAL) {
            (self.began, self.lines) = (Some(now), 0);
        }
        if self.lines == MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// How many lines were suppressed, if no line has said so and the interval has ended.
    pub fn take_suppressed(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.began.is_some_and(|began| now.saturating_duration_since(began) >= INTERVAL);
        (is_over && self.suppressed > 0).then(|| std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_are_permitted_and_the_others_are_counted() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        assert!((0..MAX_LINES).all(|_| limit.permit(start) == Some(0)));
        assert!((0..7).all(|_| limit.permit(start + INTERVAL / 2).is_none()));
        assert_eq!(limit.take_suppressed(start + INTERVAL / 2), None);
        assert_eq!(limit.permit(start + INTERVAL), Some(7));
        assert_eq!(limit.permit(start + INTERVAL), Some(0));
    }

    #[test]
    fn what_was_suppressed_last_is_reported_without_a_further_line() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        (0..MAX_LINES + 3).for_each(|_| {
            limit.permit(start);
        });
        assert_eq!(limit.take_suppressed(start + INTERVAL), Some(3));
        assert_eq!(limit.take_suppressed(start + INTERVAL), None);
    }
}
