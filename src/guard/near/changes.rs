//! Counts the changes made through this sidecar, so that a value can be recognized as unchanged since its read.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use smallvec::SmallVec;

/// Number of counters. Two keys or tags that share one only cause additional reads.
const SLOTS: u64 = 1 << 16;

/// How many changes were made through this sidecar. Shared by its workers.
///
/// A change is counted when it begins and again before it is acknowledged. The second count provides the
/// guarantee: a read that was sent in between may have been answered before the change was carried out.
pub struct Changes {
    /// Empty if no rule uses `near`: nothing is counted.
    pub(super) counts: Box<[AtomicU64]>,
}

/// What a change affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed<'a> {
    /// A change of this key.
    Key(&'a [u8]),
    /// All values with this tag.
    Tag(&'a [u8]),
    /// A change of every key, as by `flush_all`.
    Everything,
}

/// The counter of `Changed::Everything`.
pub(super) const EVERYTHING: u32 = 0;

/// Counts every bump of any tag.
pub(super) const ANY_TAG: u32 = 1;

const FIRST: u64 = 2;

impl Changes {
    /// `counts`: whether any rule uses `near`. If not, this uses no memory.
    pub fn new(counts: bool) -> Changes {
        let slots = if counts { FIRST + SLOTS } else { 0 };
        Changes { counts: (0..slots).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a change. Must be called before the change is sent and again before it is acknowledged.
    pub fn note(&self, change: Changed<'_>) {
        if self.counts.is_empty() {
            return;
        }
        if let Changed::Tag(_) = change {
            // Before the tag's own counter: see `add_tags` in near.rs.
            self.counts[ANY_TAG as usize].fetch_add(1, SeqCst);
        }
        self.counts[slot(change) as usize].fetch_add(1, SeqCst);
    }

    /// Counts only increase, so a sum is unchanged only if each count is.
    pub(super) fn sum(&self, slots: &[u32]) -> u64 {
        let count = |slot: &u32| self.counts.get(*slot as usize).map_or(0, |count| count.load(SeqCst));
        slots.iter().map(count).fold(0, u64::wrapping_add)
    }
}

pub(super) fn slot(change: Changed<'_>) -> u32 {
    let (kind, name) = match change {
        Changed::Everything => return EVERYTHING,
        Changed::Key(key) => (0u8, key),
        Changed::Tag(name) => (1, name),
    };
    // The same hash in every worker.
    let mut hasher = DefaultHasher::new();
    (kind, name).hash(&mut hasher);
    (FIRST + hasher.finish() % SLOTS) as u32
}

pub(super) type Slots = SmallVec<[u32; 4]>;
