//! Which connections of one client process wait for builds, so that never all of them do while the process builds a value itself.
//!
//! A bounded connection pool has fewer connections than threads. Whoever has won a key needs a connection of the pool for its
//! `set`. If every connection waited for a build, the builder would wait for a connection, and nobody would go on before a
//! timeout. So while one of its leases is open, the longest wait of a process ends as soon as all of its connections wait.
//!
//! Every operation takes the same time however many connections there are.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::stale_read::PooledStaleReads;
use crate::trace::Peer;

/// What identifies a client process at one listener: its process id on a Unix socket, its address on TCP, where all processes of
/// one address count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ProcessKey {
    Unix(Option<u32>),
    Tcp(IpAddr),
    Sidecar,
}

impl ProcessKey {
    fn of(peer: Peer) -> ProcessKey {
        match peer {
            Peer::Tcp(address) => ProcessKey::Tcp(address.ip()),
            Peer::Unix(process) => ProcessKey::Unix(process),
            Peer::Sidecar => ProcessKey::Sidecar,
        }
    }
}

/// The client processes of one listener.
#[derive(Debug)]
pub(super) struct Processes {
    known: Mutex<Known>,
    fewest: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Known {
    processes: HashMap<ProcessKey, Weak<Process>>,
    /// With this many, those without a connection are removed.
    tidy_at: usize,
}

/// The fewest processes of a listener among which those that have gone are looked for.
const TIDY_AT: usize = 64;

impl Processes {
    /// `fewest`: a process with fewer connections needs none of those that wait.
    pub(super) fn new(fewest: usize) -> Processes {
        Processes { known: Mutex::default(), fewest: Arc::new(AtomicUsize::new(fewest)) }
    }

    /// From now on this many.
    pub(super) fn set_fewest(&self, fewest: usize) {
        self.fewest.store(fewest, Relaxed);
    }

    /// A connection of the client `peer` has read a key that is not fresh.
    pub(super) fn join(&self, connection: u64, peer: Peer) -> Membership {
        let key = ProcessKey::of(peer);
        let mut known = lock(&self.known);
        let process = match known.processes.get(&key).and_then(Weak::upgrade) {
            Some(process) => process,
            None => {
                if known.processes.len() >= known.tidy_at.max(TIDY_AT) {
                    known.processes.retain(|_, process| process.strong_count() > 0);
                    known.tidy_at = 2 * known.processes.len();
                }
                let (state, stale_reads) = Default::default();
                let process = Arc::new(Process { state, fewest: Arc::clone(&self.fewest), stale_reads });
                known.processes.insert(key, Arc::downgrade(&process));
                process
            }
        };
        drop(known);
        lock(&process.state).connections += 1;
        let (has_left, has_hung_up) = Default::default();
        Membership { process, connection, has_left, has_hung_up }
    }
}

/// One client process. Its connections may be served by different workers.
#[derive(Debug)]
struct Process {
    state: Mutex<State>,
    fewest: Arc<AtomicUsize>,
    stale_reads: PooledStaleReads,
}

#[derive(Debug, Default)]
struct State {
    /// The connections that have read a key that was not fresh.
    connections: usize,
    next: u64,
    /// The waits, the longest first.
    waits: BTreeMap<u64, Waiting>,
    /// The waits of each connection, the longest first. One request may wait for several keys.
    waiting: HashMap<u64, Vec<u64>>,
}

#[derive(Debug)]
struct Waiting {
    connection: u64,
    since: Instant,
    end: oneshot::Sender<()>,
}

impl State {
    fn all_wait(&self, fewest: usize) -> bool {
        self.connections >= fewest && self.waiting.len() >= self.connections
    }

    /// Removes all waits of the connection that has waited longest, and returns what ends them.
    fn take_longest(&mut self) -> Vec<oneshot::Sender<()>> {
        let Some(Waiting { connection, .. }) = self.waits.values().next() else { return Vec::new() };
        let waits = self.waiting.remove(connection).unwrap_or_default();
        waits.iter().filter_map(|wait| self.waits.remove(wait)).map(|wait| wait.end).collect()
    }
}

/// One connection among those of its process.
#[derive(Debug)]
pub(crate) struct Membership {
    process: Arc<Process>,
    connection: u64,
    has_left: Cell<bool>,
    /// Its client has closed it while it waited.
    has_hung_up: Cell<bool>,
}

impl Membership {
    /// The connection begins to wait. If all connections of its process wait then, and `builds` finds that it builds a
    /// value, the longest wait ends:
    /// it may be this one.
    pub(crate) fn begin_wait(&self, builds: impl FnOnce() -> bool) -> ProcessWait {
        let (end, ended) = oneshot::channel();
        let wait = {
            let mut state = lock(&self.process.state);
            state.next += 1;
            let wait = state.next;
            let waiting = Waiting { connection: self.connection, since: Instant::now(), end };
            state.waits.insert(wait, waiting);
            state.waiting.entry(self.connection).or_default().push(wait);
            wait
        };
        self.process.end_longest(builds);
        ProcessWait { process: Arc::clone(&self.process), wait, ended }
    }

