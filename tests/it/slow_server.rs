//! A memcached that misbehaves: a proxy in front of a real one that delays, dribbles, stalls and cuts what it answers, by
//! a schedule that a seed decides.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs until it is dropped; its threads end with it.
pub(crate) struct SlowServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
}

struct Shared {
    target: SocketAddr,
    over: AtomicBool,
    raging: AtomicBool,
    /// The state from which every connection's schedule is drawn, in the order of their arrival.
    seed: AtomicU64,
    stalls: AtomicUsize,
    cuts: AtomicUsize,
}

impl SlowServer {
    /// Listens on a free port of 127.0.0.1 in front of `target`. Calm at first: what comes is passed on at once.
    pub(crate) fn start(target: SocketAddr, seed: u64) -> SlowServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            target,
            over: AtomicBool::new(false),
            raging: AtomicBool::new(false),
            seed: AtomicU64::new(seed),
            stalls: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
        });
        let of_accept = shared.clone();
        let accept = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if of_accept.over.load(Ordering::SeqCst) {
                    return;
                }
                serve(client, &of_accept);
            }
        });
        SlowServer { address, shared, accept: Some(accept) }
    }

    /// `host:port`, as a configuration names it.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Misbehaves from now on, or stops it.
    pub(crate) fn rage(&self, on: bool) {
        self.shared.raging.store(on, Ordering::SeqCst);
    }

    /// How often it has stalled longer than a request may take, and how often it has cut a connection.
    pub(crate) fn stalls_and_cuts(&self) -> (usize, usize) {
        (self.shared.stalls.load(Ordering::SeqCst), self.shared.cuts.load(Ordering::SeqCst))
    }
}

impl Drop for SlowServer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes accept; the connections notice by their read time-outs.
        let _ = TcpStream::connect(self.address);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

/// Starts the two directions of one connection: requests are passed on as they are, replies by the schedule.
fn serve(client: TcpStream, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(shared.target) else { return };
    let seed = shared.seed.fetch_add(1, Ordering::SeqCst);
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    }
    let (Ok(client_end), Ok(server_end)) = (client.try_clone(), server.try_clone()) else { return };
    let (requests, replies) = (shared.clone(), shared.clone());
    std::thread::spawn(move || pump(client, server, &requests, |to, bytes| to.write_all(bytes).is_ok()));
    std::thread::spawn(move || {
        let mut random = fastrand::Rng::with_seed(seed);
        let of_rage = replies.clone();
        pump(server_end, client_end, &replies, |to, bytes| pass(to, bytes, &mut random, &of_rage));
    });
}

/// Passes on what comes until either side closes or `pass` says that the connection ends; then closes both.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    shared: &Shared,
    mut pass: impl FnMut(&mut TcpStream, &[u8]) -> bool,
) {
    let mut chunk = [0; 16384];
    while !shared.over.load(Ordering::SeqCst) {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) if pass(&mut to, &chunk[..n]) => {}
            Ok(_) => break,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
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
            // Past every request_timeout: the replies come when nobody waits for them any more.
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
