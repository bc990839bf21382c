//! Mutants: each removes one defence, between the guard and its servers. The simulation must catch every one.

use bytes::{Bytes, BytesMut};
use kennel::guard::envelope::{Envelope, Header, LockRecord, Opened};
use kennel::guard::{
    Cas, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode, Stored,
    incarnation_of, read_tag, tag_value, version_millis,
};

use super::operation::{Op, Purpose, Task};
use super::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A stub is taken over without comparing the CAS: every waiter that is let through wins.
    TakesOverWithoutCompare,
    /// Whoever has waited for `cold_wait` is told a miss.
    EveryWaiterIsToldAMiss,
    /// A fill is stored without comparing the CAS.
    FillWithoutCas,
    /// The read after the lock returns what the first read returned, and the mark is set without comparing the CAS.
    NoDoubleCheck,
    /// A lock is deleted without comparing the CAS.
    UnlockWithoutCompare,
    /// A lost tag has the version that the value was sealed with.
    LostTagIsUnmoved,
    /// A fill is sealed with the versions at the time of the `set`.
    SnapshotAtSet,
    /// Leases are never renewed.
    NoRenewal,
    /// A delete does not remove a stub.
    DeleteSparesStub,
    /// A client that holds a win still waits for other keys.
    WaitsWithWin,
    /// A request with another one pipelined behind it still waits.
    WaitsThoughPipelined,
    /// A bump stores the larger of the old version and the current time, instead of the old version + 1 and the current time.
    BumpByNow,
    /// A CAS from before the connection was replaced is still compared.
    NoEpochCheck,
    /// A poll wakes no waiter, whatever it finds.
    PollerNeverWakes,
    /// A fill wakes no waiter.
    FillWakesNoWaiter,
    /// Releasing a lease deletes its lock or stub without comparing the CAS.
    ReleaseWithoutCompare,
    /// A lease is renewed without comparing the CAS.
    RenewalWithoutCompare,
    /// A delete that must leave the old value as stale does not mark it.
    DeleteMarkLost,
    /// A client that wins a stale value, or takes its lock over, does not mark it.
    WinWithoutMark,
    /// A delete leaves the lock.
    DeleteKeepsLock,
    /// The lock is claimed with `set`: every client wins.
    LockBySet,
    /// Every reader of a stub wins it.
    EveryStubIsWon,
    /// A bump is stored without comparing the CAS.
    BumpWithoutCompare,
    /// A miss without a lease leaves no token.
    LoserLeavesNoToken,
    /// A miss because a server did not respond leaves no token.
    UnknownLeavesNoToken,
    /// A value becomes stale one second late.
    StaleASecondLate,
    /// A value in its last second is won as if it had longer to live.
    NoClearing,
    /// A tag version is cached for good.
    CacheForever,
    /// `cas` seals with the versions at the time of the command.
    CasSealedNow,
    /// `incr`, `prepend`, `append`, `cas` and `replace` store without comparing the CAS.
    ChangeWithoutCompare,
    /// `incr`, `touch`, `append` … accept a stale value as fresh.
    ChangesStale,
    /// A fill leaves its lock.
    FillLeavesLock,
    /// A claim that came too late leaves its lock.
    ClaimLeavesLock,
    /// The age of a near value counts from the reply instead of the request.
    NearFromTheAnswer,
    /// A near value is served until `near` is over, even if it has expired.
    NearBeyondExpiry,
    /// A change through a sidecar is noted only when it begins.
    ChangesCountWhenTheyBegin,
    /// Bumps are not noted as changes.
    BumpsDoNotCount,
    /// A tag is created, and a copy of it repaired, without comparing the CAS.
    TagCreatedWithoutCompare,
    /// A `set` without a miss is stored without comparing the CAS.
    SetWithoutCas,
    /// A bump reaches only the first of two copies of its tag.
    OnlyFirstCopyIsBumped,
    /// The smaller version of two copies of a tag counts.
    SmallerCopyCounts,
    /// A version stored to repair a copy is cached as if it had been read then.
    RepairIsReused,
    /// A tag that the value names for the first time counts as not bumped since the miss.
    NamedTagIsUnmoved,
    /// A fill is stored over any stub, not only over the one that was missed.
    AnyStubIsTheSame,
    /// A `set` whose miss the lease table has discarded counts as one without a miss.
    ForgottenMissIsNone,
    /// A value of another fence counts as one of the current fence.
    FenceNotCompared,
    /// A miss of another fence is filled, under the current one.
    FillUnderAnotherFence,
    /// Clients are shown the CAS numbers of the servers, whatever the fence.
    NumbersOfAllFences,
    /// Neither the fence of a value nor that of a CAS number is compared: [`Mutant::FenceNotCompared`] and
    /// [`Mutant::NumbersOfAllFences`] at once.
    NoFenceOfValues,
    /// A sidecar whose view is no longer valid goes on with it.
    ViewOutlivesItself,
    /// The item of a tag counts whatever its fence.
    TagNotSealed,
    /// A lock of another fence counts as held.
    LockOfAnotherFenceIsHeld,
}

