//! `[discovery]`, and the entries of `servers` that stand for servers which are looked up.

use std::net::{IpAddr, SocketAddr};

use config::Value;

use super::file::{self, Section};
use super::settings::Discovery;
use super::units::{self, show_duration};
use super::validator::{DAY, HOUR, KeyPath, MINUTE, SECOND, Validator, duration, keys, text};
use crate::upstream::{Address, Lookup};

/// The most DNS servers.
const MAX_NAMESERVERS: usize = 8;
/// The port of DNS.
const DNS_PORT: u16 = 53;

/// `[discovery]`
pub(super) fn discovery(v: &mut Validator<'_>, section: Section<file::Discovery>) -> Option<Discovery> {
    let table = v.table("discovery", section)?;
    let at = KeyPath::table("discovery".to_owned());
    v.unknown(&at, &table.rest, keys(file::Discovery::KEYS));
    let nameservers = v.list(&at, "nameservers", &table.nameservers, Vec::new(), |v, key, value| {
        nameserver(v, &at, key, value)
    });
    let interval = v.value(&at, "interval", &table.interval, MINUTE, duration(SECOND..=HOUR))?;
    let settle = v.value(&at, "settle", &table.settle, 2 * interval, duration(SECOND..=DAY))?;
    let mut nameservers = nameservers?;
    if nameservers.len() > MAX_NAMESERVERS {
        let message =
            format_args!("must contain at most {MAX_NAMESERVERS} DNS servers, not {}", nameservers.len());
        v.error(&at, "nameservers", None, message);
        return None;
    }
    if settle < interval {
        let least = show_duration(interval);
        let why = "or sidecars read by new servers before others have looked";
        let message = format_args!("must be at least interval ({least:?}), {why}");
        v.error(&at, "settle", table.settle.as_ref(), message);
        return None;
    }
    let mut seen = Vec::new();
    nameservers.retain(|server| {
        !seen.contains(server) && {
            seen.push(*server);
            true
        }
    });
    Some(Discovery { nameservers, interval, settle })
}

fn nameserver(v: &mut Validator<'_>, at: &KeyPath, key: String, value: &Value) -> Option<SocketAddr> {
    v.value(at, &key, &Some(value.clone()), None, |value| {
        let text = text(value)?;
        let with_port = text.parse::<SocketAddr>().ok();
        let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DNS_PORT));
        match with_port.or_else(alone) {
            Some(server) if server.port() > 0 => Ok(Some(server)),
            _ => Err("must be the IP address of a DNS server, with or without a port: \"10.0.0.2\", \"[fd00::2]:53\"".into()),
        }
    })?
}

/// A server's address, or an entry that stands for several: `dns+name:port`, `dnssrv+_service._tcp.name` or
/// `elasticache+name:port`.
pub(super) fn server_address(text: &str) -> Result<Address, String> {
    let lookup = match text.split_once('+') {
        Some(("dns", rest)) => {
            let (name, port) = name_and_port(rest, "dns+memcached.example:11211")?;
            if name.parse::<IpAddr>().is_ok() {
                return Err(format!("is an address and no name: write \"{rest}\""));
            }
            Lookup::Addresses { name, port }
        }
        Some(("dnssrv", rest)) => Lookup::Services { name: service(rest)? },
        Some(("elasticache", rest)) => {
            let (host, port) = name_and_port(rest, "elasticache+cluster.example:11211")?;
            Lookup::Cluster { host, port }
        }
        Some((kind, _)) if kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            return Err(format!(
                "begins with {kind:?}+, which is not known: use dns+, dnssrv+ or elasticache+"
            ));
        }
        _ => return units::server_address(text),
    };
    Ok(Address::Discovered(lookup))
}

fn name_and_port(text: &str, example: &str) -> Result<(String, u16), String> {
    match units::server_address(text)? {
        Address::Tcp { host, port } => Ok((host.to_ascii_lowercase(), port)),
        _ => Err(format!("must be a name and a port: \"{example}\"")),
    }
}

