//! The hash functions of keys, as the libraries have them.
//!
//! In C the bytes of a key are signed, so some functions differ from their definitions for bytes above 127.

use crate::upstream::scheme::Hash;

/// A key's hash, with a function for the first eight bytes of its MD5.
#[inline]
pub(super) fn hash_of(hash: Hash, key: &[u8], md5: impl Fn() -> u64) -> u32 {
    match hash {
        Hash::Md5 => md5() as u32,
        other => hash_without_md5(other, key),
    }
}

fn hash_without_md5(hash: Hash, key: &[u8]) -> u32 {
    match hash {
        Hash::Md5 => crate::upstream::md5_lanes::md5_64(key) as u32,
        Hash::Crc32 => crc32fast::hash(key) >> 16 & 0x7fff,
        Hash::Crc32a => crc32fast::hash(key),
        Hash::Fnv1a32 => fnv(key, 0x811c_9dc5, |hash, byte| (hash ^ byte).wrapping_mul(0x0100_0193)),
        Hash::Fnv132 => fnv(key, 0x811c_9dc5, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ byte),
        // The lower half of a product depends on the lower halves of its factors only.
        Hash::Fnv1a64 => fnv(key, 0x8422_2325, |hash, byte| (hash ^ byte).wrapping_mul(0x1b3)),
        Hash::Fnv164 => fnv(key, 0x8422_2325, |hash, byte| hash.wrapping_mul(0x1b3) ^ byte),
        Hash::OneAtATime => one_at_a_time(key),
        Hash::Crc16 => crc16(key),
        Hash::Hsieh => hsieh(key),
        Hash::Murmur => murmur2(key),
        Hash::Jenkins => lookup3(key, 13),
        Hash::Java => java(key) as u32,
        Hash::Memjs => java(key).unsigned_abs(),
        Hash::Murmur3 => murmur3(key.iter().copied(), key.len()),
        Hash::Murmur64a => murmur64a(key) as u32,
    }
}

/// A byte as a signed `char` that is converted to 32 bits.
fn signed(byte: u8) -> u32 {
    byte as i8 as u32
}

/// The next 32 bits, little-endian.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn fnv(key: &[u8], basis: u32, step: impl Fn(u32, u32) -> u32) -> u32 {
    key.iter().fold(basis, |hash, byte| step(hash, signed(*byte)))
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = key.iter().fold(0u32, |hash, byte| {
        let hash = hash.wrapping_add(signed(*byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    });
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// The polynomial is 0x1021. The register has 32 bits, of which the upper ones are what has been shifted out of the lower 16.
fn crc16(key: &[u8]) -> u32 {
    key.iter().fold(0u32, |crc, byte| {
        let mut rest = (crc >> 8 ^ u32::from(*byte)) << 8 & 0xff00;
        for _ in 0..8 {
            rest = if rest & 0x8000 == 0 { rest << 1 } else { rest << 1 ^ 0x1021 };
        }
        crc << 8 ^ rest & 0xffff
    })
}

fn hsieh(key: &[u8]) -> u32 {
    let mut hash = 0u32;
    let blocks = key.chunks_exact(4);
    let rest = blocks.remainder();
    for block in blocks {
        hash = hash.wrapping_add(word(&block[..2]));
        hash = hash << 16 ^ word(&block[2..]) << 11 ^ hash;
        hash = hash.wrapping_add(hash >> 11);
    }
    match *rest {
        [first] => {
            hash = hash.wrapping_add(u32::from(first));
            hash ^= hash << 10;
            hash = hash.wrapping_add(hash >> 1);
        }
        [_, _] => {
            hash = hash.wrapping_add(word(rest));
            hash ^= hash << 11;
            hash = hash.wrapping_add(hash >> 17);
        }
        [_, _, third] => {
            hash = hash.wrapping_add(word(&rest[..2]));
            hash ^= hash << 16 ^ signed(third) << 18;
            hash = hash.wrapping_add(hash >> 11);
        }
        _ => {}
    }
    hash ^= hash << 3;
    hash = hash.wrapping_add(hash >> 5);
    hash ^= hash << 4;
    hash = hash.wrapping_add(hash >> 17);
    hash ^= hash << 25;
    hash.wrapping_add(hash >> 6)
}

fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let length = key.len() as u32;
    let mut hash = 0xdead_beef_u32.wrapping_mul(length) ^ length;
    let blocks = key.chunks_exact(4);
    let rest = blocks.remainder();
    for block in blocks {
        let block = word(block).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (block ^ block >> 24).wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash = (hash ^ word(rest)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

/// Jenkins' lookup3, `hashlittle`.
fn lookup3(key: &[u8], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut key = key;
    let add = |bytes: &[u8], a: &mut u32, b: &mut u32, c: &mut u32| {
        let part = |from: usize| word(&bytes[from.min(bytes.len())..(from + 4).min(bytes.len())]);
        *a = a.wrapping_add(part(0));
        *b = b.wrapping_add(part(4));
        *c = c.wrapping_add(part(8));
    };
    while key.len() > 12 {
        let (block, rest) = key.split_at(12);
        add(block, &mut a, &mut b, &mut c);
        for [rotate_c, rotate_a, rotate_b] in [[4, 6, 8], [16, 19, 4]] {
            a = a.wrapping_sub(c) ^ c.rotate_left(rotate_c);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(rotate_a);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(rotate_b);
            b = b.wrapping_add(a);
        }
        key = rest;
    }
    if key.is_empty() {
        return c;
    }
    add(key, &mut a, &mut b, &mut c);
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// `String.hashCode`: over UTF-16.
fn java(key: &[u8]) -> i32 {
    let step = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    match std::str::from_utf8(key) {
        Ok(text) => text.encode_utf16().fold(0, step),
        Err(_) => key.iter().map(|byte| u16::from(*byte)).fold(0, step),
    }
}

/// MurmurHash3 for x86, 32 bits, of so many bytes, with the seed 0.
pub(super) fn murmur3(mut bytes: impl Iterator<Item = u8>, length: usize) -> u32 {
    let scramble = |block: u32| block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut hash = 0u32;
    let mut next = |count: usize| {
        bytes.by_ref().take(count).enumerate().fold(0, |word, (at, byte)| word | u32::from(byte) << (8 * at))
    };
    for _ in 0..length / 4 {
        hash = (hash ^ scramble(next(4))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= scramble(next(3)) ^ length as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// MurmurHash64A with mcrouter's seed.
pub(super) fn murmur64a(key: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const SEED: u64 = 4_193_360_111;
    let mut hash = SEED ^ (key.len() as u64).wrapping_mul(M);
    let blocks = key.chunks_exact(8);
    let rest = blocks.remainder();
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    for block in blocks {
        let block = word(block).wrapping_mul(M);
        hash = (hash ^ (block ^ block >> 47).wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash = (hash ^ word(rest)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(M);
    hash ^ hash >> 47
}
