//! Where the two copies of each item are: in places that move to a standby server and back, under new fences, as failover moves them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use kennel::error::Failure;
use kennel::kinds::{Command, ItemKey, Operation, Replies, Reply, Side, copy_key};

use super::executor::Slot;
use super::mutants::Mutant;
use super::network::Loss;
use super::world::{Executed, World};

/// The server that each copy has by the ring, and the one that takes its place.
pub const HOMES: [usize; 2] = [0, 1];
pub const STANDBY: usize = 2;

/// Where a copy is: the fence of the place, and the server.
pub type Place = (u64, usize);

/// Where the copies are before they move.
pub const FIRST_PLACES: [Place; 2] = [(1, HOMES[0]), (2, HOMES[1])];

/// The places of both copies.
pub struct Places {
    /// Of each sidecar: where it knows the copies to be.
    known: RefCell<Vec<[Option<Place>; 2]>>,
    /// Where they are, or were before they moved.
    current: RefCell<[Place; 2]>,
    fences: Cell<u64>,
}

impl Places {
    pub fn new(sidecars: usize) -> Places {
        Places {
            known: RefCell::new(vec![FIRST_PLACES.map(Some); sidecars]),
            current: RefCell::new(FIRST_PLACES),
            fences: Cell::new(2),
        }
    }
}

/// Moves the copies to the standby server and back. No sidecar uses a place while another uses the next one.
pub async fn move_places(world: Rc<World>) {
    let (executor, plan, places) = (&world.executor, &world.plan, &world.places);
    loop {
        executor.sleep(plan.between_moves / 2 + executor.below(plan.between_moves)).await;
        let side = match plan.loses {
            None => executor.below(2) as usize,
            Some(side) => side,
        };
        let mut order: Vec<usize> = (0..plan.sidecars).collect();
        order.rotate_left(executor.below(2) as usize);
        for sidecar in &order {
            executor.sleep(executor.below(400)).await;
            places.known.borrow_mut()[*sidecar][side] = None;
        }
        executor.sleep(1).await;
        places.fences.set(places.fences.get() + 1);
        let home = places.current.borrow()[side].1 == HOMES[side];
        let place = (places.fences.get(), if home { STANDBY } else { HOMES[side] });
        world.network.losses.borrow_mut().push((executor.now(), Loss::Moved(side, place)));
        places.current.borrow_mut()[side] = place;
        for sidecar in &order {
            executor.sleep(executor.below(400)).await;
            places.known.borrow_mut()[*sidecar][side] = Some(place);
        }
    }
}

/// A client's command that is carried out on copies. As `proxy::structures` does, it knows the places from its beginning on.
pub struct OnPlaces<'a> {
    world: &'a World,
    sidecar: usize,
    places: [Option<Place>; 2],
    /// The items whose first copy was read in the last round trip by what leaves a stub. A store of their second copy is a claim.
    claimable: BTreeSet<ItemKey>,
}

impl OnPlaces<'_> {
    pub fn new(world: &World, sidecar: usize) -> OnPlaces<'_> {
        let places = world.places.known.borrow()[sidecar];
        OnPlaces { world, sidecar, places, claimable: BTreeSet::new() }
    }

    /// The place of a copy, unless the sidecar knows of another one since the command has begun, or of none.
    fn valid(&self, copy: usize) -> Option<Place> {
        let known = self.world.places.known.borrow()[self.sidecar][copy];
        self.places[copy].filter(|_| known == self.places[copy])
    }

    /// Sends the commands of one round trip, and waits for all replies.
    pub async fn round_trip(&mut self, commands: Vec<(Side, Command)>) -> Replies {
        let world = self.world;
        let sent = world.executor.now();
        let reads_first = |(side, command): &(Side, Command)| {
            matches!((side, &command.operation), (Side::First, Operation::GetOrStub))
                .then(|| command.key.clone())
        };
        let claimable = commands.iter().filter_map(reads_first).collect();
        let claimable = std::mem::replace(&mut self.claimable, claimable);
        let mut slots = Vec::new();
        for (side, mut command) in commands {
            let copy = usize::from(side == Side::Second);
            let slot = self.send(side, &mut command, &claimable);
            slots.push((copy, command, slot));
        }
        let (mut replies, mut done) = (Replies::new(), Vec::new());
        for (copy, command, slot) in slots {
            let reply = match slot {
                Some(slot) => world.network.receive(slot, sent).await,
                None => Reply::Failed(Failure::Down),
            };
            // What was done in a place that has ended is not known by whoever uses the new one.
            let reply = self.valid(copy).map_or(Reply::Failed(Failure::Down), |_| reply);
            world.trace(|| {
                let (key, operation) = (command.key.escape_ascii(), &command.operation);
                let sidecar = self.sidecar;
                format!("sidecar {sidecar}, copy {copy}: {key} {operation:?} sent at {sent} -> {reply:?}")
            });
            replies.push(reply);
            done.push((copy, command));
        }
        if world.plan.is(Mutant::FirstCopyIsEnough) {
            first_is_enough(&mut replies, &done);
        }
        replies
    }

    /// Sends a command to the server of a copy, under the key of its place. `None`: there is no such place.
    fn send(&self, side: Side, command: &mut Command, claimable: &BTreeSet<ItemKey>) -> Option<Slot<Reply>> {
        let world = self.world;
        let is = |mutant| world.plan.is(mutant);
        let copy = usize::from(side == Side::Second);
        let stores_second = copy == 1 && matches!(command.operation, Operation::Store { .. });
        let is_claim = claimable.contains(&command.key);
        if let Some(mutant) = world.plan.mutant {
            mutant.change_copy(copy, command);
        }
        let (fence, server) = self.valid(copy)?;
        let is_skipped =
            stores_second && if is_claim { is(Mutant::NoClaim) } else { is(Mutant::SecondIsNotStored) };
        if let (true, Operation::Store { cas: Some(cas), .. }) = (is_skipped, &command.operation) {
            let slot = Slot::new(&world.executor);
            slot.fill(Reply::Stored(*cas));
            return Some(slot);
        }
        let fence = if is(Mutant::CopiesWithoutFence) { 0 } else { fence };
        command.key = copy_key(&command.key, side, fence).expect("the key is short");
        Some(world.network.send(self.sidecar, server, command.clone(), Executed::default()))
    }
}

/// Where both copies were read, and only the first one was found, the second one is the same.
fn first_is_enough(replies: &mut [Reply], sent: &[(usize, Command)]) {
    for at in 1..replies.len() {
        let [(0, first), (1, second)] = &sent[at - 1..=at] else { continue };
        let reads = |command: &Command| command.operation == Operation::Get;
        let is_missing = matches!(replies[at], Reply::Absent | Reply::Failed(_));
        if let (Reply::Item(_), true) = (&replies[at - 1], is_missing && reads(first) && reads(second)) {
            replies[at] = replies[at - 1].clone();
        }
    }
}
