//! How many keys two rings place on each pair of servers.

use std::collections::BTreeMap;

use super::points::Points;
use super::slots::Slots;
use super::{Placement, Ring};
use crate::upstream::md5_lanes::md5_64;
use crate::upstream::scheme::Hash;

/// Keys that are placed by both rings where their shares are not computed.
const SAMPLES: u32 = 1 << 18;
/// Residues that are counted one by one. Beyond that, keys are sampled.
const COUNTABLE: u64 = 1 << 22;

/// The share of all keys for each pair of servers: the one where the first ring places them, and the one where the second does.
#[derive(Debug, Clone, PartialEq)]
pub struct PairShares {
    /// Shares by the indexes of the two servers. Their sum is 1; those that are not listed are 0.
    pub shares: BTreeMap<(usize, usize), f64>,
    /// The number of keys that were sampled; `None` if the shares are exact, for keys whose hashes are evenly distributed.
    pub samples: Option<u32>,
}

impl PairShares {
    /// Half the width of the 95 % confidence interval of a share; 0 if the shares are exact.
    pub fn error(&self, share: f64) -> f64 {
        let samples = |n| 1.96 * (share * (1.0 - share) / f64::from(n)).sqrt();
        self.samples.map_or(0.0, samples)
    }
}

impl Ring {
    /// The share of keys for each pair of a server of this ring and one of `other`.
    ///
    /// Exact for two rings of ketama (lengths of arcs), of jump, or of modula with the same hash (counted residues), and where
    /// one ring of these has a single server. Otherwise a fixed set of keys is placed by both.
    pub fn pair_shares(&self, other: &Ring) -> PairShares {
        let (a, b) = match (&self.placement, &other.placement) {
            // What is hashed of a key is as evenly distributed as keys.
            (Placement::OfPart { part: a, ring }, Placement::OfPart { part: b, ring: to }) if a == b => {
                (&**ring, &**to)
            }
            (Placement::OfPart { ring, .. }, Placement::Single) => (&**ring, other),
            (Placement::Single, Placement::OfPart { ring, .. }) => (self, &**ring),
            _ => (self, other),
        };
        let one_point = || Points::new(vec![(0, 0)]);
        let one_slot = || Slots { runs: vec![(1, 0)] };
        let exact = match (&a.placement, &b.placement) {
            (Placement::Single, Placement::Single) => Some(BTreeMap::from([((0, 0), 1.0)])),
            (Placement::Ketama { points: a, hash }, Placement::Ketama { points: b, hash: same })
                if hash == same && is_even(*hash) =>
            {
                Some(arcs(a, b))
            }
            (Placement::Ketama { points, hash }, Placement::Single) if is_even(*hash) => {
                Some(arcs(points, &one_point()))
            }
            (Placement::Single, Placement::Ketama { points, hash }) if is_even(*hash) => {
                Some(arcs(&one_point(), points))
            }
            (Placement::Modula { slots: a, hash }, Placement::Modula { slots: b, hash: same })
                if hash == same && has_residues(*hash) =>
            {
                residues(a, b, *hash)
            }
            (Placement::Modula { slots, hash }, Placement::Single) if has_residues(*hash) => {
                residues(slots, &one_slot(), *hash)
            }
            (Placement::Single, Placement::Modula { slots, hash }) if has_residues(*hash) => {
                residues(&one_slot(), slots, *hash)
            }
            (Placement::Jump { slots: a }, Placement::Jump { slots: b }) => Some(jumps(a, b)),
            (Placement::Jump { slots }, Placement::Single) => Some(jumps(slots, &one_slot())),
            (Placement::Single, Placement::Jump { slots }) => Some(jumps(&one_slot(), slots)),
            _ => None,
        };
        match exact {
            Some(shares) => PairShares { shares, samples: None },
            None => PairShares { shares: sampled(a, b, SAMPLES), samples: Some(SAMPLES) },
        }
    }
}

