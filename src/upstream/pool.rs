//! A pool as one worker knows it: a ring, and a connection to each of its servers.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connection::Connection;
use super::placement_cache::PlacementCache;
use super::ring::Ring;
use super::server::Server;
use super::{OnError, PoolSpec};
use crate::metrics::WorkerMetrics;

/// A pool as all workers share it.
pub struct SharedPool {
    /// Its name.
    pub name: String,
    ring: Ring,
    servers: Vec<Arc<Server>>,
    on_error: OnError,
}

impl SharedPool {
    /// The pool of a specification; `first` is the index of its first server among those of all pools. Embedded servers are
    /// started with it.
    pub fn new(spec: &PoolSpec, first: usize, clock: fn() -> u64) -> io::Result<SharedPool> {
        let (connect, request) = (spec.connect_timeout, spec.request_timeout);
        let servers = (first..).zip(&spec.servers);
        let servers =
            servers.map(|(index, server)| Ok(Arc::new(Server::new(index, server, connect, request, clock)?)));
        Ok(SharedPool {
            name: spec.name.clone(),
            ring: Ring::new(&spec.servers, spec.distribution, spec.hash),
            servers: servers.collect::<io::Result<_>>()?,
            on_error: spec.on_error,
        })
    }

    /// Its servers, in the configuration's order.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// The pool for one worker. If there are several, all are given theirs before any of them begins to connect.
    pub fn for_worker(self: &Arc<Self>) -> UnconnectedPool {
        let first_attempts = self.servers.iter().map(|server| server.first_attempt()).collect();
        UnconnectedPool { shared: Arc::clone(self), first_attempts }
    }
}

/// A pool for a worker that is yet to connect. While it exists, other workers' first connections wait for it.
pub struct UnconnectedPool {
    shared: Arc<SharedPool>,
    first_attempts: Vec<TaskTrackerToken>,
}

/// A pool as one worker knows it.
pub struct Pool {
    shared: Arc<SharedPool>,
    connections: Vec<Rc<Connection>>,
    places: PlacementCache,
}

impl Pool {
    /// With connections that are still to be driven.
    pub fn new(unconnected: UnconnectedPool, metrics: &Arc<WorkerMetrics>) -> Pool {
        let UnconnectedPool { shared, first_attempts } = unconnected;
        let connect = |(server, first_attempt): (&Arc<Server>, _)| {
            Connection::new(Arc::clone(server), first_attempt, Arc::clone(metrics))
        };
        let connections = shared.servers.iter().zip(first_attempts).map(connect).collect();
        Pool { shared, connections, places: PlacementCache::default() }
    }

    /// The place of the server that holds this key.
    pub fn place(&self, key: &[u8]) -> usize {
        let ring = &self.shared.ring;
        if ring.is_costly() { self.places.of(key, false, || ring.server(key)) } else { ring.server(key) }
    }

    /// The same, if the first eight bytes of the key's MD5 are known: then there is nothing to remember.
    pub fn place_by(&self, key: &[u8], md5: Option<u64>) -> usize {
        match md5 {
            Some(md5) => self.shared.ring.server_by(key, || md5),
            None => self.place(key),
        }
    }

    /// Whether it takes an MD5 to find the place of a key.
    pub fn wants_md5(&self) -> bool {
        self.shared.ring.is_costly()
    }

    /// The place of another server for a copy of what is under this key: the same as long as the servers are, and mostly when one
    /// is added or leaves. With one server there is no other.
    pub fn second_place(&self, key: &[u8]) -> usize {
        self.places.of(key, true, || {
            let (ring, servers) = (&self.shared.ring, self.connections.len());
            let first = ring.server(key);
            let elsewhere = |n: u8| {
                let place = ring.server(&[key, b"#", &[b'0' + n]].concat());
                (place != first).then_some(place)
            };
            (2..10).find_map(elsewhere).unwrap_or((first + 1) % servers)
        })
    }

    /// The connection to the server that holds this key.
    pub fn connection(&self, key: &[u8]) -> &Rc<Connection> {
        &self.connections[self.place(key)]
    }

    /// The connections to all servers, by place.
    pub fn connections(&self) -> &[Rc<Connection>] {
        &self.connections
    }

    /// What a read says when its server is dead.
    pub fn on_error(&self) -> OnError {
        self.shared.on_error
    }
}
