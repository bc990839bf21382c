//! The clients. Each reads hot keys and rebuilds the value after a miss, as with any memcached.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use async_memcached::{AsciiProtocol, Client, Error};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::database::Database;
use super::history::History;
use super::scenario::Scenario;
use crate::random::Random;

/// How long a client may take to complete its last request. Longer than all time limits of a sidecar.
const GRACE: Duration = Duration::from_secs(3);

/// What all clients share.
pub(super) struct Workload {
    pub(super) scenario: Scenario,
    pub(super) database: Database,
    pub(super) history: RefCell<History>,
    /// The start of the run, which the times of the history are relative to.
    pub(super) start: Instant,
}

impl Workload {
    pub(super) fn new(scenario: Scenario) -> Workload {
        Workload {
            scenario,
            database: Database::new(scenario.rebuild, scenario.keys),
            history: RefCell::new(History::new(scenario.keys, scenario.ttl)),
            start: Instant::now(),
        }
    }
}

/// Connects a client to each address, and waits until each is answered: a sidecar may need seconds before it serves its clients.
pub(super) async fn connect(addresses: impl Iterator<Item = SocketAddr>) -> Result<Vec<DemoClient>, Error> {
    let mut clients = Vec::new();
    for (number, address) in addresses.enumerate() {
        let mut client = connect_to(address).await?;
        client.version().await?;
        // Seeded, so that both runs make the same choices.
        clients.push(DemoClient { address, client, random: Random::seeded(number as u64) });
    }
    Ok(clients)
}

/// Runs all clients until the end of the run. A client that does not end in time is aborted and counted as a failure. Must be
/// called inside a `LocalSet`.
pub(super) async fn run(clients: Vec<DemoClient>, workload: &Rc<Workload>) {
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn_local(client.run(Rc::clone(workload)));
    }
    let all = async { while running.join_next().await.is_some() {} };
    if timeout(workload.scenario.duration() + GRACE, all).await.is_err() {
        // Dropping the set aborts them.
        (0..running.len()).for_each(|_| workload.history.borrow_mut().failed());
    }
}

/// Stores the value of every key, so that no rebuild is needed until something happens to it. Retries for [`GRACE`], because a
/// sidecar may need a moment before it can store.
pub(super) async fn store_all(client: &mut DemoClient, scenario: &Scenario) -> Result<(), Error> {
    let end = Instant::now() + GRACE;
    for key in 0..scenario.keys {
        let name = name(key);
        while let Err(error) =
            client.client.set(&name, &value_for(&name, 0), Some(scenario.ttl.into()), None).await
        {
            if Instant::now() >= end {
                return Err(error);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// The name of a key.
pub(super) fn name(key: usize) -> String {
    format!("page:{}", key + 1)
}

fn value_for(name: &str, expiry: usize) -> String {
    format!("{name} rebuilt for expiry {expiry}")
}

async fn connect_to(address: SocketAddr) -> Result<Client, Error> {
    Client::new(format!("tcp://{address}")).await
}

pub(super) struct DemoClient {
    address: SocketAddr,
    client: Client,
    random: Random,
}

impl DemoClient {
    async fn run(mut self, workload: Rc<Workload>) {
        let end = workload.start + workload.scenario.duration();
        loop {
            sleep(self.random.jitter(workload.scenario.pause, 0.5)).await;
            if Instant::now() >= end {
                return;
            }
            let key = self.random.below(workload.scenario.keys as u64) as usize;
            let start = Instant::now();
            match self.request(key, &workload).await {
                Ok(()) => workload.history.borrow_mut().served(start.elapsed()),
                Err(_) => {
                    workload.history.borrow_mut().failed();
                    self.reconnect(end).await;
                }
            }
        }
    }

    /// Reads the key; after a miss, rebuilds the value and stores it.
    async fn request(&mut self, key: usize, workload: &Workload) -> Result<(), Error> {
        let name = name(key);
        let latest = workload.history.borrow().expiries(key);
        let value = self.client.get(&name).await?;
        let at = workload.start.elapsed();
        if let Some(value) = value {
            let built = built_for(&value.data.unwrap_or_default())?;
            workload.history.borrow_mut().hit(key, at, built, latest);
            return Ok(());
        }
        let expiry = workload.history.borrow_mut().missed(key, at);
        workload.database.rebuild(key).await;
        workload.history.borrow_mut().sending(key, workload.start.elapsed());
        let ttl = Some(workload.scenario.ttl.into());
        match self.client.set(&name, &value_for(&name, expiry), ttl, None).await {
            Ok(()) => workload.history.borrow_mut().stored(key, workload.start.elapsed()),
            // The client has the value; nobody else has.
            Err(Error::Protocol(_)) => workload.history.borrow_mut().refused(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Retries until the connection is established or the run ends.
    async fn reconnect(&mut self, end: Instant) {
        while Instant::now() < end {
            match connect_to(self.address).await {
                Ok(client) => {
                    self.client = client;
                    return;
                }
                Err(_) => sleep_until(end.min(Instant::now() + Duration::from_millis(100))).await,
            }
        }
    }
}

/// The expiry that a value was built for; an error for a value that is not of the demonstration.
fn built_for(value: &[u8]) -> Result<usize, Error> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.rsplit(' ').next()?.parse().ok());
    number.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_contains_the_expiry_it_was_built_for() {
        assert_eq!(built_for(b"page:1 rebuilt for expiry 12").unwrap(), 12);
        for foreign in [&b"page:1 rebuilt for expiry"[..], b"", b"\xff 3", b"page:1 rebuilt for expiry 3 "] {
            assert!(built_for(foreign).is_err());
        }
    }
}
