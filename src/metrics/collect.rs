//! What a scrape returns: the counters of all workers, as Prometheus's families.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::cells::{AGE, Buckets, LATENCY, REBUILD};
use super::counts::{ConfigInfo, Counts, State, gauge};
use super::labels::{
    AuthOutcome, ClientMode, Command, ConnectFailure, DropReason, ErrorCause, HealthState, LeaseEnd, Limit,
    LockEnd, Outcome, PairedWith, Place, StaleReason, TlsOutcome, TlsSession, UpstreamOutcome, WaitEnd,
};
use super::table::{self, Family, MetricType, TABLE};
use super::{layout, process};

/// Sums the counters of all workers.
pub(super) struct Collect {
    state: Arc<State>,
    descs: Vec<Desc>,
}

impl Collect {
    pub(super) fn new(state: Arc<State>) -> Collect {
        let desc = |family: &Family| {
            let labels = family.labels.iter().map(|&label| label.to_owned()).collect();
            Desc::new(family.name.to_owned(), family.help.to_owned(), labels, HashMap::new())
                .expect("the table's names are legal, which every test that renders proves")
        };
        Collect { state, descs: TABLE.iter().map(desc).collect() }
    }
}

impl Collector for Collect {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let mut page = Page(Vec::with_capacity(TABLE.len()));
        let counts = &*self.state.counts();
        by_rule(counts, &mut page);
        by_kind(counts, &mut page);
        by_server(counts, &mut page);
        failover(counts, &mut page);
        discovery(&self.state, &mut page);
        global(counts, &mut page);
        config(&counts.config, &self.state, &mut page);
        of_process(&mut page);
        page.0
    }
}

/// The families that are not by rule, and the requests of all rules. The cost is independent of the number of rules.
pub(super) fn without_rules(state: &State) -> Vec<proto::MetricFamily> {
    let mut page = Page(Vec::new());
    let counts = &*state.counts();
    let mut requests = Series { family: REQUESTS_OF_ALL_RULES, metrics: Vec::new() };
    for &command in Command::ALL {
        for &outcome in Outcome::ALL {
            let count = counts.own(layout::answered(command, outcome));
            requests.count(&[command.word(), outcome.word()], count);
        }
    }
    page.extend([requests]);
    by_server(counts, &mut page);
    failover(counts, &mut page);
    global(counts, &mut page);
    config(&counts.config, state, &mut page);
    of_process(&mut page);
    page.0.retain(|family| !family.get_metric().is_empty());
    page.0
}

/// [`table::REQUESTS`] without its rules.
const REQUESTS_OF_ALL_RULES: Family = Family { labels: &["command", "outcome"], ..table::REQUESTS };

