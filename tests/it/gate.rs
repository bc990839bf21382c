//! A connection that can be held: a proxy in front of a real memcached that forwards everything until a test makes it hold a
//! certain command, or all replies. An interleaving that is rare on a real network then happens every time.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::between::{Between, Stopped, pump};
use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, sidecar_toml};

/// One server and two sidecars with these rules: the first connects to the server through the gate, the second directly. Requests
/// may take 20 s, so that held commands do not time out.
pub(crate) fn gated_fleet(rules: &[String]) -> (Vec<Memcached>, Gate, [Kennel; 2]) {
    let servers = memcacheds(1);
    let gate = Gate::start(servers[0].address);
    let start = |addresses: &[String]| {
        Kennel::start(
            &sidecar_toml(addresses, rules)
                .replace("request_timeout = \"500ms\"", "request_timeout = \"20s\""),
        )
    };
    let sidecars = [start(&[gate.address()]), start(&addresses(&servers))];
    (servers, gate, sidecars)
}

/// Runs until it is dropped; its threads end with it.
pub(crate) struct Gate {
    between: Between,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The number of connections so far.
    made: AtomicUsize,
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    /// The prefix of the commands that are held, with everything after them on their connection.
    requests: Option<Vec<u8>>,
    replies: bool,
    /// The number of connections that are held.
    waiting: usize,
    /// Connections up to this number are silent for good.
    deaf: usize,
}

impl Gate {
    /// Listens on a free port of 127.0.0.1 in front of `target`.
    pub(crate) fn start(target: SocketAddr) -> Gate {
        let shared = Arc::new(Shared::default());
        let of_serve = shared.clone();
        let between =
            Between::start(target, move |client, server, over| serve(client, server, over, &of_serve));
        Gate { between, shared }
    }

    /// `host:port`, as in a configuration.
    pub(crate) fn address(&self) -> String {
        self.between.address()
    }

    /// Holds each command that begins with `prefix`, and what follows it on its connection.
    pub(crate) fn hold(&self, prefix: &str) {
        self.change(|held| held.requests = Some(prefix.as_bytes().to_vec()));
    }

    /// Holds everything that the server sends.
    pub(crate) fn hold_replies(&self) {
        self.change(|held| held.replies = true);
    }

    /// Returns once something is held.
    pub(crate) fn until_held(&self) {
        eventually("the gate keeps something back", || {
            self.shared.held.lock().expect("no holder panics").waiting > 0
        });
    }

    /// Forwards everything again.
    pub(crate) fn release(&self) {
        self.change(|held| (held.requests, held.replies) = (None, false));
    }

    /// Makes every existing connection silent for good, without closing it; new ones are served.
    pub(crate) fn deafen(&self) {
        let made = self.shared.made.load(Ordering::SeqCst);
        self.change(|held| held.deaf = made);
    }

    fn change(&self, change: impl FnOnce(&mut Held)) {
        change(&mut self.shared.held.lock().expect("no holder panics"));
        self.shared.changed.notify_all();
    }
}

fn serve(client: TcpStream, server: TcpStream, over: &Stopped, shared: &Arc<Shared>) {
    let number = shared.made.fetch_add(1, Ordering::SeqCst);
    let (Ok(client_end), Ok(server_end)) = (client.try_clone(), server.try_clone()) else { return };
    let (of_requests, of_replies) = (over.clone(), over.clone());
    let (requests, replies) = (shared.clone(), shared.clone());
    std::thread::spawn(move || {
        direct(client, server, &of_requests, &requests, number, |held, bytes| {
            held.requests.as_deref().and_then(|prefix| command_at(bytes, prefix))
        });
    });
    std::thread::spawn(move || {
        direct(server_end, client_end, &of_replies, &replies, number, |held, _| held.replies.then_some(0));
    });
}

/// The position in `bytes` of the first command that begins with `prefix`.
fn command_at(bytes: &[u8], prefix: &[u8]) -> Option<usize> {
    (0..bytes.len())
        .find(|at| bytes[*at..].starts_with(prefix) && (*at == 0 || bytes[..*at].ends_with(b"\r\n")))
}

/// One direction. `keeps` returns the position from which bytes are held.
fn direct(
    mut from: TcpStream,
    mut to: TcpStream,
    over: &Stopped,
    shared: &Shared,
    number: usize,
    keeps: impl Fn(&Held, &[u8]) -> Option<usize>,
) {
    pump(&mut from, over, |bytes| {
        let mut held = shared.held.lock().expect("no holder panics");
        if number < held.deaf {
            return true;
        }
        let at = keeps(&held, bytes).unwrap_or(bytes.len());
        if to.write_all(&bytes[..at]).is_err() {
            return false;
        }
        if at < bytes.len() {
            held.waiting += 1;
            while keeps(&held, bytes).is_some() && !over.is_over() {
                // A timeout, so that the thread notices the end.
                let (again, _) =
                    shared.changed.wait_timeout(held, Duration::from_millis(100)).expect("no holder panics");
                held = again;
            }
            held.waiting -= 1;
        }
        drop(held);
        to.write_all(&bytes[at..]).is_ok()
    });
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
