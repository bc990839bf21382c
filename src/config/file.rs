//! The configuration file as parsed: which keys exist, without checking their values.
//!
//! Deserializing must not fail, because serde stops at its first error and an operator needs to see all of them. Therefore
//! every value is kept as it is, a table of the wrong type is kept as [`Section::Wrong`], and unknown keys are collected in
//! `rest`. Validation reports them.

use std::collections::BTreeMap;

use config::{Value, ValueKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// A table or list of the file.
#[derive(Debug, Default)]
pub(super) enum Section<T> {
    #[default]
    Absent,
    Present(T),
    /// A value of another type.
    Wrong(Value),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match (&value.kind, T::deserialize(value.clone())) {
            (ValueKind::Nil, _) => Section::Absent,
            (_, Ok(it)) => Section::Present(it),
            (_, Err(_)) => Section::Wrong(value),
        })
    }
}

/// How the text of an environment variable is parsed when it overrides a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    Text,
    Number,
    /// `true` or `false`.
    Flag,
    /// Separated by commas.
    List,
}

/// Declares a table: its fields and, for the environment and for suggestions, its keys.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $key:literal: $type:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        pub(super) struct $name {
            $(#[serde(rename = $key)] pub(super) $field: Option<Value>,)*
            #[serde(flatten)]
            pub(super) rest: BTreeMap<String, Value>,
        }

        impl $name {
            pub(super) const KEYS: &'static [(&'static str, ValueType)] = &[$(($key, ValueType::$type)),*];
        }
    };
}

table!(
    /// `[listen]`
    Listen {
        tcp = "tcp": List,
        unix = "unix": List,
        unix_mode = "unix_mode": Text,
        max_connections = "max_connections": Number,
        idle_timeout = "idle_timeout": Text,
        max_buffered = "max_buffered": Text,
        workers = "workers": Number,
        flush_all = "flush_all": Text,
        clients = "clients": Text,
        drain_delay = "drain_delay": Text,
        takeover_timeout = "takeover_timeout": Text,
    }
);

table!(
    /// An entry of `listen.tcp` that is a table.
    TcpEntry {
        address = "address": Text,
        tls = "tls": Text,
        auth_file = "auth_file": Text,
        clients = "clients": Text,
    }
);

table!(
    /// An entry of `listen.unix` that is a table.
    UnixEntry {
        path = "path": Text,
        auth_file = "auth_file": Text,
        clients = "clients": Text,
    }
);

table!(
    /// The `tls` table of a listener.
    Tls {
        cert = "cert": Text,
        key = "key": Text,
        client_ca = "client_ca": Text,
    }
);

table!(
    /// `[log]`
    Log {
        level = "level": Text,
        slow = "slow": Text,
        keys = "keys": Text,
    }
);

table!(
    /// `[admin]`
    Admin {
        listen = "listen": Text,
        control = "control": Text,
        tls = "tls": Text,
        auth_file = "auth_file": Text,
        token_file = "token_file": Text,
        explain = "explain": Flag,
        trace = "trace": Flag,
        hot = "hot": Flag,
    }
);

table!(
    /// `[pools.<name>]`
    Pool {
        servers = "servers": List,
        next = "next": List,
        previous = "previous": List,
        take_over = "take_over": Flag,
        distribution = "distribution": Text,
        hash = "hash": Text,
        hash_tag = "hash_tag": Text,
        unhashed_prefixes = "unhashed_prefixes": List,
        other_distribution = "other_distribution": Text,
        other_hash = "other_hash": Text,
        other_hash_tag = "other_hash_tag": Text,
        other_unhashed_prefixes = "other_unhashed_prefixes": List,
        connect_timeout = "connect_timeout": Text,
        request_timeout = "request_timeout": Text,
        on_error = "on_error": Text,
        failover = "failover": Flag,
        window = "window": Text,
        fail_after = "fail_after": Text,
        recover_after = "recover_after": Text,
        standby_ttl = "standby_ttl": Text,
        keyspace = "keyspace": Text,
        unknown_placement = "unknown_placement": Text,
    }
);

