//! What a run explores, and the mutants.

use kennel::failover::{Cas, Command, Item, Operation, Record, Reply};

/// How often each thing may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Left {
    /// A server does not carry out what a round sends to it.
    pub failures: u8,
    /// The server itself refuses a sidecar.
    pub refusals: u8,
    /// A write is carried out after its sidecar has given it up.
    pub delays: u8,
    /// A copy is lost.
    pub losses: u8,
    /// All copies are lost.
    pub flushes: u8,
    /// A sidecar restarts.
    pub restarts: u8,
    /// A sidecar is asked to drain the server, or to let its keys return.
    pub wishes: u8,
}

/// What a run explores.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: &'static str,
    /// The pool is new; otherwise it has been running.
    pub is_new: bool,
    pub windows: [u32; 2],
    /// The reads of a round are carried out at the same time.
    pub whole_reads: bool,
    /// How many ticks the commands of a round may take.
    pub slow: u64,
    pub left: Left,
    /// One for what happens as often as `left` says, zero for what may happen without end.
    pub limit: Left,
    /// A guarded key; `true`: its tag is on the server and the key elsewhere.
    pub guarded: Option<bool>,
    /// Sidecars ask each other about the server, and any one of them may lose it; otherwise nobody answers.
    pub asks: bool,
    pub mutant: Option<Mutant>,
    /// No more states than this.
    pub most: Option<usize>,
}

impl Plan {
    pub fn new(name: &'static str, left: Left) -> Plan {
        let limit =
            Left { failures: 1, refusals: 1, delays: 1, losses: 1, flushes: 1, restarts: 1, wishes: 1 };
        let (is_new, windows, whole_reads, slow) = (false, [2; 2], true, 0);
        let (guarded, asks, mutant, most) = (None, false, None, None);
        Plan { name, is_new, windows, whole_reads, slow, left, limit, guarded, asks, mutant, most }
    }

    /// The longest time that any decision depends on, in ticks.
    pub fn longest(&self) -> u64 {
        self.windows[0].max(self.windows[1]).into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A new fence is used at once.
    NoGrace,
    /// A new fence of the place that the sidecar knows is used at once.
    GraceOnlyWhereThePlaceChanges,
    /// One copy is a view.
    ViewOfOneCopy,
    /// The record of two copies is written onto the third, which has lost it.
    CopiesTheRecord,
    /// A planned move does not wait for the views that were read before it was announced.
    MovesAtOnce,
    /// Each sidecar has a window of its own.
    WindowsDiffer,
    /// A copy is written whatever it holds.
    NoCas,
    /// A copy without a record is written by `add`.
    AddsToEmptyCopies,
    /// Three empty copies are settled at once.
    SettlesEmptyCopies,
    /// The same, but only under a valid view of the server's own place.
    SettlesEmptyCopiesUnderAView,
    /// A place with one copy left keeps its fence.
    KeepsTheFence,
    /// A view is valid from the replies on.
    ValidFromReplies,
    /// A miss during the grace leaves the right to fill.
    LeaseInTheGrace,
    /// A tag's item is not sealed.
    TagNotSealed,
    /// A value is served as fresh without a view.
    ServesWithoutView,
    /// An invalidation is acknowledged without a view.
    AcknowledgesWithoutView,
    /// The fence of a value is not compared.
    FenceNotCompared,
    /// A sidecar that has lost the server does not read what the others answer.
    AnswersNotRead,
    /// A sidecar with an answer does not tell the others.
    DoesNotAnswer,
    /// An answer may end before its question.
    AnswersEndFirst,
}

impl Mutant {
    /// What the machine is told instead of the replies to its reads. `known`: the record of its latest view.
    pub fn replies(self, replies: &mut [Reply], window: u32, known: Option<Record>) {
        match self {
            Mutant::NoGrace => change(&mut replies[..3], |record| record.settled = true),
            Mutant::GraceOnlyWhereThePlaceChanges => change(&mut replies[..3], |record| {
                record.settled |= known.is_some_and(|known| known.standby == record.standby);
            }),
            Mutant::MovesAtOnce => change(&mut replies[..3], |record| {
                record.grace = if record.leaving { 0 } else { record.grace };
            }),
            Mutant::WindowsDiffer => change(&mut replies[..3], |record| {
                (record.window, record.grace) = (window, window);
            }),
            Mutant::ViewOfOneCopy => {
                let Some(one) = replies[..3].iter().find_map(record) else { return };
                for reply in &mut replies[..3] {
                    let cas = match reply {
                        Reply::Found(_, cas) => *cas,
                        Reply::Failed { refused: true } => continue,
                        _ => Cas { number: u64::MAX, epoch: 0 },
                    };
                    *reply = Reply::Found(one.encode(), cas);
                }
            }
            _ => {}
        }
    }

    /// What is sent instead of a round's commands. `copies`: what its reads found. `is_own`: under a view of the own place.
    pub fn commands(self, commands: &mut Vec<Command>, copies: &[Reply], is_own: bool) {
        let empty =
            |copy: usize| matches!(copies.get(copy), Some(Reply::Found(value, _)) if value.is_empty());
        let held: Vec<Record> = copies.iter().filter_map(record).collect();
        let settles = match self {
            Mutant::SettlesEmptyCopies => (0..3).all(empty),
            Mutant::SettlesEmptyCopiesUnderAView => is_own && (0..3).all(empty),
            _ => false,
        };
        for command in commands.iter_mut() {
            let Operation::Replace(value, _) = &mut command.operation else { continue };
            let Some(mut new) = Record::decode(value) else { continue };
            new.settled |= settles;
            if self == Mutant::KeepsTheFence && held.len() == 1 {
                new = Record { settled: held[0].settled, fence: held[0].fence, ..new };
            }
            *value = new.encode();
        }
        if self == Mutant::CopiesTheRecord
            && let [one, other] = held[..]
            && one.fence == other.fence
            && let Some(third) = (0..3).find(|copy| empty(*copy))
            && let Some(Reply::Found(_, cas)) = copies.get(third)
            && commands.iter().any(|command| command.item == Item::Record)
        {
            commands.retain(|command| command.item != Item::Record);
            let operation = Operation::Replace(one.encode(), *cas);
            commands.push(Command { copy: third, item: Item::Record, operation });
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