/// Whether the hashes of keys are distributed evenly over 32 bits.
fn is_even(hash: Hash) -> bool {
    !matches!(hash, Hash::Crc32 | Hash::Crc16 | Hash::Java | Hash::Memjs)
}

/// Whether how many of its values have a residue tells how many keys do.
fn has_residues(hash: Hash) -> bool {
    is_even(hash) || hash == Hash::Crc32
}

/// Between two neighbouring points of either ring, all positions belong to the same pair.
fn arcs(a: &Points, b: &Points) -> BTreeMap<(usize, usize), f64> {
    let mut ends: Vec<u32> = a.points.iter().chain(&b.points).map(|(point, _)| *point).collect();
    ends.push(u32::MAX);
    ends.sort_unstable();
    ends.dedup();
    let (mut shares, mut begin) = (BTreeMap::new(), 0u64);
    for end in ends {
        let length = u64::from(end) + 1 - begin;
        *shares.entry((a.server(end), b.server(end))).or_insert(0u64) += length;
        begin = u64::from(end) + 1;
    }
    shares.into_iter().map(|(pair, positions)| (pair, positions as f64 / (1u64 << 32) as f64)).collect()
}

/// Counts the hashes of each residue modulo both counts. `None` if there are too many residues.
fn residues(a: &Slots, b: &Slots, hash: Hash) -> Option<BTreeMap<(usize, usize), f64>> {
    let hashes: u64 = if hash == Hash::Crc32 { 1 << 15 } else { 1 << 32 };
    let (n, m) = (a.count(), b.count());
    let period = (n / common_divisor(n, m)).checked_mul(m)?.min(hashes);
    if period > COUNTABLE {
        return None;
    }
    let mut counts = BTreeMap::new();
    for residue in 0..period {
        let of_residue = (hashes - residue).div_ceil(period);
        *counts.entry((a.server(residue % n), b.server(residue % m))).or_insert(0u64) += of_residue;
    }
    Some(counts.into_iter().map(|(pair, count)| (pair, count as f64 / hashes as f64)).collect())
}

fn common_divisor(n: u64, m: u64) -> u64 {
    if m == 0 { n } else { common_divisor(m, n % m) }
}

/// With fewer and more slots, a key keeps its slot with the probability fewer / more. Otherwise it is in one of the added slots,
/// with the same probability in each, wherever it was before.
fn jumps(a: &Slots, b: &Slots) -> BTreeMap<(usize, usize), f64> {
    let (fewer, more) = (a.count().min(b.count()), a.count().max(b.count()));
    let mut shares = BTreeMap::new();
    for ((from, server), (to, other)) in runs(a).flat_map(|run| runs(b).map(move |with| (run.clone(), with)))
    {
        let kept = from.end.min(to.end).saturating_sub(from.start.max(to.start)) as f64 / more as f64;
        // The run of the ring with fewer slots, and that of the other one.
        let (short, long) = if a.count() <= b.count() { (&from, &to) } else { (&to, &from) };
        let added = long.end.saturating_sub(long.start.max(fewer)) as f64 / more as f64;
        let share = kept + (short.end - short.start) as f64 / fewer as f64 * added;
        if share > 0.0 {
            *shares.entry((server, other)).or_insert(0.0) += share;
        }
    }
    shares
}

/// The slots of each server.
fn runs(slots: &Slots) -> impl Iterator<Item = (std::ops::Range<u64>, usize)> + Clone + '_ {
    let starts = std::iter::once(0).chain(slots.runs.iter().map(|(end, _)| *end));
    starts.zip(&slots.runs).map(|(start, (end, server))| (start..*end, *server))
}

