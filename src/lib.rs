//! Kennel: a memcached sidecar with dog-pile protection and tags.
//!
//! The modules are in the order in which a request meets them: the process (`cli` to `open_files`), its edges (`worker` to
//! `admin`), the servers inside it (`embedded`), the pipeline (`proxy`, and `monitor` beside it) and what it uses (`rule`,
//! `guard`, `kinds`, `failover`, `upstream`,
//! `protocol`, `metrics`, `error`). The last ones give a simulated network, the time, names,
//! randomness, the log, a bounded table and a count for tests.

pub mod cli;
pub mod app;
pub mod config;
pub mod discovery;
mod memory_limit;
mod open_files;
pub mod systemd;
pub mod worker;
pub mod listener;
pub mod takeover;
pub mod handshake;
pub mod tls;
pub mod auth;
pub mod session;
pub mod admin;
pub mod embedded;
pub mod proxy;
pub mod monitor;
pub mod rule;
pub mod guard;
pub mod kinds;
pub mod failover;
pub mod upstream;
pub mod protocol;
pub mod metrics;
pub mod error;
pub mod pem;
pub mod trace;
pub mod hot;
pub mod observed;

pub mod net;
pub mod clock;
pub mod dns;
pub mod random;
pub mod log;
mod generations;
mod looked_at;
