//! What commands of one worker have left to do, because a server gave no reply: to complete half a change, or to release a lock. It
//! is tried again until the server can be reached.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::kinds::ItemKey;
use crate::metrics::{Limit, WorkerMetrics};

/// How much may wait.
const MAX_UNFINISHED: usize = 1024;
/// The pauses before it is tried grow from one to the other.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often both copies of an item must have been found to be the same: a store without a reply may be carried out later.
const LOOKS: u8 = 2;

pub(crate) struct Unfinished {
    waiting: Cell<usize>,
    /// The items with half a change, and how often each is still to be looked at.
    items: RefCell<HashMap<ItemKey, Rc<Cell<u8>>>>,
    metrics: Arc<WorkerMetrics>,
}

/// What waits, until it is dropped.
struct Waiting(Rc<Unfinished>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Unfinished {
    pub(crate) fn new(metrics: Arc<WorkerMetrics>) -> Rc<Unfinished> {
        Rc::new(Unfinished { waiting: Cell::new(0), items: RefCell::default(), metrics })
    }

    /// Tries this until it succeeds, for so long. `given_up` is called if it does not, or if too much waits.
    pub(crate) fn try_later(
        self: &Rc<Self>,
        within: Duration,
        mut attempt: impl AsyncFnMut() -> bool + 'static,
        given_up: impl FnOnce() + 'static,
    ) {
        if self.waiting.get() >= MAX_UNFINISHED {
            self.metrics.limit_reached(Limit::Unfinished);
            return given_up();
        }
        self.waiting.set(self.waiting.get() + 1);
        let waiting = Waiting(Rc::clone(self));
        spawn_local(async move {
            let until = Instant::now() + within;
            let mut pause = FIRST_PAUSE;
            loop {
                sleep(pause).await;
                if attempt().await {
                    break;
                }
                if Instant::now() >= until {
                    given_up();
                    break;
                }
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            drop(waiting);
        });
    }

    /// Completes a change of this item, for so long. `attempt` returns whether both copies are the same.
    pub(crate) fn complete_later(
        self: &Rc<Self>,
        item: ItemKey,
        within: Duration,
        mut attempt: impl AsyncFnMut() -> bool + 'static,
    ) {
        if let Some(looks) = self.items.borrow().get(&item) {
            return looks.set(LOOKS);
        }
        let looks = Rc::new(Cell::new(LOOKS));
        self.items.borrow_mut().insert(item.clone(), Rc::clone(&looks));
        let [done, given_up] = [(); 2].map(|()| {
            let (unfinished, item) = (Rc::clone(self), item.clone());
            move || drop(unfinished.items.borrow_mut().remove(&item))
        });
        let look = async move || {
            if attempt().await {
                looks.set(looks.get() - 1);
            }
            let is_done = looks.get() == 0;
            if is_done {
                done();
            }
            is_done
        };
        self.try_later(within, look, given_up);
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::metrics::Metrics;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn what_is_unfinished_is_tried_until_it_succeeds_or_is_too_late_and_its_number_is_bounded() {
        let unfinished = Unfinished::new(metrics());
        LocalSet::new()
            .run_until(async {
                let tried = Rc::new(Cell::new(0));
                let given_up = Rc::new(Cell::new(0));
                let begin = |succeeds: bool| {
                    let (tried, given_up) = (Rc::clone(&tried), Rc::clone(&given_up));
                    let attempt = async move || {
                        tried.set(tried.get() + 1);
                        succeeds && tried.get() == 3
                    };
                    unfinished.try_later(SOON, attempt, move || given_up.set(given_up.get() + 1));
                };
                begin(true);
                sleep(SOON).await;
                assert_eq!((tried.get(), given_up.get(), unfinished.waiting.get()), (3, 0, 0));
                for _ in 0..MAX_UNFINISHED + 1 {
                    begin(false);
                }
                assert_eq!((given_up.get(), unfinished.waiting.get()), (1, MAX_UNFINISHED));
                sleep(2 * SOON).await;
                assert_eq!((given_up.get(), unfinished.waiting.get()), (MAX_UNFINISHED + 1, 0));
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_waits_once_and_is_looked_at_again_once_its_copies_are_the_same() {
        let unfinished = Unfinished::new(metrics());
        LocalSet::new()
            .run_until(async {
                let tried = Rc::new(Cell::new(0));
                for _ in 0..3 {
                    let tried = Rc::clone(&tried);
                    let attempt = async move || {
                        tried.set(tried.get() + 1);
                        tried.get() != 1
                    };
                    unfinished.complete_later(ItemKey::from_slice(b"k"), SOON, attempt);
                }
                assert_eq!(unfinished.waiting.get(), 1);
                sleep(2 * SOON).await;
                assert_eq!((tried.get(), unfinished.waiting.get()), (3, 0));
                assert!(unfinished.items.borrow().is_empty());
            })
            .await;
    }

    fn metrics() -> Arc<WorkerMetrics> {
        Metrics::new(Vec::new(), Vec::new(), 1).worker(0)
    }
}
