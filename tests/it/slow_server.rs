//! An unreliable memcached: a proxy in front of a real one that delays, splits, stalls and cuts its replies, by a schedule drawn
//! from a seed.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::between::{Between, Stopped, pump};

/// Runs until it is dropped; its threads end with it.
pub(crate) struct SlowServer {
    between: Between,
    shared: Arc<Shared>,
}

struct Shared {
    raging: AtomicBool,
    /// The state from which every connection's schedule is drawn, in the order of their arrival.
    seed: AtomicU64,
    stalls: AtomicUsize,
    cuts: AtomicUsize,
}

impl SlowServer {
    /// Listens on a free port of 127.0.0.1 in front of `target`. Initially it forwards everything at once.
    pub(crate) fn start(target: SocketAddr, seed: u64) -> SlowServer {
        let shared = Arc::new(Shared {
            raging: AtomicBool::new(false),
            seed: AtomicU64::new(seed),
            stalls: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
        });
        let of_serve = shared.clone();
        let between =
            Between::start(target, move |client, server, over| serve(client, server, over, &of_serve));
        SlowServer { between, shared }
    }

    /// `host:port`, as in a configuration.
    pub(crate) fn address(&self) -> String {
        self.between.address()
    }

    /// Starts or stops the disturbances.
    pub(crate) fn rage(&self, on: bool) {
        self.shared.raging.store(on, Ordering::SeqCst);
    }

    /// How often it has stalled longer than a request may take, and how often it has cut a connection.
    pub(crate) fn stalls_and_cuts(&self) -> (usize, usize) {
        (self.shared.stalls.load(Ordering::SeqCst), self.shared.cuts.load(Ordering::SeqCst))
    }
}

/// Starts the two directions of one connection: requests are forwarded unchanged, replies by the schedule.
fn serve(client: TcpStream, server: TcpStream, over: &Stopped, shared: &Arc<Shared>) {
    let mut random = fastrand::Rng::with_seed(shared.seed.fetch_add(1, Ordering::SeqCst));
    let (Ok(client_end), Ok(server_end)) = (client.try_clone(), server.try_clone()) else { return };
    let (of_requests, of_replies, shared) = (over.clone(), over.clone(), shared.clone());
    std::thread::spawn(move || {
        direct(client, server, &of_requests, |to, bytes| to.write_all(bytes).is_ok());
    });
    std::thread::spawn(move || {
        direct(server_end, client_end, &of_replies, |to, bytes| pass(to, bytes, &mut random, &shared));
    });
}

/// One direction; closes both when it ends.
fn direct(
    mut from: TcpStream,
    mut to: TcpStream,
    over: &Stopped,
    mut pass: impl FnMut(&mut TcpStream, &[u8]) -> bool,
) {
    pump(&mut from, over, |bytes| pass(&mut to, bytes));
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// One chunk of replies by the schedule; false ends the connection.
fn pass(to: &mut TcpStream, bytes: &[u8], random: &mut fastrand::Rng, shared: &Shared) -> bool {
    if !shared.raging.load(Ordering::SeqCst) {
        return to.write_all(bytes).is_ok();
    }
    match random.u32(0..100) {
        0..70 => to.write_all(bytes).is_ok(),
        70..85 => {
            std::thread::sleep(Duration::from_millis(random.u64(1..60)));
            to.write_all(bytes).is_ok()
        }
        85..93 => {
            let size = random.usize(1..200);
            bytes.chunks(size).all(|piece| {
                std::thread::yield_now();
                to.write_all(piece).is_ok()
            })
        }
        93..97 => {
            // Longer than every request_timeout: the replies arrive when they are no longer awaited.
            shared.stalls.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(random.u64(600..1200)));
            to.write_all(bytes).is_ok()
        }
        _ => {
            // In the middle of a reply.
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            let _ = to.write_all(&bytes[..random.usize(0..bytes.len())]);
            false
        }
    }
}
