//! The environment's say: `KENNEL_TAGS__CACHE=100ms` replaces `tags.cache`.
//!
//! `__` stands between the parts of a key. A single `_` does too where exactly one key can be meant. Letter case
//! does not matter, and a pool's `-` and `.` are written `_`. A list's parts are separated by commas; the empty
//! text is the empty list. With `__` a variable may also begin a new pool; a rule must be there already.

use std::collections::BTreeMap;

use config::{Map, Value, ValueKind};

use super::units::closest;
use super::written::{Admin, Listen, Near, Pool, Rule, Shape, Tags};

const PREFIX: &str = "KENNEL_";

/// What the environment has changed and what it could not.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Path of a key that was replaced → the variable that did it.
    pub(super) variables: BTreeMap<String, String>,
    /// Variables that cannot mean what they say.
    pub(super) mistakes: Vec<String>,
    /// Variables that mean nothing here. Kubernetes sets `KENNEL_PORT` and more beside a service named `kennel`.
    pub(super) warnings: Vec<String>,
}

impl Overlay {
    /// Puts what the variables say into `root`.
    pub(super) fn lay(
        env: impl IntoIterator<Item = (String, String)>,
        root: &mut Map<String, Value>,
    ) -> Overlay {
        let mut overlay = Overlay::default();
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
    shape: Shape,
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

fn known(key: &str, keys: &'static [(&'static str, Shape)]) -> Option<(&'static str, Shape)> {
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

fn value_of(text: &str, shape: Shape) -> Value {
    let kind = match shape {
        Shape::Text => ValueKind::String(text.to_owned()),
        Shape::List if text.trim().is_empty() => ValueKind::Array(Vec::new()),
        Shape::List => ValueKind::Array(text.split(',').map(|part| part.trim().into()).collect()),
        Shape::Number => match (text.trim().parse::<i64>(), text.trim().parse::<f64>()) {
            (Ok(n), _) => ValueKind::I64(n),
            (_, Ok(x)) => ValueKind::Float(x),
            _ => ValueKind::String(text.to_owned()),
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
