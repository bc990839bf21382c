//! Mutants, applied between the guard and its server.

use kennel::guard::{
    GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode, envelope::Header,
    envelope::Opened,
};

use super::operation::{Op, Task};
use super::plan::{Mutant, Plan};
use super::world::World;

impl World {
    pub fn mutated(&self, op: &Op, mut command: ServerCommand, plan: &Plan) -> ServerCommand {
        let stub = self.server.item.as_ref().is_some_and(|item| item.is_stub());
        match (plan.mutant, &op.task, command.item, &mut command.operation) {
            (Some(Mutant::FillWithoutCas), Task::Fill(..), ItemRef::Value, Operation::Store { cas, .. })
            | (
                Some(Mutant::NoDoubleCheck),
                Task::Read(_),
                ItemRef::Value,
                Operation::MarkStale { cas, .. },
            )
            | (Some(Mutant::UnlockWithoutCompare), _, ItemRef::Lock, Operation::Delete { cas }) => {
                *cas = None
            }
            (Some(Mutant::LockIsShared), Task::Read(_), ItemRef::Lock, Operation::Store { mode, .. }) => {
                *mode = StoreMode::Set;
            }
            (
                Some(Mutant::DeleteSparesStub),
                Task::Delete(_),
                ItemRef::Value,
                operation @ Operation::Delete { .. },
            ) if stub => {
                *operation = Operation::Get(GetFlags::default());
            }
            (
                Some(Mutant::DeleteSparesLock),
                Task::Delete(_),
                ItemRef::Lock,
                operation @ Operation::Delete { .. },
            ) => {
                *operation = Operation::Get(GetFlags::default());
            }
            _ => {}
        }
        command
    }
}

pub fn mutate_replies(mutant: Mutant, op: &mut Op, replies: &mut Replies) {
    if let (Mutant::DeleteSparesStub, Task::Delete(_)) = (mutant, &op.task) {
        for (command, reply) in op.commands.iter().zip(replies.iter_mut()) {
            if let (Operation::Delete { .. }, ServerReply::Item(_)) = (&command.operation, &reply) {
                *reply = ServerReply::Absent;
            }
        }
    }
    if !matches!(op.task, Task::Read(_)) {
        return;
    }
    let claims = matches!(
        op.commands.first(),
        Some(ServerCommand { item: ItemRef::Lock, operation: Operation::Store { mode: StoreMode::Add, .. } })
    );
    if let (Mutant::NoDoubleCheck, true, [ServerReply::Stored(_), second, ..], Some(read)) =
        (mutant, claims, &mut replies[..], &op.read)
    {
        *second = ServerReply::Item(read.clone());
    }
    let looks = |command: &ServerCommand| {
        matches!(
            command,
            ServerCommand { item: ItemRef::Value, operation: Operation::Get(GetFlags { value: true, .. }) }
        )
    };
    let Some(at) = op.commands.iter().position(looks) else { return };
    let ServerReply::Item(item) = &mut replies[at] else { return };
    match mutant {
        Mutant::NoDoubleCheck => op.read = Some(item.clone()),
        Mutant::StaleIsFresh => item.ttl = item.ttl.map(|ttl| ttl + 100),
        Mutant::LostTagIsUnmoved => {
            let item = item.clone();
            let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return };
            for (command, reply) in op.commands.iter().zip(replies) {
                let (ItemRef::Tag(_), ServerReply::Item(tag), Some((_, version))) =
                    (command.item, reply, envelope.tags().next())
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
