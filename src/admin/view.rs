//! What the admin server shows: the interface to the running process, and the contents of the status page.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::history::HistoryPage;
use super::slabs::Slabs;
use crate::failover::Wish;
use crate::hot::{HotReport, Measure};
use crate::metrics::DiscoveredPool;
use crate::observed::Families;
use crate::proxy::Explanation;
use crate::takeover::ReloadMode;
use crate::trace::{Filter, Glob, Names, Watcher};

/// The source of the admin server's replies. Each method is called for every request, on the thread that serves it, and must not
/// block.
pub trait View: Send + Sync + 'static {
    /// The body of `/metrics`, in the format of [`CONTENT_TYPE`](crate::metrics::CONTENT_TYPE).
    fn metrics(&self) -> String;
    /// The contents of the status page.
    fn overview(&self) -> Overview;
    /// Problems that do not make the sidecar unready, one line each; shown in `/readyz`.
    fn notes(&self) -> Vec<String>;
    /// Explains a key, which must be one that memcached can have.
    fn explain(
        &self,
        key: Vec<u8>,
    ) -> Pin<Box<dyn Future<Output = Result<Explanation, NotExplained>> + Send>>;
    /// The names of the rules and servers in force.
    fn names(&self) -> Names;
    /// Begins to watch what happens to keys. `None`: too many watch already.
    fn watch(&self, filter: Filter) -> Option<Watcher>;
    /// The hottest keys, and the names of the rules.
    fn hot(&self, wanted: &HotQuery) -> (HotReport, Vec<Arc<str>>);
    /// What has happened to observed keys.
    fn observed(&self) -> ObservedKeys;
    /// Adds a point to the history. Called every 5 s.
    fn record(&self);
    /// The last hour, from the point with the number `since` on.
    fn history(&self, since: u64) -> HistoryPage;
    /// The slab classes of the servers. Asks them if 5 s have passed since they were asked, so it costs them the same however often it is
    /// called. `None`: no worker has replied in time.
    fn slabs(&self) -> Pin<Box<dyn Future<Output = Option<Arc<Slabs>>> + Send>>;
    /// The last warnings and errors of the log, the latest first: 32 at most.
    fn errors(&self) -> Vec<ErrorRow>;
    /// The leases that clients of this sidecar hold, those granted first, `limit` at most.
    fn leases(&self, limit: usize) -> Vec<LeaseRow>;
    /// The settings in force as a configuration file.
    fn written(&self) -> Arc<str>;
    /// Reads the configuration again and takes it, in this way. Returns what has changed, or why nothing has, as lines of text.
    fn reload(&self, mode: ReloadMode) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;
    /// Has the keys of a server moved to their standby servers, or lets them return. Returns what has been done, or why not.
    fn move_keys(
        &self,
        server: String,
        wish: Wish,
    ) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;
}

/// Why a key was not explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotExplained {
    /// As many keys are being explained as may be at a time.
    Busy,
    /// A worker or a server has not replied in time.
    TimedOut,
    /// The sidecar does not serve clients yet, or no longer.
    NotServing,
}

/// Which hot keys are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotQuery {
    /// The hottest by this.
    pub by: Measure,
    /// Only of the rule with this name.
    pub rule: Option<String>,
    /// Only those whose shown key matches.
    pub key: Option<Glob>,
    /// So many at most.
    pub limit: usize,
}

/// What has happened to observed keys, by their families.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedKeys {
    /// Whether keys are shown; without, there are no families.
    pub keys_are_shown: bool,
    /// Since when, in seconds until now.
    pub seconds: f64,
    /// What is known of each shape of keys.
    pub families: Families,
}

/// The configuration in force, and the last attempt to read another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigState {
    /// The hash of its settings.
    pub hash: String,
    /// When it was read, in milliseconds of Unix time.
    pub read_ms: u64,
    /// The mistakes of a later version, which was refused, or what it would lose; empty if there is none.
    pub errors: Vec<String>,
    /// Whether it was refused because of what it would lose.
    pub would_lose: bool,
    /// Each setting that the file or the environment gives, and its value.
    pub set: Vec<(String, String)>,
}

/// The contents of the status page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overview {
    /// Kennel's version.
    pub version: String,
    /// The time since the process started.
    pub uptime: Duration,
    /// The configuration.
    pub config: ConfigState,
    /// The pools, in the configuration's order.
    pub pools: Vec<PoolRow>,
    /// The rules, in the configuration's order.
    pub rules: Vec<RuleRow>,
    /// The pools with servers to discover.
    pub discovery: Vec<DiscoveredPool>,
}

