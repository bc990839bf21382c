//! Which cell of a worker's blocks holds each counter.

use super::cells::{AGE, LATENCY, REBUILD};
use super::labels::{
    AuthOutcome, ClientMode, Command, ConnectFailure, DropReason, ErrorCause, HealthState, LeaseEnd, Limit,
    LockEnd, Outcome, PairedWith, StaleReason, TlsOutcome, TlsSession, UpstreamOutcome, WaitEnd,
};

/// The rule index of a key that no rule matches, and of requests without a key. Exported as the rule `none`.
pub const NO_RULE: usize = usize::MAX;

// A worker has an own and a shared block for itself, and for each rule, and an own block for each server. Cells that every request
// updates are in the own blocks. What may end on another worker than it began on is in the shared blocks, to which any thread may
// add.

/// Cells of a rule's own block: requests by command and outcome, two histograms, near hits, slow requests, lock ends, stale values by
/// reason, builds.
pub(super) const OWN_RULE: usize = OBSERVED + 8;
/// Cells of a server's block: outcomes, a histogram, in flight, up, connections, shared reads, whether it can guard, whether it is
/// not healthy, changes of its health, failed attempts to connect, TLS handshakes.
pub(super) const OWN_SERVER: usize = UpstreamOutcome::ALL.len()
    + LATENCY.width()
    + 6
    + HealthState::ALL.len()
    + ConnectFailure::ALL.len()
    + TlsSession::ALL.len();
/// Cells of the worker's own block. The last are the requests of all rules by command and outcome, so that a client's `stats` does
/// not read the cells of up to 10,000 rules on a worker's thread.
pub(super) const OWN_GLOBAL: usize = ANSWERED + Command::ALL.len() * Outcome::ALL.len();
/// Cells of a rule's shared block: lease ends, wait ends, drop reasons, a histogram, plain values.
pub(super) const SHARED_RULE: usize =
    LeaseEnd::ALL.len() + WaitEnd::ALL.len() + DropReason::ALL.len() + REBUILD.width() + 1;
/// Cells of the worker's shared block.
pub(super) const SHARED_GLOBAL: usize = 5;

// Cells of the worker's shared block.

/// Leases that are held now.
pub(super) const LEASES_LIVE: usize = 0;
/// Requests that wait now.
pub(super) const WAITERS: usize = 1;
pub(super) const BUMPS: usize = 2;
/// Values kept while no server answers, and their bytes.
pub(super) const OUTAGE_VALUES: usize = 3;
pub(super) const OUTAGE_BYTES: usize = 4;

// Cells of the worker's own block.

/// Clients that are connected now.
pub(super) const CLIENTS: usize = 0;
pub(super) const CLIENTS_TOTAL: usize = 1;
/// Clients refused because of `max_connections`.
pub(super) const CLIENTS_REFUSED: usize = 2;
/// Bytes read from clients.
pub(super) const BYTES_READ: usize = 3;
/// Bytes written to clients.
pub(super) const BYTES_WRITTEN: usize = 4;
/// Clients that used the binary protocol.
pub(super) const CLIENTS_BINARY: usize = 5;
/// Bytes in the near cache.
pub(super) const NEAR_BYTES: usize = 6;
/// Clients received from another process.
pub(super) const CLIENTS_RECEIVED: usize = 7;
/// Locks that clients have now.
pub(super) const LOCKS_HELD: usize = 8;
/// Events sent to watchers.
pub(super) const TRACE_EVENTS: usize = 9;
/// Events dropped because a watcher did not take those before them.
pub(super) const TRACE_DROPPED: usize = 10;

// The first cells of what is counted by a label.

const OUTCOMES: usize = 11;
const PAIRS: usize = OUTCOMES + AuthOutcome::ALL.len() + TlsOutcome::ALL.len();
const LIMITS: usize = PAIRS + PairedWith::ALL.len() + ClientMode::ALL.len();
const ERRORS: usize = LIMITS + Limit::ALL.len();
const ANSWERED: usize = ERRORS + ErrorCause::ALL.len();

pub(super) fn authentication(outcome: AuthOutcome) -> usize {
    OUTCOMES + outcome as usize
}

