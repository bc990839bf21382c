//! How one worker counts.

use std::fmt;
use std::time::Duration;

use super::cells::{AGE, Block, Buckets, LATENCY, REBUILD};
use super::labels::{
    AuthOutcome, ClientMode, Command, ConnectFailure, DropReason, ErrorCause, HealthState, LeaseEnd, Limit,
    LockEnd, Outcome, PairedWith, StaleReason, TlsOutcome, TlsSession, UpstreamOutcome, WaitEnd,
};
use super::layout::{
    BUMPS, BYTES_READ, BYTES_WRITTEN, CLIENTS, CLIENTS_BINARY, CLIENTS_RECEIVED, CLIENTS_REFUSED,
    CLIENTS_TOTAL, CONNECTIONS, DURATION, GUARDS, IN_FLIGHT, LEASES_LIVE, LOCKS_HELD, NEAR_BYTES, NEAR_HITS,
    OBSERVED_AT_ONCE, OBSERVED_BUILDS, OBSERVED_SPARED, OBSERVED_SPARED_TIME, OBSERVED_TIME, OUTAGE_BYTES,
    OUTAGE_VALUES, OWN_GLOBAL, OWN_RULE, OWN_SERVER, PLAIN, REBUILD_DURATION, SHARE_BUILDS, SHARE_OVERLAPS,
    SHARED, SHARED_GLOBAL, SHARED_RULE, SLOW, STALE_AGE, STALE_REJECTED, TRACE_DROPPED, TRACE_EVENTS,
    UNHEALTHY, UP, UPSTREAM_DURATION, WAITERS, answered, authentication, client_mode, connect_failure,
    dropped, handshake, health_changes, lease, limit, lock, pair, request, server_error, stale, tls_session,
    upstream, wait,
};

/// One worker's counters under one configuration. Those of the worker itself, and of a rule or server that the next configuration
/// has too, go on under that one. Rules and servers are given by their index in [`Metrics::new`](super::Metrics::new).
///
/// Methods marked "worker's thread only" must be called by that worker's thread, otherwise counts are lost. The others may be
/// called by any thread.
pub struct WorkerMetrics {
    pub(super) own: Block,
    pub(super) shared: Block,
    /// Those of the configuration, then `none`.
    pub(super) rules: Box<[RuleCells]>,
    pub(super) servers: Box<[ServerMetrics]>,
}

/// One worker's counters of one rule.
#[derive(Clone)]
pub(super) struct RuleCells {
    pub(super) own: Block,
    pub(super) shared: Block,
}

/// One worker's counters of one server. Clones are the same counters. All methods: worker's thread only.
#[derive(Clone)]
pub struct ServerMetrics(pub(super) Block);

impl RuleCells {
    pub(super) fn new() -> RuleCells {
        RuleCells { own: Block::new(OWN_RULE), shared: Block::new(SHARED_RULE) }
    }
}

impl Block {
    fn observe(&self, buckets: &Buckets, at: usize, took: Duration, times: u64) {
        let units = buckets.units(took);
        self.add_exclusive(at + buckets.bucket(units), times);
        self.add_exclusive(at + buckets.width() - 1, units.saturating_mul(times));
    }
}

impl WorkerMetrics {
    /// All counters are 0.
    pub(super) fn new(rules: usize, servers: usize) -> WorkerMetrics {
        WorkerMetrics {
            own: Block::new(OWN_GLOBAL),
            shared: Block::new(SHARED_GLOBAL),
            rules: (0..rules).map(|_| RuleCells::new()).collect(),
            servers: (0..servers).map(|_| ServerMetrics::new()).collect(),
        }
    }

    /// The counters of a server; of one that is never exported if there is no such server.
    pub fn server(&self, at: usize) -> ServerMetrics {
        debug_assert!(at < self.servers.len(), "server {at} of {}", self.servers.len());
        self.servers.get(at).cloned().unwrap_or_else(ServerMetrics::new)
    }

    /// The counters of a rule. Every index past the last rule, such as [`NO_RULE`](super::NO_RULE), is `none`.
    fn rule(&self, rule: usize) -> &RuleCells {
        &self.rules[rule.min(self.rules.len() - 1)]
    }

    /// A key was answered `took` after its request was parsed. Worker's thread only.
    pub fn request(&self, rule: usize, command: Command, outcome: Outcome, took: Duration) {
        self.requests(rule, command, outcome, took, 1);
    }

