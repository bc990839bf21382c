//! Environment variables override keys of the file: `KENNEL_TAGS__CACHE=100ms` replaces `tags.cache`.
//!
//! `__` separates the parts of a key. A single `_` is accepted if the name is unambiguous. Letter case is ignored, and `-` and
//! `.` of a pool's name are written `_`. List entries are separated by commas; the empty string is the empty list. With `__`, a
//! variable may also create a pool; a rule must be in the file. Keys of a table within a list, such as a server's `weight`,
//! have no variable.

use std::collections::BTreeMap;

use config::{Map, Value, ValueKind};

use super::file::{Admin, Discovery, Listen, Log, Near, Observe, Pool, Rule, TOP, Tags, ValueType};
use super::location::CONFIG_VARIABLE;
use super::suggestion::closest;

const PREFIX: &str = "KENNEL_";
/// The tables with a fixed name.
const NAMED: [(&str, &[(&str, ValueType)]); 7] = [
    ("log", Log::KEYS),
    ("listen", Listen::KEYS),
    ("admin", Admin::KEYS),
    ("tags", Tags::KEYS),
    ("near", Near::KEYS),
    ("observe", Observe::KEYS),
    ("discovery", Discovery::KEYS),
];
/// Not of the configuration: read by the log (`log.rs`), and what names the file.
const NO_KEYS: [&str; 2] = ["KENNEL_LOG_FORMAT", CONFIG_VARIABLE];

/// The `KENNEL_…` variables of this process, for [`Config::load`](crate::config::Config::load). Invalid UTF-8 is replaced with
/// U+FFFD.
pub fn environment() -> Vec<(String, String)> {
    let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    all.filter(|(name, _)| name.starts_with(PREFIX)).collect()
}

/// What the environment changed.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// The path of an overridden key → the variable that did it.
    pub(super) variables: BTreeMap<String, String>,
    /// Variables that could not be applied.
    pub(super) errors: Vec<String>,
    /// Unknown variables. Kubernetes sets `KENNEL_PORT` and others for a service named `kennel`.
    pub(super) warnings: Vec<String>,
}

impl Overrides {
    /// Overrides the keys of `root`.
    pub(super) fn apply(
        env: impl IntoIterator<Item = (String, String)>,
        root: &mut Map<String, Value>,
    ) -> Overrides {
        let mut overrides = Overrides::default();
        let variables: BTreeMap<String, String> = env
            .into_iter()
            .filter(|(name, _)| name.starts_with(PREFIX) && !NO_KEYS.contains(&&**name))
            .collect();
        for (variable, text) in variables {
            let mut targets = Target::candidates(&variable[PREFIX.len()..], root);
            match (targets.pop(), targets.pop()) {
                (None, _) => {
                    let hint = match closest(&variable, known_variables().iter().map(String::as_str)) {
                        Some(known) => format!(": did you mean {known}?"),
                        None => String::new(),
                    };
                    overrides
                        .warnings
                        .push(format!("{variable} is not a known variable and is ignored{hint}"));
                }
                (Some(a), Some(b)) => overrides.errors.push(format!(
                    "{variable} is ambiguous, it matches {} and {}: set the key in the file",
                    b.path(),
                    a.path()
                )),
                (Some(target), None) => overrides.insert(variable, &text, target, root),
            }
        }
        overrides
    }

    fn insert(&mut self, variable: String, text: &str, target: Target, root: &mut Map<String, Value>) {
        let path = target.path();
        if let Some(earlier) = self.variables.get(&path) {
            self.errors.push(format!("{variable}: {path} is already set by {earlier}: remove one of them"));
            return;
        }
        let value = parse(text, target.value_type);
        let table = match target.table {
            Table::Top => Some(&mut *root),
            Table::Named(name) => table_in(root, name),
            Table::Pool(name) => table_in(root, "pools").and_then(|pools| table_in(pools, &name)),
            Table::Rule(i) => match rules_in(root) {
                Some(rules) => {
                    let len = rules.len();
                    let Some(rule) = rules.get_mut(i) else {
                        let hint = match len {
                            0 => "the file has no rules".to_owned(),
                            n => format!("the last one is rules[{}]", n - 1),
                        };
                        self.errors.push(format!("{variable}: rules[{i}] does not exist: {hint}"));
                        return;
                    };
                    as_table(rule)
                }
                None => None,
            },
        };
        // `None` means that the file has a value of another type there, which validation reports.
        if let Some(table) = table {
            table.insert(target.key.to_owned(), value);
            self.variables.insert(path, variable);
        }
    }
}

