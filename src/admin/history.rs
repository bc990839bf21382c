//! The last hour, which the status page plots: one point every 5 s, at a fixed cost of memory.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use crate::metrics::{Outcome, Sample};

/// The interval between two points.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// The number of points: an hour.
const POINTS: usize = 720;
/// The most servers whose durations are kept: the first ones configured.
const MAX_SERVERS: usize = 64;

/// What is plotted, with the metric that it comes from. Rates are per second, durations in seconds.
const SERIES: [(&str, &str); 13] = [
    ("hit", "kennel_requests_total"),
    ("stale", "kennel_requests_total"),
    ("miss", "kennel_requests_total"),
    ("stored", "kennel_requests_total"),
    ("other", "kennel_requests_total"),
    ("error", "kennel_requests_total"),
    ("rebuilds", "kennel_leases_total"),
    ("avoided", "kennel_waits_total"),
    ("bumps", "kennel_tag_bumps_total"),
    ("connections", "kennel_client_connections"),
    ("memory", "process_resident_memory_bytes"),
    ("p50", "kennel_request_duration_seconds"),
    ("p99", "kennel_request_duration_seconds"),
];

const STALE: &[Outcome] = &[Outcome::Stale, Outcome::Outage];
const MISS: &[Outcome] = &[Outcome::Miss, Outcome::MissWon, Outcome::MissHeld];
const STORED: &[Outcome] = &[Outcome::Stored];
const ERROR: &[Outcome] = &[Outcome::Error, Outcome::ClientError, Outcome::ServerError];

/// The points of the last hour.
#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
    /// The number of the next point, counted since the start.
    next: u64,
    /// The servers whose durations each point has.
    servers: Vec<String>,
    last: Option<Sample>,
}

#[derive(Debug)]
struct Point {
    /// Milliseconds of Unix time.
    at_ms: u64,
    /// In the order of [`SERIES`]; NaN where there is no value.
    values: [f32; SERIES.len()],
    /// The median and the 99th percentile of each server.
    servers: Box<[(f32, f32)]>,
}

impl History {
    /// Adds a point: what has happened since the last sample, at the time `at_ms` (milliseconds of Unix time). `seconds` is the time
    /// since that sample. The first sample makes no point.
    pub fn record(&mut self, sample: Sample, at_ms: u64, seconds: f64) {
        let Some(last) = self.last.take() else {
            self.last = Some(sample);
            return;
        };
        let names: Vec<String> =
            sample.servers().take(MAX_SERVERS).map(|name| format!("{}/{}", name.pool, name.server)).collect();
        self.rename(names);
        let seconds = seconds.max(1e-3);
        // Counters restart if a rule or server is configured anew.
        let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as f32;
        let answered = |outcomes: &[Outcome]| rate(sample.answered(outcomes), last.answered(outcomes));
        let named = [&[Outcome::Hit], STALE, MISS, STORED, ERROR].concat();
        let (rebuilds, waits) =
            (rate(sample.rebuilds, last.rebuilds), rate(sample.waits_filled, last.waits_filled));
        let other: Vec<Outcome> =
            Outcome::ALL.iter().copied().filter(|outcome| !named.contains(outcome)).collect();
        let duration = |found: Option<f64>| found.map_or(f32::NAN, |seconds| seconds as f32);
        let values = [
            answered(&[Outcome::Hit]),
            answered(STALE),
            answered(MISS),
            answered(STORED),
            answered(&other),
            answered(ERROR),
            rebuilds,
            answered(STALE) + waits,
            rate(sample.bumps, last.bumps),
            sample.clients as f32,
            sample.resident as f32,
            duration(sample.quantile(&last, 0.5)),
            duration(sample.quantile(&last, 0.99)),
        ];
        let of_server = |server| {
            let at = |q| duration(sample.server_quantile(&last, server, q));
            (at(0.5), at(0.99))
        };
        let servers = (0..self.servers.len()).map(of_server).collect();
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(Point { at_ms, values, servers });
        self.next += 1;
        self.last = Some(sample);
    }

    /// The servers have these names now. Those that remain keep their points.
    fn rename(&mut self, names: Vec<String>) {
        if names == self.servers {
            return;
        }
        let former: Vec<Option<usize>> =
            names.iter().map(|name| self.servers.iter().position(|former| former == name)).collect();
        for point in &mut self.points {
            let value = |at: &Option<usize>| at.map_or((f32::NAN, f32::NAN), |at| point.servers[at]);
            point.servers = former.iter().map(value).collect();
        }
        self.servers = names;
    }

