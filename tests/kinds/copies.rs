//! Values on two servers: whatever happens to one copy at a time, an acknowledged count stays counted, and a session is what was
//! last acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kennel::kinds::{Copied, Counter, Kind, Outcome, Request, Side, Verb, copy_key};

use super::network::Loss;
use super::places::{FIRST_PLACES, Place};
use super::world::{Watch, World};

struct Copies {
    world: Rc<World>,
    keys: RefCell<Vec<Key>>,
    /// How many losses have been applied to the keys, and where the copies were then.
    applied: Cell<usize>,
    places: Cell<[Place; 2]>,
}

/// What is known of a key.
#[derive(Default)]
struct Key {
    changes: Vec<Change>,
    /// Since when each copy has been lost and not stored again.
    lost: [Option<u64>; 2],
    /// When both copies were lost last.
    reset: u64,
}

struct Change {
    /// A count, or the number of the change of a session.
    number: u64,
    begun: u64,
    acknowledged: Option<u64>,
}

pub fn begin_counter(world: &Rc<World>) {
    begin(world, true);
}

pub fn begin_session(world: &Rc<World>) {
    begin(world, false);
}

fn begin(world: &Rc<World>, counter: bool) {
    let copies = Rc::new(Copies {
        world: Rc::clone(world),
        keys: RefCell::new((0..world.plan.keys).map(|_| Key::default()).collect()),
        applied: Cell::new(0),
        places: Cell::new(FIRST_PLACES),
    });
    for client in 0..world.plan.clients {
        match counter {
            true => world.executor.spawn(count(Rc::clone(&copies), client)),
            false => world.executor.spawn(session(Rc::clone(&copies), client)),
        }
    }
}

fn name(key: u64) -> String {
    format!("c{key}")
}

/// Counts, and reads the number.
async fn count(copies: Rc<Copies>, client: usize) {
    let world = Rc::clone(&copies.world);
    let kind = Kind::Copied(Copied { of: Some(Box::new(Kind::Counter(Counter { ttl: Duration::ZERO }))) });
    loop {
        world.pause().await;
        let key = world.executor.below(world.plan.keys);
        let reads = world.executor.one_in(4);
        let delta = 1 + world.executor.below(3);
        let request = if reads { Request::Get } else { Request::Count { decr: false, delta, initial: None } };
        let begun = world.executor.now();
        let at = (!reads).then(|| copies.begin_change(key, delta));
        let number = match copies.carry_out(client, &kind, key, request).await {
            Outcome::Counted(number, ..) => number,
            Outcome::Value { data, .. } => {
                String::from_utf8_lossy(&data).parse().expect("a counter is a number")
            }
            Outcome::Miss => 0,
            Outcome::Failed(failure) => {
                if !world.plan.faults {
                    world.violated(|| format!("counter {key} failed without a fault: {failure:?}"));
                }
                continue;
            }
            other => panic!("{other:?}"),
        };
        world.saw();
        copies.acknowledge(key, begun, at);
        let keys = copies.keys.borrow();
        let Key { changes, reset, .. } = &keys[key as usize];
        let before =
            |change: &&Change| change.acknowledged.is_some_and(|at| at <= begun) && change.begun > *reset;
        let least: u64 = changes.iter().filter(before).map(|change| change.number).sum();
        let own = if reads { 0 } else { delta };
        let most: u64 = changes.iter().map(|change| change.number).sum();
        if number < least + own || number > most {
            world.violated(|| format!("counter {key} is {number}, neither less than {least} + {own} nor more than {most} is right"));
        }
    }
}

/// Changes a session that is its own, and reads those of others.
async fn session(copies: Rc<Copies>, client: usize) {
    let world = Rc::clone(&copies.world);
    let kind = Kind::Copied(Copied { of: None });
    let mut last = 0;
    loop {
        world.pause().await;
        let key = world.executor.below(world.plan.keys);
        let begun = world.executor.now();
        let is_own = key == client as u64;
        if is_own && !world.executor.one_in(3) {
            last += 1;
            let at = copies.begin_change(key, last);
            let data = last.to_string();
            let request = Request::Store { verb: Verb::Set, data: data.as_bytes(), flags: 0, exptime: 0 };
            if let Outcome::Stored(_) = copies.carry_out(client, &kind, key, request).await {
                world.saw();
                copies.acknowledge(key, begun, Some(at));
            }
            continue;
        }
        let found: u64 = match copies.carry_out(client, &kind, key, Request::Get).await {
            Outcome::Value { data, .. } => {
                String::from_utf8_lossy(&data).parse().expect("a session is a number")
            }
            Outcome::Miss => 0,
            _ => continue,
        };
        world.saw();
        copies.apply_losses();
        let keys = copies.keys.borrow();
        let Key { changes, reset, .. } = &keys[key as usize];
        let before =
            |change: &&Change| change.acknowledged.is_some_and(|at| at <= begun) && change.begun > *reset;
        let least = changes.iter().filter(before).map(|change| change.number).max().unwrap_or(0);
        if found < least {
            world.violated(|| format!("session {key} is {found}, though {least} was acknowledged"));
        }
    }
}

impl Copies {
    fn begin_change(&self, key: u64, number: u64) -> usize {
        let changes = &mut self.keys.borrow_mut()[key as usize].changes;
        changes.push(Change { number, begun: self.world.executor.now(), acknowledged: None });
        changes.len() - 1
    }

    /// A command that began at `begun` is done; `at`: the change that it was.
    fn acknowledge(&self, key: u64, begun: u64, at: Option<usize>) {
        self.apply_losses();
        let key = &mut self.keys.borrow_mut()[key as usize];
        let Some(at) = at else { return };
        key.changes[at].acknowledged = Some(self.world.executor.now());
        // Both copies have been stored since.
        if key.lost.iter().flatten().all(|lost| *lost < begun) {
            key.lost = [None; 2];
        }
    }

    fn apply_losses(&self) {
        let losses = self.world.network.losses.borrow();
        for (time, loss) in &losses[self.applied.replace(losses.len())..] {
            let mut places = self.places.get();
            for (at, key) in self.keys.borrow_mut().iter_mut().enumerate() {
                for side in [0, 1] {
                    let is_lost = match loss {
                        Loss::Moved(moved, _) => *moved == side,
                        Loss::Server(server) => places[side].1 == *server,
                        Loss::Item(server, item) => {
                            let of = [Side::First, Side::Second][side];
                            places[side].1 == *server
                                && copy_key(name(at as u64).as_bytes(), of, places[side].0).as_ref()
                                    == Ok(item)
                        }
                    };
                    if !is_lost {
                        continue;
                    }
                    if key.lost[1 - side].is_some() {
                        key.reset = *time;
                    }
                    key.lost[side] = Some(*time);
                }
            }
            if let Loss::Moved(side, place) = loss {
                places[*side] = *place;
                self.places.set(places);
            }
        }
    }

    async fn carry_out(&self, client: usize, kind: &Kind, key: u64, request: Request<'_>) -> Outcome {
        let world = &self.world;
        let (sidecar, name) = (client % world.plan.sidecars, name(key));
        let now = world.inputs(sidecar).now;
        let mut machine = world.machine(sidecar, kind, &name, name.len(), request, now);
        world.carry_out(sidecar, 0, &mut *machine, &Watch::nothing()).await
    }
}
