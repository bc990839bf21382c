//! What is different from seed to seed: sizes, rules, clients, delays, faults.

use std::time::Duration;

use bytes::Bytes;
use kennel::guard::envelope::lock_key;
use kennel::guard::{OnInvalidate, Policy, TagName};
use kennel::random::Random;

use super::mutants::Mutant;

/// What may go wrong. Each kind happens about once in so many milliseconds; 0: never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub evict_item: u64,
    pub evict_lock: u64,
    pub evict_tag: u64,
    pub restart: u64,
    pub reset: u64,
    pub kill: u64,
    pub disconnect: u64,
    /// One reply in so many is lost.
    pub lost: u64,
    /// One winner in so many never fills, or only after `max_rebuild`.
    pub sloth: u64,
    /// How far a sidecar's clock may be off, in ms.
    pub offset: u64,
    /// A sidecar's clock is set, forwards or back.
    pub step: u64,
    /// What a sidecar sends to a server is held back, beyond its time-out.
    pub stall: u64,
    /// A server is stopped, and goes on with what it has and with what was sent to it.
    pub stop: u64,
}

impl Faults {
    pub fn all() -> Faults {
        Faults {
            evict_item: 900,
            evict_lock: 1500,
            evict_tag: 2500,
            restart: 6000,
            reset: 4000,
            kill: 6000,
            disconnect: 1500,
            lost: 60,
            sloth: 20,
            offset: 5000,
            step: 3000,
            stall: 2500,
            stop: 5000,
        }
    }

    /// Some kinds of them, by chance.
    pub fn some(chance: &mut Random) -> Faults {
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
            &mut faults.sloth,
            &mut faults.offset,
            &mut faults.step,
            &mut faults.stall,
            &mut faults.stop,
        ] {
            if chance.below(2) == 0 {
                *kind = 0;
            }
        }
        faults
    }
}

/// One guarded key and its rule.
#[derive(Debug, Clone)]
pub struct Guarded {
    pub key: Bytes,
    pub lock: Bytes,
    pub policy: Policy,
    pub tags: Vec<TagName>,
    /// Tags that its values may come with, beyond those of the rule.
    pub extra: Vec<usize>,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub servers: usize,
    pub sidecars: usize,
    pub readers: usize,
    /// Clients that send any command, in random order, where nothing expires and nothing goes wrong.
    pub commanders: usize,
    pub keys: Vec<Guarded>,
    /// Tags that rules name.
    pub tags: usize,
    /// Tags that only come with values, numbered behind those.
    pub extra: usize,
    /// Every tag is kept by two servers.
    pub copies: bool,
    /// With copies, where all goes wrong that goes wrong with a server: what two faults do to two copies is not promised.
    pub weak: Option<usize>,
    /// The tags have been there for long when the run begins.
    pub aged: bool,
    /// One client reads on one connection and writes on another, through a sidecar of its own.
    pub pooled: bool,
    /// Some clients speak meta commands.
    pub metas: bool,
    /// Some of those fill through another sidecar than they read.
    pub elsewhere: bool,
    /// One request in so many is a `set` without a miss.
    pub blind: u64,
    /// Clients do not only `set`.
    pub changes: bool,
    /// For how long a sidecar reuses the versions of tags, in ms.
    pub tag_cache: u64,
    /// The largest value that servers take, in bytes.
    pub room: usize,
    /// How many change the source of truth, and the longest pause of each between two changes, in ms.
    pub invalidators: (usize, u64),
    pub faults: Faults,
    pub mutant: Option<Mutant>,
    /// The longest that a command or its reply travels, in ms.
    pub delay: u64,
    /// The longest that anything is held back, beyond 200 ms.
    pub longest: u64,
    /// The longest rebuild, in ms.
    pub think: u64,
    /// The longest pause of a reader, in ms.
    pub pause: u64,
    /// From then on nothing goes wrong and nothing is invalidated, in ms.
    pub quiet: u64,
    pub end: u64,
}

/// Room for a usual value with its header, and not for a [`LARGE`] one.
const SMALL: usize = 200;
/// How long a value is that is too large for a server with little room.
pub const LARGE: usize = 190;

pub fn tag_name(tag: usize) -> TagName {
    TagName::from_slice(format!("t{tag}").as_bytes())
}

/// Which tag has this name.
pub fn tag_of(name: &TagName) -> usize {
    usize::from(name[1] - b'0')
}

