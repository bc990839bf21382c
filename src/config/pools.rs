//! What is meant by `[pools.<name>]`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use config::{Value, ValueKind};
use serde::Deserialize;

use super::addresses::leads_to;
use super::file::{self as raw, Section};
use super::units::{self, show_address};
use super::validate::{
    KeyPath, Listeners, MINUTE, Validator, count, keys, span, text, word, written_entrances,
};
use crate::upstream::{Address, Distribution, Hash, OnError, PoolSpec, ServerSpec};

const MS: Duration = Duration::from_millis(1);

/// The pools, "main" first, and the names of all that are written, also of those with mistakes.
pub(super) fn pools(
    r: &mut Validator<'_>,
    pools: Section<BTreeMap<String, Section<raw::Pool>>>,
    entrances: &Listeners,
) -> (Option<Vec<PoolSpec>>, Vec<String>) {
    const ADD: &str = "what no rule puts elsewhere lives there. Add \
        [pools.main] with servers = [\"10.0.0.1:11211\"], or with [\"embedded:64MiB\"] to try things out";
    let Some(mut tables) = r.table("pools", pools) else { return (None, vec!["main".to_owned()]) };
    let mut pools = Vec::new();
    let main = tables.remove_entry("main");
    if main.is_none() {
        r.say(&KeyPath::top(), "pools.main", None, format_args!("is missing: {ADD}"));
    }
    if tables.len() + 1 > 64 {
        r.say(
            &KeyPath::top(),
            "pools",
            None,
            format_args!("must be at most 64; these are {}", tables.len() + 1),
        );
    }
    let mut names = Vec::new();
    for (name, w) in main.into_iter().chain(tables) {
        pools.push(pool(r, &name, w));
        names.push(name);
    }
    let missing = (!names.iter().any(|n| n == "main")).then(|| "main".to_owned());
    names.extend(missing); // said above; once is enough
    pools.iter().flatten().for_each(|pool| itself(r, entrances, pool));
    (pools.into_iter().collect(), names)
}

/// A pool that holds one of our own listeners: each request would come back in, for ever.
fn itself(r: &mut Validator<'_>, entrances: &Listeners, pool: &PoolSpec) {
    for (i, server) in pool.servers.iter().enumerate() {
        let ours = match &server.address {
            Address::Tcp { host, port } => {
                let mut tcp = written_entrances(&entrances.tcp);
                let ours = tcp.find(|(_, entrance)| leads_to(host, *port, &entrance.at));
                ours.map(|(j, _)| format!("listen.tcp[{j}]"))
            }
            Address::Unix(path) => {
                let ours = written_entrances(&entrances.unix).find(|(_, entrance)| entrance.at == *path);
                ours.map(|(j, _)| format!("listen.unix[{j}]"))
            }
            Address::Embedded { .. } => None,
        };
        if let Some(ours) = ours {
            let what =
                format!("is where Kennel itself listens, {ours}: give it, or the server, another address");
            let at = KeyPath::table(format!("pools.{}", pool.name));
            r.say(&at, &format!("servers[{i}]"), Some(&show_address(&server.address).into()), what);
        }
    }
}

