//! How one worker counts.

use std::fmt;
use std::time::Duration;

use super::cells::{AGE, Block, Buckets, LATENCY, REBUILD};
use super::labels::{
    AuthOutcome, ClientMode, Command, DropReason, HealthState, LeaseEnd, Limit, Outcome, PairedWith,
    TlsOutcome, UpstreamOutcome, WaitEnd,
};
use super::layout::{
    BUMPS, BYTES_READ, BYTES_WRITTEN, CLIENTS, CLIENTS_BINARY, CLIENTS_REFUSED, CLIENTS_TOTAL, LEASES_LIVE,
    Layout, NEAR_BYTES, NO_MEMORY, OUTAGE_BYTES, OUTAGE_VALUES, TOO_LARGE, WAITERS, authentication,
    client_mode, handshake, pair,
};

/// One worker's counters. Rules and servers are given by their index in [`Metrics::new`](super::Metrics::new).
///
/// Methods marked "worker's thread only" must be called by that worker's thread, otherwise counts are lost. The others may be
/// called by any thread.
pub struct WorkerMetrics {
    pub(super) layout: Layout,
    pub(super) own: Block,
    pub(super) shared: Block,
}

impl WorkerMetrics {
    pub(super) fn new(rules: usize, servers: usize) -> WorkerMetrics {
        let layout = Layout { rules, servers };
        let (own, shared) = (Block::new(layout.own_cells()), Block::new(layout.shared_cells()));
        WorkerMetrics { layout, own, shared }
    }

    fn observe(&self, buckets: &Buckets, at: usize, took: Duration, times: u64) {
        let units = buckets.units(took);
        self.own.add_exclusive(at + buckets.bucket(units), times);
        self.own.add_exclusive(at + buckets.width() - 1, units.saturating_mul(times));
    }

    /// A key was answered `took` after its request was parsed. Worker's thread only.
    pub fn request(&self, rule: usize, command: Command, outcome: Outcome, took: Duration) {
        self.requests(rule, command, outcome, took, 1);
    }

    /// The same for several keys. Worker's thread only.
    pub fn requests(&self, rule: usize, command: Command, outcome: Outcome, took: Duration, keys: u64) {
        self.own.add_exclusive(self.layout.request(rule, command, outcome), keys);
        self.own.add_exclusive(self.layout.answered(command, outcome), keys);
        self.observe(&LATENCY, self.layout.duration(rule), took, keys);
    }

    /// A hit was served without a request to a server. Worker's thread only.
    pub fn near_hit(&self, rule: usize) {
        self.own.add_exclusive(self.layout.near_hits(rule), 1);
    }

    /// The near cache now uses this many bytes. Worker's thread only.
    pub fn near_bytes(&self, bytes: usize) {
        self.own.set(NEAR_BYTES, bytes as u64);
    }

    /// The number of values that are kept while no server answers, and their bytes, have changed from the one to the other.
    pub fn outage_kept(&self, before: (usize, usize), after: (usize, usize)) {
        if before != after {
            self.shared.add(OUTAGE_VALUES, (after.0 as u64).wrapping_sub(before.0 as u64));
            self.shared.add(OUTAGE_BYTES, (after.1 as u64).wrapping_sub(before.1 as u64));
        }
    }

    /// A value was refused as too large, by Kennel or its server. Worker's thread only.
    pub fn too_large(&self) {
        self.own.add_exclusive(TOO_LARGE, 1);
    }

    /// A server had no memory for a value. Worker's thread only.
    pub fn no_memory(&self) {
        self.own.add_exclusive(NO_MEMORY, 1);
    }

    /// A stale value was served `age` after its expiry (0 if only a tag was bumped). Worker's thread only.
    pub fn stale_served(&self, rule: usize, age: Duration) {
        self.observe(&AGE, self.layout.stale_age(rule), age, 1);
    }

    /// A client won the right to rebuild.
    pub fn lease_granted(&self) {
        self.shared.add(LEASES_LIVE, 1);
    }

    /// A lease ended `after` it was granted. For [`LeaseEnd::Filled`] and [`LeaseEnd::Dropped`], that is the duration of a
    /// rebuild.
    pub fn lease_ended(&self, rule: usize, end: LeaseEnd, after: Duration) {
        self.shared.subtract(LEASES_LIVE);
        self.shared.add(self.layout.lease(rule, end), 1);
        if matches!(end, LeaseEnd::Filled | LeaseEnd::Dropped) {
            let (at, units) = (self.layout.rebuild(rule), REBUILD.units(after));
            self.shared.add(at + REBUILD.bucket(units), 1);
            self.shared.add(at + REBUILD.width() - 1, units);
        }
    }

    /// A fill was dropped.
    pub fn fill_dropped(&self, rule: usize, why: DropReason) {
        self.shared.add(self.layout.dropped(rule, why), 1);
    }

    /// A request began to wait for another client's fill.
    pub fn wait_began(&self) {
        self.shared.add(WAITERS, 1);
    }

    /// A wait ended.
    pub fn wait_ended(&self, rule: usize, end: WaitEnd) {
        self.shared.subtract(WAITERS);
        self.shared.add(self.layout.wait(rule, end), 1);
    }

