//! The environment's say: `KENNEL_TAGS__CACHE=100ms` replaces `tags.cache`.
//!
//! `__` stands between the parts of a key. A single `_` does too where exactly one key can be meant. Letter case
//! does not matter, and a pool's `-` and `.` are written `_`. A list's parts are separated by commas; the empty
//! text is the empty list. With `__` a variable may also begin a new pool; a rule must be there already. What stands
//! in a table within a list, as a server's `weight` does, has no variable.

use std::collections::BTreeMap;

use config::{Map, Value, ValueKind};

use super::file::{Admin, Listen, Near, Pool, Rule, Tags, ValueType};
use super::units::closest;

const PREFIX: &str = "KENNEL_";

/// What the environment has changed and what it could not.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// Path of a key that was replaced → the variable that did it.
    pub(super) variables: BTreeMap<String, String>,
    /// Variables that cannot mean what they say.
    pub(super) mistakes: Vec<String>,
    /// Variables that mean nothing here. Kubernetes sets `KENNEL_PORT` and more beside a service named `kennel`.
    pub(super) warnings: Vec<String>,
}

impl Overrides {
    /// Puts what the variables say into `root`.
    pub(super) fn lay(
        env: impl IntoIterator<Item = (String, String)>,
        root: &mut Map<String, Value>,
    ) -> Overrides {
        let mut overlay = Overrides::default();
        let ours: BTreeMap<String, String> = env.into_iter().filter(|(k, _)| k.starts_with(PREFIX)).collect();
        for (variable, text) in ours {
            let mut targets = Target::candidates(&variable[PREFIX.len()..], root);
            match (targets.pop(), targets.pop()) {
                (None, _) => {
                    let hint = match closest(&variable, known_variables().iter().map(String::as_str)) {
                        Some(known) => format!(": did you mean {known}?"),
                        None => String::new(),
                    };
                    overlay.warnings.push(format!("{variable} is no setting of Kennel's, and ignored{hint}"));
                }
                (Some(a), Some(b)) => overlay.mistakes.push(format!(
                    "{variable}: could mean {} and {}: set it in the file",
                    b.path(),
                    a.path()
                )),
                (Some(target), None) => overlay.put(variable, &text, target, root),
            }
        }
        overlay
    }

    fn put(&mut self, variable: String, text: &str, target: Target, root: &mut Map<String, Value>) {
        let path = target.path();
        if let Some(earlier) = self.variables.get(&path) {
            self.mistakes.push(format!("{variable}: {path} is already set by {earlier}: keep one of them"));
            return;
        }
        let value = value_of(text, target.shape);
        let table = match target.place {
            Place::Table(name) => table_in(root, name),
            Place::Pool(name) => table_in(root, "pools").and_then(|pools| table_in(pools, &name)),
            Place::Rule(i) => match rules_in(root) {
                Some(rules) => {
                    let len = rules.len();
                    let Some(rule) = rules.get_mut(i) else {
                        let hint = match len {
                            0 => "there are none".to_owned(),
                            n => format!("there are {n}, and the first is 0"),
                        };
                        self.mistakes.push(format!("{variable}: there is no rules[{i}]: {hint}"));
                        return;
                    };
                    as_table(rule)
                }
                None => None,
            },
        };
        // None: the file has something else there, which is reported as the file's mistake.
        if let Some(table) = table {
            table.insert(target.key.to_owned(), value);
            self.variables.insert(path, variable);
        }
    }
}

/// The key a variable may stand for.
struct Target {
    place: Place,
    key: &'static str,
    shape: ValueType,
}

enum Place {
    Table(&'static str),
    Pool(String),
    Rule(usize),
}

impl Target {
    fn path(&self) -> String {
        match &self.place {
            Place::Table(name) => format!("{name}.{}", self.key),
            Place::Pool(name) => format!("pools.{name}.{}", self.key),
            Place::Rule(i) => format!("rules[{i}].{}", self.key),
        }
    }

