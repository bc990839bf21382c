//! Which servers have all copies that they should have, and what operators see of the repair of the others.
//!
//! Each server of a pool has a mark: the fences of the places of which all copies are on it. Whoever has repaired a server leaves the
//! mark there. A server that has restarted empty has none, and a place that has moved has another fence.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{RESERVED_PREFIX, View};

/// The fences of the places whose copies are all on one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepairMark(Vec<u64>);

impl RepairMark {
    /// The mark of a server that has all copies that belong there while these are the views of the servers.
    pub fn of(views: &[View]) -> RepairMark {
        let mut fences: Vec<u64> = views.iter().map(|view| view.fence).collect();
        fences.sort_unstable();
        RepairMark(fences)
    }

    /// As a server has it.
    pub fn encode(&self) -> String {
        let mut text = String::with_capacity(17 * self.0.len());
        for fence in &self.0 {
            // Writing to memory cannot fail.
            let _ = write!(text, "{fence:016x} ");
        }
        text.trim_end().to_owned()
    }

    /// Anything else than a mark names no fence.
    pub fn decode(text: &[u8]) -> RepairMark {
        let text = std::str::from_utf8(text).unwrap_or_default();
        let fences: Result<Vec<u64>, _> = text
            .split(' ')
            .filter(|word| !word.is_empty())
            .map(|word| u64::from_str_radix(word, 16))
            .collect();
        RepairMark(fences.unwrap_or_default())
    }

    /// The places whose copies may be missing on the server with the index `at`, by the index of the server that the ring names. `views`:
    /// those of all servers.
    pub fn due(&self, views: &[View], at: usize) -> Vec<usize> {
        // Copies of other places are there only while these are on standby servers.
        let may_be_there = |home: usize| home == at || views[home].standby;
        let is_marked = |home: usize| self.0.contains(&views[home].fence);
        (0..views.len()).filter(|home| may_be_there(*home) && !is_marked(*home)).collect()
    }
}

/// The key of the mark on each server of a pool with this name and this placement of its keys.
pub fn repair_mark_key(pool: &str, placement: u64) -> String {
    format!("{RESERVED_PREFIX}repaired:{pool}:{placement:016x}")
}

/// The key of the item by which one process at a time repairs a server.
pub fn repair_lease_key(pool: &str, placement: u64) -> String {
    format!("{RESERVED_PREFIX}repairs:{pool}:{placement:016x}")
}

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairOrder {
    /// To count what is missing.
    Count,
    /// To repair all servers, whatever their marks say.
    Repair,
}

/// The repair of one pool, as this process does it and as operators see it.
#[derive(Debug, Default)]
pub struct RepairStatus {
    pool: String,
    /// Identifies the placement of the keys in all processes.
    placement: u64,
    /// Whether anything in the pool has copies.
    is_used: AtomicBool,
    /// Copies per second; 0: only when an operator asks.
    rate: u32,
    /// Servers that may lack copies.
    due: AtomicU64,
    /// Copies that are known to be missing.
    missing: AtomicU64,
    /// Copies stored again since the start.
    repaired: AtomicU64,
    order: AtomicU8,
    last: Mutex<LastRepair>,
}

/// What the last run has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastRepair {
    /// How many runs that an operator asked for have ended.
    pub orders_done: u64,
    /// What was found.
    pub found: RepairCounts,
    /// Whether it only counted.
    pub only_counted: bool,
    /// Why it could not be completed; `None` if it was.
    pub problem: Option<String>,
}

/// What a run has found and done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairCounts {
    /// Copies that were looked at.
    pub looked_at: u64,
    /// Those whose other copy was missing.
    pub missing: u64,
    /// Those that were stored again.
    pub repaired: u64,
}

impl fmt::Display for RepairCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RepairCounts { looked_at, missing, repaired } = self;
        write!(
            f,
            "{looked_at} copies looked at, {missing} without the other one, {repaired} of these stored again"
        )
    }
}

impl RepairStatus {
    /// Nothing has been done. `rate`: copies per second; 0: only when an operator asks.
    pub fn new(pool: String, placement: u64, rate: u32) -> RepairStatus {
        RepairStatus { pool, placement, rate, ..RepairStatus::default() }
    }

    /// The pool's name.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Something in the pool has copies, and a task looks after them, or not.
    pub fn set_used(&self, is_used: bool) {
        self.is_used.store(is_used, Relaxed);
    }

    /// Whether something in the pool has copies.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Identifies the placement of the keys in all processes.
    pub fn placement(&self) -> u64 {
        self.placement
    }

    /// Copies per second; 0: only when an operator asks.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Asks for a run. Returns how many have ended: once there are more, it is done.
    pub fn ask(&self, order: RepairOrder) -> u64 {
        let done = self.last().orders_done;
        self.order.store(if order == RepairOrder::Count { 1 } else { 2 }, Relaxed);
        done
    }

    /// A repair that was asked for must wait.
    pub fn postpone(&self) {
        self.order.store(2, Relaxed);
    }

