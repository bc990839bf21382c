//! The reply to `me`, memcached's report of an item. It is the only command that reads an item without any effect on it.

use crate::error::Failure;
use crate::upstream::pending_replies::Reply;

/// What `me` reports of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DebugReply {
    /// Remaining TTL in seconds; `None` if it never expires. memcached 1.6 writes `exp=-1` for this too if one second remains.
    pub(super) ttl: Option<u32>,
    /// Seconds since the last use.
    pub(super) last_access: u64,
    pub(super) cas: u64,
    pub(super) fetched: bool,
    /// Bytes in memory.
    pub(super) size: u64,
}

/// Parses a reply; `Ok(None)`: there is no such item.
pub(super) fn decode(reply: Reply) -> Result<Option<DebugReply>, Failure> {
    let bytes = match reply {
        Reply::Answered { bytes, .. } => bytes,
        Reply::Failed(failure) => return Err(failure),
        Reply::Part { .. } | Reply::StaleCas => return Err(Failure::Refused),
    };
    let line = bytes.trim_ascii_end();
    if line == b"EN" {
        return Ok(None);
    }
    parse(line).map(Some).ok_or(Failure::Refused)
}

/// `ME <key> exp=90 la=3 cas=7 fetch=yes cls=1 size=63`
fn parse(line: &[u8]) -> Option<DebugReply> {
    let mut found = DebugReply::default();
    // The key may look like one of the words.
    for word in line.strip_prefix(b"ME ")?.split(|byte| *byte == b' ').skip(1) {
        let (name, value) = std::str::from_utf8(word).ok()?.split_once('=')?;
        match name {
            "exp" if value == "-1" => {}
            // memcached 1.6.18 writes the remaining seconds as a negative number.
            "exp" => found.ttl = Some(value.trim_start_matches('-').parse().ok()?),
            "la" => found.last_access = value.parse().ok()?,
            "cas" => found.cas = value.parse().ok()?,
            "fetch" => found.fetched = value == "yes",
            "size" => found.size = value.parse().ok()?,
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_of_both_memcacheds_are_parsed() {
        let expected = DebugReply { ttl: Some(100), last_access: 3, cas: 7, fetched: true, size: 67 };
        for line in [
            "ME k exp=-100 la=3 cas=7 fetch=yes cls=1 size=67",
            "ME k exp=100 la=3 cas=7 fetch=yes cls=1 size=67",
        ] {
            assert_eq!(parse(line.as_bytes()), Some(expected), "{line}");
        }
        let never = parse(b"ME exp=5 exp=-1 la=0 cas=1 fetch=no cls=1 size=63").unwrap();
        assert_eq!((never.ttl, never.fetched, never.size), (None, false, 63));
    }

    #[test]
    fn what_is_no_report_is_a_failure() {
        for line in ["ME", "CLIENT_ERROR bad command line format", "ME k exp=x", "HD", "ME k exp"] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
        assert_eq!(parse(b"ME k"), Some(DebugReply::default()));
    }
}