/// The item as it was `seconds` earlier.
fn younger(item: &Item, seconds: u32) -> ServerReply {
    ServerReply::Item(Item { ttl: item.ttl.map(|ttl| ttl + seconds), ..item.clone() })
}

impl World {
    pub fn mutate_command(&self, op: &Op, mut command: ServerCommand) -> ServerCommand {
        use Mutant as M;
        let Some(mutant) = self.plan.mutant else { return command };
        let nothing = Operation::Get(GetFlags::default());
        match (mutant, &op.doing, command.item, &mut command.operation) {
            (M::FillWithoutCas, Task::Fill(_), ItemRef::Value, Operation::Store { cas, .. })
            | (M::TakesOverWithoutCompare, Task::Read(_), ItemRef::Value, Operation::Store { cas, .. })
            | (
                M::TagCreatedWithoutCompare,
                Task::Read(_),
                ItemRef::Tag(_) | ItemRef::TagCopy(_),
                Operation::Store { cas, .. },
            )
            | (M::SetWithoutCas, Task::Set(_), ItemRef::Value, Operation::Store { cas, .. })
            | (M::UnlockWithoutCompare, _, ItemRef::Lock, Operation::Delete { cas })
            | (M::NoDoubleCheck, Task::Read(_), ItemRef::Value, Operation::MarkStale { cas, .. })
            | (M::BumpWithoutCompare, Task::Bump(_), _, Operation::Store { cas, .. })
            | (M::ChangeWithoutCompare, Task::Modify(_), ItemRef::Value, Operation::Store { cas, .. }) => {
                *cas = None
            }
            (
                M::ReleaseWithoutCompare,
                Task::Direct,
                _,
                Operation::Delete { cas } | Operation::Store { cas, .. },
            ) if matches!(op.purpose, Purpose::Release) => {
                *cas = None;
            }
            (M::RenewalWithoutCompare, Task::Direct, _, Operation::Store { cas, .. })
                if matches!(op.purpose, Purpose::Renewal(_)) =>
            {
                *cas = None;
            }
            (M::DeleteSparesStub, Task::Delete(_), ItemRef::Value, operation @ Operation::Delete { .. })
                if self.has_stub(op.key) =>
            {
                *operation = nothing;
            }
            (M::BumpByNow, Task::Bump(_), _, Operation::Store { mode: StoreMode::Set, value, .. }) => {
                let now = self.local_now(op.sidecar).wall;
                let old = number(&value.body).saturating_sub(1);
                *value = Stored::plain(Bytes::from(old.max(now).to_string()));
            }
            (M::DeleteMarkLost, Task::Delete(_), ItemRef::Value, operation @ Operation::MarkStale { .. })
            | (M::WinWithoutMark, Task::Read(_), ItemRef::Value, operation @ Operation::MarkStale { .. })
            | (M::DeleteKeepsLock, Task::Delete(_), ItemRef::Lock, operation @ Operation::Delete { .. })
            | (M::FillLeavesLock, Task::Fill(_), ItemRef::Lock, operation @ Operation::Delete { .. })
            | (M::ClaimLeavesLock, Task::Read(_), ItemRef::Lock, operation @ Operation::Delete { .. }) => {
                *operation = nothing
            }
            (
                M::OnlyFirstCopyIsBumped,
                Task::Bump(_),
                ItemRef::TagCopy(_),
                operation @ Operation::Store { .. },
            ) => *operation = nothing,
            (M::NamedTagIsUnmoved, Task::Fill(_), ItemRef::Value, Operation::Store { value, .. }) => {
                self.reseal(value, |old| old == 0);
            }
            (M::LockBySet, Task::Read(_), ItemRef::Lock, Operation::Store { mode, .. }) => {
                *mode = StoreMode::Set
            }
            (
                M::CasSealedNow,
                Task::Modify(_),
                ItemRef::Value,
                Operation::Store { mode: StoreMode::Set, value, cas: Some(_), .. },
            ) => {
                self.reseal(value, |_| true);
            }
            _ => {}
        }
        command
    }

