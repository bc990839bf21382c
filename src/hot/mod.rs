//! Which keys are hot now: `GET /hot` and `kennel top`.
//!
//! `sampler` chooses the requests that a worker counts, `keys` counts them in a `sketch` for each measure and rule, and `report` adds up
//! what the workers have counted.

mod keys;
mod report;
mod sampler;
mod sketch;

pub use keys::{HALF_LIFE, HotKeys, HotSample, MAX_GROUPS, Measure};
pub use report::{HotKey, HotReport, MAX_KEYS, Rate};
pub use sampler::{MAX_STEP, SAMPLES_PER_SECOND, Sampler};
pub use sketch::COUNTERS;
