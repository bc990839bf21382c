//! Which server holds a key.
//!
//! Pure: the same servers in the same order place a key identically in every sidecar, version and platform. A changed
//! placement means a cold cache, so `tests/golden/` pins all of them: each against the libraries that it is named after, jump and
//! rendezvous against a second implementation.
//!
//! A server is identified by its configured name. Otherwise, as in libmemcached, by `host` for port 11211, `host:port` for other
//! ports (an IPv6 host without brackets), and `path:0` for a Unix socket; libraries that have another text for an address are in
//! `identity`. The modulas, jump and ch3 use the order of the configuration; `modula_sorted` sorts by this identity.

mod ch3;
mod hashes;
mod highest;
mod identity;
mod moves;
mod points;
mod slots;
#[cfg(test)]
mod tests;

use self::ch3::ch3;
use self::hashes::hash_of;
use self::highest::{WeightedServer, highest, mix, pymemcache, pymemcache_texts, weighted};
use self::identity::identity;
pub use self::moves::PairShares;
use self::points::{Points, php_memcache};
use self::slots::{Slots, jump};
use super::md5_lanes::md5_64;
use super::scheme::{Distribution, Hash, HashedPart, Scheme};
use super::spec::ServerSpec;

/// The placement of keys on a pool's servers.
#[derive(Debug, Clone)]
pub struct Ring {
    placement: Placement,
}

#[derive(Debug, Clone)]
enum Placement {
    /// A pool of one server: nothing is hashed.
    Single,
    /// Also every other ring of points but these two.
    Ketama {
        points: Points,
        hash: Hash,
    },
    Dalli {
        points: Points,
    },
    PhpMemcache {
        points: Points,
    },
    Modula {
        slots: Slots,
        hash: Hash,
    },
    Jump {
        slots: Slots,
    },
    Ch3 {
        slots: Slots,
    },
    Rendezvous {
        servers: Vec<WeightedServer>,
    },
    Pymemcache {
        texts: Vec<String>,
    },
    /// The placement of a part of the key. It is apart so that the others need not ask.
    OfPart {
        part: HashedPart,
        ring: Box<Ring>,
    },
}

impl Ring {
    /// The ring of `servers`: at least one, each with a weight of at least 1.
    ///
    /// Where a distribution leaves a choice, `hash` is applied to keys. As in twemproxy, the points of a ketama ring are always
    /// derived from MD5. Jump and rendezvous need 64 bits, and always use the first eight bytes of a key's MD5.
    pub fn new(servers: &[ServerSpec], scheme: &Scheme) -> Ring {
        let hash = scheme.hash;
        let placement = match scheme.distribution {
            _ if servers.len() < 2 => Placement::Single,
            Distribution::Ketama => Placement::Ketama { points: Points::ketama(servers), hash },
            Distribution::Consistent => Placement::Ketama { points: Points::consistent(servers, hash), hash },
            Distribution::Spymemcached => Placement::Ketama { points: Points::spymemcached(servers), hash },
            Distribution::Hashring => Placement::Ketama { points: Points::hashring(servers), hash },
            Distribution::Dalli => Placement::Dalli { points: Points::dalli(servers) },
            Distribution::PhpMemcache => Placement::PhpMemcache { points: Points::php_memcache(servers) },
            Distribution::Modula | Distribution::ModulaWeighted => {
                Placement::Modula { slots: Slots::listed(servers), hash }
            }
            Distribution::ModulaSorted => Placement::Modula { slots: Slots::sorted(servers), hash },
            Distribution::Jump => Placement::Jump { slots: Slots::listed(servers) },
            Distribution::Ch3 => Placement::Ch3 { slots: Slots::listed(servers) },
            Distribution::Rendezvous => Placement::Rendezvous { servers: weighted(servers) },
            Distribution::Pymemcache => Placement::Pymemcache { texts: pymemcache_texts(servers) },
        };
        match (&scheme.part, placement) {
            (HashedPart::Whole, placement) | (_, placement @ Placement::Single) => Ring { placement },
            (part, placement) => Ring {
                placement: Placement::OfPart { part: part.clone(), ring: Box::new(Ring { placement }) },
            },
        }
    }

    /// Whether finding a server takes a key's MD5.
    pub fn wants_md5(&self) -> bool {
        match &self.placement {
            Placement::Ketama { hash, .. } | Placement::Modula { hash, .. } => *hash == Hash::Md5,
            Placement::Jump { .. } | Placement::Rendezvous { .. } => true,
            _ => false,
        }
    }

