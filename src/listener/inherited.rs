//! Listening sockets that another process has bound: the one that this process takes over from, or the service manager.

use std::fmt;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use super::{ListenAddress, ListenSocket};

/// The configured address of a listener, as one process tells another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenerName {
    /// An entry of `listen.tcp`.
    Tcp(String),
    /// An entry of `listen.unix`.
    Unix(PathBuf),
    /// `admin.listen`.
    Admin(String),
}

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenerName::Tcp(address) | ListenerName::Admin(address) => f.write_str(address),
            ListenerName::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A listener that another process has bound. `S`: its sockets, at least one, non-blocking.
#[derive(Debug)]
pub struct InheritedListener<S = Vec<ListenSocket>> {
    /// Its address in the configuration of that process. `None`: the service manager has bound it, for what listens at its address.
    pub name: Option<ListenerName>,
    /// Sockets that are bound to the address.
    pub sockets: S,
    /// Whether that process has detected that its clients use connection pools.
    pub pooled: bool,
    /// Whether the file of the Unix socket is removed when it is closed.
    pub owns_file: bool,
}

/// Listeners that have not been used yet.
#[derive(Debug, Default)]
pub struct Inherited(pub Vec<InheritedListener>);

impl Inherited {
    pub(super) fn take_tcp(&mut self, address: &ListenAddress) -> Option<InheritedListener> {
        self.take_address(address, &ListenerName::Tcp(address.to_string()))
    }

    pub(super) fn take_admin(&mut self, address: &ListenAddress) -> Option<InheritedListener> {
        self.take_address(address, &ListenerName::Admin(address.to_string()))
    }

    /// The listener with this name; otherwise one that the service manager has bound at this address.
    fn take_address(&mut self, address: &ListenAddress, name: &ListenerName) -> Option<InheritedListener> {
        let named = self.0.iter().position(|listener| listener.name.as_ref() == Some(name));
        let at = named.or_else(|| {
            let mut given = self.0.iter().filter(|listener| listener.name.is_none()).peekable();
            given.peek()?;
            let resolved = (address.host.as_str(), address.port).to_socket_addrs();
            // Binding it reports the error.
            let resolved: Vec<_> = resolved.into_iter().flatten().collect();
            self.0.iter().position(|listener| {
                listener.name.is_none() && tcp(listener).is_some_and(|bound| resolved.contains(&bound))
            })
        })?;
        Some(self.0.swap_remove(at))
    }

    pub(super) fn take_unix(&mut self, path: &Path) -> Option<InheritedListener> {
        let is_there = |listener: &InheritedListener| match &listener.name {
            Some(name) => *name == ListenerName::Unix(path.to_owned()),
            None => unix(listener).is_some_and(|bound| bound == path),
        };
        let at = self.0.iter().position(is_there)?;
        Some(self.0.swap_remove(at))
    }

    /// The addresses of those that the service manager has bound and that were not taken.
    pub fn unnamed(&self) -> Vec<String> {
        self.0.iter().filter(|listener| listener.name.is_none()).map(address).collect()
    }

    /// Closes those that were not taken. The files of Unix sockets are removed.
    pub fn close(self) {
        for listener in self.0 {
            if let (true, Some(ListenerName::Unix(path))) = (listener.owns_file, &listener.name) {
                // It may have been removed already.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn tcp(listener: &InheritedListener) -> Option<SocketAddr> {
    match listener.sockets.first()? {
        ListenSocket::Tcp(socket) => socket.local_addr().ok(),
        ListenSocket::Unix(_) => None,
    }
}

fn unix(listener: &InheritedListener) -> Option<PathBuf> {
    match listener.sockets.first()? {
        ListenSocket::Tcp(_) => None,
        ListenSocket::Unix(socket) => socket.local_addr().ok()?.as_pathname().map(Path::to_owned),
    }
}

fn address(listener: &InheritedListener) -> String {
    let tcp = tcp(listener).map(|address| address.to_string());
    let bound = tcp.or_else(|| unix(listener).map(|path| path.display().to_string()));
    bound.unwrap_or_else(|| "a socket without an address".to_owned())
}
