//! The contenders: the ways to the servers that are compared. Sets up those that one load needs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::loads::Load;
use crate::process::{Cores, Process, free_ports};
use crate::socket::Address;
use crate::wire::Items;

/// The exptime of values that must not expire in the run, in seconds.
const KEPT: u32 = 86_400;
/// Attempts to find free ports: another process may take one first.
const ATTEMPTS: usize = 3;

/// One way to the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// No proxy: client i connects to server i modulo their number, and each server has every key. The baseline for every proxy.
    Direct,
    Twemproxy,
    KennelRaw,
    /// With this many tags.
    KennelGuarded(u32),
    /// With one tag, whose version a sidecar may reuse for 100 ms.
    KennelCached,
    /// Without tags, with `near` of 50 ms.
    KennelNear,
}

pub(crate) const CONTENDERS: [Contender; 8] = [
    Contender::Direct,
    Contender::Twemproxy,
    Contender::KennelRaw,
    Contender::KennelGuarded(0),
    Contender::KennelGuarded(1),
    Contender::KennelCached,
    Contender::KennelGuarded(3),
    Contender::KennelNear,
];

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Direct => "direct",
            Contender::Twemproxy => "twemproxy",
            Contender::KennelRaw => "kennel raw",
            Contender::KennelGuarded(0) => "guarded",
            Contender::KennelGuarded(1) => "guarded, 1 tag",
            Contender::KennelCached => "guarded, 1 tag, cached",
            Contender::KennelGuarded(_) => "guarded, 3 tags",
            Contender::KennelNear => "guarded, near",
        }
    }

    /// The key prefix. Each contender has its own, so that no contender reads what another one has stored.
    fn prefix(self) -> &'static str {
        match self {
            Contender::Direct => "dire",
            Contender::Twemproxy => "twem",
            Contender::KennelRaw => "kraw",
            Contender::KennelGuarded(0) => "kg_0",
            Contender::KennelGuarded(1) => "kg_1",
            Contender::KennelCached => "kg_c",
            Contender::KennelGuarded(_) => "kg_3",
            Contender::KennelNear => "kg_n",
        }
    }
}

/// The programs.
pub(crate) struct Programs {
    pub(crate) memcached: PathBuf,
    /// `None`: not installed.
    pub(crate) nutcracker: Option<PathBuf>,
    pub(crate) kennel: PathBuf,
    /// Kennel's `listen.workers`. twemproxy always has one thread.
    pub(crate) workers: usize,
    /// The cores on which proxies run.
    pub(crate) proxies: Cores,
}

/// A contender that is running.
pub(crate) struct RunningContender {
    pub(crate) items: Items,
    pub(crate) addresses: Vec<Address>,
    /// `None`: direct.
    pub(crate) proxy: Option<Process>,
}

/// All processes of one load. Dropping it ends them.
pub(crate) struct Setup {
    pub(crate) running: Vec<RunningContender>,
    pub(crate) servers: Vec<Process>,
    /// The servers' addresses, in their order.
    pub(crate) addresses: Vec<Address>,
}

impl Setup {
    /// Starts the servers and these contenders.
    pub(crate) fn start(
        load: &Load,
        contenders: &[Contender],
        programs: &Programs,
        directory: &Path,
    ) -> Result<Setup, String> {
        let mut error = String::new();
        for attempt in 0..ATTEMPTS {
            // Paths of sockets are never used twice.
            let directory = directory.join(format!("{}-{attempt}", load.name));
            match fs::create_dir(&directory)
                .map_err(|e| e.to_string())
                .and_then(|()| Setup::try_start(load, contenders, programs, &directory))
            {
                Ok(setup) => return Ok(setup),
                Err(why) => error = why,
            }
        }
        Err(error)
    }

