//! What systemd gives a service, and what the service tells it: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use rustix::time::{ClockId, clock_gettime};

use crate::listener::{Inherited, InheritedListener, ListenSocket};

/// How long a message to systemd may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The variables that concern this process alone and not those that it starts.
pub const OWN_VARIABLES: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// The sockets of `LISTEN_FDS`. Must be called once, before the first thread starts: it changes the environment.
///
/// # Errors
/// One of them is no listening stream socket.
pub fn sockets() -> Result<Inherited, String> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = ListenFd::from_env();
    let mut inherited = Inherited::default();
    for at in 0..passed.len() {
        let name = names.next().unwrap_or("unknown");
        let socket = take(&mut passed, at).map_err(|error| {
            format!(
                "systemd passed socket {at} ({name}), which cannot be used: {error}; a socket unit for Kennel needs \
                 ListenStream= and Accept=no"
            )
        })?;
        let sockets = vec![socket];
        inherited.0.push(InheritedListener { name: None, sockets, pooled: false, owns_file: false });
    }
    Ok(inherited)
}

fn take(passed: &mut ListenFd, at: usize) -> io::Result<ListenSocket> {
    let tcp = passed.take_tcp_listener(at);
    let socket = match tcp {
        Ok(Some(socket)) => {
            socket.set_nonblocking(true)?;
            ListenSocket::Tcp(socket)
        }
        _ => {
            let unix = passed.take_unix_listener(at)?;
            let socket = unix.ok_or_else(|| io::Error::other("it is neither TCP nor a Unix socket"))?;
            socket.set_nonblocking(true)?;
            ListenSocket::Unix(socket)
        }
    };
    match socket_acceptconn(&socket)? {
        true => Ok(socket),
        false => Err(io::Error::other("it does not listen")),
    }
}

/// Where the service may have sockets: the first directory of `RuntimeDirectory=`.
pub fn runtime_directory() -> Option<PathBuf> {
    let directories = env::var_os("RUNTIME_DIRECTORY")?;
    let first = directories.to_str()?.split(':').next()?;
    (!first.is_empty()).then(|| PathBuf::from(first))
}

/// The most time between two [`Notifier::alive`], if systemd expects them.
pub fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok().map(|value| value.parse::<u64>());
    let micros = number("WATCHDOG_USEC")?.ok().filter(|micros| *micros > 0)?;
    match number("WATCHDOG_PID") {
        Some(pid) if pid != Ok(process::id().into()) => None,
        _ => Some(Duration::from_micros(micros)),
    }
}

/// Tells systemd what the service does, if it was started by systemd with `NotifyAccess=`.
#[derive(Debug, Default)]
pub struct Notifier(Option<(UnixDatagram, SocketAddr)>);

impl Notifier {
    /// The socket of `NOTIFY_SOCKET`. One that cannot be used counts as none.
    pub fn from_environment() -> Notifier {
        Notifier(env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let address = match path.to_str()?.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&path),
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_write_timeout(Some(TIMEOUT)).ok()?;
            Some((socket, address.ok()?))
        }))
    }

    /// Whether systemd waits for notifications.
    pub fn is_used(&self) -> bool {
        self.0.is_some()
    }

    /// The service is ready, or has completed a reload.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The service reads its configuration again.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The service ends within this time.
    pub fn stopping(&self, within: Duration) {
        self.send(&format!("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={}", within.as_micros()));
    }

    /// Tells the watchdog that the service works. Without it, systemd restarts the process.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// From now on this is the main process of the service.
    pub fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}"));
    }

    fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // systemd may be restarting. The next message reaches it.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}
