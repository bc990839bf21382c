//! Where a worker keeps values of rules with `near`. `guard/near.rs` decides what may be kept and served.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::guard::near::{self, Changed, Changes, NearValues, SharedResult};

/// Passes the result of a shared read to one reader.
pub(crate) type ResultSender = oneshot::Sender<SharedResult>;
/// A read whose result may be kept.
pub(crate) type NearRead = near::NearRead<ResultSender>;

/// One worker's near values.
pub(crate) struct NearCache {
    pub(crate) values: RefCell<NearValues<ResultSender>>,
    pub(crate) changes: Arc<Changes>,
    may_keep: Arc<AtomicBool>,
}

impl NearCache {
    /// A cache of at most `memory` bytes. All workers count their changes in `changes`, and keep nothing before `may_keep`.
    pub(crate) fn new(memory: usize, changes: Arc<Changes>, may_keep: Arc<AtomicBool>) -> NearCache {
        NearCache { values: RefCell::new(NearValues::new(memory)), changes, may_keep }
    }

    /// Whether values may be kept now.
    pub(crate) fn may_keep(&self) -> bool {
        self.may_keep.load(Ordering::Acquire)
    }

    /// Must be called when a command that may change this begins, and when it has ended.
    pub(crate) fn changed(&self, change: Changed<'_>) {
        self.changes.note(change);
    }
}
