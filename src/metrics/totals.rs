//! Sums over all rules and workers, for the reply to a client's `stats`.

use super::counts::{Counts, gauge};
use super::labels::{AuthOutcome, Command, ErrorCause, Outcome, UpstreamOutcome};
use super::{layout, process};

/// The counts of all rules and all workers at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// By command and outcome.
    requests: Vec<u64>,
    /// By outcome, of all servers.
    upstream: Vec<u64>,
    /// `kennel_client_connections_total`.
    pub clients_accepted: u64,
    /// `kennel_client_connections_refused_total`.
    pub clients_refused: u64,
    /// Bytes read from clients.
    pub bytes_read: u64,
    /// Bytes written to clients.
    pub bytes_written: u64,
    /// Values refused as too large.
    pub too_large: u64,
    /// Values for which a server had no memory.
    pub no_memory: u64,
    /// Credentials that clients sent, right or wrong.
    pub passwords: u64,
    /// Wrong ones of these.
    pub wrong_passwords: u64,
    /// Clients that are connected now.
    pub clients: u64,
    /// Requests to servers that have not ended.
    pub in_flight: u64,
    /// Requests that wait for another client's fill now.
    pub waiters: u64,
    /// Servers that a worker considers down.
    pub servers_down: u64,
}

/// CPU time of this process, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// In user mode.
    pub user: u64,
    /// In kernel mode.
    pub system: u64,
}

impl Usage {
    /// Reads /proc; both are 0 on systems without it.
    pub fn read() -> Usage {
        let (user, system) = process::cpu();
        let micros = |seconds: Option<f64>| (seconds.unwrap_or(0.0) * 1e6).round() as u64;
        Usage { user: micros(user), system: micros(system) }
    }
}

impl Totals {
    pub(super) fn of(counts: &Counts) -> Totals {
        let servers = || 0..counts.servers.len();
        let requests = Command::ALL.iter().flat_map(|&command| {
            Outcome::ALL.iter().map(move |&outcome| counts.own(layout::answered(command, outcome)))
        });
        let upstream = UpstreamOutcome::ALL.iter().map(|&outcome| {
            servers().map(|server| counts.of_server(server, layout::upstream(outcome))).sum()
        });
        let passwords = |outcome| counts.own(layout::authentication(outcome));
        let wrong_passwords = passwords(AuthOutcome::Wrong);
        Totals {
            requests: requests.collect(),
            upstream: upstream.collect(),
            clients_accepted: counts.own(layout::CLIENTS_TOTAL),
            clients_refused: counts.own(layout::CLIENTS_REFUSED),
            bytes_read: counts.own(layout::BYTES_READ),
            bytes_written: counts.own(layout::BYTES_WRITTEN),
            too_large: counts.own(layout::server_error(ErrorCause::TooLarge)),
            no_memory: counts.own(layout::server_error(ErrorCause::NoMemory)),
            passwords: passwords(AuthOutcome::Accepted) + wrong_passwords,
            wrong_passwords,
            clients: gauge(counts.own(layout::CLIENTS)),
            in_flight: servers().map(|server| gauge(counts.of_server(server, layout::IN_FLIGHT))).sum(),
            waiters: gauge(counts.shared(layout::WAITERS)),
            servers_down: servers()
                .filter(|&server| counts.all_agree(server, layout::UP) == Some(false))
                .count() as u64,
        }
    }

    /// Subtracts the counters of `earlier`. Gauges are unchanged.
    pub fn since(mut self, earlier: &Totals) -> Totals {
        let pairs = |now: &mut [u64], then: &[u64]| {
            now.iter_mut().zip(then).for_each(|(now, then)| *now = now.saturating_sub(*then));
        };
        pairs(&mut self.requests, &earlier.requests);
        pairs(&mut self.upstream, &earlier.upstream);
        for (now, then) in [
            (&mut self.clients_accepted, earlier.clients_accepted),
            (&mut self.clients_refused, earlier.clients_refused),
            (&mut self.bytes_read, earlier.bytes_read),
            (&mut self.bytes_written, earlier.bytes_written),
            (&mut self.too_large, earlier.too_large),
            (&mut self.no_memory, earlier.no_memory),
            (&mut self.passwords, earlier.passwords),
            (&mut self.wrong_passwords, earlier.wrong_passwords),
        ] {
            *now = now.saturating_sub(then);
        }
        self
    }

    /// Keys of these commands that were answered with these outcomes.
    pub fn answered(&self, commands: &[Command], outcomes: &[Outcome]) -> u64 {
        let at = |&command: &Command, &outcome: &Outcome| {
            self.requests[command as usize * Outcome::ALL.len() + outcome as usize]
        };
        commands.iter().flat_map(|command| outcomes.iter().map(move |outcome| at(command, outcome))).sum()
    }

    /// Requests to servers that ended with these outcomes.
    pub fn upstream(&self, outcomes: &[UpstreamOutcome]) -> u64 {
        outcomes.iter().map(|&outcome| self.upstream[outcome as usize]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, NO_RULE, ServerName};
    use std::time::Duration;

    #[test]
    fn totals_add_the_rules_and_the_workers_and_a_difference_keeps_the_gauges() {
        let servers = vec![ServerName { pool: "main".to_owned(), server: "a".to_owned() }];
        let metrics = Metrics::new(vec!["r".to_owned()], servers, 2);
        let count = |worker: usize, rule| {
            let worker = metrics.worker(worker);
            worker.request(rule, Command::Get, Outcome::Hit, Duration::ZERO);
            worker.request(rule, Command::MetaGet, Outcome::Miss, Duration::ZERO);
            worker.client_connected();
            worker.bytes_read(5);
            worker.server_error(ErrorCause::TooLarge);
            worker.server(0).refused(UpstreamOutcome::Down);
        };
        count(0, 0);
        count(1, NO_RULE);
        let before = metrics.totals();
        assert_eq!(before.answered(&[Command::Get, Command::MetaGet], &[Outcome::Hit]), 2);
        assert_eq!(before.answered(&[Command::Get, Command::MetaGet], Outcome::ALL), 4);
        assert_eq!(before.upstream(&[UpstreamOutcome::Down]), 2);
        assert_eq!((before.clients, before.clients_accepted), (2, 2));
        assert_eq!((before.bytes_read, before.too_large, before.no_memory), (10, 2, 0));
        count(1, 0);
        metrics.worker(0).server(0).up(false);
        let since = metrics.totals().since(&before);
        assert_eq!(since.answered(Command::ALL, Outcome::ALL), 2);
        assert_eq!((since.clients, since.clients_accepted, since.bytes_read), (3, 1, 5));
        assert_eq!((since.upstream(UpstreamOutcome::ALL), since.servers_down), (1, 1));
    }
}
