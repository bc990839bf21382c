//! `[listen]`: the listeners, what each requires of its clients, and the limits of all of them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use config::{Value, ValueKind};
use serde::Deserialize;

use super::addresses::overlap;
use super::file::{self, Section};
use super::units;
use super::validator::{DAY, HOUR, KeyPath, Validator, automatic_size, duration, integer, keys, text, word};
use crate::clock::{unix_ms, utc};
use crate::handshake::{Handshake, Requirements};
use crate::listener::{FlushAll, Listen, ListenAddress, ListenerSpec};
use crate::proxy::connection_use::ConnectionUse;
use crate::tls::TlsFiles;

/// The allowed values of `max_buffered`. Less could not hold one large value per worker.
const MAX_BUFFERED: RangeInclusive<u64> = 16 << 20..=1 << 40;

/// The listeners, with `None` for each that has an error.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) tcp: Vec<Option<ListenerSpec<ListenAddress>>>,
    pub(super) unix: Vec<Option<ListenerSpec<PathBuf>>>,
}

/// The listeners without an error, and their indices.
pub(super) fn valid<A>(
    listeners: &[Option<ListenerSpec<A>>],
) -> impl Iterator<Item = (usize, &ListenerSpec<A>)> {
    listeners.iter().enumerate().filter_map(|(i, listener)| Some((i, listener.as_ref()?)))
}

/// Validates `[listen]`. The listeners are returned even if something else in the table has an error, so that the other tables
/// can be checked against them.
pub(super) fn listen(v: &mut Validator<'_>, section: Section<file::Listen>) -> (Option<Listen>, Listeners) {
    let Some(table) = v.table("listen", section) else { return (None, Listeners::default()) };
    let at = KeyPath::table("listen".to_owned());
    v.unknown(&at, &table.rest, keys(file::Listen::KEYS));
    let default_use = connection_use(v, &at, &table.clients, ConnectionUse::Auto);
    let clients = default_use.unwrap_or_default();
    let address = ListenAddress { host: "127.0.0.1".to_owned(), port: 11211 };
    let default = vec![ListenerSpec { address, requirements: Requirements::default(), clients }];
    let tcp = v.entries(&at, "tcp", &table.tcp, default, |v, key, value| tcp(v, &at, key, value, clients));
    let unix =
        v.entries(&at, "unix", &table.unix, Vec::new(), |v, key, value| unix(v, &at, key, value, clients));
    let are_lists = tcp.is_some() && unix.is_some();
    let listeners = Listeners { tcp: tcp.unwrap_or_default(), unix: unix.unwrap_or_default() };
    conflicts(v, &at, "tcp", &listeners.tcp, overlap, ToString::to_string, ", or use another port");
    conflicts(v, &at, "unix", &listeners.unix, PathBuf::eq, |path| path.display().to_string(), "");
    if are_lists && listeners.tcp.is_empty() && listeners.unix.is_empty() {
        v.error(&at, "tcp", None, "and listen.unix are both empty: add an address to one of them");
    }
    let unix_mode = v.value(&at, "unix_mode", &table.unix_mode, 0o660, |value| match text(value) {
        Ok(s) => units::mode(s),
        Err(_) => Err("must be octal digits in quotes: \"0660\"".to_owned()),
    });
    let max_connections =
        v.value(&at, "max_connections", &table.max_connections, 10_000, integer(1..=1_000_000));
    let idle_timeout =
        v.value(&at, "idle_timeout", &table.idle_timeout, Duration::ZERO, duration(Duration::ZERO..=DAY));
    let (automatic, buffered) = automatic_size(MAX_BUFFERED, 4, 512 << 20, v.memory);
    let max_buffered = v.value(&at, "max_buffered", &table.max_buffered, automatic, buffered);
    let workers = v.value(&at, "workers", &table.workers, 1, integer(0..=64));
    let flush_alls = [("allow", FlushAll::Allow), ("refuse", FlushAll::Refuse)];
    let flush_all = v.value(&at, "flush_all", &table.flush_all, FlushAll::Allow, word(&flush_alls));
    let drain_delay =
        v.value(&at, "drain_delay", &table.drain_delay, Duration::ZERO, duration(Duration::ZERO..=HOUR));
    let default = Duration::from_secs(120);
    let takeover_timeout =
        v.value(&at, "takeover_timeout", &table.takeover_timeout, default, duration(Duration::ZERO..=HOUR));
    let listen = || {
        let tcp = listeners.tcp.iter().cloned().collect::<Option<_>>()?;
        let unix = listeners.unix.iter().cloned().collect::<Option<_>>()?;
        let (max_connections, workers) = (max_connections? as usize, workers? as usize);
        let (idle_timeout, max_buffered) = (idle_timeout?, max_buffered? as usize);
        let (unix_mode, flush_all) = (unix_mode?, flush_all?);
        default_use?;
        let (drain_delay, takeover_timeout) = (drain_delay?, takeover_timeout?);
        Some(Listen {
            tcp,
            unix,
            unix_mode,
            max_connections,
            idle_timeout,
            max_buffered,
            workers,
            flush_all,
            drain_delay,
            takeover_timeout,
        })
    };
    (listen(), listeners)
}

