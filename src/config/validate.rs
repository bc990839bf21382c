//! From what is written to what is meant, collecting every mistake on the way.
//!
//! A function that gives `None` here has said why: the configuration is refused at the end, once, with all of it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use config::{Value, ValueKind};

use super::addresses::overlap;
use super::environment::Overrides;
use super::file::{self, ConfigFile, Section, ValueType};
use super::units::{self, closest, show_duration};
use super::{
    Config, ConfigErrors, FlushAll, Listen, ListenAddress, ListenerSpec, Near, Tags, listen, pools, rules,
};
use crate::guard::envelope::lock_key;
use crate::handshake::Requirements;
use crate::proxy::connection_use::ConnectionUse;
use crate::upstream::PoolSpec;

pub(super) const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// What `max_buffered` may be: less would not hold one large value a worker.
const BUFFERED: RangeInclusive<u64> = 16 << 20..=1 << 40;
/// What `near.memory` may be.
const NEAR_MEMORY: RangeInclusive<u64> = 1 << 20..=1 << 40;

pub(super) fn understand(file: &str, root: ConfigFile, overlay: Overrides) -> Result<Config, ConfigErrors> {
    let Overrides { variables, mistakes, warnings } = overlay;
    let mut r = Validator { file, variables, mistakes, warnings };
    r.unknown(&KeyPath::top(), &root.rest, file::TABLES);
    let (listen, entrances) = listeners(&mut r, root.listen);
    let admin = admin(&mut r, root.admin, &entrances);
    let (specs, names) = pools::pools(&mut r, root.pools, &entrances);
    let tags = tags(&mut r, root.tags, &names, specs.as_deref());
    let near = near(&mut r, root.near);
    let rules = rules::rules(&mut r, root.rules, &names, tags.as_ref());
    match (listen, admin, specs, tags, near, rules) {
        (Some(listen), Some(admin), Some(pools), Some(tags), Some(near), Some(rules))
            if r.mistakes.is_empty() =>
        {
            Ok(Config { listen, admin, pools, tags, near, rules, warnings: r.warnings })
        }
        _ => Err(ConfigErrors(r.mistakes)),
    }
}

/// Where in the configuration we are.
pub(super) struct KeyPath {
    /// For looking up which variable set a key: `rules[2].`
    path: String,
    /// For people: `rules[2] "blog-pages": `
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

/// Collects what is wrong.
pub(super) struct Validator<'a> {
    file: &'a str,
    variables: BTreeMap<String, String>,
    pub(super) mistakes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Validator<'_> {
    /// `config/prod.toml: rules[2] "user": lock_ttl ("90s") must be …`, or the variable in place of the file.
    pub(super) fn say(&mut self, at: &KeyPath, key: &str, found: Option<&Value>, what: impl Display) {
        let path = format!("{}{key}", at.path);
        let list = path.strip_suffix(']').and_then(|p| p.rsplit_once('[')).map(|(list, _)| list);
        let variable = self.variables.get(&path).or_else(|| self.variables.get(list?));
        let source = variable.map_or(self.file, String::as_str);
        let found = found.map(|v| format!(" ({})", show(v))).unwrap_or_default();
        self.mistakes.push(format!("{source}: {}{key}{found} {what}", at.title));
    }

    /// Notes what is legal but probably not wanted.
    pub(super) fn warn(&mut self, at: &KeyPath, what: impl Display) {
        self.warnings.push(format!("{}{what}", at.title));
    }

