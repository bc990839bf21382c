use std::path::PathBuf;

use super::*;
use crate::upstream::spec::Address;

const KEYS: &str = include_str!("../../../tests/golden/keys.txt");
const TAGGED_KEYS: &str = include_str!("../../../tests/golden/tagged_keys.txt");
const PLACEMENTS: &str = include_str!("../../../tests/golden/placements.txt");
const PINS: &str = include_str!("../../../tests/golden/pins.txt");

/// One line of a golden file: a ring, and the server of each key.
struct Case {
    name: String,
    scheme: Scheme,
    servers: Vec<ServerSpec>,
    keys: Vec<String>,
    /// `None`: the library refuses the key.
    placed: Vec<Option<usize>>,
}

fn ring(servers: &[ServerSpec], distribution: Distribution, hash: Hash) -> Ring {
    Ring::new(servers, &Scheme::whole(distribution, hash))
}

fn server(text: &str) -> ServerSpec {
    let (address, rest) = text.split_once('*').unwrap();
    let (weight, name) = rest.split_once('=').unwrap();
    let address = match address.strip_prefix("unix:") {
        Some(path) => Address::Unix(PathBuf::from(path)),
        None => {
            let (host, port) = address.rsplit_once(':').unwrap();
            Address::Tcp { host: host.trim_matches(['[', ']']).into(), port: port.parse().unwrap() }
        }
    };
    let name = (!name.is_empty()).then(|| name.into());
    ServerSpec { address, weight: weight.parse().unwrap(), name }
}

fn case(line: &str) -> Case {
    let [origin, distribution, hash, name, servers, placed] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    let (hash_name, part) = hash.split_once('+').unwrap_or((hash, ""));
    let keys: Vec<_> = match part {
        "{}" => TAGGED_KEYS.lines().map(String::from).collect(),
        prefix => KEYS.lines().map(|key| format!("{prefix}{key}")).collect(),
    };
    Case {
        name: format!("{origin} {distribution} {hash} {name}"),
        scheme: Scheme {
            distribution: Distribution::NAMES.iter().find(|(name, _)| *name == distribution).unwrap().1,
            hash: Hash::NAMES.iter().find(|(name, _)| *name == hash_name).unwrap().1,
            part: match part {
                "" => HashedPart::Whole,
                "{}" => HashedPart::Between(*b"{}"),
                prefix => HashedPart::After(vec![prefix.into()]),
            },
        },
        keys,
        servers: servers.split(',').map(server).collect(),
        placed: placed
            .chars()
            .map(|digit| (digit != '-').then(|| digit.to_digit(36).unwrap() as usize))
            .collect(),
    }
}

