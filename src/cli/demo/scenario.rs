//! The load of the demonstration.

use std::time::Duration;

/// Which clients do what for how long. Both runs, without and with the guard, have the same scenario.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    /// The duration of each run in seconds; at least 1.
    pub(super) seconds: u32,
    /// The number of clients, distributed over the sidecars.
    pub(super) clients: usize,
    /// The number of sidecars, which do not communicate with each other.
    pub(super) sidecars: usize,
    /// The number of memcacheds, which all sidecars share.
    pub(super) memcacheds: usize,
    /// The number of keys that the clients read; at least 1.
    pub(super) keys: usize,
    /// The TTL of values in seconds; at least 2, so that the end of a rebuild and the next expiry can be distinguished.
    pub(super) ttl: u32,
    /// The duration of a rebuild.
    pub(super) rebuild: Duration,
    /// The longest pause of a client between two requests; the shortest is half of it.
    pub(super) pause: Duration,
    /// When a memcached dies, for good. All values are stored before the clients start, so that the rebuilds are those that this
    /// causes. `None`: none dies, and the clients build all values.
    pub(super) server_dies: Option<Duration>,
}

impl Default for Scenario {
    /// The first scenario of `kennel demo`: 16 s, plus two starts and stops.
    fn default() -> Scenario {
        Scenario {
            seconds: 8,
            clients: 60,
            sidecars: 2,
            memcacheds: 3,
            keys: 3,
            ttl: 2,
            rebuild: Duration::from_millis(250),
            pause: Duration::from_millis(50),
            server_dies: None,
        }
    }
}

impl Scenario {
    /// The second scenario of `kennel demo`: 24 s, plus two starts and stops. The values outlive it. From 5 s after the
    /// death on, the keys are on other servers.
    pub(super) fn a_server_dies() -> Scenario {
        Scenario {
            seconds: 12,
            keys: 12,
            ttl: 60,
            server_dies: Some(Duration::from_secs(2)),
            ..Scenario::default()
        }
    }

    /// The duration of each run.
    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}
