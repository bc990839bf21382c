//! Every metric there is: its name, type, labels and help. docs/metrics.md shows the same table, and a test holds it to it.

use super::labels::{
    AuthOutcome, ClientsAre, Command, DropReason, LeaseEnd, Limit, Outcome, PairedWith, TlsOutcome,
    UpstreamOutcome, WaitEnd,
};

/// What Prometheus makes of a metric's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size; in seconds.
    Histogram,
}

impl Kind {
    /// As in a `# TYPE` line.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// As exposed.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels, in the order its series give them.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub help: &'static str,
}

macro_rules! table {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) const $id: Family =
            Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)+
        /// All metrics, in the order of the documentation.
        pub const TABLE: &[Family] = &[$($id),+];
    };
}

table! {
    REQUESTS = Counter "kennel_requests_total" ["rule", "command", "outcome"]
        "Requests answered, one per key: a get of three keys counts three times.";
    REQUEST_DURATION = Histogram "kennel_request_duration_seconds" ["rule"]
        "Time from a request being parsed to its answer being ready, waiting included.";
    STALE_AGE = Histogram "kennel_stale_age_seconds" ["rule"]
        "How long after its expiry a stale value was served.";
    LEASES = Counter "kennel_leases_total" ["rule", "end"]
        "Leases that ended, by how.";
    LEASES_LIVE = Gauge "kennel_leases_live" []
        "Leases now held by clients of this sidecar.";
    REBUILD_DURATION = Histogram "kennel_rebuild_duration_seconds" ["rule"]
        "Time from the miss that granted a lease to its fill, whether that was stored or dropped.";
    FILLS_DROPPED = Counter "kennel_fills_dropped_total" ["rule", "why"]
        "Fills that were answered STORED and not kept.";
    WAITS = Counter "kennel_waits_total" ["rule", "end"]
        "Waits for another client's fill that ended, by how.";
    WAITERS = Gauge "kennel_waiters" []
        "Requests now waiting for another client's fill.";
    VALUES_PLAIN = Counter "kennel_values_plain_total" ["rule"]
        "Guarded values stored without an envelope because they were too large with it.";
    NEAR_HITS = Counter "kennel_near_hits_total" ["rule"]
        "Hits that no server was asked for: of a value kept near, or of another client's read.";
    NEAR_BYTES = Gauge "kennel_near_bytes" []
        "Memory that the values kept near take.";
    TAG_BUMPS = Counter "kennel_tag_bumps_total" []
        "Tags bumped through this sidecar.";
    UPSTREAM_REQUESTS = Counter "kennel_upstream_requests_total" ["pool", "server", "outcome"]
        "Requests to a server that ended, by how.";
    UPSTREAM_DURATION = Histogram "kennel_upstream_request_duration_seconds" ["pool", "server"]
        "Time from a request being queued for a server to its end, however it ended.";
    UPSTREAM_SHARED = Counter "kennel_upstream_shared_reads_total" ["pool", "server"]
        "Reads answered with what another client's read of the same was, which waited to be sent.";
    UPSTREAM_IN_FLIGHT = Gauge "kennel_upstream_in_flight" ["pool", "server"]
        "Requests to a server that have not ended yet.";
    UPSTREAM_UP = Gauge "kennel_upstream_up" ["pool", "server"]
        "1 while no worker has given the server up, 0 as soon as one has.";
    UPSTREAM_GUARDS = Gauge "kennel_upstream_guards" ["pool", "server"]
        "1 if the server can do what the guard needs, 0 if not: then its guarded keys are misses and cannot be stored.";
    UPSTREAM_CONNECTIONS = Counter "kennel_upstream_connections_total" ["pool", "server"]
        "Connections to a server that were established.";
    CLIENT_CONNECTIONS = Gauge "kennel_client_connections" []
        "Clients now connected.";
    CLIENT_CONNECTIONS_TOTAL = Counter "kennel_client_connections_total" []
        "Clients accepted.";
    CLIENT_CONNECTIONS_REFUSED = Counter "kennel_client_connections_refused_total" []
        "Clients turned away because max_connections were connected.";
    AUTHENTICATIONS = Counter "kennel_authentications_total" ["outcome"]
        "Attempts of clients at listeners with an auth_file, by what they were told.";
    TLS_HANDSHAKES = Counter "kennel_tls_handshakes_total" ["outcome"]
        "TLS handshakes with clients that ended, by how.";
    CLIENTS_BINARY = Counter "kennel_client_connections_binary_total" []
        "Clients refused because they spoke the binary protocol.";
    SET_PAIRS = Counter "kennel_set_pairs_total" ["miss"]
        "Sets at listeners with clients = \"auto\", by whose connection was told the miss that they may end.";
    CLIENTS_CHANGES = Counter "kennel_clients_mode_changes_total" ["to"]
        "How often it was learnt anew whether the clients of a listener have pools.";
    LIMIT_REACHED = Counter "kennel_limit_reached_total" ["limit"]
        "How often clients reached a limit.";
    BYTES_READ = Counter "kennel_bytes_read_total" []
        "Bytes read from clients.";
    BYTES_WRITTEN = Counter "kennel_bytes_written_total" []
        "Bytes written to clients.";
    BUILD_INFO = Gauge "kennel_build_info" ["version", "revision"]
        "Always 1; the labels say what is running.";
    RELOAD_SUCCESSFUL = Gauge "kennel_config_last_reload_successful" []
        "1 if the last attempt to read the configuration succeeded, else 0 and the one before is in force.";
    RELOAD_TIMESTAMP = Gauge "kennel_config_last_reload_timestamp_seconds" []
        "Unix time at which the configuration in force was read.";
    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "User and system time spent.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" []
        "Memory held in RAM.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" []
        "Memory reserved.";
    PROCESS_THREADS = Gauge "process_threads" []
        "Threads.";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" []
        "Open file descriptors, sockets included.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "How many file descriptors may be open.";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "Unix time at which the process started.";
}

