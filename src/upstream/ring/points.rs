//! Rings of points: a key belongs to the server of the first point that is not before its hash.

use md5::{Digest, Md5};
use sha1::Sha1;

use super::hashes::hash_of;
use super::identity::{identity, identity_with_port};
use crate::upstream::md5_lanes::md5_64;
use crate::upstream::scheme::Hash;
use crate::upstream::spec::ServerSpec;

/// Points of a server with average weight on the ketama ring.
const POINTS_PER_SERVER: f32 = 160.0;
/// Points derived from one MD5 digest.
const POINTS_PER_DIGEST: f32 = 4.0;
/// Points of each server in libmemcached's ring without weights.
const POINTS_WITHOUT_WEIGHTS: u32 = 100;

/// The points of a ring and their servers, in ascending order.
#[derive(Debug, Clone)]
pub(super) struct Points {
    pub(super) points: Vec<(u32, u32)>,
    /// The ring is divided into equal sections, about as many as there are points. For each, the index of the first point that is
    /// not before it. A lookup from there takes one or two steps, fewer than a binary search.
    firsts: Vec<u32>,
    /// A position shifted right by this many bits is the index of its section.
    shift: u32,
}

impl Points {
    /// There is at least one point: some server has at least the average weight. If two servers have the same point, the first one
    /// gets it.
    pub(super) fn new(mut points: Vec<(u32, u32)>) -> Points {
        points.sort_by_key(|(point, _)| *point);
        let bits = points.len().next_power_of_two().ilog2().clamp(1, 24);
        let shift = u32::BITS - bits;
        let first = |section: u32| points.partition_point(|(point, _)| *point < section << shift) as u32;
        let firsts = (0..1 << bits).map(first).collect();
        Points { points, firsts, shift }
    }

    /// libmemcached's `update_continuum` and twemproxy's `ketama_update`, equal to the bit: 32-bit floats, except for one addition
    /// that C carries out in 64 bits.
    pub(super) fn ketama(servers: &[ServerSpec]) -> Points {
        let total = total(servers);
        let digests = |server: &ServerSpec| {
            let share = server.weight as f32 / total as f32;
            let digests = share * POINTS_PER_SERVER / POINTS_PER_DIGEST * servers.len() as f32;
            (f64::from(digests) + 1e-10) as f32 as u64
        };
        Points::of_md5(servers, identity, digests)
    }

    /// The same with the counts of node's hashring, in 64-bit floats.
    pub(super) fn hashring(servers: &[ServerSpec]) -> Points {
        let total = total(servers) as f64;
        let digests =
            |server: &ServerSpec| (f64::from(server.weight) / total * 40.0 * servers.len() as f64) as u64;
        Points::of_md5(servers, identity, digests)
    }

    /// The same with whole numbers, and no port left out: Java's text of an address, without the slash before it.
    pub(super) fn spymemcached(servers: &[ServerSpec]) -> Points {
        Points::of_md5(servers, identity_with_port, |server| share_of(server, servers, 40))
    }

    fn of_md5(
        servers: &[ServerSpec],
        text: impl Fn(usize, &ServerSpec) -> String,
        digests: impl Fn(&ServerSpec) -> u64,
    ) -> Points {
        let mut points = Vec::with_capacity(servers.len() * POINTS_PER_SERVER as usize);
        for (index, server) in servers.iter().enumerate() {
            let text = text(index, server);
            for n in 0..digests(server) {
                let digest = Md5::digest(format!("{text}-{n}").as_bytes());
                for word in digest.chunks_exact(4) {
                    points.push((u32::from_le_bytes([word[0], word[1], word[2], word[3]]), index as u32));
                }
            }
        }
        Points::new(points)
    }

    /// libmemcached's `consistent` without weights: one point for each digest, by the hash of the keys.
    pub(super) fn consistent(servers: &[ServerSpec], hash: Hash) -> Points {
        let of = |(index, server): (usize, &ServerSpec)| {
            let text = identity(index, server);
            (0..POINTS_WITHOUT_WEIGHTS).map(move |n| {
                let name = format!("{text}-{n}");
                (hash_of(hash, name.as_bytes(), || md5_64(name.as_bytes())), index as u32)
            })
        };
        Points::new(servers.iter().enumerate().flat_map(of).collect())
    }

    /// Dalli's points, each as its complement: there, a key belongs to the last point that is not after it.
    pub(super) fn dalli(servers: &[ServerSpec]) -> Points {
        let of = |(index, server): (usize, &ServerSpec)| {
            let text = identity_with_port(index, server);
            (0..share_of(server, servers, 160)).map(move |n| {
                let digest = Sha1::digest(format!("{text}:{n}").as_bytes());
                (!u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]), index as u32)
            })
        };
        Points::new(servers.iter().enumerate().flat_map(of).collect())
    }

    /// The points of PHP's memcache: 160 for each unit of weight, whatever the others weigh.
    pub(super) fn php_memcache(servers: &[ServerSpec]) -> Points {
        let of = |(index, server): (usize, &ServerSpec)| {
            let text = identity_with_port(index, server);
            let point = move |n| (crc32fast::hash(format!("{text}-{n}").as_bytes()), index as u32);
            (0..160 * u64::from(server.weight)).map(point)
        };
        Points::new(servers.iter().enumerate().flat_map(of).collect())
    }

    /// The server of the first point that is not before this position. The first point follows the last.
    #[inline]
    pub(super) fn server(&self, position: u32) -> usize {
        let first = self.firsts[(position >> self.shift) as usize] as usize;
        let next = self.points[first..].iter().find(|(point, _)| *point >= position);
        next.unwrap_or(&self.points[0]).1 as usize
    }

    /// The server of the first point that is not before this position and of none of these servers. Without such a point, any
    /// other server.
    pub(super) fn server_without(&self, position: u32, without: &[usize]) -> usize {
        let first = self.points.partition_point(|(point, _)| *point < position);
        let (before, after) = self.points.split_at(first);
        let mut servers = after.iter().chain(before).map(|(_, server)| *server as usize);
        let next = servers.find(|server| !without.contains(server));
        // A server whose weight is too small has no point.
        next.or_else(|| (0..).find(|server| !without.contains(server))).unwrap_or(0)
    }
}

/// Where PHP's memcache looks for a key on its ring: at one of 1,024 positions.
pub(super) fn php_memcache(key: &[u8]) -> u32 {
    crc32fast::hash(key) % 1024 * (u32::MAX / 1024)
}

fn total(servers: &[ServerSpec]) -> u64 {
    servers.iter().map(|server| u64::from(server.weight)).sum()
}

/// The share of a server, if a server of average weight has so many.
fn share_of(server: &ServerSpec, servers: &[ServerSpec], each: u64) -> u64 {
    servers.len() as u64 * each * u64::from(server.weight) / total(servers)
}