/// A key that a variable may refer to.
struct Target {
    table: Table,
    key: &'static str,
    value_type: ValueType,
}

enum Table {
    Top,
    Named(&'static str),
    Pool(String),
    Rule(usize),
}

impl Target {
    fn path(&self) -> String {
        match &self.table {
            Table::Top => self.key.to_owned(),
            Table::Named(name) => format!("{name}.{}", self.key),
            Table::Pool(name) => format!("pools.{name}.{}", self.key),
            Table::Rule(i) => format!("rules[{i}].{}", self.key),
        }
    }

    /// All keys that `name`, the part after `KENNEL_`, can refer to.
    fn candidates(name: &str, root: &mut Map<String, Value>) -> Vec<Target> {
        let name = name.to_ascii_lowercase();
        let mut found = Vec::new();
        let top = known(&name, &TOP);
        found.extend(top.map(|(key, value_type)| Target { table: Table::Top, key, value_type }));
        for (table, keys) in NAMED {
            let key = after(&name, table).and_then(|rest| known(rest, keys));
            found.extend(key.map(|(key, value_type)| Target { table: Table::Named(table), key, value_type }));
        }
        if let Some(rest) = after(&name, "pools") {
            let mut pools: Vec<String> =
                table_in(root, "pools").map(|t| t.keys().cloned().collect()).unwrap_or_default();
            pools.sort();
            if !pools.iter().any(|pool| pool == "main") {
                pools.push("main".to_owned());
            }
            for pool in pools {
                let spelled = pool.to_ascii_lowercase().replace(['-', '.'], "_");
                let key = after(rest, &spelled).and_then(|rest| known(rest, Pool::KEYS));
                found.extend(key.map(|(key, value_type)| Target {
                    table: Table::Pool(pool),
                    key,
                    value_type,
                }));
            }
            if let (true, Some((pool, key))) = (found.is_empty(), rest.split_once("__")) {
                let key = known(key, Pool::KEYS).filter(|_| !pool.is_empty());
                found.extend(key.map(|(key, value_type)| Target {
                    table: Table::Pool(pool.to_owned()),
                    key,
                    value_type,
                }));
            }
        }
        if let Some(rest) = after(&name, "rules") {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            if let Ok(i) = rest[..digits].parse() {
                let key = after(rest, &rest[..digits]).and_then(|rest| known(rest, Rule::KEYS));
                found.extend(key.map(|(key, value_type)| Target { table: Table::Rule(i), key, value_type }));
            }
        }
        found
    }
}

/// The rest of a name after `part` and `__` or `_`.
fn after<'n>(name: &'n str, part: &str) -> Option<&'n str> {
    let rest = name.strip_prefix(part)?;
    rest.strip_prefix("__").or_else(|| rest.strip_prefix('_'))
}

fn known(key: &str, keys: &'static [(&'static str, ValueType)]) -> Option<(&'static str, ValueType)> {
    keys.iter().copied().find(|(known, _)| *known == key)
}

fn table_in<'t>(map: &'t mut Map<String, Value>, key: &str) -> Option<&'t mut Map<String, Value>> {
    as_table(map.entry(key.to_owned()).or_insert_with(|| Value::new(None, Map::<String, Value>::new())))
}

fn as_table(value: &mut Value) -> Option<&mut Map<String, Value>> {
    match &mut value.kind {
        ValueKind::Table(table) => Some(table),
        _ => None,
    }
}

fn rules_in(root: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    match &mut root.entry("rules".to_owned()).or_insert_with(|| Value::new(None, Vec::<Value>::new())).kind {
        ValueKind::Array(rules) => Some(rules),
        _ => None,
    }
}

fn parse(text: &str, value_type: ValueType) -> Value {
    let kind = match value_type {
        ValueType::Text => ValueKind::String(text.to_owned()),
        ValueType::List if text.trim().is_empty() => ValueKind::Array(Vec::new()),
        ValueType::List => ValueKind::Array(text.split(',').map(|part| part.trim().into()).collect()),
        ValueType::Number => match (text.trim().parse::<i64>(), text.trim().parse::<f64>()) {
            (Ok(n), _) => ValueKind::I64(n),
            (_, Ok(x)) => ValueKind::Float(x),
            _ => ValueKind::String(text.to_owned()),
        },
        ValueType::Flag => match text.trim().parse() {
            Ok(is) => ValueKind::Boolean(is),
            Err(_) => ValueKind::String(text.to_owned()),
        },
    };
    Value::new(None, kind)
}

