//! The task that knows where the keys of each server are. Each process has one, on the thread `kennel-monitor`: it reads the
//! records of all servers of pools with failover, changes them, and publishes what it knows to the workers.
//!
//! ```text
//!  link ── link ── link     one connection to each server: commands ⇄ replies
//!     ╲     │     ╱
//!       poll_records        what is read and written when: the failover's state machines
//!     ╱           ╲
//!  Views          Status    for the workers; for operators
//! ```

mod link;
mod status;

pub use status::Status;
