//! The commands other than running the sidecar, one file each, and the `arguments` of all.
//!
//! `check` prints the `description` of a configuration, and `connect` tests its servers. `demo`, `health`, `ring` and
//! `tag` are the commands of these names.

pub mod arguments;
pub mod check;
mod connect;
pub mod demo;
mod description;
mod memory;
mod structures;
pub mod health;
pub mod ring;
pub mod tag;
