//! How errors are collected, and the checks of single values that all tables share.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use config::{Value, ValueKind};

use super::file::{Section, ValueType};
use super::lines::Lines;
use super::suggestion::closest;
use super::units::{self, show_duration, show_size};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The path of a table, to which keys are appended.
pub(super) struct KeyPath {
    /// To look up the variable that set a key: `rules[2].`
    path: String,
    /// For messages: `rules[2] "blog-pages": `
    title: String,
}

impl KeyPath {
    pub(super) fn top() -> KeyPath {
        KeyPath { path: String::new(), title: String::new() }
    }

    pub(super) fn table(path: String) -> KeyPath {
        let path = path + ".";
        KeyPath { title: path.clone(), path }
    }

    pub(super) fn inside(&self, key: &str) -> KeyPath {
        KeyPath { path: format!("{}{key}.", self.path), title: format!("{}{key}.", self.title) }
    }

    pub(super) fn titled(path: String, name: &str) -> KeyPath {
        KeyPath { title: format!("{path} {name:?}: "), path: path + "." }
    }
}

/// Collects errors and warnings. A check that returns `None` has added an error.
pub(super) struct Validator<'a> {
    /// The name of the file, for messages.
    pub(super) file: &'a str,
    /// The memory that the process may use, in bytes; `None`: unlimited.
    pub(super) memory: Option<u64>,
    /// The lines of its keys.
    pub(super) lines: Lines,
    /// The path of a key → the environment variable that set it.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Validator<'_> {
    /// Adds `config/prod.toml: rules[2] "user": lock_ttl ("90s") must be …`, with the variable in place of the file if one set
    /// the key.
    pub(super) fn error(&mut self, at: &KeyPath, key: &str, found: Option<&Value>, message: impl Display) {
        let path = format!("{}{key}", at.path);
        let list = path.strip_suffix(']').and_then(|p| p.rsplit_once('[')).map(|(list, _)| list);
        let variable = self.variables.get(&path).or_else(|| self.variables.get(list?));
        let source = match (variable, self.lines.find(&path)) {
            (Some(variable), _) => variable.clone(),
            (None, Some(line)) => format!("{}: line {line}", self.file),
            (None, None) => self.file.to_owned(),
        };
        let found = found.map(|v| format!(" ({})", show(v))).unwrap_or_default();
        self.errors.push(format!("{source}: {}{key}{found} {message}", at.title));
    }

    /// Adds a warning about a setting that is valid but probably not intended.
    pub(super) fn warn(&mut self, at: &KeyPath, message: impl Display) {
        self.warnings.push(format!("{}{message}", at.title));
    }

    pub(super) fn unknown<'k>(
        &mut self,
        at: &KeyPath,
        rest: &BTreeMap<String, Value>,
        known: impl IntoIterator<Item = &'k str> + Clone,
    ) {
        for key in rest.keys() {
            match closest(key, known.clone()) {
                Some(similar) => {
                    self.error(at, key, None, format_args!("is not a known key: did you mean {similar}?"));
                }
                None => {
                    let all = known.clone().into_iter().collect::<Vec<_>>().join(", ");
                    self.error(at, key, None, format_args!("is not a known key: must be one of {all}"));
                }
            }
        }
    }

    /// Checks one key: returns its value as `parse` converts it, or the default if the key is absent.
    pub(super) fn value<T>(
        &mut self,
        at: &KeyPath,
        key: &str,
        value: &Option<Value>,
        default: T,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        match value.as_ref().map(parse) {
            None => Some(default),
            Some(Ok(it)) => Some(it),
            Some(Err(message)) => {
                self.error(at, key, value.as_ref(), message);
                None
            }
        }
    }

    /// Checks a key whose value is a list.
    pub(super) fn list<T>(
        &mut self,
        at: &KeyPath,
        key: &str,
        value: &Option<Value>,
        default: Vec<T>,
        parse: impl FnMut(&mut Self, String, &Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.entries(at, key, value, default, parse)?.into_iter().collect()
    }

    /// Like [`list`](Self::list), with `None` for each entry that has an error.
    pub(super) fn entries<T>(
        &mut self,
        at: &KeyPath,
        key: &str,
        value: &Option<Value>,
        default: Vec<T>,
        mut parse: impl FnMut(&mut Self, String, &Value) -> Option<T>,
    ) -> Option<Vec<Option<T>>> {
        match value.as_ref().map(|v| &v.kind) {
            None => Some(default.into_iter().map(Some).collect()),
            Some(ValueKind::Array(entries)) => {
                let entries = entries.iter().enumerate();
                Some(entries.map(|(i, v)| parse(self, format!("{key}[{i}]"), v)).collect())
            }
            Some(_) => {
                self.error(at, key, value.as_ref(), "must be a list: [\"…\", \"…\"]");
                None
            }
        }
    }

    /// Returns a top-level table, empty if it is absent.
    pub(super) fn table<T: Default>(&mut self, key: &str, section: Section<T>) -> Option<T> {
        match section {
            Section::Absent => Some(T::default()),
            Section::Present(table) => Some(table),
            Section::Wrong(value) => {
                self.error(&KeyPath::top(), key, Some(&value), format_args!("must be a table: [{key}]"));
                None
            }
        }
    }
}

