//! The network of a simulation, in place of the system's sockets.
//!
//! `tests/fleet` runs whole sidecars in one thread and simulated time. On that thread, connections to servers are made by a
//! [`Network`], and clients are accepted from it. On every other thread, that is in production, there is none, and the system's
//! sockets are used. TLS and Unix sockets are not simulated.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

/// A simulated connection, in place of a TCP stream.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// What will be of this type.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A simulated network, in place of the system's.
pub trait Network: Send + Sync {
    /// Connects to the server at this address.
    fn connect(&self, host: &str, port: u16) -> Pending<io::Result<Box<dyn Duplex>>>;

    /// The next client of the listener at this address, and the client's address.
    fn accept(&self, listener: SocketAddr) -> Pending<io::Result<(Box<dyn Duplex>, SocketAddr)>>;
}

thread_local! {
    static NETWORK: RefCell<Option<Arc<dyn Network>>> = const { RefCell::new(None) };
}

/// From now on, this thread uses `network`.
pub fn simulate(network: Arc<dyn Network>) {
    NETWORK.set(Some(network));
}

/// The network of this thread, if it is simulated.
pub(crate) fn simulated() -> Option<Arc<dyn Network>> {
    NETWORK.with_borrow(Clone::clone)
}
