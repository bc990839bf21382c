//! Looks once where the keys of each server are, without taking part in an agreement.

use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Monitor, MonitoredPool, links};
use crate::failover::{Operation, Record, Reply, View};
use crate::monitor::copies::{self, Keys};
use crate::monitor::link::{Link, Outgoing};

/// For how long what was seen is used, in ms: as long as a command may run.
const VALID_MS: u64 = 60_000;

impl Monitor {
    /// Reads the records once and publishes a view of each server of which two copies agree. Writes nothing, and renews no record.
    /// Takes at most `limit`.
    pub async fn observe(&self, limit: Duration) {
        let mut tasks = JoinSet::new();
        let all = async {
            for pool in &self.pools {
                let Some(failover) = &pool.failover else { continue };
                let links = links(pool, &mut tasks);
                for (at, identity) in failover.identities.iter().enumerate() {
                    let keys = Keys::new(failover.placement, *identity);
                    let view = look(pool, &keys, &links, at).await;
                    failover.views.publish(at, view.map(|view| (view, self.mono() + VALID_MS)));
                }
            }
        };
        // What is unknown by then stays unknown.
        let _ = timeout(limit, all).await;
    }
}

/// What two of the copies of a server's record say.
async fn look(pool: &MonitoredPool, keys: &Keys, links: &[Link], at: usize) -> Option<View> {
    let holders = keys.holders(pool.pool.ring(), at);
    let outgoing = || vec![Outgoing { bytes: Bytes::from(keys.look()), cas_epoch: None }];
    let [first, second, third] = holders.map(|holder| links[holder].send(outgoing()));
    let (first, second, third) = tokio::join!(first, second, third);
    let record = |answers: Vec<_>| match copies::decode(&Operation::Read, answers.first()?) {
        Reply::Found(value, _) => Record::decode(&value),
        _ => None,
    };
    let found = [first, second, third].map(record);
    let agreed = (0..found.len()).find(|at| found[*at].is_some() && found[at + 1..].contains(&found[*at]))?;
    found[agreed].map(|Record { fence, standby, inherited, .. }| View { fence, standby, inherited })
}