fn sampled(a: &Ring, b: &Ring, samples: u32) -> BTreeMap<(usize, usize), f64> {
    let mut counts = BTreeMap::new();
    for n in 0..samples {
        let key = format!("key:{n}");
        let md5 = md5_64(key.as_bytes());
        let of = |ring: &Ring| ring.server_by(key.as_bytes(), || md5);
        *counts.entry((of(a), of(b))).or_insert(0u32) += 1;
    }
    counts.into_iter().map(|(pair, count)| (pair, f64::from(count) / f64::from(samples))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::scheme::{Distribution, Scheme};
    use crate::upstream::spec::{Address, ServerSpec};

    fn ring(weights: &[u32], distribution: Distribution, hash: Hash) -> Ring {
        let server = |(n, weight): (usize, &u32)| ServerSpec {
            address: Address::Tcp { host: format!("10.0.0.{n}"), port: 11211 },
            weight: *weight,
            name: None,
        };
        Ring::new(
            &weights.iter().enumerate().map(server).collect::<Vec<_>>(),
            &Scheme::whole(distribution, hash),
        )
    }

    /// Compares computed shares with those of sampled keys.
    fn check(a: &Ring, b: &Ring, exact: bool) {
        let computed = a.pair_shares(b);
        assert_eq!(computed.samples.is_none(), exact, "{a:?} {b:?}");
        let sum: f64 = computed.shares.values().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let samples = sampled(a, b, 40_000);
        for pair in computed.shares.keys().chain(samples.keys()) {
            let of = |shares: &BTreeMap<(usize, usize), f64>| shares.get(pair).copied().unwrap_or(0.0);
            let (computed, sample) = (of(&computed.shares), of(&samples));
            assert!((computed - sample).abs() < 0.012, "{pair:?}: {computed} computed, {sample} sampled");
        }
    }

    #[test]
    fn the_computed_shares_are_those_of_sampled_keys() {
        for (before, after) in [
            (&[1, 1, 1][..], &[1, 1, 1, 1][..]),
            (&[1, 1, 1, 1], &[1, 1, 1]),
            (&[2, 1, 3], &[2, 2, 3, 1]),
            (&[1], &[1, 1]),
            (&[3, 1], &[1]),
            (&[1], &[1]),
        ] {
            for distribution in [Distribution::Ketama, Distribution::Jump] {
                let of = |weights| ring(weights, distribution, Hash::Md5);
                check(&of(before), &of(after), true);
            }
            for hash in [Hash::Md5, Hash::Crc32, Hash::Crc32a, Hash::Fnv1a32] {
                let of = |weights| ring(weights, Distribution::Modula, hash);
                // crc32 has only 32,768 values, so similar keys are less evenly distributed: too coarse to compare here.
                if hash != Hash::Crc32 {
                    check(&of(before), &of(after), true);
                }
            }
        }
        let of = |distribution| ring(&[1, 2, 1], distribution, Hash::Md5);
        check(&of(Distribution::Rendezvous), &of(Distribution::Rendezvous), false);
        check(&of(Distribution::Ketama), &of(Distribution::Rendezvous), false);
        check(&of(Distribution::Jump), &of(Distribution::Modula), false);
    }

    #[test]
    fn the_same_ring_moves_nothing_and_modula_moves_nearly_all() {
        for distribution in
            [Distribution::Ketama, Distribution::Modula, Distribution::Jump, Distribution::Rendezvous]
        {
            let same = ring(&[1, 2, 1], distribution, Hash::Md5);
            assert!(same.pair_shares(&same).shares.keys().all(|(a, b)| a == b), "{distribution:?}");
        }
        let of = |servers: &[u32]| ring(servers, Distribution::Modula, Hash::Crc32a);
        let shares = of(&[1; 3]).pair_shares(&of(&[1; 4])).shares;
        let kept: f64 = shares.iter().filter(|((a, b), _)| a == b).map(|(_, share)| share).sum();
        assert!((kept - 0.25).abs() < 1e-6, "{kept}");
    }

    #[test]
    fn residues_that_are_too_many_to_count_are_sampled() {
        let of = |weight| ring(&[65_535, weight], Distribution::Modula, Hash::Md5);
        check(&of(65_521), &of(65_519), false);
    }
}
