//! The servers of a pool change, one sidecar after the other, while clients read and write: promise 12.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use crate::world::{
    Kennel, Memcached, addresses, direct, guarded, memcacheds, raw, sidecar_toml, version_of, within,
};

/// The time limit of what takes seconds on a machine without other load.
const LONG: Duration = Duration::from_secs(120);
/// How many steps a change has: docs/decisions/0013.
const STEPS: usize = 5;
/// The first step of a change of another kind: the servers stay, and the pool leaves the distribution of one of its clients.
const LEAVING: usize = 2 * STEPS;

/// Three servers, of which the last is replaced by two others.
fn servers() -> Vec<Memcached> {
    memcacheds(5)
}

/// The configuration of a step of the change, with guarded keys `k:…`, each with a tag of its own, and raw keys. From the last step
/// on, one of the two new servers is removed in a second change.
fn toml(servers: &[Memcached], step: usize, failover: bool) -> String {
    let all = addresses(servers);
    let first = format!("{:?}", &all[..3]);
    let second = format!("{:?}", [&all[..2], &all[3..]].concat());
    let third = format!("{:?}", [&all[..2], &all[3..4]].concat());
    let (old, new, by, to) = match step {
        LEAVING.. => (first.clone(), first, "distribution = \"dalli\"", "distribution = \"rendezvous\""),
        STEPS.. => (second, third, "", ""),
        _ => (first, second, "", ""),
    };
    let other = |keys: &str| if keys.is_empty() { String::new() } else { format!("other_{keys}") };
    let lists = [
        format!("servers = {old}\n{by}"),
        format!("servers = {old}\n{by}\nnext = {new}\n{}", other(to)),
        format!("servers = {new}\n{to}\nprevious = {old}\n{}", other(by)),
        format!("servers = {new}\n{to}\nprevious = {old}\n{}\ntake_over = false", other(by)),
        format!("servers = {new}\n{to}"),
    ];
    let rules = [guarded("k", "k:{n}", "tags = [\"t:{n}\"]"), raw("rest", "*")];
    let list = match step {
        LEAVING.. => step - LEAVING,
        STEPS.. => step - STEPS + 1,
        _ => step,
    };
    let toml = sidecar_toml(&all, &rules).replace(&format!("servers = {all:?}"), &lists[list]);
    match failover {
        true => toml,
        false => toml.replace("[pools.main]\n", "[pools.main]\nfailover = false\n"),
    }
}

pub(crate) fn keys() -> impl Iterator<Item = String> {
    (0..200).map(|n| format!("k:{n}"))
}

/// Reads every key twice through this sidecar, as two clients do. Builds what is missed: `value`. Returns how many keys were
/// built, and of how many of these the other client got another value meanwhile.
pub(crate) fn read_all(sidecar: &Kennel, value: &str) -> (usize, usize) {
    let (mut first, mut second) = (sidecar.client(), sidecar.client());
    let (mut built, mut served) = (0, 0);
    for key in keys() {
        if first.get(&key).is_none() {
            built += 1;
            second.send(format!("mg {key} v N30\r\n").as_bytes());
            let line = second.line();
            if line.starts_with("VA") {
                // A stub is empty.
                served += usize::from(!second.line().is_empty());
            }
            first.store(&key, value.as_bytes(), 600);
        }
    }
    (built, served)
}

/// How many keys the two lists of servers place differently: those that a server holds now and another one did before.
pub(crate) fn holders(servers: &[Memcached]) -> BTreeMap<String, Vec<usize>> {
    let mut held = BTreeMap::new();
    for (at, server) in servers.iter().enumerate() {
        let mut client = direct(server);
        for key in keys() {
            if client.ttl(&key).is_some() {
                held.entry(key).or_insert_with(Vec::new).push(at);
            }
        }
    }
    held
}

/// How a sidecar takes the next step.
#[derive(Clone, Copy)]
enum Deployment {
    Restart,
    Reload,
}