    /// Replaces those versions in the seal that `which` selects by the current ones.
    fn reseal(&self, value: &mut Stored, which: impl Fn(u64) -> bool) {
        let Opened::Sealed { envelope, .. } = Envelope::open(&value.header) else { return };
        let tags = envelope.tags.iter().map(|(name, old)| {
            let now = self.peek_tags(std::slice::from_ref(name)).into_iter().next().flatten();
            (name.clone(), now.filter(|_| which(*old)).unwrap_or(*old))
        });
        let mut header = BytesMut::new();
        if (Envelope { tags: tags.collect(), ..envelope.clone() }).seal(&mut header).is_ok() {
            value.header = header.freeze();
        }
    }

    pub fn mutate_replies(&self, op: &Op, replies: &mut Replies) {
        use Mutant as M;
        let Some(mutant) = self.plan.mutant else { return };
        let stale_for = self.plan.keys[op.key].policy.stale_seconds();
        match (mutant, &op.doing) {
            (M::FenceNotCompared | M::NoFenceOfValues, _) => {
                for (command, reply) in op.commands.iter().zip(replies) {
                    if let (ItemRef::Value, ServerReply::Item(item)) = (command.item, reply)
                        && let Some(value) = sealed_under(&item.value, op.place.fence())
                    {
                        (item.size, item.value) = (value.len(), value);
                    }
                }
            }
            (M::LockOfAnotherFenceIsHeld, Task::Read(_)) => {
                for (command, reply) in op.commands.iter().zip(replies) {
                    if let (ItemRef::Lock, ServerReply::Item(item)) = (command.item, reply)
                        && let Ok(record) = LockRecord::decode(&item.value)
                    {
                        let mut value = BytesMut::new();
                        if (LockRecord { fence: op.place.fence(), ..record }).encode(&mut value).is_ok() {
                            (item.size, item.value) = (value.len(), value.freeze());
                        }
                    }
                }
            }
            (M::TagNotSealed, _) => {
                for (command, reply) in op.commands.iter().zip(replies) {
                    if let (ItemRef::Tag(_) | ItemRef::TagCopy(_), ServerReply::Item(item)) =
                        (command.item, reply)
                        && let Ok((version, _)) =
                            read_tag(&item.value, item.flags, self.local_now(op.sidecar))
                    {
                        item.value = tag_value(version, op.place_of(command.item).fence());
                        item.size = item.value.len();
                    }
                }
            }
            (M::NoDoubleCheck, Task::Read(_)) => {
                if let (true, [ServerReply::Stored(_), second, ..], Some(read)) =
                    (op.claims(), &mut replies[..], &op.read)
                {
                    *second = ServerReply::Item(read.clone());
                }
            }
            (M::LostTagIsUnmoved, Task::Read(_)) => {
                let Some(ServerReply::Item(item)) = replies.first().cloned() else { return };
                let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return };
                for (command, reply) in op.commands.iter().zip(replies) {
                    let (ItemRef::Tag(tag) | ItemRef::TagCopy(tag)) = command.item else { continue };
                    let sealed = envelope.tags().find(|(name, _)| *name == &op.tags[usize::from(tag)][..]);
                    if let (ServerReply::Item(Item { size: 0, .. }), Some((_, version))) = (&reply, sealed) {
                        let (value, flags) = (version_millis(version).to_string(), incarnation_of(version));
                        let size = value.len();
                        *reply = ServerReply::Item(Item { size, flags, value: value.into(), ..item.clone() });
                    }
                }
            }
            (M::DeleteSparesStub | M::DeleteMarkLost, Task::Delete(_)) => {
                for (command, reply) in op.commands.iter().zip(replies) {
                    if let (ItemRef::Value, ServerReply::Item(_)) = (command.item, &reply) {
                        match &command.operation {
                            Operation::Delete { .. } => *reply = ServerReply::Absent,
                            Operation::MarkStale { .. } => *reply = ServerReply::Done,
                            _ => {}
                        }
                    }
                }
            }
            (M::WinWithoutMark, Task::Read(_)) => {
                if let (true, [first, ServerReply::Item(item), ..]) = (op.marks(), &mut replies[..]) {
                    (*first, item.stale) = (ServerReply::Done, true);
                }
            }
            (M::OnlyFirstCopyIsBumped, Task::Bump(_)) => {
                for (command, reply) in op.commands.iter().zip(replies) {
                    if let (
                        ItemRef::TagCopy(_),
                        Operation::Store { .. },
                        ServerReply::Item(_) | ServerReply::Absent,
                    ) = (command.item, &command.operation, &reply)
                    {
                        *reply = ServerReply::Stored(Cas::NONE);
                    }
                }
            }
            (M::SmallerCopyCounts, Task::Read(_)) => {
                for at in 1..replies.len() {
                    let is_copy = matches!(
                        (&op.commands[at - 1], &op.commands[at]),
                        (
                            ServerCommand { item: ItemRef::Tag(_), operation: Operation::Get(_) },
                            ServerCommand { item: ItemRef::TagCopy(_), operation: Operation::Get(_) },
                        )
                    );
                    if let (true, [ServerReply::Item(first), ServerReply::Item(copy)]) =
                        (is_copy, &mut replies[at - 1..=at])
                    {
                        let smaller = number(&first.value).min(number(&copy.value)).to_string();
                        (first.value, copy.value) = (smaller.clone().into(), smaller.into());
                    }
                }
            }
            (M::AnyStubIsTheSame, Task::Fill(_)) => {
                let seen = match &op.purpose {
                    Purpose::Store(put) => put.stub(),
                    _ => None,
                };
                if let (Some(stub), Some(ServerReply::Item(item @ Item { size: 0, .. }))) =
                    (seen, replies.first_mut())
                {
                    item.flags = stub.flags();
                }
            }
            (M::EveryStubIsWon, Task::Read(_)) => {
                if let Some(ServerReply::Item(item)) = replies.first_mut() {
                    item.won |= item.size == 0;
                }
            }
            (M::StaleASecondLate, Task::Read(_)) | (M::ChangesStale, Task::Modify(_)) => {
                let seconds = if mutant == M::ChangesStale { stale_for + 1 } else { 1 };
                for (command, reply) in op.commands.iter().zip(replies) {
                    if let (
                        ItemRef::Value,
                        Operation::Get(GetFlags { value: true, .. }),
                        ServerReply::Item(item),
                    ) = (command.item, &command.operation, &reply)
                    {
                        *reply = younger(item, seconds);
                    }
                }
            }
            (M::NoClearing, Task::Read(_)) => {
                if let (true, [_, ServerReply::Item(item), ..]) =
                    (op.claims() || op.marks(), &mut replies[..])
                {
                    item.ttl = item.ttl.map(|ttl| ttl + 60);
                }
            }
            _ => {}
        }
    }
}

