//! `[pools.<name>]`: the pools and their servers.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use config::{Value, ValueKind};
use serde::Deserialize;

use super::addresses::reaches;
use super::discovery::server_address;
use super::failover::{DEFAULT_REQUEST_TIMEOUT, failover, needed_failover};
use super::file::{self, Section};
use super::health::health;
use super::listen::{Listeners, valid};
use super::repair::repair_rate;
use super::scheme;
use super::security::security;
use super::units;
use super::validator::{KeyPath, MINUTE, Validator, boolean, duration, integer, keys, text, word};
use crate::monitor::step;
use crate::upstream::{
    Address, Distribution, OnError, OtherKind, OtherPlacement, PoolSpec, Scheme, ServerSpec, UnknownPlacement,
};

const MS: Duration = Duration::from_millis(1);
/// The tables within that of a pool.
const TABLES: [&str; 4] = ["health", "repair", "tls", "auth"];

/// Returns the pools, "main" first, and the names of all pools in the file, including those with errors.
pub(super) fn pools(
    v: &mut Validator<'_>,
    section: Section<BTreeMap<String, Section<file::Pool>>>,
    listeners: &Listeners,
    nameservers: &[SocketAddr],
) -> (Option<Vec<PoolSpec>>, Vec<String>) {
    const ADD: &str =
        "add [pools.main] with servers = [\"10.0.0.1:11211\"], or with [\"embedded:64MiB\"] for a test";
    let Some(mut tables) = v.table("pools", section) else { return (None, vec!["main".to_owned()]) };
    let mut pools = Vec::new();
    let main = tables.remove_entry("main");
    if main.is_none() {
        v.error(&KeyPath::top(), "pools.main", None, format_args!("is missing: {ADD}"));
    }
    if tables.len() + 1 > 64 {
        let count = tables.len() + 1;
        v.error(&KeyPath::top(), "pools", None, format_args!("must be at most 64, not {count}"));
    }
    let mut names = Vec::new();
    for (name, section) in main.into_iter().chain(tables) {
        pools.push(pool(v, &name, section, nameservers));
        names.push(name);
    }
    let missing = (!names.iter().any(|n| n == "main")).then(|| "main".to_owned());
    names.extend(missing); // already reported; references to it are not errors too
    pools.iter().flatten().for_each(|pool| forwarding_loops(v, listeners, pool));
    (pools.into_iter().collect(), names)
}

/// Rejects servers that are Kennel's own listeners: requests would be forwarded in a loop.
fn forwarding_loops(v: &mut Validator<'_>, listeners: &Listeners, pool: &PoolSpec) {
    let others = pool.other.iter().flat_map(|other| {
        let key = other.kind.key();
        other.servers.iter().enumerate().map(move |(i, server)| (key, i, server))
    });
    let servers = pool.servers.iter().enumerate().map(|(i, server)| ("servers", i, server));
    for (key, i, server) in servers.chain(others) {
        let ours = match &server.address {
            Address::Tcp { host, port } => {
                let mut tcp = valid(&listeners.tcp);
                let ours = tcp.find(|(_, listener)| reaches(host, *port, &listener.address));
                ours.map(|(j, _)| format!("listen.tcp[{j}]"))
            }
            Address::Unix(path) => {
                let ours = valid(&listeners.unix).find(|(_, listener)| listener.address == *path);
                ours.map(|(j, _)| format!("listen.unix[{j}]"))
            }
            Address::Embedded { .. } | Address::Discovered(_) => None,
        };
        if let Some(ours) = ours {
            let message = format!("is Kennel's own listener {ours}: change one of the two addresses");
            let at = KeyPath::table(format!("pools.{}", pool.name));
            v.error(&at, &format!("{key}[{i}]"), Some(&server.address.to_string().into()), message);
        }
    }
}

