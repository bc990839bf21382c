use std::time::Duration;

use super::counts::{ConfigInfo, ServerName};
use super::discovery::{DiscoveredEntry, DiscoveredPool, DiscoverySource};
use super::exposition::{Exposition, read};
use super::failover::{FailoverSource, FailoverState, PlacementsState, RepairState};
use super::labels::{
    AuthOutcome, Command, ConnectFailure, DropReason, ErrorCause, HealthState, LeaseEnd, Limit, LockEnd,
    Outcome, PairedWith, StaleReason, TlsOutcome, TlsSession, UpstreamOutcome, WaitEnd,
};
use super::layout::NO_RULE;
use super::registry::Metrics;
use super::table::TABLE;
use super::worker::WorkerMetrics;

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

fn count_everything(metrics: &Metrics, worker: &WorkerMetrics) {
    for rule in [0, 1, NO_RULE] {
        for &command in Command::ALL {
            Outcome::ALL.iter().for_each(|&outcome| worker.request(rule, command, outcome, MS));
        }
        StaleReason::ALL.iter().for_each(|&why| worker.stale_served(rule, 1500 * MS, Some(why)));
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
        worker.stale_rejected(rule);
        worker.near_hit(rule);
        worker.observed_build(rule, MS, true, 2);
        worker.guarded_build(rule, true);
        worker.slow_request(rule);
    }
    for server in [0, 1] {
        worker.server(server).connected(true);
        HealthState::ALL.iter().for_each(|&to| worker.server(server).health(to, false));
        for &outcome in UpstreamOutcome::ALL {
            worker.server(server).sent();
            worker.server(server).shared();
            worker.server(server).ended(outcome, MS, 1);
        }
    }
    ConnectFailure::ALL.iter().for_each(|&reason| worker.server(0).connect_failed(reason));
    TlsSession::ALL.iter().for_each(|&session| worker.server(0).tls_session(session));
    worker.tag_bumped();
    worker.client_connected();
    worker.client_refused();
    AuthOutcome::ALL.iter().for_each(|&outcome| worker.authentication(outcome));
    TlsOutcome::ALL.iter().for_each(|&outcome| worker.handshake(outcome));
    worker.client_binary();
    worker.client_received();
    PairedWith::ALL.iter().for_each(|&miss| worker.set_paired(miss));
    [false, true].into_iter().for_each(|pooled| worker.clients_changed(pooled));
    Limit::ALL.iter().for_each(|&limit| worker.limit_reached(limit));
    ErrorCause::ALL.iter().for_each(|&cause| worker.server_error(cause));
    worker.lock_taken();
    LockEnd::ALL.iter().for_each(|&end| worker.lock_ended(0, end));
    worker.trace_event();
    worker.trace_event_dropped();
    worker.bytes_read(10);
    worker.bytes_written(20);
    metrics.config_read(true, 1_700_000_000_500);
    metrics.show_failover(std::sync::Arc::new(SecondServer));
    metrics.show_discovery(std::sync::Arc::new(OneEntry));
    let certificates = vec![("cert.pem".to_owned(), 1_800_000_000)];
    let structures = vec![("users".to_owned(), "counter")];
    metrics.show_config(ConfigInfo { hash: "0badcafe".to_owned(), certificates, structures });
}

/// The failover of one server of two.
struct SecondServer;

impl FailoverSource for SecondServer {
    fn state(&self, server: usize) -> Option<FailoverState> {
        let (standby, view_valid, unreachable_here) = (Some(true), true, true);
        let (moved_to_standby, moved_back, suspicions) = (3, 2, 4);
        (server == 1).then_some(FailoverState {
            standby,
            drained: false,
            view_valid,
            unreachable_here,
            moved_to_standby,
            moved_back,
            suspicions,
        })
    }

    fn placements(&self) -> Vec<PlacementsState> {
        vec![PlacementsState { pool: "main".into(), in_use: 3, unknown: 2, other_rules: 1 }]
    }

    fn repairs(&self) -> Vec<RepairState> {
        vec![RepairState { pool: "main".into(), servers_due: 1, missing: 3, repaired: 7 }]
    }
}

/// One pool whose servers change.
struct OneEntry;

impl DiscoverySource for OneEntry {
    fn pools(&self) -> Vec<DiscoveredPool> {
        let entry = DiscoveredEntry {
            entry: "dns+cache:11211".into(),
            servers: 3,
            failures: 7,
            last_success_ms: Some(1_700_000_000_250),
            error: None,
        };
        vec![DiscoveredPool { pool: "main".into(), step: 2, is_unknown: false, entries: vec![entry] }]
    }
}