/// Rejects each listener that cannot be bound beside an earlier one.
fn conflicts<A>(
    v: &mut Validator<'_>,
    at: &KeyPath,
    key: &str,
    listeners: &[Option<ListenerSpec<A>>],
    same: impl Fn(&A, &A) -> bool,
    show: impl Fn(&A) -> String,
    alternative: &str,
) {
    for (i, one) in valid(listeners) {
        if let Some((j, other)) = valid(&listeners[..i]).find(|(_, other)| same(&one.address, &other.address))
        {
            let message = format!(
                "conflicts with listen.{key}[{j}] ({:?}): remove one{alternative}",
                show(&other.address)
            );
            v.error(at, &format!("{key}[{i}]"), Some(&show(&one.address).into()), message);
        }
    }
}

/// An entry of `tcp`: `"host:port"`, or a table with requirements.
fn tcp(
    v: &mut Validator<'_>,
    at: &KeyPath,
    key: String,
    value: &Value,
    default_use: ConnectionUse,
) -> Option<ListenerSpec<ListenAddress>> {
    let address = |value: &Value| units::listen_address(text(value)?).map(Some);
    match &value.kind {
        ValueKind::String(_) => {
            let address = v.value(at, &key, &Some(value.clone()), None, address)??;
            Some(ListenerSpec { address, requirements: Requirements::default(), clients: default_use })
        }
        ValueKind::Table(_) => {
            let table = file::TcpEntry::deserialize(value.clone()).unwrap_or_default(); // cannot fail for a table
            let inside = at.inside(&key);
            v.unknown(&inside, &table.rest, keys(file::TcpEntry::KEYS));
            if table.address.is_none() {
                v.error(at, &key, None, "has no address: add address = \"127.0.0.1:11211\"");
            }
            let address = v.value(&inside, "address", &table.address, None, address);
            let requirements = requirements(v, &inside, &table.tls, &table.auth_file);
            let clients = connection_use(v, &inside, &table.clients, default_use);
            Some(ListenerSpec { address: address??, requirements: requirements?, clients: clients? })
        }
        _ => {
            let message = "must be \"host:port\" or { address = \"host:port\", auth_file = \"/path\" }";
            v.error(at, &key, Some(value), message);
            None
        }
    }
}

/// An entry of `unix`: `"/path"`, or a table with requirements. TLS is not among them: these clients are on the same machine.
fn unix(
    v: &mut Validator<'_>,
    at: &KeyPath,
    key: String,
    value: &Value,
    default_use: ConnectionUse,
) -> Option<ListenerSpec<PathBuf>> {
    let path = |value: &Value| units::unix_path(text(value)?).map(Some);
    match &value.kind {
        ValueKind::Table(_) => {
            let table = file::UnixEntry::deserialize(value.clone()).unwrap_or_default(); // cannot fail for a table
            let inside = at.inside(&key);
            v.unknown(&inside, &table.rest, keys(file::UnixEntry::KEYS));
            if table.path.is_none() {
                v.error(at, &key, None, "has no path: add path = \"/run/kennel/kennel.sock\"");
            }
            let path = v.value(&inside, "path", &table.path, None, path);
            let requirements = requirements(v, &inside, &None, &table.auth_file);
            let clients = connection_use(v, &inside, &table.clients, default_use);
            Some(ListenerSpec { address: path??, requirements: requirements?, clients: clients? })
        }
        _ => {
            let path = v.value(at, &key, &Some(value.clone()), None, path)??;
            Some(ListenerSpec { address: path, requirements: Requirements::default(), clients: default_use })
        }
    }
}

