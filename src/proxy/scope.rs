//! What the parts of a call are given whenever it is polled.

use std::cell::Cell;
use std::rc::Rc;

use tokio::time::Instant;

use super::Proxy;
use super::calls::QueuePosition;
use super::client::Client;
use crate::metrics::{Command, Outcome};

/// What is known of a call besides its own state.
pub(super) struct CallScope<'a> {
    pub(super) proxy: &'a Rc<Proxy>,
    pub(super) client: &'a Client,
    pub(super) turn: QueuePosition,
    command: Command,
    began: Instant,
    /// The rule and outcome of the keys that were counted last, and of how many the metrics do not know yet.
    counted: Cell<(usize, Outcome, u64)>,
}

impl<'a> CallScope<'a> {
    pub(super) fn new(
        proxy: &'a Rc<Proxy>,
        client: &'a Client,
        command: Command,
        began: Instant,
        turn: QueuePosition,
    ) -> CallScope<'a> {
        CallScope { proxy, client, turn, command, began, counted: Cell::new((0, Outcome::Ok, 0)) }
    }

    /// Counts one key's answer.
    pub(super) fn count(&self, rule: usize, outcome: Outcome) {
        let (last_rule, last_outcome, keys) = self.counted.get();
        if (last_rule, last_outcome) == (rule, outcome) {
            return self.counted.set((rule, outcome, keys + 1));
        }
        self.flush();
        self.counted.set((rule, outcome, 1));
    }

    /// Most keys of a call end alike: they are counted together.
    fn flush(&self) {
        let (rule, outcome, keys) = self.counted.get();
        if keys > 0 {
            let took = self.client.moment().saturating_duration_since(self.began);
            self.proxy.metrics.requests(rule, self.command, outcome, took, keys);
        }
    }
}

impl Drop for CallScope<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
