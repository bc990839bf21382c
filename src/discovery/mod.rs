//! Which servers the entries `dns+…`, `dnssrv+…` and `elasticache+…` stand for, and how a pool changes when that changes.
//!
//! ```text
//!   lookup      asks DNS (dns.rs), or a cluster's endpoint (cluster)
//!      │ what is found, or why nothing is
//!   driver      looks up again within the TTL; decides what to do with an answer (pool: what is known of each entry)
//!      │
//!   settling    when the servers change, step by step
//!      │ phase
//!   list        the configuration as written + phase ─▶ the configuration in force, to which app.rs switches
//! ```
//!
//! `status` is what operators see, and `names` warns of names that stand for one server and have several addresses.

mod cluster;
mod driver;
mod list;
mod lookup;
mod names;
mod pool;
mod settling;
mod status;

use std::io;

use tokio::runtime;

use crate::config::{Config, Loaded};
pub use driver::{Change, Discovery};
pub use names::{several_addresses, watch_names};

/// The configuration with the servers that its entries stand for now: for a command that runs once. Must not be called in a runtime.
///
/// # Errors
/// Entries that are not found, each with its reason.
pub fn look_up_once(loaded: Loaded) -> Result<Config, Vec<String>> {
    if loaded.config.pools.iter().all(|pool| pool.lookups().next().is_none()) {
        return Ok(loaded.config);
    }
    let failed = |error: io::Error| vec![error.to_string()];
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut discovery = Discovery::new(loaded);
    runtime.block_on(discovery.first());
    let unknown = discovery.unknown();
    let config = discovery.in_force().config;
    // Do not wait for lookups that have not ended.
    runtime.shutdown_background();
    if unknown.is_empty() { Ok(config) } else { Err(unknown) }
}
