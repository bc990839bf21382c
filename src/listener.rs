//! Binds the sockets on which clients connect. All of them are bound before any worker starts, so that an error stops the start.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::handshake::{Handshake, Requirements};
use crate::proxy::connection_use::{ConnectionUse, ListenerClients};
use crate::tls::BadFile;

/// The backlog of each listener: how many connections the kernel queues until they are accepted.
const BACKLOG: i32 = 4096;

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
        /// The system's error.
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

/// The listening sockets of one worker.
#[derive(Debug, Default)]
pub struct WorkerSockets {
    /// TCP listeners. Each worker has its own socket for each address.
    pub tcp: Vec<(TcpListener, ListenerInfo)>,
    /// Unix listeners. The workers share one socket for each path.
    pub unix: Vec<(UnixListener, ListenerInfo)>,
}

/// The properties of a listener that its connections need. All workers share them.
#[derive(Debug, Clone)]
pub struct ListenerInfo {
    /// TLS and password authentication; `None` if the listener requires neither.
    pub handshake: Option<Arc<Handshake>>,
    /// How the clients use their connections.
    pub clients: Arc<ListenerClients>,
}

/// The bound addresses and paths.
#[derive(Debug, Default)]
pub struct BoundListeners {
    /// TCP addresses, with the ports that the system chose.
    pub tcp: Vec<SocketAddr>,
    /// Paths of Unix sockets. They are removed when this is dropped.
    pub unix: Vec<PathBuf>,
}

impl Drop for BoundListeners {
    fn drop(&mut self) {
        for path in &self.unix {
            // It may have been removed already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Binds the listeners of `listen`, with sockets for each of `workers` workers.
pub fn bind(listen: &Listen, workers: usize) -> Result<(BoundListeners, Vec<WorkerSockets>), BindError> {
    let mut bound = BoundListeners::default();
    let mut sockets: Vec<WorkerSockets> = (0..workers).map(|_| WorkerSockets::default()).collect();
    let mut numbers = 0..;
    let mut info = |handshake, name: String, clients| {
        let number = numbers.next().unwrap_or_default();
        ListenerInfo { handshake, clients: Arc::new(ListenerClients::new(number, name, clients)) }
    };
    for ListenerSpec { address, requirements, clients } in &listen.tcp {
        let refused = |error| refused("listen.tcp", "KENNEL_LISTEN__TCP", address.to_string(), error);
        let handshake = handshake(requirements, address.to_string())?;
        let (address, listeners) = bind_tcp(address, workers).map_err(refused)?;
        bound.tcp.push(address);
        let info = info(handshake, address.to_string(), *clients);
        for (worker, listener) in sockets.iter_mut().zip(listeners) {
            worker.tcp.push((listener, info.clone()));
        }
    }
    for ListenerSpec { address: path, requirements, clients } in &listen.unix {
        let name = path.display().to_string();
        let refused = |error| refused("listen.unix", "KENNEL_LISTEN__UNIX", name.clone(), error);
        let handshake = handshake(requirements, name.clone())?;
        let listener = bind_unix(path, listen.unix_mode).map_err(refused)?;
        bound.unix.push(path.clone());
        let info = info(handshake, name.clone(), *clients);
        for worker in &mut sockets {
            worker.unix.push((listener.try_clone().map_err(refused)?, info.clone()));
        }
    }
    Ok((bound, sockets))
}

/// Binds the address of the admin server.
pub fn bind_admin(address: &ListenAddress) -> Result<(SocketAddr, TcpListener), BindError> {
    let refused = |error| refused("admin.listen", "KENNEL_ADMIN__LISTEN", address.to_string(), error);
    let (address, mut listeners) = bind_tcp(address, 1).map_err(refused)?;
    listeners.pop().map(|listener| (address, listener)).ok_or_else(|| refused(io::ErrorKind::NotFound.into()))
}

fn handshake(requirements: &Requirements, listener: String) -> Result<Option<Arc<Handshake>>, BindError> {
    Handshake::new(requirements).map_err(|files| BindError::Files(listener, files))
}

fn refused(key: &'static str, variable: &'static str, what: String, error: io::Error) -> BindError {
    BindError::Refused { key, variable, what, error }
}

/// Binds an address `times` times, with SO_REUSEPORT.
fn bind_tcp(address: &ListenAddress, times: usize) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let mut resolved = (address.host.as_str(), address.port).to_socket_addrs()?;
    let mut address = resolved.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    // SO_REUSEPORT lets a second Kennel of the same user bind the same port without an error. A first socket without the option
    // detects that. Port 0 is not checked: the system could give the port to another process before it is bound again.
    if address.port() != 0 {
        TcpListener::bind(address)?;
    }
    let mut listeners = Vec::new();
    for _ in 0..times {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        address = socket.local_addr()?.as_socket().unwrap_or(address);
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        listeners.push(TcpListener::from(socket));
    }
    Ok((address, listeners))
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    // Replaces the socket of a killed process, which refuses connections. A running process accepts them.
    let is_socket = fs::symlink_metadata(path)
        .is_ok_and(|data| std::os::unix::fs::FileTypeExt::is_socket(&data.file_type()));
    if is_socket {
        match UnixStream::connect(path) {
            Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            Err(error) => return Err(error),
        }
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