    /// The same for several keys. Worker's thread only.
    pub fn requests(&self, rule: usize, command: Command, outcome: Outcome, took: Duration, keys: u64) {
        let cells = &self.rule(rule).own;
        cells.add_exclusive(request(command, outcome), keys);
        cells.observe(&LATENCY, DURATION, took, keys);
        self.own.add_exclusive(answered(command, outcome), keys);
    }

    /// A client has built the value of an observed key. `spared`: under a guard, it would have waited for another client's build.
    /// `at_once`: how many builds of the key that overlap have ended so far. Worker's thread only.
    pub fn observed_build(&self, rule: usize, took: Duration, spared: bool, at_once: u64) {
        let cells = &self.rule(rule).own;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        cells.add_exclusive(OBSERVED_BUILDS, 1);
        cells.add_exclusive(OBSERVED_TIME, micros);
        if spared {
            cells.add_exclusive(OBSERVED_SPARED, 1);
            cells.add_exclusive(OBSERVED_SPARED_TIME, micros);
        }
        if at_once > cells.get(OBSERVED_AT_ONCE) {
            cells.set(OBSERVED_AT_ONCE, at_once);
        }
    }

    /// A client has built the value of a guarded key of a rule that guards a share of its keys. `overlaps`: with a build that ended
    /// before it. Worker's thread only.
    pub fn guarded_build(&self, rule: usize, overlaps: bool) {
        let cells = &self.rule(rule).own;
        cells.add_exclusive(SHARE_BUILDS, 1);
        cells.add_exclusive(SHARE_OVERLAPS, u64::from(overlaps));
    }

    /// A request took at least `log.slow`. Worker's thread only.
    pub fn slow_request(&self, rule: usize) {
        self.rule(rule).own.add_exclusive(SLOW, 1);
    }

    /// An event was sent to a watcher. Worker's thread only.
    pub fn trace_event(&self) {
        self.own.add_exclusive(TRACE_EVENTS, 1);
    }

    /// An event was dropped because a watcher did not take the ones before it. Worker's thread only.
    pub fn trace_event_dropped(&self) {
        self.own.add_exclusive(TRACE_DROPPED, 1);
    }

