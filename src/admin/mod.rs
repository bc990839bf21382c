//! How operators see the state of the sidecar over HTTP, and have it read its configuration again.
//!
//! ```text
//! GET /         a status page, which asks for /page.json once a second
//! GET /leases   the leases in flight
//! GET /slabs    the slab classes of the servers
//! GET /trace    what happens to keys, event by event
//! GET /hot      the hottest keys
//! GET /observed  what has happened to observed keys
//! GET /metrics  Prometheus's text format
//! GET /healthz  200 while the process can reply
//! GET /readyz   200 and a list of problems if clients are accepted; otherwise 503 and the state
//! GET /explain  what is known of a key
//! POST /server/drain, /server/undrain  200 once the keys of a server have moved; 422 and the reason if they have not
//! POST /reload  200 and what has changed; 422 and the mistakes if nothing has
//! ```
//!
//! `server` accepts connections and limits them; `access` decides who may ask for what; `routes` has the reply to each path. They read
//! the `view`, which the application implements, and the `readiness`. `query` parses what a route is asked, `shown` writes keys in JSON,
//! `history` is the last hour, `slabs` the slab classes of the servers, and `activity` shows which connections are in use.

mod access;
mod activity;
mod history;
mod query;
mod readiness;
mod replies;
mod routes;
mod server;
mod shown;
mod slabs;
mod view;

pub use access::{Access, AdminSpec, CurrentAccess};
pub use history::{History, HistoryPage};
pub use readiness::Readiness;
pub(crate) use server::MAX_OPEN;
pub use server::run;
pub use slabs::{ServerSlabs, SlabClass, Slabs, slab_classes};
pub use view::{
    ConfigState, ErrorRow, FleetRules, HotQuery, KeysAt, LeaseRow, NotExplained, ObservedKeys, ObservedRow,
    Overview, Placements, PoolRow, RuleRow, ServerRow, View,
};

#[cfg(test)]
mod tests;