fn pool(
    v: &mut Validator<'_>,
    name: &str,
    section: Section<file::Pool>,
    nameservers: &[SocketAddr],
) -> Option<PoolSpec> {
    let path = format!("pools.{name}");
    if let (Section::Wrong(value), true) = (&section, keys(file::Pool::KEYS).any(|key| key == name)) {
        v.error(&KeyPath::top(), &path, Some(value), "must be in the table of a pool, such as [pools.main]");
        return None;
    }
    let mut table = v.table(&path, section)?;
    let name = units::name(name);
    if let Err(message) = &name {
        v.error(&KeyPath::top(), &path, None, format_args!("has an invalid name, which {message}"));
    }
    let at = KeyPath::table(path);
    let [health_table, repair_table, tls_table, auth_table] = TABLES.map(|key| table.rest.remove(key));
    v.unknown(&at, &table.rest, keys(file::Pool::KEYS).chain(TABLES));
    let servers = server_list(v, &at, "servers", &table.servers);
    let scheme = own_scheme(v, &at, &table);
    let other = other(v, &at, &table, servers.as_deref(), scheme.as_ref());
    let timeout = || duration(MS..=MINUTE);
    let connect_timeout = v.value(&at, "connect_timeout", &table.connect_timeout, 200 * MS, timeout());
    let request_timeout =
        v.value(&at, "request_timeout", &table.request_timeout, DEFAULT_REQUEST_TIMEOUT, timeout());
    let health = request_timeout.and_then(|limit| health(v, &at, health_table.as_ref(), limit));
    let repair_rate = repair_rate(v, &at, repair_table.as_ref());
    let on_errors = [("miss", OnError::Miss), ("error", OnError::Error), ("standby", OnError::Standby)];
    let on_error = v.value(&at, "on_error", &table.on_error, OnError::Miss, word(&on_errors));
    let failover = other
        .as_ref()
        .and_then(|other| failover(v, &at, &table, servers.as_deref(), other.as_ref(), request_timeout));
    needed_failover(v, &at, &table, on_error, &failover);
    let keyspace =
        v.value(&at, "keyspace", &table.keyspace, None, |value| units::name(text(value)?).map(Some));
    let unknown_placements = [("warn", UnknownPlacement::Warn), ("miss", UnknownPlacement::Miss)];
    let unknown_placement = v.value(
        &at,
        "unknown_placement",
        &table.unknown_placement,
        UnknownPlacement::Warn,
        word(&unknown_placements),
    );
    let others = other.iter().flatten().flat_map(|other| &other.servers);
    let all = servers.iter().flatten().chain(others);
    let security = security(v, &at, tls_table.as_ref(), auth_table.as_ref(), all);
    let name = name.ok()?;
    let pool = PoolSpec {
        keyspace: keyspace?.unwrap_or_else(|| name.clone()),
        name,
        servers: servers?,
        other: other?,
        scheme: scheme?,
        connect_timeout: connect_timeout?,
        request_timeout: request_timeout?,
        on_error: on_error?,
        failover: failover?,
        health: health?,
        repair_rate: repair_rate?,
        unknown_placement: unknown_placement?,
        security: security?,
        nameservers: nameservers.to_vec(),
    };
    if let Some(other) = pool.other_pool()
        && step(&other) == step(&PoolSpec { other: None, ..pool.clone() })
    {
        let key = pool.other.as_ref().map_or("", |other| other.kind.key());
        let why = "places every key as servers does: only addresses of named servers differ, so no step tells the lists apart";
        v.error(&at, key, None, why);
        return None;
    }
    weights_without_effect(v, &at, &pool)?;
    servers_without_keys(v, &pool, "servers");
    if let Some(other) = pool.other_pool() {
        let key = pool.other.as_ref().map_or("", |other| other.kind.key());
        servers_without_keys(v, &other, key);
    }
    Some(pool)
}

/// How the pool spreads its keys.
fn own_scheme(v: &mut Validator<'_>, at: &KeyPath, table: &file::Pool) -> Option<Scheme> {
    let keys = scheme::Keys {
        distribution: ("distribution", &table.distribution),
        hash: ("hash", &table.hash),
        hash_tag: ("hash_tag", &table.hash_tag),
        prefixes: ("unhashed_prefixes", &table.unhashed_prefixes),
    };
    scheme::scheme(v, at, &keys)
}