fn walk_quietly(start: usize, failover: bool, deployment: Deployment) {
    let servers = servers();
    let mut sidecars: Vec<Kennel> = (0..3).map(|_| Kennel::start(&toml(&servers, start, failover))).collect();
    assert_eq!(read_all(&sidecars[0], "v0"), (200, 0));
    let before = holders(&servers);
    let mut total = (0, 0);
    for step in start + 1..start + STEPS {
        for at in 0..sidecars.len() {
            let toml = toml(&servers, step, failover);
            match deployment {
                Deployment::Restart => sidecars[at] = Kennel::start(&toml),
                Deployment::Reload => {
                    let (status, changes) = sidecars[at].reload(&toml);
                    assert_eq!(status, 200, "{changes}");
                }
            }
            for sidecar in &sidecars {
                let (built, served) = read_all(sidecar, &format!("v{step}"));
                println!("step {step}, sidecar {at}: {built} built, {served} served meanwhile");
                total = (total.0 + built, total.1 + served);
            }
        }
    }
    let after = holders(&servers);
    let moved = keys().filter(|key| !after[key].iter().all(|at| before[key].contains(at))).count();
    println!("{moved} moved; {total:?}");
    assert!(moved > 40, "{moved}");
    assert_eq!(total, (moved, moved));
}

#[test]
fn a_moved_key_costs_one_rebuild_and_its_old_value_is_served_meanwhile() {
    walk_quietly(0, true, Deployment::Restart);
}

#[test]
fn a_moved_key_costs_one_rebuild_without_failover_too() {
    walk_quietly(0, false, Deployment::Restart);
}

#[test]
fn a_moved_key_costs_one_rebuild_if_the_sidecars_are_not_restarted_but_reloaded() {
    walk_quietly(0, true, Deployment::Reload);
}

#[test]
fn a_key_costs_one_rebuild_if_its_pool_leaves_a_distribution() {
    walk_quietly(LEAVING, true, Deployment::Reload);
}

/// Sixty keys of a database, each with one writer, in front of which three sidecars are replaced.
pub(crate) struct Site {
    sidecars: [RwLock<Kennel>; 3],
    /// What the database has under each key: a number that only grows.
    database: Vec<AtomicU64>,
    /// The number under each key up to which an invalidation was acknowledged.
    acknowledged: Vec<AtomicU64>,
    refused: AtomicU64,
    changes: AtomicU64,
    fresh: AtomicU64,
    stale: AtomicU64,
    builds: AtomicU64,
    ended: AtomicBool,
}

