//! From a pool as it is written and what has been found to the pool as it is in force.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use super::settling::{Phase, Step};
use crate::config::{self, Config};
use crate::listener::Listen;
use crate::upstream::{Address, Lookup, OnError, OtherKind, OtherPlacement, PoolSpec, ServerSpec};

/// The most servers of one list, discovered ones included.
pub(super) const MAX_SERVERS: usize = 1024;

/// The servers that each entry of a pool stands for.
pub(super) type Found = BTreeMap<Lookup, Vec<Address>>;

/// The order of servers that does not depend on the answer: addresses by their number, names so that `pod-10` is behind `pod-9`.
pub(super) fn sort(servers: &mut Vec<Address>) {
    servers.sort_by(compare);
    servers.dedup();
}

fn compare(a: &Address, b: &Address) -> Ordering {
    let (Address::Tcp { host: a, port: a_port }, Address::Tcp { host: b, port: b_port }) = (a, b) else {
        return a.to_string().cmp(&b.to_string());
    };
    let by_host = match (a.parse::<IpAddr>(), b.parse::<IpAddr>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        _ => parts(a).cmp(&parts(b)).then_with(|| a.cmp(b)),
    };
    by_host.then_with(|| a_port.cmp(b_port))
}

/// The text and the numbers of a name, in turn.
fn parts(name: &str) -> Vec<(&str, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, from_digits) = rest.split_at(digits);
        let end = from_digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(from_digits.len());
        let (number, after) = from_digits.split_at(end);
        parts.push((text, number.parse().unwrap_or(0)));
        rest = after;
    }
    parts
}

/// A list of servers, with what has been found in place of each entry. Of two servers with one address, the first one counts.
///
/// # Errors
/// An entry has not been found, or there are too many servers.
pub(super) fn compose(written: &[ServerSpec], found: &Found) -> Result<Vec<ServerSpec>, String> {
    let mut seen = HashSet::new();
    let mut servers = Vec::new();
    for entry in written {
        let addresses = match entry.lookup() {
            None => std::slice::from_ref(&entry.address),
            Some(lookup) => found.get(lookup).ok_or_else(|| format!("{lookup} has not been found"))?,
        };
        for address in addresses {
            // An embedded server is a server of its own.
            let is_embedded = matches!(address, Address::Embedded { .. });
            if is_embedded || seen.insert(address.to_string().to_ascii_lowercase()) {
                servers.push(ServerSpec { address: address.clone(), ..entry.clone() });
            }
        }
    }
    match servers.len() {
        1..=MAX_SERVERS => Ok(servers),
        n => Err(format!("there are {n} servers, of which at most {MAX_SERVERS} are possible")),
    }
}

/// Why what has been found cannot be used: a request would come back, or there are too many servers.
pub(super) fn problem(pool: &PoolSpec, found: &Found, listen: &Listen) -> Option<String> {
    for server in found.values().flatten() {
        if let Address::Tcp { host, port } = server
            && listen.tcp.iter().any(|listener| config::reaches(host, *port, &listener.address))
        {
            return Some(format!("{server} is a listener of Kennel itself"));
        }
    }
    let lists = [Some(&pool.servers), pool.other.as_ref().map(|other| &other.servers)];
    lists.into_iter().flatten().find_map(|list| compose(list, found).err())
}

