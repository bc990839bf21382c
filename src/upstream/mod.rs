//! The pools of real memcached servers: which server holds a key, and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

mod md5_lanes;
pub mod ring;
pub mod pool;
pub mod capabilities;
pub mod server;
pub mod probe;
pub mod connection;
mod coalescing;
mod batched_gets;
mod read_buffer;
mod placement_cache;
pub mod pending_replies;
pub mod memory_budget;
mod buffer_pool;

pub use batched_gets::GetKind;
pub use md5_lanes::each_with_md5;

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
    /// `embedded:64MiB`: a memcached inside this process, with a limit on its memory.
    Embedded {
        /// How many bytes its items may take before the least recently used are evicted.
        limit: u64,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Embedded { limit } => write!(f, "embedded:{limit}"),
        }
    }
}

/// One server of a pool, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// Where it listens.
    pub address: Address,
    /// Its share of the keys relative to the pool's other servers, at least 1.
    pub weight: u32,
    /// What the ring hashes in place of `host:port`, so that a server can move without moving its keys.
    pub name: Option<String>,
}

/// How a key's position becomes a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// libmemcached's weighted ketama, which is also twemproxy's `distribution: ketama, hash: md5`.
    Ketama,
    /// hash modulo the number of servers (each counted as often as it weighs).
    Modula,
    /// Lamping and Veach's jump consistent hash.
    Jump,
    /// Highest random weight.
    Rendezvous,
}

/// What turns a key into a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// The first little-endian u32 of the MD5 digest.
    Md5,
    /// libmemcached's and twemproxy's `crc32`: bits 16–30 of the IEEE CRC-32.
    Crc32,
    /// twemproxy's `crc32a`: the whole IEEE CRC-32.
    Crc32a,
    /// 32-bit FNV-1a.
    Fnv1a32,
}

/// What a read says when its server is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The key is absent.
    Miss,
    /// `SERVER_ERROR`.
    Error,
}

/// One pool, as configured: valid by construction, at least one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSpec {
    /// Its name in the configuration and in metrics.
    pub name: String,
    /// Its servers, in the configuration's order.
    pub servers: Vec<ServerSpec>,
    /// How keys are spread over them.
    pub distribution: Distribution,
    /// What hashes a key.
    pub hash: Hash,
    /// How long a connection attempt may take.
    pub connect_timeout: Duration,
    /// How long a server may take to answer one request.
    pub request_timeout: Duration,
    /// What a read says when its server is dead.
    pub on_error: OnError,
}