#[test]
fn the_servers_of_an_entry_and_the_step_of_their_change_are_shown() {
    let metrics = metrics(1);
    metrics.show_discovery(std::sync::Arc::new(OneEntry));
    let samples = scrape(&metrics).samples;
    let of =
        |name: &str| samples[&format!("kennel_discovery_{name}{{pool=\"main\",entry=\"dns+cache:11211\"}}")];
    assert_eq!([of("servers"), of("failures_total")], [3.0, 7.0]);
    assert_eq!(of("last_success_timestamp_seconds"), 1_700_000_000.25);
    assert_eq!(samples["kennel_discovery_step{pool=\"main\"}"], 2.0);
}

#[test]
fn a_server_that_fails_over_is_shown_and_one_that_does_not_is_left_out() {
    let metrics = metrics(1);
    metrics.show_failover(std::sync::Arc::new(SecondServer));
    let samples = scrape(&metrics).samples;
    let of = |name: &str, labels: &str| {
        let series = |server| format!("kennel_failover_{name}{{pool=\"main\",server=\"{server}\"{labels}}}");
        assert_eq!(samples.get(&series("a:11211")), None);
        samples[&series("b:11211")]
    };
    assert_eq!([of("place", ""), of("view_valid", ""), of("unreachable_here", "")], [1.0; 3]);
    assert_eq!(of("changes_total", ",to=\"standby\""), 3.0);
    assert_eq!((of("changes_total", ",to=\"own\""), of("suspicions_total", "")), (2.0, 4.0));
    let placements = ["placements", "placements_unknown", "rules_differ"];
    assert_eq!(
        placements.map(|name| samples[&format!("kennel_pool_{name}{{pool=\"main\"}}")]),
        [3.0, 2.0, 1.0]
    );
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
fn what_was_never_counted_is_not_exported() {
    let metrics = metrics(2);
    let page = scrape(&metrics);
    for absent in ["kennel_requests_total", "kennel_upstream_up", "kennel_rebuild_duration_seconds"] {
        assert!(!page.families.contains_key(absent), "{absent}");
    }
    assert_eq!(page.samples["kennel_tag_bumps_total{}"], 0.0);
    metrics.worker(0).request(0, Command::Get, Outcome::Hit, MS);
    let page = scrape(&metrics);
    let requests: Vec<_> = page.samples.keys().filter(|s| s.starts_with("kennel_requests_total")).collect();
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
fn counting_several_at_once_equals_counting_one_by_one() {
    let [together, apart] = [(); 2].map(|()| metrics(1));
    let took = Duration::from_micros(70);
    let worker = together.worker(0);
    worker.requests(0, Command::Get, Outcome::Hit, took, 3);
    (0..5).for_each(|_| worker.server(0).sent());
    worker.server(0).ended(UpstreamOutcome::Ok, took, 4);
    let worker = apart.worker(0);
    (0..3).for_each(|_| worker.request(0, Command::Get, Outcome::Hit, took));
    (0..5).for_each(|_| worker.server(0).sent());
    (0..4).for_each(|_| worker.server(0).ended(UpstreamOutcome::Ok, took, 1));
    let [together, apart] = [together, apart].map(|metrics| {
        let mut samples = scrape(&metrics).samples;
        // The metrics of the process change between two scrapes.
        samples.retain(|name, _| name.starts_with("kennel_"));
        samples
    });
    assert!(together == apart, "{together:?} {apart:?}");
}

#[test]
fn a_rebuild_is_timed_only_if_its_lease_ended_with_a_fill() {
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
    // While a lease moves between workers, the sum may be negative for a moment.
    metrics.worker(1).lease_ended(0, LeaseEnd::Lost, MS);
    assert_eq!(scrape(&metrics).samples["kennel_leases_live{}"], 0.0);
}

#[test]
fn a_server_is_down_as_soon_as_one_worker_considers_it_down() {
    let metrics = metrics(3);
    let up = |metrics: &Metrics| metrics.servers_up()[1].1;
    assert_eq!(up(&metrics), None);
    metrics.worker(0).server(1).connected(true);
    metrics.worker(1).server(1).connected(true);
    assert_eq!(up(&metrics), Some(true));
    metrics.worker(1).server(1).up(false);
    assert_eq!(up(&metrics), Some(false));
    assert_eq!(scrape(&metrics).samples["kennel_upstream_up{pool=\"main\",server=\"b:11211\"}"], 0.0);
    metrics.worker(1).server(1).up(true);
    assert_eq!(up(&metrics), Some(true));
    assert_eq!(metrics.servers_up()[0].1, None);
}

#[test]
fn requests_in_flight_are_those_that_have_not_ended() {
    let metrics = metrics(2);
    for worker in [0, 1] {
        metrics.worker(worker).server(0).sent();
        metrics.worker(worker).server(0).sent();
        metrics.worker(worker).server(0).ended(UpstreamOutcome::Timeout, MS, 1);
        metrics.worker(worker).server(0).refused(UpstreamOutcome::Overloaded);
    }
    let page = scrape(&metrics);
    assert_eq!(page.samples["kennel_upstream_in_flight{pool=\"main\",server=\"a:11211\"}"], 2.0);
    let overloaded =
        "kennel_upstream_requests_total{pool=\"main\",server=\"a:11211\",outcome=\"overloaded\"}";
    assert_eq!(page.samples[overloaded], 2.0);
}

#[test]
fn no_count_is_lost_when_workers_count_concurrently() {
    let metrics = metrics(2);
    // Enough rounds for the threads to overlap under any scheduling.
    let (start, rounds) = (std::sync::Barrier::new(4), 200_000);
    std::thread::scope(|scope| {
        let start = &start;
        for at in 0..4 {
            // Two threads count leases on each worker, but only one counts requests.
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
    assert_eq!(totals[2].hits, 1, "an index past the last rule counts as none");
}

#[test]
fn repeated_names_and_names_that_need_escaping_give_a_valid_page() {
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

#[test]
fn under_the_next_configuration_a_rule_and_a_server_of_the_same_name_go_on_counting() {
    let metrics = metrics(1);
    let before = metrics.worker(0);
    before.request(0, Command::Get, Outcome::Hit, MS);
    before.request(1, Command::Get, Outcome::Hit, MS);
    before.request(NO_RULE, Command::Get, Outcome::Hit, MS);
    before.server(1).refused(UpstreamOutcome::Down);
    before.client_connected();
    let next = metrics.next(
        vec!["new".to_owned(), "pages".to_owned()],
        vec![server("main", "b:11211"), server("aux", "a:11211")],
    );
    let after = next.worker(0);
    metrics.switch_to(next);
    // A request that began before ends after.
    before.request(0, Command::Get, Outcome::Hit, MS);
    after.request(0, Command::Get, Outcome::Hit, MS);
    after.request(1, Command::Get, Outcome::Hit, MS);
    after.server(0).refused(UpstreamOutcome::Down);
    after.client_disconnected();
    let samples = scrape(&metrics).samples;
    let hits = |rule: &str| {
        let series = format!("kennel_requests_total{{rule=\"{rule}\",command=\"get\",outcome=\"hit\"}}");
        samples.get(&series).copied()
    };
    assert_eq!(["pages", "new", "users", "none"].map(hits), [Some(3.0), Some(1.0), None, Some(1.0)]);
    let down = |pool: &str, server: &str| {
        let labels = format!("pool=\"{pool}\",server=\"{server}\",outcome=\"down\"");
        samples.get(&format!("kennel_upstream_requests_total{{{labels}}}")).copied()
    };
    assert_eq!((down("main", "b:11211"), down("main", "a:11211")), (Some(2.0), None));
    assert_eq!(samples["kennel_client_connections{}"], 0.0);
}

#[test]
fn the_former_configuration_is_shown_until_the_next_one_is() {
    let metrics = Metrics::new(vec!["a".to_owned()], Vec::new(), 1);
    let shows = |hash: &str| metrics.render().contains(&format!("kennel_config_info{{hash=\"{hash}\"}} 1"));
    let info = |hash: &str| ConfigInfo { hash: hash.to_owned(), ..ConfigInfo::default() };
    metrics.show_config(info("former"));
    metrics.switch_to(metrics.next(vec!["b".to_owned()], Vec::new()));
    assert!(shows("former"), "{}", metrics.render());
    metrics.show_config(info("next"));
    assert!(shows("next") && !shows("former"));
}

#[test]
fn the_requests_of_a_kind_are_those_of_its_rules() {
    let rules = ["views", "votes", "rate", "pages"].map(str::to_owned).to_vec();
    let metrics = Metrics::new(rules, Vec::new(), 2);
    let structures = [("views", "counter"), ("votes", "counter"), ("rate", "window"), ("gone", "lock")];
    let structures = structures.map(|(rule, kind)| (rule.to_owned(), kind)).to_vec();
    metrics.show_config(ConfigInfo { structures, ..ConfigInfo::default() });
    for rule in 0..4 {
        metrics.worker(rule % 2).request(rule, Command::Incr, Outcome::Counted, MS);
    }
    let page = scrape(&metrics);
    let of_kinds: Vec<_> = page
        .samples
        .iter()
        .filter(|(series, _)| series.starts_with("kennel_structure_requests_total{"))
        .map(|(series, count)| (series.as_str(), *count))
        .collect();
    let series = |kind| {
        format!("kennel_structure_requests_total{{kind=\"{kind}\",command=\"incr\",outcome=\"counted\"}}")
    };
    assert_eq!(of_kinds, [(&*series("counter"), 2.0), (&*series("window"), 1.0)]);
}