/// A pool and its servers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolRow {
    /// Name of the pool in the configuration.
    pub name: String,
    /// Its servers, in the configuration's order.
    pub servers: Vec<ServerRow>,
    /// How the fleet places its keys; `None` if all its servers are embedded.
    pub placements: Option<Placements>,
    /// The fingerprint of the rules of this sidecar, and the rules in use in the fleet; `None` as above.
    pub rules: Option<(String, Vec<FleetRules>)>,
}

/// Rules that sidecars of the fleet have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetRules {
    /// Hash of what the rules mean for what is stored.
    pub fingerprint: String,
    /// The version of Kennel.
    pub version: String,
    /// When the first mark of these was left, in milliseconds of Unix time.
    pub since_ms: u64,
}

/// How the sidecars of a fleet place the keys of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placements {
    /// The placement of this sidecar.
    pub own: String,
    /// Those of other sidecars that are not adjacent to it.
    pub unknown: Vec<String>,
}

/// A server of a pool, as the status page shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerRow {
    /// Its name or address.
    pub name: String,
    /// Whether it is up; `None` before a worker has tried to connect.
    pub up: Option<bool>,
    /// Whether it is too slow: requests to it fail at once, all or a part of them.
    pub sick: bool,
    /// Where its keys are kept; `None` if its pool does not fail over.
    pub keys: Option<KeysAt>,
    /// Its share of the keys of the pool, 0 to 1, to about 0.01.
    pub share: f64,
    /// Which servers would hold its keys if it were away, by their index in the pool, with the share of them that each would hold.
    pub standby: Vec<(usize, f64)>,
    /// What its last view is of: the number of the place. `None` without one.
    pub fence: Option<u64>,
}

/// Where the guarded keys of a server are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeysAt {
    /// On the server itself.
    Own,
    /// On its standby servers.
    Standby,
    /// The same, because an operator has drained it.
    Drained,
    /// There is no valid view: they are not served.
    Unknown,
}

/// The counts of a rule since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuleRow {
    /// Value of the label `rule` of its metrics.
    pub name: String,
    /// Its kind; `none` for the keys that no rule matches.
    pub kind: &'static str,
    /// Keys answered with a fresh value.
    pub hits: u64,
    /// Keys answered with a stale value.
    pub stale: u64,
    /// Keys answered with a miss.
    pub misses: u64,
    /// Commands that have stored, counted or deleted something.
    pub writes: u64,
    /// Keys answered with an error.
    pub errors: u64,
    /// Rebuilds that were stored.
    pub rebuilds: u64,
    /// Keys answered with another value than a fresh one, or after a wait, while one client built the value.
    pub served_meanwhile: u64,
    /// The mean duration of a build, in seconds; `None` if there was none.
    pub build_seconds: Option<f64>,
    /// What clients have built for its observed keys.
    pub observed: ObservedRow,
}

/// What clients have built for the observed keys of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ObservedRow {
    /// Builds of observed keys, overlapping ones included.
    pub builds: u64,
    /// Those that a guard would have spared.
    pub spared: u64,
    /// The most builds of one key that overlapped.
    pub at_once: u64,
    /// The time that the builds took, in seconds.
    pub build_seconds: f64,
    /// The time that those took which a guard would have spared, in seconds.
    pub spared_seconds: f64,
    /// Builds of its guarded keys, if only a share of its keys is guarded.
    pub guarded: u64,
    /// Those of them that overlapped with another one.
    pub guarded_overlapping: u64,
}

/// A lease that a client holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRow {
    /// What is shown of its key.
    pub key: Box<[u8]>,
    /// For how many milliseconds the client has held it.
    pub held_ms: u64,
    /// Requests that wait for the value.
    pub waiters: usize,
}

/// A warning or an error of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorRow {
    /// When it was logged last, in milliseconds of Unix time.
    pub at_ms: u64,
    /// Whether it is an error; otherwise it is a warning.
    pub is_error: bool,
    /// The server or the discovered entry that it is about; empty if it is about neither.
    pub of: String,
    /// The client that it is about, the last one; empty if it is about none.
    pub from: String,
    /// Message of the warning or error.
    pub text: String,
    /// How often it was logged.
    pub count: u64,
}