fn pool(r: &mut Validator<'_>, name: &str, written: Section<raw::Pool>) -> Option<PoolSpec> {
    let path = format!("pools.{name}");
    if let (Section::Wrong(value), true) = (&written, keys(raw::Pool::KEYS).any(|key| key == name)) {
        r.say(
            &KeyPath::top(),
            &path,
            Some(value),
            format_args!("belongs to one pool: [pools.main] above it"),
        );
        return None;
    }
    let w = r.table(&path, written)?;
    let named = units::name(name);
    if let Err(what) = &named {
        r.say(&KeyPath::top(), &path, None, format_args!("has a name that {what}"));
    }
    let at = KeyPath::table(path);
    r.unknown(&at, &w.rest, keys(raw::Pool::KEYS));
    let servers = servers(r, &at, &w.servers);
    let distributions = [
        ("ketama", Distribution::Ketama),
        ("modula", Distribution::Modula),
        ("jump", Distribution::Jump),
        ("rendezvous", Distribution::Rendezvous),
    ];
    let distribution =
        r.leaf(&at, "distribution", &w.distribution, Distribution::Ketama, word(&distributions));
    let hash = hash(r, &at, &w, distribution);
    let timeout = || span(MS..=MINUTE);
    let connect_timeout = r.leaf(&at, "connect_timeout", &w.connect_timeout, 200 * MS, timeout());
    let request_timeout = r.leaf(&at, "request_timeout", &w.request_timeout, 500 * MS, timeout());
    let on_errors = [("miss", OnError::Miss), ("error", OnError::Error)];
    let on_error = r.leaf(&at, "on_error", &w.on_error, OnError::Miss, word(&on_errors));
    let pool = PoolSpec {
        name: named.ok()?,
        servers: servers?,
        distribution: distribution?,
        hash: hash?,
        connect_timeout: connect_timeout?,
        request_timeout: request_timeout?,
        on_error: on_error?,
    };
    idle_servers(r, &pool);
    Some(pool)
}

fn hash(r: &mut Validator<'_>, at: &KeyPath, w: &raw::Pool, over: Option<Distribution>) -> Option<Hash> {
    let hashes =
        [("md5", Hash::Md5), ("crc32", Hash::Crc32), ("crc32a", Hash::Crc32a), ("fnv1a_32", Hash::Fnv1a32)];
    let default = if over == Some(Distribution::Modula) { Hash::Crc32 } else { Hash::Md5 };
    let hash = r.leaf(at, "hash", &w.hash, default, word(&hashes))?;
    match over {
        Some(Distribution::Modula) | None => Some(hash),
        Some(_) if hash == Hash::Md5 => Some(hash),
        Some(over) => {
            let what = match over {
                Distribution::Ketama => "for ketama: that is what libmemcached and twemproxy place keys by",
                _ => "for jump and rendezvous: the others have too few bits to spread keys evenly",
            };
            r.say(at, "hash", w.hash.as_ref(), format_args!("must be \"md5\" {what}"));
            None
        }
    }
}

fn servers(r: &mut Validator<'_>, at: &KeyPath, written: &Option<Value>) -> Option<Vec<ServerSpec>> {
    let servers = r.list(at, "servers", written, Vec::new(), |r, key, v| server(r, at, key, v))?;
    match servers.len() {
        0 => {
            r.say(at, "servers", None, "must name at least one server: [\"10.0.0.1:11211\"]");
            return None;
        }
        1..=1024 => {}
        n => {
            r.say(at, "servers", None, format_args!("must be at most 1024; these are {n}"));
            return None;
        }
    }
    let before = r.mistakes.len();
    let (mut addresses, mut points) = (HashMap::new(), HashMap::new());
    for (i, server) in servers.iter().enumerate() {
        let key = format!("servers[{i}]");
        let address = server.address.to_string().to_ascii_lowercase();
        let embedded = matches!(server.address, Address::Embedded { .. }); // each is a server of its own
        let again = addresses.insert(address, i).filter(|_| !embedded);
        let named = points.insert(ring_name(server), i);
        if let Some(j) = again {
            let what =
                format!("is servers[{j}] again: name each once, and give it a weight for a larger share");
            r.say(at, &key, Some(&show_address(&server.address).into()), what);
        } else if let Some(j) = named {
            let what =
                format!("is {:?} to the ring, as servers[{j}] is: give it another name", ring_name(server));
            r.say(at, &key, Some(&show_address(&server.address).into()), what);
        }
    }
    (r.mistakes.len() == before).then_some(servers)
}

/// What places the server on the ring: two servers with the same would be one.
fn ring_name(server: &ServerSpec) -> String {
    match (&server.name, &server.address) {
        (Some(name), _) => name.clone(),
        (None, Address::Tcp { host, port: 11211 }) => host.clone(),
        (None, address) => show_address(address),
    }
}

