//! Which server holds a key.
//!
//! Pure: the same servers in the same order place a key identically in every sidecar, version and platform. A changed
//! placement means a cold cache, so `tests/golden/` pins all of them: ketama and modula against libmemcached and twemproxy,
//! jump and rendezvous against a second implementation.
//!
//! Ketama and rendezvous identify a server by its configured name. Otherwise, as in libmemcached, they use `host` for port
//! 11211, `host:port` for other ports (an IPv6 host without brackets), and `path:0` for a Unix socket. `modula_sorted`
//! sorts by this identity; modula and jump use only the order of the configuration.

mod moves;

use md5::{Digest, Md5};

pub use self::moves::PairShares;
use super::md5_lanes::md5_64;
use super::spec::{Address, Distribution, Hash, ServerSpec};

/// Points of a server with average weight on the ketama ring.
const POINTS_PER_SERVER: f32 = 160.0;
/// Points derived from one MD5 digest.
const POINTS_PER_DIGEST: f32 = 4.0;
/// The port that is left out of a server's identity.
const DEFAULT_PORT: u16 = 11211;

/// The placement of keys on a pool's servers.
#[derive(Debug, Clone)]
pub struct Ring {
    placement: Placement,
}

#[derive(Debug, Clone)]
enum Placement {
    /// A pool of one server: nothing is hashed.
    Single,
    Ketama {
        points: Points,
        hash: Hash,
    },
    Modula {
        slots: Slots,
        hash: Hash,
    },
    Jump {
        slots: Slots,
    },
    Rendezvous {
        servers: Vec<WeightedServer>,
    },
}

/// The points of a ring and their servers, in ascending order.
#[derive(Debug, Clone)]
struct Points {
    points: Vec<(u32, u32)>,
    /// The ring is divided into equal sections, about as many as there are points. For each, the index of the first point that is
    /// not before it. A lookup from there takes one or two steps, fewer than a binary search.
    firsts: Vec<u32>,
    /// A position shifted right by this many bits is the index of its section.
    shift: u32,
}

/// Every server repeated `weight` times, stored as the end of each server's run.
#[derive(Debug, Clone)]
struct Slots {
    runs: Vec<(u64, usize)>,
}

/// A server of a rendezvous ring.
#[derive(Debug, Clone)]
struct WeightedServer {
    id: u64,
    weight: f64,
}

impl Ring {
    /// The ring of `servers`: at least one, each with a weight of at least 1.
    ///
    /// Ketama and modula apply `hash` to keys. As in twemproxy, the points of a ketama ring are always derived from MD5. Jump
    /// and rendezvous need 64 bits, and always use the first eight bytes of a key's MD5.
    pub fn new(servers: &[ServerSpec], distribution: Distribution, hash: Hash) -> Ring {
        let placement = match distribution {
            _ if servers.len() < 2 => Placement::Single,
            Distribution::Ketama => Placement::Ketama { points: Points::new(ketama_points(servers)), hash },
            Distribution::Modula => Placement::Modula { slots: Slots::new(servers, 0..servers.len()), hash },
            Distribution::ModulaSorted => {
                Placement::Modula { slots: Slots::new(servers, twemproxy_order(servers)), hash }
            }
            Distribution::Jump => Placement::Jump { slots: Slots::new(servers, 0..servers.len()) },
            Distribution::Rendezvous => {
                Placement::Rendezvous { servers: servers.iter().enumerate().map(weighted).collect() }
            }
        };
        Ring { placement }
    }

    /// Whether finding a server takes a key's MD5.
    pub fn is_costly(&self) -> bool {
        match &self.placement {
            Placement::Single => false,
            Placement::Ketama { hash, .. } | Placement::Modula { hash, .. } => *hash == Hash::Md5,
            Placement::Jump { .. } | Placement::Rendezvous { .. } => true,
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
            Placement::Modula { slots, hash } => {
                slots.server(u64::from(hash_of(*hash, key, md5)) % slots.count())
            }
            Placement::Jump { slots } => slots.server(jump(md5(), slots.count())),
            Placement::Rendezvous { servers } => highest(servers, &[], md5()),
        }
    }

    /// The index of the server that holds `key`, which one of these servers holds otherwise, if it is kept on the others, of which
    /// there must be one. With all distributions but jump this is the ring without these servers.
    pub fn server_without(&self, key: &[u8], without: &[usize]) -> usize {
        let md5 = || md5_64(key);
        match &self.placement {
            Placement::Single => 0,
            Placement::Ketama { points, hash } => points.server_without(hash_of(*hash, key, md5), without),
            Placement::Modula { slots, hash } => {
                let slot = u64::from(hash_of(*hash, key, md5));
                slots.server_without(without, |count| slot % count)
            }
            // With the same hash, all keys of a slot would move to one other.
            Placement::Jump { slots } => slots.server_without(without, |count| jump(mix(md5()), count)),
            Placement::Rendezvous { servers } => highest(servers, without, md5()),
        }
    }
}

