//! What is counted.
//!
//! ```text
//!  worker 0 ── bump ──▶ [cells]─┐
//!  worker 1 ── bump ──▶ [cells]─┼─ summed when scraped ──▶ registry ──▶ text
//!  worker 2 ── bump ──▶ [cells]─┘
//! ```
//!
//! Counting a request is index arithmetic and a few plain loads and stores in memory that no other worker writes. All the
//! work is done at scrape time: the [`Collector`](prometheus::core::Collector) in `collect.rs` adds the workers up. The
//! metrics themselves are one table, [`TABLE`]; labels are enums, or names out of the configuration.
//!
//! Invariant: nothing outside this directory imports prometheus.

mod cells;
mod collect;
#[cfg(test)]
mod exposition;
mod labels;
mod process;
mod table;
mod totals;
mod worker;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus::{Registry, TextEncoder};

pub use labels::{
    AuthOutcome, ClientsAre, Command, DropReason, LeaseEnd, Limit, Outcome, PairedWith, TlsOutcome,
    UpstreamOutcome, WaitEnd,
};
pub use table::{Family, Kind, TABLE, markdown};
pub use totals::{Totals, Usage};
use worker::Layout;
pub use worker::WorkerMetrics;

/// The `Content-Type` of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// The rule index of a key that no rule matches, and of requests without a key. Exported as the rule `none`.
pub const NO_RULE: usize = usize::MAX;

/// A server, as labels name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerName {
    /// Its pool's name.
    pub pool: String,
    /// Its own name, or its address.
    pub server: String,
}

/// Everything that is counted. One for the life of a configuration: a reload that changes the rules or the servers makes a
/// new one, whose counters restart from 0 as after a restart of the process.
pub struct Metrics {
    counts: Arc<Counts>,
    registry: Registry,
}

/// What the collector and the workers share.
struct Counts {
    /// The configured names and, last, `none`.
    rules: Vec<String>,
    servers: Vec<ServerName>,
    workers: Vec<Arc<WorkerMetrics>>,
    /// 0: nothing read yet; 1: the last attempt failed; 2: it succeeded.
    reload: AtomicU64,
    /// When the configuration in force was read, Unix ms; 0: never.
    reloaded_ms: AtomicU64,
}

/// How one rule fared since the start, summed over the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleTotals {
    /// Its name.
    pub rule: String,
    /// Keys answered fresh.
    pub hits: u64,
    /// Keys answered stale.
    pub stale: u64,
    /// Keys answered with a miss, of any kind.
    pub misses: u64,
    /// Leases that ended in a stored fill.
    pub rebuilds: u64,
}

impl Metrics {
    /// For these rules and servers, in the order that indices count them, and this many workers (at least one). A name that
    /// repeats, or a rule called `none`, gets a number behind it: one duplicate series would void the whole scrape.
    pub fn new(rules: Vec<String>, servers: Vec<ServerName>, workers: usize) -> Metrics {
        let mut taken = HashSet::from(["none".to_owned()]);
        let mut rules: Vec<String> =
            rules.into_iter().map(|rule| unique(&mut taken, rule, String::clone)).collect();
        rules.push("none".to_owned());
        let mut taken = HashSet::new();
        let servers: Vec<ServerName> = servers
            .into_iter()
            .map(|ServerName { pool, server }| {
                let server = unique(&mut taken, server, |server| (pool.clone(), server.clone()));
                ServerName { pool, server }
            })
            .collect();
        let worker = || Arc::new(WorkerMetrics::new(rules.len(), servers.len()));
        let workers = (0..workers.max(1)).map(|_| worker()).collect();
        let counts =
            Counts { rules, servers, workers, reload: AtomicU64::new(0), reloaded_ms: AtomicU64::new(0) };
        let counts = Arc::new(counts);
        let registry = Registry::new();
        registry
            .register(Box::new(collect::Collect::new(Arc::clone(&counts))))
            .expect("the table's names are legal and distinct, which every test that renders proves");
        Metrics { counts, registry }
    }