/// The variables that are known whatever the file contains.
fn known_variables() -> Vec<String> {
    let all = NAMED.into_iter().chain([("pools__main", Pool::KEYS), ("rules__0", Rule::KEYS)]);
    let name = |table: &str, key: &str| format!("{PREFIX}{table}__{key}").to_ascii_uppercase();
    let top = TOP.iter().map(|(key, _)| format!("{PREFIX}{key}").to_ascii_uppercase());
    top.chain(all.flat_map(|(table, keys)| keys.iter().map(move |(key, _)| name(table, key)))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, RuleKind};

    const POOL: &str = "[pools.main]\nservers = [\"10.0.0.1:11211\"]\n";

    fn env(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    /// Each key that a variable can set, with a value that is not the default: in the notation of the file and of the variable.
    const SETTINGS: &[(&str, &str, &str, &str)] = &[
        ("log", "level", "\"debug\"", "debug"),
        ("log", "slow", "\"1s\"", "1s"),
        ("log", "keys", "\"prefix:7\"", "prefix:7"),
        ("listen", "tcp", "[\"127.0.0.1:1\", \"[::1]:2\"]", "127.0.0.1:1,[::1]:2"),
        ("listen", "unix", "[\"/run/k\"]", "/run/k"),
        ("listen", "unix_mode", "\"0600\"", "0600"),
        ("listen", "max_connections", "7", "7"),
        ("listen", "idle_timeout", "\"5s\"", "5s"),
        ("listen", "max_buffered", "\"64MiB\"", "64MiB"),
        ("listen", "workers", "3", " 3 "),
        ("listen", "flush_all", "\"refuse\"", "refuse"),
        ("listen", "clients", "\"pooled\"", "pooled"),
        ("listen", "drain_delay", "\"5s\"", "5s"),
        ("listen", "takeover_timeout", "\"5s\"", "5s"),
        ("admin", "listen", "\"127.0.0.1:3\"", "127.0.0.1:3"),
        ("admin", "control", "\"/run/c\"", "/run/c"),
        ("admin", "explain", "false", "false"),
        ("admin", "trace", "false", "false"),
        ("admin", "hot", "false", "false"),
        ("tags", "prefix", "\"@t:\"", "@t:"),
        ("tags", "cache", "\"100ms\"", "100ms"),
        ("tags", "pool", "\"aux\"", "aux"),
        ("tags", "replicas", "2", "2"),
        ("observe", "all", "true", "true"),
        ("near", "memory", "\"1MiB\"", "1MiB"),
        ("discovery", "nameservers", "[\"10.0.0.2\", \"[::1]:5353\"]", "10.0.0.2,[::1]:5353"),
        ("discovery", "interval", "\"5s\"", "5s"),
        ("discovery", "settle", "\"10m\"", "10m"),
        ("pools.main", "servers", "[\"a:1\", \"b:2\", \"c:3\", \"d:4\"]", "a:1, b:2, c:3, d:4"),
        ("pools.main", "next", "[\"a:1\", \"b:2\", \"d:4\"]", "a:1, b:2, d:4"),
        ("pools.main", "previous", "[\"a:1\", \"b:2\", \"d:4\"]", "a:1, b:2, d:4"),
        ("pools.main", "take_over", "false", "false"),
        ("pools.main", "distribution", "\"jump\"", "jump"),
        ("pools.main", "hash", "\"fnv1a_32\"", "fnv1a_32"),
        ("pools.main", "hash_tag", "\"{}\"", "{}"),
        ("pools.main", "unhashed_prefixes", "[\"a:\", \"b:\"]", "a:,b:"),
        ("pools.main", "other_distribution", "\"jump\"", "jump"),
        ("pools.main", "other_hash", "\"fnv1a_32\"", "fnv1a_32"),
        ("pools.main", "other_hash_tag", "\"{}\"", "{}"),
        ("pools.main", "other_unhashed_prefixes", "[\"a:\", \"b:\"]", "a:,b:"),
        ("pools.main", "connect_timeout", "\"1s\"", "1s"),
        ("pools.main", "request_timeout", "\"1s\"", "1s"),
        ("pools.main", "on_error", "\"error\"", "error"),
        ("pools.main", "failover", "false", "false"),
        ("pools.main", "window", "\"1s\"", "1s"),
        ("pools.main", "fail_after", "\"5s\"", "5s"),
        ("pools.main", "recover_after", "\"5s\"", "5s"),
        ("pools.main", "standby_ttl", "\"5s\"", "5s"),
        ("pools.main", "keyspace", "\"shop\"", "shop"),
        ("pools.main", "unknown_placement", "\"miss\"", "miss"),
        ("rules", "name", "\"7\"", "7"),
        ("rules", "match", "\"true\"", "true"),
        ("rules", "kind", "\"raw\"", "raw"),
        ("rules", "pool", "\"aux\"", "aux"),
        ("rules", "tags", "[\"7\", \"posts\"]", "7,posts"),
        ("rules", "invalidates", "[\"all\"]", "all"),
        ("rules", "tags_in_key", "true", "true"),
        ("rules", "preset", "\"rails\"", "rails"),
        ("rules", "stale_for", "\"5s\"", "5s"),
        ("rules", "stale_before_expiry", "true", "true"),
        ("rules", "lock_ttl", "\"6s\"", "6s"),
        ("rules", "max_rebuild", "\"90s\"", "90s"),
        ("rules", "stale_wait", "\"5ms\"", "5ms"),
        ("rules", "cold_wait", "\"5ms\"", "5ms"),
        ("rules", "cold_limit", "\"5s\"", "5s"),
        ("rules", "outage_ttl", "\"5ms\"", "5ms"),
        ("rules", "on_tag", "\"drop\"", "drop"),
        ("rules", "on_delete", "\"stale\"", "stale"),
        ("rules", "early_beta", "1.5", "1.5"),
        ("rules", "share", "\"5%\"", "5%"),
        ("rules", "max_ttl", "\"5s\"", "5s"),
        ("rules", "near", "\"5ms\"", "5ms"),
        ("rules", "meta_winner", "\"stale\"", "stale"),
        ("rules", "copies", "2", "2"),
        ("rules", "ttl", "\"5s\"", "5s"),
        ("rules", "fence", "true", "true"),
        ("rules", "window", "\"5s\"", "5s"),
        ("rules", "slot", "\"5s\"", "5s"),
        ("rules", "slots", "5", "5"),
        ("rules", "smooth", "true", "true"),
        ("rules", "unique", "true", "true"),
    ];

    #[test]
    fn without_a_file_the_environment_still_overrides() {
        let variables = env(&[
            ("KENNEL_LISTEN__TCP", "127.0.0.1:0, [::1]:0"),
            ("KENNEL_ADMIN_LISTEN", ""),
            ("KENNEL_POOLS_MAIN_SERVERS", "10.0.0.1:11211,10.0.0.2:11211"),
            ("KENNEL_RULES__0__STALE_FOR", "5m"),
            ("KENNEL_RULES_0_EARLY_BETA", "1.5"),
            ("KENNEL_LISTEN_MAX_CONNECTIONS", "7"),
            ("KENNEL_POOLS__MAIN__REQUEST_TIMEOUT", "1s"),
            ("KENNEL_TAGS__CACHE", "100ms"),
            ("PATH", "/bin"),
        ]);
        let config = Config::load(None, variables).unwrap();
        assert_eq!(
            config.listen.tcp.iter().map(|e| e.address.to_string()).collect::<Vec<_>>(),
            ["127.0.0.1:0", "[::1]:0"]
        );
        assert_eq!((config.admin, config.listen.max_connections), (None, 7));
        assert_eq!(config.pools[0].servers.len(), 2);
        assert_eq!(config.pools[0].request_timeout, Duration::from_secs(1));
        assert_eq!(config.tags.cache, Duration::from_millis(100));
        let RuleKind::Guarded { policy, .. } = &config.rules[0].kind else { panic!("not guarded") };
        assert_eq!((policy.stale_for, policy.early_beta), (Duration::from_secs(300), 1.5));
        assert_eq!(config.warnings, [] as [String; 0]);
    }

    #[test]
    fn a_bad_value_in_a_variable_names_the_variable() {
        let error = |variables: &[(&str, &str)]| {
            let errors = Config::read("k.toml", POOL, env(variables)).unwrap_err().without_places();
            assert_eq!(errors.len(), 1, "{errors:?}");
            errors[0].clone()
        };
        let cache = error(&[("KENNEL_TAGS__CACHE", "2h")]);
        assert_eq!(cache, "KENNEL_TAGS__CACHE: tags.cache (\"2h\") must be at most 60s");
        let tcp = error(&[("KENNEL_LISTEN_TCP", "a:1,b")]);
        assert!(tcp.starts_with("KENNEL_LISTEN_TCP: listen.tcp[1] (\"b\") must be host:port"), "{tcp}");
        let workers = error(&[("KENNEL_LISTEN_WORKERS", "x")]);
        assert!(workers.starts_with("KENNEL_LISTEN_WORKERS: listen.workers (\"x\") must be"), "{workers}");
        let index = error(&[("KENNEL_RULES__3__STALE_FOR", "5s")]);
        assert_eq!(index, "KENNEL_RULES__3__STALE_FOR: rules[3] does not exist: the file has no rules");
        let both = error(&[("KENNEL_TAGS_CACHE", "1s"), ("KENNEL_TAGS__CACHE", "1s")]);
        assert!(both.contains("tags.cache is already set by KENNEL_TAGS"), "{both}");
    }

    #[test]
    fn files_of_the_admin_address_can_be_named_by_variables() {
        let path = std::env::temp_dir().join(format!("kennel-environment-{}", std::process::id()));
        std::fs::write(&path, "ann:0123456789abcdef\n").unwrap();
        let name = path.display().to_string();
        let read = |variables: &[(&str, &str)]| Config::read("k.toml", POOL, env(variables));
        let files = [("KENNEL_ADMIN__AUTH_FILE", &name[..]), ("KENNEL_ADMIN__TOKEN_FILE", &name)];
        let admin = read(&files).unwrap().admin.unwrap();
        assert_eq!(
            (admin.requirements.auth_file, admin.token_file),
            (Some(path.clone()), Some(path.clone()))
        );
        std::fs::write(&path, "short\n").unwrap();
        let errors = read(&files).unwrap_err().without_places();
        std::fs::remove_file(&path).unwrap();
        assert!(
            errors[0].contains("admin.auth_file") && errors[0].contains("line 1 must be user:password"),
            "{errors:?}"
        );
        assert!(
            errors[1].contains("admin.token_file") && errors[1].contains("must be one line of 16"),
            "{errors:?}"
        );
    }

    #[test]
    fn every_key_has_the_same_meaning_in_a_variable_and_in_the_file() {
        let tables = [
            ("log", Log::KEYS),
            ("listen", Listen::KEYS),
            ("admin", Admin::KEYS),
            ("tags", Tags::KEYS),
            ("near", Near::KEYS),
            ("observe", Observe::KEYS),
            ("discovery", Discovery::KEYS),
            ("pools.main", Pool::KEYS),
            ("rules", Rule::KEYS),
        ];
        let keys = tables.iter().flat_map(|(table, keys)| keys.iter().map(move |(key, _)| (*table, *key)));
        // Files must exist, and a table has no variable.
        let keys = keys.filter(|(_, key)| !["tls", "auth_file", "token_file"].contains(key));
        let settings = SETTINGS.iter().map(|(table, key, ..)| (*table, *key));
        assert_eq!(settings.collect::<HashSet<_>>(), keys.collect());
        for (table, key, in_file, variable) in SETTINGS {
            let file = |with: bool| {
                let mut text = String::new();
                let tables = [
                    "log",
                    "listen",
                    "admin",
                    "tags",
                    "near",
                    "observe",
                    "discovery",
                    "pools.aux",
                    "pools.main",
                    "rules",
                ]
                .map(|t| match t {
                    "pools.aux" => (t, vec![("servers", "[\"d:1\"]")]),
                    "pools.main" if *key == "take_over" || key.starts_with("other_") => (
                        t,
                        vec![
                            ("servers", "[\"a:1\", \"b:1\", \"c:1\"]"),
                            ("previous", "[\"a:1\", \"b:1\", \"d:1\"]"),
                        ],
                    ),
                    // With fewer servers, the keys of a failover have no effect.
                    "pools.main" => (t, vec![("servers", "[\"a:1\", \"b:1\", \"c:1\"]")]),
                    "rules" if *key == "copies" => {
                        (t, vec![("name", "\"pages\""), ("match", "\"x*\""), ("kind", "\"raw\"")])
                    }
                    "rules" if ["ttl", "fence"].contains(key) => {
                        (t, vec![("name", "\"pages\""), ("match", "\"x*\""), ("kind", "\"lock\"")])
                    }
                    "rules" if *key == "slot" => (
                        t,
                        vec![
                            ("name", "\"pages\""),
                            ("match", "\"x*\""),
                            ("kind", "\"log\""),
                            ("window", "\"1m\""),
                        ],
                    ),
                    "rules" if ["window", "slots", "smooth", "unique"].contains(key) => (
                        t,
                        vec![
                            ("name", "\"pages\""),
                            ("match", "\"x*\""),
                            ("kind", "\"window\""),
                            ("window", "\"1m\""),
                        ],
                    ),
                    "rules" => (t, vec![("name", "\"pages\""), ("match", "\"x\"")]),
                    _ => (t, vec![]),
                });
                for (name, keys) in tables {
                    text += &if name == "rules" { "[[rules]]\n".to_owned() } else { format!("[{name}]\n") };
                    let set = with && name == *table;
                    for (other, value) in keys.into_iter().filter(|(other, _)| !set || other != key) {
                        text += &format!("{other} = {value}\n");
                    }
                    if set {
                        text += &format!("{key} = {in_file}\n");
                    }
                }
                text
            };
            let table = if *table == "rules" { "rules__0".to_owned() } else { table.replace('.', "__") };
            let name = format!("KENNEL_{table}__{key}").to_uppercase();
            let by_variable = Config::read("k.toml", &file(false), env(&[(&name, variable)]));
            let by_file = Config::read("k.toml", &file(true), []).unwrap();
            assert_eq!(by_variable.unwrap_or_else(|errors| panic!("{errors}")), by_file, "{name}");
            assert_ne!(Config::read("k.toml", &file(false), []).unwrap(), by_file, "{name} changes nothing");
        }
    }

    #[test]
    fn the_variable_of_the_log_is_no_setting_and_no_warning() {
        let config =
            Config::load(None, env(&[("KENNEL_LOG_FORMAT", "json"), ("KENNEL_LOG_FORM", "json")])).unwrap();
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
        assert!(config.warnings[0].starts_with("KENNEL_LOG_FORM is not"), "{:?}", config.warnings);
    }

    #[test]
    fn a_flag_in_a_variable_is_true_or_false() {
        let load = |text| Config::load(None, env(&[("KENNEL_RULES__0__TAGS_IN_KEY", text)]));
        let in_key =
            |text| matches!(load(text).unwrap().rules[0].kind, RuleKind::Guarded { tags_in_key: true, .. });
        assert!(in_key("true") && !in_key("false"));
        assert_eq!(
            load("yes").unwrap_err().without_places(),
            [
                "KENNEL_RULES__0__TAGS_IN_KEY: rules[0] \"everything\": tags_in_key (\"yes\") must be true or false, without quotes"
            ]
        );
    }

    #[test]
    fn an_unknown_variable_is_a_warning() {
        let variables = env(&[
            ("KENNEL_PORT", "tcp://10.0.0.1:11211"),
            ("KENNEL_SERVICE_HOST", "10.0.0.1"),
            ("KENNEL_RULES__0__STALE_FORR", "5s"),
            ("KENNELS", "3"),
        ]);
        let config = Config::load(None, variables).unwrap();
        assert_eq!(
            config.warnings,
            [
                "KENNEL_PORT is not a known variable and is ignored",
                "KENNEL_RULES__0__STALE_FORR is not a known variable and is ignored: did you mean KENNEL_RULES__0__STALE_FOR?",
                "KENNEL_SERVICE_HOST is not a known variable and is ignored",
            ]
        );
    }

    #[test]
    fn a_variable_finds_a_pool_whatever_its_spelling() {
        let text = format!("{POOL}[pools.web-cache]\nservers = [\"a:1\"]\n");
        let read = |name: &str| Config::read("k.toml", &text, env(&[(name, "b:1,c:1")]));
        for name in ["KENNEL_POOLS_WEB_CACHE_SERVERS", "KENNEL_POOLS__WEB_CACHE__SERVERS"] {
            assert_eq!(read(name).unwrap().pools[1].servers.len(), 2, "{name}");
        }
        assert_eq!(read("KENNEL_POOLS__NEW__SERVERS").unwrap().pools[1].name, "new");
        assert_eq!(read("KENNEL_POOLS_NEW_SERVERS").unwrap().warnings.len(), 1);
        let text = format!("{POOL}[pools.a-b]\nservers = [\"a:1\"]\n[pools.a_b]\nservers = [\"a:1\"]\n");
        let both = Config::read("k.toml", &text, env(&[("KENNEL_POOLS_A_B_SERVERS", "b:1")])).unwrap_err();
        assert!(both.to_string().contains("matches pools.a-b.servers and pools.a_b.servers"), "{both}");
    }
}
