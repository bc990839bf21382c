//! Windows: a sum has every acknowledged count of the window and none that has left it. With `unique`, no visitor counts twice.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kennel::kinds::{Kind, Outcome, Request, Verb, Window};

use super::network::Life;
use super::world::{Executed, Watch, World};

/// The length of the window and of a slot, in ms.
const WINDOW: u64 = 4_000;
const SLOT: u64 = 1_000;
const VISITORS: u64 = 5;

#[derive(Default)]
struct Counts(RefCell<Vec<Count>>);

struct Count {
    key: u64,
    /// The number of the visitor, and the life of its marker from the beginning to the acknowledgement, if it was one.
    visitor: Option<(u64, Cell<Option<Life>>)>,
    delta: u64,
    begun: u64,
    executed: Executed,
    acknowledged: Option<u64>,
    /// The item that it was counted in.
    slot: String,
}

pub fn begin(world: &Rc<World>) {
    begin_with(world, false);
}

pub fn begin_unique(world: &Rc<World>) {
    begin_with(world, true);
}

fn begin_with(world: &Rc<World>, unique: bool) {
    let counts = Rc::new(Counts::default());
    for client in 0..world.plan.clients {
        world.executor.spawn(count(Rc::clone(world), Rc::clone(&counts), client, unique));
    }
}

async fn count(world: Rc<World>, counts: Rc<Counts>, client: usize, unique: bool) {
    let smooth = world.plan.seed.is_multiple_of(3);
    let settings =
        Window { window: Duration::from_millis(WINDOW), slots: (WINDOW / SLOT) as u32, smooth, unique };
    let kind = world.kind(Kind::Window(settings));
    loop {
        // A window moves: few counts in a slot, so that its sums are worth looking at.
        world.executor.sleep(1 + world.executor.below(400.max(world.plan.pause))).await;
        let key = world.executor.below(world.plan.keys);
        let (sidecar, server) = (client % world.plan.sidecars, key as usize % world.plan.servers);
        let reads = world.executor.one_in(3);
        let visitor = (unique && !reads).then(|| world.executor.below(VISITORS));
        let delta = match (reads, unique) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 1 + world.executor.below(3),
        };
        let request = match (reads, unique) {
            (true, _) => Request::Get,
            (false, false) => Request::Count { decr: false, delta, initial: None },
            (false, true) => Request::Store { verb: Verb::Add, data: b"", flags: 0, exptime: 0 },
        };
        let own = format!("w{key}");
        let name = visitor.map_or(own.clone(), |visitor| format!("{own}:{visitor}"));
        let begun = world.executor.now();
        let wall = world.inputs(sidecar).now;
        let slot = format!("{own}@kennel:w{}", wall / SLOT);
        let watch = Watch::counts();
        let marker = visitor.map(|visitor| format!("{own}@kennel:u{visitor}")).unwrap_or_default();
        let life = world.life(server, marker.as_bytes());
        let at = counts.0.borrow().len();
        counts.0.borrow_mut().push(Count {
            key,
            visitor: visitor.map(|visitor| (visitor, Cell::new(None))),
            delta,
            begun,
            executed: Rc::clone(&watch.executed),
            acknowledged: None,
            slot,
        });
        let mut machine = world.machine(sidecar, &kind, &name, own.len(), request, wall);
        let outcome = world.carry_out(sidecar, server, &mut *machine, &watch).await;
        let sum = match outcome {
            Outcome::Counted(sum, ..) => Some(sum),
            Outcome::Value { data, .. } => {
                Some(String::from_utf8_lossy(&data).parse().expect("a sum is a number"))
            }
            Outcome::Stored(_) => None,
            _ => continue,
        };
        {
            let count = &mut counts.0.borrow_mut()[at];
            count.acknowledged = (!reads).then(|| world.executor.now());
            let unchanged = world.life(server, marker.as_bytes()) == life;
            if let (Some((_, held)), true) = (&count.visitor, unchanged) {
                held.set(Some(life));
            }
        }
        world.saw();
        match sum {
            Some(sum) => counts.check_sum(&world, key, server, begun, sum, smooth),
            None => counts.check_visitor(&world, at),
        }
    }
}

impl Counts {
    /// Checks a sum that a command returned which began at `begun`.
    fn check_sum(&self, world: &World, key: u64, server: usize, begun: u64, sum: u64, smooth: bool) {
        let counts = self.0.borrow();
        let of_key = || counts.iter().filter(|count| count.key == key);
        let age = |count: &Count| begun.saturating_sub(count.begun);
        let whole = if smooth { WINDOW - SLOT } else { WINDOW } - world.plan.spread;
        let lives = |count: &&Count| count.executed.get() == Some(world.life(server, count.slot.as_bytes()));
        let before = |count: &&Count| count.acknowledged.is_some_and(|at| at <= begun) && age(count) <= whole;
        let least: u64 = of_key().filter(lives).filter(before).map(|count| count.delta).sum();
        let recent = |count: &&Count| age(count) <= WINDOW + SLOT + world.plan.spread;
        let executed = |count: &&Count| count.executed.get().is_some();
        let most: u64 = of_key().filter(executed).filter(recent).map(|count| count.delta).sum();
        if sum < least || sum > most {
            world.violated(|| {
                format!(
                    "window {key}: the sum is {sum}, neither less than {least} nor more than {most} is right"
                )
            });
        }
    }

    /// Checks that a visitor who has just been counted had not been counted in this window.
    fn check_visitor(&self, world: &World, at: usize) {
        let counts = self.0.borrow();
        let new = &counts[at];
        let (Some((visitor, life)), Some(_)) = (&new.visitor, new.executed.get()) else { return };
        let is_same = |count: &&Count| {
            let of_visitor = count
                .visitor
                .as_ref()
                .is_some_and(|(of, held)| of == visitor && held == life && held.get().is_some());
            count.key == new.key && of_visitor && count.executed.get().is_some() && !std::ptr::eq(*count, new)
        };
        let apart = WINDOW - world.plan.spread;
        let twice = |count: &&Count| count.begun.abs_diff(new.begun) < apart;
        if let Some(other) = counts.iter().filter(is_same).find(twice) {
            let (first, second) = (other.begun.min(new.begun), other.begun.max(new.begun));
            world.violated(|| {
                format!("visitor {visitor} of window {} counts at {first} and at {second}", new.key)
            });
        }
    }
}
