//! Mutants: each removes one defence, around the machine or in an operation.

use kennel::failover::{Record, Reply};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A new fence is used at once.
    NoGrace,
    /// A miss during the grace leaves the right to fill.
    LeaseInTheGrace,
    /// An invalidation is acknowledged without a view.
    AcknowledgesWithoutView,
}

impl Mutant {
    /// Those that random schedules catch, with a number of seeds among which one does. The model has a schedule for each of the
    /// others (docs/model.md).
    pub const ALL: &[(Mutant, u64)] =
        &[(Mutant::NoGrace, 200), (Mutant::LeaseInTheGrace, 1200), (Mutant::AcknowledgesWithoutView, 200)];

    /// What the machine is told instead of the replies to its reads.
    pub fn replies(self, replies: &mut [Reply]) {
        let records = replies.len().min(3);
        let records = &mut replies[..records];
        match self {
            Mutant::NoGrace => settle(records),
            Mutant::LeaseInTheGrace | Mutant::AcknowledgesWithoutView => {}
        }
    }
}

fn settle(replies: &mut [Reply]) {
    for reply in replies {
        if let Reply::Found(value, _) = reply
            && let Some(record) = Record::decode(value)
        {
            *value = Record { settled: true, ..record }.encode();
        }
    }
}
