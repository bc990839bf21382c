//! What a name stands for in DNS: its addresses, or the servers of a service.
//!
//! A lookup asks the configured DNS servers, or those of /etc/resolv.conf with its search domains. Nothing is cached: the answer has
//! the time for which it holds.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::time::{Instant, timeout};

/// Where the system says which DNS servers to ask.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The longest lookup, with all its attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one DNS server has to answer, at most.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often each DNS server is asked, at most.
const ATTEMPTS: usize = 2;

/// What a lookup has found: at least one element, each once, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The addresses or servers.
    pub found: BTreeSet<T>,
    /// How long they hold: the shortest TTL of the records.
    pub ttl: Duration,
}

/// The server of a service: an SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// The target, in lower case and without a final dot; empty if the record says that there is no such service.
    pub host: String,
    /// The port; 0 is not legal.
    pub port: u16,
}

/// Why a name stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsError {
    /// There is no such name.
    NoName,
    /// The name has no such records.
    NoRecords,
    /// No DNS server has answered in time.
    TimedOut,
    /// Something else, in words.
    Failed(String),
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DnsError::NoName => f.write_str("there is no such name"),
            DnsError::NoRecords => f.write_str("the name has no such records"),
            DnsError::TimedOut => f.write_str("no DNS server answers in time"),
            DnsError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for DnsError {}

/// Looks up the IPv4 and IPv6 addresses of a name. With no `nameservers`, those of the system are asked, and /etc/hosts is read.
/// Must be called in a runtime.
///
/// # Errors
/// There is none, or one of the two lookups has failed: half an answer is none.
pub async fn addresses(name: &str, nameservers: &[SocketAddr]) -> Result<Answer<IpAddr>, DnsError> {
    let resolver = resolver(nameservers)?;
    let both = async { tokio::join!(resolver.ipv4_lookup(name), resolver.ipv6_lookup(name)) };
    let (v4, v6) = timeout(LOOKUP_TIMEOUT, both).await.map_err(|_| DnsError::TimedOut)?;
    let of = |data: &RData| match data {
        RData::A(ip) => Some(IpAddr::V4(ip.0)),
        RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
        _ => None,
    };
    let either = match (v4.map_err(why), v6.map_err(why)) {
        (Ok(v4), Ok(v6)) => vec![v4, v6],
        (Ok(one), Err(DnsError::NoRecords | DnsError::NoName))
        | (Err(DnsError::NoRecords | DnsError::NoName), Ok(one)) => vec![one],
        (Err(DnsError::NoRecords | DnsError::NoName), Err(error)) | (Err(error), _) | (_, Err(error)) => {
            return Err(error);
        }
    };
    answer(&either, of)
}

/// Looks up the SRV records of a service, in the same way.
///
/// # Errors
/// There is none, or the lookup has failed.
pub async fn services(name: &str, nameservers: &[SocketAddr]) -> Result<Answer<Service>, DnsError> {
    let resolver = resolver(nameservers)?;
    let lookup = timeout(LOOKUP_TIMEOUT, resolver.lookup(name, RecordType::SRV)).await;
    let lookup = lookup.map_err(|_| DnsError::TimedOut)?.map_err(why)?;
    answer(&[lookup], |data| match data {
        RData::SRV(record) => {
            let host = record.target.to_ascii().to_ascii_lowercase();
            Some(Service { host: host.trim_end_matches('.').to_owned(), port: record.port })
        }
        _ => None,
    })
}

fn answer<T: Ord>(lookups: &[Lookup], of: impl Fn(&RData) -> Option<T>) -> Result<Answer<T>, DnsError> {
    let records = lookups.iter().flat_map(|lookup| lookup.answers());
    let found: BTreeSet<T> = records.filter_map(|record| of(&record.data)).collect();
    let until = lookups.iter().map(|lookup| Instant::from_std(lookup.valid_until())).min();
    let ttl = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
    // Whole seconds, as in the records: a part of the first one has passed.
    let ttl = Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0));
    match found.is_empty() {
        true => Err(DnsError::NoRecords),
        false => Ok(Answer { found, ttl }),
    }
}

