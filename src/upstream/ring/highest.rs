//! Highest random weight: each server has a number for a key, and the server with the highest one holds it.

use super::hashes::murmur3;
use super::identity::{identity, identity_with_port};
use crate::upstream::md5_lanes::md5_64;
use crate::upstream::spec::ServerSpec;

/// A server of a rendezvous ring.
#[derive(Debug, Clone)]
pub(super) struct WeightedServer {
    id: u64,
    weight: f64,
}

pub(super) fn weighted(servers: &[ServerSpec]) -> Vec<WeightedServer> {
    let of = |(index, server): (usize, &ServerSpec)| WeightedServer {
        id: md5_64(identity(index, server).as_bytes()),
        weight: f64::from(server.weight),
    };
    servers.iter().enumerate().map(of).collect()
}

/// Weighted highest random weight: the server with the highest −w / ln(h), where h in (0, 1) is a hash of the server and the
/// key. A server's share of the keys is its share of the weight, and a key moves only to or from a server that is added,
/// removed or changes its weight. Of equals the first is taken.
pub(super) fn highest(servers: &[WeightedServer], without: &[usize], key: u64) -> usize {
    let (mut best, mut high) = (0, f64::NEG_INFINITY);
    for (index, server) in servers.iter().enumerate() {
        if without.contains(&index) {
            continue;
        }
        // 52 bits plus one half: exact, and neither 0 nor 1.
        let hash = ((mix(server.id ^ key) >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
        let score = -server.weight / hash.ln();
        if score > high {
            (best, high) = (index, score);
        }
    }
    best
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of the argument.
pub(super) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// The text that pymemcache puts before a key, for each server.
pub(super) fn pymemcache_texts(servers: &[ServerSpec]) -> Vec<String> {
    let of = |(index, server): (usize, &ServerSpec)| format!("{}-", identity_with_port(index, server));
    servers.iter().enumerate().map(of).collect()
}

/// pymemcache takes each character as one byte. Of equals the server with the greatest text is taken.
pub(super) fn pymemcache(texts: &[String], without: &[usize], key: &[u8]) -> usize {
    let text = std::str::from_utf8(key).unwrap_or_default();
    let length = if text.is_ascii() { key.len() } else { text.chars().count() };
    let score = |server: &String| {
        let server = server.bytes();
        let all = server.len() + length;
        match text.is_ascii() {
            true => murmur3(server.chain(key.iter().copied()), all),
            false => murmur3(server.chain(text.chars().map(|character| character as u8)), all),
        }
    };
    let others = texts.iter().enumerate().filter(|(index, _)| !without.contains(index));
    others.max_by_key(|(_, server)| (score(server), *server)).map_or(0, |(index, _)| index)
}