    /// Whether it pays to remember the server of a key.
    pub fn is_costly(&self) -> bool {
        match &self.placement {
            Placement::Ch3 { .. } | Placement::Pymemcache { .. } => true,
            Placement::OfPart { ring, .. } => ring.is_costly(),
            _ => self.wants_md5(),
        }
    }

    /// The index of the server that holds `key`, among the servers passed to [`Ring::new`].
    pub fn server(&self, key: &[u8]) -> usize {
        self.server_by(key, || md5_64(key))
    }

    /// The same, with a function for the first eight bytes of the key's MD5, which may be known already.
    pub(super) fn server_by(&self, key: &[u8], md5: impl Fn() -> u64) -> usize {
        match &self.placement {
            Placement::Single => 0,
            Placement::Ketama { points, hash } => points.server(hash_of(*hash, key, md5)),
            Placement::Dalli { points } => points.server(!crc32fast::hash(key)),
            Placement::PhpMemcache { points } => points.server(php_memcache(key)),
            Placement::Modula { slots, hash } => {
                slots.server(u64::from(hash_of(*hash, key, md5)) % slots.count())
            }
            Placement::Jump { slots } => slots.server(jump(md5(), slots.count())),
            Placement::Ch3 { slots } => slots.server(ch3(key, slots.count())),
            Placement::Rendezvous { servers } => highest(servers, &[], md5()),
            Placement::Pymemcache { texts } => pymemcache(texts, &[], key),
            Placement::OfPart { part, ring } => ring.server_of_part(part.of(key)),
        }
    }

    /// Apart from [`Ring::server_by`], which would otherwise be made for an endless number of functions.
    fn server_of_part(&self, part: &[u8]) -> usize {
        self.server_by(part, || md5_64(part))
    }

    /// The index of the server that holds `key`, which one of these servers holds otherwise, if it is kept on the others, of which
    /// there must be one. With all distributions but jump and ch3 this is the ring without these servers.
    pub fn server_without(&self, key: &[u8], without: &[usize]) -> usize {
        let md5 = || md5_64(key);
        match &self.placement {
            Placement::Single => 0,
            Placement::Ketama { points, hash } => points.server_without(hash_of(*hash, key, md5), without),
            Placement::Dalli { points } => points.server_without(!crc32fast::hash(key), without),
            Placement::PhpMemcache { points } => points.server_without(php_memcache(key), without),
            Placement::Modula { slots, hash } => {
                let slot = u64::from(hash_of(*hash, key, md5));
                slots.server_without(without, |count| slot % count)
            }
            // With the same hash, all keys of a slot would move to one other.
            Placement::Jump { slots } => slots.server_without(without, |count| jump(mix(md5()), count)),
            Placement::Ch3 { slots } => {
                slots.server_without(without, |count| jump(mix(ch3::hash(key)), count))
            }
            Placement::Rendezvous { servers } => highest(servers, without, md5()),
            Placement::Pymemcache { texts } => pymemcache(texts, without, key),
            Placement::OfPart { part, ring } => ring.server_without(part.of(key), without),
        }
    }
}

/// A number for this placement of keys: equal for servers, weights and schemes that place all keys alike, and otherwise different.
/// The order of the servers counts only where it affects the placement.
pub fn placement_id(servers: &[ServerSpec], scheme: &Scheme) -> u64 {
    let describe =
        |(index, server): (usize, &ServerSpec)| format!("{}*{}", identity(index, server), server.weight);
    let mut all: Vec<String> = servers.iter().enumerate().map(describe).collect();
    let Scheme { distribution, hash, part } = scheme;
    if !distribution.is_ordered() {
        all.sort();
    }
    let part = match part {
        HashedPart::Whole => String::new(),
        part => format!("{part:?} "),
    };
    // A space is in no identity.
    md5_64(format!("{part}{distribution:?} {hash:?} {}", all.join(" ")).as_bytes())
}

/// A number for a text: the same in every process and version.
pub fn text_id(text: &str) -> u64 {
    md5_64(text.as_bytes())
}

/// A number for the identity of each server on the ring.
pub fn identity_ids(servers: &[ServerSpec]) -> Vec<u64> {
    servers.iter().enumerate().map(|(index, server)| md5_64(identity(index, server).as_bytes())).collect()
}
