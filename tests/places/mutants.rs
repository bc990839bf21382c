//! Mutants: each removes one defence, around the machine or in an operation.

use kennel::failover::{Command, Operation, Record, Reply};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A new fence is used at once.
    NoGrace,
    /// One copy is a view.
    ViewOfOneCopy,
    /// The record of two copies is written onto the third, which has lost it.
    CopiesTheRecord,
    /// Each process has a window of its own.
    WindowsDiffer,
    /// A miss during the grace leaves the right to fill.
    LeaseInTheGrace,
    /// A tag's item is not sealed.
    TagNotSealed,
    /// A value is served as fresh without a view.
    ServesWithoutView,
    /// An invalidation is acknowledged without a view.
    AcknowledgesWithoutView,
    /// A copy is written whatever it holds.
    NoCas,
    /// A copy without a record is written by `add`.
    AddsToEmptyCopies,
    /// Three empty copies are settled at once.
    SettlesEmptyCopies,
    /// A place with one copy left keeps its fence.
    KeepsTheFence,
    /// A view is valid from the replies on.
    ValidFromReplies,
    /// The fence of a value is not compared.
    FenceNotCompared,
    /// A fill needs no view.
    FillsWithoutView,
}

impl Mutant {
    /// Those that random schedules catch, with a number of seeds among which one does. The model has a schedule for each of the
    /// others (docs/model.md).
    pub const ALL: &[(Mutant, u64)] = &[
        (Mutant::NoGrace, 200),
        (Mutant::ViewOfOneCopy, 800),
        (Mutant::WindowsDiffer, 1200),
        (Mutant::LeaseInTheGrace, 1200),
        (Mutant::FenceNotCompared, 200),
        (Mutant::AcknowledgesWithoutView, 200),
    ];

    /// What the machine is told instead of the replies to its reads.
    pub fn replies(self, replies: &mut [Reply], window: u32) {
        let records = replies.len().min(3);
        match self {
            Mutant::NoGrace => change(&mut replies[..records], |record| record.settled = true),
            Mutant::WindowsDiffer => change(&mut replies[..records], |record| {
                (record.window, record.grace) = (window, window);
            }),
            Mutant::ViewOfOneCopy => {
                let one = replies[..records].iter().find(|reply| record(reply).is_some()).cloned();
                if let Some(one) = one {
                    replies[..records].fill(one);
                }
            }
            _ => {}
        }
    }

    /// What is sent instead of a round's commands. `copies`: what its reads found.
    pub fn commands(self, commands: &mut Vec<Command>, copies: &[Reply]) {
        let empty =
            |copy: usize| matches!(copies.get(copy), Some(Reply::Found(value, _)) if value.is_empty());
        let held: Vec<Record> = copies.iter().filter_map(record).collect();
        for command in commands.iter_mut() {
            let Operation::Replace(value, _) = &mut command.operation else { continue };
            let Some(mut new) = Record::decode(value) else { continue };
            match self {
                Mutant::SettlesEmptyCopies if (0..3).all(empty) => new.settled = true,
                Mutant::KeepsTheFence if held.len() == 1 && !new.settled => {
                    new = Record { settled: held[0].settled, fence: held[0].fence, ..new };
                }
                _ => {}
            }
            *value = new.encode();
        }
        if self == Mutant::CopiesTheRecord
            && let [one, other] = held[..]
            && one.fence == other.fence
            && let Some(third) = (0..3).find(|copy| empty(*copy))
            && let Some(Reply::Found(_, cas)) = copies.get(third)
        {
            commands.retain(|command| command.copy != third);
            commands.push(Command {
                copy: third,
                item: kennel::failover::Item::Record,
                operation: Operation::Replace(one.encode(), *cas),
            });
        }
    }
}

fn record(reply: &Reply) -> Option<Record> {
    match reply {
        Reply::Found(value, _) => Record::decode(value),
        _ => None,
    }
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
