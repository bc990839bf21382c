//! What is counted, and how it is exported.
//!
//! ```text
//!  worker 0 ── adds to ──▶ [cells]─┐
//!  worker 1 ── adds to ──▶ [cells]─┼─ summed when scraped ──▶ registry ──▶ text
//!  worker 2 ── adds to ──▶ [cells]─┘
//! ```
//!
//! `worker` has one method for each event. It adds to `cells` at the index that `layout` gives for the `labels`: a few plain
//! loads and stores in memory that no other worker writes. A scrape calls `registry`, which makes `collect` sum the `counts` of
//! all workers into the families of the `table` and add those of the `process`. A client's `stats` reads the `totals`.
//! `exposition` parses the text format in tests.
//!
//! Invariant: nothing outside this directory imports prometheus.

mod cells;
mod collect;
mod counts;
#[cfg(test)]
mod exposition;
mod discovery;
mod failover;
mod labels;
mod layout;
mod process;
mod registry;
mod sample;
mod table;
mod totals;
mod worker;

pub use counts::{ConfigInfo, ServerName};
pub use discovery::{DiscoveredEntry, DiscoveredPool, DiscoverySource};
pub use failover::{FailoverSource, FailoverState, PlacementsState, RepairState};
pub use labels::{
    AuthOutcome, ClientMode, Command, ConnectFailure, DropReason, ErrorCause, HealthState, LeaseEnd, Limit,
    LockEnd, Outcome, PairedWith, Place, StaleReason, TlsOutcome, TlsSession, UpstreamOutcome, WaitEnd,
};
pub use layout::NO_RULE;
pub use registry::{CONTENT_TYPE, Metrics, NextMetrics, ObservedTotals, RuleTotals};
pub use sample::Sample;
pub use table::{Family, MetricType, TABLE, markdown};
pub use totals::{Totals, Usage};
pub use worker::{ServerMetrics, WorkerMetrics};

#[cfg(test)]
mod tests;