fn server(r: &mut Validator<'_>, at: &KeyPath, key: String, value: &Value) -> Option<ServerSpec> {
    let address = |v: &Value| units::server_address(text(v)?).map(Some);
    match &value.kind {
        ValueKind::String(_) => {
            let address = r.leaf(at, &key, &Some(value.clone()), None, address)??;
            Some(ServerSpec { address, weight: 1, name: None })
        }
        ValueKind::Table(_) => {
            let w = raw::Server::deserialize(value.clone()).unwrap_or_default(); // no table fails
            let part = |name: &str| format!("{key}.{name}");
            let inside = at.inside(&key);
            r.unknown(&inside, &w.rest, keys(raw::Server::KEYS));
            if w.address.is_none() {
                r.say(at, &key, None, "has no address: add address = \"10.0.0.1:11211\"");
            }
            let address = r.leaf(at, &part("address"), &w.address, None, address);
            let weight = r.leaf(at, &part("weight"), &w.weight, 1, count(1..=65_535));
            let name = r.leaf(at, &part("name"), &w.name, None, |v| match text(v)? {
                s if (1..=128).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic()) => {
                    Ok(Some(s.to_owned()))
                }
                _ => Err("must be 1 to 128 visible ASCII characters without spaces".to_owned()),
            });
            Some(ServerSpec { address: address??, weight: weight? as u32, name: name? })
        }
        _ => {
            r.say(at, &key, Some(value), "must be \"host:port\" or { address = \"host:port\", weight = 2 }");
            None
        }
    }
}

/// Weighted ketama gives a server floor(its share × 40 × servers) × 4 points: possibly none.
fn idle_servers(r: &mut Validator<'_>, pool: &PoolSpec) {
    let total: f64 = pool.servers.iter().map(|s| f64::from(s.weight)).sum();
    for (i, server) in pool.servers.iter().enumerate() {
        let points = f64::from(server.weight) / total * 40.0 * pool.servers.len() as f64;
        if pool.distribution == Distribution::Ketama && points < 1.0 {
            let (name, address) = (&pool.name, &server.address);
            r.warnings.push(format!(
                "pools.{name}.servers[{i}] ({address}) gets no keys: its weight is too small beside the others'"
            ));
        }
    }
}

/// Which pool a `pool` key names; "main", the first, where nothing is written.
pub(super) fn pool_index(
    r: &mut Validator<'_>,
    at: &KeyPath,
    written: &Option<Value>,
    pools: &[String],
) -> Option<usize> {
    r.leaf(at, "pool", written, 0, |v| {
        let name = text(v)?;
        pools.iter().position(|pool| pool == name).ok_or_else(|| {
            let all = pools.iter().map(|p| format!("{p:?}")).collect::<Vec<_>>().join(", ");
            format!("is no pool: there is {all}")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigErrors};

    /// What is said of a pool with this server behind this listener.
    fn read(listener: &str, server: &str) -> Result<Config, ConfigErrors> {
        let text = format!("[listen]\ntcp = [\"{listener}\"]\n[pools.main]\nservers = [\"{server}\"]\n");
        Config::read("k.toml", &text, [])
    }

    #[test]
    fn a_sidecar_does_not_forward_to_itself() {
        let said = read("127.0.0.1:11211", "127.0.0.1:11211").unwrap_err();
        assert_eq!(
            said.lines(),
            [
                "k.toml: pools.main.servers[0] (\"127.0.0.1:11211\") is where Kennel itself listens, listen.tcp[0]: \
              give it, or the server, another address"
            ]
        );
        let unix = "[listen]\nunix = [\"/a\", \"/run/k\"]\n[pools.main]\nservers = [\"embedded:1MiB\", \"unix:/run//k\"]";
        let said = Config::read("k.toml", unix, []).unwrap_err().to_string();
        assert!(
            said.contains("servers[1] (\"unix:/run//k\") is where Kennel itself listens, listen.unix[1]"),
            "{said}"
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
            let said = read(listener, server).err().unwrap_or_else(|| panic!("{listener} takes {server}"));
            assert!(
                said.lines().len() == 1 && said.lines()[0].contains("is where Kennel itself listens"),
                "{said}"
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
            ("0.0.0.0:11211", "[::1]:11211"), // a socket for IPv4 takes nothing of IPv6
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
