//! What this process knows about the place of each server of a pool. One task writes it, all workers read it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};

use super::planned::{Hold, Wish};
use super::restoring::Restoring;

/// Where the keys of a server are kept, as long as a view is valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The number of this place, never 0. Every change of the place draws one that has never been used.
    pub fence: u64,
    /// Whether the keys are on their standby servers.
    pub standby: bool,
    /// Another fence that counts in this place: see [`Record::inherited`](super::Record::inherited). 0 if there is none.
    pub inherited: u64,
}

/// The views of the servers of a pool, in the order of the configuration.
#[derive(Debug)]
pub struct Views {
    cells: Box<[Cell]>,
    restoring: Restoring,
    /// Until when requests for any server may have to wait, in ms of the process's monotonic clock.
    held: AtomicU64,
}

#[derive(Debug, Default)]
struct Cell {
    fence: AtomicU64,
    inherited: AtomicU64,
    /// Until when the view is valid, in ms of the process's monotonic clock, times two, plus one for a standby.
    until: AtomicU64,
    /// Until when requests wait for the next view, in ms, times two, plus one if they wait although there is one.
    held: AtomicU64,
    /// What an operator has asked for: 0 for nothing.
    wish: AtomicU8,
}

impl Views {
    /// No view is valid yet.
    pub fn new(servers: usize) -> Views {
        let cells = (0..servers).map(|_| Cell::default()).collect();
        Views { cells, restoring: Restoring::new(servers), held: AtomicU64::new(0) }
    }

    /// The copies of this server's record are restored on request from now on.
    pub fn keep(&self, server: usize) {
        self.restoring.keep(server);
    }

    /// Asks for all copies of the records of all servers. `None` if nobody restores them.
    pub fn restore(&self) -> Option<u64> {
        self.restoring.ask()
    }

    /// Whether all copies were there when this request ended.
    pub fn poll_restored(&self, number: u64, cx: &mut Context<'_>) -> Poll<bool> {
        self.restoring.poll_end(number, cx)
    }

    /// The latest request that has not ended for this server. Only one task may poll it.
    pub fn poll_asked(&self, server: usize, cx: &mut Context<'_>) -> Poll<u64> {
        self.restoring.poll_asked(server, cx)
    }

    /// Ends the requests up to this one for a server.
    pub fn end_restoring(&self, server: usize, number: u64, is_whole: bool) {
        self.restoring.end(server, number, is_whole);
    }

    /// Stores a view and the end of its validity, in ms of the process's monotonic clock. `None`: there is no valid view.
    /// Only one thread may call this.
    pub fn publish(&self, server: usize, view: Option<(View, u64)>) {
        let cell = &self.cells[server];
        let Some((view, until)) = view else { return cell.until.store(0, Ordering::SeqCst) };
        if cell.fence.load(Ordering::SeqCst) != view.fence {
            // A reader must not see the new end with the old fence.
            cell.until.store(0, Ordering::SeqCst);
            cell.inherited.store(0, Ordering::SeqCst);
            cell.fence.store(view.fence, Ordering::SeqCst);
        }
        cell.inherited.store(view.inherited, Ordering::SeqCst);
        cell.until.store(until << 1 | u64::from(view.standby), Ordering::SeqCst);
    }

    /// Requests for this server wait, or no longer do. Only one thread may call this.
    pub fn hold(&self, server: usize, hold: Option<Hold>) {
        let Hold { until, has_view } = hold.unwrap_or(Hold { until: 0, has_view: false });
        self.cells[server].held.store(until << 1 | u64::from(has_view), Ordering::SeqCst);
        // 0 once no request waits, so that requests read no clock.
        let latest = self.cells.iter().map(|cell| cell.held.load(Ordering::SeqCst) >> 1).max();
        self.held.store(latest.unwrap_or(0), Ordering::SeqCst);
    }

    /// Whether requests for any server may have to wait.
    pub fn may_hold(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let until = self.held.load(Ordering::SeqCst);
        until > 0 && now_ms() < until
    }