/// The pool in this phase. Before anything has been found, it has no server that can be reached: only the entries themselves.
///
/// # Errors
/// As for [`compose`].
pub(super) fn in_force(written: &PoolSpec, phase: &Phase<Found>) -> Result<PoolSpec, String> {
    let (servers, other) = match (phase, &written.other) {
        (Phase::Unknown, _) => {
            let is_entry = |server: &&ServerSpec| server.lookup().is_some();
            let others = written.other.iter().flat_map(|other| &other.servers);
            let entries = written.servers.iter().chain(others).filter(is_entry).cloned();
            let mut seen = HashSet::new();
            (entries.filter(|entry| seen.insert(entry.address.clone())).collect(), None)
        }
        // The steps of the configuration, with what was found when they began.
        (phase, Some(other)) => {
            let Some(found) = read_by(phase) else { return Err("nothing has been found".to_owned()) };
            let servers = compose(&other.servers, found)?;
            (compose(&written.servers, found)?, Some(OtherPlacement { servers, ..other.clone() }))
        }
        (Phase::Settled(found), None) => (compose(&written.servers, found)?, None),
        (Phase::Changing(from, to, step), None) => {
            let (from, to) = (compose(&written.servers, from)?, compose(&written.servers, to)?);
            let other =
                |servers, kind| Some(OtherPlacement { servers, scheme: written.scheme.clone(), kind });
            let previous = |take_over| OtherKind::Previous { take_over };
            match step {
                Step::Next => (from, other(to, OtherKind::Next)),
                Step::TakeOver => (to, other(from, previous(true))),
                Step::Previous => (to, other(from, previous(false))),
            }
        }
    };
    // Two placements that are equal need no steps.
    let other = other.filter(|other| (&other.servers, &other.scheme) != (&servers, &written.scheme));
    let fewest = other.iter().map(|other| other.servers.len()).chain([servers.len()]).min().unwrap_or(0);
    let is_known = *phase != Phase::Unknown;
    let failover = written.failover.clone().filter(|_| is_known && fewest >= config::LEAST_SERVERS);
    let on_error = match written.on_error {
        OnError::Standby if failover.is_none() => OnError::Miss,
        on_error => on_error,
    };
    Ok(PoolSpec { servers, other, failover, on_error, ..written.clone() })
}

fn read_by(phase: &Phase<Found>) -> Option<&Found> {
    match phase {
        Phase::Unknown => None,
        Phase::Settled(found) | Phase::Changing(found, _, Step::Next) => Some(found),
        Phase::Changing(_, found, Step::TakeOver | Step::Previous) => Some(found),
    }
}

/// The configuration with these pools in force.
pub(super) fn with_pools(written: &Config, pools: Vec<PoolSpec>) -> Config {
    let mut config = Config { pools, ..written.clone() };
    let tags = &config.pools[config.tags.pool];
    let fewest = tags.other.iter().map(|other| other.servers.len()).chain([tags.servers.len()]).min();
    config.tags.replicas = config.tags.replicas.min(fewest.unwrap_or(1)).max(1);
    config
}