    /// What worker `at` counts with. Beyond the last worker: the last one's, so that nothing is lost without being noticed.
    pub fn worker(&self, at: usize) -> Arc<WorkerMetrics> {
        debug_assert!(at < self.counts.workers.len(), "worker {at} of {}", self.counts.workers.len());
        Arc::clone(&self.counts.workers[at.min(self.counts.workers.len() - 1)])
    }

    /// Notes an attempt to read the configuration, the first one too. `unix_ms` counts only if it succeeded.
    pub fn config_read(&self, successful: bool, unix_ms: u64) {
        self.counts.reload.store(1 + u64::from(successful), Relaxed);
        if successful {
            self.counts.reloaded_ms.store(unix_ms, Relaxed);
        }
    }

    /// The exposition, in Prometheus's text format 0.0.4 ([`CONTENT_TYPE`]). Labelled series that are still 0 are left out.
    /// Reads /proc, a fraction of a millisecond.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("writing to a String cannot fail, and the registry has pruned the empty families")
    }

    /// The rules' totals, in the configuration's order, with `none` last.
    pub fn rule_totals(&self) -> Vec<RuleTotals> {
        let counts = &*self.counts;
        let totals = |rule: usize, name: &String| {
            let answered = |outcome| {
                Command::ALL.iter().map(|&c| counts.own(|at| at.request(rule, c, outcome))).sum::<u64>()
            };
            RuleTotals {
                rule: name.clone(),
                hits: answered(Outcome::Hit),
                stale: answered(Outcome::Stale),
                misses: answered(Outcome::Miss) + answered(Outcome::MissWon) + answered(Outcome::MissHeld),
                rebuilds: counts.shared(|at| at.lease(rule, LeaseEnd::Filled)),
            }
        };
        counts.rules.iter().enumerate().map(|(rule, name)| totals(rule, name)).collect()
    }

    /// The servers, in the order given, and whether each is up; `None` before any worker has tried.
    pub fn servers_up(&self) -> Vec<(ServerName, Option<bool>)> {
        let up = |(at, server): (usize, &ServerName)| {
            (server.clone(), self.counts.all_say(|layout| layout.up(at)))
        };
        self.counts.servers.iter().enumerate().map(up).collect()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("rules", &self.counts.rules).finish_non_exhaustive()
    }
}

impl Counts {
    /// The sum over the workers of one of their own cells.
    fn own(&self, cell: impl Fn(&Layout) -> usize) -> u64 {
        self.workers.iter().fold(0, |sum, w| sum.wrapping_add(w.own.get(cell(&w.at))))
    }

    /// The sum over the workers of one of the cells that any thread may add to.
    fn shared(&self, cell: impl Fn(&Layout) -> usize) -> u64 {
        self.workers.iter().fold(0, |sum, w| sum.wrapping_add(w.shared.get(cell(&w.at))))
    }

    /// What each worker notes in this cell as 1, for no, or 2, for yes: no as soon as one says so. `None`: nobody has said anything.
    fn all_say(&self, cell: impl Fn(&Layout) -> usize) -> Option<bool> {
        let said = self.workers.iter().map(|w| w.own.get(cell(&w.at))).filter(|&said| said != 0);
        said.min().map(|said| said == 2)
    }
}

