//! Which settings are in force.
//!
//! ```text
//!  TOML ──load──▶ file ◀── environment (KENNEL_…)
//!                  │
//!                  └──validate (listen, pools, rules)──▶ settings, or errors: all of them
//! ```
//!
//! `location` finds the file. `load` reads it as it is, without judging it; `integers` finds the numbers that the parser cannot
//! represent, and `lines` the line of each key. `key_values` tells which keys differ between two configurations, and `changes` what
//! that means: what would be lost, and what is built again. `read_files` tells which of the files that they name differ, and
//! `written` makes a file of a configuration again. `fingerprint` tells whether two processes have the same rules. `file` declares
//! the keys, and `environment` overrides them. `validate` turns the result into the `settings`. It uses `listen`,
//! `pools` and `rules` for the larger tables; `kinds` for what only rules of some kinds have. These use the `validator`, which
//! collects `errors`, and `units` and `addresses`
//! for single values. `suggestion` finds the key that a misspelled one was meant to be. `admin` reads the one table that
//! `kennel health` needs.
//!
//! Invariant: nothing outside this directory imports the `config` crate.

mod addresses;
mod admin;
mod changes;
mod discovery;
mod environment;
mod errors;
mod failover;
mod repair;
mod file;
mod fingerprint;
mod health;
mod integers;
mod kinds;
mod key_values;
mod lines;
mod listen;
mod load;
mod location;
mod pools;
mod read_files;
mod rules;
mod scheme;
mod security;
mod settings;
mod suggestion;
pub(crate) mod units;
mod validate;
mod validator;
mod written;

use crate::upstream::Address;

pub(crate) use addresses::reaches;
pub use admin::{AdminAccess, admin_access};
pub use changes::{Change, Changes, Effect};
pub use environment::environment;
pub use errors::ConfigErrors;
pub(crate) use failover::LEAST_SERVERS;
pub use key_values::KeyValues;
pub use load::{Loaded, load, read};
pub use location::{CONFIG_VARIABLE, Location};
pub use read_files::ReadFiles;
pub use settings::{Config, ControlPath, Discovery, Near, Reload, Rule, RuleKind, Tags};

/// The address of a server, `host:port`.
///
/// # Errors
/// What is wrong with it, to follow it.
pub(crate) fn tcp_address(text: &str) -> Result<Address, String> {
    match units::server_address(text)? {
        address @ Address::Tcp { .. } => Ok(address),
        _ => Err("is no host and port".to_owned()),
    }
}

#[cfg(test)]
mod tests;
