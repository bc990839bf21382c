//! The pipeline of the configuration in force, of one worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::pipeline::Proxy;

/// The pipeline that new requests use. Requests in flight keep the one that they began with.
pub struct Current {
    proxy: RefCell<Rc<Proxy>>,
    number: Cell<u64>,
    leaving: Cell<Leaving>,
}

/// Whether clients move to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Clients stay with this process.
    No,
    /// Between two requests, unless they may still fill a miss.
    WhenFree,
    /// Clients leave between two requests.
    Now,
}

impl Current {
    /// Begins with this pipeline.
    pub fn new(proxy: Rc<Proxy>) -> Current {
        Current { proxy: RefCell::new(proxy), number: Cell::new(0), leaving: Cell::new(Leaving::No) }
    }

    /// The pipeline for the next request.
    pub fn proxy(&self) -> Rc<Proxy> {
        Rc::clone(&self.proxy.borrow())
    }

    /// How often it has been replaced.
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    /// Whether clients move to another process.
    pub fn leaving(&self) -> Leaving {
        self.leaving.get()
    }

    /// Has clients move to another process from now on, or stay. Their tasks must be woken.
    pub fn set_leaving(&self, leaving: Leaving) {
        self.leaving.set(leaving);
    }

    /// Replaces the pipeline. Returns the former one, which requests in flight may still use.
    pub fn replace(&self, next: Rc<Proxy>) -> Rc<Proxy> {
        self.number.set(self.number.get() + 1);
        self.proxy.replace(next)
    }
}
