//! The common part of the proxies that tests put between a sidecar and its server: a port that forwards connections until it is
//! dropped.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs until it is dropped; its threads end with it.
pub(crate) struct Between {
    address: SocketAddr,
    over: Stopped,
    accept: Option<JoinHandle<()>>,
}

/// Whether it has been dropped.
#[derive(Clone, Default)]
pub(crate) struct Stopped(Arc<AtomicBool>);

impl Stopped {
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Between {
    /// Listens on a free port of 127.0.0.1, connects each client to `target`, and passes both ends to `serve`, which must not
    /// block.
    pub(crate) fn start(
        target: SocketAddr,
        serve: impl Fn(TcpStream, TcpStream, &Stopped) + Send + 'static,
    ) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let over = Stopped::default();
        let of_accept = over.clone();
        let accept = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if of_accept.is_over() {
                    return;
                }
                let Ok(server) = TcpStream::connect(target) else { continue };
                for stream in [&client, &server] {
                    let _ = stream.set_nodelay(true);
                    // So that the thread notices the end.
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
                }
                serve(client, server, &of_accept);
            }
        });
        Between { address, over, accept: Some(accept) }
    }

    /// `host:port`, as in a configuration.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.over.0.store(true, Ordering::SeqCst);
        // Wakes `accept`; the connections notice by their read timeouts.
        let _ = TcpStream::connect(self.address);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

/// Passes what arrives to `pass`, until the sender closes, `pass` returns that the connection ends, or the proxy is dropped.
pub(crate) fn pump(from: &mut TcpStream, over: &Stopped, mut pass: impl FnMut(&[u8]) -> bool) {
    let mut chunk = [0; 65536];
    while !over.is_over() {
        match from.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) if pass(&chunk[..read]) => {}
            Ok(_) => return,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}
