//! The clients: one thread, `load.connections` connections, a closed loop.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::histogram::Histogram;
use crate::loads::{Expiry, Load};
use crate::socket::{Address, Socket, Watched};
use crate::wire::{Items, Progress, Request};

/// The longest time without a reply before the run fails.
const STALLED: Duration = Duration::from_secs(10);
/// The longest interval between two checks of the clock and of Ctrl-C.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Free space in the buffer for a read, in bytes.
const READ_ROOM: usize = 16 * 1024;
/// What the clients send, and where to.
pub(crate) struct Plan<'a> {
    pub(crate) load: &'a Load,
    pub(crate) items: &'a Items,
    /// Client i connects to address i modulo their number.
    pub(crate) addresses: &'a [Address],
    /// The warm-up, which is not measured.
    pub(crate) warm: Extent,
    /// The measured part.
    pub(crate) measured: Extent,
    /// Set by Ctrl-C.
    pub(crate) stop: &'a AtomicBool,
    pub(crate) seed: u64,
}

/// The length of a part of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent {
    Time(Duration),
    /// Until at least this many replies have arrived.
    Replies(u64),
}

impl Extent {
    fn is_over(self, elapsed: Duration, replies_so_far: u64) -> bool {
        match self {
            Extent::Time(time) => elapsed >= time,
            Extent::Replies(replies) => replies_so_far >= replies,
        }
    }
}

/// The results of the measured part.
pub(crate) struct Results {
    /// Requests with replies, without the sets that end a rebuild.
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    /// From a request to its reply, or to the end of the rebuild that it caused.
    pub(crate) times: Histogram,
    /// Missing keys that should not have expired.
    pub(crate) missing: u64,
    /// Rebuilds begun.
    pub(crate) rebuilds: u64,
    /// The maximum number of concurrent rebuilds of one key.
    pub(crate) concurrent_rebuilds: u32,
    /// Keys read in the whole run, including the parts that are not measured.
    pub(crate) reads: u64,
}

/// Stores every item, through one connection to each address.
pub(crate) fn fill(items: &Items, addresses: &[Address]) -> Result<(), String> {
    addresses.iter().try_for_each(|address| {
        fill_one(items, address)
            .map_err(|error| format!("filling {} through {address}: {error}", items.prefix()))
    })
}

fn fill_one(items: &Items, address: &Address) -> Result<(), String> {
    let mut socket = address.connect().map_err(|error| error.to_string())?;
    let (mut out, mut sent) = (Vec::new(), 0);
    for i in 0..items.count() {
        items.write_set(i, &mut out);
        sent += 1;
        if out.len() >= 64 * 1024 || i + 1 == items.count() {
            socket.write_all(&out).map_err(|error| error.to_string())?;
            let mut replies = vec![0; sent * 8];
            socket.read_exact(&mut replies).map_err(|error| error.to_string())?;
            if replies != b"STORED\r\n".repeat(sent) {
                return Err(format!(
                    "not all was stored: {:?}",
                    String::from_utf8_lossy(&replies[..replies.len().min(80)])
                ));
            }
            (out, sent) = (Vec::new(), 0);
        }
    }
    Ok(())
}

/// Runs the load. Calls `edge` at the start and at the end of the measured part.
pub(crate) fn drive(
    plan: &Plan<'_>,
    mut edge: impl FnMut() -> Result<(), String>,
) -> Result<Results, String> {
    let mut clients = Clients::new(plan)?;
    let mut events = Events::with_capacity(1024);
    let begun = Instant::now();
    let (mut counting, mut replies_so_far, mut last_reply_at) = (None, 0, begun);
    for i in 0..clients.all.len() {
        clients.send_requests(i)?;
    }
    loop {
        let wait = clients
            .first_built()
            .map_or(CHECK_INTERVAL, |at| at.saturating_duration_since(Instant::now()).min(CHECK_INTERVAL));
        match clients.poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other.map_err(|error| error.to_string())?,
        }
        for event in &events {
            clients.handle_event(event.token().0)?;
        }
        clients.end_rebuilds()?;
        if plan.stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        let now = Instant::now();
        if clients.replies_so_far != replies_so_far || !clients.rebuilding.is_empty() {
            (replies_so_far, last_reply_at) = (clients.replies_so_far, now);
        } else if now - last_reply_at > STALLED {
            return Err(format!("no reply for {STALLED:?}"));
        }
        match counting {
            None if plan.warm.is_over(now - begun, clients.replies_so_far) => {
                clients.results = Results::none();
                edge()?;
                counting = Some((Instant::now(), clients.replies_so_far));
            }
            // Not before the first reply: a round without replies has no result.
            Some((since, before))
                if !clients.stopping
                    && plan.measured.is_over(now - since, clients.replies_so_far - before)
                    && clients.results.requests > 0 =>
            {
                edge()?;
                clients.results.elapsed = now - since;
                clients.stop();
            }
            _ => {}
        }
        if clients.stopping && clients.all.iter().all(|client| client.waiting.is_empty()) {
            clients.results.reads = clients.reads;
            return Ok(clients.results);
        }
    }
}

