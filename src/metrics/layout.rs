//! Which cell of a worker's blocks holds each counter.

use super::cells::{AGE, LATENCY, REBUILD};
use super::labels::{
    AuthOutcome, ClientMode, Command, DropReason, HealthState, LeaseEnd, Limit, Outcome, PairedWith,
    TlsOutcome, UpstreamOutcome, WaitEnd,
};

/// The rule index of a key that no rule matches, and of requests without a key. Exported as the rule `none`.
pub const NO_RULE: usize = usize::MAX;

/// The cells of one worker. Cells that every request updates are in the worker's own block. What may end on another worker than
/// it began on is in the shared block, to which any thread may add.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// The configured rules and `none`.
    pub(super) rules: usize,
    pub(super) servers: usize,
}

/// Cells per rule in the own block: requests by command and outcome, two histograms, near hits.
const OWN_RULE: usize = Command::ALL.len() * Outcome::ALL.len() + LATENCY.width() + AGE.width() + 1;
/// Cells per server: outcomes, a histogram, in flight, up, connections, shared reads, whether it can guard, whether it is not
/// healthy, changes of its health.
const OWN_SERVER: usize = UpstreamOutcome::ALL.len() + LATENCY.width() + 6 + HealthState::ALL.len();
/// Cells of the own block without a rule or server. The last are the requests of all rules by command and outcome, so that a
/// client's `stats` does not read the cells of up to 10,000 rules on a worker's thread.
const OWN_GLOBAL: usize = ANSWERED + Command::ALL.len() * Outcome::ALL.len();
/// Cells per rule in the shared block: lease ends, wait ends, drop reasons, a histogram, plain values.
const SHARED_RULE: usize =
    LeaseEnd::ALL.len() + WaitEnd::ALL.len() + DropReason::ALL.len() + REBUILD.width() + 1;
/// Cells of the shared block without a rule.
const SHARED_GLOBAL: usize = 3;

// Cells of the shared block without a rule.

/// Leases that are held now.
pub(super) const LEASES_LIVE: usize = 0;
/// Requests that wait now.
pub(super) const WAITERS: usize = 1;
/// Tags bumped.
pub(super) const BUMPS: usize = 2;
/// Values kept while no server answers, and their bytes.
pub(super) const OUTAGE_VALUES: usize = 3;
pub(super) const OUTAGE_BYTES: usize = 4;

// Cells of the own block without a rule or server.

/// Clients that are connected now.
pub(super) const CLIENTS: usize = 0;
/// Clients accepted.
pub(super) const CLIENTS_TOTAL: usize = 1;
/// Clients refused because of `max_connections`.
pub(super) const CLIENTS_REFUSED: usize = 2;
/// Bytes read from clients.
pub(super) const BYTES_READ: usize = 3;
/// Bytes written to clients.
pub(super) const BYTES_WRITTEN: usize = 4;
/// Values refused as too large.
pub(super) const TOO_LARGE: usize = 5;
/// Values for which a server had no memory.
pub(super) const NO_MEMORY: usize = 6;
/// Clients that used the binary protocol.
pub(super) const CLIENTS_BINARY: usize = 7;
/// Bytes in the near cache.
pub(super) const NEAR_BYTES: usize = 8;

// The first cells of what is counted by a label.

const OUTCOMES: usize = 9;
const PAIRS: usize = OUTCOMES + AuthOutcome::ALL.len() + TlsOutcome::ALL.len();
const LIMITS: usize = PAIRS + PairedWith::ALL.len() + ClientMode::ALL.len();
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

pub(super) fn client_mode(to: ClientMode) -> usize {
    PAIRS + PairedWith::ALL.len() + to as usize
}

impl Layout {
    /// The size of the worker's own block. It has the cells of one server more than there are: see [`Self::server`].
    pub(super) fn own_cells(&self) -> usize {
        OWN_GLOBAL + self.rules * OWN_RULE + (self.servers + 1) * OWN_SERVER
    }

    /// The size of the shared block.
    pub(super) fn shared_cells(&self) -> usize {
        SHARED_GLOBAL + self.rules * SHARED_RULE
    }

    /// The first cell of a rule. Every index past the last rule, such as [`NO_RULE`], is `none`.
    fn own_rule(&self, rule: usize) -> usize {
        OWN_GLOBAL + rule.min(self.rules - 1) * OWN_RULE
    }

    pub(super) fn limit(&self, limit: Limit) -> usize {
        LIMITS + limit as usize
    }

    pub(super) fn request(&self, rule: usize, command: Command, outcome: Outcome) -> usize {
        self.own_rule(rule) + command as usize * Outcome::ALL.len() + outcome as usize
    }

    /// Requests of all rules.
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

    /// The first cell of a server. An index past the last server is a spare one that is never exported, so that an error in a
    /// caller does not fail a request.
    fn server(&self, server: usize) -> usize {
        debug_assert!(server < self.servers, "server {server} of {}", self.servers);
        OWN_GLOBAL + self.rules * OWN_RULE + server.min(self.servers) * OWN_SERVER
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

    pub(super) fn unhealthy(&self, server: usize) -> usize {
        self.in_flight(server) + 5
    }

    pub(super) fn health_changes(&self, server: usize, to: HealthState) -> usize {
        self.in_flight(server) + 6 + to as usize
    }

    pub(super) fn lease(&self, rule: usize, end: LeaseEnd) -> usize {
        SHARED_GLOBAL + rule.min(self.rules - 1) * SHARED_RULE + end as usize
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
        let at = Layout { rules: 3, servers: 2 };
        let (mut own, mut shared) = (HashSet::from([0, 1, 2, 3, 4, 5, 6, 7, 8]), HashSet::from([0, 1, 2]));
        let once = |cells: &mut HashSet<usize>, cell| assert!(cells.insert(cell), "cell {cell} twice");
        for &command in Command::ALL {
            Outcome::ALL.iter().for_each(|&o| once(&mut own, at.answered(command, o)));
        }
        AuthOutcome::ALL.iter().for_each(|&o| once(&mut own, authentication(o)));
        TlsOutcome::ALL.iter().for_each(|&o| once(&mut own, handshake(o)));
        PairedWith::ALL.iter().for_each(|&miss| once(&mut own, pair(miss)));
        ClientMode::ALL.iter().for_each(|&to| once(&mut own, client_mode(to)));
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
                at.unhealthy(server),
            ]
            .iter()
            .for_each(|&c| once(&mut own, c));
            HealthState::ALL.iter().for_each(|&to| once(&mut own, at.health_changes(server, to)));
        }
        // Without a gap, up to the spare server.
        assert_eq!(own.len(), at.own_cells() - OWN_SERVER);
        assert_eq!(own.iter().max(), Some(&(own.len() - 1)));
        assert_eq!(shared.len(), at.shared_cells());
        assert_eq!(shared.iter().max(), Some(&(shared.len() - 1)));
    }
}
