//! Locks: one holder while the server lives, and numbers that only grow.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kennel::kinds::{
    Hold, HoldMachine, Inputs, Kind, Lock, Machine, OnCopies, Operation, Outcome, Replies, Request, Step,
    Verb,
};

use super::executor::Slot;
use super::mutants::{Mutant, Mutated};
use super::network::Life;
use super::world::{Watch, World};

/// The TTL of a lock, in ms.
const TTL: u64 = 1_000;
/// The pause after a renewal that no server answered, in ms.
const RETRY: u64 = 250;

#[derive(Default)]
struct Holders {
    all: RefCell<Vec<Rc<Holder>>>,
    /// The highest number of each lock.
    numbers: RefCell<Vec<u64>>,
}

struct Holder {
    key: u64,
    client: usize,
    server: usize,
    sidecar: usize,
    hold: RefCell<Hold>,
    /// A renewal or the release is in flight.
    is_busy: Cell<bool>,
    life: Option<Life>,
    /// Until when the holder may rely on it.
    until: Cell<u64>,
    released: Slot<()>,
}

pub fn begin(world: &Rc<World>) {
    begin_with(world, false);
}

pub fn begin_fenced(world: &Rc<World>) {
    begin_with(world, true);
}

fn begin_with(world: &Rc<World>, fence: bool) {
    let holders = Holders { numbers: RefCell::new(vec![0; world.plan.keys as usize]), ..Holders::default() };
    let holders = Rc::new(holders);
    for client in 0..world.plan.clients {
        world.executor.spawn(take(Rc::clone(world), Rc::clone(&holders), client, fence));
    }
}

fn name(key: u64) -> String {
    format!("l{key}")
}

async fn take(world: Rc<World>, holders: Rc<Holders>, client: usize, fence: bool) {
    let kind = world.kind(Kind::Lock(Lock { ttl: Duration::from_millis(TTL), fence }));
    loop {
        world.pause().await;
        let key = world.executor.below(world.plan.keys);
        let name = name(key);
        let (sidecar, server) = (client % world.plan.sidecars, key as usize % world.plan.servers);
        let request = Request::Store { verb: Verb::Add, data: b"me", flags: 0, exptime: 0 };
        let mut machine =
            world.machine(sidecar, &kind, &name, name.len(), request, world.inputs(sidecar).now);
        let sent = world.executor.now();
        let taken = Watch::on(|operation| matches!(operation, Operation::Store { .. }));
        let outcome = world.carry_out(sidecar, server, &mut *machine, &taken).await;
        let Outcome::Locked(hold) = outcome else {
            world.executor.sleep(world.executor.below(200)).await;
            continue;
        };
        world.saw();
        let holder = Rc::new(Holder {
            key,
            client,
            server,
            sidecar,
            hold: RefCell::new(*hold),
            is_busy: Cell::new(false),
            life: taken.executed.get(),
            until: Cell::new(sent + TTL),
            released: Slot::new(&world.executor),
        });
        holders.check(&world, &holder);
        holders.all.borrow_mut().push(Rc::clone(&holder));
        if fence {
            holders.number(&world, &holder).await;
        }
        world.executor.spawn(renew(Rc::clone(&world), Rc::clone(&holders), Rc::clone(&holder)));
        // Some hold it for longer than it lives without a renewal.
        let work = if world.executor.one_in(3) { 3 * TTL } else { 100 };
        world.executor.sleep(world.executor.below(work)).await;
        // One in four sidecars dies with it.
        holder.released.fill(());
        if !world.executor.one_in(4) {
            world.hold(&holder, true).await;
        }
    }
}

