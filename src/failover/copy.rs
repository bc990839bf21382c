//! What the copies of a record hold, and what they say together.

use super::command::{Cas, Reply};
use super::record::Record;

/// How many servers keep a copy of a record.
pub const COPIES: usize = 3;

/// What one copy holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copy {
    Unknown,
    Empty(Cas),
    Holds(Record, Cas),
}

impl Copy {
    pub(super) fn of(reply: Option<&Reply>) -> Copy {
        match reply {
            Some(Reply::Found(value, cas)) => match Record::decode(value) {
                Some(record) => Copy::Holds(record, *cas),
                None => Copy::Empty(*cas),
            },
            _ => Copy::Unknown,
        }
    }

    pub(super) fn record(&self) -> Option<Record> {
        match self {
            Copy::Holds(record, _) => Some(*record),
            _ => None,
        }
    }

    pub(super) fn cas(&self) -> Option<Cas> {
        match self {
            Copy::Holds(_, cas) | Copy::Empty(cas) => Some(*cas),
            Copy::Unknown => None,
        }
    }
}

/// The record that two copies have: of those with the same fence, the latest successor, which is settled, or leaving, if one of them
/// is, and has the shortest window of them.
pub(super) fn agreed(copies: &[Copy; COPIES]) -> Option<Record> {
    let of = |fence| copies.iter().filter_map(Copy::record).filter(move |record| record.fence == fence);
    let fence = copies
        .iter()
        .filter_map(Copy::record)
        .map(|record| record.fence)
        .find(|fence| of(*fence).count() >= 2)?;
    let latest = of(fence).max_by_key(|record| record.version)?;
    Some(Record {
        settled: of(fence).any(|record| record.settled),
        leaving: of(fence).any(|record| record.leaving),
        window: of(fence).map(|record| record.window).min()?,
        ..latest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_copies_of_one_fence_the_shorter_window_holds() {
        let long = Record {
            fence: 7,
            standby: false,
            drained: false,
            window: 1000,
            grace: 1125,
            version: 5,
            settled: true,
            leaving: false,
            relapses: 0,
            inherited: 41,
        };
        // A late successor of the long one is later than that which announces the move.
        let leaving = Record { window: 200, leaving: true, version: 4, inherited: 0, ..long };
        let holds = |record| Copy::Holds(record, Cas { number: 1, epoch: 1 });
        let expected = Record { window: 200, leaving: true, ..long };
        for copies in [
            [holds(long), holds(leaving), Copy::Unknown],
            [holds(leaving), Copy::Unknown, holds(long)],
            [holds(long), holds(long), holds(leaving)],
        ] {
            assert_eq!(agreed(&copies), Some(expected));
        }
        assert_eq!(agreed(&[holds(long), holds(Record { fence: 8, ..leaving }), Copy::Unknown]), None);
    }
}
