//! How pools and their servers are configured.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::scheme::Scheme;
use super::security::SecuritySpec;

/// Where one server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`; the host is an IPv4 or IPv6 address (without brackets) or a name.
    Tcp {
        /// IP address or host name.
        host: String,
        /// TCP port, 1–65535.
        port: u16,
    },
    /// `unix:/path`.
    Unix(PathBuf),
    /// `embedded:64MiB`: a memcached inside this process, with a memory limit.
    Embedded {
        /// Bytes that its items may take before it evicts the least recently used.
        limit: u64,
    },
    /// An entry that stands for servers which are looked up. No command is sent to it: it is replaced by what is found.
    Discovered(Lookup),
}

/// How the servers of an entry are found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lookup {
    /// `dns+name:port`: each address of the name is a server.
    Addresses {
        /// Name to look up.
        name: String,
        /// The TCP port of all servers, 1–65535.
        port: u16,
    },
    /// `dnssrv+_service._tcp.name`: each SRV record is a server.
    Services {
        /// The name, with service and protocol.
        name: String,
    },
    /// `elasticache+name:port`: the servers that the configuration endpoint of a cluster names.
    Cluster {
        /// Host of the configuration endpoint.
        host: String,
        /// The endpoint's port, 1–65535.
        port: u16,
    },
}

/// As in a configuration.
impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lookup::Addresses { name, port } => write!(f, "dns+{name}:{port}"),
            Lookup::Services { name } => write!(f, "dnssrv+{name}"),
            Lookup::Cluster { host, port } if host.contains(':') => write!(f, "elasticache+[{host}]:{port}"),
            Lookup::Cluster { host, port } => write!(f, "elasticache+{host}:{port}"),
        }
    }
}

/// As in a configuration.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Discovered(lookup) => lookup.fmt(f),
            Address::Embedded { limit } => {
                let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
                let divides = |(_, shift): &(&str, u32)| limit.trailing_zeros() >= *shift;
                let (unit, shift) = units.into_iter().find(divides).unwrap_or(("B", 0));
                write!(f, "embedded:{}{unit}", limit >> shift)
            }
        }
    }
}

/// One server of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// Address to connect to.
    pub address: Address,
    /// Its share of the keys relative to the pool's other servers, at least 1.
    pub weight: u32,
    /// Its name on the ring, in place of `host:port`. A named server can move without moving its keys.
    pub name: Option<String>,
}

impl ServerSpec {
    /// What operators call it, in the log, the metrics and on the status page: its name, otherwise its address.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.to_string())
    }

    /// How its servers are found, if it is an entry that stands for several.
    pub fn lookup(&self) -> Option<&Lookup> {
        match &self.address {
            Address::Discovered(lookup) => Some(lookup),
            Address::Tcp { .. } | Address::Unix(_) | Address::Embedded { .. } => None,
        }
    }
}

/// The reply to a read whose server is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// A miss: the client reads its database, as after an eviction.
    Miss,
    /// `SERVER_ERROR`.
    Error,
    /// A miss. Once the fleet has moved the server's keys to their standby servers, raw keys follow them.
    Standby,
}

impl OnError {
    /// Whether a read that no server answers is a miss.
    pub fn is_miss(self) -> bool {
        self != OnError::Error
    }
}

/// How the fleet moves the keys of a server that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailoverSpec {
    /// How long a view of a server's record is valid after it was requested.
    pub window: Duration,
    /// How long a server is silent before it is suspected to be dead.
    pub fail_after: Duration,
    /// How long a server answers before its keys return to it.
    pub recover_after: Duration,
    /// The longest TTL of an item on a standby server; whole seconds, at least 1.
    pub standby_ttl: Duration,
}

/// What happens to the guarded keys and tags of a pool while another process uses a placement that is not adjacent to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownPlacement {
    /// They are served. Operators are told.
    Warn,
    /// They are misses and cannot be changed, as without a valid view.
    Miss,
}

/// When a server counts as sick: `[pools.X.health]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HealthSpec {
    /// Whether slow servers are looked for.
    pub enabled: bool,
    /// So many time-outs in a row make a server sick.
    pub failures: u32,
    /// Replies that take longer are slow.
    pub slow: Duration,
    /// This share of slow replies and time-outs in a second makes a server sick; above 0, at most 1.
    pub slow_share: f64,
    /// The fewest requests in that second.
    pub min_requests: u64,
    /// The pause between good probes of a sick server.
    pub probe_interval: Duration,
    /// The longest pause between failed probes.
    pub probe_max_interval: Duration,
    /// So many good probes in a row end the sickness.
    pub recover_probes: u32,
}

