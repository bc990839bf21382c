//! The pipeline: from a request to its rule, through the guard, to the servers, and back to the client.
//!
//! ```text
//!  session ──▶ call::begin ──raw────────▶ raw::forward ───────────────┐
//!                 │                            │                      ├──▶ replies ──▶ session
//!                 ├──structure──▶ structures::call ────────────────────┤
//!                 └──guarded──▶ guarded::read, guarded::write ────────┘
//!                                  │  guarded::driver runs the guard's state machines
//!                                  ▼
//!                               upstream
//! ```
//!
//! The modules are in the order in which a request meets them. Each imports only those below it.

mod explain;
mod slabs;
mod call;
mod raw;
mod guarded;
mod hold;
mod structures;
mod in_flight;
mod scope;
mod client;
mod held_locks;
mod repair;
mod copy_servers;
#[doc(hidden)] // for tests/kinds, whose servers read and write the same commands
pub mod kind_wire;
mod current;
mod observe;
mod pipeline;
mod observer;
mod state;
mod replies;
mod server_key;
mod key;
mod reserved;
mod place;
mod other;
mod plan;

pub use call::{Call, LongGetState};
pub(crate) use client::MAX_MOVED_MISSES;
pub use client::{Client, MovedMiss, connection_use};
pub use current::{Current, Leaving};
pub use explain::{AskedBy, Explanation, NearReport, SCHEMA, key_error, shown};
pub use guarded::explicit_tags;
#[doc(hidden)] // for tests/sim, whose servers read and write the same commands
pub use guarded::wire;
pub use in_flight::InFlight;
pub use observe::{LargeRead, UnreadReply};
pub use observer::ObserverSettings;
pub use pipeline::{Proxy, Shared};
pub use plan::{GuardPlan, MetaWinner, Plan, RulePlan, StructurePlan};
pub use replies::large::LargeReply;
pub(crate) use reserved::RESERVED;
pub use scope::{AccessSet, QueuePosition};
pub(crate) use server_key::is_text as is_text_key;
pub use slabs::SlabReply;
pub use state::client_marks::ClientMarks;
pub use state::key_hash::KeyHasher;
pub use state::lease_table::LeaseTable;
pub use state::outage_table::OutageTable;
pub use state::server_info::ServerInfo;
pub use state::tag_cache::TagCache;