    /// The connection is closed. If all others wait then, and the process builds a value, the longest wait ends.
    pub(crate) fn leave(&self, builds: impl FnOnce() -> bool) {
        self.forget();
        self.process.end_longest(builds);
    }

    /// Its client has closed it. Returns for how long it has waited, if it waits.
    pub(super) fn hang_up(&self) -> Option<Duration> {
        let state = lock(&self.process.state);
        let longest = state.waiting.get(&self.connection)?.first()?;
        let waited = state.waits.get(longest)?.since.elapsed();
        self.has_hung_up.set(true);
        Some(waited)
    }

    /// Whether its client has closed it while it waited.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.has_hung_up.get()
    }

    /// What the connections of its process were served as stale, if they are a pool.
    pub(super) fn stale_reads(&self) -> &PooledStaleReads {
        &self.process.stale_reads
    }

    fn forget(&self) {
        if !self.has_left.replace(true) {
            lock(&self.process.state).connections -= 1;
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Process {
    fn end_longest(&self, builds: impl FnOnce() -> bool) {
        let fewest = self.fewest.load(Relaxed);
        // The leases are looked up without this lock.
        if !lock(&self.state).all_wait(fewest) || !builds() {
            return;
        }
        let ended = {
            let mut state = lock(&self.state);
            if state.all_wait(fewest) { state.take_longest() } else { Vec::new() }
        };
        for end in ended {
            // The receiver is gone if the wait has ended otherwise.
            let _ = end.send(());
        }
    }
}

/// A wait of one connection.
pub(crate) struct ProcessWait {
    process: Arc<Process>,
    wait: u64,
    ended: oneshot::Receiver<()>,
}

impl ProcessWait {
    /// Ready once it must end, because a connection is needed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.ended).poll(cx).map(|_| ())
    }
}

impl fmt::Debug for ProcessWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessWait").field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl Drop for ProcessWait {
    fn drop(&mut self) {
        let mut state = lock(&self.process.state);
        let Some(Waiting { connection, .. }) = state.waits.remove(&self.wait) else { return };
        if let Some(waits) = state.waiting.get_mut(&connection) {
            waits.retain(|wait| *wait != self.wait);
            if waits.is_empty() {
                state.waiting.remove(&connection);
            }
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic leaves a change half done.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const PEER: Peer = Peer::Unix(Some(7));

    fn builds(builds: bool) -> impl FnOnce() -> bool {
        move || builds
    }

    fn has_ended(wait: &mut ProcessWait) -> bool {
        wait.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_longest_wait_ends_once_all_connections_of_a_process_that_builds_wait() {
        let processes = Processes::new(2);
        let [first, second, third] = [1, 2, 3].map(|connection| processes.join(connection, PEER));
        let other = processes.join(4, Peer::Unix(Some(8)));
        let mut waits = [first.begin_wait(builds(true)), second.begin_wait(builds(true))];
        assert!(waits.iter_mut().all(|wait| !has_ended(wait)), "the third connection is free");
        let mut last = third.begin_wait(builds(true));
        assert!(has_ended(&mut waits[0]) && !has_ended(&mut waits[1]) && !has_ended(&mut last));
        // The first is free now.
        let [_, second_wait] = waits;
        drop(last);
        let mut last = third.begin_wait(builds(true));
        assert!(!has_ended(&mut last));
        drop((second_wait, other));
    }

    #[test]
    fn waits_go_on_while_the_process_builds_nothing_or_has_one_connection() {
        let processes = Processes::new(2);
        let only = processes.join(1, PEER);
        let mut alone = only.begin_wait(builds(true));
        assert!(!has_ended(&mut alone));
        let second = processes.join(2, PEER);
        let mut wait = second.begin_wait(builds(false));
        assert!(!has_ended(&mut alone) && !has_ended(&mut wait));
        assert_eq!(lock(&only.process.state).waits.len(), 2);
        drop((alone, wait));
        assert!(lock(&only.process.state).waiting.is_empty());
    }

    #[test]
    fn all_waits_of_one_request_end_together() {
        let processes = Processes::new(2);
        let [first, second] = [1, 2].map(|connection| processes.join(connection, PEER));
        let mut of_first = [(); 3].map(|()| first.begin_wait(builds(true)));
        let mut of_second = second.begin_wait(builds(true));
        assert!(of_first.iter_mut().all(has_ended) && !has_ended(&mut of_second));
    }

    #[test]
    fn the_longest_wait_ends_when_the_last_free_connection_is_closed() {
        let processes = Processes::new(2);
        let [first, second, third] = [1, 2, 3].map(|connection| processes.join(connection, PEER));
        let mut waits = [second.begin_wait(builds(true)), third.begin_wait(builds(true))];
        first.leave(builds(true));
        drop(first);
        assert!(has_ended(&mut waits[0]) && !has_ended(&mut waits[1]));
    }

    #[test]
    fn processes_without_a_connection_are_forgotten() {
        let processes = Processes::new(2);
        for process in 0..10 * TIDY_AT as u32 {
            processes.join(1, Peer::Unix(Some(process)));
        }
        assert!(lock(&processes.known).processes.len() <= 2 * TIDY_AT);
    }
}