    fn try_start(
        load: &Load,
        contenders: &[Contender],
        programs: &Programs,
        directory: &Path,
    ) -> Result<Setup, String> {
        // Two for each contender: its listener, and twemproxy's statistics.
        let ports = free_ports(load.servers + 2 * contenders.len())
            .map_err(|error| format!("no free port: {error}"))?;
        let (of_servers, mut others) = (&ports[..load.servers], ports[load.servers..].iter().copied());
        let mut next = || others.next().expect("two for each contender");
        let mut servers = Vec::new();
        for port in of_servers {
            let words = ["-l", "127.0.0.1", "-U", "0", "-p"].map(str::to_owned);
            servers.push(memcached(
                [&words[..], &[port.to_string()]].concat(),
                &programs.memcached,
                directory,
            )?);
        }
        let mut addresses: Vec<Address> = of_servers.iter().map(|port| Address::loopback(*port)).collect();
        for (server, address) in servers.iter_mut().zip(&addresses) {
            server.wait_for(address)?;
        }
        let mut direct = addresses.clone();
        if load.unix && contenders.contains(&Contender::Direct) {
            // A memcached listens either on TCP, for the proxies, or on a Unix socket.
            let path = directory.join("memcached.sock");
            let words = ["-s".to_owned(), path.display().to_string(), "-a".to_owned(), "0660".to_owned()];
            servers.push(memcached(words.to_vec(), &programs.memcached, directory)?);
            direct = vec![Address::Unix(path)];
            servers[load.servers].wait_for(&direct[0])?;
            addresses.extend(direct.iter().cloned());
        }
        let exptime = load.expiry.map_or(KEPT, |expiry| expiry.exptime);
        let mut running = Vec::new();
        for contender in contenders.iter().copied() {
            let mut items = Items::new(contender.prefix(), load.items, load.value, exptime);
            items.binary = load.binary;
            let listen = match load.unix {
                true => Address::Unix(directory.join(format!("{}.sock", contender.prefix()))),
                false => Address::loopback(next()),
            };
            if contender == Contender::Direct {
                running.push(RunningContender { items, addresses: direct.clone(), proxy: None });
                continue;
            }
            let (program, arguments) =
                command(contender, load, programs, directory, &listen, next(), of_servers)?;
            let mut proxy = Process::start(&program, &arguments, directory, programs.proxies)?;
            proxy.wait_for(&listen)?;
            running.push(RunningContender { items, addresses: vec![listen], proxy: Some(proxy) });
        }
        Ok(Setup { running, servers, addresses })
    }

    /// CPU time of all servers.
    pub(crate) fn servers_cpu(&self) -> Result<Duration, String> {
        self.servers.iter().map(Process::cpu).sum()
    }
}

fn memcached(mut arguments: Vec<String>, program: &Path, directory: &Path) -> Result<Process, String> {
    // memcached refuses to run as root without -u. It allocates memory as needed.
    arguments.extend(["-u", "root", "-m", "1024", "-c", "16384"].map(str::to_owned));
    Process::start(program, &arguments, directory, Cores::AsHere)
}

/// The command that starts a proxy on `address` in front of these servers; its configuration is written to `directory`.
/// `statistics` is a separate port, which twemproxy requires.
pub(crate) fn command(
    contender: Contender,
    load: &Load,
    programs: &Programs,
    directory: &Path,
    listen: &Address,
    statistics: u16,
    servers: &[u16],
) -> Result<(PathBuf, Vec<String>), String> {
    let file = directory.join(format!("{}.conf", contender.prefix()));
    let named = file.display().to_string();
    let (program, text, arguments) = match contender {
        Contender::Direct => return Err("direct is no proxy".into()),
        Contender::Twemproxy => (
            programs.nutcracker.as_ref().ok_or("nutcracker is not installed")?,
            twemproxys_configuration(listen, servers),
            ["-c", &named, "-a", "127.0.0.1", "-s", &statistics.to_string()].map(str::to_owned).to_vec(),
        ),
        Contender::KennelRaw
        | Contender::KennelGuarded(_)
        | Contender::KennelCached
        | Contender::KennelNear => (
            &programs.kennel,
            kennels_configuration(contender, load, programs.workers, listen, servers),
            vec!["--config".to_owned(), named.clone()],
        ),
    };
    fs::write(&file, text).map_err(|error| format!("{named}: {error}"))?;
    Ok((program.clone(), arguments))
}

