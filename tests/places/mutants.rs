//! Mutants: each removes one defence, around the machine or in an operation.

use kennel::failover::{Command, Operation, Record, Reply};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A new fence is used at once.
    NoGrace,
    /// A miss during the grace leaves the right to fill.
    LeaseInTheGrace,
    /// An invalidation is acknowledged without a view.
    AcknowledgesWithoutView,
    /// A record of which one copy is left is succeeded under the former fence.
    LostCopiesKeepTheFence,
}

impl Mutant {
    /// Those that random schedules catch, with a number of seeds among which one does. The model has a schedule for each of the
    /// others (`tests/model/failover/traces.rs`).
    pub const ALL: &[(Mutant, u64)] =
        &[(Mutant::NoGrace, 800), (Mutant::LeaseInTheGrace, 1200), (Mutant::AcknowledgesWithoutView, 200)];

    /// What the machine is told instead of the replies to its reads.
    pub fn replies(self, replies: &mut [Reply]) {
        let records = replies.len().min(3);
        let records = &mut replies[..records];
        if self == Mutant::NoGrace {
            settle(records);
        }
    }

    /// What is sent instead of these commands. `found`: what the reads of the round found in the copies.
    pub fn commands(self, commands: &mut [Command], found: &[Reply]) {
        let held: Vec<Record> = found.iter().filter_map(record).collect();
        let (Mutant::LostCopiesKeepTheFence, [former]) = (self, &held[..]) else { return };
        for command in commands {
            if let Operation::Replace(value, _) = &mut command.operation
                && let Some(new) = Record::decode(value)
                && new.standby == former.standby
            {
                *value = Record { fence: former.fence, settled: former.settled, ..new }.encode();
            }
        }
    }
}

fn settle(replies: &mut [Reply]) {
    change(replies, |record| record.settled = true);
}

fn change(replies: &mut [Reply], change: impl Fn(&mut Record)) {
    for reply in replies {
        if let Reply::Found(value, _) = reply
            && let Some(mut record) = Record::decode(value)
        {
            change(&mut record);
            *value = record.encode();
        }
    }
}

fn record(reply: &Reply) -> Option<Record> {
    match reply {
        Reply::Found(value, _) => Record::decode(value),
        _ => None,
    }
}
