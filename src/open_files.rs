//! How many files the process may have open, and how many of them are left for clients: each takes one, and so does each
//! connection to a server.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::admin;
use crate::config::Config;
use crate::upstream::{Address, ServerSpec};
use crate::worker::MAX_REFUSING;

/// Standard streams, signals, what a scrape reads in /proc, and what libraries keep open.
const PROCESS: usize = 32;
/// What a thread's runtime keeps open.
const RUNTIME: usize = 8;

/// Raises the limit as far as the system allows. Gives it; `None`: there is none.
pub(crate) fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // What is refused leaves the limit as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// How the limit is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// How many files may be open.
    limit: Option<u64>,
    /// How many of these are not for clients.
    reserved: usize,
    /// `listen.max_connections` as it is configured.
    configured: usize,
}

impl Budget {
    /// With this limit and so many workers.
    pub(crate) fn new(limit: Option<u64>, config: &Config, workers: usize) -> Budget {
        let servers = config.pools.iter().flat_map(|pool| &pool.servers);
        let to_servers: usize = servers.clone().map(of_connection).sum();
        let embedded = servers.filter(|server| matches!(server.address, Address::Embedded { .. })).count();
        let listen = &config.listen;
        // One in hand at each listener besides: it is accepted before it is refused.
        let listeners = 2 * (listen.tcp.len() + listen.unix.len());
        let admin = config.admin.as_ref().map_or(0, |_| RUNTIME + admin::MAX_OPEN);
        let reserved = PROCESS
            + workers * (RUNTIME + listeners + MAX_REFUSING + to_servers)
            + embedded * RUNTIME
            + admin;
        Budget { limit, reserved, configured: listen.max_connections }
    }

    /// How many clients there may be at a time.
    ///
    /// # Errors
    /// None: in words.
    pub(crate) fn clients(&self) -> Result<usize, String> {
        let left = match self.limit.map(usize::try_from) {
            None | Some(Err(_)) => self.configured,
            Some(Ok(limit)) => limit.saturating_sub(self.reserved),
        };
        match left.min(self.configured) {
            0 => Err(format!(
                "no client could come in: this process may have {} files open, and its servers, listeners and admin need {}; \
                 raise ulimit -n (systemd: LimitNOFILE) above that",
                self.limit.unwrap_or_default(),
                self.reserved
            )),
            clients => Ok(clients),
        }
    }

    /// What to say if `listen.max_connections` is more than there is room for.
    pub(crate) fn warning(&self) -> Option<String> {
        match self.clients() {
            Err(why) => Some(why),
            Ok(clients) if clients == self.configured => None,
            Ok(clients) => Some(format!(
                "listen.max_connections is lowered from {} to {clients}: this process may have {} files open, and its servers, \
                 listeners and admin need {}; raise ulimit -n (systemd: LimitNOFILE) to {}, or lower listen.max_connections",
                self.configured,
                self.limit.unwrap_or_default(),
                self.reserved,
                self.configured.saturating_add(self.reserved)
            )),
        }
    }
}

/// What a worker's connection to a server takes: both ends of it if that is inside the process, and where a name has to be looked
/// up, what that takes.
fn of_connection(server: &ServerSpec) -> usize {
    match &server.address {
        Address::Embedded { .. } => 2,
        Address::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err() => 3,
        Address::Tcp { .. } | Address::Unix(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: Option<u64>, workers: usize, more: &str) -> Budget {
        let text = format!("[pools.main]\nservers = [\"10.0.0.1:11211\", \"10.0.0.2:11211\"]\n{more}");
        Budget::new(limit, &Config::read("k.toml", &text, []).unwrap(), workers)
    }

    #[test]
    fn clients_have_what_servers_and_the_admin_leave_and_no_more_than_is_configured() {
        let reserved = budget(None, 2, "").reserved;
        let limited = |limit| budget(Some(limit), 2, "");
        assert_eq!(budget(None, 2, "").clients(), Ok(10_000));
        assert_eq!(limited(1_000_000).clients(), Ok(10_000));
        assert_eq!(limited(1_000_000).warning(), None);
        assert_eq!(limited(reserved as u64 + 10_000).warning(), None);
        assert_eq!(limited(reserved as u64 + 9_999).clients(), Ok(9_999));
        let said = limited(1024).warning().unwrap();
        assert!(
            said.contains(&format!("from 10000 to {}", 1024 - reserved)) && said.contains("1024 files"),
            "{said}"
        );
        assert!(said.contains(&format!("to {}, or", 10_000 + reserved)), "{said}");
        let said = limited(reserved as u64).clients().unwrap_err();
        assert!(said.contains(&reserved.to_string()), "{said}");
        assert_eq!(limited(reserved as u64).warning(), Some(said));
    }

    #[test]
    fn each_worker_needs_a_connection_to_each_server() {
        let of = |workers, more: &str| budget(None, workers, more).reserved;
        let worker = of(2, "") - of(1, "");
        assert_eq!(of(3, ""), of(2, "") + worker);
        let third = "[pools.b]\nservers = [\"10.0.0.3:11211\"]\n";
        assert_eq!(of(4, third), of(4, "") + 4);
        let named = "[pools.b]\nservers = [\"cache-3.internal:11211\"]\n";
        assert_eq!(of(4, named), of(4, "") + 12);
        let off = "[admin]\nlisten = \"\"\n";
        assert_eq!(of(4, off), of(4, "") - RUNTIME - admin::MAX_OPEN);
    }
}
