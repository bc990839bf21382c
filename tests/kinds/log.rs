//! Logs: every acknowledged entry is in a log once, in the order of its sidecar's acknowledgements, and a tail sees each once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use kennel::kinds::{Kind, Log, Outcome, Request, Verb};

use super::network::Loss;
use super::world::{Watch, World};

/// The length of the window and of a slot, in ms. A slot is longer than what clocks differ by and the time of an append together.
const WINDOW: u64 = 12_000;
const SLOT: u64 = 3_000;
/// The length of a long entry: four of them fill a part.
const LONG: usize = 9_000;

/// The entries of a log.
#[derive(Default)]
struct Entries(RefCell<BTreeMap<String, Entry>>);

struct Entry {
    sidecar: usize,
    begun: u64,
    acknowledged: Option<u64>,
}

/// A reader that follows a log.
struct Tail {
    cursor: String,
    seen: BTreeSet<String>,
    /// Of each sidecar: when the latest of these was begun.
    latest: Vec<u64>,
    /// When it last received an answer.
    read: u64,
}

impl Tail {
    fn new(world: &World, now: u64) -> Tail {
        let latest = vec![0; world.plan.sidecars];
        Tail { cursor: "0".to_owned(), seen: BTreeSet::new(), latest, read: now }
    }
}

pub fn begin(world: &Rc<World>) {
    let logs: Rc<Vec<Entries>> = Rc::new((0..world.plan.keys).map(|_| Entries::default()).collect());
    for client in 0..world.plan.clients {
        world.executor.spawn(append_and_read(Rc::clone(world), Rc::clone(&logs), client));
    }
}

async fn append_and_read(world: Rc<World>, logs: Rc<Vec<Entries>>, client: usize) {
    let settings = Log { window: Duration::from_millis(WINDOW), slot: Duration::from_millis(SLOT) };
    let kind = world.kind(Kind::Log(settings));
    let key = world.executor.below(world.plan.keys) as usize;
    let (log, own) = (&logs[key], format!("g{key}"));
    let (sidecar, server) = (client % world.plan.sidecars, key % world.plan.servers);
    let mut tail = Tail::new(&world, 0);
    for number in 0.. {
        world.pause().await;
        let begun = world.executor.now();
        let wall = world.inputs(sidecar).now;
        match world.executor.below(4) {
            0 => {
                let mut machine = world.machine(sidecar, &kind, &own, own.len(), Request::Get, wall);
                let outcome = world.carry_out(sidecar, server, &mut *machine, &Watch::nothing()).await;
                let Some(entries) = entries(outcome) else { continue };
                world.saw();
                log.check_all(&world, server, &own, begun, &entries);
            }
            1 => {
                if begun > tail.read + WINDOW / 2 || is_lost(&world, server, &own, tail.read) {
                    tail = Tail::new(&world, begun);
                }
                let name = format!("{own}@{}", tail.cursor);
                let mut machine = world.machine(sidecar, &kind, &name, own.len(), Request::Get, wall);
                let outcome = world.carry_out(sidecar, server, &mut *machine, &Watch::nothing()).await;
                let Some(mut entries) = entries(outcome) else { continue };
                tail.cursor = entries.remove(0);
                world.saw();
                let is_new = entries.iter().all(|entry| tail.seen.insert(entry.clone()));
                if is_lost(&world, server, &own, begun) {
                    tail = Tail::new(&world, world.executor.now());
                    continue;
                }
                if !is_new {
                    world.violated(|| format!("a tail of {own} at {name} saw an entry again in {entries:?}"));
                }
                log.check(&world, server, &own, begun, &tail.seen);
                log.check_order(&world, server, &own, &entries, &mut tail.latest);
                tail.read = begun;
            }
            _ => {
                let mut entry = format!("{client}.{number}");
                log.0.borrow_mut().insert(entry.clone(), Entry { sidecar, begun, acknowledged: None });
                let named = entry.clone();
                if world.executor.one_in(world.plan.long_entries) {
                    entry += &" ".repeat(LONG);
                }
                entry += "\n";
                let request =
                    Request::Store { verb: Verb::Append, data: entry.as_bytes(), flags: 0, exptime: 0 };
                let mut machine = world.machine(sidecar, &kind, &own, own.len(), request, wall);
                let outcome = world.carry_out(sidecar, server, &mut *machine, &Watch::nothing()).await;
                if let Outcome::Stored(_) = outcome {
                    let now = world.executor.now();
                    log.0.borrow_mut().get_mut(&named).expect("it has begun").acknowledged = Some(now);
                }
            }
        }
    }
}