    /// Refuses the keys that do not exist.
    pub(super) fn unknown<'k>(
        &mut self,
        at: &KeyPath,
        rest: &BTreeMap<String, Value>,
        known: impl IntoIterator<Item = &'k str> + Clone,
    ) {
        for key in rest.keys() {
            match closest(key, known.clone()) {
                Some(meant) => {
                    self.say(at, key, None, format_args!("is not a key here: did you mean {meant}?"));
                }
                None => {
                    let all = known.clone().into_iter().collect::<Vec<_>>().join(", ");
                    self.say(at, key, None, format_args!("is not a key here: there are {all}"));
                }
            }
        }
    }

    /// One key: its value as `parse` understands it, or the default where nothing is written.
    pub(super) fn leaf<T>(
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
            Some(Err(what)) => {
                self.say(at, key, value.as_ref(), what);
                None
            }
        }
    }

    /// One key that holds a list.
    pub(super) fn list<T>(
        &mut self,
        at: &KeyPath,
        key: &str,
        value: &Option<Value>,
        default: Vec<T>,
        parse: impl FnMut(&mut Self, String, &Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.parts(at, key, value, default, parse)?.into_iter().collect()
    }

    /// The same, with `None` for each part that has a mistake.
    fn parts<T>(
        &mut self,
        at: &KeyPath,
        key: &str,
        value: &Option<Value>,
        default: Vec<T>,
        mut parse: impl FnMut(&mut Self, String, &Value) -> Option<T>,
    ) -> Option<Vec<Option<T>>> {
        match value.as_ref().map(|v| &v.kind) {
            None => Some(default.into_iter().map(Some).collect()),
            Some(ValueKind::Array(parts)) => {
                let parts = parts.iter().enumerate();
                Some(parts.map(|(i, v)| parse(self, format!("{key}[{i}]"), v)).collect())
            }
            Some(_) => {
                self.say(at, key, value.as_ref(), "must be a list: [\"…\", \"…\"]");
                None
            }
        }
    }

    /// A table: what is written of it, or that it is none.
    pub(super) fn table<T: Default>(&mut self, key: &str, written: Section<T>) -> Option<T> {
        match written {
            Section::Absent => Some(T::default()),
            Section::Is(it) => Some(it),
            Section::Wrong(value) => {
                self.say(&KeyPath::top(), key, Some(&value), format_args!("must be a table: [{key}]"));
                None
            }
        }
    }

    /// Refuses each that the system would not let listen beside an earlier one.
    fn taken<A: Listener>(
        &mut self,
        at: &KeyPath,
        key: &str,
        entrances: &[Option<ListenerSpec<A>>],
        same: impl Fn(&A, &A) -> bool,
        or_else: &str,
    ) {
        for (i, one) in written_entrances(entrances) {
            if let Some((j, other)) =
                written_entrances(&entrances[..i]).find(|(_, other)| same(&one.at, &other.at))
            {
                let what =
                    format!("is taken by listen.{key}[{j}] ({:?}): remove one{or_else}", other.at.shown());
                self.say(at, &format!("{key}[{i}]"), Some(&one.at.shown().into()), what);
            }
        }
    }
}

/// Where one can listen.
trait Listener {
    /// As it is written.
    fn shown(&self) -> String;
}

impl Listener for ListenAddress {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Listener for PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

/// A value the way it is written, but never long.
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

pub(super) fn keys(of: &'static [(&'static str, ValueType)]) -> impl Iterator<Item = &'static str> + Clone {
    of.iter().map(|(key, _)| *key)
}

pub(super) fn text(value: &Value) -> Result<&str, String> {
    match &value.kind {
        ValueKind::String(s) => Ok(s),
        _ => Err("must be a text in quotes".to_owned()),
    }
}

/// A duration within limits.
pub(super) fn span(range: RangeInclusive<Duration>) -> impl FnOnce(&Value) -> Result<Duration, String> {
    move |value| {
        let ValueKind::String(s) = &value.kind else {
            return Err("must be a whole number with its unit, in quotes: \"250ms\", \"5s\"".to_owned());
        };
        let (min, max) = (range.start(), range.end());
        match units::duration(s)? {
            d if range.contains(&d) => Ok(d),
            _ if min.is_zero() => Err(format!("must be at most {}", show_duration(*max))),
            _ => Err(format!("must be between {} and {}", show_duration(*min), show_duration(*max))),
        }
    }
}

/// A duration within limits that a server has to count down, which it does in whole seconds.
pub(super) fn whole_seconds(
    range: RangeInclusive<Duration>,
) -> impl FnOnce(&Value) -> Result<Duration, String> {
    move |value| match span(range)(value)? {
        d if d.subsec_nanos() == 0 => Ok(d),
        d => Err(format!("must be whole seconds: \"{}s\"", d.as_secs() + 1)),
    }
}

