//! The ticks of a pool: all that is due for its servers begins at the same time, so that commands to one server are written together.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// One participant's view of the ticks. A tick that it did not wait for is not lost.
///
/// Unlike the receivers of a `watch` channel, the participants are woken in the order in which they wait: a simulation repeats.
#[derive(Clone, Default)]
pub(super) struct Ticks {
    shared: Rc<Shared>,
    seen: u64,
}

#[derive(Default)]
struct Shared {
    count: Cell<u64>,
    notify: Notify,
}

impl Ticks {
    pub(super) fn tick(&self) {
        self.shared.count.set(self.shared.count.get() + 1);
        self.shared.notify.notify_waiters();
    }

    /// Returns once there has been a tick since the last call.
    pub(super) async fn next(&mut self) {
        // Nothing runs between the look and the wait: all participants are tasks of one thread.
        while self.shared.count.get() == self.seen {
            self.shared.notify.notified().await;
        }
        self.seen = self.shared.count.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tick_before_the_wait_is_not_lost_and_several_are_one() {
        let mut ticks = Ticks::default();
        let other = ticks.clone();
        other.tick();
        other.tick();
        ticks.next().await;
        let mut waiting = std::pin::pin!(ticks.next());
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx)));
        assert!(poll.await.is_pending());
        other.tick();
        waiting.await;
    }
}
