//! The Unix socket on which a process can be taken over.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect as connect_to, listen, socket_with,
};
use tokio::net::{UnixListener, UnixStream};

use super::channel::Channel;

/// How many processes may wait to be accepted.
const BACKLOG: i32 = 8;
/// Only processes of the same user may connect.
const MODE: u32 = 0o600;

/// The control socket. Its file is removed when this is dropped, unless it was given away.
#[derive(Debug)]
pub struct ControlSocket {
    /// Of type SOCK_SEQPACKET.
    socket: UnixListener,
    path: PathBuf,
    is_ours: AtomicBool,
}

impl ControlSocket {
    /// Binds the socket, with mode 0600. Replaces that of a killed process. Must be called in a runtime.
    ///
    /// # Errors
    /// Another process listens there (`AddrInUse`), or the system refuses it.
    pub fn bind(path: &Path) -> io::Result<ControlSocket> {
        if fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
            match open(path) {
                Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                Err(error) => return Err(error),
            }
        }
        let socket = new_socket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        // It cannot be connected to before it listens.
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
        listen(&socket, BACKLOG)?;
        ControlSocket::inherit(socket, path)
    }

    /// Goes on with the socket of another process. Must be called in a runtime.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn inherit(socket: OwnedFd, path: &Path) -> io::Result<ControlSocket> {
        let socket = net::UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixListener::from_std(socket)?;
        Ok(ControlSocket { socket, path: path.to_owned(), is_ours: AtomicBool::new(true) })
    }

    /// Path of the bound socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another process has it: the file stays.
    pub fn give_away(&self) {
        self.is_ours.store(false, Ordering::Relaxed);
    }

    /// The next process that connects. One of another user is an error.
    ///
    /// # Errors
    /// The system cannot accept it, or it must not connect (`PermissionDenied`).
    pub async fn accept(&self) -> io::Result<Channel> {
        let (socket, _) = self.socket.accept().await?;
        Channel::new(socket)
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if self.is_ours.load(Ordering::Relaxed) {
            // It may have been removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to the process that has this control socket; `None` if there is no such process. Must be called in a runtime.
///
/// # Errors
/// The process belongs to another user, or the system refuses it.
pub fn connect(path: &Path) -> io::Result<Option<Channel>> {
    match open(path) {
        Ok(socket) => Channel::new(UnixStream::from_std(socket.into())?).map(Some),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let to = SocketAddrUnix::new(path)?;
    loop {
        match connect_to(&socket, &to) {
            Err(Errno::INTR) => {}
            result => return result.map(|()| socket).map_err(io::Error::from),
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(test: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kennel-control-{}-{test}", std::process::id()))
    }

    #[tokio::test]
    async fn only_its_user_may_connect_and_one_process_at_a_time_has_it() {
        let path = path("mode");
        assert!(connect(&path).unwrap().is_none());
        let socket = ControlSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(ControlSocket::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // The probe of the second one.
        drop(socket.accept().await.unwrap());
        let there = connect(&path).unwrap().unwrap();
        let here = socket.accept().await.unwrap();
        assert_eq!((here.process(), there.process()), (std::process::id(), std::process::id()));
        drop(socket);
        assert!(!path.exists() && connect(&path).unwrap().is_none());
    }

    #[tokio::test]
    async fn the_socket_of_a_killed_process_is_replaced_and_one_that_was_given_away_stays() {
        let path = path("stale");
        ControlSocket::bind(&path).unwrap().give_away();
        assert!(path.exists() && connect(&path).unwrap().is_none());
        let socket = ControlSocket::bind(&path).unwrap();
        let again = ControlSocket::inherit(socket.as_fd().try_clone_to_owned().unwrap(), &path).unwrap();
        socket.give_away();
        assert!(connect(&path).unwrap().is_some());
        drop(again);
        assert!(!path.exists());
    }
}
