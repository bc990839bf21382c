//! Whole fleets of the sidecar that ships, in one thread and simulated time: `App` with its workers, sessions, pipelines, monitors
//! and connections, the embedded memcached as the servers, and a simulated network. README.md describes it.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod bumps;
mod client;
mod commands;
mod coverage;
mod dialect;
mod faults;
mod guarded;
#[path = "../linearizability/mod.rs"]
#[allow(dead_code, reason = "its own tests and the integration tests use more of it")]
mod linearizability;
mod mixed;
mod mixed_commands;
mod mutants;
mod net;
mod schedules;
mod seeds;
mod situations;
mod structures;
mod world;
