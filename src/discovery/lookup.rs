//! One lookup of an entry.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::cluster::{self, Cluster, Reply};
use super::list::sort;
use crate::clock::unix_ms;
use crate::config::tcp_address;
use crate::dns;
use crate::upstream::server::Server;
use crate::upstream::{Address, Lookup, PoolSpec, Security, ServerSpec};

/// The longest exchange with a configuration endpoint.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(5);

/// What an entry stands for at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// The servers, sorted; at least one.
    pub(super) servers: Vec<Address>,
    /// How long this holds; `None`: as long as the configuration says.
    pub(super) ttl: Option<Duration>,
    /// The version of a cluster.
    pub(super) version: Option<u64>,
    /// What was found and is passed over, in words.
    pub(super) ignored: Vec<String>,
}

/// Looks up the servers of an entry of a pool.
///
/// # Errors
/// There is none, or they cannot be found out: in words.
pub(super) async fn look_up(lookup: Lookup, pool: PoolSpec) -> Result<Answer, String> {
    let mut ignored = Vec::new();
    let (mut servers, ttl, version): (Vec<Address>, _, _) = match lookup {
        Lookup::Addresses { name, port } => {
            let found = dns::addresses(&name, &pool.nameservers).await.map_err(|error| error.to_string())?;
            let server = |ip: std::net::IpAddr| Address::Tcp { host: ip.to_canonical().to_string(), port };
            (found.found.into_iter().map(server).collect(), Some(found.ttl), None)
        }
        Lookup::Services { name } => {
            let found = dns::services(&name, &pool.nameservers).await.map_err(|error| error.to_string())?;
            let mut servers = Vec::new();
            for dns::Service { host, port } in found.found {
                match tcp_address(&format!("{host}:{port}")) {
                    Ok(server) => servers.push(server),
                    Err(why) => ignored.push(format!("the SRV record {host}:{port} {why}")),
                }
            }
            (servers, Some(found.ttl), None)
        }
        Lookup::Cluster { host, port } => {
            let asking = timeout(CLUSTER_TIMEOUT, ask_cluster(host, port, &pool));
            let Cluster { version, servers } =
                asking.await.map_err(|_| "the endpoint does not reply in time".to_owned())??;
            (servers, None, Some(version))
        }
    };
    sort(&mut servers);
    match servers.is_empty() {
        true if ignored.is_empty() => Err("no server is named".to_owned()),
        true => Err(ignored.join("; ")),
        false => Ok(Answer { servers, ttl, version, ignored }),
    }
}

async fn ask_cluster(host: String, port: u16, pool: &PoolSpec) -> Result<Cluster, String> {
    let spec = ServerSpec { address: Address::Tcp { host, port }, weight: 1, name: None };
    let security = Security::open(&pool.security).map_err(|error| error.to_string())?;
    let server = Server::new(&spec, pool, &security, unix_ms).map_err(|error| error.to_string())?;
    let connecting = server.connect();
    let mut socket = connecting.await.map_err(|error| format!("the endpoint cannot be reached: {error}"))?;
    for command in [cluster::CONFIG_GET, cluster::KEY_GET] {
        socket.send(command).await.map_err(|error| error.to_string())?;
        let mut reply = Vec::new();
        loop {
            match cluster::parse(&reply, tcp_address).map_err(|error| error.to_string())? {
                Reply::Found(cluster) => return Ok(cluster),
                Reply::Unknown => break,
                Reply::Incomplete => {}
            }
            let read = socket.read_buf(&mut reply).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("the endpoint has closed the connection in its reply".to_owned());
            }
        }
    }
    Err("is no configuration endpoint: it knows neither config get cluster nor AmazonElastiCache:cluster"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    #[tokio::test]
    async fn a_silent_endpoint_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = format!("[pools.main]\nservers = [\"elasticache+127.0.0.1:{port}\"]\n");
        let pool = Config::read("k.toml", &text, []).unwrap().pools[0].clone();
        let lookup = pool.servers[0].lookup().unwrap().clone();
        let begin = Instant::now();
        let error = look_up(lookup, pool).await.unwrap_err();
        assert_eq!(error, "the endpoint does not reply in time");
        assert!(begin.elapsed() < CLUSTER_TIMEOUT + Duration::from_secs(2));
    }
}