struct Clients<'a> {
    load: &'a Load,
    items: &'a Items,
    poll: Poll,
    all: Vec<Client>,
    random: fastrand::Rng,
    /// The cumulative share of the keys, if values expire.
    zipf: Vec<f64>,
    /// Rebuilds in progress: when each ends, its client and its key, in the order in which they end.
    rebuilding: VecDeque<(Instant, usize, u32)>,
    /// The number of concurrent rebuilds, by key.
    rebuilds_of: Vec<u32>,
    /// Requests to reuse.
    free_requests: Vec<Request>,
    results: Results,
    replies_so_far: u64,
    /// Keys of the gets sent.
    reads: u64,
    /// No further requests are sent.
    stopping: bool,
}

struct Client {
    socket: Watched,
    out: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
    /// Requests without a reply, with the start of their measured time.
    waiting: VecDeque<(Instant, Request)>,
}

impl Results {
    fn none() -> Results {
        let elapsed = Duration::ZERO;
        Results {
            requests: 0,
            elapsed,
            times: Histogram::new(),
            missing: 0,
            rebuilds: 0,
            concurrent_rebuilds: 0,
            reads: 0,
        }
    }
}

impl<'a> Clients<'a> {
    fn new(plan: &Plan<'a>) -> Result<Clients<'a>, String> {
        let poll = Poll::new().map_err(|error| error.to_string())?;
        let mut clients = Vec::with_capacity(plan.load.connections);
        for i in 0..plan.load.connections {
            let address = &plan.addresses[i % plan.addresses.len()];
            let mut socket =
                address.connect().and_then(Socket::watched).map_err(|error| format!("{address}: {error}"))?;
            socket.register(poll.registry(), Token(i)).map_err(|error| error.to_string())?;
            let (out, input, waiting) = (Vec::new(), Vec::new(), VecDeque::new());
            clients.push(Client { socket, out, input, filled: 0, waiting });
        }
        let count = plan.items.count();
        Ok(Clients {
            load: plan.load,
            items: plan.items,
            poll,
            all: clients,
            random: fastrand::Rng::with_seed(plan.seed),
            zipf: if plan.load.expiry.is_some() { zipf(count) } else { Vec::new() },
            rebuilding: VecDeque::new(),
            rebuilds_of: vec![0; count as usize],
            free_requests: Vec::new(),
            results: Results::none(),
            replies_so_far: 0,
            reads: 0,
            stopping: false,
        })
    }

    /// Sends requests until `load.depth` are outstanding.
    fn send_requests(&mut self, i: usize) -> Result<(), String> {
        let now = Instant::now();
        while !self.stopping && self.all[i].waiting.len() < self.load.depth {
            let mut request = self.free_requests.pop().unwrap_or_default();
            self.draw(&mut request);
            self.reads += if request.set { 0 } else { request.keys.len() as u64 };
            let client = &mut self.all[i];
            self.items.write(&request, &mut client.out);
            client.waiting.push_back((now, request));
        }
        self.send(i)
    }

    fn draw(&mut self, request: &mut Request) {
        let count = self.items.count();
        request.reset(self.load.sets > 0 && self.random.u32(..100) < self.load.sets);
        if !self.zipf.is_empty() {
            let share = self.random.f64();
            request.keys.push(self.zipf.partition_point(|upto| *upto < share).min(count as usize - 1) as u32);
            return;
        }
        let keys = if request.set { 1 } else { self.load.keys_per_get as u32 };
        // Their number is a prime, so no step repeats a key.
        let (first, step) = (self.random.u32(..count), self.random.u32(1..count.max(2)));
        request.keys.extend(
            (0..keys)
                .map(|i| ((u64::from(first) + u64::from(step) * u64::from(i)) % u64::from(count)) as u32),
        );
    }

    fn send(&mut self, i: usize) -> Result<(), String> {
        let client = &mut self.all[i];
        let mut sent = 0;
        while sent < client.out.len() {
            match client.socket.write(&client.out[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("writing: {error}")),
            }
        }
        client.out.drain(..sent);
        Ok(())
    }

    /// Reads the replies for a client and sends its next requests.
    fn handle_event(&mut self, i: usize) -> Result<(), String> {
        if !self.all[i].out.is_empty() {
            self.send(i)?;
        }
        let mut done = false;
        loop {
            let client = &mut self.all[i];
            if client.input.len() - client.filled < READ_ROOM {
                client.input.resize(client.input.len() * 2 + READ_ROOM, 0);
            }
            let room = client.input.len() - client.filled;
            let read = match client.socket.read(&mut client.input[client.filled..]) {
                Ok(0) => return Err(format!("{} closed the connection", self.items.prefix())),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("reading: {error}")),
            };
            client.filled += read;
            done |= self.read_replies(i)?;
            // Less than requested: the socket is empty, and the poll will report more.
            if read < room {
                break;
            }
        }
        if done { self.send_requests(i) } else { Ok(()) }
    }

