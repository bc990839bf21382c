//! How operators see the state of the sidecar over HTTP, and have it read its configuration again.
//!
//! ```text
//! GET /         a status page
//! GET /metrics  Prometheus's text format
//! GET /healthz  200 while the process can reply
//! GET /readyz   200 and a list of problems if clients are accepted; otherwise 503 and the state
//! GET /explain  what is known of a key
//! POST /reload  200 and what has changed; 422 and the mistakes if nothing has
//! ```
//!
//! `server` accepts connections and limits them; `access` decides who may ask for what; `routes` has the reply to each path. They read
//! the `view`, which the application implements, and the `readiness`.

mod access;
mod query;
mod readiness;
mod replies;
mod routes;
mod server;
mod view;

pub use access::{Access, AdminSpec, CurrentAccess};
pub use readiness::Readiness;
pub(crate) use server::MAX_OPEN;
pub use server::run;
pub use view::{ConfigState, KeysAt, NotExplained, Overview, Placements, PoolRow, RuleRow, ServerRow, View};

#[cfg(test)]
mod tests;
