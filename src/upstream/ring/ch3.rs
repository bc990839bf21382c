//! mcrouter's hash: the number of a server is read from the bits of the key's hash, of which there are as many as needed.

use smallvec::SmallVec;

use super::hashes::murmur64a;

/// How far apart the bits are that one number is read from.
const GAP: usize = 23;
/// So many numbers are read that are too large, until the first server is taken.
const TRIES: usize = 32;

/// The bits of a key: the 64 of its hash, the 64 of the hash of this hash, and so on.
struct Bits(SmallVec<[u64; 16]>);

impl Bits {
    fn is_set(&mut self, at: usize) -> bool {
        while self.0.len() <= at / 64 {
            let last = self.0[self.0.len() - 1];
            self.0.push(murmur64a(&last.to_le_bytes()));
        }
        self.0[at / 64] >> (at % 64) & 1 == 1
    }
}

/// What follows it in a key is not hashed.
const STOP: &[u8] = b"|#|";

/// The part of the key that mcrouter hashes.
fn hashed(key: &[u8]) -> &[u8] {
    memchr::memmem::find(key, STOP).map_or(key, |at| &key[..at])
}

/// The hash of a key, for other numbers.
pub(super) fn hash(key: &[u8]) -> u64 {
    murmur64a(hashed(key))
}

/// Which of so many servers holds the key. Only the last one can be removed without moving keys of the others.
pub(super) fn ch3(key: &[u8], servers: u64) -> u64 {
    if servers < 2 {
        return 0;
    }
    let mut bits = Bits(SmallVec::from_slice(&[hash(key)]));
    // The number has so many bits, of which the first is set.
    let mut length = (u64::BITS - (servers - 1).leading_zeros()) as usize;
    let mut at = length;
    for _ in 0..TRIES {
        while !bits.is_set(at) {
            length -= 1;
            if length == 0 {
                return 0;
            }
            at = length;
        }
        at += GAP;
        let mut number = 1;
        for _ in 1..length {
            number = number << 1 | u64::from(bits.is_set(at));
            at += GAP;
        }
        if number < servers {
            return number;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_stop_is_not_hashed() {
        for n in 0..200 {
            let of = |rest: &str| ch3(format!("user:{n}{rest}").as_bytes(), 7);
            assert_eq!([of("|#|a"), of("|#|b|#|c"), of("|#|")], [of(""); 3]);
        }
        assert!((0..200).any(|n| ch3(format!("{n}|#").as_bytes(), 7) != ch3(n.to_string().as_bytes(), 7)));
    }

    #[test]
    fn another_server_gets_its_share_and_nothing_else_moves() {
        let moved = (0..20_000u32).filter(|n| {
            let key = n.to_string();
            let (before, after) = (ch3(key.as_bytes(), 7), ch3(key.as_bytes(), 8));
            assert!(before == after || after == 7, "{n}");
            before != after
        });
        assert!((2_300..2_700).contains(&moved.count()));
    }
}
