//! How one worker counts, and where each of its counters lies.

use std::fmt;
use std::time::Duration;

use super::cells::{AGE, Block, Buckets, LATENCY, REBUILD};
use super::labels::{
    AuthOutcome, ClientsAre, Command, DropReason, LeaseEnd, Limit, Outcome, PairedWith, TlsOutcome,
    UpstreamOutcome, WaitEnd,
};

/// One worker's counters. The methods that say so must be called by that worker's thread alone, or counts are lost; the
/// others by any thread. Rules and servers are given by their index in [`Metrics::new`](super::Metrics::new).
pub struct WorkerMetrics {
    pub(super) at: Layout,
    pub(super) own: Block,
    pub(super) shared: Block,
}

impl WorkerMetrics {
    pub(super) fn new(rules: usize, servers: usize) -> WorkerMetrics {
        let own = Block::new(OWN_REST + rules * OWN_RULE + (servers + 1) * OWN_SERVER);
        let shared = Block::new(SHARED_REST + rules * SHARED_RULE);
        WorkerMetrics { at: Layout { rules, servers }, own, shared }
    }

    fn observe(&self, buckets: &Buckets, at: usize, took: Duration, times: u64) {
        let units = buckets.units(took);
        self.own.bump(at + buckets.bucket(units), times);
        self.own.bump(at + buckets.width() - 1, units.saturating_mul(times));
    }

    /// A key was answered, `took` after its request was parsed. Worker's thread only.
    pub fn request(&self, rule: usize, command: Command, outcome: Outcome, took: Duration) {
        self.requests(rule, command, outcome, took, 1);
    }

    /// The same of so many keys. Worker's thread only.
    pub fn requests(&self, rule: usize, command: Command, outcome: Outcome, took: Duration, keys: u64) {
        self.own.bump(self.at.request(rule, command, outcome), keys);
        self.own.bump(self.at.answered(command, outcome), keys);
        self.observe(&LATENCY, self.at.duration(rule), took, keys);
    }

    /// A hit was served that no server was asked for. Worker's thread only.
    pub fn near_hit(&self, rule: usize) {
        self.own.bump(self.at.near_hits(rule), 1);
    }

    /// The values that it keeps take so many bytes now. Worker's thread only.
    pub fn near_holds(&self, bytes: usize) {
        self.own.set(NEAR_BYTES, bytes as u64);
    }

    /// A value was refused as too large, by us or its server. Worker's thread only.
    pub fn too_large(&self) {
        self.own.bump(TOO_LARGE, 1);
    }

    /// A server had no memory for a value. Worker's thread only.
    pub fn no_memory(&self) {
        self.own.bump(NO_MEMORY, 1);
    }

    /// A stale value was served, this long after its expiry (0 if only a tag had moved). Worker's thread only.
    pub fn stale_served(&self, rule: usize, age: Duration) {
        self.observe(&AGE, self.at.stale_age(rule), age, 1);
    }

    /// A client won the right to rebuild.
    pub fn lease_granted(&self) {
        self.shared.add(LEASES_LIVE, 1);
    }

    /// A lease ended, `after` it was granted. For [`LeaseEnd::Filled`] and [`LeaseEnd::Dropped`] that is a rebuild's time.
    pub fn lease_ended(&self, rule: usize, end: LeaseEnd, after: Duration) {
        self.shared.take(LEASES_LIVE);
        self.shared.add(self.at.lease(rule, end), 1);
        if matches!(end, LeaseEnd::Filled | LeaseEnd::Dropped) {
            let (at, units) = (self.at.rebuild(rule), REBUILD.units(after));
            self.shared.add(at + REBUILD.bucket(units), 1);
            self.shared.add(at + REBUILD.width() - 1, units);
        }
    }

    /// A fill was answered `STORED` and not kept.
    pub fn fill_dropped(&self, rule: usize, why: DropReason) {
        self.shared.add(self.at.dropped(rule, why), 1);
    }

    /// A request began to wait for another client's fill.
    pub fn wait_began(&self) {
        self.shared.add(WAITERS, 1);
    }

    /// It waits no longer.
    pub fn wait_ended(&self, rule: usize, end: WaitEnd) {
        self.shared.take(WAITERS);
        self.shared.add(self.at.wait(rule, end), 1);
    }

    /// A guarded value was stored plain because it was too large in its envelope.
    pub fn value_plain(&self, rule: usize) {
        self.shared.add(self.at.plain(rule), 1);
    }