impl Points {
    /// There is at least one point: some server has at least the average weight.
    fn new(points: Vec<(u32, u32)>) -> Points {
        let bits = points.len().next_power_of_two().ilog2().clamp(1, 24);
        let shift = u32::BITS - bits;
        let first = |section: u32| points.partition_point(|(point, _)| *point < section << shift) as u32;
        let firsts = (0..1 << bits).map(first).collect();
        Points { points, firsts, shift }
    }

    /// The server of the first point that is not before this position. The first point follows the last.
    fn server(&self, position: u32) -> usize {
        let first = self.firsts[(position >> self.shift) as usize] as usize;
        let next = self.points[first..].iter().find(|(point, _)| *point >= position);
        next.unwrap_or(&self.points[0]).1 as usize
    }

    /// The server of the first point that is not before this position and of none of these servers. Without such a point, any
    /// other server.
    fn server_without(&self, position: u32, without: &[usize]) -> usize {
        let first = self.points.partition_point(|(point, _)| *point < position);
        let (before, after) = self.points.split_at(first);
        let mut servers = after.iter().chain(before).map(|(_, server)| *server as usize);
        let next = servers.find(|server| !without.contains(server));
        // A server whose weight is too small has no point.
        next.or_else(|| (0..).find(|server| !without.contains(server))).unwrap_or(0)
    }
}

impl Slots {
    fn new(servers: &[ServerSpec], order: impl IntoIterator<Item = usize>) -> Slots {
        let run = |end: &mut u64, index: usize| {
            *end += u64::from(servers[index].weight);
            Some((*end, index))
        };
        Slots { runs: order.into_iter().scan(0, run).collect() }
    }

    fn count(&self) -> u64 {
        self.runs[self.runs.len() - 1].0
    }

    fn server(&self, slot: u64) -> usize {
        self.runs[self.runs.partition_point(|(end, _)| *end <= slot)].1
    }

    /// The server of a slot among those of the other servers; `slot` selects one, given how many there are.
    fn server_without(&self, without: &[usize], slot: impl FnOnce(u64) -> u64) -> usize {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|(end, _)| *end));
        let runs = starts.zip(&self.runs).map(|(start, (end, server))| (end - start, *server));
        let others = || runs.clone().filter(|(_, server)| !without.contains(server));
        let mut slot = slot(others().map(|(weight, _)| weight).sum::<u64>().max(1));
        let found = others().find(|(weight, _)| {
            let here = slot < *weight;
            slot = slot.saturating_sub(*weight);
            here
        });
        found.map_or(0, |(_, server)| server)
    }
}

/// A number for this placement of keys: equal for servers, weights, distribution and hash that place all keys alike, and
/// otherwise different. The order of the servers counts only where it affects the placement.
pub fn placement_id(servers: &[ServerSpec], distribution: Distribution, hash: Hash) -> u64 {
    let describe =
        |(index, server): (usize, &ServerSpec)| format!("{}*{}", identity(index, server), server.weight);
    let mut all: Vec<String> = servers.iter().enumerate().map(describe).collect();
    if !matches!(distribution, Distribution::Jump | Distribution::Modula) {
        all.sort();
    }
    // A space is in no identity.
    md5_64(format!("{distribution:?} {hash:?} {}", all.join(" ")).as_bytes())
}

/// A number for a text: the same in every process and version.
pub fn text_id(text: &str) -> u64 {
    md5_64(text.as_bytes())
}

/// A number for the identity of each server on the ring.
pub fn identity_ids(servers: &[ServerSpec]) -> Vec<u64> {
    servers.iter().enumerate().map(|(index, server)| md5_64(identity(index, server).as_bytes())).collect()
}

/// The order of servers in twemproxy's modula: shorter identities first, those of equal length by their bytes.
fn twemproxy_order(servers: &[ServerSpec]) -> Vec<usize> {
    let names: Vec<_> = servers.iter().enumerate().map(|(index, server)| identity(index, server)).collect();
    let mut order: Vec<_> = (0..servers.len()).collect();
    order.sort_by_key(|index| (names[*index].len(), &names[*index]));
    order
}

