//! The way of events from the workers to the watchers.
//!
//! ```text
//!  worker ──(filter, in the worker)──▶ a bounded channel for each watcher ──▶ admin thread
//! ```
//!
//! Each worker has a [`Tap`]. Nobody watches: the worker reads one flag of its own. Somebody does: it compares the event with each
//! filter, and copies what matches into the channel of that watcher and worker. If the channel is full, the event is dropped and
//! counted. No worker waits for a watcher or for another worker.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use super::event::{Event, Letters, Sighting};
use super::filter::Filter;
use crate::hot::HotKeys;
use crate::metrics::WorkerMetrics;
use crate::observed::Families;
use crate::random::Random;

/// The most watchers at a time. Further ones are refused.
pub const MAX_WATCHERS: usize = 8;
/// The most events that wait for one watcher, shared evenly by the workers. Further ones are dropped and counted.
pub const MAX_WAITING: usize = 4096;

/// What one worker shows. Shared with the admin thread, and with no other worker.
pub struct Tap {
    /// Whether there is a watcher. Aligned with nothing that another worker writes.
    watched: AtomicBool,
    watchers: Mutex<Vec<Watching>>,
    hot: Mutex<HotKeys>,
    families: Mutex<Families>,
}

/// A watcher, on the side of one worker.
struct Watching {
    number: u64,
    filter: Arc<Filter>,
    random: Random,
    events: mpsc::Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Tap {
    /// A tap without watchers, which costs an event one load.
    pub fn new() -> Tap {
        Tap {
            watched: AtomicBool::new(false),
            watchers: Mutex::default(),
            hot: Mutex::default(),
            families: Mutex::default(),
        }
    }

    /// Whether any client watches this worker.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Sends an event to each watcher whose filter it matches. `at_ms` is the Unix time in milliseconds, and `shown` the key as
    /// watchers may see it.
    pub fn send<'k>(
        &self,
        seen: &Sighting<'k>,
        at_ms: impl Fn() -> u64,
        shown: impl Fn(&'k [u8]) -> Box<[u8]>,
        metrics: &WorkerMetrics,
    ) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        let shown_once: OnceCell<Box<[u8]>> = OnceCell::new();
        let key = || shown_once.get_or_init(|| shown(seen.key));
        for watching in watchers.iter_mut().filter(|watching| watching.filter.matches(seen, key)) {
            if let Some((of, all)) = watching.filter.sample
                && watching.random.below(u64::from(all)) >= u64::from(of)
            {
                continue;
            }
            match watching.events.try_reserve() {
                Ok(room) => {
                    metrics.trace_event();
                    room.send(Event {
                        at_ms: at_ms(),
                        key: key().clone(),
                        rule: Arc::clone(seen.rule),
                        kind: seen.kind,
                        server: seen.server.map(Into::into),
                        pool: Arc::clone(seen.pool),
                        client: seen.client,
                        happened: seen.happened,
                        took: seen.took,
                        bytes: seen.bytes,
                        letters: Letters::of(seen.happened, seen.marks),
                    });
                }
                Err(mpsc::error::TrySendError::Full(())) => {
                    metrics.trace_event_dropped();
                    watching.dropped.fetch_add(1, Ordering::Relaxed);
                }
                // It has gone, and is about to be removed.
                Err(mpsc::error::TrySendError::Closed(())) => {}
            }
        }
    }