fn by_rule(counts: &Counts, page: &mut Page) {
    let mut requests = Series::of(table::REQUESTS);
    let mut durations = Series::of(table::REQUEST_DURATION);
    let mut ages = Series::of(table::STALE_AGE);
    let mut stale = Series::of(table::STALE);
    let mut leases = Series::of(table::LEASES);
    let mut rebuilds = Series::of(table::REBUILD_DURATION);
    let mut dropped = Series::of(table::FILLS_DROPPED);
    let mut waits = Series::of(table::WAITS);
    let mut stale_rejected = Series::of(table::STALE_REJECTED);
    let mut plain = Series::of(table::VALUES_PLAIN);
    let mut near = Series::of(table::NEAR_HITS);
    let mut locks = Series::of(table::LOCKS);
    let mut slow = Series::of(table::SLOW_REQUESTS);
    let mut observed = Series::of(table::OBSERVED_BUILDS);
    let mut spared = Series::of(table::OBSERVED_SPARED);
    let mut observed_time = Series::of(table::OBSERVED_SECONDS);
    let mut spared_time = Series::of(table::OBSERVED_SPARED_SECONDS);
    let mut at_once = Series::of(table::OBSERVED_AT_ONCE);
    let mut of_share = Series::of(table::SHARE_BUILDS);
    let mut overlaps = Series::of(table::SHARE_OVERLAPS);
    for (rule, name) in counts.rules.iter().enumerate() {
        for &command in Command::ALL {
            for &outcome in Outcome::ALL {
                let count = counts.of_rule(rule, layout::request(command, outcome));
                requests.count(&[name, command.word(), outcome.word()], count);
            }
        }
        durations.histogram(&[name], &LATENCY, |cell| counts.of_rule(rule, layout::DURATION + cell));
        ages.histogram(&[name], &AGE, |cell| counts.of_rule(rule, layout::STALE_AGE + cell));
        for &why in StaleReason::ALL {
            stale.count(&[name, why.word()], counts.of_rule(rule, layout::stale(why)));
        }
        for &end in LeaseEnd::ALL {
            leases.count(&[name, end.word()], counts.shared_of_rule(rule, layout::lease(end)));
        }
        rebuilds.histogram(&[name], &REBUILD, |cell| {
            counts.shared_of_rule(rule, layout::REBUILD_DURATION + cell)
        });
        for &why in DropReason::ALL {
            dropped.count(&[name, why.word()], counts.shared_of_rule(rule, layout::dropped(why)));
        }
        for &end in WaitEnd::ALL {
            waits.count(&[name, end.word()], counts.shared_of_rule(rule, layout::wait(end)));
        }
        stale_rejected.count(&[name], counts.of_rule(rule, layout::STALE_REJECTED));
        plain.count(&[name], counts.shared_of_rule(rule, layout::PLAIN));
        near.count(&[name], counts.of_rule(rule, layout::NEAR_HITS));
        slow.count(&[name], counts.of_rule(rule, layout::SLOW));
        let builds = counts.of_rule(rule, layout::SHARE_BUILDS);
        of_share.count(&[name], builds);
        if builds > 0 {
            overlaps.value(&[name], counts.of_rule(rule, layout::SHARE_OVERLAPS) as f64);
        }
        let builds = counts.of_rule(rule, layout::OBSERVED_BUILDS);
        observed.count(&[name], builds);
        if builds > 0 {
            // A rule that has builds has all of these, so that a ratio of two is 0 and not absent.
            let seconds = |cell| counts.of_rule(rule, cell) as f64 / 1e6;
            spared.value(&[name], counts.of_rule(rule, layout::OBSERVED_SPARED) as f64);
            observed_time.value(&[name], seconds(layout::OBSERVED_TIME));
            spared_time.value(&[name], seconds(layout::OBSERVED_SPARED_TIME));
            at_once.value(&[name], counts.most_of_rule(rule, layout::OBSERVED_AT_ONCE) as f64);
        }
        for &end in LockEnd::ALL {
            locks.count(&[name, end.word()], counts.of_rule(rule, layout::lock(end)));
        }
    }
    page.extend([observed, spared, observed_time, spared_time, at_once, of_share, overlaps]);
    page.extend([
        requests,
        durations,
        ages,
        stale,
        stale_rejected,
        leases,
        rebuilds,
        dropped,
        waits,
        plain,
        slow,
        near,
        locks,
    ]);
    page.value(table::NEAR_BYTES, counts.own(layout::NEAR_BYTES) as f64);
}

/// A rule that is no longer there is not in the sums: a kind restarts from less when its rule is removed.
fn by_kind(counts: &Counts, page: &mut Page) {
    let mut requests = Series::of(table::STRUCTURE_REQUESTS);
    let mut rules: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (name, kind) in &counts.config.structures {
        let at = counts.rules.iter().position(|rule| rule == name);
        rules.entry(kind).or_default().extend(at);
    }
    for (kind, rules) in rules {
        for &command in Command::ALL {
            for &outcome in Outcome::ALL {
                let cell = layout::request(command, outcome);
                let count = rules.iter().map(|&rule| counts.of_rule(rule, cell)).sum();
                requests.count(&[kind, command.word(), outcome.word()], count);
            }
        }
    }
    page.extend([requests]);
}

