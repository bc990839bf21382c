//! The task that knows where the keys of each server of a pool are. All of them run on the thread `kennel-monitor`. Each reads the
//! records of the servers if the pool fails over, changes them, and publishes what it knows to the workers. It also reads by which
//! placements other processes place keys.
//!
//! ```text
//!   run       one agreement for each server decides what is read and written when
//!    │  ╲
//!    │   ├──▶ Views          for the workers
//!    │   └──▶ status         for operators: servers
//!   marks ──▶ pool_status    for operators: placements of a pool's keys
//!    │
//!   drain     moves the keys of a server, as operators ask for it
//!
//!   copies    commands and replies on the wire, and which servers keep the copies
//!    │
//!   link      one connection to each server
//! ```

mod copies;
mod drain;
mod forget;
mod link;
mod marks;
mod pool_status;
mod run;
mod status;
mod ticks;

pub use drain::NotMoved;
pub use forget::forget;
pub use pool_status::PoolStatus;
pub use run::{Monitor, step};
pub use status::{Published, Status};