    /// A hit was served without a request to a server. Worker's thread only.
    pub fn near_hit(&self, rule: usize) {
        self.rule(rule).own.add_exclusive(NEAR_HITS, 1);
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

    /// A command was answered `SERVER_ERROR`. Worker's thread only.
    pub fn server_error(&self, cause: ErrorCause) {
        self.own.add_exclusive(server_error(cause), 1);
    }

    /// A stale value was served `age` after its expiry (0 if only a tag was bumped). Worker's thread only.
    pub fn stale_served(&self, rule: usize, age: Duration, why: Option<StaleReason>) {
        let cells = &self.rule(rule).own;
        cells.observe(&AGE, STALE_AGE, age, 1);
        if let Some(why) = why {
            cells.add_exclusive(stale(why), 1);
        }
    }

    /// A client deleted or set a key whose stale value it had just been served. Returns how often that was. Worker's thread only.
    pub fn stale_rejected(&self, rule: usize) -> u64 {
        let cells = &self.rule(rule).own;
        cells.add_exclusive(STALE_REJECTED, 1);
        cells.get(STALE_REJECTED)
    }

    /// A client won the right to rebuild.
    pub fn lease_granted(&self) {
        self.shared.add(LEASES_LIVE, 1);
    }

    /// A lease ended `after` it was granted. For [`LeaseEnd::Filled`] and [`LeaseEnd::Dropped`], that is the duration of a
    /// rebuild.
    pub fn lease_ended(&self, rule: usize, end: LeaseEnd, after: Duration) {
        self.shared.subtract(LEASES_LIVE);
        let cells = &self.rule(rule).shared;
        cells.add(lease(end), 1);
        if matches!(end, LeaseEnd::Filled | LeaseEnd::Dropped) {
            let units = REBUILD.units(after);
            cells.add(REBUILD_DURATION + REBUILD.bucket(units), 1);
            cells.add(REBUILD_DURATION + REBUILD.width() - 1, units);
        }
    }

    /// A fill was dropped.
    pub fn fill_dropped(&self, rule: usize, why: DropReason) {
        self.rule(rule).shared.add(dropped(why), 1);
    }

    /// A request began to wait for another client's fill.
    pub fn wait_began(&self) {
        self.shared.add(WAITERS, 1);
    }

    /// A request stopped waiting, for this reason.
    pub fn wait_ended(&self, rule: usize, end: WaitEnd) {
        self.shared.subtract(WAITERS);
        self.rule(rule).shared.add(wait(end), 1);
    }

    /// A guarded value was stored without an envelope because it was too large with it.
    pub fn value_plain(&self, rule: usize) {
        self.rule(rule).shared.add(PLAIN, 1);
    }

    /// A tag was bumped. Tags are not counted by name, because clients choose the names, or by rule, because a tag may belong to
    /// several rules.
    pub fn tag_bumped(&self) {
        self.shared.add(BUMPS, 1);
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

    /// A client was received from another process. Worker's thread only.
    pub fn client_received(&self) {
        self.own.add_exclusive(CLIENTS, 1);
        self.own.add_exclusive(CLIENTS_RECEIVED, 1);
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

    /// A client has taken a lock. Worker's thread only.
    pub fn lock_taken(&self) {
        self.own.add_exclusive(LOCKS_HELD, 1);
    }

    /// A lock ended that a client had. Worker's thread only.
    pub fn lock_ended(&self, rule: usize, end: LockEnd) {
        self.own.add_exclusive(LOCKS_HELD, u64::MAX);
        self.rule(rule).own.add_exclusive(lock(end), 1);
    }

    /// A client reached a limit. Worker's thread only.
    pub fn limit_reached(&self, reached: Limit) {
        self.own.add_exclusive(limit(reached), 1);
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

impl ServerMetrics {
    pub(super) fn new() -> ServerMetrics {
        ServerMetrics(Block::new(OWN_SERVER))
    }

    /// A request was queued for a server.
    pub fn sent(&self) {
        self.0.add_exclusive(IN_FLIGHT, 1);
    }

    /// Requests ended `took` after they were queued.
    pub fn ended(&self, outcome: UpstreamOutcome, took: Duration, requests: u64) {
        self.0.add_exclusive(IN_FLIGHT, requests.wrapping_neg());
        self.0.add_exclusive(upstream(outcome), requests);
        self.0.observe(&LATENCY, UPSTREAM_DURATION, took, requests);
    }

    /// A queued request was answered without being sent.
    pub fn withdrawn(&self) {
        self.0.add_exclusive(IN_FLIGHT, 1_u64.wrapping_neg());
    }

    /// A read was not queued because an identical one was.
    pub fn shared(&self) {
        self.0.add_exclusive(SHARED, 1);
    }

    /// A request was not queued because the server is down or overloaded.
    pub fn refused(&self, outcome: UpstreamOutcome) {
        self.0.add_exclusive(upstream(outcome), 1);
    }

    /// A connection to a server was established, so the server is up; `can_guard` is the result of its probe.
    pub fn connected(&self, can_guard: bool) {
        self.0.add_exclusive(CONNECTIONS, 1);
        self.guards(can_guard);
        self.up(true);
    }

    /// An attempt to connect to a server failed.
    pub fn connect_failed(&self, reason: ConnectFailure) {
        self.0.add_exclusive(connect_failure(reason), 1);
    }

    /// A TLS handshake with a server succeeded.
    pub fn tls_session(&self, session: TlsSession) {
        self.0.add_exclusive(tls_session(session), 1);
    }

    /// This worker detected whether a server supports what the guard needs.
    pub fn guards(&self, can_guard: bool) {
        self.0.set(GUARDS, 1 + u64::from(can_guard));
    }

    /// This worker now considers a server up or down.
    pub fn up(&self, up: bool) {
        self.0.set(UP, 1 + u64::from(up));
    }

    /// A server's health has changed; `was_healthy` is whether it was healthy before. For each change, one worker calls this.
    pub fn health(&self, to: HealthState, was_healthy: bool) {
        self.0.add_exclusive(health_changes(to), 1);
        if was_healthy {
            self.0.add_exclusive(UNHEALTHY, 1);
        } else if to == HealthState::Healthy {
            self.0.add_exclusive(UNHEALTHY, 1_u64.wrapping_neg());
        }
    }
}

impl fmt::Debug for WorkerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rules, servers) = (self.rules.len(), self.servers.len());
        f.debug_struct("WorkerMetrics")
            .field("rules", &rules)
            .field("servers", &servers)
            .finish_non_exhaustive()
    }
}