fn by_server(counts: &Counts, page: &mut Page) {
    let mut requests = Series::of(table::UPSTREAM_REQUESTS);
    let mut durations = Series::of(table::UPSTREAM_DURATION);
    let mut shared = Series::of(table::UPSTREAM_SHARED);
    let mut in_flight = Series::of(table::UPSTREAM_IN_FLIGHT);
    let mut up = Series::of(table::UPSTREAM_UP);
    let mut healthy = Series::of(table::UPSTREAM_HEALTHY);
    let mut changes = Series::of(table::UPSTREAM_HEALTH_CHANGES);
    let mut guards = Series::of(table::UPSTREAM_GUARDS);
    let mut connections = Series::of(table::UPSTREAM_CONNECTIONS);
    let mut failures = Series::of(table::UPSTREAM_CONNECTION_FAILURES);
    let mut sessions = Series::of(table::UPSTREAM_TLS_HANDSHAKES);
    for (server, name) in counts.servers.iter().enumerate() {
        let labels: [&str; 2] = [&name.pool, &name.server];
        for &outcome in UpstreamOutcome::ALL {
            let count = counts.of_server(server, layout::upstream(outcome));
            requests.count(&[&name.pool, &name.server, outcome.word()], count);
        }
        durations
            .histogram(&labels, &LATENCY, |cell| counts.of_server(server, layout::UPSTREAM_DURATION + cell));
        shared.count(&labels, counts.of_server(server, layout::SHARED));
        in_flight.value(&labels, gauge(counts.of_server(server, layout::IN_FLIGHT)) as f64);
        if let Some(is_up) = counts.all_agree(server, layout::UP) {
            up.value(&labels, f64::from(is_up));
            let unhealthy = gauge(counts.of_server(server, layout::UNHEALTHY));
            healthy.value(&labels, f64::from(unhealthy == 0));
        }
        for &to in HealthState::ALL {
            let count = counts.of_server(server, layout::health_changes(to));
            changes.count(&[&name.pool, &name.server, to.word()], count);
        }
        if let Some(can_guard) = counts.all_agree(server, layout::GUARDS) {
            guards.value(&labels, f64::from(can_guard));
        }
        connections.count(&labels, counts.of_server(server, layout::CONNECTIONS));
        for &reason in ConnectFailure::ALL {
            let count = counts.of_server(server, layout::connect_failure(reason));
            failures.count(&[&name.pool, &name.server, reason.word()], count);
        }
        for &session in TlsSession::ALL {
            let count = counts.of_server(server, layout::tls_session(session));
            sessions.count(&[&name.pool, &name.server, session.word()], count);
        }
    }
    page.extend([requests, durations, shared, in_flight, up, healthy, changes, guards, connections]);
    page.extend([failures, sessions]);
}

fn failover(counts: &Counts, page: &mut Page) {
    let mut place = Series::of(table::FAILOVER_PLACE);
    let mut view_valid = Series::of(table::FAILOVER_VIEW_VALID);
    let mut unreachable = Series::of(table::FAILOVER_UNREACHABLE);
    let mut changes = Series::of(table::FAILOVER_CHANGES);
    let mut suspicions = Series::of(table::FAILOVER_SUSPICIONS);
    for (server, name) in counts.servers.iter().enumerate() {
        let Some(state) = counts.failover.as_ref().and_then(|source| source.state(server)) else { continue };
        let labels: [&str; 2] = [&name.pool, &name.server];
        if let Some(standby) = state.standby {
            place.value(&labels, f64::from(u8::from(standby) + u8::from(standby && state.drained)));
        }
        view_valid.value(&labels, f64::from(state.view_valid));
        unreachable.value(&labels, f64::from(state.unreachable_here));
        for &to in Place::ALL {
            let count = match to {
                Place::Own => state.moved_back,
                Place::Standby => state.moved_to_standby,
            };
            changes.count(&[&name.pool, &name.server, to.word()], count);
        }
        suspicions.count(&labels, state.suspicions);
    }
    let mut placements = Series::of(table::POOL_PLACEMENTS);
    let mut unknown = Series::of(table::POOL_PLACEMENTS_UNKNOWN);
    let mut rules = Series::of(table::POOL_RULES_DIFFER);
    for state in counts.failover.as_ref().map(|source| source.placements()).unwrap_or_default() {
        placements.value(&[&state.pool], state.in_use as f64);
        unknown.value(&[&state.pool], state.unknown as f64);
        rules.value(&[&state.pool], state.other_rules as f64);
    }
    page.extend([place, view_valid, unreachable, changes, suspicions, placements, unknown, rules]);
    let mut missing = Series::of(table::COPIES_MISSING);
    let mut due = Series::of(table::COPIES_SERVERS_DUE);
    let mut repaired = Series::of(table::COPIES_REPAIRED);
    for state in counts.failover.as_ref().map(|source| source.repairs()).unwrap_or_default() {
        missing.value(&[&state.pool], state.missing as f64);
        due.value(&[&state.pool], state.servers_due as f64);
        repaired.value(&[&state.pool], state.repaired as f64);
    }
    page.extend([missing, due, repaired]);
}

