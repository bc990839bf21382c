//! Values on two servers: whatever happens to one copy at a time, an acknowledged count stays counted, and a session is what was
//! last acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kennel::error::Failure;
use kennel::kinds::{
    Command, Copied, Counter, Kind, Machine, Operation, Outcome, Replies, Reply, Request, Side, Step, Verb,
    copy_key,
};

use super::executor::Executor;
use super::mutants::Mutant;
use super::network::Loss;
use super::world::{Executed, World};

/// The server that each copy has by the ring, and the one that takes its place.
const HOMES: [usize; 2] = [0, 1];
const STANDBY: usize = 2;

/// Where a copy is: the fence of the place, and the server.
type Place = (u64, usize);

struct Copies {
    world: Rc<World>,
    /// Of each sidecar: where it knows the copies to be.
    known: RefCell<Vec<[Option<Place>; 2]>>,
    /// Where they are, or were before they moved.
    places: RefCell<[Place; 2]>,
    fences: Cell<u64>,
    keys: RefCell<Vec<Key>>,
    /// How many losses have been applied to the keys.
    applied: Cell<usize>,
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
    let places = [(1, HOMES[0]), (2, HOMES[1])];
    let copies = Rc::new(Copies {
        world: Rc::clone(world),
        known: RefCell::new(vec![places.map(Some); world.plan.sidecars]),
        places: RefCell::new(places),
        fences: Cell::new(2),
        keys: RefCell::new((0..world.plan.keys).map(|_| Key::default()).collect()),
        applied: Cell::new(0),
    });
    for client in 0..world.plan.clients {
        match counter {
            true => world.executor.spawn(count(Rc::clone(&copies), client)),
            false => world.executor.spawn(session(Rc::clone(&copies), client)),
        }
    }
    if world.plan.faults {
        world.executor.spawn(move_places(copies));
    }
}

/// Moves the copies to the standby server and back. No sidecar uses a place while another uses the next one.
async fn move_places(copies: Rc<Copies>) {
    let executor: Executor = copies.world.executor.clone();
    loop {
        executor
            .sleep(copies.world.plan.between_moves / 2 + executor.below(copies.world.plan.between_moves))
            .await;
        let side = executor.below(2) as usize;
        let mut order: Vec<usize> = (0..copies.world.plan.sidecars).collect();
        order.rotate_left(executor.below(2) as usize);
        for sidecar in &order {
            executor.sleep(executor.below(400)).await;
            copies.known.borrow_mut()[*sidecar][side] = None;
        }
        executor.sleep(1).await;
        let now = executor.now();
        copies.world.network.losses.borrow_mut().push((now, Loss::Moved(side)));
        copies.apply_losses();
        copies.fences.set(copies.fences.get() + 1);
        let home = copies.places.borrow()[side].1 == HOMES[side];
        let place = (copies.fences.get(), if home { STANDBY } else { HOMES[side] });
        copies.places.borrow_mut()[side] = place;
        for sidecar in &order {
            executor.sleep(executor.below(400)).await;
            copies.known.borrow_mut()[*sidecar][side] = Some(place);
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
        let places = *self.places.borrow();
        for (time, loss) in &losses[self.applied.replace(losses.len())..] {
            for (at, key) in self.keys.borrow_mut().iter_mut().enumerate() {
                for side in [0, 1] {
                    let is_lost = match loss {
                        Loss::Moved(moved) => *moved == side,
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
        }
    }

    async fn carry_out(&self, client: usize, kind: &Kind, key: u64, request: Request<'_>) -> Outcome {
        let world = &self.world;
        let (sidecar, name) = (client % world.plan.sidecars, name(key));
        let now = world.inputs(sidecar).now;
        let mut machine: Box<dyn Machine> = world.machine(sidecar, kind, &name, name.len(), request, now);
        let places = self.known.borrow()[sidecar];
        // Behind a read of the first copy that leaves a stub, a store of the second is a claim.
        let (mut replies, mut may_claim) = (Replies::new(), false);
        loop {
            let commands = match machine.resume(replies, &world.inputs(sidecar)) {
                Step::Done(outcome) => return outcome,
                Step::SendCopies(commands) => commands,
                Step::Send(commands) => panic!("{commands:?} names no copy"),
            };
            let sent = world.executor.now();
            let mut slots = Vec::new();
            let reads_first = |(side, command): &(Side, Command)| {
                matches!((side, &command.operation), (Side::First, Operation::GetOrStub))
            };
            let has_read_first = commands.iter().any(reads_first);
            for (side, mut command) in commands {
                let at = usize::from(side == Side::Second);
                let stores_second = at == 1 && matches!(command.operation, Operation::Store { .. });
                let (is_claim, is_second) = (stores_second && may_claim, stores_second && !may_claim);
                if let Some(mutant) = world.plan.mutant {
                    mutant.change_copy(at, &mut command);
                }
                let known = self.known.borrow()[sidecar][at];
                let mutant = |mutant| world.plan.is(mutant);
                let skipped =
                    mutant(Mutant::SecondIsNotStored) && is_second || mutant(Mutant::NoClaim) && is_claim;
                let Some((fence, server)) = places[at].filter(|_| known == places[at]) else {
                    slots.push((at, command, None));
                    continue;
                };
                if let (true, Operation::Store { cas: Some(cas), .. }) = (skipped, &command.operation) {
                    let slot = super::executor::Slot::new(&world.executor);
                    slot.fill(Reply::Stored(*cas));
                    slots.push((at, command, Some(slot)));
                    continue;
                }
                let fence = if mutant(Mutant::CopiesWithoutFence) { 0 } else { fence };
                command.key = copy_key(name.as_bytes(), side, fence).expect("the key is short");
                let slot = world.network.send(sidecar, server, command.clone(), Executed::default());
                slots.push((at, command, Some(slot)));
            }
            may_claim = has_read_first;
            replies = Replies::new();
            for (at, command, slot) in slots {
                let mut reply = match slot {
                    Some(slot) => world.network.receive(slot, sent).await,
                    None => Reply::Failed(Failure::Down),
                };
                if self.known.borrow()[sidecar][at] != places[at] {
                    reply = Reply::Failed(Failure::Down);
                }
                world.trace(|| {
                    let key = command.key.escape_ascii();
                    format!(
                        "client {client}, copy {at}: {key} {:?} sent at {sent} -> {reply:?}",
                        command.operation
                    )
                });
                replies.push(reply);
            }
        }
    }
}