/// `clients`: whether clients use connection pools.
fn connection_use(
    v: &mut Validator<'_>,
    at: &KeyPath,
    value: &Option<Value>,
    default: ConnectionUse,
) -> Option<ConnectionUse> {
    let all = [ConnectionUse::Auto, ConnectionUse::Single, ConnectionUse::Pooled, ConnectionUse::Shared]
        .map(|kind| (kind.word(), kind));
    v.value(at, "clients", value, default, word(&all))
}

/// `tls` and `auth_file`. The files are read too: a file that cannot be used is an error of the configuration.
pub(super) fn requirements(
    v: &mut Validator<'_>,
    at: &KeyPath,
    tls: &Option<Value>,
    auth_file: &Option<Value>,
) -> Option<Requirements> {
    let inside = at.inside("tls");
    let files = match tls.as_ref().map(|value| (value, &value.kind)) {
        None => Some((file::Tls::default(), None)),
        Some((value, ValueKind::Table(_))) => {
            let table = file::Tls::deserialize(value.clone()).unwrap_or_default(); // cannot fail for a table
            v.unknown(&inside, &table.rest, keys(file::Tls::KEYS));
            let cert = v.value(&inside, "cert", &table.cert, None, absolute_path);
            let key = v.value(&inside, "key", &table.key, None, absolute_path);
            let client_ca = v.value(&inside, "client_ca", &table.client_ca, None, absolute_path);
            if table.cert.is_none() || table.key.is_none() {
                let message = "must name two PEM files: cert = \"/path\", key = \"/path\"";
                v.error(at, "tls", None, message);
            }
            match (cert, key, client_ca) {
                (Some(Some(cert)), Some(Some(key)), Some(client_ca)) => {
                    Some((table, Some(TlsFiles { cert, key, client_ca })))
                }
                _ => None,
            }
        }
        Some((value, _)) => {
            v.error(at, "tls", Some(value), "must be a table: { cert = \"/path\", key = \"/path\" }");
            None
        }
    };
    let auth = v.value(at, "auth_file", auth_file, None, absolute_path);
    let (is_complete, table, tls) = match files {
        Some((table, tls)) => (true, table, tls),
        None => (false, file::Tls::default(), None),
    };
    // Files that can be read are checked even if other keys have errors.
    let requirements = Requirements { tls, auth_file: auth.clone().flatten() };
    match Handshake::new(&requirements) {
        Ok(handshake) => {
            warn_of_expired(v, at, handshake.iter().flat_map(|handshake| handshake.certificates()));
            (is_complete && auth.is_some()).then_some(requirements)
        }
        Err(bad_files) => {
            for bad in bad_files {
                let (at, value) = match bad.key {
                    "cert" => (&inside, &table.cert),
                    "key" => (&inside, &table.key),
                    "client_ca" => (&inside, &table.client_ca),
                    _ => (at, auth_file),
                };
                v.error(at, bad.key, value.as_ref(), bad.what);
            }
            None
        }
    }
}

/// Names the files whose certificates have expired. `expiries`: when each does, in seconds of Unix time.
pub(super) fn warn_of_expired(
    v: &mut Validator<'_>,
    at: &KeyPath,
    expiries: impl IntoIterator<Item = (String, i64)>,
) {
    for (file, expiry) in expiries {
        // Before 1970, if it is negative.
        let expired_ms = u64::try_from(expiry).unwrap_or(0).saturating_mul(1_000);
        if expired_ms < unix_ms() {
            let when = utc(expired_ms).unwrap_or_else(|| format!("{expiry} s of Unix time"));
            v.warn(
                at,
                format!("tls: the certificate in {file:?} expired at {when}: who verifies it refuses it"),
            );
        }
    }
}