table!(
    /// `[pools.<name>.health]`. It has no environment variables, so it is not among the keys of a pool.
    Health {
        enabled = "enabled": Flag,
        failures = "failures": Number,
        slow = "slow": Text,
        slow_share = "slow_share": Number,
        min_requests = "min_requests": Number,
        probe_interval = "probe_interval": Text,
        probe_max_interval = "probe_max_interval": Text,
        recover_probes = "recover_probes": Number,
    }
);

table!(
    /// `[pools.<name>.repair]`, as the one before.
    Repair {
        rate = "rate": Number,
    }
);

table!(
    /// The `tls` table of a pool. It and `auth` have no environment variables.
    PoolTls {
        ca = "ca": Text,
        cert = "cert": Text,
        key = "key": Text,
        server_name = "server_name": Text,
    }
);

table!(
    /// The `auth` table of a pool.
    PoolAuth {
        user = "user": Text,
        password_file = "password_file": Text,
    }
);

table!(
    /// An entry of a pool's `servers` that is a table.
    Server {
        address = "address": Text,
        weight = "weight": Number,
        name = "name": Text,
    }
);

table!(
    /// `[tags]`
    Tags {
        prefix = "prefix": Text,
        cache = "cache": Text,
        pool = "pool": Text,
        replicas = "replicas": Number,
    }
);

table!(
    /// `[near]`
    Near {
        memory = "memory": Text,
    }
);

table!(
    /// `[observe]`
    Observe {
        all = "all": Flag,
    }
);

table!(
    /// `[discovery]`
    Discovery {
        nameservers = "nameservers": List,
        interval = "interval": Text,
        settle = "settle": Text,
    }
);

table!(
    /// `[[rules]]`
    Rule {
        name = "name": Text,
        pattern = "match": Text,
        kind = "kind": Text,
        pool = "pool": Text,
        share = "share": Text,
        tags = "tags": List,
        invalidates = "invalidates": List,
        tags_in_key = "tags_in_key": Flag,
        preset = "preset": Text,
        stale_for = "stale_for": Text,
        stale_before_expiry = "stale_before_expiry": Flag,
        lock_ttl = "lock_ttl": Text,
        max_rebuild = "max_rebuild": Text,
        stale_wait = "stale_wait": Text,
        cold_wait = "cold_wait": Text,
        cold_limit = "cold_limit": Text,
        outage_ttl = "outage_ttl": Text,
        on_tag = "on_tag": Text,
        on_delete = "on_delete": Text,
        early_beta = "early_beta": Number,
        max_ttl = "max_ttl": Text,
        near = "near": Text,
        meta_winner = "meta_winner": Text,
        copies = "copies": Number,
        ttl = "ttl": Text,
        fence = "fence": Flag,
        window = "window": Text,
        slot = "slot": Text,
        slots = "slots": Number,
        smooth = "smooth": Flag,
        unique = "unique": Flag,
    }
);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConfigFile {
    pub(super) reload: Option<Value>,
    pub(super) log: Section<Log>,
    pub(super) listen: Section<Listen>,
    pub(super) admin: Section<Admin>,
    pub(super) pools: Section<BTreeMap<String, Section<Pool>>>,
    pub(super) tags: Section<Tags>,
    pub(super) near: Section<Near>,
    pub(super) observe: Section<Observe>,
    pub(super) discovery: Section<Discovery>,
    pub(super) rules: Section<Vec<Section<Rule>>>,
    #[serde(flatten)]
    pub(super) rest: BTreeMap<String, Value>,
}

/// The keys without a table.
pub(super) const TOP: [(&str, ValueType); 1] = [("reload", ValueType::Text)];

/// The keys without a table, and the tables.
pub(super) const ROOT: [&str; 10] =
    ["reload", "log", "listen", "admin", "pools", "tags", "near", "observe", "discovery", "rules"];
