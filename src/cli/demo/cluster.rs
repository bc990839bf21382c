//! Memcacheds, and sidecars that share them, all in this process.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::thread::{self, JoinHandle};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::clock::unix_ms;
use crate::config;
use crate::embedded::{Store, server};

/// The memory limit of one memcached, in bytes. The demonstration stores a few hundred.
const MEMORY: u64 = 1 << 20;

/// Whether the keys are guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// A raw rule.
    Off,
    /// A guarded rule.
    On,
}

/// Memcacheds on ports of 127.0.0.1 that the system chose. `embedded:` in the configuration would give each sidecar its own. They
/// stop when this is dropped.
pub(super) struct Memcacheds {
    addresses: Vec<SocketAddr>,
    /// Ends the memcached of this number.
    kill: Vec<CancellationToken>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Memcacheds {
    /// Starts `n` memcacheds on one thread.
    pub(super) fn start(n: usize) -> io::Result<Memcacheds> {
        let listeners: Vec<_> =
            (0..n).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let stop = CancellationToken::new();
        let kill: Vec<_> = (0..n).map(|_| stop.child_token()).collect();
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let serve = {
            let (stop, kill) = (stop.clone(), kill.clone());
            async move {
                for (listener, kill) in listeners.into_iter().zip(kill) {
                    spawn_local(async move { kill.run_until_cancelled(accept(listener, &kill)).await });
                }
                stop.cancelled().await;
            }
        };
        let body = move || LocalSet::new().block_on(&runtime, serve);
        let thread = thread::Builder::new().name("demo-memcached".to_owned()).spawn(body)?;
        Ok(Memcacheds { addresses, kill, stop, thread: Some(thread) })
    }

    /// Ends the memcached that holds this key, if one does: its port refuses connections, and its connections close.
    async fn kill_holder(&self, key: &str) -> io::Result<()> {
        for (address, kill) in self.addresses.iter().zip(&self.kill) {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(format!("mg {key}\r\nquit\r\n").as_bytes()).await?;
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).await?;
            if reply.starts_with(b"HD") {
                kill.cancel();
            }
        }
        Ok(())
    }
}

impl Drop for Memcacheds {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, which has been reported.
            let _ = thread.join();
        }
    }
}

/// Serves one memcached. Its connections end when it is killed.
async fn accept(listener: TcpListener, kill: &CancellationToken) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let store = Rc::new(RefCell::new(Store::new(MEMORY, unix_ms())));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (store, kill) = (Rc::clone(&store), kill.clone());
        spawn_local(async move { kill.run_until_cancelled(server::serve(stream, store, unix_ms)).await });
    }
}

/// Sidecars and their memcacheds.
pub(super) struct Cluster {
    sidecars: Vec<App>,
    /// After the sidecars, so that those are dropped first.
    memcacheds: Memcacheds,
}

impl Cluster {
    /// Starts the memcacheds, then the sidecars. Each sidecar has its own workers, connections and leases.
    pub(super) fn start(
        sidecars: usize,
        memcacheds: usize,
        guard: Guard,
    ) -> Result<Cluster, Box<dyn std::error::Error>> {
        let memcacheds = Memcacheds::start(memcacheds)?;
        // Without the environment: KENNEL_… variables are for the user's own sidecar.
        let loaded = config::read(
            "the configuration of kennel demo",
            &configuration(&memcacheds.addresses, guard),
            [],
        )?;
        let sidecars = (0..sidecars).map(|_| App::start(loaded.clone())).collect::<Result<_, _>>()?;
        Ok(Cluster { sidecars, memcacheds })
    }

    /// The address for a client; clients are distributed round-robin.
    pub(super) fn address(&self, client: usize) -> SocketAddr {
        self.sidecars[client % self.sidecars.len()].tcp()[0]
    }

    /// Ends the memcached that holds this key, for good.
    pub(super) async fn kill_holder(&self, key: &str) -> io::Result<()> {
        self.memcacheds.kill_holder(key).await
    }

    /// The number of stale values that the sidecars served, from their metrics.
    pub(super) fn stale_served(&self) -> usize {
        let totals = self.sidecars.iter().flat_map(|app| app.metrics().rule_totals());
        usize::try_from(totals.map(|rule| rule.stale).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Stops the sidecars one after the other, then the memcacheds. Blocks until all have stopped.
    pub(super) fn stop(self) {
        self.sidecars.into_iter().for_each(App::stop);
    }
}

fn configuration(servers: &[SocketAddr], guard: Guard) -> String {
    let kind = match guard {
        Guard::Off => "kind = \"raw\"",
        Guard::On => "kind = \"guarded\"\nstale_for = \"10s\"\ncold_limit = \"2s\"",
    };
    // Named, so that keys are distributed alike in every run.
    let server = |(i, address)| format!("{{ address = \"{address}\", name = \"memcached-{i}\" }}");
    let servers = servers.iter().enumerate().map(server).collect::<Vec<_>>().join(", ");
    format!(
        "[listen]\ntcp = [\"127.0.0.1:0\"]\nworkers = 1\n\n[admin]\nlisten = \"\"\n\n\
         [pools.main]\nservers = [{servers}]\n\n[[rules]]\nname = \"pages\"\nmatch = \"page:*\"\n{kind}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn send(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request}\r\nquit\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn a_value_stored_through_one_sidecar_is_read_through_the_other_and_only_the_guard_wraps_it() {
        for guard in [Guard::Off, Guard::On] {
            let cluster = Cluster::start(2, 3, guard).unwrap();
            assert_ne!(cluster.address(0), cluster.address(1));
            assert_eq!(cluster.address(0), cluster.address(2));
            assert_eq!(send(cluster.address(0), "set page:1 0 60 5\r\nhello"), "STORED\r\n");
            assert_eq!(send(cluster.address(1), "get page:1"), "VALUE page:1 0 5\r\nhello\r\nEND\r\n");
            let sizes = cluster.memcacheds.addresses.iter().map(|address| {
                let reply = send(*address, "mg page:1 s");
                reply.trim().strip_prefix("HD s").map_or(0, |size| size.parse::<usize>().unwrap())
            });
            let size: usize = sizes.sum();
            let (bare, wrapped) = (size == 5, size > 5);
            assert_eq!((bare, wrapped), (guard == Guard::Off, guard == Guard::On), "{size} bytes");
            assert_eq!(cluster.stale_served(), 0);
            cluster.stop();
        }
    }

    #[test]
    fn the_memcached_of_a_key_dies_with_its_connections_and_no_other() {
        let memcacheds = Memcacheds::start(3).unwrap();
        let addresses = memcacheds.addresses.clone();
        assert_eq!(send(addresses[1], "set page:1 0 60 5\r\nhello"), "STORED\r\n");
        let mut open = TcpStream::connect(addresses[1]).unwrap();
        write!(open, "mn\r\n").unwrap();
        open.read_exact(&mut [0; 4]).unwrap();
        let runtime = runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(memcacheds.kill_holder("page:1")).unwrap();
        assert_eq!(open.read(&mut [0]).unwrap(), 0);
        let alive: Vec<bool> = addresses.iter().map(|address| TcpStream::connect(address).is_ok()).collect();
        assert_eq!(alive, [true, false, true]);
    }

    #[test]
    fn the_memcacheds_stop_when_dropped() {
        let memcacheds = Memcacheds::start(2).unwrap();
        let addresses = memcacheds.addresses.clone();
        assert!(addresses.iter().all(|address| send(*address, "version").starts_with("VERSION 1.6.")));
        drop(memcacheds);
        assert!(addresses.iter().all(|address| TcpStream::connect(address).is_err()));
    }
}