    /// Calls `update` with the hot keys, unless they are being read: then the sample is lost.
    pub fn count_hot(&self, update: impl FnOnce(&mut HotKeys)) {
        match self.hot.try_lock() {
            Ok(mut hot) => update(&mut hot),
            Err(TryLockError::Poisoned(poisoned)) => update(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// The families of observed keys. Only the admin thread takes them besides, to copy them.
    pub fn families(&self) -> MutexGuard<'_, Families> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hot keys of this worker.
    pub fn hot(&self) -> HotKeys {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for Tap {
    fn default() -> Tap {
        Tap::new()
    }
}

/// The taps of all workers, and who watches. Outlives each configuration.
pub struct Taps {
    taps: Vec<Arc<Tap>>,
    watchers: Arc<AtomicUsize>,
    next: AtomicU64,
}

impl Taps {
    /// One tap for each worker. The number of watchers is kept in `watchers`.
    pub fn new(workers: usize, watchers: Arc<AtomicUsize>) -> Arc<Taps> {
        let taps = (0..workers).map(|_| Arc::new(Tap::new())).collect();
        Arc::new(Taps { taps, watchers, next: AtomicU64::new(0) })
    }

    /// The tap of worker `at`; that of none if there is no such worker.
    pub fn worker(&self, at: usize) -> Arc<Tap> {
        self.taps.get(at).cloned().unwrap_or_default()
    }

    /// How many watchers there are.
    pub fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    /// Forgets the hot keys.
    pub fn clear_hot(&self) {
        self.taps.iter().for_each(|tap| tap.hot.lock().unwrap_or_else(PoisonError::into_inner).clear());
    }

    /// The families of observed keys, of all workers together.
    pub fn families(&self) -> Families {
        let mut all = Families::default();
        self.taps.iter().for_each(|tap| all.add(&tap.families()));
        all
    }

    /// The hot keys of each worker.
    pub fn hot(&self) -> Vec<HotKeys> {
        self.taps.iter().map(|tap| tap.hot()).collect()
    }

    /// Begins to watch, from the next event on. `None`: [`MAX_WATCHERS`] watch already.
    pub fn watch(self: &Arc<Self>, filter: Filter) -> Option<Watcher> {
        let add = |watchers| (watchers < MAX_WATCHERS).then_some(watchers + 1);
        self.watchers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (filter, dropped) = (Arc::new(filter), Arc::new(AtomicU64::new(0)));
        let room = (MAX_WAITING / self.taps.len().max(1)).max(1);
        let watch = |tap: &Arc<Tap>| {
            let (events, received) = mpsc::channel(room);
            let (filter, dropped, random) =
                (Arc::clone(&filter), Arc::clone(&dropped), Random::from_entropy());
            let mut watchers = tap.watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.push(Watching { number, filter, random, events, dropped });
            tap.watched.store(true, Ordering::Relaxed);
            received
        };
        let received = self.taps.iter().map(watch).collect();
        Some(Watcher { taps: Arc::clone(self), number, received, dropped, reported: 0 })
    }
}

/// What a watcher receives. It ends when this is dropped.
pub struct Watcher {
    taps: Arc<Taps>,
    number: u64,
    received: Vec<mpsc::Receiver<Event>>,
    dropped: Arc<AtomicU64>,
    reported: u64,
}

impl Watcher {
    /// The events that have arrived, at most `most` of each worker, in the order of their times. Pending if there is none.
    pub fn poll_events(&mut self, most: usize, cx: &mut Context<'_>) -> Poll<Vec<Event>> {
        let mut events = Vec::new();
        for worker in &mut self.received {
            // The channel is closed only with the process.
            let _ = worker.poll_recv_many(cx, &mut events, most);
        }
        if events.is_empty() {
            return Poll::Pending;
        }
        events.sort_by_key(|event| event.at_ms);
        Poll::Ready(events)
    }

    /// How many events have been dropped since this was called last.
    pub fn take_dropped(&mut self) -> u64 {
        let dropped = self.dropped.load(Ordering::Relaxed);
        dropped - std::mem::replace(&mut self.reported, dropped)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        for tap in &self.taps.taps {
            let mut watchers = tap.watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.retain(|watching| watching.number != self.number);
            tap.watched.store(!watchers.is_empty(), Ordering::Relaxed);
        }
        self.taps.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use super::*;
    use crate::metrics::{Command, Metrics, Outcome};
    use crate::trace::event::{Happened, Marks, Peer};

    struct Worker {
        tap: Arc<Tap>,
        metrics: Arc<WorkerMetrics>,
        rule: Arc<str>,
        pool: Arc<str>,
    }

    impl Worker {
        fn of(taps: &Taps, at: usize) -> Worker {
            let metrics = Metrics::new(Vec::new(), Vec::new(), 1).worker(0);
            Worker { tap: taps.worker(at), metrics, rule: "r".into(), pool: "main".into() }
        }

        fn hit(&self, key: &[u8], at_ms: u64) {
            self.hit_shown(key, at_ms, |key: &[u8]| key.into());
        }

        fn hit_shown(&self, key: &[u8], at_ms: u64, shown: impl Fn(&[u8]) -> Box<[u8]>) {
            let seen = Sighting {
                key,
                rule: &self.rule,
                kind: "guarded",
                server: Some("s"),
                pool: &self.pool,
                client: Peer::Sidecar,
                happened: Happened::Answered(Command::Get, Outcome::Hit),
                took: Duration::from_micros(7),
                bytes: 3,
                marks: Marks::default(),
            };
            self.tap.send(&seen, || at_ms, shown, &self.metrics);
        }
    }

    fn received(watcher: &mut Watcher) -> Vec<(u64, Box<[u8]>)> {
        match watcher.poll_events(usize::MAX, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(events) => events.into_iter().map(|event| (event.at_ms, event.key)).collect(),
            Poll::Pending => Vec::new(),
        }
    }

    #[test]
    fn a_watcher_receives_matching_events_of_all_workers_in_the_order_of_time_and_stops_when_dropped() {
        let taps = Taps::new(2, Arc::default());
        let workers = [0, 1].map(|at| Worker::of(&taps, at));
        assert!(!workers[0].tap.is_watched());
        let mut filter = Filter::default();
        filter.set("key", b"a*").unwrap();
        let (mut some, mut all) = (taps.watch(filter).unwrap(), taps.watch(Filter::default()).unwrap());
        assert!(workers.iter().all(|worker| worker.tap.is_watched()));
        workers[1].hit(b"a2", 2);
        workers[0].hit(b"b1", 1);
        workers[0].hit(b"a3", 3);
        assert_eq!(received(&mut some), [(2, b"a2"[..].into()), (3, b"a3"[..].into())]);
        assert_eq!(received(&mut all).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 2, 3]);
        drop(some);
        assert!(workers[0].tap.is_watched() && taps.watchers() == 1);
        drop(all);
        assert!(workers.iter().all(|worker| !worker.tap.is_watched()) && taps.watchers() == 0);
    }

    #[test]
    fn a_condition_on_keys_is_judged_on_what_is_shown() {
        let taps = Taps::new(1, Arc::default());
        let worker = Worker::of(&taps, 0);
        let watch = |glob: &str| {
            let mut filter = Filter::default();
            filter.set("key", glob.as_bytes()).unwrap();
            taps.watch(filter).unwrap()
        };
        let of_key = ["user:*", "*17", "user:1?", "user:18"].map(watch);
        // An operator who knows a key may ask for it.
        let of_what_is_shown = ["#7*", "#77", "user:17"].map(watch);
        worker.hit_shown(b"user:17", 1, |_| b"#77"[..].into());
        assert!(of_key.into_iter().all(|mut watcher| received(&mut watcher).is_empty()));
        let hashed = [(1, b"#77"[..].into())];
        assert!(of_what_is_shown.into_iter().all(|mut watcher| received(&mut watcher) == hashed));
    }

    #[test]
    fn what_a_watcher_does_not_take_is_dropped_and_counted_and_the_others_receive_it() {
        let taps = Taps::new(1, Arc::default());
        let worker = Worker::of(&taps, 0);
        let (mut slow, mut quick) =
            (taps.watch(Filter::default()).unwrap(), taps.watch(Filter::default()).unwrap());
        for at in 0..MAX_WAITING as u64 + 10 {
            worker.hit(b"k", at);
            assert_eq!(received(&mut quick).len(), 1);
        }
        assert_eq!((slow.take_dropped(), slow.take_dropped(), quick.take_dropped()), (10, 0, 0));
        assert_eq!(received(&mut slow).len(), MAX_WAITING);
    }

    #[test]
    fn so_many_watch_at_a_time_and_no_more() {
        let taps = Taps::new(1, Arc::default());
        let mut watchers: Vec<_> =
            (0..MAX_WATCHERS).map(|_| taps.watch(Filter::default()).unwrap()).collect();
        assert!(taps.watch(Filter::default()).is_none());
        watchers.pop();
        assert!(taps.watch(Filter::default()).is_some());
    }

    #[test]
    fn a_sample_is_about_its_share() {
        let taps = Taps::new(1, Arc::default());
        let worker = Worker::of(&taps, 0);
        let filter = Filter { sample: Some((1, 10)), ..Filter::default() };
        let mut watcher = taps.watch(filter).unwrap();
        (0..10_000).for_each(|at| worker.hit(b"k", at));
        let share = received(&mut watcher).len();
        assert!((800..1200).contains(&share), "{share}");
    }
}