    /// All keys that `name` (what follows `KENNEL_`) can stand for.
    fn candidates(name: &str, root: &mut Map<String, Value>) -> Vec<Target> {
        let name = name.to_ascii_lowercase();
        let mut found = Vec::new();
        let tables =
            [("listen", Listen::KEYS), ("admin", Admin::KEYS), ("tags", Tags::KEYS), ("near", Near::KEYS)];
        for (table, keys) in tables {
            let key = after(&name, table).and_then(|rest| known(rest, keys));
            found.extend(key.map(|(key, shape)| Target { place: Place::Table(table), key, shape }));
        }
        if let Some(rest) = after(&name, "pools") {
            let mut pools: Vec<String> =
                table_in(root, "pools").map(|t| t.keys().cloned().collect()).unwrap_or_default();
            pools.sort();
            if !pools.iter().any(|pool| pool == "main") {
                pools.push("main".to_owned());
            }
            for pool in pools {
                let written = pool.to_ascii_lowercase().replace(['-', '.'], "_");
                let key = after(rest, &written).and_then(|rest| known(rest, Pool::KEYS));
                found.extend(key.map(|(key, shape)| Target { place: Place::Pool(pool), key, shape }));
            }
            if let (true, Some((pool, key))) = (found.is_empty(), rest.split_once("__")) {
                let key = known(key, Pool::KEYS).filter(|_| !pool.is_empty());
                found.extend(key.map(|(key, shape)| Target {
                    place: Place::Pool(pool.to_owned()),
                    key,
                    shape,
                }));
            }
        }
        if let Some(rest) = after(&name, "rules") {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            if let Ok(i) = rest[..digits].parse() {
                let key = after(rest, &rest[..digits]).and_then(|rest| known(rest, Rule::KEYS));
                found.extend(key.map(|(key, shape)| Target { place: Place::Rule(i), key, shape }));
            }
        }
        found
    }
}

/// What follows `part` and its `__` or `_`.
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

fn value_of(text: &str, shape: ValueType) -> Value {
    let kind = match shape {
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

/// The variables that exist whatever the file says.
fn known_variables() -> Vec<String> {
    let tables =
        [("LISTEN", Listen::KEYS), ("ADMIN", Admin::KEYS), ("TAGS", Tags::KEYS), ("NEAR", Near::KEYS)];
    let all = tables.into_iter().chain([("POOLS__MAIN", Pool::KEYS), ("RULES__0", Rule::KEYS)]);
    let name = |table, key: &str| format!("{PREFIX}{table}__{}", key.to_ascii_uppercase());
    all.flat_map(|(table, keys)| keys.iter().map(move |(key, _)| name(table, key))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::super::{Config, Kind};
    use super::*;

    const POOL: &str = "[pools.main]\nservers = [\"10.0.0.1:11211\"]\n";

    fn env(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    /// Each key that a variable can set, with another value than its default: as the file says it and as the variable does.
    const SETTINGS: &[(&str, &str, &str, &str)] = &[
        ("listen", "tcp", "[\"127.0.0.1:1\", \"[::1]:2\"]", "127.0.0.1:1,[::1]:2"),
        ("listen", "unix", "[\"/run/k\"]", "/run/k"),
        ("listen", "unix_mode", "\"0600\"", "0600"),
        ("listen", "max_connections", "7", "7"),
        ("listen", "idle_timeout", "\"5s\"", "5s"),
        ("listen", "max_buffered", "\"64MiB\"", "64MiB"),
        ("listen", "workers", "3", " 3 "),
        ("listen", "flush_all", "\"refuse\"", "refuse"),
        ("listen", "clients", "\"pooled\"", "pooled"),
        ("admin", "listen", "\"127.0.0.1:3\"", "127.0.0.1:3"),
        ("tags", "prefix", "\"@t:\"", "@t:"),
        ("tags", "cache", "\"100ms\"", "100ms"),
        ("tags", "pool", "\"aux\"", "aux"),
        ("tags", "replicas", "2", "2"),
        ("near", "memory", "\"1MiB\"", "1MiB"),
        ("pools.main", "servers", "[\"a:1\", \"b:2\", \"c:3\"]", "a:1, b:2, c:3"),
        ("pools.main", "distribution", "\"jump\"", "jump"),
        ("pools.main", "hash", "\"fnv1a_32\"", "fnv1a_32"),
        ("pools.main", "connect_timeout", "\"1s\"", "1s"),
        ("pools.main", "request_timeout", "\"1s\"", "1s"),
        ("pools.main", "on_error", "\"error\"", "error"),
        ("rules", "name", "\"7\"", "7"),
        ("rules", "match", "\"true\"", "true"),
        ("rules", "kind", "\"raw\"", "raw"),
        ("rules", "pool", "\"aux\"", "aux"),
        ("rules", "tags", "[\"7\", \"posts\"]", "7,posts"),
        ("rules", "invalidates", "[\"all\"]", "all"),
        ("rules", "tags_in_key", "true", "true"),
        ("rules", "stale_for", "\"5s\"", "5s"),
        ("rules", "lock_ttl", "\"6s\"", "6s"),
        ("rules", "max_rebuild", "\"90s\"", "90s"),
        ("rules", "stale_wait", "\"5ms\"", "5ms"),
        ("rules", "cold_wait", "\"5ms\"", "5ms"),
        ("rules", "on_tag", "\"drop\"", "drop"),
        ("rules", "on_delete", "\"stale\"", "stale"),
        ("rules", "early_beta", "1.5", "1.5"),
        ("rules", "max_ttl", "\"5s\"", "5s"),
        ("rules", "near", "\"5ms\"", "5ms"),
        ("rules", "meta_winner", "\"stale\"", "stale"),
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
            config.listen.tcp.iter().map(|e| e.at.to_string()).collect::<Vec<_>>(),
            ["127.0.0.1:0", "[::1]:0"]
        );
        assert_eq!((config.admin, config.listen.max_connections), (None, 7));
        assert_eq!(config.pools[0].servers.len(), 2);
        assert_eq!(config.pools[0].request_timeout, Duration::from_secs(1));
        assert_eq!(config.tags.cache, Duration::from_millis(100));
        let Kind::Guarded { policy, .. } = &config.rules[0].kind else { panic!("not guarded") };
        assert_eq!((policy.stale_for, policy.early_beta), (Duration::from_secs(300), 1.5));
        assert_eq!(config.warnings, [] as [String; 0]);
    }

    #[test]
    fn a_bad_value_in_a_variable_names_the_variable() {
        let said = |variables: &[(&str, &str)]| {
            let mistakes = Config::read("k.toml", POOL, env(variables)).unwrap_err().lines().to_vec();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            mistakes[0].clone()
        };
        let cache = said(&[("KENNEL_TAGS__CACHE", "2h")]);
        assert_eq!(cache, "KENNEL_TAGS__CACHE: tags.cache (\"2h\") must be at most 60s");
        let tcp = said(&[("KENNEL_LISTEN_TCP", "a:1,b")]);
        assert!(tcp.starts_with("KENNEL_LISTEN_TCP: listen.tcp[1] (\"b\") must be host:port"), "{tcp}");
        let workers = said(&[("KENNEL_LISTEN_WORKERS", "x")]);
        assert!(workers.starts_with("KENNEL_LISTEN_WORKERS: listen.workers (\"x\") must be"), "{workers}");
        let index = said(&[("KENNEL_RULES__3__STALE_FOR", "5s")]);
        assert_eq!(index, "KENNEL_RULES__3__STALE_FOR: there is no rules[3]: there are none");
        let both = said(&[("KENNEL_TAGS_CACHE", "1s"), ("KENNEL_TAGS__CACHE", "1s")]);
        assert!(both.contains("tags.cache is already set by KENNEL_TAGS"), "{both}");
    }

    #[test]
    fn every_setting_in_a_variable_means_what_it_means_in_the_file() {
        let tables = [
            ("listen", Listen::KEYS),
            ("admin", Admin::KEYS),
            ("tags", Tags::KEYS),
            ("near", Near::KEYS),
            ("pools.main", Pool::KEYS),
            ("rules", Rule::KEYS),
        ];
        let keys = tables.iter().flat_map(|(table, keys)| keys.iter().map(move |(key, _)| (*table, *key)));
        let settings = SETTINGS.iter().map(|(table, key, ..)| (*table, *key));
        assert_eq!(settings.collect::<HashSet<_>>(), keys.collect());
        for (table, key, written, variable) in SETTINGS {
            let file = |with: bool| {
                let mut text = String::new();
                let tables = ["listen", "admin", "tags", "near", "pools.aux", "pools.main", "rules"].map(
                    |t| match t {
                        "pools.aux" => (t, vec![("servers", "[\"d:1\"]")]),
                        // The hash of the others is fixed.
                        "pools.main" if *key == "hash" => {
                            (t, vec![("servers", "[\"a:1\", \"b:1\"]"), ("distribution", "\"modula\"")])
                        }
                        "pools.main" => (t, vec![("servers", "[\"a:1\", \"b:1\"]")]),
                        "rules" => (t, vec![("name", "\"pages\""), ("match", "\"x\"")]),
                        _ => (t, vec![]),
                    },
                );
                for (name, keys) in tables {
                    text += &if name == "rules" { "[[rules]]\n".to_owned() } else { format!("[{name}]\n") };
                    let set = with && name == *table;
                    for (other, value) in keys.into_iter().filter(|(other, _)| !set || other != key) {
                        text += &format!("{other} = {value}\n");
                    }
                    if set {
                        text += &format!("{key} = {written}\n");
                    }
                }
                text
            };
            let table = if *table == "rules" { "rules__0".to_owned() } else { table.replace('.', "__") };
            let name = format!("KENNEL_{table}__{key}").to_uppercase();
            let by_variable = Config::read("k.toml", &file(false), env(&[(&name, variable)]));
            let by_file = Config::read("k.toml", &file(true), []).unwrap();
            assert_eq!(by_variable.unwrap_or_else(|said| panic!("{said}")), by_file, "{name}");
            assert_ne!(Config::read("k.toml", &file(false), []).unwrap(), by_file, "{name} changes nothing");
        }
    }

    #[test]
    fn a_flag_in_a_variable_is_true_or_false() {
        let said = |text| Config::load(None, env(&[("KENNEL_RULES__0__TAGS_IN_KEY", text)]));
        let in_key =
            |text| matches!(said(text).unwrap().rules[0].kind, Kind::Guarded { tags_in_key: true, .. });
        assert!(in_key("true") && !in_key("false"));
        assert_eq!(
            said("yes").unwrap_err().lines(),
            [
                "KENNEL_RULES__0__TAGS_IN_KEY: rules[0] \"everything\": tags_in_key (\"yes\") must be true or false, without quotes"
            ]
        );
    }

    #[test]
    fn a_variable_that_means_nothing_is_a_warning() {
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
                "KENNEL_PORT is no setting of Kennel's, and ignored",
                "KENNEL_RULES__0__STALE_FORR is no setting of Kennel's, and ignored: did you mean KENNEL_RULES__0__STALE_FOR?",
                "KENNEL_SERVICE_HOST is no setting of Kennel's, and ignored",
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
        assert!(both.to_string().contains("could mean pools.a-b.servers and pools.a_b.servers"), "{both}");
    }
}
