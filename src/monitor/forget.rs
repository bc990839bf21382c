//! How a placement that nobody uses any longer is forgotten, so that nothing counts there if it is used again.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::debug;

use super::copies::Keys;
use crate::clock::unix_ms;
use crate::upstream::ring::{Ring, identity_ids, placement_id};
use crate::upstream::server::Server;
use crate::upstream::{BatchConnection, PoolSpec, Security};

/// Deletes the records of where the keys of the servers are under the placement of a pool that fails over. Whoever uses the placement
/// next draws new fences, so that values count as stale which were stored there before and have missed invalidations since. No
/// process must use the placement. A server that does not reply keeps its copies; two of three copies are enough.
pub async fn forget(spec: &PoolSpec) {
    if spec.failover.is_none() {
        return;
    }
    let placement = placement_id(&spec.servers, &spec.scheme);
    let ring = Ring::new(&spec.servers, &spec.scheme);
    let mut commands = vec![(String::new(), 0); spec.servers.len()];
    for (at, identity) in identity_ids(&spec.servers).into_iter().enumerate() {
        let keys = Keys::new(placement, identity);
        for holder in keys.holders(&ring, at) {
            let (text, count) = &mut commands[holder];
            text.push_str(&keys.forget());
            *count += 1;
        }
    }
    let Ok(security) = Security::open(&spec.security) else { return };
    let mut exchanges = JoinSet::new();
    for (server, (text, count)) in spec.servers.iter().zip(commands) {
        if let (Ok(server), 1..) = (Server::new(server, spec, &security, unix_ms), count) {
            exchanges.spawn(exchange(Arc::new(server), text, count, spec.request_timeout));
        }
    }
    let done = exchanges.join_all().await.into_iter().filter(|is_done| *is_done).count();
    debug!(pool = spec.name, servers = spec.servers.len(), done, "a placement is forgotten");
}

async fn exchange(server: Arc<Server>, commands: String, count: usize, limit: Duration) -> bool {
    let mut connection = BatchConnection::new(server);
    if connection.connect().await.is_err() {
        return false;
    }
    connection.exchange(commands.as_bytes(), count, limit, |_| {}).await.is_ok()
}