/// A size in bytes within limits.
fn bytes(range: RangeInclusive<u64>) -> impl FnOnce(&Value) -> Result<u64, String> {
    move |value| {
        let ValueKind::String(s) = &value.kind else {
            return Err("must be a whole number with its unit, in quotes: \"64MiB\"".to_owned());
        };
        match units::size(s)? {
            size if range.contains(&size) => Ok(size),
            _ => {
                let (min, max) = (units::show_size(*range.start()), units::show_size(*range.end()));
                Err(format!("must be between {min} and {max}"))
            }
        }
    }
}

/// A whole number within limits.
pub(super) fn count(range: RangeInclusive<i64>) -> impl FnOnce(&Value) -> Result<i64, String> {
    move |value| match value.kind {
        ValueKind::I64(n) if range.contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from {} to {}", range.start(), range.end())),
    }
}

/// One word of a few.
pub(super) fn word<T: Copy>(words: &[(&str, T)]) -> impl FnOnce(&Value) -> Result<T, String> {
    move |value| {
        let found = words.iter().find(|(w, _)| text(value).is_ok_and(|found| found == *w));
        let all = || words.iter().map(|(w, _)| format!("{w:?}")).collect::<Vec<_>>().join(" or ");
        found.map(|(_, it)| *it).ok_or_else(|| format!("must be {}", all()))
    }
}

/// Where clients come in, `None` for each that has a mistake.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) tcp: Vec<Option<ListenerSpec<ListenAddress>>>,
    pub(super) unix: Vec<Option<ListenerSpec<PathBuf>>>,
}

/// Those without a mistake, and which they are.
pub(super) fn written_entrances<A>(
    entrances: &[Option<ListenerSpec<A>>],
) -> impl Iterator<Item = (usize, &ListenerSpec<A>)> {
    entrances.iter().enumerate().filter_map(|(i, entrance)| Some((i, entrance.as_ref()?)))
}

fn listeners(r: &mut Validator<'_>, written: Section<file::Listen>) -> (Option<Listen>, Listeners) {
    let Some(w) = r.table("listen", written) else { return (None, Listeners::default()) };
    let at = KeyPath::table("listen".to_owned());
    r.unknown(&at, &w.rest, keys(file::Listen::KEYS));
    let default = ListenAddress { host: "127.0.0.1".to_owned(), port: 11211 };
    let usual = listen::clients(r, &at, &w.clients, ConnectionUse::Auto);
    let clients = usual.unwrap_or_default();
    let default = vec![ListenerSpec { at: default, terms: Requirements::default(), clients }];
    let tcp = r.parts(&at, "tcp", &w.tcp, default, |r, key, v| listen::tcp(r, &at, key, v, clients));
    let unix = r.parts(&at, "unix", &w.unix, Vec::new(), |r, key, v| listen::unix(r, &at, key, v, clients));
    let are_lists = tcp.is_some() && unix.is_some();
    let entrances = Listeners { tcp: tcp.unwrap_or_default(), unix: unix.unwrap_or_default() };
    r.taken(&at, "tcp", &entrances.tcp, overlap, ", or give it another port");
    r.taken(&at, "unix", &entrances.unix, PathBuf::eq, "");
    if are_lists && entrances.tcp.is_empty() && entrances.unix.is_empty() {
        let what = "is empty and so is unix: no client could come in; give one of them an entry";
        r.say(&at, "tcp", None, what);
    }
    let unix_mode = r.leaf(&at, "unix_mode", &w.unix_mode, 0o660, |v| match text(v) {
        Ok(s) => units::mode(s),
        Err(_) => Err("must be octal digits in quotes: \"0660\"".to_owned()),
    });
    let max_connections = r.leaf(&at, "max_connections", &w.max_connections, 10_000, count(1..=1_000_000));
    let idle_timeout =
        r.leaf(&at, "idle_timeout", &w.idle_timeout, Duration::ZERO, span(Duration::ZERO..=DAY));
    let max_buffered = r.leaf(&at, "max_buffered", &w.max_buffered, 512 << 20, bytes(BUFFERED));
    let workers = r.leaf(&at, "workers", &w.workers, 0, count(0..=64));
    let flush_alls = [("allow", FlushAll::Allow), ("refuse", FlushAll::Refuse)];
    let flush_all = r.leaf(&at, "flush_all", &w.flush_all, FlushAll::Allow, word(&flush_alls));
    let listen = || {
        let tcp = entrances.tcp.iter().cloned().collect::<Option<_>>()?;
        let unix = entrances.unix.iter().cloned().collect::<Option<_>>()?;
        let (max_connections, workers) = (max_connections? as usize, workers? as usize);
        let (idle_timeout, max_buffered) = (idle_timeout?, max_buffered? as usize);
        let (unix_mode, flush_all) = (unix_mode?, flush_all?);
        usual?;
        Some(Listen { tcp, unix, unix_mode, max_connections, idle_timeout, max_buffered, workers, flush_all })
    };
    (listen(), entrances)
}