/// The keys of the scheme of `next` or `previous`.
fn other_keys(table: &file::Pool) -> scheme::Keys<'_> {
    scheme::Keys {
        distribution: ("other_distribution", &table.other_distribution),
        hash: ("other_hash", &table.other_hash),
        hash_tag: ("other_hash_tag", &table.other_hash_tag),
        prefixes: ("other_unhashed_prefixes", &table.other_unhashed_prefixes),
    }
}

/// `next` or `previous`, if one of them is configured. The outer `None`: there is an error.
fn other(
    v: &mut Validator<'_>,
    at: &KeyPath,
    table: &file::Pool,
    servers: Option<&[ServerSpec]>,
    own: Option<&Scheme>,
) -> Option<Option<OtherPlacement>> {
    let take_over = v.value(at, "take_over", &table.take_over, None, |value| boolean(value).map(Some))?;
    let (key, list, kind) = match (&table.next, &table.previous) {
        (Some(_), Some(_)) => {
            v.error(
                at,
                "previous",
                None,
                "cannot be set together with next: a change is in one step at a time",
            );
            return None;
        }
        (None, None) if take_over.is_some() => {
            v.error(at, "take_over", table.take_over.as_ref(), "needs previous");
            return None;
        }
        (None, None) => {
            let keys = other_keys(table);
            let Some((key, value)) = keys.first_set() else { return Some(None) };
            v.error(at, key, Some(value), "needs next or previous: it is how their keys are spread");
            return None;
        }
        (Some(_), None) if take_over.is_some() => {
            v.error(
                at,
                "take_over",
                table.take_over.as_ref(),
                "needs previous: nothing is taken over from next",
            );
            return None;
        }
        (next @ Some(_), None) => ("next", next, OtherKind::Next),
        (None, previous) => {
            ("previous", previous, OtherKind::Previous { take_over: take_over.unwrap_or(true) })
        }
    };
    let others = server_list(v, at, key, list);
    let keys = other_keys(table);
    let scheme = match keys.first_set() {
        Some(_) => scheme::scheme(v, at, &keys)?,
        None => own?.clone(),
    };
    let (others, servers) = (others?, servers?);
    let is_embedded = |server: &ServerSpec| matches!(server.address, Address::Embedded { .. });
    if servers.iter().chain(&others).any(is_embedded) {
        v.error(at, key, None, "is impossible with an embedded server: no other sidecar can reach it");
        return None;
    }
    if others == servers && Some(&scheme) == own {
        v.error(at, key, None, "must differ from servers, or have another other_distribution or other_hash");
        return None;
    }
    Some(Some(OtherPlacement { servers: others, scheme, kind }))
}

fn server_list(
    v: &mut Validator<'_>,
    at: &KeyPath,
    list_key: &str,
    list: &Option<Value>,
) -> Option<Vec<ServerSpec>> {
    let servers = v.entries(at, list_key, list, Vec::new(), |v, key, value| server(v, at, key, value))?;
    match servers.len() {
        0 => {
            v.error(at, list_key, None, "must contain at least one server: [\"10.0.0.1:11211\"]");
            return None;
        }
        1..=1024 => {}
        n => {
            v.error(at, list_key, None, format_args!("must contain at most 1024 servers, not {n}"));
            return None;
        }
    }
    let before = v.errors.len();
    let (mut addresses, mut names) = (HashMap::new(), HashMap::new());
    for (i, server) in servers.iter().enumerate() {
        let Some(server) = server else { continue };
        let key = format!("{list_key}[{i}]");
        let address = server.address.to_string().to_ascii_lowercase();
        let embedded = matches!(server.address, Address::Embedded { .. }); // each entry is a server of its own
        let same_address = addresses.insert(address, i).filter(|_| !embedded);
        let same_name = names.insert(ring_name(server), i);
        let message = if let Some(j) = same_address {
            format!("is the same as {list_key}[{j}]: list each server once, with a weight for a larger share")
        } else if let Some(j) = same_name {
            format!("has the same ring name as {list_key}[{j}], {:?}: set another name", ring_name(server))
        } else {
            continue;
        };
        v.error(at, &key, Some(&server.address.to_string().into()), message);
    }
    if v.errors.len() > before {
        return None;
    }
    servers.into_iter().collect()
}