/// A value in TOML notation, shortened to 60 characters.
fn show(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(s) if s.chars().count() > 60 => {
            format!("{:?}…", s.chars().take(60).collect::<String>())
        }
        ValueKind::String(s) => format!("{s:?}"),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        other => other.to_string(),
    }
}

/// The names of a table's keys.
pub(super) fn keys(of: &'static [(&'static str, ValueType)]) -> impl Iterator<Item = &'static str> + Clone {
    of.iter().map(|(key, _)| *key)
}

pub(super) fn text(value: &Value) -> Result<&str, String> {
    match &value.kind {
        ValueKind::String(s) => Ok(s),
        _ => Err("must be a string in quotes".to_owned()),
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &Value) -> Result<bool, String> {
    match value.kind {
        ValueKind::Boolean(value) => Ok(value),
        _ => Err("must be true or false, without quotes".to_owned()),
    }
}

/// A duration within limits.
pub(super) fn duration(range: RangeInclusive<Duration>) -> impl FnOnce(&Value) -> Result<Duration, String> {
    move |value| {
        let ValueKind::String(s) = &value.kind else {
            return Err("must be a whole number with a unit, in quotes: \"250ms\", \"5s\"".to_owned());
        };
        let (min, max) = (range.start(), range.end());
        match units::duration(s)? {
            d if range.contains(&d) => Ok(d),
            _ if min.is_zero() => Err(format!("must be at most {}", show_duration(*max))),
            _ => Err(format!("must be between {} and {}", show_duration(*min), show_duration(*max))),
        }
    }
}

/// A duration within limits that memcached stores as a TTL, which has a resolution of one second.
pub(super) fn whole_seconds(
    range: RangeInclusive<Duration>,
) -> impl FnOnce(&Value) -> Result<Duration, String> {
    move |value| match duration(range)(value)? {
        d if d.subsec_nanos() == 0 => Ok(d),
        d => Err(format!("must be a whole number of seconds: \"{}s\"", d.as_secs() + 1)),
    }
}

/// A size in bytes within limits.
pub(super) fn size(range: RangeInclusive<u64>) -> impl FnOnce(&Value) -> Result<u64, String> {
    move |value| {
        let ValueKind::String(s) = &value.kind else {
            return Err("must be a whole number with a unit, in quotes: \"64MiB\"".to_owned());
        };
        match units::size(s)? {
            size if range.contains(&size) => Ok(size),
            _ => {
                let (min, max) = (show_size(*range.start()), show_size(*range.end()));
                Err(format!("must be between {min} and {max}"))
            }
        }
    }
}

/// A size in bytes within limits, or "auto": a part of the memory that the process may use, but no more than `most`.
pub(super) fn automatic_size(
    range: RangeInclusive<u64>,
    part: u64,
    most: u64,
    memory: Option<u64>,
) -> (u64, impl FnOnce(&Value) -> Result<u64, String>) {
    let automatic = memory.map_or(most, |memory| (memory / part).clamp(*range.start(), most));
    let parse = move |value: &Value| match text(value) {
        Ok("auto") => Ok(automatic),
        _ => size(range)(value).map_err(|why| format!("{why}, or \"auto\"")),
    };
    (automatic, parse)
}

/// An integer within limits.
pub(super) fn integer(range: RangeInclusive<i64>) -> impl FnOnce(&Value) -> Result<i64, String> {
    move |value| match value.kind {
        ValueKind::I64(n) if range.contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from {} to {}", range.start(), range.end())),
    }
}

/// One of several words.
pub(super) fn word<T: Copy>(words: &[(&str, T)]) -> impl FnOnce(&Value) -> Result<T, String> {
    move |value| {
        let found = words.iter().find(|(w, _)| text(value).is_ok_and(|found| found == *w));
        let all = || words.iter().map(|(w, _)| format!("{w:?}")).collect::<Vec<_>>().join(" or ");
        found.map(|(_, it)| *it).ok_or_else(|| format!("must be {}", all()))
    }
}