/// Checks the placement of every key in every case, and returns the number of cases.
fn agree(golden: &str, of: Distribution) -> usize {
    let cases = golden.lines().filter(|line| !line.starts_with('#')).map(case);
    let cases: Vec<_> = cases.filter(|case| case.scheme.distribution == of).collect();
    let mut wrong = Vec::new();
    for Case { name, scheme, servers, keys, placed } in &cases {
        assert_eq!(placed.len(), keys.len());
        let ring = Ring::new(servers, scheme);
        let elsewhere: Vec<_> = keys
            .iter()
            .zip(placed)
            .filter(|(key, at)| at.is_some_and(|at| ring.server(key.as_bytes()) != at))
            .collect();
        if let Some(first) = elsewhere.first() {
            wrong.push(format!("{name}: {} of {} keys elsewhere: {first:?}", elsewhere.len(), keys.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    cases.len()
}

#[test]
fn ketama_places_keys_where_libmemcached_and_twemproxy_do() {
    assert_eq!(agree(PLACEMENTS, Distribution::Ketama), 52);
}

#[test]
fn modula_places_keys_where_libmemcached_does_also_for_a_list_in_descending_order() {
    assert_eq!(agree(PLACEMENTS, Distribution::Modula), 33);
}

#[test]
fn modula_sorted_places_keys_where_twemproxy_does() {
    assert_eq!(agree(PLACEMENTS, Distribution::ModulaSorted), 31);
}

#[test]
fn modula_weighted_places_keys_where_libraries_of_python_php_and_perl_do() {
    assert_eq!(agree(PLACEMENTS, Distribution::ModulaWeighted), 9);
}

#[test]
fn consistent_places_keys_where_libmemcached_does_without_weights() {
    assert_eq!(agree(PLACEMENTS, Distribution::Consistent), 10);
}

#[test]
fn the_distributions_of_clients_place_keys_where_these_do() {
    assert_eq!(agree(PLACEMENTS, Distribution::Dalli), 4);
    assert_eq!(agree(PLACEMENTS, Distribution::PhpMemcache), 5);
    assert_eq!(agree(PLACEMENTS, Distribution::Pymemcache), 4);
    assert_eq!(agree(PLACEMENTS, Distribution::Spymemcached), 3);
    assert_eq!(agree(PLACEMENTS, Distribution::Hashring), 4);
}

#[test]
fn ch3_places_keys_where_mcrouter_does() {
    assert_eq!(agree(PLACEMENTS, Distribution::Ch3), 5);
}

#[test]
fn two_lists_of_modula_in_another_order_are_two_placements_and_of_modula_sorted_one() {
    let listed = servers(&[1, 1, 1]);
    let reversed: Vec<_> = listed.iter().rev().cloned().collect();
    let is_one = |distribution| {
        let id = |servers| placement_id(servers, &Scheme::whole(distribution, Hash::Crc32));
        id(&listed[..]) == id(&reversed[..])
    };
    assert!(!is_one(Distribution::Modula) && is_one(Distribution::ModulaSorted));
}

#[test]
fn jump_and_rendezvous_place_keys_as_pinned() {
    assert_eq!(agree(PINS, Distribution::Jump), 8);
    assert_eq!(agree(PINS, Distribution::Rendezvous), 8);
}

fn servers(weights: &[u32]) -> Vec<ServerSpec> {
    let spec = |(n, weight): (usize, &u32)| server(&format!("10.0.0.{n}:11211*{weight}="));
    weights.iter().enumerate().map(spec).collect()
}

fn keys() -> impl Iterator<Item = String> {
    (0..20_000).map(|n| format!("user:{n}:profile"))
}

#[test]
fn every_server_gets_the_share_of_its_weight() {
    let weights = [1, 1, 2, 4, 4, 8];
    let total: u32 = weights.iter().sum();
    use Distribution::{Jump, Ketama, Modula, Rendezvous};
    // The standard deviation of a server's count is at most 2% of it. For ketama, the placement of the points adds about 8%
    // for the lightest server, which has 48 of them, hence a tolerance of a third.
    for (distribution, hash, tolerance) in [
        (Ketama, Hash::Md5, 0.33),
        (Modula, Hash::Crc32a, 0.10),
        (Modula, Hash::Fnv1a32, 0.10),
        (Modula, Hash::Crc32, 0.10),
        (Jump, Hash::Md5, 0.10),
        (Rendezvous, Hash::Md5, 0.10),
    ] {
        let placed = ring(&servers(&weights), distribution, hash);
        let mut counts = [0u32; 6];
        keys().for_each(|key| counts[placed.server(key.as_bytes())] += 1);
        for (count, weight) in counts.iter().zip(weights) {
            let share = f64::from(*count) / 20_000.0 / (f64::from(weight) / f64::from(total));
            assert!((share - 1.0).abs() < tolerance, "{distribution:?} {hash:?}: {counts:?}");
        }
    }
}

/// When server 2 of eight is removed: how many keys of the other servers move, and how many keys were on it.
fn moved(weights: &[u32; 8], distribution: Distribution) -> (usize, usize) {
    let all = servers(weights);
    let mut fewer = all.clone();
    fewer.remove(2);
    let (before, after) = (ring(&all, distribution, Hash::Md5), ring(&fewer, distribution, Hash::Md5));
    let (mut moved, mut lost) = (0, 0);
    for key in keys() {
        let (was, is) = (before.server(key.as_bytes()), after.server(key.as_bytes()));
        if was == 2 {
            lost += 1;
        } else if all[was] != fewer[is] {
            moved += 1;
        }
    }
    (moved, lost)
}

#[test]
fn removing_a_server_moves_its_own_keys_only() {
    let equal = [1; 8];
    for distribution in [Distribution::Ketama, Distribution::Rendezvous] {
        let (moved, lost) = moved(&equal, distribution);
        assert_eq!(moved, 0, "{distribution:?}");
        assert!((1_500..3_500).contains(&lost), "{distribution:?}: {lost}");
    }
    let weighted = [1, 2, 3, 4, 1, 2, 3, 4];
    assert_eq!(moved(&weighted, Distribution::Rendezvous).0, 0);
    // Weighted ketama floors each server's share of the points, so some points of other servers change too.
    assert!(moved(&weighted, Distribution::Ketama).0 < 1_500);
    // The counter-example: modula moves nearly all keys.
    assert!(moved(&equal, Distribution::Modula).0 > 12_000);
}

#[test]
fn jump_gives_a_new_last_server_its_share_and_moves_nothing_else() {
    let (all, fewer) = (servers(&[2, 1, 3, 2]), servers(&[2, 1, 3]));
    let (before, after) =
        (ring(&fewer, Distribution::Jump, Hash::Md5), ring(&all, Distribution::Jump, Hash::Md5));
    let moves = keys().map(|key| (before.server(key.as_bytes()), after.server(key.as_bytes())));
    let moves: Vec<_> = moves.filter(|(was, is)| was != is).collect();
    assert!(moves.iter().all(|(_, is)| *is == 3));
    assert!((4_500..5_500).contains(&moves.len()), "{}", moves.len());
}

#[test]
fn a_named_server_keeps_its_keys_at_any_address() {
    let named = |text: &[&str]| text.iter().map(|text| server(text)).collect::<Vec<_>>();
    let here = named(&["10.0.0.1:11211*1=a", "10.0.0.2:11211*1=b", "10.0.0.3:11211*2=c"]);
    let there = named(&["10.9.0.1:4000*1=a", "unix:/run/b*1=b", "[fd00::3]:11211*2=c"]);
    for distribution in [Distribution::Ketama, Distribution::Rendezvous] {
        let rings = [&here, &there].map(|servers| ring(servers, distribution, Hash::Md5));
        assert!(keys().all(|key| rings[0].server(key.as_bytes()) == rings[1].server(key.as_bytes())));
    }
}

#[test]
fn several_embedded_servers_share_the_keys_and_their_sizes_do_not_matter() {
    let embedded = |limits: [u64; 2]| {
        limits.map(|limit| ServerSpec { address: Address::Embedded { limit }, weight: 1, name: None })
    };
    let (small, large) = (embedded([1 << 20, 1 << 20]), embedded([1 << 30, 1 << 20]));
    for distribution in [Distribution::Ketama, Distribution::Rendezvous] {
        let (small, large) = (ring(&small, distribution, Hash::Md5), ring(&large, distribution, Hash::Md5));
        assert!(keys().all(|key| small.server(key.as_bytes()) == large.server(key.as_bytes())));
        let first = keys().filter(|key| small.server(key.as_bytes()) == 0).count();
        assert!((8_000..12_000).contains(&first), "{distribution:?}: {first}");
    }
}

#[test]
fn the_largest_weights_neither_overflow_nor_take_memory() {
    let heavy = servers(&[u32::MAX, u32::MAX, 1]);
    for distribution in
        [Distribution::Ketama, Distribution::Modula, Distribution::Jump, Distribution::Rendezvous]
    {
        let placed = ring(&heavy, distribution, Hash::Md5);
        let first = keys().filter(|key| placed.server(key.as_bytes()) == 0).count();
        let expected = if distribution == Distribution::Modula { 20_000..20_001 } else { 8_000..12_000 };
        assert!(expected.contains(&first), "{distribution:?}: {first}");
    }
}

#[test]
fn a_hundred_servers_have_points_and_keys() {
    let placed = ring(&servers(&[1; 100]), Distribution::Ketama, Hash::Md5);
    let Placement::Ketama { points: Points { points, .. }, .. } = &placed.placement else {
        panic!("{placed:?}")
    };
    // Not 16,000: in 32-bit floats 1/100 is slightly less than a hundredth, so every server has 39 digests.
    assert_eq!(points.len(), 15_600);
    assert!(points.is_sorted());
    let used: std::collections::HashSet<_> = keys().map(|key| placed.server(key.as_bytes())).collect();
    assert_eq!(used.len(), 100);
}

#[test]
fn a_position_belongs_to_the_first_point_that_is_not_before_it() {
    let mut random = fastrand::Rng::with_seed(1);
    let far = |random: &mut fastrand::Rng| random.u32(..);
    let near = |random: &mut fastrand::Rng| random.u32(..1000);
    for (count, place) in
        [(1, far as fn(&mut _) -> u32), (2, far), (3, far), (480, far), (500, near), (15_600, far)]
    {
        let mut positions: Vec<u32> = (0..count).map(|_| place(&mut random)).collect();
        positions.sort_unstable();
        let points = Points::new(positions.iter().copied().zip(0..).collect());
        let edges = positions.iter().flat_map(|at| [at.saturating_sub(1), *at, at.saturating_add(1)]);
        for position in edges.chain([0, u32::MAX]) {
            let at = positions.partition_point(|point| *point < position) % positions.len();
            assert_eq!(points.server(position), at, "{position} of {count}");
        }
    }
}

#[test]
fn the_keys_of_a_server_that_is_taken_out_are_spread_over_all_others() {
    use Distribution::{Jump, Ketama, Modula, Rendezvous};
    let weights = [1, 1, 2, 4, 4, 8];
    let all = servers(&weights);
    for (distribution, hash) in
        [(Ketama, Hash::Md5), (Modula, Hash::Crc32a), (Jump, Hash::Md5), (Rendezvous, Hash::Md5)]
    {
        let placed = ring(&all, distribution, hash);
        for without in 0..weights.len() {
            let mut counts = [0u32; 6];
            for key in keys().filter(|key| placed.server(key.as_bytes()) == without) {
                counts[placed.server_without(key.as_bytes(), &[without])] += 1;
            }
            assert_eq!(counts[without], 0);
            let used = counts.iter().filter(|count| **count > 0).count();
            assert_eq!(used, 5, "{distribution:?} without {without}: {counts:?}");
        }
    }
}

#[test]
fn a_ring_without_a_server_is_the_ring_of_the_others() {
    use Distribution::{Ketama, Modula, Rendezvous};
    for (distribution, hash) in
        [(Ketama, Hash::Md5), (Modula, Hash::Crc32), (Modula, Hash::Md5), (Rendezvous, Hash::Md5)]
    {
        // With other weights, ketama gives the others different numbers of points.
        let weights: &[u32] = if distribution == Ketama { &[1; 5] } else { &[1, 3, 1, 2, 5] };
        let all = servers(weights);
        let placed = ring(&all, distribution, hash);
        for without in [&[][..], &[0], &[2], &[4], &[1, 3]] {
            let left: Vec<usize> = (0..all.len()).filter(|index| !without.contains(index)).collect();
            let others: Vec<_> = left.iter().map(|index| all[*index].clone()).collect();
            let smaller = ring(&others, distribution, hash);
            for key in keys().take(2000) {
                let found = placed.server_without(key.as_bytes(), without);
                assert_eq!(found, left[smaller.server(key.as_bytes())], "{distribution:?} {without:?} {key}");
            }
        }
    }
}

#[test]
fn a_server_without_points_is_found_if_no_other_is_left() {
    let placed = ring(&servers(&[1000, 1, 1000]), Distribution::Ketama, Hash::Md5);
    assert_eq!(placed.server_without(b"k", &[0, 2]), 1);
}
