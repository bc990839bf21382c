//! The keys of items: a kind's key itself, or the key followed by [`INFIX`] and a name.

use smallvec::SmallVec;

/// What separates a kind's key from the name of an item below it. No client may use a key that contains it, once a rule has a
/// kind.
pub const INFIX: &[u8] = b"@kennel:";

/// The key of an item, as memcached has it.
pub type ItemKey = SmallVec<[u8; 64]>;

/// Whether a key is the key of an item below a kind's key, which no client may use.
pub fn is_reserved(key: &[u8]) -> bool {
    memchr::memmem::find(key, INFIX).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

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