/// The lines of an answer; `None`: there was none.
fn entries(outcome: Outcome) -> Option<Vec<String>> {
    match outcome {
        Outcome::Value { data, .. } => {
            let text = String::from_utf8(data.to_vec()).expect("entries are text");
            Some(text.lines().map(|line| line.trim_end().to_owned()).collect())
        }
        Outcome::Miss => Some(Vec::new()),
        _ => None,
    }
}

/// Whether the server has lost something of this log since then.
fn is_lost(world: &World, server: usize, own: &str, since: u64) -> bool {
    let losses = world.network.losses.borrow();
    // One of two copies is always left.
    !world.plan.copies
        && losses.iter().rev().take_while(|(at, _)| *at >= since).any(|(_, loss)| match loss {
            Loss::Server(lost) => *lost == server,
            Loss::Item(lost, key) => *lost == server && key.starts_with(format!("{own}@").as_bytes()),
            Loss::Moved(..) => false,
        })
}

impl Entries {
    /// Checks that these are all entries that a command that began at `begun` must have seen.
    fn check(&self, world: &World, server: usize, own: &str, begun: u64, seen: &BTreeSet<String>) {
        let known = self.0.borrow();
        for (name, entry) in known.iter() {
            let is_in = entry.acknowledged.is_some_and(|at| at <= begun)
                && begun - entry.begun <= WINDOW - world.plan.spread;
            // A slot whose number was evicted seems shorter than it is.
            let since = entry.begun.saturating_sub(2 * SLOT);
            if is_in && !seen.contains(name) && !is_lost(world, server, own, since) {
                world.violated(|| format!("{own} lacks {name}, of {}, at {begun}", entry.begun));
            }
        }
        if let Some(unknown) = seen.iter().find(|entry| !known.contains_key(*entry)) {
            world.violated(|| format!("{own} has {unknown}, which nobody has appended"));
        }
    }

    /// Checks an answer of the whole log.
    fn check_all(&self, world: &World, server: usize, own: &str, begun: u64, entries: &[String]) {
        let seen: BTreeSet<String> = entries.iter().cloned().collect();
        if seen.len() < entries.len() {
            world.violated(|| format!("{own} has an entry twice: {entries:?}"));
        }
        self.check(world, server, own, begun, &seen);
        self.check_order(world, server, own, entries, &mut vec![0; world.plan.sidecars]);
    }

    /// Checks that the entries of a sidecar are in the order in which they were acknowledged. `latest`: of each sidecar, when the
    /// latest one was begun that was read before them.
    fn check_order(&self, world: &World, server: usize, own: &str, entries: &[String], latest: &mut [u64]) {
        let known = self.0.borrow();
        // A clock that goes back may go back to the slot before.
        if world.plan.spread > 1 {
            return;
        }
        for entry in entries.iter().filter_map(|entry| known.get(entry)) {
            let Some(acknowledged) = entry.acknowledged else { continue };
            if acknowledged < latest[entry.sidecar] && !is_lost(world, server, own, entry.begun) {
                world.violated(|| format!("{own} is not in order: {entries:?}"));
            }
            latest[entry.sidecar] = entry.begun.max(latest[entry.sidecar]);
        }
    }
}