pub(super) fn handshake(outcome: TlsOutcome) -> usize {
    OUTCOMES + AuthOutcome::ALL.len() + outcome as usize
}

pub(super) fn pair(miss: PairedWith) -> usize {
    PAIRS + miss as usize
}

pub(super) fn client_mode(to: ClientMode) -> usize {
    PAIRS + PairedWith::ALL.len() + to as usize
}

pub(super) fn limit(limit: Limit) -> usize {
    LIMITS + limit as usize
}

pub(super) fn server_error(cause: ErrorCause) -> usize {
    ERRORS + cause as usize
}

/// Requests of all rules.
pub(super) fn answered(command: Command, outcome: Outcome) -> usize {
    ANSWERED + command as usize * Outcome::ALL.len() + outcome as usize
}

// Cells of a rule's own block.

pub(super) fn request(command: Command, outcome: Outcome) -> usize {
    command as usize * Outcome::ALL.len() + outcome as usize
}

pub(super) const DURATION: usize = Command::ALL.len() * Outcome::ALL.len();
pub(super) const STALE_AGE: usize = DURATION + LATENCY.width();
pub(super) const NEAR_HITS: usize = STALE_AGE + AGE.width();
pub(super) const SLOW: usize = NEAR_HITS + 1;

pub(super) fn lock(end: LockEnd) -> usize {
    SLOW + 1 + end as usize
}

pub(super) fn stale(why: StaleReason) -> usize {
    SLOW + 1 + LockEnd::ALL.len() + why as usize
}

const OBSERVED: usize = SLOW + 1 + LockEnd::ALL.len() + StaleReason::ALL.len();
/// Builds of observed keys, and those of them that a guard would have spared.
pub(super) const OBSERVED_BUILDS: usize = OBSERVED;
pub(super) const OBSERVED_SPARED: usize = OBSERVED + 1;
/// The time that they took, in microseconds.
pub(super) const OBSERVED_TIME: usize = OBSERVED + 2;
pub(super) const OBSERVED_SPARED_TIME: usize = OBSERVED + 3;
/// The most builds of one key that overlapped.
pub(super) const OBSERVED_AT_ONCE: usize = OBSERVED + 4;
/// Builds of the guarded keys of a rule with a share, and those of them that overlapped with another one.
pub(super) const SHARE_BUILDS: usize = OBSERVED + 5;
pub(super) const SHARE_OVERLAPS: usize = OBSERVED + 6;
pub(super) const STALE_REJECTED: usize = OBSERVED + 7;

// Cells of a server's block.

pub(super) fn upstream(outcome: UpstreamOutcome) -> usize {
    outcome as usize
}

pub(super) const UPSTREAM_DURATION: usize = UpstreamOutcome::ALL.len();
pub(super) const IN_FLIGHT: usize = UPSTREAM_DURATION + LATENCY.width();
pub(super) const UP: usize = IN_FLIGHT + 1;
pub(super) const CONNECTIONS: usize = IN_FLIGHT + 2;
pub(super) const SHARED: usize = IN_FLIGHT + 3;
pub(super) const GUARDS: usize = IN_FLIGHT + 4;
pub(super) const UNHEALTHY: usize = IN_FLIGHT + 5;

pub(super) fn health_changes(to: HealthState) -> usize {
    IN_FLIGHT + 6 + to as usize
}

pub(super) fn connect_failure(reason: ConnectFailure) -> usize {
    IN_FLIGHT + 6 + HealthState::ALL.len() + reason as usize
}

pub(super) fn tls_session(session: TlsSession) -> usize {
    IN_FLIGHT + 6 + HealthState::ALL.len() + ConnectFailure::ALL.len() + session as usize
}

// Cells of a rule's shared block.

pub(super) fn lease(end: LeaseEnd) -> usize {
    end as usize
}

pub(super) fn wait(end: WaitEnd) -> usize {
    LeaseEnd::ALL.len() + end as usize
}

pub(super) fn dropped(why: DropReason) -> usize {
    LeaseEnd::ALL.len() + WaitEnd::ALL.len() + why as usize
}