/// The tables of docs/metrics.md, in Markdown: the metrics, then the values of their closed labels.
pub fn markdown() -> String {
    let mut page = String::from("| name | type | labels | what it counts |\n|---|---|---|---|\n");
    for family in TABLE {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (family.name, family.kind.word(), family.help);
        page += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
    }
    page += "\n| label | of | values |\n|---|---|---|\n";
    let mut row = |label: &str, of: &Family, words: Vec<&str>| {
        page += &format!("| `{label}` | `{}` | {} |\n", of.name, words.join(", "));
    };
    row("command", &REQUESTS, Command::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &REQUESTS, Outcome::ALL.iter().map(|v| v.word()).collect());
    row("end", &LEASES, LeaseEnd::ALL.iter().map(|v| v.word()).collect());
    row("why", &FILLS_DROPPED, DropReason::ALL.iter().map(|v| v.word()).collect());
    row("end", &WAITS, WaitEnd::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &UPSTREAM_REQUESTS, UpstreamOutcome::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &AUTHENTICATIONS, AuthOutcome::ALL.iter().map(|v| v.word()).collect());
    row("outcome", &TLS_HANDSHAKES, TlsOutcome::ALL.iter().map(|v| v.word()).collect());
    row("miss", &SET_PAIRS, PairedWith::ALL.iter().map(|v| v.word()).collect());
    row("to", &CLIENTS_CHANGES, ClientsAre::ALL.iter().map(|v| v.word()).collect());
    row("limit", &LIMIT_REACHED, Limit::ALL.iter().map(|v| v.word()).collect());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_page_shows_exactly_this_table() {
        let page = include_str!("../../docs/metrics.md");
        let (_, rest) = page.split_once("<!-- table -->\n\n").expect("the table's beginning is marked");
        let (shown, _) = rest.split_once("\n<!-- end of table -->").expect("the table's end is marked");
        assert!(shown == markdown(), "docs/metrics.md should show between its marks:\n\n{}", markdown());
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for family in TABLE {
            let Family { name, kind, help, .. } = family;
            assert!(name.starts_with("kennel_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['|', '\n']), "{help}");
        }
    }
}
