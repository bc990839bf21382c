//! What a process begins with.

use std::time::Duration;

use crate::clock::Clock;
use crate::listener::Inherited;
use crate::proxy::KeyHasher;

/// What a process begins with.
#[derive(Default)]
pub struct Start {
    /// Sockets that another process has bound.
    pub inherited: Inherited,
    /// The hashes of keys of the process that this one takes over from.
    pub hasher: Option<KeyHasher>,
    /// How often the threads prove that they run.
    pub heartbeat: Option<Duration>,
    /// Its clock in a simulation, where everything runs in tasks of the calling thread. `None`: the system's clock, and threads.
    pub simulated: Option<Clock>,
}
