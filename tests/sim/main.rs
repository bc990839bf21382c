//! The guard in simulated time: sidecars, servers and clients run in one thread, one schedule per seed. One to four sidecars, one to
//! three servers, up to seven readers with think times up to 2.5 s, and two clients that change the source and invalidate until that
//! is acknowledged. Each rule draws its settings and up to four tags (`plan.rs`, which has the faults too).
//!
//! What is checked:
//!
//! - A fresh value is within its time and no older than the last invalidation acknowledged before the request began (less `tags.cache`
//!   for bumps, and `near` for any invalidation, through another sidecar). A stale one is within `stale_for`, and no older than an
//!   invalidation that leaves nothing. A value served by `near` was read after the last change through the same sidecar.
//! - No client waits longer than promised: not beyond `cold_limit`, not while it holds a win or has a pipelined request, not once the
//!   key is filled, and no reader leaves a rebuild to the holder of a lock of another fence.
//! - No two `incr` of one value return the same number, and `fresh_hit` serves what the state machine would.
//! - A value that was set without a miss is gone with the first invalidation that began after its client had a reply, even an error.
//! - Between the decisions for two consecutive rebuilds is a reason that no other rebuild shares: an expiry, an invalidation, a loss, or
//!   a rebuild that ended without a value. Rebuilds overlap only if an invalidation or another store came between, or a lock, stub or
//!   connection was lost. A command executed late counts as one loss; the loss of one of two copies of a tag does not.
//! - Without faults, a fill is dropped only if something happened to the key since its miss. Once faults stop, every key becomes fresh.
//! - In runs of commands and pools, each key's history is linearizable (`tests/linearizability`).
//!
//! Not covered: only the first client of a sidecar has a pool, and it sends no meta commands; a client with a miss that takes longer than
//! `max_rebuild` without a win does not set; a client drops its CAS when the server restarts; the clock of a stopped server goes on; of
//! two copies of each tag, only one server fails. `on_delete = "stale"` counts a claim between its mark and its unlock as a reason of
//! its own. A command delayed for less than the timeout may combine a tag's version from before a bump with a key rebuilt after it: one
//! rebuild too many, which counts as one loss.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod plan;
mod server;
mod checker;
mod counting;
mod operation;
mod sidecar;
mod clients;
mod commands;
#[path = "../linearizability/mod.rs"]
#[allow(dead_code, reason = "its own tests and the integration tests use more of it")]
mod linearizability;
mod writes;
mod invalidators;
mod faults;
mod late;
mod tags;
mod mutants;
mod near;
mod places;
mod rare;
mod world;
mod outages;
mod seeds;
mod promises;
