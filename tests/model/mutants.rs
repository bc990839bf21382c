//! Mutants, applied between the guard and its server.

use kennel::guard::{
    GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode, envelope::Header,
    envelope::Opened,
};

use super::operation::{Doing, Op};
use super::plan::{Mutant, Plan};
use super::world::World;

impl World {
    pub fn mutated(&self, op: &Op, mut ask: ServerCommand, plan: &Plan) -> ServerCommand {
        let stub = self.server.item.as_ref().is_some_and(|item| item.is_stub());
        match (plan.mutant, &op.doing, ask.at, &mut ask.what) {
            (Some(Mutant::FillWithoutCas), Doing::Fill(..), ItemRef::Value, Operation::Store { cas, .. })
            | (
                Some(Mutant::NoDoubleCheck),
                Doing::Read(_),
                ItemRef::Value,
                Operation::MarkStale { cas, .. },
            )
            | (Some(Mutant::UnlockWithoutCompare), _, ItemRef::Lock, Operation::Delete { cas }) => {
                *cas = None
            }
            (Some(Mutant::LockIsShared), Doing::Read(_), ItemRef::Lock, Operation::Store { mode, .. }) => {
                *mode = StoreMode::Set;
            }
            (
                Some(Mutant::DeleteSparesStub),
                Doing::Delete(_),
                ItemRef::Value,
                what @ Operation::Delete { .. },
            ) if stub => {
                *what = Operation::Get(GetFlags::default());
            }
            (
                Some(Mutant::DeleteSparesLock),
                Doing::Delete(_),
                ItemRef::Lock,
                what @ Operation::Delete { .. },
            ) => {
                *what = Operation::Get(GetFlags::default());
            }
            _ => {}
        }
        ask
    }
}

pub fn mutate_answers(mutant: Mutant, op: &mut Op, answers: &mut Replies) {
    if let (Mutant::DeleteSparesStub, Doing::Delete(_)) = (mutant, &op.doing) {
        for (ask, answer) in op.asks.iter().zip(answers.iter_mut()) {
            if let (Operation::Delete { .. }, ServerReply::Item(_)) = (&ask.what, &answer) {
                *answer = ServerReply::Absent;
            }
        }
    }
    if !matches!(op.doing, Doing::Read(_)) {
        return;
    }
    let claims = matches!(
        op.asks.first(),
        Some(ServerCommand { at: ItemRef::Lock, what: Operation::Store { mode: StoreMode::Add, .. } })
    );
    if let (Mutant::NoDoubleCheck, true, [ServerReply::Stored(_), second, ..], Some(read)) =
        (mutant, claims, &mut answers[..], &op.read)
    {
        *second = ServerReply::Item(read.clone());
    }
    let looks = |ask: &ServerCommand| {
        matches!(
            ask,
            ServerCommand { at: ItemRef::Value, what: Operation::Get(GetFlags { value: true, .. }) }
        )
    };
    let Some(at) = op.asks.iter().position(looks) else { return };
    let ServerReply::Item(item) = &mut answers[at] else { return };
    match mutant {
        Mutant::NoDoubleCheck => op.read = Some(item.clone()),
        Mutant::StaleIsFresh => item.ttl = item.ttl.map(|ttl| ttl + 100),
        Mutant::LostTagIsUnmoved => {
            let item = item.clone();
            let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return };
            for (ask, answer) in op.asks.iter().zip(answers) {
                let (ItemRef::Tag(_), ServerReply::Item(tag), Some((_, version))) =
                    (ask.at, answer, envelope.tags().next())
                else {
                    continue;
                };
                if tag.size == 0 {
                    let value = version.to_string();
                    *tag = Item { size: value.len(), value: value.into(), ..item.clone() };
                }
            }
        }
        _ => {}
    }
}
