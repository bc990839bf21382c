//! The network between a sidecar and a server: forwards everything, late if configured, cuts connections, and separates the two
//! until they are connected again. What it had received before a cut still arrives, as on a real network.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::between::{Between, Stopped, pump};

/// Whether the two ends reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    Open,
    /// Connections are accepted, and nothing arrives until the passage is open again; then everything does.
    Silent,
    /// Every connection is closed at once.
    Closed,
}

/// Runs until it is dropped; its threads end with it.
pub(super) struct Network {
    between: Between,
    shared: Arc<Shared>,
}

struct Shared {
    /// The maximum delay in ms: towards the server, and back.
    delays: [AtomicU64; 2],
    /// A [`Passage`], as a number.
    passage: AtomicU8,
    /// The state from which every connection's delays are drawn.
    seed: AtomicU64,
    /// The sidecars' ends of the connections since the last cut.
    open: Mutex<Vec<TcpStream>>,
}

impl Shared {
    fn is(&self, passage: Passage) -> bool {
        self.passage.load(Ordering::SeqCst) == passage as u8
    }
}

impl Network {
    /// Listens on a free port of 127.0.0.1 in front of `target`.
    pub(super) fn start(target: SocketAddr, seed: u64) -> Network {
        let (delays, open) = (Default::default(), Mutex::default());
        let passage = AtomicU8::new(Passage::Open as u8);
        let shared = Arc::new(Shared { delays, passage, seed: AtomicU64::new(seed), open });
        let of_serve = shared.clone();
        let between =
            Between::start(target, move |client, server, over| serve(client, server, over, &of_serve));
        Network { between, shared }
    }

    /// `host:port`, as in a configuration.
    pub(super) fn address(&self) -> String {
        self.between.address()
    }

    /// Sets the maximum delay in ms: towards the server, and back.
    pub(super) fn delay(&self, millis: [u64; 2]) {
        for (delay, millis) in self.shared.delays.iter().zip(millis) {
            delay.store(millis, Ordering::SeqCst);
        }
    }

    /// Opens it or separates the two ends. Returns how many connections that closed.
    pub(super) fn set(&self, passage: Passage) -> usize {
        self.shared.passage.store(passage as u8, Ordering::SeqCst);
        if passage == Passage::Closed { self.cut() } else { 0 }
    }

    /// Cuts every connection of the sidecars. Returns their number.
    pub(super) fn cut(&self) -> usize {
        let cut: Vec<TcpStream> = std::mem::take(&mut *self.shared.open.lock().expect("no holder panics"));
        cut.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count()
    }
}

fn serve(client: TcpStream, server: TcpStream, over: &Stopped, shared: &Arc<Shared>) {
    let (Ok(client_end), Ok(server_end), Ok(cuts)) =
        (client.try_clone(), server.try_clone(), client.try_clone())
    else {
        return;
    };
    shared.open.lock().expect("no holder panics").push(cuts);
    // After it is listed, so that a passage that closes meanwhile is noticed here or by the cut.
    if shared.is(Passage::Closed) {
        let _ = client.shutdown(Shutdown::Both);
        return;
    }
    for (way, (from, to)) in [(client, server), (server_end, client_end)].into_iter().enumerate() {
        let random = fastrand::Rng::with_seed(shared.seed.fetch_add(1, Ordering::SeqCst));
        let (over, shared) = (over.clone(), shared.clone());
        std::thread::spawn(move || direct(from, to, &over, &shared, way, random));
    }
}

/// One direction.
fn direct(
    mut from: TcpStream,
    mut to: TcpStream,
    over: &Stopped,
    shared: &Shared,
    way: usize,
    mut random: fastrand::Rng,
) {
    pump(&mut from, over, |bytes| {
        let delay = shared.delays[way].load(Ordering::SeqCst);
        if delay > 0 {
            std::thread::sleep(Duration::from_millis(random.u64(0..=delay)));
        }
        while shared.is(Passage::Silent) && !over.is_over() {
            std::thread::sleep(Duration::from_millis(5));
        }
        to.write_all(bytes).is_ok()
    });
    // Each direction ends by itself, so that what is delayed in the other one still arrives.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