    /// A guarded value was stored without an envelope because it was too large with it.
    pub fn value_plain(&self, rule: usize) {
        self.shared.add(self.layout.plain(rule), 1);
    }

    /// A tag was bumped. Tags are not counted by name, because clients choose the names, or by rule, because a tag may belong to
    /// several rules.
    pub fn tag_bumped(&self) {
        self.shared.add(BUMPS, 1);
    }

    /// A request was queued for a server. Worker's thread only.
    pub fn upstream_sent(&self, server: usize) {
        self.own.add_exclusive(self.layout.in_flight(server), 1);
    }

    /// Requests ended `took` after they were queued. Worker's thread only.
    pub fn upstream_ended(&self, server: usize, outcome: UpstreamOutcome, took: Duration, requests: u64) {
        self.own.add_exclusive(self.layout.in_flight(server), requests.wrapping_neg());
        self.own.add_exclusive(self.layout.upstream(server, outcome), requests);
        self.observe(&LATENCY, self.layout.upstream_duration(server), took, requests);
    }

    /// A queued request was answered without being sent. Worker's thread only.
    pub fn upstream_withdrawn(&self, server: usize) {
        self.own.add_exclusive(self.layout.in_flight(server), 1_u64.wrapping_neg());
    }

    /// A read was not queued because an identical one was. Worker's thread only.
    pub fn upstream_shared(&self, server: usize) {
        self.own.add_exclusive(self.layout.shared(server), 1);
    }

    /// A request was not queued because the server is down or overloaded. Worker's thread only.
    pub fn upstream_refused(&self, server: usize, outcome: UpstreamOutcome) {
        self.own.add_exclusive(self.layout.upstream(server, outcome), 1);
    }

    /// A connection to a server was established, so the server is up; `can_guard` is the result of its probe. Worker's thread
    /// only.
    pub fn upstream_connected(&self, server: usize, can_guard: bool) {
        self.own.add_exclusive(self.layout.connections(server), 1);
        self.upstream_guards(server, can_guard);
        self.upstream_up(server, true);
    }

    /// This worker detected whether a server supports what the guard needs. Worker's thread only.
    pub fn upstream_guards(&self, server: usize, can_guard: bool) {
        self.own.set(self.layout.guards(server), 1 + u64::from(can_guard));
    }

    /// This worker now considers a server up or down. Worker's thread only.
    pub fn upstream_up(&self, server: usize, up: bool) {
        self.own.set(self.layout.up(server), 1 + u64::from(up));
    }

    /// A server's health has changed; `was_healthy` is whether it was healthy before. For each change, one worker calls this.
    /// Worker's thread only.
    pub fn upstream_health(&self, server: usize, to: HealthState, was_healthy: bool) {
        self.own.add_exclusive(self.layout.health_changes(server, to), 1);
        if was_healthy {
            self.own.add_exclusive(self.layout.unhealthy(server), 1);
        } else if to == HealthState::Healthy {
            self.own.add_exclusive(self.layout.unhealthy(server), 1_u64.wrapping_neg());
        }
    }

    /// A client was accepted. Worker's thread only.
    pub fn client_connected(&self) {
        self.own.add_exclusive(CLIENTS, 1);
        self.own.add_exclusive(CLIENTS_TOTAL, 1);
    }

    /// An accepted client's connection closed. Worker's thread only.
    pub fn client_disconnected(&self) {
        self.own.add_exclusive(CLIENTS, u64::MAX);
    }

    /// A client was refused. Worker's thread only.
    pub fn client_refused(&self) {
        self.own.add_exclusive(CLIENTS_REFUSED, 1);
    }

    /// A client attempted to authenticate. Worker's thread only.
    pub fn authentication(&self, outcome: AuthOutcome) {
        self.own.add_exclusive(authentication(outcome), 1);
    }

    /// A TLS handshake ended. Worker's thread only.
    pub fn handshake(&self, outcome: TlsOutcome) {
        self.own.add_exclusive(handshake(outcome), 1);
    }

    /// A client used the binary protocol. Worker's thread only.
    pub fn client_binary(&self) {
        self.own.add_exclusive(CLIENTS_BINARY, 1);
    }

    /// A `set` arrived that may end a miss. Worker's thread only.
    pub fn set_paired(&self, miss: PairedWith) {
        self.own.add_exclusive(pair(miss), 1);
    }

    /// It was detected that a listener's clients use connection pools, or no longer do. Worker's thread only.
    pub fn clients_changed(&self, pooled: bool) {
        let to = if pooled { ClientMode::Pooled } else { ClientMode::Single };
        self.own.add_exclusive(client_mode(to), 1);
    }

    /// A client reached a limit. Worker's thread only.
    pub fn limit_reached(&self, limit: Limit) {
        self.own.add_exclusive(self.layout.limit(limit), 1);
    }

    /// Bytes were read from a client. Worker's thread only.
    pub fn bytes_read(&self, bytes: usize) {
        self.own.add_exclusive(BYTES_READ, bytes as u64);
    }

    /// Bytes were written to a client. Worker's thread only.
    pub fn bytes_written(&self, bytes: usize) {
        self.own.add_exclusive(BYTES_WRITTEN, bytes as u64);
    }
}

impl fmt::Debug for WorkerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerMetrics").field("layout", &self.layout).finish_non_exhaustive()
    }
}
