//! The parameters of a run, drawn from its seed: sizes, rules, clients, delays and faults.

use std::time::Duration;

use bytes::Bytes;
use kennel::guard::envelope::lock_key;
use kennel::guard::{OnInvalidate, Policy, TagName};
use kennel::random::Random;

use super::mutants::Mutant;

/// The faults of a run. A field is the mean interval in ms unless stated otherwise; 0: never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub evict_item: u64,
    pub evict_lock: u64,
    pub evict_tag: u64,
    /// A program that bypasses Kennel stores something under the key of a tag.
    pub spoil_tag: u64,
    pub restart: u64,
    pub reset: u64,
    pub kill: u64,
    pub disconnect: u64,
    /// One reply in this many is lost.
    pub lost: u64,
    /// One winner in this many never fills, or fills after `max_rebuild`.
    pub slow_winner: u64,
    /// The maximum offset of a sidecar's wall clock, in ms.
    pub offset: u64,
    /// A sidecar's wall clock is set forwards or back.
    pub step: u64,
    /// Commands from one sidecar to one server are delayed beyond their timeout.
    pub stall: u64,
    /// A server is suspended. When it resumes it has its items and executes the commands that were sent to it.
    pub stop: u64,
}

impl Faults {
    pub fn all() -> Faults {
        Faults {
            evict_item: 900,
            evict_lock: 1500,
            evict_tag: 2500,
            spoil_tag: 0,
            restart: 6000,
            reset: 4000,
            kill: 6000,
            disconnect: 1500,
            lost: 60,
            slow_winner: 20,
            offset: 5000,
            step: 3000,
            stall: 2500,
            stop: 5000,
        }
    }

    /// A random subset of the fault kinds.
    pub fn some(random: &mut Random) -> Faults {
        let mut faults = Faults::all();
        for kind in [
            &mut faults.evict_item,
            &mut faults.evict_lock,
            &mut faults.evict_tag,
            &mut faults.restart,
            &mut faults.reset,
            &mut faults.kill,
            &mut faults.disconnect,
            &mut faults.lost,
            &mut faults.slow_winner,
            &mut faults.offset,
            &mut faults.step,
            &mut faults.stall,
            &mut faults.stop,
        ] {
            if random.below(2) == 0 {
                *kind = 0;
            }
        }
        faults
    }
}

/// A guarded key and its rule.
#[derive(Debug, Clone)]
pub struct Guarded {
    pub key: Bytes,
    pub lock: Bytes,
    pub policy: Policy,
    pub tags: Vec<TagName>,
    /// Tags that its values may name in addition to those of the rule.
    pub extra: Vec<usize>,
}

/// The parameters of one run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub servers: usize,
    pub sidecars: usize,
    pub readers: usize,
    /// Clients that send random commands. In such a run nothing expires and there are no faults.
    pub command_clients: usize,
    pub keys: Vec<Guarded>,
    /// The number of tags that rules name.
    pub tags: usize,
    /// The number of tags that only values name. Their numbers follow those of `tags`.
    pub extra: usize,
    /// Each tag is stored on two servers.
    pub copies: bool,
    /// With copies: the only server with faults. Simultaneous faults of both copies are not covered by the guarantees.
    pub faulty_server: Option<usize>,
    /// The tags exist, and were last bumped, long before the run begins.
    pub aged: bool,
    /// One client reads on one connection and writes on another. It has a sidecar of its own.
    pub pooled: bool,
    /// Some clients send meta commands.
    pub metas: bool,
    /// Some meta clients fill through a different sidecar from the one that they read through.
    pub elsewhere: bool,
    /// One request in this many is a `set` without a miss.
    pub blind: u64,
    /// Clients also send commands other than `get` and `set`.
    pub changes: bool,
    /// How long a sidecar reuses tag versions, in ms.
    pub tag_cache: u64,
    /// The largest value that servers accept, in bytes.
    pub max_value: usize,
    /// The number of invalidators, and the longest pause of each between two invalidations, in ms.
    pub invalidators: (usize, u64),
    pub faults: Faults,
    /// The place of a server's keys changes at this mean interval, in ms; 0: never, and nothing has a fence.
    pub moves: u64,
    pub mutant: Option<Mutant>,
    /// The longest one-way latency of a command or reply, in ms.
    pub delay: u64,
    /// The longest stall of a connection or server, in ms, in addition to 200 ms.
    pub longest: u64,
    /// The longest rebuild, in ms.
    pub think: u64,
    /// The longest pause of a reader, in ms.
    pub pause: u64,
    /// From this moment there are no faults and no invalidations, in ms.
    pub quiet: u64,
    pub end: u64,
}

