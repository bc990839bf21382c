//! What a client of a raw key is shown of an item that a guard has stored: another sidecar of the fleet may have a guarded rule for
//! the key, or this one may have had one.

use super::envelope::{Header, MAGIC, Opened};
use super::stub::{has_stub_flags, is_free};
use super::tag_version::NEVER;

/// The longest TTL of a stub, in seconds: `lock_ttl` is at most an hour.
const STUB_TTL: u32 = 60 * 60 + 1;
/// The longest TTL of a free stub: `max_rebuild` is at most a day.
const FREE_STUB_TTL: u32 = 24 * 60 * 60;

/// What a client sees of a stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawView {
    /// All of it: it has no header.
    Plain,
    /// What is behind the header.
    Sealed {
        /// Length of the header in bytes.
        payload_at: usize,
        /// See [`Header::stale_for`].
        stale_for: u32,
    },
    /// Nothing: a placeholder, or a header that this version cannot read.
    Absent,
}

impl RawView {
    /// Whether a value must be looked at with [`RawView::of`], by its first byte; `None`: it is empty.
    #[inline]
    pub fn is_suspect(first: Option<u8>) -> bool {
        first.is_none_or(|first| first == MAGIC[0])
    }

    /// What a client sees of this value.
    pub fn of(value: &[u8]) -> RawView {
        match Header::open(value) {
            Opened::Plain => RawView::Plain,
            Opened::Unreadable(_) => RawView::Absent,
            Opened::Sealed { envelope, payload_at } => {
                let mut versions = envelope.tags().map(|(_, version)| version).peekable();
                match versions.peek().is_some() && versions.all(|version| version == NEVER) {
                    true => RawView::Absent,
                    false => RawView::Sealed { payload_at, stale_for: envelope.stale_for },
                }
            }
        }
    }
}

/// Whether an item of zero bytes may be a stub, by its client flags: whether it is one depends on the rest of it.
pub fn may_be_stub(flags: u32) -> bool {
    flags == 0 || has_stub_flags(flags)
}

/// The longest TTL of a stub with these flags, in seconds; `None`: they are not known.
pub fn longest_stub(flags: Option<u32>) -> u32 {
    if flags.is_some_and(is_free) { FREE_STUB_TTL } else { STUB_TTL }
}

/// Whether an item of zero bytes is a stub. `held`: the server shows `Z`, which means that it created the item for a reader. An empty
/// value of a client is told from it by its TTL and flags.
pub fn is_stub(flags: u32, ttl: Option<u32>, held: bool) -> bool {
    ttl.is_some_and(|ttl| ttl <= longest_stub(Some(flags))) && (flags == 0 && held || has_stub_flags(flags))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::guard::envelope::Envelope;

    fn sealed(tags: &[(&str, u64)], payload: &[u8]) -> BytesMut {
        let tags = tags.iter().map(|(name, version)| (name.as_bytes().into(), *version)).collect();
        let mut out = BytesMut::new();
        Envelope { stale_for: 60, built_at: 7, rebuild: 5, fence: 0, tags }.seal(&mut out).unwrap();
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn a_client_sees_what_is_behind_a_header_and_nothing_of_a_placeholder() {
        for payload in [&b"value"[..], b"", b"\xf7\xcb\xce\xcc"] {
            let value = sealed(&[("t", 5)], payload);
            let payload_at = value.len() - payload.len();
            assert_eq!(RawView::of(&value), RawView::Sealed { payload_at, stale_for: 60 });
            assert!(RawView::is_suspect(value.first().copied()));
        }
        // What has been appended to a placeholder is not a value either.
        for placeholder in [sealed(&[("t", 0), ("u", 0)], b""), sealed(&[("t", 0)], b"x")] {
            assert_eq!(RawView::of(&placeholder), RawView::Absent);
        }
        assert_eq!(RawView::of(b"\xf7\xcb\xce\xcc\x09rest"), RawView::Absent);
        for plain in [&b""[..], b"x", b"\xf7\xcb\xce", b"\xf7other"] {
            assert_eq!(RawView::of(plain), RawView::Plain, "{plain:?}");
        }
        assert!(!RawView::is_suspect(Some(b'x')) && RawView::is_suspect(None));
    }

    #[test]
    fn an_empty_value_of_a_client_is_no_stub() {
        // Created by `mg … N`, renewed, and free.
        assert!(is_stub(0, Some(6), true) && is_stub(1 << 31 | 5 << 8, Some(6), false));
        assert!(is_stub(0b11 << 30 | 5 << 8, Some(80_000), false));
        for (flags, ttl, held) in [
            (0, Some(6), false),
            (0, None, true),
            (0, Some(10_000), true),
            (5, Some(6), true),
            (u32::MAX, Some(6), false),
            (1 << 31, Some(6), false),
            (1 << 31 | 5 << 8, None, false),
            (1 << 31 | 5 << 8, Some(10_000), false),
        ] {
            assert!(!is_stub(flags, ttl, held), "{flags} {ttl:?} {held}");
        }
        assert!(may_be_stub(0) && may_be_stub(1 << 31 | 5 << 8) && !may_be_stub(7));
    }
}
