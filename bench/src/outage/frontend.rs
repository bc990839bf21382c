//! The servers and frontends of one variant.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use super::{FRONTENDS, SERVER_TIMEOUT, SERVERS, Variant};
use crate::contender::Programs;
use crate::process::{Cores, Process};
use crate::socket::Address;

/// All processes of a variant. Dropping it ends them.
pub(crate) struct Running {
    /// `None` while it is dead.
    servers: Vec<Option<Process>>,
    pub(crate) server_addresses: Vec<SocketAddr>,
    frontends: Vec<Process>,
    /// Empty: clients connect to the servers.
    pub(crate) frontend_addresses: Vec<SocketAddr>,
}

impl Running {
    pub(crate) fn start(variant: Variant, programs: &Programs, directory: &Path) -> Result<Running, String> {
        let ports = ports(SERVERS + 2 * FRONTENDS)?;
        let (of_servers, of_frontends) = ports.split_at(SERVERS);
        let loopback = |port: &u16| SocketAddr::from(([127, 0, 0, 1], *port));
        let mut running = Running {
            servers: Vec::new(),
            server_addresses: of_servers.iter().map(loopback).collect(),
            frontends: Vec::new(),
            frontend_addresses: Vec::new(),
        };
        for address in &running.server_addresses {
            running.servers.push(Some(memcached(*address, programs, directory)?));
        }
        if variant == Variant::Direct {
            return Ok(running);
        }
        for pair in of_frontends.chunks(2) {
            let listen = loopback(&pair[0]);
            let file = directory.join(format!("{}.conf", pair[0]));
            fs::write(&file, configuration(variant, listen, of_servers))
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let (program, arguments) = command(variant, programs, &file, pair[1])?;
            let mut frontend = Process::start(program, &arguments, directory, programs.proxies)?;
            frontend.wait_for(&Address::Tcp(listen))?;
            running.frontends.push(frontend);
            running.frontend_addresses.push(listen);
        }
        Ok(running)
    }

    /// SIGKILL. Returns once it has ended.
    pub(crate) fn kill(&mut self, server: usize) {
        self.servers[server] = None;
    }

    /// Starts it again, without contents, and waits until it listens.
    pub(crate) fn restart(
        &mut self,
        server: usize,
        programs: &Programs,
        directory: &Path,
    ) -> Result<(), String> {
        self.servers[server] = Some(memcached(self.server_addresses[server], programs, directory)?);
        Ok(())
    }

    /// Sends this signal to a server that is not dead.
    pub(crate) fn signal(&self, server: usize, signal: &str) -> Result<(), String> {
        self.servers[server].as_ref().map_or(Ok(()), |server| server.signal(signal))
    }

    /// Ends all processes, so that no client waits for a reply.
    pub(crate) fn end(&mut self) {
        self.frontends.clear();
        self.servers.clear();
    }
}

fn memcached(address: SocketAddr, programs: &Programs, directory: &Path) -> Result<Process, String> {
    let port = address.port().to_string();
    let arguments = ["-l", "127.0.0.1", "-U", "0", "-u", "root", "-m", "64", "-p", &port].map(str::to_owned);
    let mut server = Process::start(&programs.memcached, &arguments, directory, Cores::AsHere)?;
    server.wait_for(&Address::Tcp(address))?;
    Ok(server)
}

fn command<'a>(
    variant: Variant,
    programs: &'a Programs,
    file: &Path,
    statistics: u16,
) -> Result<(&'a PathBuf, Vec<String>), String> {
    let log = file.with_extension("log").display().to_string();
    let file = file.display().to_string();
    if variant == Variant::Kennel {
        return Ok((&programs.kennel, vec!["--config".to_owned(), file]));
    }
    let program = programs.nutcracker.as_ref().ok_or("nutcracker is not installed")?;
    let statistics = statistics.to_string();
    Ok((program, ["-c", &file, "-o", &log, "-a", "127.0.0.1", "-s", &statistics].map(str::to_owned).to_vec()))
}

/// The servers have the same names everywhere, so that keys are distributed alike in every run.
fn configuration(variant: Variant, listen: SocketAddr, servers: &[u16]) -> String {
    let timeout = SERVER_TIMEOUT.as_millis();
    if variant == Variant::Kennel {
        let mut text = format!(
            "[listen]\ntcp = [\"{listen}\"]\n\n[admin]\nlisten = \"\"\n\n[pools.main]\nrequest_timeout = \
             \"{timeout}ms\"\nservers = [\n"
        );
        for (i, port) in servers.iter().enumerate() {
            let _ = writeln!(text, "    {{ address = \"127.0.0.1:{port}\", name = \"server-{i}\" }},");
        }
        return text + "]\n\n[[rules]]\nname = \"pages\"\nmatch = \"page:*\"\nkind = \"guarded\"\n";
    }
    // As in twemproxy's own sample: ejected at the first failure, and tried again after 2 s.
    let eject = match variant {
        Variant::Ejecting => {
            "auto_eject_hosts: true\n  server_failure_limit: 1\n  server_retry_timeout: 2000"
        }
        _ => "auto_eject_hosts: false",
    };
    let mut text = format!(
        "bench:\n  listen: {listen}\n  hash: md5\n  distribution: ketama\n  timeout: {timeout}\n  preconnect: true\n  {eject}\n  \
         server_connections: 1\n  servers:\n"
    );
    for (i, port) in servers.iter().enumerate() {
        let _ = writeln!(text, "   - 127.0.0.1:{port}:1 server-{i}");
    }
    text
}

/// Ports that were free a moment ago, below the range from which Linux takes those of outgoing connections: no client may take
/// the port of a server that is dead.
fn ports(count: usize) -> Result<Vec<u16>, String> {
    let first = 15_000 + std::process::id().wrapping_mul(7919) % 15_000;
    let mut held = Vec::new();
    for port in (first..32_000).filter_map(|port| u16::try_from(port).ok()) {
        held.extend(TcpListener::bind(("127.0.0.1", port)).map(|listener| (listener, port)));
        if held.len() == count {
            return Ok(held.into_iter().map(|(_, port)| port).collect());
        }
    }
    Err("no free ports".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_variant_ejects_and_kennel_has_its_defaults() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 1));
        let text = |variant| configuration(variant, listen, &[2, 3]);
        assert!(text(Variant::Twemproxy).contains("auto_eject_hosts: false\n  server_connections"));
        assert!(text(Variant::Ejecting).contains("auto_eject_hosts: true\n"));
        for variant in [Variant::Twemproxy, Variant::Ejecting] {
            assert!(text(variant).ends_with("   - 127.0.0.1:2:1 server-0\n   - 127.0.0.1:3:1 server-1\n"));
        }
        let kennel = text(Variant::Kennel);
        assert!(kennel.contains("address = \"127.0.0.1:3\", name = \"server-1\""), "{kennel}");
        assert!(!kennel.contains("failover"), "{kennel}");
    }
}