/// libmemcached's `update_continuum` and twemproxy's `ketama_update`, equal to the bit: 32-bit floats, except for one addition
/// that C carries out in 64 bits.
fn ketama_points(servers: &[ServerSpec]) -> Vec<(u32, u32)> {
    let total: u64 = servers.iter().map(|server| u64::from(server.weight)).sum();
    let mut points = Vec::with_capacity(servers.len() * POINTS_PER_SERVER as usize);
    for (index, server) in servers.iter().enumerate() {
        let share = server.weight as f32 / total as f32;
        let digests = share * POINTS_PER_SERVER / POINTS_PER_DIGEST * servers.len() as f32;
        let digests = (f64::from(digests) + 1e-10) as f32;
        let identity = identity(index, server);
        for n in 0..digests as u32 {
            let digest = Md5::digest(format!("{identity}-{n}").as_bytes());
            for word in digest.chunks_exact(4) {
                points.push((u32::from_le_bytes([word[0], word[1], word[2], word[3]]), index as u32));
            }
        }
    }
    // A stable sort: if two servers have the same point, the first one gets it.
    points.sort_by_key(|(point, _)| *point);
    points
}

/// The string that identifies a server on the ring.
fn identity(index: usize, server: &ServerSpec) -> String {
    match (&server.name, &server.address) {
        (Some(name), _) => name.clone(),
        (None, Address::Tcp { host, port: DEFAULT_PORT }) => host.clone(),
        (None, Address::Tcp { host, port }) => format!("{host}:{port}"),
        (None, Address::Unix(path)) => format!("{}:0", path.display()),
        // Its index, because its memory limit may change.
        (None, Address::Embedded { .. }) => format!("embedded:{index}"),
        (None, Address::Discovered(lookup)) => lookup.to_string(),
    }
}

fn hash_of(hash: Hash, key: &[u8], md5: impl Fn() -> u64) -> u32 {
    match hash {
        Hash::Md5 => md5() as u32,
        Hash::Crc32 => crc32fast::hash(key) >> 16 & 0x7fff,
        Hash::Crc32a => crc32fast::hash(key),
        // C adds a signed `char`, so for bytes above 127 the result differs from the definition of FNV.
        Hash::Fnv1a32 => key
            .iter()
            .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ *byte as i8 as u32).wrapping_mul(0x0100_0193)),
    }
}

/// Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm" (2014). Only the last slot can be removed
/// without moving keys of the others.
fn jump(mut key: u64, slots: u64) -> u64 {
    let (mut slot, mut next) = (0, 0);
    while next < slots {
        slot = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((slot + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    slot
}

fn weighted((index, server): (usize, &ServerSpec)) -> WeightedServer {
    WeightedServer { id: md5_64(identity(index, server).as_bytes()), weight: f64::from(server.weight) }
}

/// Weighted highest random weight: the server with the highest −w / ln(h), where h in (0, 1) is a hash of the server and the
/// key. A server's share of the keys is its share of the weight, and a key moves only to or from a server that is added,
/// removed or changes its weight. Of equals the first is taken.
fn highest(servers: &[WeightedServer], without: &[usize], key: u64) -> usize {
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
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const KEYS: &str = include_str!("../../tests/golden/keys.txt");
    const PLACEMENTS: &str = include_str!("../../tests/golden/placements.txt");
    const PINS: &str = include_str!("../../tests/golden/pins.txt");

    /// One line of a golden file: a ring, and the server of each key.
    struct Case {
        name: String,
        distribution: Distribution,
        hash: Hash,
        servers: Vec<ServerSpec>,
        placed: Vec<usize>,
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
        let [origin, distribution, hash, name, servers, placed] = line.split(' ').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        Case {
            name: format!("{origin} {distribution} {hash} {name}"),
            distribution: match distribution {
                "ketama" => Distribution::Ketama,
                "modula" => Distribution::Modula,
                "modula_sorted" => Distribution::ModulaSorted,
                "jump" => Distribution::Jump,
                "rendezvous" => Distribution::Rendezvous,
                _ => panic!("{line}"),
            },
            hash: match hash {
                "md5" => Hash::Md5,
                "crc32" => Hash::Crc32,
                "crc32a" => Hash::Crc32a,
                "fnv1a_32" => Hash::Fnv1a32,
                _ => panic!("{line}"),
            },
            servers: servers.split(',').map(server).collect(),
            placed: placed.chars().map(|digit| digit.to_digit(36).unwrap() as usize).collect(),
        }
    }

    /// Checks the placement of every key in every case, and returns the number of cases.
    fn agree(golden: &str, of: Distribution) -> usize {
        let cases = golden.lines().filter(|line| !line.starts_with('#')).map(case);
        let cases: Vec<_> = cases.filter(|case| case.distribution == of).collect();
        for Case { name, distribution, hash, servers, placed } in &cases {
            let ring = Ring::new(servers, *distribution, *hash);
            assert_eq!(placed.len(), 1000);
            assert_eq!(KEYS.lines().count(), 1000);
            let wrong: Vec<_> =
                KEYS.lines().zip(placed).filter(|(key, at)| ring.server(key.as_bytes()) != **at).collect();
            assert!(wrong.is_empty(), "{name}: {} keys elsewhere: {:?}", wrong.len(), wrong[0]);
        }
        cases.len()
    }

    #[test]
    fn ketama_places_keys_where_libmemcached_and_twemproxy_do() {
        assert_eq!(agree(PLACEMENTS, Distribution::Ketama), 33);
    }

    #[test]
    fn modula_places_keys_where_libmemcached_does_also_for_a_list_in_descending_order() {
        assert_eq!(agree(PLACEMENTS, Distribution::Modula), 15);
    }

    #[test]
    fn modula_sorted_places_keys_where_twemproxy_does() {
        assert_eq!(agree(PLACEMENTS, Distribution::ModulaSorted), 22);
    }

    #[test]
    fn two_lists_of_modula_in_another_order_are_two_placements_and_of_modula_sorted_one() {
        let listed = servers(&[1, 1, 1]);
        let reversed: Vec<_> = listed.iter().rev().cloned().collect();
        let is_one = |distribution| {
            let id = |servers| placement_id(servers, distribution, Hash::Crc32);
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
            let ring = Ring::new(&servers(&weights), distribution, hash);
            let mut counts = [0u32; 6];
            keys().for_each(|key| counts[ring.server(key.as_bytes())] += 1);
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
        let (before, after) =
            (Ring::new(&all, distribution, Hash::Md5), Ring::new(&fewer, distribution, Hash::Md5));
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
        let (before, after) = (
            Ring::new(&fewer, Distribution::Jump, Hash::Md5),
            Ring::new(&all, Distribution::Jump, Hash::Md5),
        );
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
            let rings = [&here, &there].map(|servers| Ring::new(servers, distribution, Hash::Md5));
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
            let (small, large) =
                (Ring::new(&small, distribution, Hash::Md5), Ring::new(&large, distribution, Hash::Md5));
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
            let ring = Ring::new(&heavy, distribution, Hash::Md5);
            let first = keys().filter(|key| ring.server(key.as_bytes()) == 0).count();
            let expected = if distribution == Distribution::Modula { 20_000..20_001 } else { 8_000..12_000 };
            assert!(expected.contains(&first), "{distribution:?}: {first}");
        }
    }

    #[test]
    fn a_hundred_servers_have_points_and_keys() {
        let ring = Ring::new(&servers(&[1; 100]), Distribution::Ketama, Hash::Md5);
        let Placement::Ketama { points: Points { points, .. }, .. } = &ring.placement else {
            panic!("{ring:?}")
        };
        // Not 16,000: in 32-bit floats 1/100 is slightly less than a hundredth, so every server has 39 digests.
        assert_eq!(points.len(), 15_600);
        assert!(points.is_sorted());
        let used: std::collections::HashSet<_> = keys().map(|key| ring.server(key.as_bytes())).collect();
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
            let ring = Ring::new(&all, distribution, hash);
            for without in 0..weights.len() {
                let mut counts = [0u32; 6];
                for key in keys().filter(|key| ring.server(key.as_bytes()) == without) {
                    counts[ring.server_without(key.as_bytes(), &[without])] += 1;
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
            let ring = Ring::new(&all, distribution, hash);
            for without in [&[][..], &[0], &[2], &[4], &[1, 3]] {
                let left: Vec<usize> = (0..all.len()).filter(|index| !without.contains(index)).collect();
                let others: Vec<_> = left.iter().map(|index| all[*index].clone()).collect();
                let smaller = Ring::new(&others, distribution, hash);
                for key in keys().take(2000) {
                    let found = ring.server_without(key.as_bytes(), without);
                    assert_eq!(
                        found,
                        left[smaller.server(key.as_bytes())],
                        "{distribution:?} {without:?} {key}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_server_without_points_is_found_if_no_other_is_left() {
        let ring = Ring::new(&servers(&[1000, 1, 1000]), Distribution::Ketama, Hash::Md5);
        assert_eq!(ring.server_without(b"k", &[0, 2]), 1);
    }
}
