//! The database behind the cache: slow, and with a count of concurrent rebuilds.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A simulated database. A rebuild takes the same time under any load, unlike with a real database.
pub(super) struct Database {
    rebuild: Duration,
    start: Instant,
    running: Cell<usize>,
    /// The running rebuilds of each key, and the most at once so far.
    of_key: RefCell<Vec<usize>>,
    most_of_one: Cell<usize>,
    /// All changes of the number of running rebuilds.
    load: RefCell<Vec<LoadChange>>,
}

/// A time since the start, and the number of rebuilds that run from then on.
pub(super) type LoadChange = (Duration, usize);

impl Database {
    /// Starts now; `rebuild` is the duration of each rebuild of one of `keys` keys.
    pub(super) fn new(rebuild: Duration, keys: usize) -> Database {
        Database {
            rebuild,
            start: Instant::now(),
            running: Cell::new(0),
            of_key: RefCell::new(vec![0; keys]),
            most_of_one: Cell::new(0),
            load: RefCell::default(),
        }
    }

    /// Waits for the duration of a rebuild of this key. It counts as running until it completes or is dropped.
    pub(super) async fn rebuild(&self, key: usize) {
        self.change(self.running.get() + 1);
        self.of_key.borrow_mut()[key] += 1;
        self.most_of_one.set(self.most_of_one.get().max(self.of_key.borrow()[key]));
        let _running = Running(self, key);
        sleep(self.rebuild).await;
    }

    /// The number of rebuilds that run now.
    pub(super) fn running(&self) -> usize {
        self.running.get()
    }

    /// The most concurrent rebuilds of one key so far.
    pub(super) fn most_of_one(&self) -> usize {
        self.most_of_one.get()
    }

    /// All changes so far, in order.
    pub(super) fn load(&self) -> Vec<LoadChange> {
        self.load.borrow().clone()
    }

    fn change(&self, running: usize) {
        self.running.set(running);
        self.load.borrow_mut().push((self.start.elapsed(), running));
    }
}

struct Running<'a>(&'a Database, usize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.change(self.0.running.get() - 1);
        self.0.of_key.borrow_mut()[self.1] -= 1;
    }
}

/// The most concurrent rebuilds.
pub(super) fn peak(load: &[LoadChange]) -> usize {
    load.iter().map(|&(_, running)| running).max().unwrap_or(0)
}

/// The number of rebuilds that began from then on.
pub(super) fn begun_since(load: &[LoadChange], since: Duration) -> usize {
    let mut before = 0;
    let begins = |&&(at, running): &&LoadChange| {
        let began = running > before;
        before = running;
        began && at >= since
    };
    load.iter().filter(begins).count()
}

/// The most concurrent rebuilds in each of `columns` equal parts of the time from the start to `until`.
pub(super) fn columns(load: &[LoadChange], until: Duration, columns: usize) -> Vec<usize> {
    let mut most = Vec::with_capacity(columns);
    let mut load = load.iter().peekable();
    let mut running = 0;
    for column in 1..=columns {
        let end = until.mul_f64(column as f64 / columns as f64);
        let mut highest = running;
        while let Some((_, now)) = load.next_if(|(at, _)| *at < end) {
            running = *now;
            highest = highest.max(running);
        }
        most.push(highest);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn concurrent_rebuilds_are_counted_and_a_dropped_one_ends() {
        let database = Database::new(100 * MS, 2);
        // The timers are created in this order, and the last is the shortest.
        let dropped = tokio::time::timeout(20 * MS, database.rebuild(1));
        let (_, _, dropped) = tokio::join!(database.rebuild(0), database.rebuild(1), dropped);
        assert!(dropped.is_err());
        database.rebuild(1).await;
        assert_eq!(database.most_of_one(), 2);
        assert_eq!(database.running(), 0);
        let load = database.load();
        let counts: Vec<usize> = load.iter().map(|change| change.1).collect();
        assert_eq!(counts, [1, 2, 3, 2, 1, 0, 1, 0]);
        assert!(load[3].0 >= 20 * MS && load[5].0 >= 100 * MS && load[7].0 >= 200 * MS, "{load:?}");
        assert!(load.is_sorted_by_key(|change| change.0));
        assert_eq!(peak(&load), 3);
        assert_eq!([Duration::ZERO, 90 * MS].map(|since| begun_since(&load, since)), [4, 1]);
    }

    #[test]
    fn a_column_has_its_maximum_including_what_runs_from_the_column_before() {
        let load =
            [(Duration::ZERO, 1), (10 * MS, 5), (20 * MS, 4), (250 * MS, 0), (310 * MS, 2), (320 * MS, 0)];
        assert_eq!(columns(&load, 500 * MS, 5), [5, 4, 4, 2, 0]);
        assert_eq!(columns(&[], 500 * MS, 3), [0, 0, 0]);
        assert_eq!(peak(&[]), 0);
    }

    #[test]
    fn changes_after_the_end_are_in_no_column() {
        assert_eq!(columns(&[(600 * MS, 9)], 500 * MS, 2), [0, 0]);
    }
}