/// The name that is hashed onto the ring. Two servers with the same name would be one.
fn ring_name(server: &ServerSpec) -> String {
    match (&server.name, &server.address) {
        (Some(name), _) => name.clone(),
        (None, Address::Tcp { host, port: 11211 }) => host.clone(),
        (None, address) => address.to_string(),
    }
}

fn server(v: &mut Validator<'_>, at: &KeyPath, key: String, value: &Value) -> Option<ServerSpec> {
    let address = |value: &Value| server_address(text(value)?).map(Some);
    match &value.kind {
        ValueKind::String(_) => {
            let address = v.value(at, &key, &Some(value.clone()), None, address)??;
            Some(ServerSpec { address, weight: 1, name: None })
        }
        ValueKind::Table(_) => {
            let table = file::Server::deserialize(value.clone()).unwrap_or_default(); // cannot fail for a table
            let inside = at.inside(&key);
            v.unknown(&inside, &table.rest, keys(file::Server::KEYS));
            if table.address.is_none() {
                v.error(at, &key, None, "has no address: add address = \"10.0.0.1:11211\"");
            }
            let address = v.value(&inside, "address", &table.address, None, address);
            let weight = v.value(&inside, "weight", &table.weight, 1, integer(1..=65_535));
            let name = v.value(&inside, "name", &table.name, None, |value| match text(value)? {
                s if (1..=128).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic()) => {
                    Ok(Some(s.to_owned()))
                }
                _ => Err("must be 1 to 128 visible ASCII characters without spaces".to_owned()),
            });
            if let (Some(Some(Address::Discovered(_))), Some(Some(_))) = (&address, &name) {
                let why = "is impossible for an entry that stands for several servers: these have names of their own";
                v.error(&inside, "name", table.name.as_ref(), why);
                return None;
            }
            Some(ServerSpec { address: address??, weight: weight? as u32, name: name? })
        }
        _ => {
            v.error(
                at,
                &key,
                Some(value),
                "must be \"host:port\" or { address = \"host:port\", weight = 2 }",
            );
            None
        }
    }
}

/// A weight that has no effect is a mistake.
fn weights_without_effect(v: &mut Validator<'_>, at: &KeyPath, pool: &PoolSpec) -> Option<()> {
    let other = pool.other.as_ref().map(|other| (other.kind.key(), &other.servers, &other.scheme));
    for (key, servers, scheme) in [("servers", &pool.servers, &pool.scheme)].into_iter().chain(other) {
        if !scheme.distribution.has_weights() && servers.iter().any(|server| server.weight != 1) {
            let hint = match scheme.distribution {
                Distribution::Modula => ", or use \"modula_weighted\", or \"modula_sorted\", twemproxy's",
                _ => "",
            };
            let name = scheme.distribution.name();
            v.error(
                at,
                key,
                None,
                format_args!("has a weight, which {name} does not know: leave it out{hint}"),
            );
            return None;
        }
    }
    Some(())
}

/// Weighted ketama gives a server floor(its share × 40 × servers) × 4 points, which can be 0.
fn servers_without_keys(v: &mut Validator<'_>, pool: &PoolSpec, key: &str) {
    if pool.lookups().next().is_some() {
        return; // the number of servers is not known
    }
    let Some(digests) = pool.scheme.distribution.digests() else { return };
    let total: f64 = pool.servers.iter().map(|s| f64::from(s.weight)).sum();
    for (i, server) in pool.servers.iter().enumerate() {
        let points = f64::from(server.weight) / total * digests * pool.servers.len() as f64;
        if points < 1.0 {
            let (name, address) = (&pool.name, &server.address);
            v.warnings.push(format!(
                "pools.{name}.{key}[{i}] ({address}) receives no keys: its weight is too small compared with the others"
            ));
        }
    }
}

