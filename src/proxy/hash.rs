//! Hashes of keys and tags: quick, and with a seed that nobody outside can know.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The fraction of π: odd, and without a pattern.
const FACTOR: u64 = 0x243f_6a88_85a3_08d3;

/// Two keys may have the same hash: whoever goes by it alone does something in vain then, and nothing wrongly.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyHasher {
    seed: u64,
}

impl KeyHasher {
    /// With a seed of their own.
    pub(super) fn new() -> KeyHasher {
        KeyHasher { seed: RandomState::new().hash_one(FACTOR) }
    }

    /// The hash of a key.
    pub(super) fn of(self, key: &[u8]) -> u64 {
        let mut hash = self.build_hasher();
        hash.write(key);
        hash.finish()
    }
}

impl BuildHasher for KeyHasher {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher(self.seed)
    }
}

/// What has been hashed so far.
pub(super) struct FoldHasher(u64);

impl FoldHasher {
    fn fold(&mut self, word: [u8; 8]) {
        let product = u128::from(self.0 ^ u64::from_le_bytes(word)) * u128::from(FACTOR);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.fold(*word));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(last);
        // Else a key and the same with a zero behind it were one.
        self.fold((bytes.len() as u64).to_le_bytes());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_that_differ_a_little_have_hashes_that_differ_in_every_part() {
        let hashes = KeyHasher::new();
        let keys: HashSet<String> = (0..4096).map(|i| format!("blog:{}:page:{}", i % 64, i / 64)).collect();
        for shift in [0, 20, 52] {
            let parts: HashSet<u64> =
                keys.iter().map(|key| hashes.of(key.as_bytes()) >> shift & 0xfff).collect();
            // Of 4,096 thrown into as many places, 63 in a hundred find one that no other has found.
            assert!(parts.len() > 2_400, "{} of 4,096, from bit {shift} on", parts.len());
        }
        let short: HashSet<u64> = (0..20).map(|length| hashes.of(&vec![0; length])).collect();
        assert_eq!(short.len(), 20);
        assert_ne!(hashes.of(b"k"), KeyHasher::new().of(b"k"));
    }
}