    /// Takes what was asked for.
    pub fn take_order(&self) -> Option<RepairOrder> {
        match self.order.swap(0, Relaxed) {
            0 => None,
            1 => Some(RepairOrder::Count),
            _ => Some(RepairOrder::Repair),
        }
    }

    /// So many servers may lack copies.
    pub fn set_due(&self, servers: usize) {
        self.due.store(servers as u64, Relaxed);
    }

    /// Nothing is known to be missing.
    pub fn clear(&self) {
        self.missing.store(0, Relaxed);
    }

    /// So many copies are found to be missing.
    pub fn found(&self, copies: u64) {
        self.missing.fetch_add(copies, Relaxed);
    }

    /// So many of these are stored again.
    pub fn stored(&self, copies: u64) {
        self.repaired.fetch_add(copies, Relaxed);
        // One process at a time subtracts.
        let left = self.missing.load(Relaxed).saturating_sub(copies);
        self.missing.store(left, Relaxed);
    }

    /// A run has ended, which an operator asked for if there was an order. Returns whether it has another problem than the last one.
    pub fn end(&self, order: Option<RepairOrder>, found: RepairCounts, problem: Option<String>) -> bool {
        let mut last = self.last();
        let is_new = last.problem != problem;
        *last = LastRepair {
            orders_done: last.orders_done + u64::from(order.is_some()),
            found,
            only_counted: order == Some(RepairOrder::Count),
            problem,
        };
        is_new
    }

    /// What the last run has come to.
    pub fn last_run(&self) -> LastRepair {
        self.last().clone()
    }

    /// A line for operators while not everything is known to have its copies.
    pub fn note(&self) -> Option<String> {
        let (due, missing, last) = (self.servers_due(), self.missing(), self.last());
        let problem = last.problem.as_ref().filter(|_| !last.only_counted);
        let what = match (due, missing) {
            (0, _) => return None,
            (_, 0) => format!("pool {}: {due} servers may lack copies", self.pool),
            _ => format!(
                "pool {}: {due} servers may lack copies, {missing} are known to be missing",
                self.pool
            ),
        };
        Some(match problem {
            None => what,
            Some(why) => format!("{what}: {why}"),
        })
    }

    /// How many servers may lack copies.
    pub fn servers_due(&self) -> u64 {
        self.due.load(Relaxed)
    }

    /// How many copies are known to be missing.
    pub fn missing(&self) -> u64 {
        self.missing.load(Relaxed)
    }

    /// How many copies were stored again since the start.
    pub fn repaired(&self) -> u64 {
        self.repaired.load(Relaxed)
    }

    fn last(&self) -> MutexGuard<'_, LastRepair> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(fence: u64, standby: bool) -> View {
        View { fence, standby, inherited: 0 }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_anything_else_names_no_fence() {
        let views = [view(9, false), view(u64::MAX, true), view(0x12, false)];
        let mark = RepairMark::of(&views);
        assert_eq!(mark.encode(), "0000000000000009 0000000000000012 ffffffffffffffff");
        assert_eq!(RepairMark::decode(mark.encode().as_bytes()), mark);
        for text in [&b""[..], b"x", b"0000000000000009 x", b"\xff"] {
            assert_eq!(RepairMark::decode(text), RepairMark::default());
        }
    }

    #[test]
    fn a_server_lacks_what_moved_to_it_since_its_mark_and_everything_without_one() {
        let mut views = [view(1, false), view(2, false), view(3, false)];
        let mark = RepairMark::of(&views);
        assert!(mark.due(&views, 0).is_empty());
        assert_eq!(RepairMark::default().due(&views, 0), [0]);
        // The place of the last server moves to the others: each of them may lack copies of it.
        views[2] = view(4, true);
        assert_eq!([0, 1].map(|at| mark.due(&views, at)), [vec![2], vec![2]]);
        assert_eq!(RepairMark::default().due(&views, 0), [0, 2]);
        // It returns: only that server may lack copies.
        let during = RepairMark::of(&views);
        views[2] = view(5, false);
        assert!([0, 1].into_iter().all(|at| during.due(&views, at).is_empty()));
        assert_eq!(mark.due(&views, 2), [2]);
    }

    #[test]
    fn an_order_is_taken_once_and_its_end_is_counted() {
        let status = RepairStatus::new("main".into(), 1, 2);
        assert_eq!(status.ask(RepairOrder::Count), 0);
        assert_eq!([status.take_order(), status.take_order()], [Some(RepairOrder::Count), None]);
        status.clear();
        status.found(3);
        status.stored(2);
        assert_eq!((status.missing(), status.repaired()), (1, 2));
        let problem = || Some("why".to_owned());
        assert!(status.end(None, RepairCounts::default(), problem()));
        assert!(!status.end(Some(RepairOrder::Count), RepairCounts::default(), problem()));
        assert_eq!(status.last_run().orders_done, 1);
    }
}
