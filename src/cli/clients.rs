//! The client libraries and proxies whose placement of keys a pool can have, by the names of `kennel init --client`.

use crate::upstream::{Distribution, Hash};

/// A library with its options, and how it places keys. docs/configuration.md has the same table.
pub(super) const CLIENTS: [(&str, Distribution, Hash); 20] = [
    ("cache-memcached", Distribution::ModulaWeighted, Hash::Crc32),
    ("dalli", Distribution::Dalli, Hash::Crc32a),
    ("gomemcache", Distribution::Modula, Hash::Crc32a),
    ("libmemcached", Distribution::Modula, Hash::OneAtATime),
    ("libmemcached-consistent", Distribution::Consistent, Hash::OneAtATime),
    ("libmemcached-ketama", Distribution::Ketama, Hash::Md5),
    ("mcrouter", Distribution::Ch3, Hash::Murmur64a),
    ("memjs", Distribution::Modula, Hash::Memjs),
    ("node-memcached", Distribution::Hashring, Hash::Md5),
    ("php-memcache", Distribution::PhpMemcache, Hash::Crc32a),
    ("php-memcache-standard", Distribution::ModulaWeighted, Hash::Crc32),
    ("php-memcached", Distribution::Modula, Hash::OneAtATime),
    ("php-memcached-ketama", Distribution::Ketama, Hash::Md5),
    ("pylibmc", Distribution::Modula, Hash::OneAtATime),
    ("pylibmc-ketama", Distribution::Ketama, Hash::Md5),
    ("pymemcache", Distribution::Pymemcache, Hash::Murmur3),
    ("python-memcached", Distribution::ModulaWeighted, Hash::Crc32),
    ("spymemcached", Distribution::Modula, Hash::Java),
    ("spymemcached-ketama", Distribution::Spymemcached, Hash::Md5),
    ("twemproxy", Distribution::Ketama, Hash::Fnv1a64),
];

pub(super) fn names() -> [&'static str; 20] {
    CLIENTS.map(|(name, ..)| name)
}

/// How the client with this name places keys.
pub(super) fn placement(client: &str) -> Option<(Distribution, Hash)> {
    CLIENTS.iter().find(|(name, ..)| *name == client).map(|(_, distribution, hash)| (*distribution, *hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_distribution_and_a_hash_that_belong_together() {
        for (name, distribution, hash) in CLIENTS {
            assert!(distribution.hashes().contains(&hash), "{name}");
        }
        // The page has each of them, as the words of a configuration.
        let page = include_str!("../../docs/configuration.md");
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ")).collect();
        for (name, distribution, hash) in CLIENTS {
            let (distribution, hashes) = (format!("| `{:?}` |", distribution.name()), distribution.hashes());
            let hash = if hashes.len() == 1 { "| – |".to_owned() } else { format!("`{:?}`", hash.name()) };
            assert!(rows.iter().any(|row| row.contains(&distribution) && row.contains(&hash)), "{name}");
        }
        assert!(names().is_sorted());
        assert_eq!(placement("dalli"), Some((Distribution::Dalli, Hash::Crc32a)));
        assert_eq!(placement("nobody"), None);
    }
}
