//! The clients: one thread, as many connections as the load says, a closed loop.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::histogram::Histogram;
use crate::loads::{Expiry, Load};
use crate::socket::{Address, Socket, Watched};
use crate::wire::{Items, Progress, Request};

/// Nothing answered for so long is a failure.
const STALLED: Duration = Duration::from_secs(10);
/// How often, at least, the clock and Ctrl-C are looked at.
const TURN: Duration = Duration::from_millis(50);
/// Room made for a read.
const ROOM: usize = 16 * 1024;
/// What the clients do, and where.
pub(crate) struct Plan<'a> {
    pub(crate) load: &'a Load,
    pub(crate) items: &'a Items,
    /// Client i speaks to address i modulo their number.
    pub(crate) addresses: &'a [Address],
    /// What is asked before anything counts.
    pub(crate) warm: Extent,
    /// What counts.
    pub(crate) measured: Extent,
    /// Set by Ctrl-C.
    pub(crate) stop: &'a AtomicBool,
    pub(crate) seed: u64,
}

/// How long a part of a round is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent {
    Time(Duration),
    /// Until so many requests have been answered in it, or a few more.
    Answers(u64),
}

impl Extent {
    fn is_over(self, elapsed: Duration, answered: u64) -> bool {
        match self {
            Extent::Time(time) => elapsed >= time,
            Extent::Answers(answers) => answered >= answers,
        }
    }
}

/// What they saw in the time that counts.
pub(crate) struct Seen {
    /// Answered, but for the sets that end a rebuild.
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    /// From a request to its answer, or to the end of the rebuild that it took.
    pub(crate) times: Histogram,
    /// Keys that should have been there and were not.
    pub(crate) missing: u64,
    /// Rebuilds begun.
    pub(crate) rebuilds: u64,
    /// The most rebuilds of one key that were going on at one moment.
    pub(crate) at_once: u32,
    /// Keys read from the first request to the last answer, before and after the time that counts too.
    pub(crate) reads: u64,
}

/// Stores every item, by one connection to each address given.
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
            let mut answers = vec![0; sent * 8];
            socket.read_exact(&mut answers).map_err(|error| error.to_string())?;
            if answers != b"STORED\r\n".repeat(sent) {
                return Err(format!(
                    "not all was stored: {:?}",
                    String::from_utf8_lossy(&answers[..answers.len().min(80)])
                ));
            }
            (out, sent) = (Vec::new(), 0);
        }
    }
    Ok(())
}

/// Runs the load. `edge` is called as the time that counts begins, and as it ends.
pub(crate) fn drive(plan: &Plan<'_>, mut edge: impl FnMut() -> Result<(), String>) -> Result<Seen, String> {
    let mut crowd = Crowd::new(plan)?;
    let mut events = Events::with_capacity(1024);
    let begun = Instant::now();
    let (mut counting, mut answered, mut answered_at) = (None, 0, begun);
    for i in 0..crowd.clients.len() {
        crowd.ask(i)?;
    }
    loop {
        let wait =
            crowd.first_built().map_or(TURN, |at| at.saturating_duration_since(Instant::now()).min(TURN));
        match crowd.poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other.map_err(|error| error.to_string())?,
        }
        for event in &events {
            crowd.serve(event.token().0)?;
        }
        crowd.end_rebuilds()?;
        if plan.stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        let now = Instant::now();
        if crowd.answered != answered || !crowd.building.is_empty() {
            (answered, answered_at) = (crowd.answered, now);
        } else if now - answered_at > STALLED {
            return Err(format!("no answer for {STALLED:?}"));
        }
        match counting {
            None if plan.warm.is_over(now - begun, crowd.answered) => {
                crowd.seen = Seen::nothing();
                edge()?;
                counting = Some((Instant::now(), crowd.answered));
            }
            // Not before something has been answered: a round of nothing says nothing.
            Some((since, before))
                if !crowd.leaving
                    && plan.measured.is_over(now - since, crowd.answered - before)
                    && crowd.seen.requests > 0 =>
            {
                edge()?;
                crowd.seen.elapsed = now - since;
                crowd.leave();
            }
            _ => {}
        }
        if crowd.leaving && crowd.clients.iter().all(|client| client.waiting.is_empty()) {
            crowd.seen.reads = crowd.reads;
            return Ok(crowd.seen);
        }
    }
}

