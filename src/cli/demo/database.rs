//! What the cache stands in front of: slow, and counting how much is asked of it at once.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A stand-in for a database. A rebuild takes as long however many run beside it, which is kinder than a database is.
pub(super) struct Database {
    takes: Duration,
    start: Instant,
    running: Cell<usize>,
    /// When the number of rebuilds changed, since the start, and to what.
    steps: RefCell<Vec<Step>>,
}

/// From this time on, since the start, so many rebuilds ran.
pub(super) type Step = (Duration, usize);

impl Database {
    /// Each rebuild takes this long. Time counts from now.
    pub(super) fn new(takes: Duration) -> Database {
        Database { takes, start: Instant::now(), running: Cell::new(0), steps: RefCell::default() }
    }

    /// Makes a value, slowly. It is counted as running until it is done or given up.
    pub(super) async fn rebuild(&self) {
        self.change(self.running.get() + 1);
        let _running = Running(self);
        sleep(self.takes).await;
    }

    /// How many rebuilds run at this moment.
    pub(super) fn running(&self) -> usize {
        self.running.get()
    }

    /// All that has happened so far, in order.
    pub(super) fn steps(&self) -> Vec<Step> {
        self.steps.borrow().clone()
    }

    fn change(&self, running: usize) {
        self.running.set(running);
        self.steps.borrow_mut().push((self.start.elapsed(), running));
    }
}

/// A rebuild under way.
struct Running<'a>(&'a Database);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.change(self.0.running.get() - 1);
    }
}

/// The most that ran at once.
pub(super) fn peak(steps: &[Step]) -> usize {
    steps.iter().map(|&(_, running)| running).max().unwrap_or(0)
}

/// The most that ran at once in each of `columns` equal parts of the time from the start to `until`.
pub(super) fn columns(steps: &[Step], until: Duration, columns: usize) -> Vec<usize> {
    let mut most = Vec::with_capacity(columns);
    let mut steps = steps.iter().peekable();
    let mut running = 0;
    for column in 1..=columns {
        let end = until.mul_f64(column as f64 / columns as f64);
        let mut highest = running;
        while let Some((_, now)) = steps.next_if(|(at, _)| *at < end) {
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
    async fn rebuilds_that_overlap_are_counted_together_and_those_given_up_end() {
        let source = Database::new(100 * MS);
        // Their timers are made in this order, and the last has the shortest.
        let given_up = tokio::time::timeout(20 * MS, source.rebuild());
        let (_, _, given_up) = tokio::join!(source.rebuild(), source.rebuild(), given_up);
        assert!(given_up.is_err());
        source.rebuild().await;
        assert_eq!(source.running(), 0);
        let steps = source.steps();
        let counts: Vec<usize> = steps.iter().map(|step| step.1).collect();
        assert_eq!(counts, [1, 2, 3, 2, 1, 0, 1, 0]);
        assert!(steps[3].0 >= 20 * MS && steps[5].0 >= 100 * MS && steps[7].0 >= 200 * MS, "{steps:?}");
        assert!(steps.is_sorted_by_key(|step| step.0));
        assert_eq!(peak(&steps), 3);
    }

    #[test]
    fn a_column_shows_its_highest_moment_and_what_runs_on_from_the_column_before() {
        let steps =
            [(Duration::ZERO, 1), (10 * MS, 5), (20 * MS, 4), (250 * MS, 0), (310 * MS, 2), (320 * MS, 0)];
        assert_eq!(columns(&steps, 500 * MS, 5), [5, 4, 4, 2, 0]);
        assert_eq!(columns(&[], 500 * MS, 3), [0, 0, 0]);
        assert_eq!(peak(&[]), 0);
    }

    #[test]
    fn what_happens_after_the_end_is_in_no_column() {
        assert_eq!(columns(&[(600 * MS, 9)], 500 * MS, 2), [0, 0]);
    }
}
