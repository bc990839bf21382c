//! The keys that no client may use, by any command: they hold what Kennel itself stores.
//!
//! Whoever could write them could stop rebuilds, or take keys out of service. They are refused whatever the rules say, because the
//! servers may be shared with sidecars that have other rules.

use crate::guard::envelope::LOCK_PREFIX;
use crate::kinds::INFIX;

/// Beginnings of keys that text commands cannot name.
pub(crate) const LONG_PREFIX: &[u8] = b"@long:";
/// Beginnings of the keys by which a server is probed.
const PROBE_PREFIX: &[u8] = b"@probe:";

/// Each with the error for a key that begins with it.
const PREFIXES: [(&[u8], &str); 3] = [
    (LOCK_PREFIX, "CLIENT_ERROR keys that begin with @lock: are reserved\r\n"),
    (LONG_PREFIX, "CLIENT_ERROR keys that begin with @long: are reserved\r\n"),
    (PROBE_PREFIX, "CLIENT_ERROR keys that begin with @probe: are reserved\r\n"),
];
/// The error for a key that contains [`INFIX`].
const CONTAINS_INFIX: &str = "CLIENT_ERROR keys that contain @kennel: are reserved\r\n";

/// The error for a client that uses this key. `None`: it may.
pub(crate) fn refusal(key: &[u8]) -> Option<&'static str> {
    // Few keys have this byte, so this is faster than to look for each of them.
    for at in memchr::memchr_iter(b'@', key) {
        let rest = &key[at..];
        if rest.starts_with(INFIX) {
            return Some(CONTAINS_INFIX);
        }
        if at == 0
            && let Some((_, line)) = PREFIXES.iter().find(|(prefix, _)| rest.starts_with(prefix))
        {
            return Some(line);
        }
    }
    None
}

/// Each beginning of reserved keys, and what has such keys.
pub(crate) const RESERVED: [(&[u8], &str); 4] = [
    (LOCK_PREFIX, "lock keys"),
    (INFIX, "the records of failover"),
    (LONG_PREFIX, "keys that are shortened"),
    (PROBE_PREFIX, "the keys of probes"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::RESERVED_PREFIX;
    use crate::guard::envelope::lock_key;
    use crate::proxy::server_key::server_key;

    #[test]
    fn keys_that_kennel_stores_are_refused() {
        let long = [b' '; 250];
        for reserved in [
            &lock_key(b"g:1")[..],
            &lock_key(&[b'k'; 250]),
            &server_key(&long).0,
            b"@probe:0",
            b"@kennel:marks:main",
            b"list:1@kennel:e0",
            b"@lock:a b",
            RESERVED_PREFIX.as_bytes(),
        ] {
            assert!(refusal(reserved).is_some(), "{}", reserved.escape_ascii());
        }
        assert_eq!(refusal(b"k@kennel:"), Some(CONTAINS_INFIX));
    }

    #[test]
    fn other_keys_are_free() {
        for free in [
            "",
            "k",
            "joe@kennel.org",
            "k@kennel",
            "kennel:12",
            "k@@kenne:",
            "@lock",
            "x@lock:1",
            "@tag:x",
            "@@long:",
        ] {
            assert_eq!(refusal(free.as_bytes()), None, "{free}");
        }
    }
}
