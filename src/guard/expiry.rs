//! How long an item lasts.

use super::inputs::Now;

/// memcached treats an exptime above thirty days, in seconds, as Unix time.
const RELATIVE_LIMIT: u64 = 60 * 60 * 24 * 30;

/// The meaning of a client's exptime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// Negative, or Unix time in the past: expires immediately.
    Expired,
    /// 0: never expires.
    Never,
    /// Expires in this many seconds.
    Seconds(u64),
}

impl Expiry {
    /// Interprets an exptime as memcached does (protocol.txt, "Expiration times").
    pub fn of(exptime: i64, now: Now) -> Expiry {
        match u64::try_from(exptime) {
            Err(_) => Expiry::Expired,
            Ok(0) => Expiry::Never,
            Ok(seconds) if seconds <= RELATIVE_LIMIT => Expiry::Seconds(seconds),
            Ok(moment) => match moment.checked_sub(now.wall / 1000) {
                None | Some(0) => Expiry::Expired,
                Some(seconds) => Expiry::Seconds(seconds),
            },
        }
    }

    /// Limits this to a rule's `max_ttl` in seconds. 0 is unlimited.
    pub fn at_most(self, max_ttl: u64) -> Expiry {
        match self {
            Expiry::Never if max_ttl > 0 => Expiry::Seconds(max_ttl),
            Expiry::Seconds(seconds) if max_ttl > 0 => Expiry::Seconds(seconds.min(max_ttl)),
            other => other,
        }
    }

    /// The exptime of an item that must outlive this by `extra` seconds.
    pub fn exptime(self, extra: u32, now: Now) -> i64 {
        match self {
            Expiry::Expired => -1,
            Expiry::Never => 0,
            Expiry::Seconds(seconds) => {
                let sum = seconds + u64::from(extra);
                match sum {
                    0 => -1, // 0 would mean never
                    1..=RELATIVE_LIMIT => i64::try_from(sum).unwrap_or(i64::MAX),
                    // memcached keeps it in a signed 32-bit integer.
                    _ => i64::try_from(now.wall / 1000 + sum).unwrap_or(i64::MAX).min(i64::from(i32::MAX)),
                }
            }
        }
    }
}

/// How long an item with this TTL, in seconds, is certain to remain: a TTL of n lasts (n−1, n] seconds. In
/// milliseconds.
pub(super) fn sure_ms(ttl: u32) -> u64 {
    u64::from(ttl.saturating_sub(1)) * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { wall: 1_700_000_000_000, mono: 5 };

    #[test]
    fn an_exptime_above_thirty_days_is_unix_time() {
        assert_eq!(Expiry::of(2_592_000, NOW), Expiry::Seconds(2_592_000));
        assert_eq!(Expiry::of(2_592_001, NOW), Expiry::Expired);
        assert_eq!(Expiry::of(1_700_000_010, NOW), Expiry::Seconds(10));
        assert_eq!(Expiry::of(0, NOW), Expiry::Never);
        assert_eq!(Expiry::of(-1, NOW), Expiry::Expired);
    }

    #[test]
    fn a_sum_above_thirty_days_is_sent_as_unix_time() {
        assert_eq!(Expiry::Seconds(2_592_000).exptime(0, NOW), 2_592_000);
        assert_eq!(Expiry::Seconds(2_592_000).exptime(60, NOW), 1_700_000_000 + 2_592_060);
        assert_eq!(Expiry::Never.exptime(60, NOW), 0);
        assert_eq!(Expiry::of(2_147_483_647, NOW).exptime(60, NOW), 2_147_483_647);
    }

    #[test]
    fn max_ttl_limits_items_that_never_expire_too() {
        assert_eq!(Expiry::Never.at_most(30), Expiry::Seconds(30));
        assert_eq!(Expiry::Seconds(60).at_most(30), Expiry::Seconds(30));
        assert_eq!(Expiry::Seconds(60).at_most(0), Expiry::Seconds(60));
    }
}