impl HealthSpec {
    /// The defaults for this `request_timeout`.
    pub fn for_timeout(request_timeout: Duration) -> HealthSpec {
        HealthSpec {
            enabled: true,
            failures: 5,
            slow: request_timeout / 2,
            slow_share: 0.5,
            min_requests: 10,
            probe_interval: Duration::from_millis(250),
            probe_max_interval: Duration::from_secs(5),
            recover_probes: 3,
        }
    }
}

/// The other placement of a pool whose servers, or the way to spread keys over them, change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPlacement {
    /// The servers, without embedded ones.
    pub servers: Vec<ServerSpec>,
    /// How keys are spread over them. It or the servers are others than those of the pool.
    pub scheme: Scheme,
    /// Which of the other lists it is.
    pub kind: OtherKind,
}

/// What the other list of servers is, and with it the step of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherKind {
    /// `next`: step 1. It is invalidated, and nothing is read there.
    Next,
    /// `previous`: it is invalidated. With `take_over`, step 2, what is missing is taken over from it; without, step 3.
    Previous {
        /// Whether values are taken over.
        take_over: bool,
    },
}

impl OtherKind {
    /// The key in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            OtherKind::Next => "next",
            OtherKind::Previous { .. } => "previous",
        }
    }
}

/// One pool: valid by construction, with at least one server.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSpec {
    /// Its name in the configuration and in metrics.
    pub name: String,
    /// Its servers, in the order of the configuration. In a pool as it is written, some may be [`Address::Discovered`].
    pub servers: Vec<ServerSpec>,
    /// The other list of servers, while they change.
    pub other: Option<OtherPlacement>,
    /// How keys are spread over the servers.
    pub scheme: Scheme,
    /// The time limit of a connection attempt.
    pub connect_timeout: Duration,
    /// The time limit of one request.
    pub request_timeout: Duration,
    /// The reply to a read whose server is down.
    pub on_error: OnError,
    /// Whether and how its servers fail over; `None` if they do not. With it, there are at least three servers, none of them
    /// embedded, unless there are servers to discover.
    pub failover: Option<FailoverSpec>,
    /// When a server counts as sick.
    pub health: HealthSpec,
    /// How many copies that were lost are stored again in a second; 0: only when an operator asks.
    pub repair_rate: u32,
    /// Names the keys: processes whose pools have the same keyspace must place keys alike. By default the pool's name.
    pub keyspace: String,
    /// What happens while another process places keys in a way that is not adjacent.
    pub unknown_placement: UnknownPlacement,
    /// What protects the connections to its servers. With TLS, all of them have TCP addresses; with a password, none is embedded.
    pub security: SecuritySpec,
    /// The DNS servers that are asked for the names of its servers; the system's resolver if there are none.
    pub nameservers: Vec<SocketAddr>,
}

impl PoolSpec {
    /// The same pool with the other list of servers, while the servers change.
    pub fn other_pool(&self) -> Option<PoolSpec> {
        let OtherPlacement { servers, scheme, .. } = self.other.clone()?;
        Some(PoolSpec { servers, scheme, other: None, ..self.clone() })
    }

    /// The servers of the other list that are not in `servers`.
    pub fn further_servers(&self) -> impl Iterator<Item = &ServerSpec> + Clone {
        let is_further = |server: &&ServerSpec| !self.servers.iter().any(|own| own.address == server.address);
        self.other.iter().flat_map(|other| &other.servers).filter(is_further)
    }

    /// The entries of both lists that stand for servers to be looked up, in their order.
    pub fn lookups(&self) -> impl Iterator<Item = &Lookup> {
        self.servers
            .iter()
            .chain(self.other.iter().flat_map(|other| &other.servers))
            .filter_map(ServerSpec::lookup)
    }

    /// `servers`, and behind them those that are only in the other list: each server that the pool connects to once.
    pub fn all_servers(&self) -> impl Iterator<Item = &ServerSpec> + Clone {
        self.servers.iter().chain(self.further_servers())
    }
}