    /// Processes the complete replies. Returns whether the client may send again.
    fn read_replies(&mut self, i: usize) -> Result<bool, String> {
        let (mut at, mut done) = (0, false);
        let client = &mut self.all[i];
        while let Some((since, request)) = client.waiting.front_mut() {
            let (used, progress) = self.items.read(&client.input[at..client.filled], request)?;
            at += used;
            let Progress::Done { missing } = progress else { break };
            let now = Instant::now();
            let since = *since;
            self.replies_so_far += 1;
            if let (Some(Expiry { rebuild, .. }), true) = (self.load.expiry, missing > 0 && !self.stopping) {
                // The request stays first: it is complete when the value has been rebuilt.
                let key = request.keys[0];
                self.rebuilding.push_back((now + rebuild, i, key));
                self.rebuilds_of[key as usize] += 1;
                self.results.rebuilds += 1;
                self.results.concurrent_rebuilds =
                    self.results.concurrent_rebuilds.max(self.rebuilds_of[key as usize]);
                break;
            }
            match (self.load.expiry, request.set) {
                (Some(_), true) => self.rebuilds_of[request.keys[0] as usize] -= 1,
                (Some(_), false) => {}
                (None, _) => self.results.missing += missing as u64,
            }
            if !self.stopping {
                self.results.requests += 1;
                self.results.times.add((now - since).as_nanos() as u64);
            }
            self.free_requests.extend(client.waiting.pop_front().map(|(_, request)| request));
            done = true;
        }
        if at > 0 {
            client.input.copy_within(at..client.filled, 0);
            client.filled -= at;
        }
        if client.waiting.is_empty() && client.filled > 0 {
            return Err(format!("{}: a reply without a request", self.items.prefix()));
        }
        Ok(done)
    }

    fn first_built(&self) -> Option<Instant> {
        self.rebuilding.front().map(|(at, ..)| *at)
    }

    /// Stores the values whose rebuild has ended by now.
    fn end_rebuilds(&mut self) -> Result<(), String> {
        while self.first_built().is_some_and(|at| at <= Instant::now()) {
            let Some((_, i, key)) = self.rebuilding.pop_front() else { break };
            let client = &mut self.all[i];
            let Some((_, request)) = client.waiting.front_mut() else { continue };
            request.reset(true);
            request.keys.push(key);
            self.items.write(request, &mut client.out);
            self.send(i)?;
        }
        Ok(())
    }

    /// Ends sending and abandons rebuilds.
    fn stop(&mut self) {
        self.stopping = true;
        for (_, i, _) in self.rebuilding.drain(..) {
            self.all[i].waiting.clear();
        }
    }
}

/// The cumulative probability of each key, if the n-th is 1/n as likely as the first.
fn zipf(count: u32) -> Vec<f64> {
    let total: f64 = (1..=count).map(|n| 1.0 / f64::from(n)).sum();
    let mut upto = 0.0;
    (1..=count)
        .map(|n| {
            upto += 1.0 / f64::from(n) / total;
            upto
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::BufRead;
    use std::net::TcpListener;

    use super::*;
    use crate::loads::LOADS;

    /// A server that sends the same reply to every line.
    pub(crate) fn canned_server(reply: Vec<u8>) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, reply) = (stream.unwrap(), reply.clone());
                std::thread::spawn(move || {
                    let lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
                    lines.take_while(Result::is_ok).all(|_| stream.write_all(&reply).is_ok())
                });
            }
        });
        address
    }

    fn run(reply: &[u8]) -> Result<Results, String> {
        run_for(reply, Extent::Time(Duration::ZERO), Extent::Time(Duration::from_millis(20)))
    }

    fn run_for(reply: &[u8], warm: Extent, measured: Extent) -> Result<Results, String> {
        let load = Load { connections: 2, items: 2, ..LOADS[0] };
        let plan = Plan {
            load: &load,
            items: &Items::new("test", 2, load.value, 60),
            addresses: &[canned_server(reply.to_vec())],
            warm,
            measured,
            stop: &AtomicBool::new(false),
            seed: 1,
        };
        drive(&plan, || Ok(()))
    }

    #[test]
    fn misses_are_counted_and_errors_end_the_run() {
        let results = run(b"END\r\n").unwrap();
        assert!(
            results.requests > 0 && results.missing >= results.requests,
            "{} of {}",
            results.missing,
            results.requests
        );
        assert!(results.reads >= results.missing, "{} of {}", results.missing, results.reads);
        assert!(run(b"SERVER_ERROR busy\r\n").err().unwrap().contains("busy"));
        assert!(run(b"END\r\nEND\r\n").err().unwrap().contains("without a request"));
    }

    #[test]
    fn a_round_of_a_number_of_replies_ends_after_them() {
        let results = run_for(b"END\r\n", Extent::Replies(30), Extent::Replies(200)).unwrap();
        // Two clients with one request each: at most one more outstanding at either end.
        assert!((200..=202).contains(&results.requests), "{}", results.requests);
        assert!((230..=236).contains(&results.reads), "{}", results.reads);
    }

    #[test]
    fn the_first_of_zipfs_keys_is_the_hottest_and_all_together_are_everything() {
        let upto = zipf(31);
        assert!(upto[0] > 2.0 * (upto[2] - upto[1]) && (upto[30] - 1.0).abs() < 1e-9);
    }
}