fn twemproxys_configuration(listen: &Address, servers: &[u16]) -> String {
    let mode = if matches!(listen, Address::Unix(_)) { " 0660" } else { "" };
    let mut text = format!(
        "bench:\n  listen: {listen}{mode}\n  hash: md5\n  distribution: ketama\n  timeout: 10000\n  backlog: 4096\n  \
         preconnect: true\n  auto_eject_hosts: false\n  server_connections: 1\n  servers:\n"
    );
    for port in servers {
        let _ = writeln!(text, "   - 127.0.0.1:{port}:1");
    }
    text
}

fn kennels_configuration(
    contender: Contender,
    load: &Load,
    workers: usize,
    listen: &Address,
    servers: &[u16],
) -> String {
    let (tcp, unix) = match listen {
        Address::Tcp(address) => (vec![address.to_string()], vec![]),
        Address::Unix(path) => (vec![], vec![path.display().to_string()]),
    };
    let servers: Vec<String> = servers.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut text = format!(
        "[listen]\ntcp = {tcp:?}\nunix = {unix:?}\nworkers = {workers}\nmax_connections = 20000\n\n[admin]\nlisten = \"\"\n\n\
         [pools.main]\nservers = {servers:?}\nconnect_timeout = \"5s\"\nrequest_timeout = \"10s\"\n"
    );
    if contender == Contender::KennelCached {
        text += "\n[tags]\ncache = \"100ms\"\n";
    }
    for i in 1..load.rules {
        let _ = write!(
            text,
            "\n[[rules]]\nname = \"other-{i}\"\nmatch = \"shop{i}:{{group}}:page:*\"\nkind = \"guarded\"\n"
        );
    }
    let pattern = Items::pattern(contender.prefix());
    let _ = write!(text, "\n[[rules]]\nname = \"measured\"\nmatch = {pattern:?}\n");
    text += &match contender {
        Contender::KennelGuarded(_) | Contender::KennelCached => {
            let tags = if let Contender::KennelGuarded(tags) = contender { tags as usize } else { 1 };
            let tags = &["group:{group}", "all", "pages:{group}"][..tags];
            format!("kind = \"guarded\"\ntags = {tags:?}\n")
        }
        Contender::KennelNear => "kind = \"guarded\"\nnear = \"50ms\"\n".to_owned(),
        _ => "kind = \"raw\"\n".to_owned(),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::LOADS;

    #[test]
    fn no_two_contenders_share_keys() {
        for (i, contender) in CONTENDERS.iter().enumerate() {
            assert!(CONTENDERS[..i].iter().all(|other| other.prefix() != contender.prefix()));
            assert_eq!(contender.prefix().len(), 4);
        }
    }

    #[test]
    fn the_page_has_every_contender_in_the_order_of_the_tables() {
        let page = include_str!("../../docs/performance.md");
        let table = page.split("| line | what it is |\n|---|---|\n").nth(1).unwrap();
        let names = table.lines().map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
        assert_eq!(names.collect::<Vec<_>>(), CONTENDERS.map(Contender::name));
    }

    #[test]
    fn versions_of_tags_are_reused_by_the_cached_contender_alone() {
        let with = |contender| {
            let text = kennels_configuration(contender, &LOADS[0], 1, &Address::loopback(1), &[2]);
            assert_eq!(
                text.contains("tags = [\"group:{group}\"]"),
                contender != Contender::KennelNear,
                "{text}"
            );
            text.contains("[tags]\ncache = \"100ms\"\n")
        };
        let contenders = [Contender::KennelGuarded(1), Contender::KennelCached, Contender::KennelNear];
        assert_eq!(contenders.map(with), [false, true, false]);
    }

    #[test]
    fn kennel_is_given_the_rules_and_tags_that_are_measured() {
        let load = LOADS.iter().find(|load| load.rules == 100).unwrap();
        let listen = Address::loopback(1);
        let text = kennels_configuration(Contender::KennelGuarded(3), load, 1, &listen, &[2, 3]);
        assert_eq!(text.matches("[[rules]]").count(), 100);
        assert!(text.contains("servers = [\"127.0.0.1:2\", \"127.0.0.1:3\"]"), "{text}");
        assert!(text.ends_with(
            "match = \"kg_3:{group}:page:*\"\nkind = \"guarded\"\ntags = [\"group:{group}\", \"all\", \"pages:{group}\"]\n"
        ), "{text}");
    }
}
