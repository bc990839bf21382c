//! How a pool spreads its keys: by which distribution, by which hash, and which part of a key is hashed.

use std::fmt;

/// How a key's hash selects a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// libmemcached's weighted ketama, which is also twemproxy's.
    Ketama,
    /// libmemcached's `consistent` without weights: 100 points for each server, derived with the hash of the keys.
    Consistent,
    /// libmemcached's: the hash modulo the number of servers, in the order of the configuration.
    Modula,
    /// The same with weights, as in python-memcached: each server is in the list as often as its weight.
    ModulaWeighted,
    /// twemproxy's: the hash modulo the sum of the servers' weights, in the order of their names.
    ModulaSorted,
    /// Lamping and Veach's jump consistent hash.
    Jump,
    /// Highest random weight.
    Rendezvous,
    /// Dalli's ring: points from SHA-1, and a key belongs to the last point that is not after it.
    Dalli,
    /// PHP's memcache: 1,024 positions on a ring of CRC-32 points, of which the hash selects one.
    PhpMemcache,
    /// pymemcache's `HashClient`: the highest MurmurHash3 of server and key.
    Pymemcache,
    /// The ketama of spymemcached, and of libmemcached for it: weighted ketama with other names of servers.
    Spymemcached,
    /// The `hashring` of node's memcached: weighted ketama, counted in 64-bit floats.
    Hashring,
    /// mcrouter's default: a binary decision tree over the bits of a MurmurHash64A.
    Ch3,
}

/// The hash function of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hash {
    /// The first little-endian u32 of the MD5 digest.
    Md5,
    /// libmemcached's and twemproxy's `crc32`: bits 16–30 of the IEEE CRC-32.
    Crc32,
    /// twemproxy's `crc32a`: the whole IEEE CRC-32.
    Crc32a,
    /// 32-bit FNV-1a.
    Fnv1a32,
    /// 32-bit FNV-1.
    Fnv132,
    /// The lower half of the 64-bit FNV-1a.
    Fnv1a64,
    /// The lower half of the 64-bit FNV-1.
    Fnv164,
    /// Jenkins' one-at-a-time: libmemcached's `default`.
    OneAtATime,
    /// CRC-16 of XMODEM, whose upper bits twemproxy keeps.
    Crc16,
    /// Hsieh's SuperFastHash.
    Hsieh,
    /// MurmurHash2, with a seed that depends on the length.
    Murmur,
    /// Jenkins' lookup3.
    Jenkins,
    /// Java's `String.hashCode`, as the clients in Java take it: a number without sign.
    Java,
    /// The same, as memjs takes it: the absolute value.
    Memjs,
    /// MurmurHash3, 32 bits, of a server and the key.
    Murmur3,
    /// MurmurHash64A.
    Murmur64a,
}

/// Which part of a key is hashed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum HashedPart {
    /// The whole key is hashed.
    #[default]
    Whole,
    /// twemproxy's `hash_tag`: what stands between the first of one byte and the next of another, if that is not empty.
    Between([u8; 2]),
    /// libmemcached's prefix: what follows the first of these that the key begins with.
    After(Vec<Vec<u8>>),
}

/// How a pool spreads its keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// How the hash selects a server.
    pub distribution: Distribution,
    /// The hash function of keys: one of those of the distribution.
    pub hash: Hash,
    /// Part of the key that is hashed.
    pub part: HashedPart,
}

/// The hash functions of libmemcached and twemproxy.
const ALL: [Hash; 14] = [
    Hash::Md5,
    Hash::Crc32,
    Hash::Crc32a,
    Hash::Fnv1a32,
    Hash::Fnv132,
    Hash::Fnv1a64,
    Hash::Fnv164,
    Hash::OneAtATime,
    Hash::Crc16,
    Hash::Hsieh,
    Hash::Murmur,
    Hash::Jenkins,
    Hash::Java,
    Hash::Memjs,
];

impl Distribution {
    /// All of them with their names in the configuration.
    pub const NAMES: [(&'static str, Distribution); 13] = [
        ("ketama", Distribution::Ketama),
        ("modula", Distribution::Modula),
        ("modula_sorted", Distribution::ModulaSorted),
        ("jump", Distribution::Jump),
        ("rendezvous", Distribution::Rendezvous),
        ("modula_weighted", Distribution::ModulaWeighted),
        ("consistent", Distribution::Consistent),
        ("dalli", Distribution::Dalli),
        ("php_memcache", Distribution::PhpMemcache),
        ("pymemcache", Distribution::Pymemcache),
        ("spymemcached", Distribution::Spymemcached),
        ("hashring", Distribution::Hashring),
        ("ch3", Distribution::Ch3),
    ];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Distribution::NAMES.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }

    /// The hash functions that it may have.
    pub fn hashes(self) -> &'static [Hash] {
        match self {
            Distribution::Ketama
            | Distribution::Consistent
            | Distribution::Modula
            | Distribution::ModulaWeighted
            | Distribution::ModulaSorted => &ALL,
            Distribution::Jump
            | Distribution::Rendezvous
            | Distribution::Spymemcached
            | Distribution::Hashring => &[Hash::Md5],
            Distribution::Dalli | Distribution::PhpMemcache => &[Hash::Crc32a],
            Distribution::Pymemcache => &[Hash::Murmur3],
            Distribution::Ch3 => &[Hash::Murmur64a],
        }
    }

    /// The hash function that it has if none is set.
    pub fn default_hash(self) -> Hash {
        match self {
            Distribution::Consistent => Hash::OneAtATime,
            Distribution::Modula | Distribution::ModulaWeighted | Distribution::ModulaSorted => Hash::Crc32,
            _ => self.hashes()[0],
        }
    }

    /// Whether servers can have weights.
    pub fn has_weights(self) -> bool {
        use Distribution::{Ch3, Consistent, Modula, Pymemcache};
        !matches!(self, Ch3 | Consistent | Modula | Pymemcache)
    }

    /// Whether the order of the servers in the configuration selects theirs.
    pub fn is_ordered(self) -> bool {
        use Distribution::{Ch3, Jump, Modula, ModulaWeighted};
        matches!(self, Ch3 | Jump | Modula | ModulaWeighted)
    }

    /// The points that a server of average weight derives from one digest each, if a small weight may leave it without any.
    pub fn digests(self) -> Option<f64> {
        match self {
            Distribution::Ketama | Distribution::Spymemcached | Distribution::Hashring => Some(40.0),
            Distribution::Dalli => Some(160.0),
            _ => None,
        }
    }
}

impl Hash {
    /// All of them with their names in the configuration.
    pub const NAMES: [(&'static str, Hash); 16] = [
        ("md5", Hash::Md5),
        ("crc32", Hash::Crc32),
        ("crc32a", Hash::Crc32a),
        ("fnv1a_32", Hash::Fnv1a32),
        ("fnv1_32", Hash::Fnv132),
        ("fnv1a_64", Hash::Fnv1a64),
        ("fnv1_64", Hash::Fnv164),
        ("one_at_a_time", Hash::OneAtATime),
        ("crc16", Hash::Crc16),
        ("hsieh", Hash::Hsieh),
        ("murmur", Hash::Murmur),
        ("jenkins", Hash::Jenkins),
        ("java", Hash::Java),
        ("memjs", Hash::Memjs),
        ("murmur3", Hash::Murmur3),
        ("murmur64a", Hash::Murmur64a),
    ];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Hash::NAMES.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }
}

impl HashedPart {
    /// The part of a key.
    pub fn of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match self {
            HashedPart::Whole => key,
            HashedPart::Between([open, close]) => {
                let Some(begin) = memchr::memchr(*open, key) else { return key };
                let inside = &key[begin + 1..];
                match memchr::memchr(*close, inside) {
                    Some(length @ 1..) => &inside[..length],
                    _ => key,
                }
            }
            HashedPart::After(prefixes) => {
                prefixes.iter().find_map(|prefix| key.strip_prefix(&prefix[..])).unwrap_or(key)
            }
        }
    }
}

impl Scheme {
    /// The whole key is hashed.
    pub fn whole(distribution: Distribution, hash: Hash) -> Scheme {
        Scheme { distribution, hash, part: HashedPart::Whole }
    }
}

/// In words, with those of the configuration.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "distribution {}, hash {}", self.distribution.name(), self.hash.name())?;
        match &self.part {
            HashedPart::Whole => Ok(()),
            HashedPart::Between(tag) => write!(f, " of what stands in {}", String::from_utf8_lossy(tag)),
            HashedPart::After(prefixes) => {
                let all: Vec<_> = prefixes.iter().map(|prefix| String::from_utf8_lossy(prefix)).collect();
                write!(f, " without the prefix {}", all.join(" or "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_braces_is_hashed_unless_it_is_empty() {
        let part = HashedPart::Between(*b"{}");
        for (key, hashed) in [
            ("a{b}c", "b"),
            ("a{b}{c}", "b"),
            ("{a{b}}", "a{b"),
            ("a}b{c}", "c"),
            ("a{}b", "a{}b"),
            ("a{}{b}", "a{}{b}"),
            ("a{b", "a{b"),
            ("a}b{", "a}b{"),
            ("ab", "ab"),
            ("", ""),
        ] {
            assert_eq!(part.of(key.as_bytes()), hashed.as_bytes(), "{key}");
        }
        assert_eq!(HashedPart::Between(*b"||").of(b"a|b|c"), b"b");
    }

    #[test]
    fn the_first_prefix_of_a_key_is_not_hashed() {
        let part = HashedPart::After(vec![b"app:".to_vec(), b"app".to_vec()]);
        for (key, hashed) in [("app:1", "1"), ("app1", "1"), ("app:app:1", "app:1"), ("b:app:1", "b:app:1")] {
            assert_eq!(part.of(key.as_bytes()), hashed.as_bytes(), "{key}");
        }
    }

    #[test]
    fn each_distribution_and_hash_has_one_name_and_can_be_had() {
        for (at, (name, distribution)) in Distribution::NAMES.iter().enumerate() {
            assert_eq!(distribution.name(), *name);
            assert!(Distribution::NAMES[..at].iter().all(|(other, _)| other != name));
            assert!(distribution.hashes().contains(&distribution.default_hash()));
        }
        for (at, (name, hash)) in Hash::NAMES.iter().enumerate() {
            assert_eq!(hash.name(), *name);
            assert!(Hash::NAMES[..at].iter().all(|(other, _)| other != name));
            assert!(Distribution::NAMES.iter().any(|(_, it)| it.hashes().contains(hash)), "{name}");
        }
    }
}
