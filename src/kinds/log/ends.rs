//! How many bytes of a log's current slot were reserved, as far as this process has seen. With it, an append names its part without
//! a question to the server.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::generations::Generations;

/// How many logs each of the two generations has.
const MAX_LOGS: usize = 4_096;

type Ends = Generations<Box<[u8]>, End>;

/// The table, which all workers share. A log that it has forgotten costs the next append one more round trip.
#[derive(Debug)]
pub(in crate::kinds) struct LogEnds(Mutex<Ends>);

impl Default for LogEnds {
    fn default() -> LogEnds {
        LogEnds(Mutex::new(Generations::new(MAX_LOGS)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    slot: u64,
    bytes: u64,
}

impl LogEnds {
    /// The most bytes of this slot that a reply has shown to be reserved.
    pub(super) fn get(&self, own: &[u8], slot: u64) -> Option<u64> {
        let ends = self.lock();
        let end = ends.get(own)?;
        (end.slot == slot).then_some(end.bytes)
    }

    /// A reply has shown that so many bytes of this slot are reserved. If it was fewer than are known, another reply has overtaken it.
    pub(super) fn saw(&self, own: &[u8], slot: u64, bytes: u64) {
        self.lock().put(own, End { slot, bytes }, End::max);
    }

    /// The server does not have what was seen.
    pub(super) fn forget(&self, own: &[u8]) {
        self.lock().remove(own);
    }

    fn lock(&self) -> MutexGuard<'_, Ends> {
        // No panic leaves a change to the table half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_bytes_of_the_latest_slot_are_remembered() {
        let ends = LogEnds::default();
        assert_eq!(ends.get(b"k", 7), None);
        for (slot, bytes) in [(7, 10), (7, 30), (7, 20), (6, 99)] {
            ends.saw(b"k", slot, bytes);
        }
        assert_eq!((ends.get(b"k", 7), ends.get(b"k", 6), ends.get(b"j", 7)), (Some(30), None, None));
        ends.saw(b"k", 8, 1);
        assert_eq!((ends.get(b"k", 7), ends.get(b"k", 8)), (None, Some(1)));
        ends.forget(b"k");
        assert_eq!(ends.get(b"k", 8), None);
    }

    #[test]
    fn of_too_many_logs_those_not_appended_to_for_longest_are_forgotten() {
        let ends = LogEnds::default();
        ends.saw(b"used", 1, 7);
        for n in 0..MAX_LOGS * 3 {
            ends.saw(n.to_string().as_bytes(), 1, 1);
            ends.saw(b"used", 1, 1);
        }
        assert_eq!((ends.get(b"used", 1), ends.get(b"0", 1)), (Some(7), None));
    }
}
