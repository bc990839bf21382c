//! How many clients the limit on open files allows. Each client and each connection to a server needs one file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::admin;
use crate::config::Config;
use crate::upstream::{Address, ServerSpec};
use crate::worker::MAX_REFUSING;

/// Files for standard streams, signals, the files in /proc that a scrape reads, and libraries.
const PROCESS: usize = 32;
/// Files of one thread's runtime.
const RUNTIME: usize = 8;

/// Raises the limit as far as the system allows and returns it; `None` means unlimited.
pub(crate) fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // On an error the limit is unchanged.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// How the limit is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The limit on open files.
    limit: Option<u64>,
    /// Files that are not available for clients.
    reserved: usize,
    /// `listen.max_connections` as configured.
    configured: usize,
}

impl Budget {
    /// Computes the files that the servers, listeners and the admin server need.
    pub(crate) fn new(limit: Option<u64>, config: &Config, workers: usize) -> Budget {
        let servers = config.pools.iter().flat_map(|pool| pool.all_servers());
        let other_links =
            config.pools.iter().flat_map(|pool| pool.other.iter().flat_map(|other| &other.servers));
        let to_servers: usize = servers.clone().map(files_of_connection).sum();
        let embedded =
            servers.clone().filter(|server| matches!(server.address, Address::Embedded { .. })).count();
        let shared = servers.filter(|server| !matches!(server.address, Address::Embedded { .. }));
        let monitor = match shared.clone().count() {
            0 => 0,
            _ => RUNTIME + shared.chain(other_links).map(files_of_connection).sum::<usize>(),
        };
        let listen = &config.listen;
        // Each listener also needs one for a client that is accepted and then refused.
        let listeners = 2 * (listen.tcp.len() + listen.unix.len());
        let admin = config.admin.as_ref().map_or(0, |_| RUNTIME + admin::MAX_OPEN);
        let reserved = PROCESS
            + workers * (RUNTIME + listeners + MAX_REFUSING + to_servers)
            + embedded * RUNTIME
            + monitor
            + admin;
        Budget { limit, reserved, configured: listen.max_connections }
    }

    /// The most clients at a time: `max_connections`, or less if the limit does not allow it.
    ///
    /// # Errors
    /// The limit allows no client; the error describes how to raise it.
    pub(crate) fn clients(&self) -> Result<usize, String> {
        let left = match self.limit.map(usize::try_from) {
            None | Some(Err(_)) => self.configured,
            Some(Ok(limit)) => limit.saturating_sub(self.reserved),
        };
        match left.min(self.configured) {
            0 => Err(format!(
                "the limit of {} open files is too low: servers, listeners and the admin address need {}; \
                 raise ulimit -n (systemd: LimitNOFILE) above that",
                self.limit.unwrap_or_default(),
                self.reserved
            )),
            clients => Ok(clients),
        }
    }

    /// A warning if `listen.max_connections` is higher than the limit allows.
    pub(crate) fn warning(&self) -> Option<String> {
        match self.clients() {
            Err(why) => Some(why),
            Ok(clients) if clients == self.configured => None,
            Ok(clients) => Some(format!(
                "listen.max_connections is lowered from {} to {clients}: of the limit of {} open files, servers, listeners and \
                 the admin address need {}; raise ulimit -n (systemd: LimitNOFILE) to {}, or lower listen.max_connections",
                self.configured,
                self.limit.unwrap_or_default(),
                self.reserved,
                self.configured.saturating_add(self.reserved)
            )),
        }
    }
}

/// Files of one worker's connection to a server: both ends for an embedded server, and the files of a look-up for a host name.
fn files_of_connection(server: &ServerSpec) -> usize {
    match &server.address {
        Address::Embedded { .. } => 2,
        Address::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err() => 3,
        Address::Tcp { .. } | Address::Unix(_) => 1,
        Address::Discovered(_) => 0,
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
    fn clients_get_what_servers_and_the_admin_address_leave_up_to_max_connections() {
        let reserved = budget(None, 2, "").reserved;
        let limited = |limit| budget(Some(limit), 2, "");
        assert_eq!(budget(None, 2, "").clients(), Ok(10_000));
        assert_eq!(limited(1_000_000).clients(), Ok(10_000));
        assert_eq!(limited(1_000_000).warning(), None);
        assert_eq!(limited(reserved as u64 + 10_000).warning(), None);
        assert_eq!(limited(reserved as u64 + 9_999).clients(), Ok(9_999));
        let warning = limited(1024).warning().unwrap();
        assert!(
            warning.contains(&format!("from 10000 to {}", 1024 - reserved))
                && warning.contains("limit of 1024 open files"),
            "{warning}"
        );
        assert!(warning.contains(&format!("to {}, or", 10_000 + reserved)), "{warning}");
        let error = limited(reserved as u64).clients().unwrap_err();
        assert!(error.contains(&reserved.to_string()), "{error}");
        assert_eq!(limited(reserved as u64).warning(), Some(error));
    }

    #[test]
    fn each_worker_needs_a_connection_to_each_server() {
        let of = |workers, more: &str| budget(None, workers, more).reserved;
        let worker = of(2, "") - of(1, "");
        assert_eq!(of(3, ""), of(2, "") + worker);
        let third = "[pools.b]\nservers = [\"10.0.0.3:11211\"]\n";
        // And so does the monitor.
        assert_eq!(of(4, third), of(4, "") + 5);
        let named = "[pools.b]\nservers = [\"cache-3.internal:11211\"]\n";
        assert_eq!(of(4, named), of(4, "") + 15);
        let off = "[admin]\nlisten = \"\"\n";
        assert_eq!(of(4, off), of(4, "") - RUNTIME - admin::MAX_OPEN);
    }
}
