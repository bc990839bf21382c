//! Counters: an acknowledged count is in every later number while its server lives, and none is counted twice.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use kennel::error::Failure;
use kennel::kinds::{Counter, Kind, Outcome, Request};

use super::mutants::Mutant;
use super::network::Life;
use super::world::{Executed, Watch, World};

#[derive(Default)]
struct Counts(RefCell<Vec<Count>>);

struct Count {
    key: u64,
    delta: u64,
    executed: Executed,
    acknowledged: Option<u64>,
}

pub fn begin(world: &Rc<World>) {
    let counts = Rc::new(Counts::default());
    for client in 0..world.plan.clients {
        world.executor.spawn(count(Rc::clone(world), Rc::clone(&counts), client));
    }
}

async fn count(world: Rc<World>, counts: Rc<Counts>, client: usize) {
    let kind = Kind::Counter(Counter { ttl: Duration::ZERO });
    loop {
        world.pause().await;
        let key = world.executor.below(world.plan.keys);
        let name = format!("n{key}");
        let (sidecar, server) = (client % world.plan.sidecars, key as usize % world.plan.servers);
        let reads = world.executor.one_in(4);
        let delta = if reads { 0 } else { 1 + world.executor.below(3) };
        let request = if reads { Request::Get } else { Request::Count { decr: false, delta, initial: None } };
        let begun = world.executor.now();
        let watch = Watch::counts();
        let at = counts.0.borrow().len();
        counts.0.borrow_mut().push(Count {
            key,
            delta,
            executed: Rc::clone(&watch.executed),
            acknowledged: None,
        });
        let mut machine =
            world.machine(sidecar, &kind, &name, name.len(), request, world.inputs(sidecar).now);
        let life = world.network.life(server, name.as_bytes());
        let mut outcome = world.carry_out(sidecar, server, &mut *machine, &watch).await;
        if world.plan.is(Mutant::FailedCountIsAcknowledged)
            && outcome == Outcome::Failed(Failure::TimedOut)
            && !reads
        {
            outcome = Outcome::Counted(u64::MAX, 0, None);
        }
        let now = world.executor.now();
        let number = match outcome {
            Outcome::Counted(number, ..) => {
                counts.0.borrow_mut()[at].acknowledged = Some(now);
                number
            }
            Outcome::Value { data, .. } => {
                String::from_utf8_lossy(&data).trim().parse().expect("a counter is a number")
            }
            Outcome::NotFound => 0,
            _ => continue,
        };
        world.saw();
        // Of a read, it is known only if the item has not been lost meanwhile.
        let unchanged = (world.network.life(server, name.as_bytes()) == life).then_some(life);
        if let Some(life) = if reads { unchanged } else { watch.executed.get() } {
            counts.check(&world, key, life, begun, number);
        }
    }
}

impl Counts {
    /// Checks a number that was read or counted in this life by a command that began at `begun`.
    fn check(&self, world: &World, key: u64, life: Life, begun: u64, number: u64) {
        if number == u64::MAX {
            return;
        }
        let counts = self.0.borrow();
        let of_life = || counts.iter().filter(|count| count.key == key && count.executed.get() == Some(life));
        let before = |count: &&Count| count.acknowledged.is_some_and(|at| at <= begun);
        let least: u64 = of_life().filter(before).map(|count| count.delta).sum();
        let most: u64 = of_life().map(|count| count.delta).sum();
        // What was acknowledged without having been executed is lost.
        let never = |count: &&Count| {
            count.key == key && count.acknowledged.is_some() && count.executed.get().is_none()
        };
        let never: u64 = counts.iter().filter(never).map(|count| count.delta).sum();
        if never > 0 || number < least || number > most {
            world.violated(|| {
                format!("counter {key} is {number}, though {least} were counted before, {never} in vain, and {most} in all")
            });
        }
    }
}