    /// A tag was bumped. Which one is not counted: a tag's name is a client's, and one tag may belong to many rules.
    pub fn tag_bumped(&self) {
        self.shared.add(BUMPS, 1);
    }

    /// A request was queued for a server. Worker's thread only.
    pub fn upstream_sent(&self, server: usize) {
        self.own.bump(self.at.in_flight(server), 1);
    }

    /// So many ended, `took` after they were queued. Worker's thread only.
    pub fn upstream_ended(&self, server: usize, outcome: UpstreamOutcome, took: Duration, requests: u64) {
        self.own.bump(self.at.in_flight(server), requests.wrapping_neg());
        self.own.bump(self.at.upstream(server, outcome), requests);
        self.observe(&LATENCY, self.at.upstream_duration(server), took, requests);
    }

    /// A request that was queued for a server has been answered without being sent. Worker's thread only.
    pub fn upstream_withdrawn(&self, server: usize) {
        self.own.bump(self.at.in_flight(server), 1_u64.wrapping_neg());
    }

    /// A read was not queued for its server, because the same one was already. Worker's thread only.
    pub fn upstream_shared(&self, server: usize) {
        self.own.bump(self.at.shared(server), 1);
    }

    /// A request was never queued for its server, which is down or overloaded. Worker's thread only.
    pub fn upstream_refused(&self, server: usize, outcome: UpstreamOutcome) {
        self.own.bump(self.at.upstream(server, outcome), 1);
    }

    /// A connection to a server was established; it is up, and can do what the guard needs or not. Worker's thread only.
    pub fn upstream_connected(&self, server: usize, can_guard: bool) {
        self.own.bump(self.at.connections(server), 1);
        self.upstream_guards(server, can_guard);
        self.upstream_up(server, true);
    }

    /// This worker has found that a server can do what the guard needs, or that it cannot. Worker's thread only.
    pub fn upstream_guards(&self, server: usize, can_guard: bool) {
        self.own.set(self.at.guards(server), 1 + u64::from(can_guard));
    }

    /// This worker gave a server up, or takes it for good again. Worker's thread only.
    pub fn upstream_up(&self, server: usize, up: bool) {
        self.own.set(self.at.up(server), 1 + u64::from(up));
    }

    /// A client was accepted. Worker's thread only.
    pub fn client_connected(&self) {
        self.own.bump(CLIENTS, 1);
        self.own.bump(CLIENTS_TOTAL, 1);
    }

    /// An accepted client's connection closed. Worker's thread only.
    pub fn client_gone(&self) {
        self.own.bump(CLIENTS, u64::MAX);
    }

    /// A client was turned away. Worker's thread only.
    pub fn client_refused(&self) {
        self.own.bump(CLIENTS_REFUSED, 1);
    }

    /// A client that must give a user and a password was told this. Worker's thread only.
    pub fn authentication(&self, outcome: AuthOutcome) {
        self.own.bump(authentication(outcome), 1);
    }

    /// A TLS handshake ended. Worker's thread only.
    pub fn handshake(&self, outcome: TlsOutcome) {
        self.own.bump(handshake(outcome), 1);
    }

    /// A client spoke the binary protocol. Worker's thread only.
    pub fn client_binary(&self) {
        self.own.bump(CLIENTS_BINARY, 1);
    }

    /// A `set` came that may end a miss which this connection was told. Worker's thread only.
    pub fn set_paired(&self, miss: PairedWith) {
        self.own.bump(pair(miss), 1);
    }

    /// It was learnt anew whether a listener's clients have pools. Worker's thread only.
    pub fn clients_changed(&self, pooled: bool) {
        let to = if pooled { ClientsAre::Pooled } else { ClientsAre::Single };
        self.own.bump(clients_are(to), 1);
    }

    /// A client reached a limit. Worker's thread only.
    pub fn limit_reached(&self, limit: Limit) {
        self.own.bump(self.at.limit(limit), 1);
    }

    /// So many bytes came from a client. Worker's thread only.
    pub fn bytes_read(&self, bytes: usize) {
        self.own.bump(BYTES_READ, bytes as u64);
    }

    /// So many bytes went to a client. Worker's thread only.
    pub fn bytes_written(&self, bytes: usize) {
        self.own.bump(BYTES_WRITTEN, bytes as u64);
    }
}

impl fmt::Debug for WorkerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerMetrics").field("at", &self.at).finish_non_exhaustive()
    }
}

/// Where each counter lies. Cells that every request touches are in the worker's own block; what may end on a worker other
/// than it began on is in the block that any thread may add to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Including `none`.
    rules: usize,
    servers: usize,
}

