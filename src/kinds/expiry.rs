//! Exptimes as memcached interprets them.

use std::time::Duration;

/// 30 days in seconds: memcached takes a larger exptime for a time since 1970.
const RELATIVE_LIMIT: u64 = 2_592_000;

/// The exptime of an item that lives for this long, rounded up to whole seconds; 0, for ever, if `ttl` is zero. `now`: wall time in
/// ms.
pub(super) fn exptime(ttl: Duration, now: u64) -> i64 {
    let seconds = ttl.as_millis().div_ceil(1000);
    let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
    let exptime = if seconds > RELATIVE_LIMIT { (now / 1000).saturating_add(seconds) } else { seconds };
    i64::try_from(exptime).unwrap_or(i64::MAX)
}

/// How long an item with this exptime lives; `None` if it has expired, or the exptime is 0. `now`: wall time in ms.
pub(super) fn remaining(exptime: i64, now: u64) -> Option<Duration> {
    let exptime = u64::try_from(exptime).ok()?;
    let seconds = match exptime > RELATIVE_LIMIT {
        true => exptime.saturating_sub(now / 1000),
        false => exptime,
    };
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// The exptime of an item that a client wants to live for this exptime, and that lives for at most `ttl`, unless that is zero. `now`:
/// wall time in ms.
pub(super) fn limited(own: i64, ttl: Duration, now: u64) -> i64 {
    match remaining(own, now) {
        _ if ttl.is_zero() => own,
        Some(left) if left <= ttl => own,
        None if own != 0 => own,
        _ => exptime(ttl, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_thirty_days_is_sent_as_unix_time_and_parts_of_a_second_are_rounded_up() {
        let now = 1_700_000_000_900;
        for (ms, expected) in [
            (0, 0),
            (1, 1),
            (1_000, 1),
            (1_001, 2),
            (2_592_000_000, 2_592_000),
            (2_592_000_001, 1_702_592_001),
        ] {
            assert_eq!(exptime(Duration::from_millis(ms), now), expected, "{ms}");
        }
    }

    #[test]
    fn an_exptime_is_limited_by_a_ttl() {
        let now = 1_700_000_000_900;
        for (own, limit, expected) in [
            (0, 0, 0),
            (0, 60, 60),
            (59, 60, 59),
            (61, 60, 60),
            (1_700_000_030, 60, 1_700_000_030),
            (-1, 60, -1),
        ] {
            assert_eq!(limited(own, Duration::from_secs(limit), now), expected, "{own}");
        }
    }
}