/// The same value, sealed with this fence. `None` if it is not sealed.
fn sealed_under(value: &Bytes, fence: u64) -> Option<Bytes> {
    let Opened::Sealed { envelope, payload_at } = Envelope::open(value) else { return None };
    let mut sealed = BytesMut::new();
    (Envelope { fence, ..envelope }).seal(&mut sealed).ok()?;
    sealed.extend_from_slice(&value[payload_at..]);
    Some(sealed.freeze())
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Op {
    /// Whether its last commands claim the lock.
    fn claims(&self) -> bool {
        let first = self.commands.first();
        matches!(
            first,
            Some(ServerCommand {
                item: ItemRef::Lock,
                operation: Operation::Store { mode: StoreMode::Add, .. }
            })
        )
    }

    /// Whether its last commands claim the lock, and these replies show that it is held under another fence.
    pub fn finds_lock_of_another_fence(&self, replies: &Replies) -> bool {
        let is_held = !matches!(replies.first(), Some(ServerReply::Stored(_) | ServerReply::Failed(_)));
        let is_of_another = |(command, reply): (&ServerCommand, &ServerReply)| match (command.item, reply) {
            (ItemRef::Lock, ServerReply::Item(item)) => {
                LockRecord::decode(&item.value).is_ok_and(|record| record.fence != self.place.fence())
            }
            _ => false,
        };
        self.claims() && is_held && self.commands.iter().zip(replies).any(is_of_another)
    }

    /// Whether its last commands mark what it won.
    fn marks(&self) -> bool {
        matches!(self.commands.first(), Some(ServerCommand { operation: Operation::MarkStale { .. }, .. }))
    }
}