/// Cells per rule of the own block: requests by command and outcome, two histograms, and near hits.
const OWN_RULE: usize = Command::ALL.len() * Outcome::ALL.len() + LATENCY.width() + AGE.width() + 1;
/// Cells per server: outcomes, a histogram, in flight, up, connections, shared reads, guards.
const OWN_SERVER: usize = UpstreamOutcome::ALL.len() + LATENCY.width() + 5;
/// Cells without a rule or server: clients connected, accepted, refused, binary; bytes read, written; values refused as too
/// large, and for want of memory; bytes kept near; authentications and handshakes by outcome; pairs of sets and misses; changes of what clients are; limits; requests of all rules together by command
/// and outcome, so that a client's `stats` need not walk ten thousand rules on a worker's thread.
const OWN_REST: usize = ANSWERED + Command::ALL.len() * Outcome::ALL.len();
/// Cells per rule of the shared block: lease ends, wait ends, drop reasons, a histogram, plain values.
const SHARED_RULE: usize =
    LeaseEnd::ALL.len() + WaitEnd::ALL.len() + DropReason::ALL.len() + REBUILD.width() + 1;
/// Live leases, waiters, bumps.
const SHARED_REST: usize = 3;

/// The shared block's first cells.
pub(super) const LEASES_LIVE: usize = 0;
pub(super) const WAITERS: usize = 1;
pub(super) const BUMPS: usize = 2;
/// The own block's first cells.
pub(super) const CLIENTS: usize = 0;
pub(super) const CLIENTS_TOTAL: usize = 1;
pub(super) const CLIENTS_REFUSED: usize = 2;
pub(super) const BYTES_READ: usize = 3;
pub(super) const BYTES_WRITTEN: usize = 4;
pub(super) const TOO_LARGE: usize = 5;
pub(super) const NO_MEMORY: usize = 6;
pub(super) const CLIENTS_BINARY: usize = 7;
pub(super) const NEAR_BYTES: usize = 8;
/// Behind them, the first of those by outcome.
const OUTCOMES: usize = 9;
/// And as many as there are limits.
const LIMITS: usize = PAIRS + PairedWith::ALL.len() + ClientsAre::ALL.len();
const PAIRS: usize = OUTCOMES + AuthOutcome::ALL.len() + TlsOutcome::ALL.len();
const ANSWERED: usize = LIMITS + Limit::ALL.len();

pub(super) fn authentication(outcome: AuthOutcome) -> usize {
    OUTCOMES + outcome as usize
}

pub(super) fn handshake(outcome: TlsOutcome) -> usize {
    OUTCOMES + AuthOutcome::ALL.len() + outcome as usize
}

pub(super) fn pair(miss: PairedWith) -> usize {
    PAIRS + miss as usize
}

pub(super) fn clients_are(to: ClientsAre) -> usize {
    PAIRS + PairedWith::ALL.len() + to as usize
}

impl Layout {
    /// An index past the last rule, [`NO_RULE`] among them, is `none`.
    fn own_rule(&self, rule: usize) -> usize {
        OWN_REST + rule.min(self.rules - 1) * OWN_RULE
    }

    pub(super) fn limit(&self, limit: Limit) -> usize {
        LIMITS + limit as usize
    }

    pub(super) fn request(&self, rule: usize, command: Command, outcome: Outcome) -> usize {
        self.own_rule(rule) + command as usize * Outcome::ALL.len() + outcome as usize
    }

    /// The same, whichever the rule.
    pub(super) fn answered(&self, command: Command, outcome: Outcome) -> usize {
        ANSWERED + command as usize * Outcome::ALL.len() + outcome as usize
    }

    pub(super) fn duration(&self, rule: usize) -> usize {
        self.own_rule(rule) + Command::ALL.len() * Outcome::ALL.len()
    }

    pub(super) fn stale_age(&self, rule: usize) -> usize {
        self.duration(rule) + LATENCY.width()
    }

    pub(super) fn near_hits(&self, rule: usize) -> usize {
        self.stale_age(rule) + AGE.width()
    }

    /// An index past the last server is the spare one, which is never exported: a mistake in a caller may not take a
    /// request down with it.
    fn server(&self, server: usize) -> usize {
        debug_assert!(server < self.servers, "server {server} of {}", self.servers);
        OWN_REST + self.rules * OWN_RULE + server.min(self.servers) * OWN_SERVER
    }

    pub(super) fn upstream(&self, server: usize, outcome: UpstreamOutcome) -> usize {
        self.server(server) + outcome as usize
    }

