//! Runs the tasks of a schedule in one thread and in simulated time. The seed determines everything, so that a failure replays.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use kennel::random::Random;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Gives the time and random numbers, and runs tasks.
#[derive(Clone)]
pub struct Executor(Rc<State>);

struct State {
    now: Cell<u64>,
    /// Numbers timers, so that those of the same moment end in the order in which they began.
    timers_begun: Cell<u64>,
    timers: RefCell<BinaryHeap<Reverse<(u64, u64, usize)>>>,
    ready: RefCell<VecDeque<usize>>,
    tasks: RefCell<Vec<Option<Task>>>,
    current: Cell<usize>,
    random: RefCell<Random>,
}

impl Executor {
    pub fn seeded(seed: u64) -> Executor {
        Executor(Rc::new(State {
            now: Cell::new(0),
            timers_begun: Cell::new(0),
            timers: RefCell::default(),
            ready: RefCell::default(),
            tasks: RefCell::default(),
            current: Cell::new(0),
            random: RefCell::new(Random::seeded(seed)),
        }))
    }

    /// The time since the start, in ms.
    pub fn now(&self) -> u64 {
        self.0.now.get()
    }

    /// A random number in 0..n.
    pub fn below(&self, n: u64) -> u64 {
        self.0.random.borrow_mut().below(n)
    }

    /// True once in `n` times; never if `n` is 0.
    pub fn one_in(&self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.0.tasks.borrow_mut();
        self.0.ready.borrow_mut().push_back(tasks.len());
        tasks.push(Some(Box::pin(task)));
    }

    pub async fn sleep(&self, ms: u64) {
        self.sleep_until(self.now() + ms).await;
    }

    pub async fn sleep_until(&self, at: u64) {
        let mut begun = false;
        poll_fn(|_| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut begun, true) {
                let order = self.0.timers_begun.get();
                self.0.timers_begun.set(order + 1);
                self.0.timers.borrow_mut().push(Reverse((at, order, self.0.current.get())));
            }
            Poll::Pending
        })
        .await;
    }

    /// Runs until this time, or until `stop` is true.
    pub fn run(&self, until: u64, stop: impl Fn() -> bool) {
        let mut context = Context::from_waker(Waker::noop());
        while !stop() {
            let Some(id) = self.next(until) else { break };
            let Some(mut task) = self.0.tasks.borrow_mut()[id].take() else { continue };
            self.0.current.set(id);
            if task.as_mut().poll(&mut context).is_pending() {
                self.0.tasks.borrow_mut()[id] = Some(task);
            }
        }
        // They refer to this executor.
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
    }

    fn next(&self, until: u64) -> Option<usize> {
        if let Some(id) = self.0.ready.borrow_mut().pop_front() {
            return Some(id);
        }
        let Reverse((at, _, id)) = self.0.timers.borrow_mut().pop()?;
        self.0.now.set(self.now().max(at));
        (at <= until).then_some(id)
    }
}

/// What one task waits for and another one gives.
pub struct Slot<T>(Rc<SlotState<T>>);

struct SlotState<T> {
    value: RefCell<Option<T>>,
    is_filled: Cell<bool>,
    waiter: Cell<Option<usize>>,
    executor: Executor,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Slot(Rc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    pub fn new(executor: &Executor) -> Slot<T> {
        let state = SlotState {
            value: RefCell::new(None),
            is_filled: Cell::new(false),
            waiter: Cell::new(None),
            executor: executor.clone(),
        };
        Slot(Rc::new(state))
    }

    /// Whether the value has been given.
    pub fn is_filled(&self) -> bool {
        self.0.is_filled.get()
    }

    /// Gives the value, unless there has been one.
    pub fn fill(&self, value: T) {
        if self.0.is_filled.replace(true) {
            return;
        }
        *self.0.value.borrow_mut() = Some(value);
        if let Some(task) = self.0.waiter.take() {
            self.0.executor.0.ready.borrow_mut().push_back(task);
        }
    }

    /// Waits for the value until `at`.
    pub async fn wait_until(&self, at: u64) -> Option<T> {
        let SlotState { value, waiter, executor, .. } = &*self.0;
        let mut timer = Box::pin(executor.sleep_until(at));
        poll_fn(|context| {
            if let Some(value) = value.borrow_mut().take() {
                return Poll::Ready(Some(value));
            }
            waiter.set(Some(executor.0.current.get()));
            timer.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}
