//! Structures on two servers, of which one is killed, restarts empty, or hangs: nothing that was acknowledged is lost.

use std::time::Duration;

use super::ledger::{self, Ledger};
use super::{SHORT, fleet_of};
use crate::client::Client;
use crate::world::{Kennel, Memcached, eventually, timed};

/// Whether a key is one of a structure that asks for items which may not exist. If a server does not reply, nobody knows whether it has
/// such an item that the other has lost, so there is no answer until the fleet has failed over.
fn may_be_unanswered(key: &str) -> bool {
    ["table:", "log:", "sum:", "visit:"].iter().any(|kind| key.starts_with(kind))
}

/// A fleet, the connection that has all locks, and one of each sidecar.
struct World {
    servers: Vec<Memcached>,
    sidecars: [Kennel; 2],
    holder: Client,
    a: Client,
    b: Client,
    ledger: Ledger,
}

impl World {
    /// Something is stored under each key.
    fn start() -> World {
        let (servers, sidecars) = fleet_of(&ledger::rules(), |toml| {
            toml.replace("[pools.main]\n", &format!("[pools.main]\n{SHORT}"))
        });
        let [mut holder, mut a, mut b] = [0, 0, 1].map(|at| sidecars[at].client());
        let mut ledger = Ledger::new(&mut holder);
        ledger.change(&mut a);
        ledger.change(&mut b);
        ledger.check_all(&mut a, "before");
        World { servers, sidecars, holder, a, b, ledger }
    }

    /// Everything can be read and changed through both sidecars, and the locks were held all the time.
    fn end(mut self, when: &str) {
        self.ledger.check_all(&mut self.a, when);
        self.ledger.change(&mut self.b);
        self.ledger.change(&mut self.a);
        self.ledger.check_all(&mut self.b, when);
        self.ledger.release(&mut self.holder, &mut self.b);
    }
}

#[test]
fn of_a_killed_server_every_item_is_readable_at_once_and_changed_once_the_fleet_has_failed_over() {
    let mut world = World::start();
    world.servers[1].kill();
    let (unanswered, took) = timed(|| world.ledger.check(&mut world.a, "with a dead server"));
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(unanswered.iter().all(|key| may_be_unanswered(key)), "{unanswered:?}");
    world.ledger.try_change(&mut world.b);
    world.end("after the failover");
}

#[test]
fn a_server_that_restarts_empty_takes_no_structure_with_it() {
    let mut world = World::start();
    world.servers[0].restart();
    world.ledger.check_all(&mut world.a, "after the restart");
    world.end("after everything was read");
}

#[test]
fn a_server_that_hangs_and_returns_with_old_contents_brings_no_structure_back() {
    let mut world = World::start();
    world.servers[2].stop();
    let unanswered = world.ledger.check(&mut world.a, "while a server hangs");
    assert!(unanswered.iter().all(|key| may_be_unanswered(key)), "{unanswered:?}");
    world.ledger.change(&mut world.a);
    world.servers[2].cont();
    let away = |sidecar: &Kennel| sidecar.metrics().sum("kennel_failover_place", &[]);
    eventually("the server is used again", || {
        world.ledger.try_change(&mut world.b);
        world.ledger.check(&mut world.a, "while the server returns");
        world.sidecars.iter().map(away).sum::<f64>() == 0.0
    });
    world.end("after the server has returned");
}
