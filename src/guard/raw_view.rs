//! What a client of a raw key is shown of an item that a guard has stored: another sidecar of the fleet may have a guarded rule for
//! the key, or this one may have had one.

use super::envelope::{Header, MAGIC, Opened};
use super::stub::has_stub_flags;
use super::tag_version::NEVER;

/// The longest TTL of a stub that memcached has created, in seconds: `lock_ttl` is at most an hour.
pub const LONGEST_STUB: u32 = 60 * 60 + 1;

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

/// Whether an item of zero bytes with these client flags is a stub, whatever its TTL: a client may have touched it. `None`: that depends
/// on whether the server created the item for a reader.
pub fn is_stub(flags: u32) -> Option<bool> {
    match flags {
        0 => None,
        _ => Some(has_stub_flags(flags)),
    }
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
        assert_eq!([0, 1 << 31 | 5 << 8, 0b11 << 30 | 5 << 8].map(is_stub), [None, Some(true), Some(true)]);
        for flags in [5, 7, u32::MAX, 1 << 31] {
            assert_eq!(is_stub(flags), Some(false), "{flags}");
        }
    }
}
