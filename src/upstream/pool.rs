//! A pool of one worker: a ring, and a connection to each server.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connection::Connection;
use super::placement_cache::PlacementCache;
use super::ring::Ring;
use super::security::Security;
use super::server::{Server, ServerLimits};
use super::spec::{OnError, OtherKind, PoolSpec, ServerSpec};

/// The part of a pool that all workers share.
pub struct SharedPool {
    /// Name of the pool.
    pub name: String,
    ring: Ring,
    servers: Vec<Arc<Server>>,
    on_error: OnError,
    standby_ttl: Duration,
    other: Option<OtherPool>,
}

/// The same pool with its other list of servers, while these change. A server in both lists is the same [`Server`].
struct OtherPool {
    kind: OtherKind,
    pool: Arc<SharedPool>,
}

impl SharedPool {
    /// Creates the pool of a specification, whose files have been read, and starts its embedded servers.
    ///
    /// # Errors
    /// An embedded server cannot be started.
    pub fn new(spec: &PoolSpec, security: &Security, clock: fn() -> u64) -> io::Result<SharedPool> {
        SharedPool::with_known(spec, security, &[], clock)
    }

    /// The same, with the servers of an earlier pool as far as the specification has them too.
    ///
    /// # Errors
    /// An embedded server cannot be started.
    pub fn with_known(
        spec: &PoolSpec,
        security: &Security,
        known: &[Arc<Server>],
        clock: fn() -> u64,
    ) -> io::Result<SharedPool> {
        let of_spec = |of: &ServerSpec| match known.iter().find(|server| server.is_of(of, spec)) {
            Some(known) => Ok(Arc::clone(known)),
            None => Server::new(of, spec, security, clock).map(Arc::new),
        };
        let all = spec.all_servers().map(of_spec).collect::<io::Result<Vec<_>>>()?;
        let other = spec.other.as_ref().zip(spec.other_pool()).map(|(other, spec)| {
            let of = |listed: &ServerSpec| all.iter().find(|server| *server.address() == listed.address);
            let servers = spec.servers.iter().filter_map(of).cloned().collect();
            OtherPool { kind: other.kind, pool: Arc::new(SharedPool::of_servers(&spec, servers, None)) }
        });
        let own = all[..spec.servers.len()].to_vec();
        Ok(SharedPool::of_servers(spec, own, other))
    }

    /// Applies the time limits of a specification to the servers, which an earlier pool may have used with others.
    pub fn apply_limits(&self, spec: &PoolSpec) {
        let limits = ServerLimits::of(spec);
        self.all_servers().for_each(|server| server.set_limits(&limits));
    }

    /// Makes the connections of the servers with this from now on. Those that exist stay.
    ///
    /// # Errors
    /// No certificate can be for the host of a server.
    pub fn apply_security(&self, security: &Security) -> io::Result<()> {
        self.all_servers().try_for_each(|server| server.set_security(security))
    }

    fn of_servers(spec: &PoolSpec, servers: Vec<Arc<Server>>, other: Option<OtherPool>) -> SharedPool {
        SharedPool {
            name: spec.name.clone(),
            ring: Ring::new(&spec.servers, &spec.scheme),
            servers,
            on_error: spec.on_error,
            standby_ttl: spec.failover.as_ref().map_or(Duration::ZERO, |failover| failover.standby_ttl),
            other,
        }
    }

    /// The same pool with its other list of servers, while these change.
    pub fn other(&self) -> Option<&Arc<SharedPool>> {
        self.other.as_ref().map(|other| &other.pool)
    }

    /// Its servers, in the order of the configuration.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// Which server holds a key.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The servers that are only in the other list.
    pub fn further_servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        let others = self.other().into_iter().flat_map(|other| &other.servers);
        others.filter(|server| !self.servers.iter().any(|own| Arc::ptr_eq(own, server)))
    }

    /// The servers of both lists, each once: those of the pool first.
    pub fn all_servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.iter().chain(self.further_servers())
    }

    /// The pool of one worker. With several workers, call this for all of them before any begins to connect.
    pub fn for_worker(self: &Arc<Self>) -> UnconnectedPool {
        let first_attempt = |server: &Arc<Server>| (Arc::clone(server), server.first_attempt());
        let first_attempts = self.all_servers().map(first_attempt).collect();
        UnconnectedPool { shared: Arc::clone(self), first_attempts }
    }
}

/// The pool of a worker that has not begun to connect. While it exists, other workers' first connections wait for it.
pub struct UnconnectedPool {
    shared: Arc<SharedPool>,
    /// The servers of both lists, each once.
    first_attempts: Vec<(Arc<Server>, TaskTrackerToken)>,
}

impl UnconnectedPool {
    /// The number of servers of both lists.
    pub fn servers(&self) -> usize {
        self.first_attempts.len()
    }
}

/// A pool of one worker.
pub struct Pool {
    shared: Arc<SharedPool>,
    connections: Vec<Rc<Connection>>,
    /// The connections to the servers that are only in the other list.
    further: Vec<Rc<Connection>>,
    placements: PlacementCache,
}

impl Pool {
    /// The worker's pool. `connect` returns the connection to a server of the pool, given by its position among the servers of both
    /// lists. A new one must be driven to do anything: see [`Connection::drive`].
    pub fn new(
        unconnected: UnconnectedPool,
        mut connect: impl FnMut(usize, Arc<Server>, TaskTrackerToken) -> Rc<Connection>,
    ) -> Pool {
        let UnconnectedPool { shared, first_attempts } = unconnected;
        let all = first_attempts.into_iter().enumerate();
        let mut connections: Vec<_> = all.map(|(at, (server, first))| connect(at, server, first)).collect();
        let further = connections.split_off(shared.servers.len());
        Pool { shared, connections, further, placements: PlacementCache::default() }
    }

    /// The same pool with its other list of servers, over the same connections, and what that list is. `None` if the servers do
    /// not change.
    pub fn other(&self) -> Option<(OtherKind, Pool)> {
        let OtherPool { kind, pool } = self.shared.other.as_ref()?;
        let to = |server: &Arc<Server>| self.all_connections().find(|known| known.is_to(server)).cloned();
        let connections = pool.servers.iter().filter_map(to).collect();
        let (shared, placements) = (Arc::clone(pool), PlacementCache::default());
        Some((*kind, Pool { shared, connections, further: Vec::new(), placements }))
    }

    /// The same pool over the same connections.
    pub fn same(&self) -> Pool {
        let (shared, connections) = (Arc::clone(&self.shared), self.connections.clone());
        Pool { shared, connections, further: Vec::new(), placements: PlacementCache::default() }
    }

    /// The connections to all servers of both lists.
    pub fn all_connections(&self) -> impl Iterator<Item = &Rc<Connection>> {
        self.connections.iter().chain(&self.further)
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

    /// Name of the pool.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether placing a key takes its MD5.
    pub fn wants_md5(&self) -> bool {
        self.shared.ring.wants_md5()
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
