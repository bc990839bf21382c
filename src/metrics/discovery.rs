//! The discovery of servers, as metrics and the admin server show it.

/// Where the state comes from. It is called for each scrape, on the thread that serves it, and must not block.
pub trait DiscoverySource: Send + Sync {
    /// The pools with entries that stand for servers which are looked up.
    fn pools(&self) -> Vec<DiscoveredPool>;
}

/// A pool with such entries at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscoveredPool {
    /// Name of the pool.
    pub pool: String,
    /// The step of the change of its servers, 1 to 3; 0 if they do not change.
    pub step: u8,
    /// Whether no server is known yet.
    pub is_unknown: bool,
    /// The entries, in the order of the configuration.
    pub entries: Vec<DiscoveredEntry>,
}

/// An entry at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscoveredEntry {
    /// As it is written in the configuration.
    pub entry: String,
    /// The number of servers that were found last.
    pub servers: usize,
    /// Lookups that have failed, since the start.
    pub failures: u64,
    /// When a lookup was last successful, in ms since 1970.
    pub last_success_ms: Option<u64>,
    /// Why the latest lookup failed; `None` if it was successful.
    pub error: Option<String>,
}