fn service(name: &str) -> Result<String, String> {
    const EXAMPLE: &str = "\"dnssrv+_memcache._tcp.memcached.example\"";
    if let Some((name, port)) = name.rsplit_once(':') {
        return Err(format!(
            "has the port {port:?}, which comes from the SRV records: write \"dnssrv+{name}\""
        ));
    }
    let mut labels = name.trim_end_matches('.').split('.');
    let is_service = [labels.next(), labels.next()]
        .iter()
        .all(|label| label.is_some_and(|label| label.starts_with('_') && label.len() > 1));
    if !is_service || labels.next().is_none() {
        return Err(format!("must be a service, a protocol and a name: {EXAMPLE}"));
    }
    // The checks of a host name, whose port does not matter.
    match units::server_address(&format!("{name}:1"))? {
        Address::Tcp { host, .. } => Ok(host.to_ascii_lowercase()),
        _ => Err(format!("must be a service, a protocol and a name: {EXAMPLE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigErrors};

    fn read(entry: &str, more: &str) -> Result<Config, ConfigErrors> {
        Config::read("k.toml", &format!("[pools.main]\nservers = [{entry}]\n{more}\n"), [])
    }

    #[test]
    fn an_entry_is_read_and_written_alike() {
        for entry in [
            "dns+memcached.cache.svc.cluster.local:11211",
            "dnssrv+_memcache._tcp.memcached.cache.svc.cluster.local",
            "elasticache+my.cfg.use1.cache.amazonaws.com:11211",
            "elasticache+[fd00::1]:11211",
        ] {
            assert_eq!(server_address(entry).unwrap().to_string(), entry);
        }
        assert_eq!(server_address("dns+Cache.Test:1").unwrap().to_string(), "dns+cache.test:1");
    }

    #[test]
    fn mistakes_in_entries_are_explained() {
        for (entry, expected) in [
            ("dns+cache", "has no port: add :11211"),
            ("dns+cache:0", "must be 1 to 65535"),
            ("dns+10.0.0.1:11211", "is an address and no name: write \"10.0.0.1:11211\""),
            ("dns+unix:/a", "must be a name and a port"),
            ("dnssrv+_memcache._tcp.cache:11211", "write \"dnssrv+_memcache._tcp.cache\""),
            ("dnssrv+cache.test", "must be a service, a protocol and a name"),
            ("dnssrv+_memcache._tcp", "must be a service, a protocol and a name"),
            ("dnssrv+_memcache._tcp.a b", "invalid character ' '"),
            ("elasticache+cache", "has no port: add :11211"),
            ("dnssrvnoa+_memcache._tcp.cache", "use dns+, dnssrv+ or elasticache+"),
        ] {
            let error = server_address(entry).unwrap_err();
            assert!(error.contains(expected), "{entry}: {error}");
        }
        let errors = read("{ address = \"dns+cache:1\", name = \"a\" }", "").unwrap_err().to_string();
        assert!(
            errors.contains("name (\"a\") is impossible for an entry that stands for several"),
            "{errors}"
        );
        assert!(read("{ address = \"dns+cache:1\", weight = 2 }", "").is_ok());
        let errors = read("\"dns+cache:1\", \"dns+CACHE:1\"", "").unwrap_err().to_string();
        assert!(errors.contains("is the same as servers[0]"), "{errors}");
    }

    #[test]
    fn settings_have_defaults_and_dns_servers_a_port() {
        let of = |more: &str| read("\"dns+cache:1\"", more).map(|config| config.discovery);
        let s = std::time::Duration::from_secs;
        let Discovery { nameservers, interval, settle } = of("").unwrap();
        assert_eq!((nameservers.len(), interval, settle), (0, s(60), s(120)));
        assert_eq!(of("[discovery]\ninterval = \"5s\"").unwrap().settle, s(10));
        let servers =
            of("[discovery]\nnameservers = [\"10.0.0.2\", \"fd00::2\", \"[fd00::2]:5353\", \"10.0.0.2:53\"]");
        let servers: Vec<_> = servers.unwrap().nameservers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.2:53", "[fd00::2]:53", "[fd00::2]:5353"]);
        for wrong in ["dns.example", "10.0.0.2:0", ""] {
            let errors = of(&format!("[discovery]\nnameservers = [{wrong:?}]")).unwrap_err().to_string();
            assert!(errors.contains("must be the IP address of a DNS server"), "{errors}");
        }
        let errors = of("[discovery]\nsettle = \"30s\"").unwrap_err().to_string();
        assert!(errors.contains("must be at least interval (\"60s\")"), "{errors}");
    }
}