fn discovery(state: &State, page: &mut Page) {
    let mut servers = Series::of(table::DISCOVERY_SERVERS);
    let mut failures = Series::of(table::DISCOVERY_FAILURES);
    let mut success = Series::of(table::DISCOVERY_SUCCESS);
    let mut step = Series::of(table::DISCOVERY_STEP);
    for pool in state.discovery.get().map(|source| source.pools()).unwrap_or_default() {
        for entry in &pool.entries {
            let labels: [&str; 2] = [&pool.pool, &entry.entry];
            servers.value(&labels, entry.servers as f64);
            failures.count(&labels, entry.failures);
            success.value(&labels, entry.last_success_ms.unwrap_or_default() as f64 / 1000.0);
        }
        step.value(&[&pool.pool], f64::from(pool.step));
    }
    page.extend([servers, failures, success, step]);
}

fn global(counts: &Counts, page: &mut Page) {
    page.value(table::LEASES_LIVE, gauge(counts.shared(layout::LEASES_LIVE)) as f64);
    page.value(table::LOCKS_HELD, gauge(counts.own(layout::LOCKS_HELD)) as f64);
    let outage = |at| gauge(counts.shared(at)) as f64;
    page.value(table::OUTAGE_VALUES, outage(layout::OUTAGE_VALUES));
    page.value(table::OUTAGE_BYTES, outage(layout::OUTAGE_BYTES));
    page.value(table::WAITERS, gauge(counts.shared(layout::WAITERS)) as f64);
    page.value(table::TAG_BUMPS, counts.shared(layout::BUMPS) as f64);
    page.value(table::CLIENT_CONNECTIONS, gauge(counts.own(layout::CLIENTS)) as f64);
    page.value(table::CLIENT_CONNECTIONS_TOTAL, counts.own(layout::CLIENTS_TOTAL) as f64);
    page.value(table::CLIENT_CONNECTIONS_REFUSED, counts.own(layout::CLIENTS_REFUSED) as f64);
    let mut authentications = Series::of(table::AUTHENTICATIONS);
    for &outcome in AuthOutcome::ALL {
        authentications.count(&[outcome.word()], counts.own(layout::authentication(outcome)));
    }
    let mut handshakes = Series::of(table::TLS_HANDSHAKES);
    for &outcome in TlsOutcome::ALL {
        handshakes.count(&[outcome.word()], counts.own(layout::handshake(outcome)));
    }
    page.extend([authentications, handshakes]);
    page.value(table::CLIENTS_BINARY, counts.own(layout::CLIENTS_BINARY) as f64);
    page.value(table::CLIENTS_RECEIVED, counts.own(layout::CLIENTS_RECEIVED) as f64);
    let mut pairs = Series::of(table::SET_PAIRS);
    for &miss in PairedWith::ALL {
        pairs.count(&[miss.word()], counts.own(layout::pair(miss)));
    }
    let mut changes = Series::of(table::CLIENTS_CHANGES);
    for &to in ClientMode::ALL {
        changes.count(&[to.word()], counts.own(layout::client_mode(to)));
    }
    page.extend([pairs, changes]);
    let mut errors = Series::of(table::SERVER_ERRORS);
    for &cause in ErrorCause::ALL {
        errors.count(&[cause.word()], counts.own(layout::server_error(cause)));
    }
    let mut limits = Series::of(table::LIMIT_REACHED);
    for &limit in Limit::ALL {
        limits.count(&[limit.word()], counts.own(layout::limit(limit)));
    }
    page.extend([errors, limits]);
    page.value(table::BYTES_READ, counts.own(layout::BYTES_READ) as f64);
    page.value(table::BYTES_WRITTEN, counts.own(layout::BYTES_WRITTEN) as f64);
    page.value(table::TRACE_EVENTS, counts.own(layout::TRACE_EVENTS) as f64);
    page.value(table::TRACE_DROPPED, counts.own(layout::TRACE_DROPPED) as f64);
    let mut build = Series::of(table::BUILD_INFO);
    build.value(&[env!("CARGO_PKG_VERSION"), env!("KENNEL_REVISION")], 1.0);
    page.extend([build]);
}

