//! The network between a sidecar and a server: passes on what comes, late if it is told to, and cuts connections. What it had
//! taken when it cut still arrives, as with a network.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs until it is dropped; its threads end with it.
pub(super) struct Weather {
    address: SocketAddr,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
}

struct Shared {
    target: SocketAddr,
    over: AtomicBool,
    /// What comes is held for up to so many ms: on its way to the server, and back.
    delays: [AtomicU64; 2],
    /// The state from which every connection's delays are drawn.
    seed: AtomicU64,
    /// The sidecars' ends since the last cut.
    open: Mutex<Vec<TcpStream>>,
}

impl Weather {
    /// Listens on a free port of 127.0.0.1 in front of `target`.
    pub(super) fn start(target: SocketAddr, seed: u64) -> Weather {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            target,
            over: AtomicBool::new(false),
            delays: Default::default(),
            seed: AtomicU64::new(seed),
            open: Mutex::default(),
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
        Weather { address, shared, accept: Some(accept) }
    }

    /// `host:port`, as a configuration names it.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on what comes is held for up to so many ms: on its way to the server, and back.
    pub(super) fn delay(&self, millis: [u64; 2]) {
        for (delay, millis) in self.shared.delays.iter().zip(millis) {
            delay.store(millis, Ordering::SeqCst);
        }
    }

    /// The sidecars lose every connection there is. How many.
    pub(super) fn cut(&self) -> usize {
        let cut: Vec<TcpStream> = std::mem::take(&mut *self.shared.open.lock().expect("no holder panics"));
        cut.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count()
    }
}

impl Drop for Weather {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes accept; the connections notice by their read time-outs.
        let _ = TcpStream::connect(self.address);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

fn serve(client: TcpStream, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(shared.target) else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    }
    let (Ok(client_end), Ok(server_end), Ok(cuts)) =
        (client.try_clone(), server.try_clone(), client.try_clone())
    else {
        return;
    };
    shared.open.lock().expect("no holder panics").push(cuts);
    for (way, (from, to)) in [(client, server), (server_end, client_end)].into_iter().enumerate() {
        let seed = shared.seed.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        std::thread::spawn(move || {
            pump(from, to, &shared, &shared.delays[way], fastrand::Rng::with_seed(seed))
        });
    }
}

/// Passes on what comes until either side closes.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    shared: &Shared,
    delay: &AtomicU64,
    mut random: fastrand::Rng,
) {
    let mut chunk = [0; 16384];
    while !shared.over.load(Ordering::SeqCst) {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => {
                let delay = delay.load(Ordering::SeqCst);
                if delay > 0 {
                    std::thread::sleep(Duration::from_millis(random.u64(0..=delay)));
                }
                if to.write_all(&chunk[..read]).is_err() {
                    break;
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    // Each direction ends by itself, so that what is being held in the other still arrives.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
