//! Mutants: each removes one defence, between a machine and its server or in what drives it. A schedule must catch every one.

use bytes::Bytes;
use kennel::kinds::{Command, Inputs, Machine, Mode, Operation, Replies, Reply, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A CAS from before the connection was replaced is still compared.
    NoEpochCheck,
    /// A count that timed out is sent again.
    FailedCountIsSentAgain,
    /// An append that timed out is sent again.
    FailedAppendIsSentAgain,
    /// A count that timed out is acknowledged.
    FailedCountIsAcknowledged,
    /// A sum leaves out the slot after the current one.
    NextSlotIsNotRead,
    /// A sum leaves out the oldest slot.
    OldestSlotIsNotRead,
    /// A slot ends with the window that began when it was created.
    SlotEndsWithItsWindow,
    /// The marker of a visitor ends after a second.
    MarkerEndsEarly,
    /// A marker is replaced without comparing the CAS.
    MarkerWithoutCompare,
    /// A lock is taken, or a visitor marked, by `set`.
    SetForAdd,
    /// A lock lives for its TTL on its server, of which memcached may take off a second, and by the clocks of all sidecars.
    LockWithoutMargin,
    /// A lock is renewed without comparing the CAS.
    RenewalWithoutCompare,
    /// A lock is deleted without comparing the CAS.
    ReleaseWithoutCompare,
    /// Whoever reads a lock takes it for its own.
    TokenNotCompared,
    /// A lock counts as held for its TTL from the reply to a renewal on.
    HeldFromTheReply,
    /// Fencing numbers begin with 1.
    FenceBeginsWithOne,
    /// What is left of a list or of the names of a table is stored without comparing the CAS.
    FoldWithoutCompare,
    /// A name that was removed before its element was stored is not appended once more.
    NameIsNotAppendedAgain,
    /// A name goes when its element was absent once.
    NameGoesAtOnce,
    /// A change is acknowledged once the first copy has it.
    SecondIsNotStored,
    /// The first copy begins anew without a new life in the second.
    NoClaim,
    /// The first copy is stored without comparing the CAS.
    FirstWithoutCompare,
    /// The second copy is stored without comparing the CAS.
    SecondWithoutCompare,
    /// The keys of copies have no fence.
    CopiesWithoutFence,
    /// A read returns what only the first copy has, where it must not.
    FirstCopyIsEnough,
}

impl Mutant {
    /// What is sent instead of this command.
    pub fn change(self, command: &mut Command) {
        use Mutant as M;
        match (self, &mut command.operation) {
            (M::NextSlotIsNotRead, Operation::GetMany(keys)) if keys.iter().count() > 1 => {
                *keys = keys.iter().take(keys.iter().count() - 1).collect();
            }
            (M::OldestSlotIsNotRead, Operation::GetMany(keys)) if keys.iter().count() > 1 => {
                *keys = keys.iter().skip(1).collect();
            }
            (M::SlotEndsWithItsWindow, Operation::Count { exptime, .. }) => *exptime = 2,
            (M::MarkerEndsEarly, Operation::Store { exptime, .. }) => *exptime = 1,
            (M::MarkerWithoutCompare, Operation::Store { cas, .. }) => *cas = None,
            (M::SetForAdd, Operation::Store { mode, .. }) => *mode = Mode::Set,
            (M::LockWithoutMargin, Operation::Store { exptime, .. }) => *exptime = 1,
            (M::RenewalWithoutCompare, Operation::Store { cas, .. })
            | (M::ReleaseWithoutCompare, Operation::Delete { cas }) => *cas = None,
            (M::FoldWithoutCompare, Operation::Store { cas, .. } | Operation::Delete { cas }) => *cas = None,
            (M::NameGoesAtOnce, Operation::Store { value, .. }) => {
                let lines = value.split_inclusive(|byte| *byte == b'\n');
                *value = lines.filter(|line| line[0] != b'?').flatten().copied().collect();
            }
            (M::FenceBeginsWithOne, Operation::Count { initial, .. }) => *initial = 1,
            _ => {}
        }
    }

    /// What is sent to a copy instead of this command.
    pub fn change_copy(self, copy: usize, command: &mut Command) {
        use Mutant as M;
        if let (M::FirstWithoutCompare, 0, Operation::Store { cas, .. })
        | (M::SecondWithoutCompare, 1, Operation::Store { cas, .. }) = (self, copy, &mut command.operation)
        {
            *cas = None;
        }
    }
}

/// A machine of which a mutant changes the commands, and the replies that it takes.
#[derive(Debug)]
pub struct Mutated<M> {
    machine: M,
    mutant: Option<Mutant>,
    /// What it stored last.
    stored: Bytes,
}

impl<M: Machine> Mutated<M> {
    pub fn new(machine: M, mutant: Option<Mutant>) -> Mutated<M> {
        Mutated { machine, mutant, stored: Bytes::new() }
    }
}

impl<M: Machine> Machine for Mutated<M> {
    fn resume(&mut self, mut replies: Replies, inputs: &Inputs) -> Step {
        if let (Some(Reply::Item(item)), Some(Mutant::TokenNotCompared)) = (replies.first_mut(), self.mutant)
        {
            item.data = self.stored.clone();
        }
        let mut step = self.machine.resume(replies, inputs);
        if let (Step::Send(commands), Some(mutant)) = (&mut step, self.mutant) {
            commands.iter_mut().for_each(|command| mutant.change(command));
            if let Some(Operation::Store { value, .. }) = commands.first().map(|command| &command.operation) {
                self.stored = value.clone();
            }
        }
        step
    }
}