/// Holds a normal value with its header, but not a [`LARGE`] one.
const SMALL: usize = 200;
/// The length of a value that is too large for a server limited to [`SMALL`].
pub const LARGE: usize = 190;

pub fn tag_name(tag: usize) -> TagName {
    TagName::from_slice(format!("t{tag}").as_bytes())
}

/// The tag's number, from its name.
pub fn tag_of(name: &TagName) -> usize {
    usize::from(name[1] - b'0')
}

impl Plan {
    pub fn new(seed: u64, faulty: bool, mutant: Option<Mutant>) -> Plan {
        let mut random = Random::seeded(seed);
        let c = &mut random;
        let faults = if faulty { Faults::some(c) } else { Faults::default() };
        let tags = [0, 1, 2, 4][c.below(4) as usize];
        let extra = [0, 0, 1, 2][c.below(4) as usize];
        let keys: Vec<Guarded> = (0..1 + c.below(3)).map(|n| guarded(n, tags, extra, c)).collect();
        let servers = 1 + c.below(3) as usize;
        let copies = servers > 1 && c.below(3) == 0;
        let faulty_server = (copies && faulty).then(|| c.below(servers as u64) as usize);
        let think = [100, 600, 2500][c.below(3) as usize];
        let quiet = 8_000;
        let pooled = c.below(4) == 0;
        let sidecars = 1 + usize::from(pooled) + c.below(3) as usize;
        let metas = c.below(2) == 0;
        Plan {
            seed,
            servers,
            sidecars,
            readers: 2 + c.below(6) as usize,
            command_clients: 0,
            tags,
            extra,
            copies,
            faulty_server,
            aged: c.below(2) == 0,
            pooled,
            metas,
            // Not together with a pooled client: a pooled client's `set` could be attributed to another connection's miss.
            elsewhere: metas && !pooled && sidecars > 1 && c.below(2) == 0,
            blind: 40,
            changes: c.below(2) == 0,
            tag_cache: [0, 0, 0, 200][c.below(4) as usize],
            max_value: if c.below(6) == 0 { SMALL } else { 1 << 20 },
            invalidators: (2, 1200),
            faults,
            moves: 0,
            mutant,
            delay: [2, 10, 60][c.below(3) as usize],
            longest: 5000,
            think,
            pause: [50, 300, 900][c.below(3) as usize],
            quiet,
            end: quiet + if faulty { 16_000 } else { 8_000 },
            keys,
        }
    }

    /// Only tag bumps, of one tag, by many clients without pauses: bumps overtake each other.
    pub fn storm(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::new(seed, true, mutant);
        let tags = plan.tags.min(1);
        let keys = plan.keys.iter().map(|guarded| Guarded {
            tags: guarded.tags.iter().take(tags).map(|_| tag_name(0)).collect(),
            extra: Vec::new(),
            ..guarded.clone()
        });
        let faults = Faults { offset: 5000, ..Faults::default() };
        Plan {
            tags,
            extra: 0,
            keys: keys.collect(),
            invalidators: (5, 20),
            delay: 500,
            faults,
            ..plan.clone()
        }
    }

    /// Commands are often delayed beyond their timeout and `set`s without a miss are frequent. There are no other faults.
    pub fn late(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::new(seed, true, mutant);
        let faults = Faults { stall: 700, stop: 3000, lost: plan.faults.lost, ..Faults::default() };
        Plan { blind: 6, pooled: false, faults, ..plan }
    }

    /// Servers restart often. There are no other faults.
    pub fn restarts(seed: u64, mutant: Option<Mutant>) -> Plan {
        let faults = Faults { restart: 800, ..Faults::default() };
        Plan { faults, faulty_server: None, copies: false, ..Plan::new(seed, true, mutant) }
    }

    /// Each tag is stored on two servers, one of which delays commands and loses tags.
    pub fn copied_tags(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::late(seed, mutant);
        let servers = plan.servers.max(2);
        let faults = Faults { evict_tag: 500, ..plan.faults };
        Plan {
            servers,
            copies: true,
            faulty_server: Some((seed % 2) as usize),
            tag_cache: 200,
            faults,
            blind: 40,
            ..plan
        }
    }

