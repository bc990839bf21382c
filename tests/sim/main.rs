//! The guard in simulated time: sidecars, servers and clients run in one thread, one schedule per seed. docs/testing.md describes
//! what is simulated, what is checked and how to run a million seeds.

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
