//! One task for each key that requests wait for: it polls the key on the server until it changes.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::guard::leases::{PollRate, PollResult};
use crate::metrics::WaitEnd;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::lease_table::wake_all;

/// The shortest and the longest pause between two polls. The pause doubles each time.
const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

impl Proxy {
    /// Polls a key until it changes or has no more waiters, and wakes them.
    pub(super) fn poll_key(self: Rc<Self>, key: GuardedKey, rate: PollRate) {
        spawn_local(async move {
            let (shortest, longest) = POLL;
            let mut pause = if rate == PollRate::Fast { shortest } else { longest };
            let mut before = None;
            loop {
                let jittered = self.random.borrow_mut().jitter(pause, 0.5);
                sleep(jittered).await;
                pause = (pause * 2).min(longest);
                if !self.leases.shard(&key.key).has_waiters(&key.key) {
                    return;
                }
                let replies = self.send_and_wait(PollResult::commands(), &key).await;
                // The readers must look where the key is now.
                let result = match self.is_replaced(&key) {
                    true => PollResult::Freed,
                    false => PollResult::from_replies(&replies, &mut before),
                };
                let waiters = self.leases.shard(&key.key).polled(&key.key, result, self.now());
                let why = match result {
                    PollResult::Filled => WaitEnd::Filled,
                    _ => WaitEnd::Freed,
                };
                wake_all(waiters, why);
                if result != PollResult::Unchanged {
                    return;
                }
            }
        });
    }
}
