//! What goes wrong between sidecars and servers.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::world::World;

/// Faults that lose no item of a server that is alive: links that are held, cut, cut after some bytes, or swallow what is sent, and
/// servers that hang. One at a time, with pauses in which the fleet may recover, until `time` has passed. Afterwards all is well.
pub async fn lossless(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(Duration::from_millis(500 + random.below(4_000))).await;
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        let server = random.below(world.setup.servers as u64) as usize;
        let lasts = Duration::from_millis(50 + random.below(1_500));
        let net = &world.net;
        let what = random.below(6);
        net.trace.event(&format!("fault {what} between s{sidecar} and m{server} for {lasts:?}"));
        match what {
            0 => {
                net.set_held(sidecar, server, true);
                sleep(lasts).await;
                net.set_held(sidecar, server, false);
            }
            1 => net.cut(sidecar, server),
            2 => net.cut_after(sidecar, server, 0, random.below(400) as usize),
            3 => net.cut_after(sidecar, server, 1, random.below(400) as usize),
            4 => {
                net.swallow(sidecar, server);
                sleep(lasts).await;
                net.cut(sidecar, server);
            }
            _ => {
                net.set_hung(server, true);
                sleep(lasts).await;
                net.set_hung(server, false);
            }
        }
    }
    world.net.cut_nothing_later();
}

/// What is sent between a sidecar and a server arrives late, so that the commands of one round trip are carried out at moments far
/// apart. No request times out.
pub async fn slow_links(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        let server = random.below(world.setup.servers as u64) as usize;
        world.net.set_held(sidecar, server, true);
        sleep(Duration::from_millis(5 + random.below(25))).await;
        world.net.set_held(sidecar, server, false);
        sleep(Duration::from_millis(random.below(10))).await;
    }
}

/// Servers are killed and come back empty, one at a time, beside the faults above.
pub async fn killed_servers(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(Duration::from_millis(500 + random.below(8_000))).await;
        let server = random.below(world.setup.servers as u64) as usize;
        world.kill_server(server);
        sleep(Duration::from_millis(100 + random.below(8_000))).await;
        world.start_server(server);
    }
}

/// Servers restart empty in turn, each once everything has two copies again.
pub async fn rolling_restarts(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    let mut server = random.below(world.setup.servers as u64) as usize;
    while Instant::now() < until {
        world.kill_server(server);
        sleep(Duration::from_millis(10 + random.below(800))).await;
        world.start_server(server);
        // By then, every sidecar has seen whether the server has a mark.
        sleep(Duration::from_secs(4)).await;
        let lacks = |sidecar| world.metric(sidecar, "kennel_copies_servers_due", "") > 0.0;
        while (0..world.setup.sidecars).any(lacks) {
            sleep(Duration::from_millis(200)).await;
        }
        world.net.trace.event("everything has two copies");
        server = (server + 1) % world.setup.servers;
    }
}

/// Clocks of sidecars step by up to a minute, forward and back.
pub async fn stepping_clocks(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(Duration::from_millis(500 + random.below(8_000))).await;
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        let by = Duration::from_millis(random.below(60_000));
        world.step_clock(sidecar, by, random.below(2) == 0);
    }
}

/// Sidecars take the configuration again, with and without a further rule, one at a time.
pub async fn reloads(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(Duration::from_millis(500 + random.below(5_000))).await;
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        let further = "[[rules]]\nname = \"further\"\nmatch = \"further:*\"\n\n";
        let rules = if random.below(2) == 0 { further } else { "" };
        world.reload(sidecar, &format!("{rules}{}", world.setup.rules)).await;
    }
}

/// Sidecars lose their rules, and receive them again, one at a time: as while a rule is introduced or after it has been removed.
pub async fn rule_changes(world: Rc<World>, time: Duration) {
    let mut random = world.fork();
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(Duration::from_millis(random.below(4_000))).await;
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        world.reload(sidecar, if random.below(2) == 0 { "" } else { world.setup.rules }).await;
    }
    for sidecar in 0..world.setup.sidecars {
        world.reload(sidecar, world.setup.rules).await;
    }
}
