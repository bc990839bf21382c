//! All metrics: name, type, labels and help. docs/metrics.md shows the same table; a test compares them.

use super::labels::{
    AuthOutcome, ClientMode, Command, ConnectFailure, DropReason, ErrorCause, HealthState, LeaseEnd, Limit,
    LockEnd, Outcome, PairedWith, Place, StaleReason, TlsOutcome, TlsSession, UpstreamOutcome, WaitEnd,
};

/// The type of a metric in Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// Only increases until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets; in seconds.
    Histogram,
}

impl MetricType {
    /// The word in a `# TYPE` line.
    pub fn word(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

/// A metric with all its series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Name under which it is exported.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricType,
    /// The names of its labels, in the order in which series have them.
    pub labels: &'static [&'static str],
    /// Text of its `# HELP` line, and of docs/metrics.md.
    pub help: &'static str,
}

macro_rules! table {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) const $id: Family =
            Family { name: $name, kind: MetricType::$kind, labels: &[$($label),*], help: $help };)+
        /// All metrics, in the order of docs/metrics.md.
        pub const TABLE: &[Family] = &[$($id),+];
    };
}

table! {
    REQUESTS = Counter "kennel_requests_total" ["rule", "command", "outcome"]
        "Requests answered, counted per key: a get of three keys counts three times.";
    STRUCTURE_REQUESTS = Counter "kennel_structure_requests_total" ["kind", "command", "outcome"]
        "Requests for structures answered, by the kind of the rule and counted per key. They are in kennel_requests_total too.";
    REQUEST_DURATION = Histogram "kennel_request_duration_seconds" ["rule"]
        "Time from when a request is parsed until its reply is ready, including waits.";
    STALE_AGE = Histogram "kennel_stale_age_seconds" ["rule"]
        "Time between the expiry of a stale value and serving it.";
    STALE = Counter "kennel_stale_total" ["rule", "why"]
        "Stale values served, by why they are stale.";
    STALE_REJECTED = Counter "kennel_stale_rejected_total" ["rule"]
        "Deletes and sets by which a client builds a value although it has just been served a stale one: it judges the age itself.";
    LEASES = Counter "kennel_leases_total" ["rule", "end"]
        "Leases that ended, by reason.";
    LEASES_LIVE = Gauge "kennel_leases_live" []
        "Leases that clients of this sidecar hold.";
    REBUILD_DURATION = Histogram "kennel_rebuild_duration_seconds" ["rule"]
        "Time from the miss that granted a lease to its fill, stored or dropped.";
    FILLS_DROPPED = Counter "kennel_fills_dropped_total" ["rule", "why"]
        "Fills that were dropped, by reason.";
    WAITS = Counter "kennel_waits_total" ["rule", "end"]
        "Waits for another client's fill that ended, by reason.";
    WAITERS = Gauge "kennel_waiters" []
        "Requests that wait for another client's fill.";
    VALUES_PLAIN = Counter "kennel_values_plain_total" ["rule"]
        "Guarded values stored without an envelope because they would be too large with it.";
    SLOW_REQUESTS = Counter "kennel_slow_requests_total" ["rule"]
        "Requests that took at least log.slow, including the time in which the client did not read the reply.";
    OBSERVED_BUILDS = Counter "kennel_observed_builds_total" ["rule"]
        "Values that clients built for observed keys: a miss, and the set or add that followed it from the same client.";
    OBSERVED_SPARED = Counter "kennel_observed_spared_builds_total" ["rule"]
        "Those of them that a guard would have spared: of the builds of one key that overlap, all but one.";
    OBSERVED_SECONDS = Counter "kennel_observed_build_seconds_total" ["rule"]
        "Time that these builds took, each from the miss to the store.";
    OBSERVED_SPARED_SECONDS = Counter "kennel_observed_spared_build_seconds_total" ["rule"]
        "Time that the builds took which a guard would have spared.";
    OBSERVED_AT_ONCE = Gauge "kennel_observed_builds_at_once" ["rule"]
        "The most builds of one observed key that overlapped, since the start.";
    SHARE_BUILDS = Counter "kennel_guarded_builds_total" ["rule"]
        "Values that clients built for the guarded keys of a rule with a share, counted as those of its observed keys are.";
    SHARE_OVERLAPS = Counter "kennel_guarded_overlapping_builds_total" ["rule"]
        "Those of them that overlapped with another build of the same key, which ended before.";
    NEAR_HITS = Counter "kennel_near_hits_total" ["rule"]
        "Hits served without a request to a server: from the near cache, or by joining another client's read.";
    NEAR_BYTES = Gauge "kennel_near_bytes" []
        "Memory used by the near cache.";
    OUTAGE_VALUES = Gauge "kennel_outage_values" []
        "Values kept in memory that were built while their server gave no answer.";
    OUTAGE_BYTES = Gauge "kennel_outage_bytes" []
        "Memory used by these values.";
    LOCKS_HELD = Gauge "kennel_locks_held" []
        "Locks, under rules with kind = \"lock\", that clients of this sidecar have.";
    LOCKS = Counter "kennel_locks_total" ["rule", "end"]
        "Locks that ended, by reason.";
    TAG_BUMPS = Counter "kennel_tag_bumps_total" []
        "Tags bumped through this sidecar.";
    UPSTREAM_REQUESTS = Counter "kennel_upstream_requests_total" ["pool", "server", "outcome"]
        "Requests to a server that ended, by outcome.";
    UPSTREAM_DURATION = Histogram "kennel_upstream_request_duration_seconds" ["pool", "server"]
        "Time from when a request is queued for a server until it ends, with any outcome.";
    UPSTREAM_SHARED = Counter "kennel_upstream_shared_reads_total" ["pool", "server"]
        "Reads answered with the reply to an identical read of another client that was not sent yet.";
    UPSTREAM_IN_FLIGHT = Gauge "kennel_upstream_in_flight" ["pool", "server"]
        "Requests to a server that have not ended.";
    UPSTREAM_UP = Gauge "kennel_upstream_up" ["pool", "server"]
        "1 if no worker considers the server down, otherwise 0.";
    UPSTREAM_HEALTHY = Gauge "kennel_upstream_healthy" ["pool", "server"]
        "1 if the server answers in time. If 0, it is sick or returning: requests to it fail at once, all or a part of them.";
    UPSTREAM_HEALTH_CHANGES = Counter "kennel_upstream_health_changes_total" ["pool", "server", "to"]
        "Changes of a server's health, by new state.";
    UPSTREAM_GUARDS = Gauge "kennel_upstream_guards" ["pool", "server"]
        "1 if the server supports what the guard needs. If 0, its guarded keys are misses and cannot be stored.";
    UPSTREAM_CONNECTIONS = Counter "kennel_upstream_connections_total" ["pool", "server"]
        "Connections established to a server.";
    UPSTREAM_CONNECTION_FAILURES = Counter "kennel_upstream_connection_failures_total" ["pool", "server", "reason"]
        "Attempts to connect to a server that failed, by reason.";
    UPSTREAM_TLS_HANDSHAKES = Counter "kennel_upstream_tls_handshakes_total" ["pool", "server", "session"]
        "TLS handshakes with a server that succeeded, by how the session began.";
    FAILOVER_PLACE = Gauge "kennel_failover_place" ["pool", "server"]
        "1 if the keys of the server are on its standby servers, 2 if an operator has drained it, 0 if they are on the server itself.";
    FAILOVER_VIEW_VALID = Gauge "kennel_failover_view_valid" ["pool", "server"]
        "1 if this sidecar knows where the keys of the server are. If 0, it neither reads nor changes guarded ones.";
    FAILOVER_UNREACHABLE = Gauge "kennel_failover_unreachable_here" ["pool", "server"]
        "1 if this sidecar cannot reach the server, but another one can. If 1, its guarded keys are not served here.";
    FAILOVER_CHANGES = Counter "kennel_failover_changes_total" ["pool", "server", "to"]
        "Times that this sidecar saw the keys of the server move, by where they moved to.";
    FAILOVER_SUSPICIONS = Counter "kennel_failover_suspicions_total" ["pool", "server"]
        "Times that this sidecar began to suspect the server to be dead.";
    POOL_PLACEMENTS = Gauge "kennel_pool_placements" ["pool"]
        "Different configurations of the pool's servers that the sidecars of the fleet use, that of this one included.";
    POOL_PLACEMENTS_UNKNOWN = Gauge "kennel_pool_placements_unknown" ["pool"]
        "Those of them that are not adjacent to that of this sidecar: invalidations are lost between them. Also the end of a change, if this sidecar goes back behind it.";
    POOL_RULES_DIFFER = Gauge "kennel_pool_rules_differ" ["pool"]
        "Sets of rules that other sidecars of the pool have and that differ from those of this one; 0 if all have the same.";
    COPIES_MISSING = Gauge "kennel_copies_missing" ["pool"]
        "Values of rules with copies of which this sidecar has found only one copy, and has not stored the second yet.";
    COPIES_SERVERS_DUE = Gauge "kennel_copies_servers_due" ["pool"]
        "Servers that may lack copies: nobody has repaired them since they restarted or since keys moved.";
    COPIES_REPAIRED = Counter "kennel_copies_repaired_total" ["pool"]
        "Copies that this sidecar has stored again.";
    DISCOVERY_SERVERS = Gauge "kennel_discovery_servers" ["pool", "entry"]
        "Servers that an entry of the configuration, such as dns+cache:11211, stands for.";
    DISCOVERY_FAILURES = Counter "kennel_discovery_failures_total" ["pool", "entry"]
        "Lookups of an entry that found no servers. Those found before remain in use.";
    DISCOVERY_SUCCESS = Gauge "kennel_discovery_last_success_timestamp_seconds" ["pool", "entry"]
        "When the servers of an entry were last found, in seconds since 1970; 0 if never.";
    DISCOVERY_STEP = Gauge "kennel_discovery_step" ["pool"]
        "The step of a change of discovered servers, 1 to 3; 0 if they do not change.";
    CLIENT_CONNECTIONS = Gauge "kennel_client_connections" []
        "Clients connected.";
    CLIENT_CONNECTIONS_TOTAL = Counter "kennel_client_connections_total" []
        "Clients accepted.";
    CLIENT_CONNECTIONS_REFUSED = Counter "kennel_client_connections_refused_total" []
        "Clients refused because max_connections were connected.";
    AUTHENTICATIONS = Counter "kennel_authentications_total" ["outcome"]
        "Authentication attempts at listeners with an auth_file, by outcome.";
    TLS_HANDSHAKES = Counter "kennel_tls_handshakes_total" ["outcome"]
        "TLS handshakes with clients that ended, by outcome.";
    CLIENTS_BINARY = Counter "kennel_client_connections_binary_total" []
        "Clients that have begun with the binary protocol.";
    SET_PAIRS = Counter "kennel_set_pairs_total" ["miss"]
        "Sets at listeners with clients = \"auto\", by which connection received the miss that they may end.";
    CLIENTS_RECEIVED = Counter "kennel_client_connections_received_total" []
        "Client connections received from the process that this one has taken over from.";
    CLIENTS_CHANGES = Counter "kennel_clients_mode_changes_total" ["to"]
        "Changes in whether the clients of a listener are taken to use connection pools.";
    SERVER_ERRORS = Counter "kennel_server_errors_total" ["cause"]
        "SERVER_ERROR replies to commands on keys, by cause.";
    LIMIT_REACHED = Counter "kennel_limit_reached_total" ["limit"]
        "Times that clients reached a limit.";
    BYTES_READ = Counter "kennel_bytes_read_total" []
        "Bytes read from clients.";
    BYTES_WRITTEN = Counter "kennel_bytes_written_total" []
        "Bytes written to clients.";
    TRACE_WATCHERS = Gauge "kennel_trace_watchers" []
        "Clients of GET /trace.";
    TRACE_EVENTS = Counter "kennel_trace_events_total" []
        "Events sent to clients of GET /trace.";
    TRACE_DROPPED = Counter "kennel_trace_events_dropped_total" []
        "Events dropped because a client of GET /trace did not take those before them.";
    BUILD_INFO = Gauge "kennel_build_info" ["version", "revision"]
        "Always 1; the labels identify the build.";
    CONFIG_INFO = Gauge "kennel_config_info" ["hash"]
        "1, with a hash of the settings of the configuration in force.";
    CERTIFICATE_EXPIRY = Gauge "kennel_tls_certificate_expiry_timestamp_seconds" ["file"]
        "Unix time at which the first certificate of this file of a listener or a pool expires; of a pool's ca, the last one.";
    RELOAD_SUCCESSFUL = Gauge "kennel_config_last_reload_successful" []
        "1 if the last attempt to read the configuration succeeded; 0 if it failed and the previous one remains in force.";
    RELOAD_TIMESTAMP = Gauge "kennel_config_last_reload_timestamp_seconds" []
        "Unix time at which the configuration in force was read.";
    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "CPU time in user and kernel mode.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" []
        "Resident memory.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" []
        "Virtual memory.";
    PROCESS_THREADS = Gauge "process_threads" []
        "Threads.";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" []
        "Open file descriptors, including sockets.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "Limit on open file descriptors.";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "Unix time at which the process started.";
}

