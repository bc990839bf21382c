//! twemproxy's configuration.

use serde_json::{Map, Value};

use super::site::{Site, SiteServer};
use super::yaml;
use crate::upstream::{Distribution, Hash};

const HASHES: [&str; 12] = [
    "one_at_a_time",
    "md5",
    "crc16",
    "crc32",
    "crc32a",
    "fnv1_64",
    "fnv1a_64",
    "fnv1_32",
    "fnv1a_32",
    "hsieh",
    "murmur",
    "jenkins",
];
/// Keys that are translated, or need not be.
const TRANSLATED: [&str; 6] = ["listen", "hash", "hash_tag", "distribution", "servers", "redis"];

/// Reads one pool: the only one, or the one with this name.
pub(super) fn read(text: &str, file: &str, pool: Option<&str>) -> Result<Site, String> {
    let Value::Object(pools) = yaml::parse(text)? else { return Err("has no pools".to_owned()) };
    let names = pools.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let (name, pool) = match (pool, pools.len()) {
        (Some(name), _) => {
            pools.get_key_value(name).ok_or_else(|| format!("has no pool {name}: it has {names}"))?
        }
        (None, 1) => pools.iter().next().ok_or("has no pools")?,
        (None, _) => {
            return Err(format!(
                "has several pools ({names}), each with a listener of its own. Kennel chooses the pool by the key: make a file for each with --pool"
            ));
        }
    };
    let pool = pool.as_object().ok_or_else(|| format!("the pool {name} is no table"))?;
    if text_of(pool, "redis").is_some_and(|redis| redis == "true") {
        return Err(format!("the pool {name} is redis, which Kennel does not speak"));
    }
    let distribution = match text_of(pool, "distribution").unwrap_or("ketama") {
        "ketama" => Distribution::Ketama,
        "modula" => Distribution::ModulaSorted,
        other => {
            return Err(format!(
                "distribution: {other} puts a key on no server of its own, so none can be kept"
            ));
        }
    };
    let word = text_of(pool, "hash").unwrap_or("fnv1a_64");
    let hash = Hash::NAMES.iter().find(|(name, _)| *name == word && HASHES.contains(name));
    let (_, hash) = *hash.ok_or_else(|| format!("hash: {word} is no hash of twemproxy"))?;
    let servers = pool.get("servers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let servers = servers.iter().map(|entry| server(entry.as_str().unwrap_or_default()));
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        return Err(format!("the pool {name} has no servers"));
    }
    let mut remarks = Vec::new();
    let listen = text_of(pool, "listen").and_then(|listen| listener(listen, &mut remarks));
    let others: Vec<_> = pool.keys().map(String::as_str).filter(|key| !TRANSLATED.contains(key)).collect();
    if !others.is_empty() {
        remarks
            .push(format!("not translated: {} (docs/configuration.md has Kennel's own)", others.join(", ")));
    }
    let hash_tag = text_of(pool, "hash_tag").map(str::to_owned);
    let (origin, placed_by) = (format!("{file}, pool {name}"), Some("twemproxy".to_owned()));
    Ok(Site { origin, listen, servers, placed_by, distribution, hash, hash_tag, remarks })
}

fn text_of<'p>(pool: &'p Map<String, Value>, key: &str) -> Option<&'p str> {
    pool.get(key)?.as_str()
}

/// `host:port:weight`, and a name or not. An IPv6 address has no brackets.
fn server(entry: &str) -> Result<SiteServer, String> {
    let (address, name) =
        entry.split_once(' ').map_or((entry, None), |(address, name)| (address, Some(name.trim())));
    let v6 = address.rsplitn(3, ':').nth(2).filter(|host| host.contains(':') && !host.starts_with('['));
    let bracketed = v6.map(|host| format!("[{host}]{}", &address[host.len()..]));
    if address.starts_with('/') {
        return Err(format!("the server {address}: sockets are placed in another way by twemproxy"));
    }
    let server = SiteServer::parse(bracketed.as_deref().unwrap_or(address), None)?;
    Ok(SiteServer { name: name.map(str::to_owned), ..server })
}

/// Where Kennel listens instead, if that is on this host only.
fn listener(listen: &str, remarks: &mut Vec<String>) -> Option<String> {
    let is_local = ["127.", "localhost:", "/"].iter().any(|local| listen.starts_with(local));
    if is_local {
        return listen.split(' ').next().map(str::to_owned);
    }
    remarks.push(format!(
        "twemproxy listens on {listen}, for other hosts too; this file listens on 127.0.0.1:11211, beside the application"
    ));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str =
        "alpha:\n  listen: 127.0.0.1:22121\n  servers:\n   - 10.0.0.1:11211:1\n   - 10.0.0.2:11211:2 b\n";

    #[test]
    fn its_defaults_are_ketama_with_fnv1a_64() {
        let site = read(DEFAULT, "n.yml", None).unwrap();
        assert_eq!((site.distribution, site.hash), (Distribution::Ketama, Hash::Fnv1a64));
        assert_eq!((&*site.origin, site.listen.as_deref()), ("n.yml, pool alpha", Some("127.0.0.1:22121")));
        let servers: Vec<_> =
            site.servers.iter().map(|it| (&*it.address, it.weight, it.name.as_deref())).collect();
        assert_eq!(servers, [("10.0.0.1:11211", 1, None), ("10.0.0.2:11211", 2, Some("b"))]);
        assert!(site.remarks.is_empty());
    }

    #[test]
    fn what_is_set_is_taken_and_what_is_not_translated_is_named() {
        let more = "  hash: crc32a\n  distribution: modula\n  hash_tag: \"{}\"\n  timeout: 400\n  auto_eject_hosts: true\n";
        let text = DEFAULT.replace("127.0.0.1:22121", "0.0.0.0:22121") + more;
        let site = read(&text, "n.yml", Some("alpha")).unwrap();
        assert_eq!((site.distribution, site.hash), (Distribution::ModulaSorted, Hash::Crc32a));
        assert_eq!((site.hash_tag.as_deref(), site.listen), (Some("{}"), None));
        assert!(site.remarks[0].contains("0.0.0.0:22121"), "{:?}", site.remarks);
        assert!(site.remarks[1].contains("auto_eject_hosts, timeout"), "{:?}", site.remarks);
    }

    #[test]
    fn an_address_of_ipv6_gets_brackets() {
        assert_eq!(server("fd00::1:11211:2 a").unwrap().address, "[fd00::1]:11211");
        assert_eq!(server("[::1]:11211:2").unwrap().address, "[::1]:11211");
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_reason() {
        let with = |line: &str| read(&format!("{DEFAULT}  {line}\n"), "n.yml", None).unwrap_err();
        assert!(with("distribution: random").contains("random puts a key on no server of its own"));
        assert!(with("redis: true").contains("redis"));
        assert!(with("hash: sha1").contains("sha1 is no hash"));
        assert!(read(DEFAULT, "n.yml", Some("beta")).unwrap_err().contains("has no pool beta: it has alpha"));
        let two = format!("{DEFAULT}{}", DEFAULT.replace("alpha", "beta"));
        assert!(read(&two, "n.yml", None).unwrap_err().contains("several pools (alpha, beta)"));
        assert!(read("alpha:\n  servers: []\n", "n.yml", None).unwrap_err().contains("no servers"));
    }
}