/// The resolver for one lookup, so that a change of /etc/resolv.conf takes effect at the next.
fn resolver(nameservers: &[SocketAddr]) -> Result<TokioResolver, DnsError> {
    let (config, mut options) = match nameservers {
        [] => system()?,
        nameservers => (configured(nameservers), ResolverOpts::default()),
    };
    options.timeout = options.timeout.min(SERVER_TIMEOUT);
    options.attempts = options.attempts.min(ATTEMPTS);
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.cache_size = 0;
    options.use_hosts_file = if nameservers.is_empty() { ResolveHosts::Always } else { ResolveHosts::Never };
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(|error| DnsError::Failed(error.to_string()))
}

/// Names are looked up as they are: without search domains.
fn configured(nameservers: &[SocketAddr]) -> ResolverConfig {
    let server = |address: &SocketAddr| {
        let mut server = NameServerConfig::udp_and_tcp(address.ip());
        server.connections.iter_mut().for_each(|connection| connection.port = address.port());
        server
    };
    ResolverConfig::from_parts(None, Vec::new(), nameservers.iter().map(server).collect())
}

fn system() -> Result<(ResolverConfig, ResolverOpts), DnsError> {
    let text = fs::read(RESOLV_CONF).map_err(|error| DnsError::Failed(format!("{RESOLV_CONF}: {error}")))?;
    of_resolv_conf(&text)
}

fn of_resolv_conf(text: &[u8]) -> Result<(ResolverConfig, ResolverOpts), DnsError> {
    // As the C library does, what is not understood is passed over.
    let (parsed, _) = resolv_conf::Config::parse_with_errors(text);
    let servers: Vec<_> =
        parsed.nameservers.iter().map(|ip| NameServerConfig::udp_and_tcp(ip.into())).collect();
    if servers.is_empty() {
        return Err(DnsError::Failed(format!("{RESOLV_CONF} has no nameserver")));
    }
    let domain = |domain: &String| Name::from_str(domain).ok();
    let search = parsed.get_last_search_or_domain().filter_map(domain).collect();
    let mut options = ResolverOpts::default();
    options.ndots = parsed.ndots as usize;
    options.timeout = Duration::from_secs(u64::from(parsed.timeout.max(1)));
    options.attempts = parsed.attempts.max(1) as usize;
    Ok((ResolverConfig::from_parts(None, search, servers), options))
}

fn why(error: NetError) -> DnsError {
    match error {
        error if error.is_nx_domain() => DnsError::NoName,
        error if error.is_no_records_found() => DnsError::NoRecords,
        NetError::Timeout => DnsError::TimedOut,
        error => DnsError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_file_gives_the_servers_the_search_domains_and_the_limits() {
        let text = b"nameserver 10.0.0.10\nnameserver fd00::a\nsearch a.svc.local svc.local\noptions ndots:5 timeout:1\nnonsense x\n";
        let (config, options) = of_resolv_conf(text).unwrap();
        let search: Vec<_> = config.search().iter().map(Name::to_string).collect();
        assert_eq!(search, ["a.svc.local", "svc.local"]);
        assert_eq!(config.name_servers().len(), 2);
        assert_eq!((options.ndots, options.timeout), (5, Duration::from_secs(1)));
        let error = of_resolv_conf(b"search local\n").unwrap_err().to_string();
        assert!(error.contains("has no nameserver"), "{error}");
    }

    #[test]
    fn a_configured_server_keeps_its_port() {
        let config = configured(&["127.0.0.1:5353".parse().unwrap()]);
        let server = &config.name_servers()[0];
        assert!(config.search().is_empty());
        assert_eq!(server.connections.iter().map(|one| one.port).collect::<Vec<_>>(), [5353, 5353]);
    }

    #[tokio::test]
    async fn a_silent_server_is_not_waited_for_long() {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        assert_eq!((LOOKUP_TIMEOUT.as_secs(), SERVER_TIMEOUT.as_secs(), ATTEMPTS), (5, 2, 2));
        let begin = Instant::now();
        let error = addresses("name.test", &[socket.local_addr().unwrap()]).await.unwrap_err();
        assert_eq!(error, DnsError::TimedOut);
        assert!(begin.elapsed() < LOOKUP_TIMEOUT + Duration::from_secs(2));
    }
}