pub(super) const REBUILD_DURATION: usize = LeaseEnd::ALL.len() + WaitEnd::ALL.len() + DropReason::ALL.len();
pub(super) const PLAIN: usize = REBUILD_DURATION + REBUILD.width();

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cell of a block of this size is that of one counter.
    fn assert_full(block: &str, size: usize, cells: impl IntoIterator<Item = usize>) {
        let mut cells: Vec<usize> = cells.into_iter().collect();
        cells.sort_unstable();
        assert!(cells.iter().copied().eq(0..size), "{block}: {cells:?}");
    }

    #[test]
    fn no_two_counters_share_a_cell_and_every_cell_is_inside_its_block() {
        let pairs = |cell: fn(Command, Outcome) -> usize| {
            let of = move |&c: &Command| Outcome::ALL.iter().map(move |&o| cell(c, o));
            Command::ALL.iter().flat_map(of).collect::<Vec<_>>()
        };
        let global = [
            CLIENTS,
            CLIENTS_TOTAL,
            CLIENTS_REFUSED,
            BYTES_READ,
            BYTES_WRITTEN,
            CLIENTS_BINARY,
            NEAR_BYTES,
            CLIENTS_RECEIVED,
            LOCKS_HELD,
            TRACE_EVENTS,
            TRACE_DROPPED,
        ];
        let of_labels = AuthOutcome::ALL.iter().map(|&o| authentication(o));
        let of_labels = of_labels.chain(TlsOutcome::ALL.iter().map(|&o| handshake(o)));
        let of_labels = of_labels.chain(PairedWith::ALL.iter().map(|&miss| pair(miss)));
        let of_labels = of_labels.chain(ClientMode::ALL.iter().map(|&to| client_mode(to)));
        let of_labels = of_labels.chain(Limit::ALL.iter().map(|&l| limit(l)));
        let of_labels = of_labels.chain(ErrorCause::ALL.iter().map(|&cause| server_error(cause)));
        assert_full("own", OWN_GLOBAL, of_labels.chain(global).chain(pairs(answered)));
        assert_full("shared", SHARED_GLOBAL, [LEASES_LIVE, WAITERS, BUMPS, OUTAGE_VALUES, OUTAGE_BYTES]);
        let histograms = (DURATION..DURATION + LATENCY.width()).chain(STALE_AGE..STALE_AGE + AGE.width());
        let stale = StaleReason::ALL.iter().map(|&why| stale(why)).chain([NEAR_HITS, SLOW]);
        let stale = stale.chain([OBSERVED_BUILDS, OBSERVED_SPARED, OBSERVED_TIME, OBSERVED_SPARED_TIME]);
        let stale = stale.chain([OBSERVED_AT_ONCE, SHARE_BUILDS, SHARE_OVERLAPS, STALE_REJECTED]);
        let of_rule = pairs(request).into_iter().chain(histograms).chain(stale);
        assert_full("rule", OWN_RULE, of_rule.chain(LockEnd::ALL.iter().map(|&end| lock(end))));
        let of_labels = LeaseEnd::ALL.iter().map(|&e| lease(e));
        let of_labels = of_labels.chain(WaitEnd::ALL.iter().map(|&e| wait(e)));
        let of_labels = of_labels.chain(DropReason::ALL.iter().map(|&w| dropped(w)));
        let histogram = REBUILD_DURATION..REBUILD_DURATION + REBUILD.width();
        assert_full("shared of a rule", SHARED_RULE, of_labels.chain(histogram).chain([PLAIN]));
        let of_labels = UpstreamOutcome::ALL.iter().map(|&o| upstream(o));
        let of_labels = of_labels.chain(HealthState::ALL.iter().map(|&to| health_changes(to)));
        let of_labels = of_labels.chain(ConnectFailure::ALL.iter().map(|&reason| connect_failure(reason)));
        let of_labels = of_labels.chain(TlsSession::ALL.iter().map(|&session| tls_session(session)));
        let histogram = UPSTREAM_DURATION..UPSTREAM_DURATION + LATENCY.width();
        let single = [IN_FLIGHT, UP, CONNECTIONS, SHARED, GUARDS, UNHEALTHY];
        assert_full("server", OWN_SERVER, of_labels.chain(histogram).chain(single));
    }
}
