//! The items that the elements of one key are divided into, so that none is as large as all of them, and few commands are about
//! the same one.

use super::item::{ItemKey, item_below};

/// The items of one key. What is stored depends on it.
pub(super) const SHARDS: usize = 8;

/// From this size on, in bytes, a writer looks at an item whenever its size passes a power of two.
const GROWN: usize = 4096;

/// The keys of all items. `letter`: what their names begin with.
pub(super) fn keys(own: &[u8], letter: char) -> Result<Vec<ItemKey>, &'static str> {
    (0..SHARDS).map(|shard| item_below(own, format!("{letter}{shard}").as_bytes())).collect()
}

/// The index of the item that has this element, by its FNV-1a hash. Every sidecar must find the same one.
pub(super) fn shard_of(element: &[u8]) -> usize {
    let hash = element.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits of the hash depend on the low bits of each byte only.
    ((hash ^ (hash >> 32)) as usize) % SHARDS
}

/// Whether an item of this size may have become worth folding by an append of `added` bytes. It is asked about once between two
/// powers of two, so what an append costs is on average bounded by a multiple of what it adds.
pub(super) fn has_grown(size: usize, added: usize) -> bool {
    let before = size.saturating_sub(added).max(GROWN - 1);
    size >= GROWN && size.ilog2() > before.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_in_the_same_shard_for_ever() {
        let found: Vec<_> = ["", "a", "b", "ann", "bob", "user:1", "user:2"]
            .iter()
            .map(|element| shard_of(element.as_bytes()))
            .collect();
        assert_eq!(found, [1, 0, 1, 1, 5, 1, 4]);
    }

    #[test]
    fn elements_are_spread_over_all_shards() {
        for (name, step) in [("user:", 1), ("", 8), ("x", 256), ("2026-11-24T", 16)] {
            let mut found = [0; SHARDS];
            (0..8_000).for_each(|n| found[shard_of(format!("{name}{}", n * step).as_bytes())] += 1);
            assert!(found.iter().all(|count| (700..1_300).contains(count)), "{name}: {found:?}");
        }
    }

    #[test]
    fn a_writer_looks_at_an_item_once_between_two_powers_of_two() {
        let sizes: Vec<_> = (1..=200_000 / 50).map(|n| n * 50).filter(|size| has_grown(*size, 50)).collect();
        assert_eq!(sizes, [4_100, 8_200, 16_400, 32_800, 65_550, 131_100]);
        assert!(has_grown(9_000, 9_000) && has_grown(9_000, 1_000) && !has_grown(9_000, 100));
        assert!(!has_grown(100, 100) && !has_grown(4_000, 5_000));
    }
}