fn config(config: &ConfigInfo, state: &State, page: &mut Page) {
    page.value(table::TRACE_WATCHERS, state.watchers.load(Relaxed) as f64);
    let mut info = Series::of(table::CONFIG_INFO);
    if !config.hash.is_empty() {
        info.value(&[&config.hash], 1.0);
    }
    let mut expiry = Series::of(table::CERTIFICATE_EXPIRY);
    for (file, not_after) in &config.certificates {
        expiry.value(&[file], *not_after as f64);
    }
    page.extend([info, expiry]);
    let reload = state.reload.load(Relaxed);
    page.optional(table::RELOAD_SUCCESSFUL, (reload != 0).then_some(f64::from(reload == 2)));
    let reloaded_ms = state.reloaded_ms.load(Relaxed);
    page.optional(table::RELOAD_TIMESTAMP, (reloaded_ms != 0).then_some(reloaded_ms as f64 / 1000.0));
}

fn of_process(page: &mut Page) {
    let process = process::read();
    let cpu = process.user_seconds.zip(process.system_seconds);
    page.optional(table::PROCESS_CPU, cpu.map(|(user, system)| user + system));
    page.optional(table::PROCESS_RESIDENT, process.resident_bytes);
    page.optional(table::PROCESS_VIRTUAL, process.virtual_bytes);
    page.optional(table::PROCESS_THREADS, process.threads);
    page.optional(table::PROCESS_OPEN_FDS, process.open_fds);
    page.optional(table::PROCESS_MAX_FDS, process.max_fds);
    page.optional(table::PROCESS_START, process.start_seconds);
}

/// The families so far. The registry omits those without a series.
struct Page(Vec<proto::MetricFamily>);

impl Page {
    fn extend<const N: usize>(&mut self, series: [Series; N]) {
        self.0.extend(series.map(Series::finish));
    }

    fn value(&mut self, family: Family, value: f64) {
        self.optional(family, Some(value));
    }

    fn optional(&mut self, family: Family, value: Option<f64>) {
        let mut series = Series::of(family);
        if let Some(value) = value {
            series.value(&[], value);
        }
        self.extend([series]);
    }
}

/// The series of one family.
struct Series {
    family: Family,
    metrics: Vec<proto::Metric>,
}

impl Series {
    fn of(family: Family) -> Series {
        Series { family, metrics: Vec::new() }
    }

    fn metric(&self, labels: &[&str]) -> proto::Metric {
        debug_assert_eq!(labels.len(), self.family.labels.len(), "{}", self.family.name);
        let pair = |(name, value): (&&str, &&str)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        proto::Metric::from_label(self.family.labels.iter().zip(labels).map(pair).collect())
    }

    /// Adds a series of a counter unless it is 0.
    fn count(&mut self, labels: &[&str], count: u64) {
        if count != 0 {
            self.value(labels, count as f64);
        }
    }

    /// Adds a series of a counter or a gauge.
    fn value(&mut self, labels: &[&str], value: f64) {
        let mut metric = self.metric(labels);
        match self.family.kind {
            MetricType::Counter => {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            MetricType::Gauge => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            MetricType::Histogram => debug_assert!(false, "{} is a histogram", self.family.name),
        }
        self.metrics.push(metric);
    }

    /// Adds a series of a histogram unless nothing was observed. `cell` reads the buckets and, after them, the sum. The count is
    /// the sum of the buckets as read, so that the two agree even if a worker counts meanwhile.
    fn histogram(&mut self, labels: &[&str], buckets: &Buckets, cell: impl Fn(usize) -> u64) {
        let per_second = buckets.per_second as f64;
        let mut count = 0;
        let mut cumulative = Vec::with_capacity(buckets.bounds.len());
        for (at, &bound) in buckets.bounds.iter().enumerate() {
            count += cell(at);
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(bound as f64 / per_second);
            bucket.set_cumulative_count(count);
            cumulative.push(bucket);
        }
        count += cell(buckets.bounds.len());
        if count == 0 {
            return;
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(count);
        histogram.set_sample_sum(cell(buckets.width() - 1) as f64 / per_second);
        histogram.set_bucket(cumulative);
        let mut metric = self.metric(labels);
        metric.set_histogram(histogram);
        self.metrics.push(metric);
    }

    fn finish(self) -> proto::MetricFamily {
        let mut family = proto::MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_help(self.family.help.to_owned());
        family.set_field_type(match self.family.kind {
            MetricType::Counter => proto::MetricType::COUNTER,
            MetricType::Gauge => proto::MetricType::GAUGE,
            MetricType::Histogram => proto::MetricType::HISTOGRAM,
        });
        family.set_metric(self.metrics);
        family
    }
}