/// Renews the lock until it is released or lost, as `proxy::held_locks` does.
async fn renew(world: Rc<World>, holders: Rc<Holders>, holder: Rc<Holder>) {
    let mut pause = TTL / 3;
    while holder.released.wait_until(world.executor.now() + pause).await.is_none()
        && !holder.released.is_filled()
    {
        let sent = world.executor.now();
        let outcome = world.hold(&holder, false).await;
        if holder.released.is_filled() {
            return;
        }
        match outcome {
            Outcome::Stored(_) => {
                let from_the_reply = world.plan.is(Mutant::HeldFromTheReply);
                let from = if from_the_reply { world.executor.now() } else { sent };
                holder.until.set(from + TTL);
                pause = TTL / 3;
                holders.check(&world, &holder);
            }
            Outcome::NotFound => {
                let life = world.life(holder.server, name(holder.key).as_bytes());
                let is_over = holder.until.replace(0) <= sent || holder.life != Some(life);
                if !is_over {
                    world.violated(|| format!("client {} has lost lock {}", holder.client, holder.key));
                }
                return;
            }
            _ if sent >= holder.until.get() => return,
            _ => pause = RETRY,
        }
    }
}

impl Holders {
    /// Checks that nobody else has the lock, which this client has just taken or renewed.
    fn check(&self, world: &World, holder: &Holder) {
        let now = world.executor.now();
        let life = world.life(holder.server, name(holder.key).as_bytes());
        if holder.life != Some(life) || holder.until.get() <= now {
            return;
        }
        let all = self.all.borrow();
        let has = |other: &&Rc<Holder>| {
            let is_other = other.key == holder.key && !std::ptr::eq(Rc::as_ptr(other), holder);
            is_other && !other.released.is_filled() && other.until.get() > now && other.life == holder.life
        };
        if let Some(other) = all.iter().find(has) {
            let (first, second) = (other.client, holder.client);
            world.violated(|| {
                format!("client {second} has lock {}, though client {first} has it too", holder.key)
            });
        }
    }

    /// Checks the number that a holder reads.
    async fn number(&self, world: &World, holder: &Holder) {
        let kind = world.kind(Kind::Lock(Lock { ttl: Duration::from_millis(TTL), fence: true }));
        let name = name(holder.key);
        let mut machine = world.machine(holder.sidecar, &kind, &name, name.len(), Request::Get, 0);
        let outcome = world.carry_out(holder.sidecar, holder.server, &mut *machine, &Watch::nothing()).await;
        let Outcome::Value { data, .. } = outcome else { return };
        if holder.until.get() <= world.executor.now() {
            return;
        }
        let text = String::from_utf8_lossy(&data);
        let number: u64 = text.strip_prefix("me ").and_then(|text| text.parse().ok()).expect("owner number");
        let highest = &mut self.numbers.borrow_mut()[holder.key as usize];
        if number <= *highest {
            world.violated(|| format!("lock {} has the number {number} after {highest}", holder.key));
        }
        *highest = number;
    }
}

impl World {
    /// Renews or releases a lock, after what is in flight for it.
    async fn hold(&self, holder: &Holder, releases: bool) -> Outcome {
        while holder.is_busy.replace(true) {
            self.executor.sleep(1).await;
        }
        let mut hold = holder.hold.borrow().clone();
        let machine = if releases { HoldMachine::release(&mut hold) } else { HoldMachine::renew(&mut hold) };
        let machine = Mutated::new(machine, self.plan.mutant);
        let outcome = match self.plan.copies {
            true => {
                let mut machine = OnCopies::new(machine);
                self.carry_out(holder.sidecar, holder.server, &mut machine, &Watch::nothing()).await
            }
            false => self.hold_on_one(holder, machine).await,
        };
        *holder.hold.borrow_mut() = hold;
        holder.is_busy.set(false);
        outcome
    }

    async fn hold_on_one(&self, holder: &Holder, mut machine: impl Machine) -> Outcome {
        let (sidecar, server) = (holder.sidecar, holder.server);
        let mut replies = Replies::new();
        loop {
            // It depends on neither.
            let commands = match machine.resume(replies, &Inputs { now: 0, random: 0 }) {
                Step::Done(outcome) => return outcome,
                Step::Send(commands) => commands,
                Step::SendCopies(commands) => panic!("{commands:?} is for copies"),
            };
            replies = self.round_trip(sidecar, server, commands, &Watch::nothing()).await;
        }
    }
}