/// What differs between two lists, in words.
pub(super) fn difference(from: &[ServerSpec], to: &[ServerSpec]) -> String {
    let missing = |of: &[ServerSpec], in_list: &[ServerSpec]| {
        let missing = of.iter().filter(|server| !in_list.iter().any(|other| other.address == server.address));
        missing.map(ServerSpec::label).collect::<Vec<_>>()
    };
    let part = |word: &str, servers: Vec<String>| match servers.len() {
        0 => None,
        n if n > 20 => Some(format!("{word} {} and {} more", servers[..20].join(", "), n - 20)),
        _ => Some(format!("{word} {}", servers.join(", "))),
    };
    let parts = [part("added", missing(to, from)), part("removed", missing(from, to))];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn config(servers: &str, more: &str) -> Config {
        let text =
            format!("[listen]\ntcp = [\"127.0.0.1:11211\"]\n[pools.main]\nservers = {servers}\n{more}\n");
        Config::read("k.toml", &text, []).unwrap()
    }

    fn entry() -> Lookup {
        Lookup::Addresses { name: "cache".into(), port: 11211 }
    }

    fn found(n: usize) -> Found {
        let servers = (0..n).map(|n| tcp(&format!("10.0.{}.{}", n / 256, n % 256), 11211)).collect();
        Found::from([(entry(), servers)])
    }

    fn labels(servers: &[ServerSpec]) -> Vec<String> {
        servers.iter().map(|server| format!("{}*{}", server.label(), server.weight)).collect()
    }

    #[test]
    fn the_order_of_an_answer_does_not_matter() {
        let mut servers = vec![
            tcp("pod-10.m", 1),
            tcp("pod-9.m", 2),
            tcp("pod-9.m", 1),
            tcp("10.0.0.10", 1),
            tcp("10.0.0.9", 1),
            tcp("pod-9.m", 1),
        ];
        sort(&mut servers);
        let sorted: Vec<_> = servers.iter().map(Address::to_string).collect();
        assert_eq!(sorted, ["10.0.0.9:1", "10.0.0.10:1", "pod-9.m:1", "pod-9.m:2", "pod-10.m:1"]);
    }

    #[test]
    fn an_entry_is_replaced_where_it_stands_each_of_its_servers_has_its_weight_and_the_first_of_two_counts() {
        let servers = "[\"10.0.0.1:11211\", { address = \"dns+cache:11211\", weight = 3 }, \"b:1\"]";
        let pool = &config(servers, "").pools[0];
        let list = compose(&pool.servers, &found(3)).unwrap();
        assert_eq!(labels(&list), ["10.0.0.1:11211*1", "10.0.0.0:11211*3", "10.0.0.2:11211*3", "b:1*1"]);
        assert!(
            compose(&pool.servers, &Found::new()).unwrap_err().contains("dns+cache:11211 has not been found")
        );
    }

    #[test]
    fn more_servers_than_possible_and_a_listener_of_kennel_are_not_used() {
        let config = config("[\"dns+cache:11211\"]", "");
        let problem = |found: &Found| problem(&config.pools[0], found, &config.listen);
        assert_eq!(problem(&found(MAX_SERVERS)), None);
        assert!(problem(&found(MAX_SERVERS + 1)).unwrap().contains("1025 servers"));
        let own = Found::from([(entry(), vec![tcp("127.0.0.1", 11211)])]);
        assert!(problem(&own).unwrap().contains("127.0.0.1:11211 is a listener of Kennel"));
    }

    #[test]
    fn the_steps_of_a_change_are_those_of_the_configuration() {
        let written = &config("[\"dns+cache:11211\"]", "").pools[0];
        let pool = |phase| in_force(written, &phase).unwrap();
        let changing = |step| pool(Phase::Changing(found(3), found(4), step));
        let lists = |pool: &PoolSpec| {
            let other = pool.other.as_ref().map(|other| (other.servers.len(), other.kind));
            (pool.servers.len(), other, pool.failover.is_some())
        };
        let previous = |take_over| OtherKind::Previous { take_over };
        assert_eq!(lists(&pool(Phase::Settled(found(3)))), (3, None, true));
        assert_eq!(lists(&changing(Step::Next)), (3, Some((4, OtherKind::Next)), true));
        assert_eq!(lists(&changing(Step::TakeOver)), (4, Some((3, previous(true))), true));
        assert_eq!(lists(&changing(Step::Previous)), (4, Some((3, previous(false))), true));
        // Fewer than three servers in one of the lists cannot fail over.
        assert_eq!(lists(&pool(Phase::Settled(found(2)))), (2, None, false));
        let shrinking = pool(Phase::Changing(found(3), found(2), Step::Next));
        assert_eq!(lists(&shrinking), (3, Some((2, OtherKind::Next)), false));
    }

    #[test]
    fn before_anything_is_found_no_server_of_the_pool_is_used() {
        let text = "[\"10.0.0.1:11211\", \"dns+cache:11211\", \"dnssrv+_memcache._tcp.cache\"]";
        let config = config(text, "on_error = \"standby\"\n[tags]\nreplicas = 2");
        let pool = in_force(&config.pools[0], &Phase::Unknown).unwrap();
        assert_eq!(labels(&pool.servers), ["dns+cache:11211*1", "dnssrv+_memcache._tcp.cache*1"]);
        assert_eq!((pool.failover.is_some(), pool.on_error), (false, OnError::Miss));
        let one =
            in_force(&self::config("[\"dns+cache:11211\"]", "").pools[0], &Phase::Settled(found(1))).unwrap();
        assert_eq!(with_pools(&config, vec![one]).tags.replicas, 1);
        assert_eq!(with_pools(&config, vec![pool]).tags.replicas, 2);
    }

    #[test]
    fn the_steps_that_the_configuration_takes_are_kept() {
        let written =
            &config("[\"10.0.0.0:11211\"]", "failover = false\nnext = [\"dns+cache:11211\"]").pools[0];
        let pool = in_force(written, &Phase::Settled(found(2))).unwrap();
        let other = pool.other.unwrap();
        assert_eq!((labels(&pool.servers).len(), other.servers.len(), other.kind), (1, 2, OtherKind::Next));
    }

    #[test]
    fn a_difference_names_what_is_added_and_removed() {
        let list =
            |n: usize| compose(&config("[\"dns+cache:11211\"]", "").pools[0].servers, &found(n)).unwrap();
        assert_eq!(difference(&list(2), &list(3)), "added 10.0.0.2:11211");
        assert_eq!(difference(&list(3), &list(2)), "removed 10.0.0.2:11211");
        assert!(difference(&list(1), &list(40)).ends_with(" and 19 more"));
    }
}
