//! Clients of sidecars with different rules for the same keys, which change under load.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::client::Connection;
use super::mixed_commands::{RULES, Sent, Talker};
use super::world::World;

/// Sends so many random commands through one sidecar.
pub async fn mixed(world: Rc<World>, sent: Sent, count: usize) {
    let (mut random, number) = (world.fork(), world.number());
    let sidecar = number % world.setup.sidecars;
    let mut connection = Connection::open(&world, sidecar, &format!("c{number}-s{sidecar}"));
    let mut talker = Talker::new(number / world.setup.sidecars, world.fork(), sent);
    let mut last = None;
    for _ in 0..count {
        sleep(world.setup.pause.mul_f64(random.unit())).await;
        let request = talker.next(last.as_ref().map(|(request, told)| (request, told)));
        let reply = connection.reply(&request.bytes, |bytes| talker.complete(bytes)).await.expect("a reply");
        let told = talker.told(&request, &reply);
        let told =
            told.unwrap_or_else(|why| panic!("at {}, sidecar {sidecar}: {why}", world.net.trace.now()));
        last = Some((request, told));
    }
}

/// Sidecars take another of the configurations, one at a time.
pub async fn reloads(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(Duration::from_millis(random.below(500))).await;
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        world.reload(sidecar, RULES[random.below(RULES.len() as u64) as usize]).await;
    }
}
