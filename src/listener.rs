//! Where clients come in: sockets are bound before any worker starts, so that a mistake stops everything at once.

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

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Where clients come in. There is at least one address or path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// TCP addresses, no two alike unless their port is 0.
    pub tcp: Vec<ListenerSpec<ListenAddress>>,
    /// Paths of Unix sockets, at most 107 bytes each, no two alike.
    pub unix: Vec<ListenerSpec<PathBuf>>,
    /// The sockets' permission bits, at most 0o777.
    pub unix_mode: u32,
    /// How many clients at a time, 1 to 1,000,000.
    pub max_connections: usize,
    /// A client that has done nothing for so long is hung up on; zero: never.
    pub idle_timeout: Duration,
    /// How many bytes of requests and answers may be held for all clients together.
    pub max_buffered: usize,
    /// Worker threads, 0 to 64. 0: one per core, at most 4.
    pub workers: usize,
    /// Whether clients may empty the pools.
    pub flush_all: FlushAll,
}

/// What a client's `flush_all` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushAll {
    /// Every server is told.
    Allow,
    /// It is refused, as a memcached started with `-F` refuses it.
    Refuse,
}

/// One of the places where clients come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSpec<A> {
    /// Which.
    pub at: A,
    /// What is asked of clients there.
    pub terms: Requirements,
    /// Whether they have pools of connections.
    pub clients: ConnectionUse,
}

/// An address to listen on. The host is resolved when the listener is bound.
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

/// Why there is no listening there, and what to change.
#[derive(Debug)]
pub enum BindError {
    /// The system does not let us.
    Refused {
        /// The configuration's key.
        key: &'static str,
        /// The variable that overrides it.
        variable: &'static str,
        /// The address or path.
        what: String,
        /// Why.
        error: io::Error,
    },
    /// A file that clients are to be asked by cannot be used: which listener, and all that is wrong.
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
                write!(f, "; stop what listens there, or change {key} (or {variable})")
            }
            _ => write!(f, "; change {key} (or {variable})"),
        }
    }
}

impl std::error::Error for BindError {}

/// All the sockets of one worker.
#[derive(Debug, Default)]
pub struct WorkerSockets {
    /// TCP: each worker has its own, on the same address.
    pub tcp: Vec<(TcpListener, ListenerInfo)>,
    /// Unix: all workers share one.
    pub unix: Vec<(UnixListener, ListenerInfo)>,
}

/// What is known of a listener's clients before they come. All workers share it.
#[derive(Debug, Clone)]
pub struct ListenerInfo {
    /// What they must show to be let in; `None`: nothing.
    pub porter: Option<Arc<Handshake>>,
    /// How they use their connections.
    pub pooling: Arc<ListenerClients>,
}

/// What is listened on.
#[derive(Debug, Default)]
pub struct BoundListeners {
    /// TCP, with the ports that the system chose.
    pub tcp: Vec<SocketAddr>,
    /// Unix; removed when this is dropped.
    pub unix: Vec<PathBuf>,
}

impl Drop for BoundListeners {
    fn drop(&mut self) {
        for path in &self.unix {
            // Somebody may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Binds everything that `listen` names, once for each worker.
pub fn bind(listen: &Listen, workers: usize) -> Result<(BoundListeners, Vec<WorkerSockets>), BindError> {
    let mut bound = BoundListeners::default();
    let mut sockets: Vec<WorkerSockets> = (0..workers).map(|_| WorkerSockets::default()).collect();
    let mut numbers = 0..;
    let mut pooling = |name: String, clients| {
        let number = numbers.next().unwrap_or_default();
        Arc::new(ListenerClients::new(number, name, clients))
    };
    for ListenerSpec { at: address, terms, clients } in &listen.tcp {
        let error = |error| BindError::Refused {
            key: "listen.tcp",
            variable: "KENNEL_LISTEN__TCP",
            what: address.to_string(),
            error,
        };
        let porter = Handshake::new(terms).map_err(|files| BindError::Files(address.to_string(), files))?;
        let (address, listeners) = bind_tcp(address, workers).map_err(error)?;
        bound.tcp.push(address);
        let door = ListenerInfo { porter, pooling: pooling(address.to_string(), *clients) };
        for (worker, listener) in sockets.iter_mut().zip(listeners) {
            worker.tcp.push((listener, door.clone()));
        }
    }
    for ListenerSpec { at: path, terms, clients } in &listen.unix {
        let error = |error| BindError::Refused {
            key: "listen.unix",
            variable: "KENNEL_LISTEN__UNIX",
            what: path.display().to_string(),
            error,
        };
        let porter =
            Handshake::new(terms).map_err(|files| BindError::Files(path.display().to_string(), files))?;
        let listener = bind_unix(path, listen.unix_mode).map_err(error)?;
        bound.unix.push(path.clone());
        let door = ListenerInfo { porter, pooling: pooling(path.display().to_string(), *clients) };
        for worker in &mut sockets {
            worker.unix.push((listener.try_clone().map_err(error)?, door.clone()));
        }
    }
    Ok((bound, sockets))
}

/// Binds the admin's address.
pub fn bind_admin(address: &ListenAddress) -> Result<(SocketAddr, TcpListener), BindError> {
    let error = |error| BindError::Refused {
        key: "admin.listen",
        variable: "KENNEL_ADMIN__LISTEN",
        what: address.to_string(),
        error,
    };
    let (address, mut listeners) = bind_tcp(address, 1).map_err(error)?;
    listeners.pop().map(|listener| (address, listener)).ok_or_else(|| error(io::ErrorKind::NotFound.into()))
}

fn bind_tcp(address: &ListenAddress, times: usize) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let mut resolved = (address.host.as_str(), address.port).to_socket_addrs()?;
    let mut address = resolved.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    // SO_REUSEPORT would let a second Kennel of the same user in on the same port without a word: one socket without it
    // finds that out first. Port 0 is not tried, or another could be given the port before it is bound again.
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
    // The socket of a process that was killed still lies there; that of a living one answers.
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
