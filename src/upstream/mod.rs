//! The pools of memcached servers: which server holds a key, and how commands and replies travel.
//!
//! The files, in the order in which a command uses them:
//!
//! - `spec`: how pools and servers are configured, `scheme`: how a pool spreads its keys;
//! - `pool`: one worker's ring and connections; `ring` maps a key to a server (`moves`: which keys two rings place
//!   differently), `md5_lanes` hashes keys for it, and `placement_cache` remembers its results;
//! - `connection`: one pipelined connection of one worker to one server. `coalescing` lets identical unsent reads share one
//!   reply, and `batched_gets` puts the keys of several `get`s on one line;
//! - `batch_connection`: a connection of the control plane, for one batch of commands at a time;
//! - `key_dump`: all keys of a server;
//! - `server`: one server, shared by all workers; `probe` finds out its `capabilities` on each new connection;
//! - `socket`: the socket of a connection; `security` says whether it has TLS (`tls`, `verifier`) and begins with a password
//!   (`credentials`), and `connection_error` why there is none;
//! - `health`: whether a server answers in time;
//! - `read_buffer`: cuts what a server sends into replies;
//! - `reply`, `pending_replies`: the replies that one client is waiting for;
//! - `memory_budget`, `buffer_pool`: the memory of a worker's clients.

mod scheme;
mod spec;
pub mod pool;
mod batch_connection;
pub mod key_dump;
mod md5_lanes;
pub mod ring;
mod placement_cache;
pub mod connection;
mod coalescing;
mod batched_gets;
pub mod health;
pub mod server;
pub mod security;
pub mod tls;
mod verifier;
pub mod credentials;
mod socket;
mod connection_error;
pub mod capabilities;
pub mod probe;
mod read_buffer;
mod reply;
pub mod pending_replies;
pub mod memory_budget;
mod buffer_pool;

pub use batch_connection::{BatchConnection, NoReply};
pub use batched_gets::GetKind;
pub use connection_error::ConnectionError;
pub use md5_lanes::each_with_md5;
pub use scheme::{Distribution, Hash, HashedPart, Scheme};
pub use security::{Security, SecuritySpec};
pub use spec::{
    Address, FailoverSpec, HealthSpec, Lookup, OnError, OtherKind, OtherPlacement, PoolSpec, ServerSpec,
    UnknownPlacement,
};
