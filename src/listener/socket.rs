//! How listening sockets are bound.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use socket2::{Domain, Socket, Type};

/// The backlog of each listener: how many connections the kernel queues until they are accepted.
const BACKLOG: i32 = 4096;

/// Binds an address `times` times, with SO_REUSEPORT.
pub(super) fn bind_tcp(host: &str, port: u16, times: usize) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let mut resolved = (host, port).to_socket_addrs()?;
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

/// Binds a Unix socket, with these permission bits, in the place of one that no process listens on.
pub(super) fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
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
    set_mode(path, mode)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Gives a Unix socket these permission bits.
///
/// # Errors
/// The system refuses it.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