/// The tables of docs/metrics.md, in Markdown: the metrics, then the values of the labels with a fixed set of values.
pub fn markdown() -> String {
    let mut page = String::from("| name | type | labels | meaning |\n|---|---|---|---|\n");
    for family in TABLE {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (family.name, family.kind.word(), family.help);
        page += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
    }
    page += "\n| label | metric | values |\n|---|---|---|\n";
    let mut row = |label: &str, of: &Family, words: Vec<&str>| {
        page += &format!("| `{label}` | `{}` | {} |\n", of.name, words.join(", "));
    };
    row("command", &REQUESTS, Command::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &REQUESTS, Outcome::ALL.iter().map(|v| v.word()).collect());
    row("why", &STALE, StaleReason::ALL.iter().map(|v| v.word()).collect());
    row("end", &LEASES, LeaseEnd::ALL.iter().map(|v| v.word()).collect());
    row("why", &FILLS_DROPPED, DropReason::ALL.iter().map(|v| v.word()).collect());
    row("end", &WAITS, WaitEnd::ALL.iter().map(|v| v.word()).collect());
    row("end", &LOCKS, LockEnd::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &UPSTREAM_REQUESTS, UpstreamOutcome::ALL.iter().map(|v| v.word()).collect());
    row("reason", &UPSTREAM_CONNECTION_FAILURES, ConnectFailure::ALL.iter().map(|v| v.word()).collect());
    row("session", &UPSTREAM_TLS_HANDSHAKES, TlsSession::ALL.iter().map(|v| v.word()).collect());
    row("to", &FAILOVER_CHANGES, Place::ALL.iter().map(|v| v.word()).collect());
    row("to", &UPSTREAM_HEALTH_CHANGES, HealthState::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &AUTHENTICATIONS, AuthOutcome::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &TLS_HANDSHAKES, TlsOutcome::ALL.iter().map(|v| v.word()).collect());
    row("miss", &SET_PAIRS, PairedWith::ALL.iter().map(|v| v.word()).collect());
    row("to", &CLIENTS_CHANGES, ClientMode::ALL.iter().map(|v| v.word()).collect());
    row("cause", &SERVER_ERRORS, ErrorCause::ALL.iter().map(|v| v.word()).collect());
    row("limit", &LIMIT_REACHED, Limit::ALL.iter().map(|v| v.word()).collect());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_page_shows_exactly_this_table() {
        let page = include_str!("../../docs/metrics.md");
        let (_, rest) = page.split_once("<!-- table -->\n\n").expect("a mark before the table");
        let (shown, _) = rest.split_once("\n<!-- end of table -->").expect("a mark after the table");
        assert!(shown == markdown(), "docs/metrics.md should contain between its marks:\n\n{}", markdown());
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for family in TABLE {
            let Family { name, kind, help, .. } = family;
            assert!(name.starts_with("kennel_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == MetricType::Counter, "{name}");
            assert!(*kind != MetricType::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['|', '\n']), "{help}");
        }
    }
}