    /// Whether a request for this server waits for the next view.
    pub fn holds(&self, server: usize, now_ms: u64) -> bool {
        let held = self.cells[server].held.load(Ordering::SeqCst);
        now_ms < held >> 1 && (held & 1 == 1 || self.get(server, now_ms).is_none())
    }

    /// Whether a request for any server waits for the next view.
    pub fn holds_any(&self, now_ms: u64) -> bool {
        (0..self.cells.len()).any(|server| self.holds(server, now_ms))
    }

    /// Notes what an operator asks for; `None` withdraws it.
    pub fn ask(&self, server: usize, wish: Option<Wish>) {
        let wish = match wish {
            None => 0,
            Some(Wish::Drain) => 1,
            Some(Wish::Return) => 2,
        };
        self.cells[server].wish.store(wish, Ordering::SeqCst);
    }

    /// What an operator asks for.
    pub fn asked(&self, server: usize) -> Option<Wish> {
        match self.cells[server].wish.load(Ordering::SeqCst) {
            1 => Some(Wish::Drain),
            2 => Some(Wish::Return),
            _ => None,
        }
    }

    /// The view of a server, if one is valid at this time of the process's monotonic clock.
    pub fn get(&self, server: usize, now_ms: u64) -> Option<View> {
        let cell = &self.cells[server];
        let fence = cell.fence.load(Ordering::SeqCst);
        let until = cell.until.load(Ordering::SeqCst);
        let inherited = cell.inherited.load(Ordering::SeqCst);
        // A fence is never used again, so an equal one has not changed in between.
        let is_one = cell.fence.load(Ordering::SeqCst) == fence;
        (is_one && now_ms < until >> 1).then_some(View { fence, standby: until & 1 == 1, inherited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_restore_ends_once_it_has_ended_for_every_server() {
        let views = Views::new(2);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        views.keep(0);
        assert_eq!(views.restore(), None, "nobody keeps the record of the second server");
        views.keep(1);
        assert!(views.poll_asked(0, &mut cx).is_pending());
        let number = views.restore().unwrap();
        assert_eq!(views.poll_asked(1, &mut cx), Poll::Ready(number));
        views.end_restoring(0, number, true);
        assert!(
            views.poll_asked(0, &mut cx).is_pending() && views.poll_restored(number, &mut cx).is_pending()
        );
        views.end_restoring(1, number, false);
        assert_eq!(views.poll_restored(number, &mut cx), Poll::Ready(false));
        let next = views.restore().unwrap();
        (0..2).for_each(|server| views.end_restoring(server, next, true));
        assert_eq!(views.poll_restored(next, &mut cx), Poll::Ready(true));
    }

    #[test]
    fn a_view_is_valid_until_its_end_and_no_longer_once_it_is_withdrawn() {
        let views = Views::new(2);
        assert_eq!(views.get(0, 0), None);
        let own = View { fence: 7, standby: false, inherited: 5 };
        views.publish(0, Some((own, 100)));
        assert_eq!([0, 99, 100].map(|now| views.get(0, now)), [Some(own), Some(own), None]);
        assert_eq!(views.get(1, 0), None);
        // In a view that is about to end, requests go on, and none begins.
        let hold = |has_view| Some(Hold { until: 90, has_view });
        assert!(!views.may_hold(|| 0) && !views.holds(0, 0));
        views.hold(0, hold(false));
        assert!(
            views.may_hold(|| 89) && !views.may_hold(|| 90) && !views.holds(0, 50) && !views.holds(1, 50)
        );
        views.hold(0, hold(true));
        assert!(views.holds(0, 50) && !views.holds(0, 90) && views.holds_any(50));
        views.hold(1, hold(true));
        views.hold(0, None);
        assert!(!views.holds(0, 50) && views.may_hold(|| 50));
        views.hold(1, None);
        assert!(!views.may_hold(|| unreachable!("nobody waits")));
        let standby = View { fence: 8, standby: true, inherited: 0 };
        views.publish(0, Some((standby, 200)));
        assert_eq!(views.get(0, 150), Some(standby));
        views.publish(0, None);
        assert_eq!(views.get(0, 150), None);
    }
}
