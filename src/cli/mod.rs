//! The commands other than running the sidecar, one file each, and the `arguments` of all.
//!
//! `check` prints the `description` of a configuration, and `connect` tests its servers. `completions`, `demo`, `explain`, `fleet`,
//! `health`, `init`, `reload`, `ring`, `server`, `suggest`, `tag`, `top` and `trace` are the commands of these names. `clients` are the
//! libraries whose placement of keys `init` knows. `admin_client` asks a running sidecar, `pipeline` the servers.

mod admin_client;
pub mod arguments;
pub mod check;
mod clients;
pub mod completions;
mod connect;
pub mod control;
pub mod demo;
mod description;
mod memory;
mod structures;
mod unprotected;
pub mod explain;
pub mod fleet;
pub mod health;
pub mod init;
mod pipeline;
pub mod ring;
pub mod suggest;
pub mod tag;
pub mod top;
pub mod trace;
