//! The loads. `expiry`: a client that misses a key builds it for 200 ms and stores it for 2 s, and the n-th key is read 1/n as often as the
//! first: 15.5 rebuilds per second are needed. `unix`: the proxies still reach their servers by TCP; direct has a server of its own on a
//! Unix socket. `hot`: the work of the server shows in "all CPU".

use std::time::Duration;

/// One load: a closed loop of clients with `depth` outstanding requests each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Active clients.
    pub(crate) connections: usize,
    /// Outstanding requests of each client.
    pub(crate) depth: usize,
    /// Keys of a get; at most 128.
    pub(crate) keys_per_get: usize,
    /// Percentage of requests that are sets.
    pub(crate) sets: u32,
    /// The length of a value, in bytes.
    pub(crate) value: usize,
    /// The number of keys. A prime or 1, so that keys a fixed step apart differ.
    pub(crate) items: u32,
    /// memcacheds.
    pub(crate) servers: usize,
    /// Rules of Kennel's configuration; the last one matches.
    pub(crate) rules: usize,
    /// Additional clients that read one key each before the others begin, and then stay idle.
    pub(crate) idle: usize,
    /// Whether clients connect through a Unix socket.
    pub(crate) unix: bool,
    /// Whether clients speak memcached's binary protocol. twemproxy does not. A get of several keys is a sequence of `getkq` and a
    /// `noop`. There are no sets.
    pub(crate) binary: bool,
    /// Values expire, and a client that misses one rebuilds it.
    pub(crate) expiry: Option<Expiry>,
    /// The number of replies of each proxy, in one round, to measure how its memory grows. Such a load runs only when it is
    /// named, and without `direct`.
    pub(crate) replies: Option<u64>,
}

/// How values expire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expiry {
    /// The exptime of values, in seconds.
    pub(crate) exptime: u32,
    /// The duration of a rebuild.
    pub(crate) rebuild: Duration,
    /// The minimum duration of a round, so that values expire in it.
    pub(crate) round: Duration,
}

const BASE: Load = Load {
    name: "get",
    about: "50 clients, one get at a time; 100 B values, 3 servers, 1 rule",
    connections: 50,
    depth: 1,
    keys_per_get: 1,
    sets: 0,
    value: 100,
    items: 10_007,
    servers: 3,
    rules: 1,
    idle: 0,
    unix: false,
    binary: false,
    expiry: None,
    replies: None,
};

/// All loads, in the order in which they run. Fields that are not given are those of the first.
pub(crate) const LOADS: [Load; 24] = [
    BASE,
    Load { name: "pipelined", about: "16 gets of each client in flight", depth: 16, ..BASE },
    Load { name: "hot", about: "1 key, 1 server", items: 1, servers: 1, ..BASE },
    Load { name: "latency", about: "1 client", connections: 1, ..BASE },
    Load { name: "clients-500", about: "500 clients", connections: 500, ..BASE },
    Load { name: "mixed", about: "90 % get, 10 % set, 1 KiB values", sets: 10, value: 1024, ..BASE },
    Load { name: "multi-20-of-3", about: "gets of 20 keys", keys_per_get: 20, ..BASE },
    Load { name: "multi-100-of-3", about: "gets of 100 keys", keys_per_get: 100, ..BASE },
    Load {
        name: "multi-20-of-10",
        about: "gets of 20 keys, 10 servers",
        keys_per_get: 20,
        servers: 10,
        ..BASE
    },
    Load {
        name: "multi-100-of-10",
        about: "gets of 100 keys, 10 servers",
        keys_per_get: 100,
        servers: 10,
        ..BASE
    },
    Load { name: "value-1k", about: "1 KiB values", value: 1024, ..BASE },
    Load { name: "value-10k", about: "10 KiB values", value: 10 * 1024, items: 1009, ..BASE },
    Load { name: "value-100k", about: "100 KiB values", value: 100 * 1024, items: 211, ..BASE },
    Load { name: "binary-get", about: "`get` in the binary protocol", binary: true, ..BASE },
    Load { name: "binary-pipelined", about: "`pipelined` in it", depth: 16, binary: true, ..BASE },
    Load {
        name: "binary-multi-20-of-3",
        about: "`multi-20-of-3` in it",
        keys_per_get: 20,
        binary: true,
        ..BASE
    },
    Load {
        name: "binary-multi-100-of-3",
        about: "`multi-100-of-3` in it",
        keys_per_get: 100,
        binary: true,
        ..BASE
    },
    Load { name: "unix", about: "clients on a Unix socket", unix: true, ..BASE },
    Load {
        name: "idle-10000",
        about: "10,000 further clients that have read a key and send nothing more",
        idle: 10_000,
        ..BASE
    },
    Load { name: "rules-100", about: "100 rules, the last matches", rules: 100, ..BASE },
    Load { name: "rules-1000", about: "1,000 rules, the last matches", rules: 1000, ..BASE },
    Load { name: "servers-100", about: "100 servers", servers: 100, ..BASE },
    Load {
        name: "expiry",
        about: "31 Zipf-hot keys that expire after 2 s, on 1 server; a rebuild takes 200 ms",
        items: 31,
        servers: 1,
        expiry: Some(Expiry {
            exptime: 2,
            rebuild: Duration::from_millis(200),
            round: Duration::from_secs(4),
        }),
        ..BASE
    },
    Load {
        name: "ten-million",
        about: "10,000,000 replies from each proxy, 16 gets of each client in flight; only when named",
        depth: 16,
        replies: Some(10_000_000),
        ..BASE
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outage::OUTAGES;
    use crate::start;

    #[test]
    fn every_load_of_the_pages_tables_exists() {
        let loads = LOADS.iter().map(|load| load.name);
        let known: Vec<&str> = loads.chain([start::NAME]).chain(OUTAGES.iter().map(|o| o.name)).collect();
        let page = include_str!("../../docs/performance.md");
        let named = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let named: Vec<&str> = named.collect();
        assert!(named.len() > 10, "the page has no tables of loads");
        named.iter().for_each(|name| assert!(known.contains(name), "there is no load {name}"));
    }

    #[test]
    fn every_load_has_a_name_of_its_own_and_a_prime_number_of_keys() {
        for (i, load) in LOADS.iter().enumerate() {
            assert!(LOADS[..i].iter().all(|other| other.name != load.name), "{}", load.name);
            assert_ne!(load.name, start::NAME);
            assert!(
                (2..load.items).take_while(|n| n * n <= load.items).all(|n| load.items % n != 0),
                "{}",
                load.name
            );
            assert!(load.keys_per_get <= 128 && load.keys_per_get <= load.items as usize, "{}", load.name);
        }
    }
}
