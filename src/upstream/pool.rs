//! A pool of one worker: a ring, and a connection to each server.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connection::Connection;
use super::placement_cache::PlacementCache;
use super::ring::Ring;
use super::server::Server;
use super::spec::{OnError, PoolSpec};
use crate::metrics::WorkerMetrics;

/// The part of a pool that all workers share.
pub struct SharedPool {
    /// Its name.
    pub name: String,
    ring: Ring,
    servers: Vec<Arc<Server>>,
    on_error: OnError,
    standby_ttl: Duration,
}

impl SharedPool {
    /// Creates the pool of a specification and starts its embedded servers. `first` is the index of its first server among
    /// those of all pools.
    pub fn new(spec: &PoolSpec, first: usize, clock: fn() -> u64) -> io::Result<SharedPool> {
        let (connect, request) = (spec.connect_timeout, spec.request_timeout);
        let servers = (first..).zip(&spec.servers);
        let servers = servers.map(|(index, server)| {
            let server = Server::new(index, server, connect, request, clock)?;
            Ok(Arc::new(server.with_health(spec.health)))
        });
        Ok(SharedPool {
            name: spec.name.clone(),
            ring: Ring::new(&spec.servers, spec.distribution, spec.hash),
            servers: servers.collect::<io::Result<_>>()?,
            on_error: spec.on_error,
            standby_ttl: spec.failover.as_ref().map_or(Duration::ZERO, |failover| failover.standby_ttl),
        })
    }

    /// Its servers, in the order of the configuration.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// Which server holds a key.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The pool of one worker. With several workers, call this for all of them before any begins to connect.
    pub fn for_worker(self: &Arc<Self>) -> UnconnectedPool {
        let first_attempts = self.servers.iter().map(|server| server.first_attempt()).collect();
        UnconnectedPool { shared: Arc::clone(self), first_attempts }
    }
}

/// The pool of a worker that has not begun to connect. While it exists, other workers' first connections wait for it.
pub struct UnconnectedPool {
    shared: Arc<SharedPool>,
    first_attempts: Vec<TaskTrackerToken>,
}

/// A pool of one worker.
pub struct Pool {
    shared: Arc<SharedPool>,
    connections: Vec<Rc<Connection>>,
    placements: PlacementCache,
}

impl Pool {
    /// Creates the worker's connections, which must be driven to do anything: see [`Connection::drive`].
    pub fn new(unconnected: UnconnectedPool, metrics: &Arc<WorkerMetrics>) -> Pool {
        let UnconnectedPool { shared, first_attempts } = unconnected;
        let connect = |(server, first_attempt): (&Arc<Server>, _)| {
            Connection::new(Arc::clone(server), first_attempt, Arc::clone(metrics))
        };
        let connections = shared.servers.iter().zip(first_attempts).map(connect).collect();
        Pool { shared, connections, placements: PlacementCache::default() }
    }

    /// The index of the server that holds this key.
    pub fn server_index(&self, key: &[u8]) -> usize {
        let ring = &self.shared.ring;
        if ring.is_costly() {
            self.placements.get_or_find(key, false, || ring.server(key))
        } else {
            ring.server(key)
        }
    }

    /// The same, if the first eight bytes of the key's MD5 may be known: then the ring is used without the cache.
    pub fn server_index_by(&self, key: &[u8], md5: Option<u64>) -> usize {
        match md5 {
            Some(md5) => self.shared.ring.server_by(key, || md5),
            None => self.server_index(key),
        }
    }

    /// Whether placing a key takes its MD5.
    pub fn wants_md5(&self) -> bool {
        self.shared.ring.is_costly()
    }

    /// The index of another server for a second copy of this key. It is stable while the servers do not change, and mostly when
    /// one is added or removed. With one server it is the same server.
    pub fn second_server_index(&self, key: &[u8]) -> usize {
        self.placements.get_or_find(key, true, || {
            let (ring, servers) = (&self.shared.ring, self.connections.len());
            let first = ring.server(key);
            let elsewhere = |n: u8| {
                let other = ring.server(&[key, b"#", &[b'0' + n]].concat());
                (other != first).then_some(other)
            };
            (2..10).find_map(elsewhere).unwrap_or((first + 1) % servers)
        })
    }

    /// The index of the server that holds this key while `server`, which holds it otherwise, is away: where the ring without
    /// that server places it.
    pub fn standby_index(&self, key: &[u8], server: usize) -> usize {
        self.shared.ring.server_without(key, &[server])
    }

    /// The index of the server that holds this key, or with `copy` its second copy, while the server that holds it otherwise is
    /// away. It is none of the two servers, so that the two copies do not meet. With three servers of which two are away they
    /// do: each is then restored from the other.
    pub fn standby_of_copy(&self, key: &[u8], copy: bool) -> usize {
        let (ring, first, second) =
            (&self.shared.ring, self.server_index(key), self.second_server_index(key));
        let standby = ring.server_without(key, &[first, second]);
        if copy && self.connections.len() > 3 {
            return ring.server_without(key, &[first, second, standby]);
        }
        standby
    }

    /// The longest TTL of an item on a standby server.
    pub fn standby_ttl(&self) -> Duration {
        self.shared.standby_ttl
    }

    /// The connection to the server that holds this key.
    pub fn connection(&self, key: &[u8]) -> &Rc<Connection> {
        &self.connections[self.server_index(key)]
    }

    /// The connections to all servers, by index.
    pub fn connections(&self) -> &[Rc<Connection>] {
        &self.connections
    }

    /// The reply to a read whose server is down.
    pub fn on_error(&self) -> OnError {
        self.shared.on_error
    }
}
