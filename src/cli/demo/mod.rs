//! `kennel demo`: the same clients with the same slow database, first without the guard, then with it; and then both again, while
//! a memcached dies.
//!
//! ```text
//!  clients ── get, set ──▶ two sidecars ──▶ three memcacheds     all in this process, over loopback
//!    │ miss                 (raw, then guarded)
//!    └────▶ database: slow, counts concurrent rebuilds
//! ```
//!
//! `run` starts a `cluster` and the `clients` of the `scenario`, which rebuild values from the `database` and record a `history`.
//! The result is a `measurement`, and `screen` displays it. All figures are measured: if the guard failed, they would show it.

mod clients;
mod cluster;
mod database;
mod history;
mod measurement;
mod run;
mod scenario;
mod screen;
mod second_act;

pub use run::run;