/// A path that begins with `/`.
pub(super) fn absolute_path(value: &Value) -> Result<Option<PathBuf>, String> {
    match text(value)? {
        path if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
        _ => Err("must be an absolute path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigErrors};

    fn read(listen: &str) -> Result<Config, ConfigErrors> {
        let text = format!("[pools.main]\nservers = [\"10.0.0.1:11211\"]\n[listen]\n{listen}\n");
        Config::read("k.toml", &text, [])
    }

    fn errors(listen: &str) -> Vec<String> {
        read(listen).expect_err(listen).without_places()
    }

    #[test]
    fn an_entry_is_a_string_or_a_table() {
        let config = read(
            "tcp = [\"127.0.0.1:1\", { address = \"127.0.0.1:2\" }]\nunix = [\"/a\", { path = \"/b\" }]",
        );
        let listen = config.unwrap().listen;
        assert_eq!(listen.tcp.iter().map(|e| e.address.port).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(
            listen.unix.iter().map(|e| e.address.to_str()).collect::<Vec<_>>(),
            [Some("/a"), Some("/b")]
        );
        assert!(listen.tcp.iter().all(|e| e.requirements == Requirements::default()));
        assert_eq!(
            errors("tcp = [3]"),
            [
                "k.toml: listen.tcp[0] (3) must be \"host:port\" or { address = \"host:port\", auth_file = \"/path\" }"
            ]
        );
        assert_eq!(errors("unix = [3]"), ["k.toml: listen.unix[0] (3) must be a string in quotes"]);
        assert_eq!(errors("tcp = [\"a:1\", { address = \"A:1\" }]").len(), 1);
        assert_eq!(errors("unix = [\"/a\", { path = \"/a\" }]").len(), 1);
    }

    #[test]
    fn the_errors_of_an_entry_and_of_its_files_are_reported_together() {
        let found = errors(
            "tcp = [{ adress = \"a:1\", tls = { cert = \"/nowhere/c\", key = \"k\" }, auth_file = \"/nowhere/a\" }]\n\
             unix = [{ path = \"b\", tls = {}, auth_file = 7 }]",
        );
        let expected = [
            "k.toml: listen.tcp[0].adress is not a known key: did you mean address?",
            "k.toml: listen.tcp[0] has no address: add address = \"127.0.0.1:11211\"",
            "k.toml: listen.tcp[0].tls.key (\"k\") must be an absolute path",
            "k.toml: listen.tcp[0].auth_file (\"/nowhere/a\") cannot be read: No such file or directory (os error 2)",
            "k.toml: listen.unix[0].tls is not a known key: must be one of path, auth_file, clients",
            "k.toml: listen.unix[0].path (\"b\") must be an absolute path",
            "k.toml: listen.unix[0].auth_file (7) must be a string in quotes",
        ];
        assert_eq!(found, expected);
        let found =
            errors("tcp = [{ address = \"a:1\", tls = { cert = \"/nowhere/c\", key = \"/nowhere/k\" } }]");
        let expected = [
            "k.toml: listen.tcp[0].tls.cert (\"/nowhere/c\") cannot be read: No such file or directory (os error 2)",
            "k.toml: listen.tcp[0].tls.key (\"/nowhere/k\") cannot be read: No such file or directory (os error 2)",
        ];
        assert_eq!(found, expected);
        assert_eq!(
            errors("tcp = [{ address = \"a:1\", tls = \"yes\" }]"),
            ["k.toml: listen.tcp[0].tls (\"yes\") must be a table: { cert = \"/path\", key = \"/path\" }"]
        );
        assert_eq!(
            errors("tcp = [{ address = \"a:1\", tls = {} }]"),
            ["k.toml: listen.tcp[0].tls must name two PEM files: cert = \"/path\", key = \"/path\""]
        );
    }

    #[test]
    fn the_reference_explains_every_key_of_an_entry() {
        let reference = include_str!("../../config/kennel.toml");
        let all = [file::TcpEntry::KEYS, file::UnixEntry::KEYS, file::Tls::KEYS].concat();
        for (key, _) in all {
            assert!(reference.contains(&format!("\n#   {key} ")), "config/kennel.toml should explain {key}");
        }
    }
}