impl Site {
    /// Behind these sidecars.
    pub(crate) fn of(sidecars: [Kennel; 3]) -> Site {
        let zeros = || (0..60).map(|_| AtomicU64::new(0)).collect();
        Site {
            sidecars: sidecars.map(RwLock::new),
            database: zeros(),
            acknowledged: zeros(),
            refused: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            builds: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Reads keys through any sidecar, and builds those that are missed.
    fn read(&self, seed: usize) {
        for round in seed.. {
            if self.ended.load(SeqCst) {
                return;
            }
            let key = round * 7919 % self.database.len();
            let least = self.acknowledged[key].load(SeqCst);
            let sidecar = self.sidecars[round * 31 % 3].read().expect("no panic");
            let mut client = sidecar.client();
            client.send(format!("mg k:{key} v\r\n").as_bytes());
            let line = client.line();
            if line.starts_with("VA ") {
                let value: u64 = client.line().parse().expect("a number");
                let is_stale = line.split(' ').any(|word| ["X", "Z", "W"].contains(&word));
                assert!(
                    is_stale || value >= least,
                    "k:{key}: {value} is fresh, but {least} was acknowledged"
                );
                if is_stale { &self.stale } else { &self.fresh }.fetch_add(1, SeqCst);
            } else {
                assert!(line == "EN", "{line}");
                let value = self.database[key].load(SeqCst);
                // A build takes time.
                sleep(Duration::from_millis(round as u64 % 4));
                client.set(&format!("k:{key}"), value.to_string().as_bytes(), 600);
                self.builds.fetch_add(1, SeqCst);
            }
            drop(sidecar);
            sleep(Duration::from_millis(1));
        }
    }

    /// Changes the keys of one writer: first in the database, then through any sidecar.
    fn write(&self, writer: usize) {
        for round in writer.. {
            if self.ended.load(SeqCst) {
                return;
            }
            let key = round * 17 % 20 * 3 + writer;
            let value = self.database[key].fetch_add(1, SeqCst) + 1;
            let sidecar = self.sidecars[round * 5 % 3].read().expect("no panic");
            let mut client = sidecar.client();
            let reply = match round % 4 {
                0 => client.delete(&format!("k:{key}")),
                1 => client.set(&format!("k:{key}"), value.to_string().as_bytes(), 600),
                _ => client.delete(&format!("@tag:t:{key}")),
            };
            match &reply[..] {
                "DELETED" | "NOT_FOUND" => {
                    self.acknowledged[key].fetch_max(value, SeqCst);
                    self.changes.fetch_add(1, SeqCst);
                }
                // It invalidates nothing: the set of a build that began before may be the last one.
                "STORED" => drop(self.changes.fetch_add(1, SeqCst)),
                refused => {
                    assert!(refused.starts_with("SERVER_ERROR"), "{refused}");
                    self.refused.fetch_add(1, SeqCst);
                }
            }
            drop(sidecar);
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until there has been some more of everything.
    pub(crate) fn go_on(&self) {
        let counts = || [&self.changes, &self.fresh, &self.builds].map(|count| count.load(SeqCst));
        let before = counts();
        within(LONG, "clients read, build and change", || {
            let has_grown = counts().iter().zip(before).all(|(now, before)| *now >= before + 100);
            has_grown || self.ended.load(SeqCst)
        });
        assert!(!self.ended.load(SeqCst), "a client has panicked");
    }

    /// Lets clients read and change keys during `f`.
    pub(crate) fn under_load(&self, f: impl FnOnce(&Site)) {
        std::thread::scope(|scope| {
            // If a client panics, the others end too.
            let run = |client: Box<dyn Fn() + Send>| {
                scope.spawn(move || {
                    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(client));
                    self.ended.store(true, SeqCst);
                    panicked.unwrap_or_else(|why| std::panic::resume_unwind(why));
                });
            };
            (0..4).for_each(|seed| run(Box::new(move || self.read(seed * 1000))));
            (0..3).for_each(|writer| run(Box::new(move || self.write(writer))));
            self.go_on();
            // The clients end even if this panics.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(self)));
            self.ended.store(true, SeqCst);
            result.unwrap_or_else(|why| std::panic::resume_unwind(why));
        });
    }

    /// Whether this is so for all sidecars.
    pub(crate) fn with_sidecars(&self, is_so: impl Fn(&Kennel) -> bool) -> bool {
        self.sidecars.iter().all(|sidecar| is_so(&sidecar.read().expect("no panic")))
    }

    /// Prints the counts. Returns those of changes that were acknowledged and refused.
    pub(crate) fn report(&self) -> [u64; 2] {
        let counts = [&self.changes, &self.refused, &self.fresh, &self.stale, &self.builds];
        let [changes, refused, fresh, stale, builds] = counts.map(|count| count.load(SeqCst));
        println!(
            "{changes} changes acknowledged, {refused} refused; {fresh} fresh reads, {stale} stale; {builds} builds"
        );
        [changes, refused]
    }
}

/// Walks the fleet through the change, one sidecar after the other. `meanwhile` is called before each step.
fn walk_under_load(
    failover: bool,
    deployment: Deployment,
    steps: Range<usize>,
    mut meanwhile: impl FnMut(usize, &mut Vec<Memcached>),
) {
    let mut servers = servers();
    let site = Site::of([0; 3].map(|_| Kennel::start(&toml(&servers, steps.start, failover))));
    site.under_load(|site| {
        for step in steps.skip(1) {
            meanwhile(step, &mut servers);
            for sidecar in &site.sidecars {
                let toml = toml(&servers, step, failover);
                match deployment {
                    Deployment::Restart => {
                        let next = Kennel::start(&toml);
                        let before = std::mem::replace(&mut *sidecar.write().expect("no panic"), next);
                        drop(before);
                    }
                    Deployment::Reload => {
                        let (status, changes) = sidecar.read().expect("no panic").reload(&toml);
                        assert_eq!(status, 200, "{changes}");
                    }
                }
                site.go_on();
            }
        }
    });
    let [changes, refused] = site.report();
    let dies = servers.iter().any(|server| server.has_died());
    // Until the keys of a server that dies have moved, their changes are refused.
    assert!(dies || changes > 10 * refused, "{refused} of {changes} refused");
}

#[test]
fn no_acknowledged_change_is_lost_while_a_fleet_walks_through_a_change_of_its_servers() {
    walk_under_load(true, Deployment::Restart, 0..STEPS, |_, _| {});
}

#[test]
fn no_acknowledged_change_is_lost_without_failover_either() {
    walk_under_load(false, Deployment::Restart, 0..STEPS, |_, _| {});
}

#[test]
fn no_acknowledged_change_is_lost_while_the_sidecars_of_a_fleet_are_reloaded() {
    walk_under_load(true, Deployment::Reload, 0..STEPS, |_, _| {});
}

#[test]
fn no_acknowledged_change_is_lost_in_two_changes_in_a_row() {
    // The second change begins with the last step of the first one.
    walk_under_load(true, Deployment::Reload, 0..2 * STEPS - 1, |_, _| {});
}

#[test]
fn no_acknowledged_change_is_lost_while_a_fleet_leaves_a_distribution() {
    walk_under_load(true, Deployment::Reload, LEAVING..LEAVING + STEPS, |_, _| {});
}

#[test]
fn no_acknowledged_change_is_lost_if_a_server_of_both_lists_dies_in_the_middle_and_returns() {
    walk_under_load(true, Deployment::Reload, 0..STEPS, |step, servers| match step {
        2 => servers[0].kill(),
        4 => servers[0].restart(),
        _ => {}
    });
}

#[test]
fn no_acknowledged_change_is_lost_while_a_server_that_is_dead_is_replaced() {
    walk_under_load(true, Deployment::Reload, 0..STEPS, |step, servers| {
        if step == 1 {
            servers[2].kill();
        }
    });
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of_three = |chunk: &[u8]| {
        let bits = chunk.iter().chain(&[0; 2]).take(3).fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        let digits = (0..=chunk.len()).map(|n| char::from(DIGITS[bits >> (18 - 6 * n) & 63]));
        format!("{:=<4}", digits.collect::<String>())
    };
    text.as_bytes().chunks(3).map(of_three).collect()
}

/// The replies to `command` for each of the keys, of which `{}` is the place, and `{b}` that in base64.
fn replies(sidecar: &Kennel, command: &str, keys: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut client = sidecar.client();
    let mut found = BTreeMap::new();
    for key in keys {
        let reply = client.execute(&command.replace("{}", &key).replace("{b}", &base64(&key)));
        *found.entry(reply.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    found
}

#[test]
fn what_only_one_of_two_places_has_carried_out_is_not_acknowledged() {
    // The server that is dead is only in the list that is not read.
    for (step, dead) in [(1, 3), (2, 2), (3, 2)] {
        let mut servers = servers();
        let sidecar = Kennel::start(&toml(&servers, step, false));
        servers[dead].kill();
        let tags = || keys().map(|key| key.replace("k:", "@tag:t:"));
        let before = replies(&sidecar, "delete {}", keys());
        assert!(before["SERVER_ERROR"] > 20 && before["NOT_FOUND"] > 20, "step {step}: {before:?}");
        let set = replies(&sidecar, "set {} 0 600 1\r\nv", keys());
        assert_eq!(set["SERVER_ERROR"], before["SERVER_ERROR"], "step {step}: {set:?}");
        let touched = replies(&sidecar, "touch {} 500", keys());
        assert_eq!(touched["SERVER_ERROR"], before["SERVER_ERROR"], "step {step}: {touched:?}");
        let bumped = replies(&sidecar, "delete {}", tags());
        assert!(bumped["SERVER_ERROR"] > 20 && bumped["DELETED"] > 20, "step {step}: {bumped:?}");
        let raw = replies(&sidecar, "delete {}", keys().map(|key| format!("raw{key}")));
        assert!(raw["SERVER_ERROR"] > 20 && raw["NOT_FOUND"] > 20, "step {step}: {raw:?}");
        // A fill stores in one place only.
        let mut client = sidecar.client();
        for key in keys().map(|key| key.replace("k:", "k:f")).take(40) {
            assert_eq!(client.get(&key), None, "step {step}");
            client.store(&key, b"v", 600);
        }
    }
}

#[test]
fn raw_deletes_and_flush_all_reach_the_servers_of_both_lists() {
    let servers = servers();
    let [before, after] = [1, 2].map(|step| Kennel::start(&toml(&servers, step, false)));
    let raw = || keys().map(|key| format!("raw{key}"));
    let held = |sidecar: &Kennel| {
        let mut client = sidecar.client();
        raw().chain(keys()).filter(|key| client.get(key).is_some()).count()
    };
    for (sidecar, delete) in
        [(&before, "delete {}"), (&after, "md {} q\r\nmn"), (&before, "md {b} b"), (&after, "flush_all")]
    {
        for writer in [&before, &after] {
            assert_eq!(replies(writer, "set {} 0 600 1\r\nv", raw())["STORED"], 200);
        }
        assert_eq!([held(&before), held(&after)], [200, 200]);
        let keys = if delete.starts_with("flush") { 1 } else { 200 };
        let found = replies(sidecar, delete, raw().take(keys));
        assert!(!found.contains_key("SERVER_ERROR"), "{delete}: {found:?}");
        assert_eq!([held(&before), held(&after)], [0, 0], "{delete}");
    }
    // A key in base64 may contain what would be another command.
    let binary = || (0..40).map(|n| base64(&format!("raw\r\nversion {n}")));
    for writer in [&before, &after] {
        assert_eq!(replies(writer, "ms {} 1 b\r\nv", binary())["HD"], 40);
    }
    assert_eq!(replies(&before, "md {} b", binary())["HD"], 40);
    for reader in [&before, &after] {
        assert_eq!(replies(reader, "mg {} b", binary())["EN"], 40);
    }
}

#[test]
fn without_take_over_a_moved_key_is_a_miss() {
    let servers = servers();
    assert_eq!(read_all(&Kennel::start(&toml(&servers, 1, false)), "old").0, 200);
    let (built, served) = read_all(&Kennel::start(&toml(&servers, 3, false)), "new");
    assert!(built > served + 20, "{built} built, the old value of {served} served");
}

#[test]
fn kennel_tag_bumps_in_both_placements() {
    let servers = servers();
    let [before, after] = [1, 2].map(|step| Kennel::start(&toml(&servers, step, false)));
    read_all(&before, "old");
    read_all(&after, "new");
    let fresh = |sidecar: &Kennel| {
        let mut client = sidecar.client();
        keys().filter(|key| client.execute(&format!("mg {key} s")).split(' ').count() == 2).count()
    };
    assert_eq!([fresh(&before), fresh(&after)], [200, 200]);
    for step in [1, 2] {
        let names: Vec<String> = (0..200).filter(|n| n % 2 == step - 1).map(|n| format!("t:{n}")).collect();
        crate::tag_command::bump(&toml(&servers, step, false), &names);
    }
    assert_eq!([fresh(&before), fresh(&after)], [0, 0]);
    // Whoever reads a moved tag in its new place takes over the version that it was bumped to.
    read_all(&after, "newer");
    for n in 0..200 {
        let items = servers.iter().filter_map(|server| direct(server).get(&format!("@tag:t:{n}")));
        let versions: Vec<u64> = items.map(|item| version_of(&item)).collect();
        assert!(
            !versions.is_empty() && versions.iter().all(|one| *one == versions[0]),
            "t:{n}: {versions:?}"
        );
    }
}

/// The sidecars of two neighbouring steps agree on the values and tags that both have, after each has read everything once.
fn neighbours_agree(failover: bool) {
    let servers = servers();
    let [before, after] = [1, 2].map(|step| Kennel::start(&toml(&servers, step, failover)));
    assert_eq!(read_all(&before, "v0").0, 200);
    for (round, bumping) in [&before, &after, &before].into_iter().enumerate() {
        let bumped = replies(bumping, "delete {}", keys().map(|key| key.replace("k:", "@tag:t:")));
        assert_eq!(bumped["DELETED"], 200, "{bumped:?}");
        let value = format!("v{}", round + 1);
        let built = [&before, &after, &before, &after, &before].map(|sidecar| read_all(sidecar, &value).0);
        println!("bumped in step {}: built {built:?}", 1 + round % 2);
        assert_eq!((built[0] == 200, built[3], built[4]), (true, 0, 0), "{built:?}");
    }
}

#[test]
fn after_a_bump_the_sidecars_of_neighbouring_steps_agree() {
    neighbours_agree(true);
}

#[test]
fn after_a_bump_the_sidecars_of_neighbouring_steps_agree_without_failover() {
    neighbours_agree(false);
}

#[test]
fn a_change_is_repeated_once_in_the_other_place() {
    let servers = servers();
    let [before, after] = [1, 4].map(|step| Kennel::start(&toml(&servers, step, false)));
    let keys: Vec<String> = keys().collect();
    let mut client = after.client();
    keys.iter().for_each(|key| client.store(key, b"v", 600));
    let key =
        keys.iter().find(|key| direct(&servers[4]).ttl(key).is_some()).expect("a key of the new server");
    let deletes = || {
        let mut client = direct(&servers[4]);
        client.send(b"stats\r\n");
        let stats = String::from_utf8(client.until(b"END\r\n")).expect("text");
        let of = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT delete_{name} ")));
            line.and_then(|count| count.parse::<u64>().ok()).expect("a count")
        };
        of("hits") + of("misses")
    };
    let earlier = deletes();
    let mut client = before.client();
    (0..10).for_each(|_| client.store(key, b"w", 600));
    // Of the key and of its lock.
    assert_eq!(deletes() - earlier, 20);
}