/// The index of the pool that a `pool` key names; 0, which is "main", if the key is absent.
pub(super) fn pool_index(
    v: &mut Validator<'_>,
    at: &KeyPath,
    value: &Option<Value>,
    pools: &[String],
) -> Option<usize> {
    v.value(at, "pool", value, 0, |value| {
        let name = text(value)?;
        pools.iter().position(|pool| pool == name).ok_or_else(|| {
            let all = pools.iter().map(|p| format!("{p:?}")).collect::<Vec<_>>().join(", ");
            format!("is not a pool: must be one of {all}")
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigErrors};

    /// A configuration with one listener and one server.
    fn read(listener: &str, server: &str) -> Result<Config, ConfigErrors> {
        let text = format!("[listen]\ntcp = [\"{listener}\"]\n[pools.main]\nservers = [\"{server}\"]\n");
        Config::read("k.toml", &text, [])
    }

    #[test]
    fn a_sidecar_does_not_forward_to_itself() {
        let errors = read("127.0.0.1:11211", "127.0.0.1:11211").unwrap_err();
        assert_eq!(
            errors.without_places(),
            ["k.toml: pools.main.servers[0] (\"127.0.0.1:11211\") is Kennel's own listener listen.tcp[0]: \
              change one of the two addresses"]
        );
        let unix = "[listen]\nunix = [\"/a\", \"/run/k\"]\n[pools.main]\nservers = [\"embedded:1MiB\", \"unix:/run//k\"]";
        let errors = Config::read("k.toml", unix, []).unwrap_err().to_string();
        assert!(
            errors.contains("servers[1] (\"unix:/run//k\") is Kennel's own listener listen.unix[1]"),
            "{errors}"
        );
    }

    #[test]
    fn a_sidecar_does_not_forward_to_itself_by_another_name_of_its_address() {
        for (listener, server) in [
            ("127.0.0.1:11211", "localhost:11211"),
            ("127.0.0.1:11211", "LocalHost.:11211"),
            ("[::1]:11211", "localhost:11211"),
            ("localhost:11211", "127.0.0.1:11211"),
            ("localhost:11211", "[::1]:11211"),
            ("0.0.0.0:11211", "127.0.0.1:11211"),
            ("0.0.0.0:11211", "127.8.9.10:11211"),
            ("0.0.0.0:11211", "localhost:11211"),
            ("0.0.0.0:11211", "0.0.0.0:11211"),
            ("127.0.0.1:11211", "0.0.0.0:11211"),
            ("[::]:11211", "[::1]:11211"),
            ("[::]:11211", "[0:0:0:0:0:0:0:1]:11211"),
            ("[::]:11211", "127.0.0.1:11211"),
            ("[::]:11211", "localhost:11211"),
            ("[::]:11211", "0.0.0.0:11211"),
            ("[::1]:11211", "[::]:11211"),
            ("127.0.0.1:11211", "[::ffff:127.0.0.1]:11211"),
            ("10.0.0.5:11211", "[::ffff:10.0.0.5]:11211"),
            ("cache.internal:11211", "CACHE.internal:11211"),
        ] {
            let errors =
                read(listener, server).err().unwrap_or_else(|| panic!("accepted: {listener} {server}"));
            assert!(
                errors.without_places().len() == 1
                    && errors.without_places()[0].contains("is Kennel's own listener"),
                "{errors}"
            );
        }
    }

    #[test]
    fn another_machine_or_port_is_not_the_sidecar_itself() {
        for (listener, server) in [
            ("127.0.0.1:11211", "localhost:11212"),
            ("127.0.0.1:11211", "127.0.0.2:11211"),
            ("127.0.0.1:11211", "[::1]:11211"),
            ("127.0.0.2:11211", "localhost:11211"),
            ("0.0.0.0:11211", "10.0.0.1:11211"),
            ("0.0.0.0:11211", "cache-1.internal:11211"),
            ("0.0.0.0:11211", "localhost.internal:11211"),
            ("0.0.0.0:11211", "[::1]:11211"), // an IPv4 socket accepts no IPv6
            ("[::]:11211", "[2001:db8::1]:11211"),
            ("[::]:11211", "10.0.0.1:11211"),
            ("0.0.0.0:0", "127.0.0.1:11211"),
            ("localhost:11211", "10.0.0.1:11211"),
        ] {
            assert!(
                read(listener, server).is_ok(),
                "{listener} {server}: {}",
                read(listener, server).unwrap_err()
            );
        }
    }
}