impl Plan {
    pub fn new(seed: u64, faulty: bool, mutant: Option<Mutant>) -> Plan {
        let mut chance = Random::seeded(seed);
        let c = &mut chance;
        let faults = if faulty { Faults::some(c) } else { Faults::default() };
        let tags = [0, 1, 2, 4][c.below(4) as usize];
        let extra = [0, 0, 1, 2][c.below(4) as usize];
        let keys: Vec<Guarded> = (0..1 + c.below(3)).map(|n| guarded(n, tags, extra, c)).collect();
        let servers = 1 + c.below(3) as usize;
        let copies = servers > 1 && c.below(3) == 0;
        let weak = (copies && faulty).then(|| c.below(servers as u64) as usize);
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
            commanders: 0,
            tags,
            extra,
            copies,
            weak,
            aged: c.below(2) == 0,
            pooled,
            metas,
            // Not beside a client with a pool, whose `set` might pass for theirs.
            elsewhere: metas && !pooled && sidecars > 1 && c.below(2) == 0,
            blind: 40,
            changes: c.below(2) == 0,
            tag_cache: [0, 0, 0, 200][c.below(4) as usize],
            room: if c.below(6) == 0 { SMALL } else { 1 << 20 },
            invalidators: (2, 1200),
            faults,
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

    /// One with nothing but bumps, of few tags, by many who hardly pause: bumps overtake each other.
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

    /// One in which commands come late all the time and nothing else goes wrong, with many who set without a miss.
    pub fn late(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::new(seed, true, mutant);
        let faults = Faults { stall: 700, stop: 3000, lost: plan.faults.lost, ..Faults::default() };
        Plan { blind: 6, pooled: false, faults, ..plan }
    }

    /// One in which servers restart all the time and nothing else goes wrong.
    pub fn restarts(seed: u64, mutant: Option<Mutant>) -> Plan {
        let faults = Faults { restart: 800, ..Faults::default() };
        Plan { faults, weak: None, copies: false, ..Plan::new(seed, true, mutant) }
    }

    /// One in which each tag is kept twice, and one server is late, and loses tags.
    pub fn twice(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::late(seed, mutant);
        let servers = plan.servers.max(2);
        let faults = Faults { evict_tag: 500, ..plan.faults };
        Plan {
            servers,
            copies: true,
            weak: Some((seed % 2) as usize),
            tag_cache: 200,
            faults,
            blind: 40,
            ..plan
        }
    }

    /// One with nothing but clients that send any command and hardly pause.
    pub fn commands(seed: u64, mutant: Option<Mutant>) -> Plan {
        let plan = Plan::new(seed, false, mutant);
        let mut chance = Random::seeded(seed ^ 0xc0de);
        let millis = Duration::from_millis;
        let keys = plan.keys.iter().map(|guarded| Guarded {
            policy: Policy {
                cold_wait: millis([0, 20, 200][chance.below(3) as usize]),
                stale_for: Duration::from_secs(30),
                max_rebuild: Duration::from_secs(60),
                on_delete: OnInvalidate::Drop,
                early_beta: 0.0,
                max_ttl: Duration::ZERO,
                ..guarded.policy.clone()
            },
            extra: Vec::new(),
            ..guarded.clone()
        });
        let keys = keys.collect();
        let commanders = 3 + chance.below(6) as usize;
        let sidecars = 1 + chance.below(2) as usize;
        let (pause, room) = ([5, 40][chance.below(2) as usize], 1 << 20);
        Plan {
            keys,
            commanders,
            sidecars,
            readers: 0,
            // A tag that is made counts as moved.
            aged: true,
            invalidators: (0, 1),
            pooled: false,
            pause,
            room,
            end: 12_000,
            ..plan
        }
    }

    /// The same with clients that have pools.
    pub fn pools(seed: u64, mutant: Option<Mutant>) -> Plan {
        Plan { pooled: true, ..Plan::commands(seed, mutant) }
    }

    /// Whether bumps overtake each other all the time. Readers race with them for many rounds then, and are only checked for what
    /// they are served as fresh.
    pub fn is_storm(&self) -> bool {
        self.invalidators.0 > 2
    }

    /// All tags there are.
    pub fn all_tags(&self) -> usize {
        self.tags + self.extra
    }

    /// The keys whose values have this tag, or may.
    pub fn tagged(&self, tag: usize) -> Vec<usize> {
        let name = tag_name(tag);
        let has = |key: &Guarded| key.tags.contains(&name) || key.extra.contains(&tag);
        (0..self.keys.len()).filter(|key| has(&self.keys[*key])).collect()
    }

    /// Which servers keep a tag.
    pub fn keepers(&self, name: &TagName) -> Vec<usize> {
        let first = tag_of(name) % self.servers;
        let second = (first + 1) % self.servers;
        if self.copies { vec![first, second] } else { vec![first] }
    }

    /// The longest round trip.
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
    let policy = Policy {
        stale_for: Duration::from_secs([0, 1, 2, 4, 30][c.below(5) as usize]),
        lock_ttl: Duration::from_secs(1 + c.below(2)),
        max_rebuild: Duration::from_secs(5),
        stale_wait: millis([0, 0, 300][c.below(3) as usize]),
        cold_wait: millis([0, 500, 1000, 2000][c.below(4) as usize]),
        on_tag: leaves(c),
        on_delete: leaves(c),
        early_beta: [0.0, 0.0, 0.0, 4.0][c.below(4) as usize],
        max_ttl: Duration::from_secs([0, 0, 2][c.below(3) as usize]),
        near: Duration::ZERO,
    };
    let key = Bytes::from(format!("key{n}"));
    let lock = Bytes::copy_from_slice(&lock_key(&key));
    Guarded { key, lock, policy, tags, extra }
}
