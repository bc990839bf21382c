//! Names of servers that have several addresses: the entry is one server all the same, which may surprise.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use crate::config::Config;
use crate::dns;
use crate::upstream::Address;

/// The longest lookup of a name. Names that are not found until then are not warned of.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Names that are looked up at a time.
const MAX_AT_ONCE: usize = 16;

/// A warning for each name of a server that has several addresses of one kind. Names that cannot be looked up are passed over.
pub async fn several_addresses(config: &Config) -> Vec<String> {
    let mut names = BTreeSet::new();
    for pool in &config.pools {
        for server in pool.all_servers() {
            if let Address::Tcp { host, port } = &server.address
                && host.parse::<IpAddr>().is_err()
            {
                names.insert((pool.name.clone(), host.clone(), *port));
            }
        }
    }
    let nameservers = &config.discovery.nameservers;
    let (mut lookups, mut warnings) = (JoinSet::new(), BTreeSet::new());
    for (pool, host, port) in names {
        if lookups.len() >= MAX_AT_ONCE
            && let Some(Ok(warning)) = lookups.join_next().await
        {
            warnings.extend(warning);
        }
        lookups.spawn(of_name(pool, host, port, nameservers.clone()));
    }
    while let Some(warning) = lookups.join_next().await {
        warnings.extend(warning.ok().flatten());
    }
    warnings.into_iter().collect()
}

/// Logs these warnings, in a task of its own.
pub fn watch_names(config: &Config) {
    let config = config.clone();
    tokio::spawn(async move {
        several_addresses(&config).await.iter().for_each(|warning| warn!("{warning}"));
    });
}

async fn of_name(pool: String, host: String, port: u16, nameservers: Vec<SocketAddr>) -> Option<String> {
    let looking_up = async {
        match nameservers.is_empty() {
            true => Some(lookup_host((&host[..], port)).await.ok()?.map(|address| address.ip()).collect()),
            false => Some(dns::addresses(&host, &nameservers).await.ok()?.found),
        }
    };
    let addresses: BTreeSet<IpAddr> = timeout(TIMEOUT, looking_up).await.ok()??;
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    // A server with one address of each kind is one server.
    (v4 > 1 || addresses.len() - v4 > 1).then(|| {
        format!(
            "pools.{pool}.servers: the name {host} has {} addresses, and {host}:{port} is one server: write \
             \"dns+{host}:{port}\" to use each address as a server, or \"dnssrv+_memcache._tcp.{host}\" to use each of its SRV \
             records",
            addresses.len()
        )
    })
}