struct Crowd<'a> {
    load: &'a Load,
    items: &'a Items,
    poll: Poll,
    clients: Vec<Client>,
    random: fastrand::Rng,
    /// Shares of the keys up to each, under expiry.
    zipf: Vec<f64>,
    /// Rebuilds going on: when each ends, whose it is, of which key. In the order they end.
    building: VecDeque<(Instant, usize, u32)>,
    /// By key.
    builders: Vec<u32>,
    /// Requests whose memory is free.
    spare: Vec<Request>,
    seen: Seen,
    answered: u64,
    /// Keys of the gets sent.
    reads: u64,
    /// Nobody asks any more.
    leaving: bool,
}

struct Client {
    socket: Watched,
    out: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
    /// Asked and not answered, with the moment that counts as its begin.
    waiting: VecDeque<(Instant, Request)>,
}

impl Seen {
    fn nothing() -> Seen {
        let elapsed = Duration::ZERO;
        Seen { requests: 0, elapsed, times: Histogram::new(), missing: 0, rebuilds: 0, at_once: 0, reads: 0 }
    }
}

impl<'a> Crowd<'a> {
    fn new(plan: &Plan<'a>) -> Result<Crowd<'a>, String> {
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
        Ok(Crowd {
            load: plan.load,
            items: plan.items,
            poll,
            clients,
            random: fastrand::Rng::with_seed(plan.seed),
            zipf: if plan.load.expiry.is_some() { zipf(count) } else { Vec::new() },
            building: VecDeque::new(),
            builders: vec![0; count as usize],
            spare: Vec::new(),
            seen: Seen::nothing(),
            answered: 0,
            reads: 0,
            leaving: false,
        })
    }

    /// Lets a client have as many requests on their way as it may.
    fn ask(&mut self, i: usize) -> Result<(), String> {
        let now = Instant::now();
        while !self.leaving && self.clients[i].waiting.len() < self.load.depth {
            let mut request = self.spare.pop().unwrap_or_default();
            self.draw(&mut request);
            self.reads += if request.set { 0 } else { request.keys.len() as u64 };
            let client = &mut self.clients[i];
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
        // Their number is a prime: no step brings the same key twice.
        let (first, step) = (self.random.u32(..count), self.random.u32(1..count.max(2)));
        request.keys.extend(
            (0..keys)
                .map(|i| ((u64::from(first) + u64::from(step) * u64::from(i)) % u64::from(count)) as u32),
        );
    }

    fn send(&mut self, i: usize) -> Result<(), String> {
        let client = &mut self.clients[i];
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

    /// Takes what has come for a client, and lets it ask anew.
    fn serve(&mut self, i: usize) -> Result<(), String> {
        if !self.clients[i].out.is_empty() {
            self.send(i)?;
        }
        let mut done = false;
        loop {
            let client = &mut self.clients[i];
            if client.input.len() - client.filled < ROOM {
                client.input.resize(client.input.len() * 2 + ROOM, 0);
            }
            let room = client.input.len() - client.filled;
            let read = match client.socket.read(&mut client.input[client.filled..]) {
                Ok(0) => return Err(format!("{} was hung up on", self.items.prefix())),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("reading: {error}")),
            };
            client.filled += read;
            done |= self.take(i)?;
            // Less than there was room for: the socket is empty, and the poll will tell of more.
            if read < room {
                break;
            }
        }
        if done { self.ask(i) } else { Ok(()) }
    }

    /// Reads the answers that are whole. Whether the client may ask again.
    fn take(&mut self, i: usize) -> Result<bool, String> {
        let (mut at, mut done) = (0, false);
        let client = &mut self.clients[i];
        while let Some((since, request)) = client.waiting.front_mut() {
            let (used, progress) = self.items.read(&client.input[at..client.filled], request)?;
            at += used;
            let Progress::Done { missing } = progress else { break };
            let now = Instant::now();
            let since = *since;
            self.answered += 1;
            if let (Some(Expiry { rebuild, .. }), true) = (self.load.expiry, missing > 0 && !self.leaving) {
                // It stays in front: the answer is the value, once it has been built.
                let key = request.keys[0];
                self.building.push_back((now + rebuild, i, key));
                self.builders[key as usize] += 1;
                self.seen.rebuilds += 1;
                self.seen.at_once = self.seen.at_once.max(self.builders[key as usize]);
                break;
            }
            match (self.load.expiry, request.set) {
                (Some(_), true) => self.builders[request.keys[0] as usize] -= 1,
                (Some(_), false) => {}
                (None, _) => self.seen.missing += missing as u64,
            }
            if !self.leaving {
                self.seen.requests += 1;
                self.seen.times.add((now - since).as_nanos() as u64);
            }
            self.spare.extend(client.waiting.pop_front().map(|(_, request)| request));
            done = true;
        }
        if at > 0 {
            client.input.copy_within(at..client.filled, 0);
            client.filled -= at;
        }
        if client.waiting.is_empty() && client.filled > 0 {
            return Err(format!("{}: an answer that nobody asked for", self.items.prefix()));
        }
        Ok(done)
    }

    fn first_built(&self) -> Option<Instant> {
        self.building.front().map(|(at, ..)| *at)
    }

    /// Stores what has been built by now.
    fn end_rebuilds(&mut self) -> Result<(), String> {
        while self.first_built().is_some_and(|at| at <= Instant::now()) {
            let Some((_, i, key)) = self.building.pop_front() else { break };
            let client = &mut self.clients[i];
            let Some((_, request)) = client.waiting.front_mut() else { continue };
            request.reset(true);
            request.keys.push(key);
            self.items.write(request, &mut client.out);
            self.send(i)?;
        }
        Ok(())
    }

    /// From here on nobody asks; rebuilds are given up.
    fn leave(&mut self) {
        self.leaving = true;
        for (_, i, _) in self.building.drain(..) {
            self.clients[i].waiting.clear();
        }
    }
}

/// How likely each key or one before it is asked for, if the n-th is 1/n as likely as the first.
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

    /// A server that says the same to every line.
    pub(crate) fn parrot(says: Vec<u8>) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, says) = (stream.unwrap(), says.clone());
                std::thread::spawn(move || {
                    let lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
                    lines.take_while(Result::is_ok).all(|_| stream.write_all(&says).is_ok())
                });
            }
        });
        address
    }

    fn run(says: &[u8]) -> Result<Seen, String> {
        run_for(says, Extent::Time(Duration::ZERO), Extent::Time(Duration::from_millis(20)))
    }

    fn run_for(says: &[u8], warm: Extent, measured: Extent) -> Result<Seen, String> {
        let load = Load { connections: 2, items: 2, ..LOADS[0] };
        let plan = Plan {
            load: &load,
            items: &Items::new("test", 2, load.value, 60),
            addresses: &[parrot(says.to_vec())],
            warm,
            measured,
            stop: &AtomicBool::new(false),
            seed: 1,
        };
        drive(&plan, || Ok(()))
    }

    #[test]
    fn misses_are_counted_and_errors_end_the_run() {
        let seen = run(b"END\r\n").unwrap();
        assert!(seen.requests > 0 && seen.missing >= seen.requests, "{} of {}", seen.missing, seen.requests);
        assert!(seen.reads >= seen.missing, "{} of {}", seen.missing, seen.reads);
        assert!(run(b"SERVER_ERROR busy\r\n").err().unwrap().contains("busy"));
        assert!(run(b"END\r\nEND\r\n").err().unwrap().contains("nobody asked for"));
    }

    #[test]
    fn a_round_of_so_many_answers_ends_after_them() {
        let seen = run_for(b"END\r\n", Extent::Answers(30), Extent::Answers(200)).unwrap();
        // Two clients with one request each: at most one more on its way at either end.
        assert!((200..=202).contains(&seen.requests), "{}", seen.requests);
        assert!((230..=236).contains(&seen.reads), "{}", seen.reads);
    }

    #[test]
    fn the_first_of_zipfs_keys_is_the_hottest_and_all_together_are_everything() {
        let upto = zipf(31);
        assert!(upto[0] > 2.0 * (upto[2] - upto[1]) && (upto[30] - 1.0).abs() < 1e-9);
    }
}
