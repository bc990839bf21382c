//! Binds the sockets on which clients connect. All of them are bound before any worker starts, so that an error stops the start.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::handshake::{Handshake, Requirements};
use crate::pem::BadFile;
use crate::proxy::connection_use::{ConnectionUse, ListenerClients};

mod inherited;
mod socket;

pub use inherited::{Inherited, InheritedListener, ListenerName};
use socket::{bind_tcp, bind_unix};

pub(crate) use socket::set_mode;

/// The settings of the listeners. There is at least one address or path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// TCP addresses, without duplicates unless the port is 0.
    pub tcp: Vec<ListenerSpec<ListenAddress>>,
    /// Paths of Unix sockets, at most 107 bytes each, without duplicates.
    pub unix: Vec<ListenerSpec<PathBuf>>,
    /// The permission bits of the Unix sockets, at most 0o777.
    pub unix_mode: u32,
    /// The most clients at a time, 1 to 1,000,000.
    pub max_connections: usize,
    /// The connection of a client that is idle for this long is closed. Zero: never.
    pub idle_timeout: Duration,
    /// The memory budget in bytes of requests and replies, for all clients together.
    pub max_buffered: usize,
    /// Worker threads, 0 to 64. 0: one per core, at most 4.
    pub workers: usize,
    /// Whether clients may flush the pools.
    pub flush_all: FlushAll,
    /// How long `/readyz` returns 503 before the process stops accepting clients.
    pub drain_delay: Duration,
    /// How long a process that has been taken over keeps clients that cannot move.
    pub takeover_timeout: Duration,
}

/// The effect of a client's `flush_all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushAll {
    /// It is sent to every server.
    Allow,
    /// It is refused, as by a memcached started with `-F`.
    Refuse,
}

/// The settings of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSpec<A> {
    /// The address or path.
    pub address: A,
    /// The authentication of clients.
    pub requirements: Requirements,
    /// Whether clients use pools of connections.
    pub clients: ConnectionUse,
}

/// A TCP address to listen on. The host is resolved when the listener is bound.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListenAddress {
    /// An IPv4 or IPv6 address (without brackets) or a host name.
    pub host: String,
    /// The TCP port; 0 lets the system choose.
    pub port: u16,
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A listener cannot be bound.
#[derive(Debug)]
pub enum BindError {
    /// The system refused the address or path.
    Refused {
        /// The configuration key of the listener.
        key: &'static str,
        /// The environment variable that overrides the key.
        variable: &'static str,
        /// The address or path.
        what: String,
        /// Error of the system call.
        error: io::Error,
    },
    /// The certificates or passwords of this listener cannot be loaded.
    Files(String, Vec<BadFile>),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, variable, what, error) = match self {
            BindError::Refused { key, variable, what, error } => (key, variable, what, error),
            BindError::Files(listener, files) => {
                let files = files.iter().map(|bad| bad.to_string()).collect::<Vec<_>>();
                return write!(f, "cannot listen on {listener}: {}", files.join("; "));
            }
        };
        write!(f, "{key}: cannot listen on {what}: {error}")?;
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                write!(f, "; stop the process that listens there, or change {key} (or {variable})")
            }
            _ => write!(f, "; change {key} (or {variable})"),
        }
    }
}

impl std::error::Error for BindError {}

/// A listener, as one worker sees it.
#[derive(Debug)]
pub struct WorkerListener {
    /// Unique in the process.
    pub number: u32,
    /// Empty if the worker has them from an earlier configuration.
    pub sockets: Vec<ListenSocket>,
    /// What its next connections need.
    pub info: ListenerInfo,
}

/// A listening socket, non-blocking.
#[derive(Debug)]
pub enum ListenSocket {
    /// Each worker has its own socket for each address, unless another process has bound fewer or more.
    Tcp(TcpListener),
    /// The workers share one socket for each path.
    Unix(UnixListener),
}

