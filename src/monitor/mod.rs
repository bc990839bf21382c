//! The task that knows where the keys of each server are. Each process has one, on the thread `kennel-monitor`: it reads the
//! records of all servers of pools with failover, changes them, and publishes what it knows to the workers. For all pools, it
//! reads by which placements other processes place keys.
//!
//! ```text
//!   run       one agreement for each server decides what is read and written when
//!    │  ╲
//!    │   ├──▶ Views          for the workers
//!    │   └──▶ status         for operators: servers
//!   marks ──▶ pool_status    for operators: placements of a pool's keys
//!    │
//!   copies    commands and replies on the wire, and which servers keep the copies
//!    │
//!   link      one connection to each server
//! ```

mod copies;
mod link;
mod marks;
mod pool_status;
mod run;
mod status;

pub use pool_status::PoolStatus;
pub use run::{Monitor, step};
pub use status::Status;
