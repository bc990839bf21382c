//! Serves clients that another process has accepted.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::handshake::PlainSocket;
use crate::listener::ListenerName;
use crate::takeover::MovedClient;
use crate::worker::{ConnectionLimit, MovingClient, Order};

/// Distributes such clients over the workers.
pub(super) struct Adopter {
    workers: Vec<mpsc::UnboundedSender<Order>>,
    limit: Arc<ConnectionLimit>,
    /// The listeners of the configuration in force, by name.
    numbers: Mutex<HashMap<ListenerName, u32>>,
    next: AtomicUsize,
}

impl Adopter {
    pub(super) fn new(workers: Vec<mpsc::UnboundedSender<Order>>, limit: Arc<ConnectionLimit>) -> Adopter {
        Adopter { workers, limit, numbers: Mutex::default(), next: AtomicUsize::new(0) }
    }

    /// The configuration in force has these listeners.
    pub(super) fn set_listeners(&self, numbers: HashMap<ListenerName, u32>) {
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }

    /// The name of the listener with this number.
    pub(super) fn name(&self, number: u32) -> Option<ListenerName> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.iter().find(|(_, known)| **known == number).map(|(name, _)| name.clone())
    }

    /// Serves a client of another process. Its connection is closed if the configuration in force does not have its listener.
    ///
    /// # Errors
    /// It is not a socket.
    pub(super) fn adopt(&self, client: MovedClient, socket: OwnedFd) -> io::Result<()> {
        let MovedClient { listener, protocol, misses } = client;
        let socket = match listener {
            ListenerName::Unix(_) => {
                let socket = UnixStream::from(socket);
                socket.set_nonblocking(true)?;
                PlainSocket::Unix(socket)
            }
            ListenerName::Tcp(_) | ListenerName::Admin(_) => {
                let socket = TcpStream::from(socket);
                socket.set_nonblocking(true)?;
                PlainSocket::Tcp(socket)
            }
        };
        let number = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).get(&listener).copied();
        if let Some(listener) = number {
            self.serve(MovingClient { listener, socket, protocol, misses });
        }
        Ok(())
    }

    /// Serves a client of this process, or of another one.
    pub(super) fn serve(&self, client: MovingClient) {
        // At once, so that the process does not count as one without clients meanwhile.
        self.limit.count_adopted();
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        // A worker that has ended serves no client.
        let _ = self.workers[worker].send(Order::Adopt(client));
    }
}