impl ListenSocket {
    fn try_clone(&self) -> io::Result<ListenSocket> {
        match self {
            ListenSocket::Tcp(socket) => socket.try_clone().map(ListenSocket::Tcp),
            ListenSocket::Unix(socket) => socket.try_clone().map(ListenSocket::Unix),
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ListenSocket::Tcp(socket) => socket.as_fd(),
            ListenSocket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// The properties of a listener that its connections need. All workers share them.
#[derive(Debug, Clone)]
pub struct ListenerInfo {
    /// TLS and password authentication; `None` if the listener requires neither.
    pub handshake: Option<Arc<Handshake>>,
    /// How the clients use their connections.
    pub clients: Arc<ListenerClients>,
}

/// The bound listeners of a configuration, in its order.
#[derive(Debug, Default, Clone)]
pub struct BoundListeners {
    tcp: Vec<Bound<ListenAddress, SocketAddr>>,
    unix: Vec<Bound<PathBuf, Arc<SocketFile>>>,
    /// How many listeners have been bound in this process.
    numbers: u32,
}

/// A bound listener: `A` is how it is configured, `B` what is bound.
#[derive(Debug, Clone)]
struct Bound<A, B> {
    spec: ListenerSpec<A>,
    bound: B,
    /// Those of all workers. A process that takes over receives them.
    sockets: Arc<Vec<ListenSocket>>,
    number: u32,
    clients: Arc<ListenerClients>,
    handshake: Option<Arc<Handshake>>,
}

/// The file of a Unix socket. It is removed when this is dropped, if it belongs to this process.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    is_ours: AtomicBool,
    /// Whether it belongs to the process that this one takes over from.
    is_inherited: bool,
}

impl SocketFile {
    fn new(path: &Path, is_ours: bool, is_inherited: bool) -> Arc<SocketFile> {
        Arc::new(SocketFile { path: path.to_owned(), is_ours: AtomicBool::new(is_ours), is_inherited })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_ours.load(Ordering::Relaxed) {
            // It may have been removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl BoundListeners {
    /// The TCP addresses, with the ports that the system chose.
    pub fn tcp(&self) -> Vec<SocketAddr> {
        self.tcp.iter().map(|listener| listener.bound).collect()
    }

    /// The paths of the Unix sockets.
    pub fn unix(&self) -> Vec<PathBuf> {
        self.unix.iter().map(|listener| listener.spec.address.clone()).collect()
    }

    /// The certificates of the listeners: each file, and when the first certificate in it expires, in seconds of Unix time.
    pub fn certificates(&self) -> Vec<(String, i64)> {
        let tcp = self.tcp.iter().map(|listener| &listener.handshake);
        let all = tcp.chain(self.unix.iter().map(|listener| &listener.handshake)).flatten();
        let mut files: Vec<_> = all.filter_map(|handshake| handshake.certificate()).collect();
        files.sort();
        files.dedup_by(|a, b| a.0 == b.0);
        files
    }

    /// The listeners, with their sockets, for a process that takes over.
    pub fn to_hand_over(&self) -> impl Iterator<Item = InheritedListener<&[ListenSocket]>> {
        let tcp = self.tcp.iter().map(|listener| InheritedListener {
            name: Some(ListenerName::Tcp(listener.spec.address.to_string())),
            sockets: &listener.sockets[..],
            pooled: listener.clients.pooled(),
            owns_file: false,
        });
        let unix = self.unix.iter().map(|listener| InheritedListener {
            name: Some(ListenerName::Unix(listener.spec.address.clone())),
            sockets: &listener.sockets[..],
            pooled: listener.clients.pooled(),
            owns_file: listener.bound.is_ours.load(Ordering::Relaxed),
        });
        tcp.chain(unix)
    }

    /// The listeners by name, with their numbers.
    pub fn numbers(&self) -> HashMap<ListenerName, u32> {
        let named = |listener: InheritedListener<&[ListenSocket]>| listener.name;
        let numbers = self.tcp.iter().map(|l| l.number).chain(self.unix.iter().map(|l| l.number));
        self.to_hand_over().filter_map(named).zip(numbers).collect()
    }

    /// This process has taken over: the files of Unix sockets belong to it.
    pub fn take_files(&self) {
        for listener in self.unix.iter().filter(|listener| listener.bound.is_inherited) {
            listener.bound.is_ours.store(true, Ordering::Relaxed);
        }
    }

    /// Another process has them: the files of Unix sockets stay.
    pub fn give_away(&self) {
        self.unix.iter().for_each(|listener| listener.bound.is_ours.store(false, Ordering::Relaxed));
    }

    /// Closes the sockets that the workers do not have.
    pub fn close(&mut self) {
        self.tcp.iter_mut().for_each(|listener| listener.sockets = Arc::default());
        self.unix.iter_mut().for_each(|listener| listener.sockets = Arc::default());
    }

    /// Binds the listeners of `listen` that are not bound yet, with sockets for each of `workers` workers, and loads the
    /// certificates and passwords of all. Nothing is done to those that are bound: they are closed when the workers are told.
    /// Those in `inherited` are taken from it and not bound.
    ///
    /// # Errors
    /// An address cannot be bound, or a file cannot be loaded.
    pub fn bind(
        &self,
        listen: &Listen,
        workers: usize,
        inherited: &mut Inherited,
    ) -> Result<(BoundListeners, Vec<Vec<WorkerListener>>), BindError> {
        let mut next = BoundListeners { numbers: self.numbers, ..BoundListeners::default() };
        let mut of_workers: Vec<Vec<WorkerListener>> = (0..workers).map(|_| Vec::new()).collect();
        let mut known: Vec<_> = self.tcp.iter().collect();
        for spec in &listen.tcp {
            let address = &spec.address;
            let refused = |error| refused("listen.tcp", "KENNEL_LISTEN__TCP", address.to_string(), error);
            let handshake = handshake(&spec.requirements, address.to_string())?;
            let same = known.iter().position(|listener| listener.spec.address == *address);
            let same = same.map(|at| known.swap_remove(at));
            let (mut pooled, mut new) = (false, true);
            let (bound, sockets) = match (same, inherited.take_tcp(address)) {
                (Some(same), _) => {
                    new = false;
                    (same.bound, Arc::clone(&same.sockets))
                }
                (None, Some(there)) => {
                    pooled = there.pooled;
                    (local_address(&there.sockets).map_err(refused)?, Arc::new(there.sockets))
                }
                (None, None) => {
                    let (bound, sockets) = bind_tcp(&address.host, address.port, workers).map_err(refused)?;
                    (bound, Arc::new(sockets.into_iter().map(ListenSocket::Tcp).collect()))
                }
            };
            let given = if new { spread(&sockets, workers).map_err(refused)? } else { Vec::new() };
            let clients = next.clients(spec, same, bound.to_string(), pooled);
            give(&mut of_workers, given, &handshake, &clients);
            let number = clients.number();
            next.tcp.push(Bound { spec: spec.clone(), bound, sockets, number, clients, handshake });
        }
        for spec in &listen.unix {
            let name = spec.address.display().to_string();
            let refused = |error| refused("listen.unix", "KENNEL_LISTEN__UNIX", name.clone(), error);
            let handshake = handshake(&spec.requirements, name.clone())?;
            let same = self.unix.iter().find(|listener| listener.spec.address == spec.address);
            let (mut pooled, mut new) = (false, true);
            let (bound, sockets) = match (same, inherited.take_unix(&spec.address)) {
                (Some(same), _) => {
                    new = false;
                    (Arc::clone(&same.bound), Arc::clone(&same.sockets))
                }
                (None, Some(there)) => {
                    pooled = there.pooled;
                    (SocketFile::new(&spec.address, false, there.owns_file), Arc::new(there.sockets))
                }
                (None, None) => {
                    let socket = bind_unix(&spec.address, listen.unix_mode).map_err(refused)?;
                    let sockets = Arc::new(vec![ListenSocket::Unix(socket)]);
                    (SocketFile::new(&spec.address, true, false), sockets)
                }
            };
            let given = if new { spread(&sockets, workers).map_err(refused)? } else { Vec::new() };
            let clients = next.clients(spec, same, name.clone(), pooled);
            give(&mut of_workers, given, &handshake, &clients);
            let number = clients.number();
            next.unix.push(Bound { spec: spec.clone(), bound, sockets, number, clients, handshake });
        }
        Ok((next, of_workers))
    }

    /// The same listeners under another configuration of the servers. No file is read again.
    pub fn again(&self, workers: usize) -> (BoundListeners, Vec<Vec<WorkerListener>>) {
        let mut of_workers: Vec<Vec<WorkerListener>> = (0..workers).map(|_| Vec::new()).collect();
        for listener in &self.tcp {
            give(&mut of_workers, Vec::new(), &listener.handshake, &listener.clients);
        }
        for listener in &self.unix {
            give(&mut of_workers, Vec::new(), &listener.handshake, &listener.clients);
        }
        (self.clone(), of_workers)
    }

    /// The clients of a listener. What has been detected of those of the same listener is kept.
    fn clients<A, B>(
        &mut self,
        spec: &ListenerSpec<A>,
        same: Option<&Bound<A, B>>,
        name: String,
        pooled: bool,
    ) -> Arc<ListenerClients> {
        match same {
            Some(same) if same.spec.clients == spec.clients => Arc::clone(&same.clients),
            Some(same) => Arc::new(ListenerClients::new(same.number, name, spec.clients)),
            None => {
                self.numbers += 1;
                Arc::new(ListenerClients::new(self.numbers, name, spec.clients).with_detected(pooled))
            }
        }
    }
}

/// The listening socket of the admin server.
#[derive(Debug)]
pub struct AdminSocket {
    /// Its address, with the port that the system chose.
    pub address: SocketAddr,
    /// Bound socket, in non-blocking mode.
    pub socket: TcpListener,
}

/// Binds the address of the admin server, unless it is in `inherited`.
///
/// # Errors
/// It cannot be bound.
pub fn bind_admin(address: &ListenAddress, inherited: &mut Inherited) -> Result<AdminSocket, BindError> {
    let refused = |error| refused("admin.listen", "KENNEL_ADMIN__LISTEN", address.to_string(), error);
    if let Some(InheritedListener { mut sockets, .. }) = inherited.take_admin(address) {
        let address = local_address(&sockets).map_err(refused)?;
        if let Some(ListenSocket::Tcp(socket)) = sockets.pop() {
            return Ok(AdminSocket { address, socket });
        }
    }
    let (address, mut listeners) = bind_tcp(&address.host, address.port, 1).map_err(refused)?;
    let socket = listeners.pop().ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
    Ok(AdminSocket { address, socket })
}

/// Gives each worker the listener, with its socket if there is a new one.
fn give(
    workers: &mut [Vec<WorkerListener>],
    sockets: Vec<Vec<ListenSocket>>,
    handshake: &Option<Arc<Handshake>>,
    clients: &Arc<ListenerClients>,
) {
    let mut sockets = sockets.into_iter();
    for worker in workers {
        let info = ListenerInfo { handshake: handshake.clone(), clients: Arc::clone(clients) };
        worker.push(WorkerListener {
            number: clients.number(),
            sockets: sockets.next().unwrap_or_default(),
            info,
        });
    }
}

/// Distributes sockets over the workers. Each worker has one at least, and each socket is accepted from: the kernel has queued
/// connections in it.
fn spread(sockets: &[ListenSocket], workers: usize) -> io::Result<Vec<Vec<ListenSocket>>> {
    let mut of_workers: Vec<Vec<ListenSocket>> = (0..workers).map(|_| Vec::new()).collect();
    for at in 0..workers.max(sockets.len()) {
        of_workers[at % workers].push(sockets[at % sockets.len()].try_clone()?);
    }
    Ok(of_workers)
}

/// The address of TCP sockets that another process has bound.
fn local_address(sockets: &[ListenSocket]) -> io::Result<SocketAddr> {
    match sockets.first() {
        Some(ListenSocket::Tcp(socket)) => socket.local_addr(),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn handshake(requirements: &Requirements, listener: String) -> Result<Option<Arc<Handshake>>, BindError> {
    Handshake::new(requirements).map_err(|files| BindError::Files(listener, files))
}

fn refused(key: &'static str, variable: &'static str, what: String, error: io::Error) -> BindError {
    BindError::Refused { key, variable, what, error }
}
