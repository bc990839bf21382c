//! A fast hash of keys and tags, with a secret seed.

use std::hash::{BuildHasher, Hasher};

use crate::random::Random;

/// The fractional part of π: odd and without a pattern.
const FACTOR: u64 = 0x243f_6a88_85a3_08d3;

/// Hashes keys. Two keys may have the same hash. A caller that compares only hashes may do unnecessary work then, but nothing
/// wrong.
#[derive(Debug, Clone, Copy)]
pub struct KeyHasher {
    seed: u64,
}

impl Default for KeyHasher {
    fn default() -> KeyHasher {
        KeyHasher::new()
    }
}

impl KeyHasher {
    /// A hasher with a new random seed.
    pub fn new() -> KeyHasher {
        KeyHasher { seed: Random::from_entropy().any() }
    }

    /// A hasher with the seed of another one, which gives the same hashes.
    pub fn with_seed(seed: u64) -> KeyHasher {
        KeyHasher { seed }
    }

    /// Its seed, which must not become known to clients.
    pub fn seed(self) -> u64 {
        self.seed
    }

    /// The hash of a key.
    pub(crate) fn hash(self, key: &[u8]) -> u64 {
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

/// The state of one hash.
pub struct FoldHasher(u64);

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
        // Distinguishes a key from the same key with a zero byte appended.
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
                keys.iter().map(|key| hashes.hash(key.as_bytes()) >> shift & 0xfff).collect();
            // Of 4,096 random values in as many buckets, 63 % of the buckets are expected to be hit.
            assert!(parts.len() > 2_400, "{} of 4,096, from bit {shift} on", parts.len());
        }
        let short: HashSet<u64> = (0..20).map(|length| hashes.hash(&vec![0; length])).collect();
        assert_eq!(short.len(), 20);
        assert_ne!(hashes.hash(b"k"), KeyHasher::new().hash(b"k"));
    }
}