/// The inner `None` is the page turned off.
fn admin(
    r: &mut Validator<'_>,
    written: Section<file::Admin>,
    entrances: &Listeners,
) -> Option<Option<ListenAddress>> {
    let w = r.table("admin", written)?;
    let at = KeyPath::table("admin".to_owned());
    r.unknown(&at, &w.rest, keys(file::Admin::KEYS));
    let default = Some(ListenAddress { host: "127.0.0.1".to_owned(), port: 9111 });
    let address = r.leaf(&at, "listen", &w.listen, default, |v| match text(v)? {
        "" => Ok(None),
        address => units::listen_address(address).map(Some),
    })?;
    let mut tcp = written_entrances(&entrances.tcp);
    let taken = address.as_ref().and_then(|a| tcp.find(|(_, entrance)| overlap(a, &entrance.at)));
    if let Some((i, other)) = taken {
        let what = format!(
            "is taken by listen.tcp[{i}] ({:?}): give the page a port of its own, or \"\" to turn it off",
            other.at.to_string()
        );
        r.say(&at, "listen", w.listen.as_ref(), what);
        return None;
    }
    Some(address)
}

fn tags(
    r: &mut Validator<'_>,
    written: Section<file::Tags>,
    pools: &[String],
    specs: Option<&[PoolSpec]>,
) -> Option<Tags> {
    let w = r.table("tags", written)?;
    let at = KeyPath::table("tags".to_owned());
    r.unknown(&at, &w.rest, keys(file::Tags::KEYS));
    let prefix = r.leaf(&at, "prefix", &w.prefix, b"@tag:".to_vec(), |v| {
        let prefix = text(v)?.as_bytes();
        let lock = lock_key(b""); // what the lock of every key begins with
        if !(1..=32).contains(&prefix.len()) || prefix.iter().any(|b| b" \r\n\0".contains(b)) {
            return Err("must be 1 to 32 bytes that a key may have, so no space: \"@tag:\"".to_owned());
        }
        if prefix.starts_with(&lock) || lock.starts_with(prefix) {
            let lock = String::from_utf8_lossy(&lock);
            return Err(format!(
                "must not begin with {lock:?}, nor {lock:?} with it: a tag would share its key with a key's lock"
            ));
        }
        Ok(prefix.to_vec())
    });
    let cache = r.leaf(&at, "cache", &w.cache, Duration::ZERO, span(Duration::ZERO..=MINUTE));
    let pool = pools::pool_index(r, &at, &w.pool, pools);
    let replicas = r.leaf(&at, "replicas", &w.replicas, 1, count(1..=2))? as usize;
    let pool = pool?;
    let servers = specs.and_then(|specs| specs.get(pool)).map_or(replicas, |spec| spec.servers.len());
    if servers < replicas {
        let what = format!("needs a pool of as many servers, and {:?} has one", pools[pool]);
        r.say(&at, "replicas", w.replicas.as_ref(), what);
        return None;
    }
    Some(Tags { prefix: prefix?, cache: cache?, pool, replicas })
}

fn near(r: &mut Validator<'_>, written: Section<file::Near>) -> Option<Near> {
    let w = r.table("near", written)?;
    let at = KeyPath::table("near".to_owned());
    r.unknown(&at, &w.rest, keys(file::Near::KEYS));
    let memory = r.leaf(&at, "memory", &w.memory, 64 << 20, bytes(NEAR_MEMORY))?;
    Some(Near { memory: memory as usize })
}