    /// The points from number `since` on. Of a process that has not reached that number, all points.
    pub fn page(&self, since: u64) -> HistoryPage {
        let first = self.next - self.points.len() as u64;
        // A number above the next one is that of another process.
        let skip = if since > self.next { 0 } else { since.saturating_sub(first) };
        let skip = usize::try_from(skip).unwrap_or(POINTS);
        let points = || self.points.iter().skip(skip);
        let series = SERIES.iter().enumerate().map(|(at, &(name, metric))| SeriesJson {
            name,
            metric,
            values: points().map(|point| point.values[at]).collect(),
        });
        let servers = self.servers.iter().enumerate().map(|(at, name)| ServerJson {
            name: name.clone(),
            p50: points().map(|point| point.servers[at].0).collect(),
            p99: points().map(|point| point.servers[at].1).collect(),
        });
        HistoryPage {
            interval_seconds: INTERVAL.as_secs(),
            max_points: POINTS,
            first: first.max(first + skip as u64),
            next: self.next,
            at_ms: points().map(|point| point.at_ms).collect(),
            series: series.collect(),
            servers: servers.collect(),
        }
    }
}

/// Points, as JSON.
#[derive(Debug, Serialize)]
pub struct HistoryPage {
    interval_seconds: u64,
    max_points: usize,
    first: u64,
    next: u64,
    at_ms: Vec<u64>,
    series: Vec<SeriesJson>,
    servers: Vec<ServerJson>,
}

#[derive(Debug, Serialize)]
struct SeriesJson {
    name: &'static str,
    metric: &'static str,
    values: Vec<f32>,
}

#[derive(Debug, Serialize)]
struct ServerJson {
    name: String,
    p50: Vec<f32>,
    p99: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Command, Metrics, ServerName, WaitEnd};

    fn metrics(servers: &[&str]) -> Metrics {
        let name = |server: &&str| ServerName { pool: "main".to_owned(), server: (*server).to_owned() };
        Metrics::new(vec!["r".to_owned()], servers.iter().map(name).collect(), 1)
    }

    fn value(history: &History, name: &str) -> f32 {
        let at = SERIES.iter().position(|(known, _)| *known == name).unwrap();
        history.points.back().unwrap().values[at]
    }

    #[test]
    fn a_point_has_the_rates_since_the_last_sample() {
        let (metrics, mut history) = (metrics(&["a"]), History::default());
        let request = |outcome| metrics.worker(0).request(0, Command::Get, outcome, Duration::from_millis(2));
        request(Outcome::Hit);
        history.record(metrics.sample(), 1_000, 5.0);
        assert!(history.points.is_empty());
        for outcome in [Outcome::Hit, Outcome::Hit, Outcome::Stale, Outcome::MissWon] {
            request(outcome);
        }
        metrics.worker(0).request(0, Command::Delete, Outcome::Deleted, Duration::from_millis(400));
        metrics.worker(0).wait_ended(0, WaitEnd::Filled);
        history.record(metrics.sample(), 6_000, 5.0);
        let shown = ["hit", "stale", "miss", "other", "error", "avoided"].map(|name| value(&history, name));
        assert_eq!(shown, [0.4, 0.2, 0.2, 0.2, 0.0, 0.4]);
        assert!((0.001..0.0025).contains(&value(&history, "p50")));
        assert!((0.2..0.6).contains(&value(&history, "p99")), "{}", value(&history, "p99"));
        history.record(metrics.sample(), 11_000, 5.0);
        assert!(value(&history, "p99").is_nan() && value(&history, "hit") == 0.0);
        let json = serde_json::to_value(history.page(0)).unwrap();
        assert_eq!(json["series"][11]["values"][1], serde_json::Value::Null);
    }

    #[test]
    fn an_hour_is_kept_and_only_what_is_new_is_returned() {
        let (metrics, mut history) = (metrics(&["a"]), History::default());
        for n in 0..=POINTS as u64 + 10 {
            history.record(metrics.sample(), n * 5_000, 5.0);
        }
        assert_eq!((history.points.len(), history.next), (POINTS, POINTS as u64 + 10));
        let page = history.page(0);
        assert_eq!((page.first, page.at_ms.len()), (10, POINTS));
        assert_eq!(history.page(history.next - 2).at_ms.len(), 2);
        assert_eq!(history.page(history.next).at_ms.len(), 0);
        // Of a process that has ended.
        assert_eq!(history.page(u64::MAX).at_ms.len(), POINTS);
    }

    #[test]
    fn a_server_that_remains_keeps_its_points_and_only_the_first_ones_are_kept() {
        let mut history = History::default();
        let (two, other) = (metrics(&["a", "b"]), metrics(&["c", "b"]));
        let ask = |metrics: &Metrics| {
            let worker = metrics.worker(0);
            let server = worker.server(1);
            server.ended(crate::metrics::UpstreamOutcome::Ok, Duration::from_millis(2), 1);
        };
        history.record(two.sample(), 0, 5.0);
        ask(&two);
        history.record(two.sample(), 5_000, 5.0);
        history.record(other.sample(), 10_000, 5.0);
        assert_eq!(history.servers, ["main/c", "main/b"]);
        assert!(history.points[0].servers[0].0.is_nan() && history.points[0].servers[1].0 > 0.001);
        let many: Vec<String> = (0..MAX_SERVERS + 5).map(|n| n.to_string()).collect();
        let many = metrics(&many.iter().map(String::as_str).collect::<Vec<_>>());
        history.record(many.sample(), 15_000, 5.0);
        assert_eq!(history.points[0].servers.len(), MAX_SERVERS);
    }
}