    pub(super) fn upstream_duration(&self, server: usize) -> usize {
        self.server(server) + UpstreamOutcome::ALL.len()
    }

    pub(super) fn in_flight(&self, server: usize) -> usize {
        self.upstream_duration(server) + LATENCY.width()
    }

    pub(super) fn up(&self, server: usize) -> usize {
        self.in_flight(server) + 1
    }

    pub(super) fn connections(&self, server: usize) -> usize {
        self.in_flight(server) + 2
    }

    pub(super) fn shared(&self, server: usize) -> usize {
        self.in_flight(server) + 3
    }

    pub(super) fn guards(&self, server: usize) -> usize {
        self.in_flight(server) + 4
    }

    pub(super) fn lease(&self, rule: usize, end: LeaseEnd) -> usize {
        SHARED_REST + rule.min(self.rules - 1) * SHARED_RULE + end as usize
    }

    pub(super) fn wait(&self, rule: usize, end: WaitEnd) -> usize {
        self.lease(rule, LeaseEnd::Filled) + LeaseEnd::ALL.len() + end as usize
    }

    pub(super) fn dropped(&self, rule: usize, why: DropReason) -> usize {
        self.wait(rule, WaitEnd::Filled) + WaitEnd::ALL.len() + why as usize
    }

    pub(super) fn rebuild(&self, rule: usize) -> usize {
        self.dropped(rule, DropReason::Changed) + DropReason::ALL.len()
    }

    pub(super) fn plain(&self, rule: usize) -> usize {
        self.rebuild(rule) + REBUILD.width()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_counters_share_a_cell_and_every_cell_is_inside_its_block() {
        let worker = WorkerMetrics::new(3, 2);
        let at = worker.at;
        let (mut own, mut shared) = (HashSet::from([0, 1, 2, 3, 4, 5, 6, 7, 8]), HashSet::from([0, 1, 2]));
        let once = |cells: &mut HashSet<usize>, cell| assert!(cells.insert(cell), "cell {cell} twice");
        for &command in Command::ALL {
            Outcome::ALL.iter().for_each(|&o| once(&mut own, at.answered(command, o)));
        }
        AuthOutcome::ALL.iter().for_each(|&o| once(&mut own, authentication(o)));
        TlsOutcome::ALL.iter().for_each(|&o| once(&mut own, handshake(o)));
        PairedWith::ALL.iter().for_each(|&miss| once(&mut own, pair(miss)));
        ClientsAre::ALL.iter().for_each(|&to| once(&mut own, clients_are(to)));
        Limit::ALL.iter().for_each(|&limit| once(&mut own, at.limit(limit)));
        for rule in 0..3 {
            for &command in Command::ALL {
                Outcome::ALL.iter().for_each(|&o| once(&mut own, at.request(rule, command, o)));
            }
            (0..LATENCY.width()).for_each(|i| once(&mut own, at.duration(rule) + i));
            (0..AGE.width()).for_each(|i| once(&mut own, at.stale_age(rule) + i));
            once(&mut own, at.near_hits(rule));
            LeaseEnd::ALL.iter().for_each(|&e| once(&mut shared, at.lease(rule, e)));
            WaitEnd::ALL.iter().for_each(|&e| once(&mut shared, at.wait(rule, e)));
            DropReason::ALL.iter().for_each(|&w| once(&mut shared, at.dropped(rule, w)));
            (0..REBUILD.width()).for_each(|i| once(&mut shared, at.rebuild(rule) + i));
            once(&mut shared, at.plain(rule));
        }
        for server in 0..2 {
            UpstreamOutcome::ALL.iter().for_each(|&o| once(&mut own, at.upstream(server, o)));
            (0..LATENCY.width()).for_each(|i| once(&mut own, at.upstream_duration(server) + i));
            [
                at.in_flight(server),
                at.up(server),
                at.connections(server),
                at.shared(server),
                at.guards(server),
            ]
            .iter()
            .for_each(|&c| once(&mut own, c));
        }
        // Without a hole: the cells are 0..n, and one more server's worth is the spare.
        assert_eq!(own.len(), OWN_REST + 3 * OWN_RULE + 2 * OWN_SERVER);
        assert_eq!(own.iter().max(), Some(&(own.len() - 1)));
        assert_eq!(shared.len(), SHARED_REST + 3 * SHARED_RULE);
        assert_eq!(shared.iter().max(), Some(&(shared.len() - 1)));
        own.into_iter().for_each(|cell| assert_eq!(worker.own.get(cell), 0));
        shared.into_iter().for_each(|cell| assert_eq!(worker.shared.get(cell), 0));
    }
}