/// `name`, or `name#2`, `name#3`, … until what `key` makes of it is not taken yet.
fn unique<K: std::hash::Hash + Eq>(
    taken: &mut HashSet<K>,
    name: String,
    key: impl Fn(&String) -> K,
) -> String {
    if taken.insert(key(&name)) {
        return name;
    }
    let numbered = (2..).map(|n: u64| format!("{name}#{n}")).find(|numbered| taken.insert(key(numbered)));
    numbered.unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::exposition::{Exposition, read};
    use super::*;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    fn server(pool: &str, server: &str) -> ServerName {
        ServerName { pool: pool.to_owned(), server: server.to_owned() }
    }

    fn metrics(workers: usize) -> Metrics {
        let servers = vec![server("main", "a:11211"), server("main", "b:11211")];
        Metrics::new(vec!["pages".to_owned(), "users".to_owned()], servers, workers)
    }

    fn scrape(metrics: &Metrics) -> Exposition {
        let page = metrics.render();
        read(&page).unwrap_or_else(|why| panic!("{why}\n\n{page}"))
    }

    /// One of everything.
    fn count_everything(metrics: &Metrics, worker: &WorkerMetrics) {
        for rule in [0, 1, NO_RULE] {
            for &command in Command::ALL {
                Outcome::ALL.iter().for_each(|&outcome| worker.request(rule, command, outcome, MS));
            }
            worker.stale_served(rule, 1500 * MS);
            for &end in LeaseEnd::ALL {
                worker.lease_granted();
                worker.lease_ended(rule, end, 30 * MS);
            }
            for &end in WaitEnd::ALL {
                worker.wait_began();
                worker.wait_ended(rule, end);
            }
            DropReason::ALL.iter().for_each(|&why| worker.fill_dropped(rule, why));
            worker.value_plain(rule);
            worker.near_hit(rule);
        }
        for server in [0, 1] {
            worker.upstream_connected(server, true);
            for &outcome in UpstreamOutcome::ALL {
                worker.upstream_sent(server);
                worker.upstream_shared(server);
                worker.upstream_ended(server, outcome, MS, 1);
            }
        }
        worker.tag_bumped();
        worker.client_connected();
        worker.client_refused();
        AuthOutcome::ALL.iter().for_each(|&outcome| worker.authentication(outcome));
        TlsOutcome::ALL.iter().for_each(|&outcome| worker.handshake(outcome));
        worker.client_binary();
        PairedWith::ALL.iter().for_each(|&miss| worker.set_paired(miss));
        [false, true].into_iter().for_each(|pooled| worker.clients_changed(pooled));
        Limit::ALL.iter().for_each(|&limit| worker.limit_reached(limit));
        worker.bytes_read(10);
        worker.bytes_written(20);
        metrics.config_read(true, 1_700_000_000_500);
    }

    #[test]
    fn with_everything_counted_the_exposition_is_the_table() {
        let metrics = metrics(2);
        count_everything(&metrics, &metrics.worker(1));
        let page = scrape(&metrics);
        for family in TABLE {
            let (kind, help) = page.families.get(family.name).unwrap_or_else(|| panic!("{}", family.name));
            assert_eq!((kind.as_str(), help.as_str()), (family.kind.word(), family.help), "{}", family.name);
            assert_eq!(page.labels[family.name], family.labels, "{}", family.name);
        }
        assert_eq!(page.families.len(), TABLE.len());
        let requests = page.samples.iter().filter(|(series, _)| series.starts_with("kennel_requests_total{"));
        assert_eq!(
            requests.map(|(_, count)| count).sum::<f64>(),
            (3 * Command::ALL.len() * Outcome::ALL.len()) as f64
        );
        assert_eq!(page.samples["kennel_config_last_reload_timestamp_seconds{}"], 1_700_000_000.5);
    }

    #[test]
    fn what_was_never_seen_is_not_exported() {
        let metrics = metrics(2);
        let page = scrape(&metrics);
        for absent in ["kennel_requests_total", "kennel_upstream_up", "kennel_rebuild_duration_seconds"] {
            assert!(!page.families.contains_key(absent), "{absent}");
        }
        assert_eq!(page.samples["kennel_tag_bumps_total{}"], 0.0);
        metrics.worker(0).request(0, Command::Get, Outcome::Hit, MS);
        let page = scrape(&metrics);
        let requests: Vec<_> =
            page.samples.keys().filter(|s| s.starts_with("kennel_requests_total")).collect();
        assert_eq!(requests, ["kennel_requests_total{rule=\"pages\",command=\"get\",outcome=\"hit\"}"]);
    }

    #[test]
    fn a_histogram_counts_each_duration_once_and_sums_them_over_the_workers() {
        let metrics = metrics(2);
        for (worker, micros) in [(0, 50), (0, 51), (1, 3_000_000), (1, 60_000_000)] {
            metrics.worker(worker).request(1, Command::Get, Outcome::Hit, Duration::from_micros(micros));
        }
        let page = scrape(&metrics);
        let at = |series: &str| page.samples[&format!("kennel_request_duration_seconds_{series}}}")];
        assert_eq!(at("bucket{rule=\"users\",le=\"0.00005\""), 1.0);
        assert_eq!(at("bucket{rule=\"users\",le=\"0.0001\""), 2.0);
        assert_eq!(at("bucket{rule=\"users\",le=\"2.5\""), 2.0);
        assert_eq!(at("bucket{rule=\"users\",le=\"5\""), 3.0);
        assert_eq!(at("bucket{rule=\"users\",le=\"+Inf\""), 4.0);
        assert_eq!(at("count{rule=\"users\""), 4.0);
        assert!((at("sum{rule=\"users\"") - 63.000101).abs() < 1e-9);
    }

    #[test]
    fn what_ended_alike_is_counted_together_as_it_would_be_one_by_one() {
        let [together, apart] = [(); 2].map(|()| metrics(1));
        let took = Duration::from_micros(70);
        let worker = together.worker(0);
        worker.requests(0, Command::Get, Outcome::Hit, took, 3);
        (0..5).for_each(|_| worker.upstream_sent(0));
        worker.upstream_ended(0, UpstreamOutcome::Ok, took, 4);
        let worker = apart.worker(0);
        (0..3).for_each(|_| worker.request(0, Command::Get, Outcome::Hit, took));
        (0..5).for_each(|_| worker.upstream_sent(0));
        (0..4).for_each(|_| worker.upstream_ended(0, UpstreamOutcome::Ok, took, 1));
        let [together, apart] = [together, apart].map(|metrics| {
            let mut samples = scrape(&metrics).samples;
            // The process's own say how much memory there is, and when.
            samples.retain(|name, _| name.starts_with("kennel_"));
            samples
        });
        assert!(together == apart, "{together:?} {apart:?}");
    }

    #[test]
    fn a_rebuild_is_timed_only_when_its_fill_came() {
        let metrics = metrics(1);
        let worker = metrics.worker(0);
        for &end in LeaseEnd::ALL {
            worker.lease_ended(0, end, 40 * MS);
        }
        let page = scrape(&metrics);
        assert_eq!(page.samples["kennel_rebuild_duration_seconds_count{rule=\"pages\"}"], 2.0);
        assert_eq!(page.samples["kennel_rebuild_duration_seconds_sum{rule=\"pages\"}"], 0.08);
    }

    #[test]
    fn a_lease_that_ends_on_another_worker_leaves_the_gauge_at_zero() {
        let metrics = metrics(2);
        metrics.worker(0).lease_granted();
        metrics.worker(0).lease_granted();
        metrics.worker(1).lease_ended(0, LeaseEnd::Filled, MS);
        assert_eq!(scrape(&metrics).samples["kennel_leases_live{}"], 1.0);
        metrics.worker(1).lease_ended(0, LeaseEnd::Lost, MS);
        assert_eq!(scrape(&metrics).samples["kennel_leases_live{}"], 0.0);
        // Read in the middle of a move between workers, the sum may be negative for a moment.
        metrics.worker(1).lease_ended(0, LeaseEnd::Lost, MS);
        assert_eq!(scrape(&metrics).samples["kennel_leases_live{}"], 0.0);
    }

    #[test]
    fn a_server_is_down_as_soon_as_one_worker_has_given_it_up() {
        let metrics = metrics(3);
        let up = |metrics: &Metrics| metrics.servers_up()[1].1;
        assert_eq!(up(&metrics), None);
        metrics.worker(0).upstream_connected(1, true);
        metrics.worker(1).upstream_connected(1, true);
        assert_eq!(up(&metrics), Some(true));
        metrics.worker(1).upstream_up(1, false);
        assert_eq!(up(&metrics), Some(false));
        assert_eq!(scrape(&metrics).samples["kennel_upstream_up{pool=\"main\",server=\"b:11211\"}"], 0.0);
        metrics.worker(1).upstream_up(1, true);
        assert_eq!(up(&metrics), Some(true));
        assert_eq!(metrics.servers_up()[0].1, None);
    }

    #[test]
    fn requests_in_flight_are_those_that_have_not_ended() {
        let metrics = metrics(2);
        for worker in [0, 1] {
            metrics.worker(worker).upstream_sent(0);
            metrics.worker(worker).upstream_sent(0);
            metrics.worker(worker).upstream_ended(0, UpstreamOutcome::Timeout, MS, 1);
            metrics.worker(worker).upstream_refused(0, UpstreamOutcome::Overloaded);
        }
        let page = scrape(&metrics);
        assert_eq!(page.samples["kennel_upstream_in_flight{pool=\"main\",server=\"a:11211\"}"], 2.0);
        let overloaded =
            "kennel_upstream_requests_total{pool=\"main\",server=\"a:11211\",outcome=\"overloaded\"}";
        assert_eq!(page.samples[overloaded], 2.0);
    }

    #[test]
    fn no_count_is_lost_between_workers_that_count_at_once() {
        let metrics = metrics(2);
        // Enough rounds that the threads overlap however they are scheduled.
        let (start, rounds) = (std::sync::Barrier::new(4), 200_000);
        std::thread::scope(|scope| {
            let start = &start;
            for at in 0..4 {
                // Two threads count leases on each worker; only one of them counts requests.
                let worker = metrics.worker(at % 2);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..rounds {
                        worker.lease_granted();
                        worker.lease_ended(0, LeaseEnd::Filled, MS);
                        if at < 2 {
                            worker.request(0, Command::Get, Outcome::Hit, MS);
                        }
                    }
                });
            }
            for _ in 0..20 {
                scrape(&metrics);
            }
        });
        let totals = &metrics.rule_totals()[0];
        assert_eq!((totals.hits, totals.rebuilds), (2 * rounds, 4 * rounds));
        assert_eq!(scrape(&metrics).samples["kennel_leases_live{}"], 0.0);
    }

    #[test]
    fn totals_count_every_kind_of_miss_and_come_in_the_order_of_the_rules() {
        let metrics = metrics(1);
        let worker = metrics.worker(0);
        for outcome in [Outcome::Miss, Outcome::MissWon, Outcome::MissHeld, Outcome::Stale, Outcome::Stored] {
            worker.request(1, Command::Gets, outcome, MS);
        }
        worker.request(7, Command::Get, Outcome::Hit, MS);
        let totals = metrics.rule_totals();
        let names: Vec<_> = totals.iter().map(|t| t.rule.as_str()).collect();
        assert_eq!(names, ["pages", "users", "none"]);
        assert_eq!((totals[1].hits, totals[1].stale, totals[1].misses, totals[1].rebuilds), (0, 1, 3, 0));
        assert_eq!(totals[2].hits, 1, "an index past the last rule is none");
    }

    #[test]
    fn names_that_repeat_or_need_escaping_still_give_a_page_that_prometheus_takes() {
        let rules = ["none", "a", "a", "a#2", "q\"\\\n"].map(str::to_owned).to_vec();
        let servers = vec![server("p", "s"), server("q", "s"), server("p", "s")];
        let metrics = Metrics::new(rules, servers, 1);
        let worker = metrics.worker(0);
        (0..6).for_each(|rule| worker.request(rule, Command::Get, Outcome::Hit, MS));
        let page = scrape(&metrics);
        for rule in ["none", "none#2", "a", "a#2", "a#2#2", "q\\\"\\\\\\n"] {
            let series = format!("kennel_requests_total{{rule=\"{rule}\",command=\"get\",outcome=\"hit\"}}");
            assert_eq!(page.samples.get(&series), Some(&1.0), "{series} in {:?}", page.samples.keys());
        }
        assert!(page.samples.contains_key("kennel_upstream_in_flight{pool=\"p\",server=\"s#2\"}"));
        assert!(page.samples.contains_key("kennel_upstream_in_flight{pool=\"q\",server=\"s\"}"));
    }

    #[test]
    fn a_failed_reload_keeps_the_time_of_the_configuration_in_force() {
        let metrics = metrics(1);
        metrics.config_read(true, 5_000);
        metrics.config_read(false, 9_000);
        let page = scrape(&metrics);
        assert_eq!(page.samples["kennel_config_last_reload_successful{}"], 0.0);
        assert_eq!(page.samples["kennel_config_last_reload_timestamp_seconds{}"], 5.0);
    }
}
