//! The keys of items: a kind's key itself, or the key followed by [`INFIX`] and a name.

use smallvec::SmallVec;

/// What separates a kind's key from the name of an item below it. No client may use a key that contains it, once a rule has a
/// kind.
pub const INFIX: &[u8] = b"@kennel:";

/// The key of an item, as memcached has it.
pub type ItemKey = SmallVec<[u8; 64]>;

/// The error for a structure's key that leaves no room for the names below it.
pub(super) const TOO_LONG: &str =
    "CLIENT_ERROR the key of a structure is too long for the items below it\r\n";

/// The longest key of an item, in bytes.
const MAX_KEY: usize = 250;

/// The key of an item below a structure's own key.
pub(super) fn item_below(own: &[u8], name: &[u8]) -> Result<ItemKey, &'static str> {
    let mut key = ItemKey::with_capacity(own.len() + INFIX.len() + name.len());
    [own, INFIX, name].into_iter().for_each(|part| key.extend_from_slice(part));
    if key.len() > MAX_KEY { Err(TOO_LONG) } else { Ok(key) }
}

/// The length of a kind's own key in what a client sent: up to the first `separator` behind the rule's `prefix`.
pub(super) fn own_length(separator: u8, prefix: usize, key: &[u8]) -> usize {
    let behind = key.get(prefix..).unwrap_or_default();
    memchr::memchr(separator, behind).map_or(key.len(), |at| prefix + at)
}

/// Whether a key is the key of an item below a kind's key, which no client may use.
pub fn is_reserved(key: &[u8]) -> bool {
    memchr::memmem::find(key, INFIX).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_structure_leaves_room_for_the_names_below_it() {
        let own = vec![b'k'; 250 - INFIX.len() - 5];
        assert_eq!(item_below(&own, b"fence").map(|key| key.len()), Ok(250));
        assert_eq!(item_below(&own, b"fence2"), Err(TOO_LONG));
    }

    #[test]
    fn a_key_with_the_infix_anywhere_is_reserved() {
        for reserved in ["@kennel:", "@kennel:x", "k@kennel:12", "k@kennel:"] {
            assert!(is_reserved(reserved.as_bytes()), "{reserved}");
        }
        for free in ["", "k", "joe@kennel.org", "k@kennel", "kennel:12", "k@@kenne:"] {
            assert!(!is_reserved(free.as_bytes()), "{free}");
        }
    }
}
