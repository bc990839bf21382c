//! The network: connections with latency, which can be held, cut, cut after some bytes, or swallow what is sent.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use kennel::net::{Duplex, Network, Pending};
use kennel::random::Random;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::coverage;
use super::mutants::Mutant;

/// The longest time from one end to the other.
const LATENCY: Duration = Duration::from_micros(1500);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    /// What is on its way, and when it arrives.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    closed: bool,
    reset: bool,
    held: bool,
    swallows: bool,
    /// The connection is cut when this many more bytes have been sent.
    cut_after: Option<usize>,
    reader: Option<Waker>,
}

impl Direction {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn cut(&mut self) {
        self.reset = true;
        self.chunks.clear();
        self.wake();
    }
}

/// A connection.
struct Link {
    directions: [Mutex<Direction>; 2],
    random: Mutex<Random>,
    trace: Arc<Trace>,
    name: String,
    is_clients: bool,
    /// Between a sidecar and a server.
    mutant: Option<Mutant>,
}

impl Link {
    fn cut(&self) {
        self.directions.iter().for_each(|direction| lock(direction).cut());
    }

    fn is_over(&self) -> bool {
        self.directions.iter().any(|direction| lock(direction).reset)
    }
}

/// One end of a connection. The other end reads `EOF` when it is dropped.
pub struct End {
    link: Arc<Link>,
    /// The direction in which it writes; it reads the other one.
    writes: usize,
    arrival: Option<Pin<Box<Sleep>>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut written = lock(&self.link.directions[self.writes]);
        written.closed = true;
        written.wake();
        drop(written);
        // What the other end still sends arrives nowhere.
        lock(&self.link.directions[1 - self.writes]).reset = true;
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = Arc::clone(&self.link);
        let mut direction = lock(&link.directions[1 - self.writes]);
        if direction.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        direction.reader = Some(cx.waker().clone());
        if direction.held {
            return Poll::Pending;
        }
        let Some((arrives, bytes)) = direction.chunks.front_mut() else {
            return if direction.closed { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        if *arrives > Instant::now() {
            let mut arrival = Box::pin(sleep_until(*arrives));
            if arrival.as_mut().poll(cx).is_pending() {
                drop(direction);
                self.arrival = Some(arrival);
                return Poll::Pending;
            }
        }
        let length = bytes.len().min(into.remaining());
        into.put_slice(&bytes[..length]);
        bytes.drain(..length);
        if bytes.is_empty() {
            direction.chunks.pop_front();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let link = &self.link;
        let mut direction = lock(&link.directions[self.writes]);
        if direction.reset {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        link.trace.note(&link.name, self.writes, from);
        if link.is_clients && self.writes == 1 {
            coverage::sent(from);
        }
        if direction.swallows {
            return Poll::Ready(Ok(from.len()));
        }
        let mutated = link.mutant.map(|mutant| mutant.mutate(from, self.writes == 1));
        let mut sent = mutated.as_deref().unwrap_or(from);
        let cut = direction.cut_after.is_some_and(|left| left <= sent.len());
        if let Some(left) = &mut direction.cut_after {
            sent = &sent[..sent.len().min(*left)];
            *left -= sent.len();
        }
        let latency = LATENCY.mul_f64(lock(&link.random).unit());
        let earliest = direction.chunks.back().map(|(arrives, _)| *arrives);
        let arrives = earliest.max(Some(Instant::now() + latency)).expect("one of them");
        if !sent.is_empty() {
            direction.chunks.push_back((arrives, sent.to_vec()));
        }
        if cut {
            // The bytes before arrive; then the connection ends in both directions.
            direction.closed = true;
            direction.swallows = true;
        }
        direction.wake();
        drop(direction);
        if cut {
            let mut back = lock(&link.directions[1 - self.writes]);
            back.closed = true;
            back.swallows = true;
            back.wake();
        }
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut direction = lock(&self.link.directions[self.writes]);
        direction.closed = true;
        direction.wake();
        Poll::Ready(Ok(()))
    }
}

/// What was sent, in the order of a run: its hash, and the text if it is to be shown.
pub struct Trace {
    start: Instant,
    shows: bool,
    hash: Mutex<u64>,
}

impl Trace {
    pub fn new(shows: bool) -> Trace {
        Trace { start: Instant::now(), shows, hash: Mutex::new(0xcbf2_9ce4_8422_2325) }
    }

    /// The time since the start of the run, in microseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn note(&self, link: &str, direction: usize, bytes: &[u8]) {
        let arrow = ["->", "<-"][direction];
        let mut hash = lock(&self.hash);
        let header = format!("{} {link}{arrow}", self.now());
        for byte in header.bytes().chain(bytes.iter().copied()) {
            *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.shows {
            let text: String = bytes.iter().take(200).map(|b| b.escape_ascii().to_string()).collect();
            eprintln!("{:>12.3} ms {link} {arrow} {text}", self.now() as f64 / 1e3);
        }
    }

    /// Notes an event that is not a byte on a connection.
    pub fn event(&self, what: &str) {
        self.note("event", 0, what.as_bytes());
    }

    pub fn hash(&self) -> u64 {
        *lock(&self.hash)
    }
}

/// A server as the network sees it.
struct Reachable {
    up: bool,
    hung: bool,
    accepts: mpsc::UnboundedSender<End>,
}

struct Connected {
    sidecar: usize,
    server: usize,
    link: Arc<Link>,
}

type Accepted = (Box<dyn Duplex>, SocketAddr);

/// The network of one run. The address of server `m` for sidecar `s` is `10.s.0.m:11211`, so that it knows who connects.
pub struct Net {
    random: Mutex<Random>,
    pub trace: Arc<Trace>,
    servers: Mutex<Vec<Reachable>>,
    connected: Mutex<Vec<Connected>>,
    listeners: Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<Accepted>>>,
    accepting: Mutex<HashMap<SocketAddr, Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Accepted>>>>>,
    clients: Mutex<u16>,
    mutant: Option<Mutant>,
}

impl Net {
    pub fn new(seed: u64, trace: Arc<Trace>, mutant: Option<Mutant>) -> Arc<Net> {
        Arc::new(Net {
            random: Mutex::new(Random::seeded(seed)),
            trace,
            servers: Mutex::default(),
            connected: Mutex::default(),
            listeners: Mutex::default(),
            accepting: Mutex::default(),
            clients: Mutex::new(0),
            mutant,
        })
    }

    fn pair(&self, name: String, is_clients: bool) -> (End, End, Arc<Link>) {
        let seed = lock(&self.random).any();
        let link = Arc::new(Link {
            directions: Default::default(),
            random: Mutex::new(Random::seeded(seed)),
            trace: Arc::clone(&self.trace),
            name,
            is_clients,
            mutant: self.mutant.filter(|_| !is_clients),
        });
        let end = |writes| End { link: Arc::clone(&link), writes, arrival: None };
        (end(0), end(1), Arc::clone(&link))
    }

    /// Adds a server, which accepts connections from this receiver.
    pub fn add_server(&self) -> mpsc::UnboundedReceiver<End> {
        let (accepts, receiver) = mpsc::unbounded_channel();
        lock(&self.servers).push(Reachable { up: true, hung: false, accepts });
        receiver
    }

    /// A client's connection to the sidecar that listens here. `None` if it does not.
    pub fn client(&self, listener: SocketAddr, name: &str) -> Option<End> {
        let port = {
            let mut clients = lock(&self.clients);
            *clients += 1;
            *clients
        };
        let (ours, theirs, _) = self.pair(name.to_owned(), true);
        let from = SocketAddr::from(([10, 255, 0, 1], port));
        let sender = self.listener(listener);
        sender.send((Box::new(theirs), from)).ok().map(|()| ours)
    }

    fn listener(&self, address: SocketAddr) -> mpsc::UnboundedSender<Accepted> {
        let mut listeners = lock(&self.listeners);
        let sender = listeners.entry(address).or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            lock(&self.accepting).insert(address, Arc::new(tokio::sync::Mutex::new(receiver)));
            sender
        });
        sender.clone()
    }

    /// Calls `change` for each open connection between a sidecar and a server that `is` selects.
    fn each(&self, is: impl Fn(usize, usize) -> bool, change: impl Fn(&Link)) {
        let mut connected = lock(&self.connected);
        connected.retain(|connected| !connected.link.is_over());
        connected.iter().filter(|c| is(c.sidecar, c.server)).for_each(|c| change(&c.link));
    }

    fn hold(&self, is: impl Fn(usize, usize) -> bool, held: bool) {
        self.each(is, |link| {
            for direction in &link.directions {
                let mut direction = lock(direction);
                direction.held = held;
                direction.wake();
            }
        });
    }

    /// The server is killed: its connections are reset, and new ones are refused. Or it is back.
    pub fn set_up(&self, server: usize, up: bool) {
        lock(&self.servers)[server].up = up;
        if !up {
            self.each(|_, of| of == server, Link::cut);
        }
    }

    /// The server accepts connections, but neither reads nor answers. Or it goes on.
    pub fn set_hung(&self, server: usize, hung: bool) {
        lock(&self.servers)[server].hung = hung;
        self.hold(|_, of| of == server, hung);
    }

    /// Nothing arrives between these, in either direction. Or it does again.
    pub fn set_held(&self, sidecar: usize, server: usize, held: bool) {
        self.hold(|from, to| (from, to) == (sidecar, server), held);
    }

    /// The connections between these are reset.
    pub fn cut(&self, sidecar: usize, server: usize) {
        self.each(|from, to| (from, to) == (sidecar, server), Link::cut);
    }

    /// The connections between these end after so many more bytes of commands (0) or of replies (1).
    pub fn cut_after(&self, sidecar: usize, server: usize, direction: usize, bytes: usize) {
        let is = |from, to| (from, to) == (sidecar, server);
        self.each(is, |link| lock(&link.directions[direction]).cut_after = Some(bytes));
    }

    /// No connection is cut later.
    pub fn cut_nothing_later(&self) {
        self.each(|_, _| true, |link| link.directions.iter().for_each(|of| lock(of).cut_after = None));
    }

    /// The connections between these lose what the sidecar sends. They are never used again once they have been cut.
    pub fn swallow(&self, sidecar: usize, server: usize) {
        self.each(
            |from, to| (from, to) == (sidecar, server),
            |link| lock(&link.directions[0]).swallows = true,
        );
    }
}

/// The network, for the sidecars of a run.
pub struct Shared(pub Arc<Net>);

impl Network for Shared {
    fn connect(&self, host: &str, port: u16) -> Pending<io::Result<Box<dyn Duplex>>> {
        let mut parts = host.split('.').skip(1).step_by(2).map(|part| part.parse::<usize>());
        let (Some(Ok(sidecar)), Some(Ok(server)), 11211) = (parts.next(), parts.next(), port) else {
            panic!("no server has the address {host}:{port}");
        };
        let net = Arc::clone(&self.0);
        Box::pin(async move {
            let latency = LATENCY.mul_f64(lock(&net.random).unit());
            sleep(latency).await;
            let servers = lock(&net.servers);
            let reachable = &servers[server];
            if !reachable.up {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs, link) = net.pair(format!("s{sidecar}-m{server}"), false);
            if reachable.hung {
                link.directions.iter().for_each(|direction| lock(direction).held = true);
            }
            reachable.accepts.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            lock(&net.connected).push(Connected { sidecar, server, link });
            Ok(Box::new(ours) as Box<dyn Duplex>)
        })
    }

    fn accept(&self, listener: SocketAddr) -> Pending<io::Result<Accepted>> {
        let _ = self.0.listener(listener);
        let receiver = lock(&self.0.accepting).get(&listener).cloned();
        Box::pin(async move {
            let receiver = receiver.ok_or(io::ErrorKind::NotFound)?;
            let next = receiver.lock().await.recv().await;
            next.ok_or_else(|| io::ErrorKind::NotConnected.into())
        })
    }
}