    /// Only clients that send random commands, with short pauses.
    pub fn commands(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::new(seed, false, mutant);
        let mut random = Random::seeded(seed ^ 0xc0de);
        let millis = Duration::from_millis;
        let mut cold_wait = || millis([0, 20, 200][random.below(3) as usize]);
        let keys =
            plan.keys.iter().map(|guarded| (guarded, cold_wait())).map(|(guarded, cold_wait)| Guarded {
                policy: Policy {
                    cold_wait,
                    cold_limit: cold_wait * 3,
                    stale_for: Duration::from_secs(30),
                    max_rebuild: Duration::from_secs(60),
                    on_delete: OnInvalidate::Drop,
                    stale_before_expiry: false,
                    early_beta: 0.0,
                    max_ttl: Duration::ZERO,
                    ..guarded.policy.clone()
                },
                extra: Vec::new(),
                ..guarded.clone()
            });
        let keys = keys.collect();
        let command_clients = 3 + random.below(6) as usize;
        let sidecars = 1 + random.below(2) as usize;
        let (pause, max_value) = ([5, 40][random.below(2) as usize], 1 << 20);
        Plan {
            keys,
            command_clients,
            sidecars,
            readers: 0,
            // Creating a tag counts as a bump.
            aged: true,
            invalidators: (0, 1),
            pooled: false,
            pause,
            max_value,
            end: 12_000,
            ..plan
        }
    }

    /// [`Plan::commands`] with clients that use connection pools.
    pub fn pools(seed: u64, mutant: Option<Mutant>) -> Plan {
        Plan { pooled: true, ..Plan::commands(seed, mutant) }
    }

    /// Whether bumps overtake each other all the time. Readers then race with bumps for many rounds, so only the freshness of
    /// what they read is checked.
    pub fn is_storm(&self) -> bool {
        self.invalidators.0 > 2
    }

    /// Whether only the freshness of what is read is checked.
    pub fn checks_only_freshness(&self) -> bool {
        self.is_storm() || self.moves > 0
    }

    /// The number of tags.
    pub fn all_tags(&self) -> usize {
        self.tags + self.extra
    }

    /// The keys whose values have this tag or may name it.
    pub fn tagged(&self, tag: usize) -> Vec<usize> {
        let name = tag_name(tag);
        let has = |key: &Guarded| key.tags.contains(&name) || key.extra.contains(&tag);
        (0..self.keys.len()).filter(|key| has(&self.keys[*key])).collect()
    }

    /// The servers that store a tag.
    pub fn tag_servers(&self, name: &TagName) -> Vec<usize> {
        let first = tag_of(name) % self.servers;
        let second = (first + 1) % self.servers;
        if self.copies { vec![first, second] } else { vec![first] }
    }

    /// The longest round trip, in ms.
    pub fn trip(&self) -> u64 {
        2 * self.delay + 2
    }
}

fn guarded(n: u64, tags: usize, extra: usize, c: &mut Random) -> Guarded {
    let millis = Duration::from_millis;
    let (own, others): (Vec<usize>, Vec<usize>) =
        (0..tags + extra).partition(|tag| *tag < tags && c.below(3) > 0);
    let tags = own.into_iter().map(tag_name).collect();
    let extra = others.into_iter().filter(|_| extra > 0 && c.below(3) > 0).collect();
    let leaves = |c: &mut Random| if c.below(2) == 0 { OnInvalidate::Stale } else { OnInvalidate::Drop };
    let stale_for = Duration::from_secs([0, 1, 2, 4, 30][c.below(5) as usize]);
    let lock_ttl = Duration::from_secs(1 + c.below(2));
    let stale_wait = millis([0, 0, 300][c.below(3) as usize]);
    let cold_wait = millis([0, 500, 1000, 2000][c.below(4) as usize]);
    let policy = Policy {
        stale_for,
        lock_ttl,
        max_rebuild: Duration::from_secs(5),
        stale_wait,
        cold_wait,
        // Builds take up to 2.5 s, so most limits are longer than some builds and shorter than others.
        cold_limit: cold_wait * [3, 1, 5][n as usize % 3],
        outage_ttl: Duration::ZERO,
        on_tag: leaves(c),
        on_delete: leaves(c),
        stale_before_expiry: false,
        early_beta: [0.0, 0.0, 0.0, 4.0][c.below(4) as usize],
        max_ttl: Duration::from_secs([0, 0, 2][c.below(3) as usize]),
        near: Duration::ZERO,
        plan: 0,
    };
    let key = Bytes::from(format!("key{n}"));
    let lock = Bytes::copy_from_slice(&lock_key(&key));
    Guarded { key, lock, policy, tags, extra }
}
