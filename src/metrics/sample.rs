//! What the status page plots: the counts of all rules and servers at one moment.

use super::cells::{Buckets, LATENCY};
use super::counts::{Counts, ServerName, gauge};
use super::labels::{Command, LeaseEnd, Outcome, WaitEnd};
use super::{layout, process};

/// The counts at one moment. All but the gauges only increase, as long as the same rules and servers are configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// Requests by outcome, in the order of [`Outcome::ALL`].
    outcomes: Vec<u64>,
    /// Durations of requests, of all rules together.
    durations: Vec<u64>,
    /// Leases that ended with a stored fill.
    pub rebuilds: u64,
    /// Waits that ended with another client's fill.
    pub waits_filled: u64,
    /// `kennel_tag_bumps_total`.
    pub bumps: u64,
    /// `kennel_client_connections`, a gauge.
    pub clients: u64,
    /// Gauge: resident memory, in bytes; 0 if unknown.
    pub resident: u64,
    /// Durations of requests to each server.
    servers: Vec<(ServerName, Vec<u64>)>,
}

impl Sample {
    pub(super) fn of(counts: &Counts) -> Sample {
        let outcome = |&outcome: &Outcome| {
            Command::ALL.iter().map(|&command| counts.own(layout::answered(command, outcome))).sum()
        };
        let rules = || 0..counts.rules.len();
        let buckets = LATENCY.bounds.len() + 1;
        let duration = |cell| rules().map(|rule| counts.of_rule(rule, layout::DURATION + cell)).sum();
        let of_server = |(at, name): (usize, &ServerName)| {
            let cell = |cell| counts.of_server(at, layout::UPSTREAM_DURATION + cell);
            (name.clone(), (0..buckets).map(cell).collect())
        };
        let shared = |cell| rules().map(|rule| counts.shared_of_rule(rule, cell)).sum();
        Sample {
            outcomes: Outcome::ALL.iter().map(outcome).collect(),
            durations: (0..buckets).map(duration).collect(),
            rebuilds: shared(layout::lease(LeaseEnd::Filled)),
            waits_filled: shared(layout::wait(WaitEnd::Filled)),
            bumps: counts.shared(layout::BUMPS),
            clients: gauge(counts.own(layout::CLIENTS)),
            resident: process::resident(),
            servers: counts.servers.iter().enumerate().map(of_server).collect(),
        }
    }

    /// Requests with these outcomes.
    pub fn answered(&self, outcomes: &[Outcome]) -> u64 {
        outcomes.iter().map(|&outcome| self.outcomes.get(outcome as usize).copied().unwrap_or(0)).sum()
    }

    /// The names of the servers.
    pub fn servers(&self) -> impl ExactSizeIterator<Item = &ServerName> {
        self.servers.iter().map(|(name, _)| name)
    }

    /// The duration in seconds within which a share `q` (0 to 1) of the requests since `earlier` were answered, as Prometheus's
    /// `histogram_quantile` estimates it; `None` if there were none.
    pub fn quantile(&self, earlier: &Sample, q: f64) -> Option<f64> {
        quantile(&self.durations, &earlier.durations, q, &LATENCY)
    }

    /// The same, of requests to the server with this index. A server that `earlier` does not have began with none.
    pub fn server_quantile(&self, earlier: &Sample, server: usize, q: f64) -> Option<f64> {
        let (name, now) = self.servers.get(server)?;
        let same = |(other, _): &&(ServerName, _)| other == name;
        let at_same_index = earlier.servers.get(server).filter(same);
        let then = at_same_index.or_else(|| earlier.servers.iter().find(same));
        quantile(now, then.map_or(&[], |(_, then)| then), q, &LATENCY)
    }
}

fn quantile(now: &[u64], then: &[u64], q: f64, buckets: &Buckets) -> Option<f64> {
    let count = |at: usize| now[at].saturating_sub(then.get(at).copied().unwrap_or(0));
    let total: u64 = (0..now.len()).map(count).sum();
    if total == 0 {
        return None;
    }
    let (rank, mut below) = (q * total as f64, 0.0);
    let seconds = |units: u64| units as f64 / buckets.per_second as f64;
    let mut lower = 0.0;
    for (at, &bound) in buckets.bounds.iter().enumerate() {
        let (here, upper) = (count(at) as f64, seconds(bound));
        if here > 0.0 && below + here >= rank {
            return Some(lower + (upper - lower) * ((rank - below) / here));
        }
        below += here;
        lower = upper;
    }
    // Above the last bound, it is not known by how much.
    Some(lower)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn a_quantile_is_that_of_the_requests_since_the_earlier_sample() {
        let server = |server: &str| ServerName { pool: "main".to_owned(), server: server.to_owned() };
        let metrics = Metrics::new(vec!["r".to_owned()], vec![server("a"), server("b")], 2);
        let request = |ms, outcome| {
            metrics.worker(1).request(0, Command::Get, outcome, Duration::from_millis(ms));
        };
        request(4_000, Outcome::Miss);
        let earlier = metrics.sample();
        assert_eq!(metrics.sample().quantile(&earlier, 0.5), None);
        for _ in 0..99 {
            request(2, Outcome::Hit);
        }
        request(90, Outcome::Stale);
        let now = metrics.sample();
        let at = |q| now.quantile(&earlier, q).unwrap();
        assert!((0.001..=0.0025).contains(&at(0.5)) && at(0.5) < at(0.9), "{}", at(0.5));
        assert!((0.05..=0.1).contains(&at(1.0)), "{}", at(1.0));
        assert_eq!(now.answered(&[Outcome::Hit, Outcome::Stale]), 100);
        assert_eq!(now.answered(&[Outcome::Miss]), 1);
        assert_eq!(now.servers().len(), 2);
        assert_eq!(now.server_quantile(&earlier, 1, 0.5), None);
        assert_eq!(now.server_quantile(&Sample::default(), 7, 0.5), None);
    }

    #[test]
    fn what_took_longer_than_the_last_bound_is_shown_as_that() {
        let mut now = vec![0; LATENCY.bounds.len() + 1];
        *now.last_mut().unwrap() = 3;
        assert_eq!(quantile(&now, &[], 0.99, &LATENCY), Some(5.0));
    }
}
