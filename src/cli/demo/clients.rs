//! The clients: each reads a hot key, and whoever is told a miss rebuilds it. They know nothing of sidecars or guards.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use async_memcached::{AsciiProtocol, Client, Error};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Demo;
use super::database::Database;
use super::history::History;
use crate::random::Random;

/// How long after the end a client may take to finish what it was doing. Above every limit of a sidecar's.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the clients share.
pub(super) struct Workload {
    /// How many, and what they do.
    pub(super) demo: Demo,
    /// What they rebuild from.
    pub(super) source: Database,
    /// What they note.
    pub(super) ledger: RefCell<History>,
    /// When they began: what the ledger's times count from.
    pub(super) start: Instant,
}

impl Workload {
    /// It begins now.
    pub(super) fn new(demo: Demo) -> Workload {
        Workload {
            demo,
            source: Database::new(demo.rebuild),
            ledger: RefCell::new(History::new(demo.keys, demo.ttl)),
            start: Instant::now(),
        }
    }
}

/// A client for each address: connected, and waiting for the others.
pub(super) async fn gather(addresses: impl Iterator<Item = SocketAddr>) -> Result<Vec<DemoClient>, Error> {
    let mut visitors = Vec::new();
    for (number, address) in addresses.enumerate() {
        let client = connect(address).await?;
        // The same choices on both sides of the demo.
        visitors.push(DemoClient { address, client, chance: Random::seeded(number as u64) });
    }
    Ok(visitors)
}

/// Lets them all loose, and returns when the last has ended. One that hangs is cut off, and counted as a failure.
/// To be called inside a `LocalSet`.
pub(super) async fn run(visitors: Vec<DemoClient>, scene: &Rc<Workload>) {
    let mut crowd = JoinSet::new();
    for visitor in visitors {
        crowd.spawn_local(visitor.visit(Rc::clone(scene)));
    }
    let all = async { while crowd.join_next().await.is_some() {} };
    if timeout(scene.demo.lasts() + PATIENCE, all).await.is_err() {
        // Dropping the set ends them.
        (0..crowd.len()).for_each(|_| scene.ledger.borrow_mut().failed());
    }
}

async fn connect(address: SocketAddr) -> Result<Client, Error> {
    Client::new(format!("tcp://{address}")).await
}

/// One client.
pub(super) struct DemoClient {
    address: SocketAddr,
    client: Client,
    chance: Random,
}

impl DemoClient {
    async fn visit(mut self, scene: Rc<Workload>) {
        let end = scene.start + scene.demo.lasts();
        loop {
            sleep(self.chance.jitter(scene.demo.pause, 0.5)).await;
            if Instant::now() >= end {
                return;
            }
            let key = self.chance.below(scene.demo.keys as u64) as usize;
            let asked = Instant::now();
            match self.want(key, &scene).await {
                Ok(()) => scene.ledger.borrow_mut().served(asked.elapsed()),
                Err(_) => {
                    scene.ledger.borrow_mut().failed();
                    self.reconnect(end).await;
                }
            }
        }
    }

    /// As every application does it: ask the cache, and on a miss make the value and put it there.
    async fn want(&mut self, key: usize, scene: &Workload) -> Result<(), Error> {
        let name = format!("page:{}", key + 1);
        let latest = scene.ledger.borrow().expiries(key);
        let value = self.client.get(&name).await?;
        let at = scene.start.elapsed();
        if let Some(value) = value {
            let built = built_for(&value.data.unwrap_or_default())?;
            scene.ledger.borrow_mut().hit(key, at, built, latest);
            return Ok(());
        }
        let expiry = scene.ledger.borrow_mut().missed(key, at);
        scene.source.rebuild().await;
        let value = format!("{name} rebuilt for expiry {expiry}");
        scene.ledger.borrow_mut().sending(key, scene.start.elapsed());
        self.client.set(&name, &value, Some(scene.demo.ttl.into()), None).await?;
        scene.ledger.borrow_mut().filled(key, scene.start.elapsed());
        Ok(())
    }

    /// Tries until it is connected again, or the time is over.
    async fn reconnect(&mut self, end: Instant) {
        while Instant::now() < end {
            match connect(self.address).await {
                Ok(client) => {
                    self.client = client;
                    return;
                }
                Err(_) => sleep_until(end.min(Instant::now() + Duration::from_millis(100))).await,
            }
        }
    }
}

/// Which expiry a value was built for. A value that does not say is not one of ours.
fn built_for(value: &[u8]) -> Result<usize, Error> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.rsplit(' ').next()?.parse().ok());
    number.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_which_expiry_it_was_built_for() {
        assert_eq!(built_for(b"page:1 rebuilt for expiry 12").unwrap(), 12);
        for foreign in [&b"page:1 rebuilt for expiry"[..], b"", b"\xff 3", b"page:1 rebuilt for expiry 3 "] {
            assert!(built_for(foreign).is_err());
        }
    }
}
