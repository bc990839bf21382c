//! What is broken on purpose, between the guard and its servers: one defence each. The simulation must catch every one.

use bytes::{Bytes, BytesMut};
use kennel::guard::envelope::{Envelope, Header, Opened};
use kennel::guard::{
    Cas, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode, Stored,
    incarnation_of, version_millis,
};

use super::operation::{Doing, Op, Purpose};
use super::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A fill stores whatever stands there.
    FillWithoutCas,
    /// The look behind the lock sees what the read saw, and the mark is put on whatever stands there.
    NoDoubleCheck,
    /// A lock is deleted whoever holds it.
    UnlockWithoutCompare,
    /// A lost tag answers with the version that the value was sealed with.
    LostTagIsUnmoved,
    /// A fill is sealed with the versions of its own moment.
    SnapshotAtSet,
    /// No lease is ever renewed.
    NoRenewal,
    /// A delete leaves alone what it does not find worth a `DELETED`: the stub.
    DeleteSparesStub,
    /// Who holds a win waits for other keys all the same.
    WaitsWithWin,
    /// Who has a request behind waits all the same.
    WaitsThoughPipelined,
    /// A bump takes the larger of the old version and now, not of the old one + 1 and now.
    BumpByNow,
    /// A CAS that was read before the connection was remade is compared all the same.
    NoEpochCheck,
    /// Whatever the poller finds, it wakes nobody.
    PollerNeverWakes,
    /// A fill wakes nobody.
    FillWakesNobody,
    /// A lease that is given back deletes its lock or stub whoever holds it by now.
    ReleaseWithoutCompare,
    /// A lease is renewed whatever stands there by now.
    RenewalWithoutCompare,
    /// A delete that is to leave the old value as stale leaves it as it was.
    DeleteMarkLost,
    /// Whoever wins a stale value, or takes its lock over, does not mark it.
    WinWithoutMark,
    /// A delete leaves the lock.
    DeleteKeepsLock,
    /// The lock is taken by `set`: everyone wins.
    LockBySet,
    /// Every reader of a stub has won it.
    EveryStubIsWon,
    /// A bump stores its version whatever the tag's is by now.
    BumpWithoutCompare,
    /// A miss without the right to rebuild leaves no ticket.
    LoserLeavesNoTicket,
    /// A miss of a server that did not answer leaves no ticket.
    UnknownLeavesNoTicket,
    /// A value is stale a second late.
    StaleASecondLate,
    /// A value in its last second is won as if it stood for long.
    NoClearing,
    /// A version that was read once is used for good.
    CacheForever,
    /// `cas` seals with the versions of its own moment.
    CasSealedNow,
    /// `incr`, `prepend`, `append`, `cas` and `replace` store whatever stands there.
    ChangeWithoutCompare,
    /// `incr`, `touch`, `append` … take a stale value for a fresh one.
    ChangesStale,
    /// A fill leaves its lock.
    FillLeavesLock,
    /// A claim that came too late leaves its lock.
    ClaimLeavesLock,
    /// What is kept near counts its age from the answer.
    NearFromTheAnswer,
    /// What is kept near is served until `near` is over, stale or not.
    NearBeyondExpiry,
    /// Changes through a sidecar count only when they begin.
    ChangesCountWhenTheyBegin,
    /// Bumps do not count as changes.
    BumpsDoNotCount,
    /// A tag is created, and a copy of it brought up, whatever stands there by then.
    TagCreatedWithoutCompare,
    /// A `set` without a miss stores whatever stands there.
    SetWithoutCas,
    /// A bump reaches only the first of two copies of its tag.
    OnlyFirstCopyIsBumped,
    /// Of two copies of a tag the smaller version counts.
    SmallerCopyCounts,
    /// A version that brought up a copy may be used again as if it had been read then.
    RepairIsReused,
    /// A bump that finds the tag bumped by somebody else leaves in the cache what was read of it before.
    OvertakenBumpIsNotTold,
    /// A tag that is first named with the value has not moved since the miss.
    NamedTagIsUnmoved,
    /// Any stub is the one that was missed.
    AnyStubIsTheSame,
    /// A set whose miss the table has forgotten is one without a miss.
    ForgottenMissIsNone,
}

/// An item so many seconds before its end as it would be later.
fn younger(item: &Item, seconds: u32) -> ServerReply {
    ServerReply::Item(Item { ttl: item.ttl.map(|ttl| ttl + seconds), ..item.clone() })
}

impl World {
    pub fn mutate_ask(&self, op: &Op, mut ask: ServerCommand) -> ServerCommand {
        use Mutant as M;
        let Some(mutant) = self.plan.mutant else { return ask };
        let nothing = Operation::Get(GetFlags::default());
        match (mutant, &op.doing, ask.at, &mut ask.what) {
            (M::FillWithoutCas, Doing::Fill(_), ItemRef::Value, Operation::Store { cas, .. })
            | (
                M::TagCreatedWithoutCompare,
                Doing::Read(_),
                ItemRef::Tag(_) | ItemRef::TagCopy(_),
                Operation::Store { cas, .. },
            )
            | (M::SetWithoutCas, Doing::Set(_), ItemRef::Value, Operation::Store { cas, .. })
            | (M::UnlockWithoutCompare, _, ItemRef::Lock, Operation::Delete { cas })
            | (M::NoDoubleCheck, Doing::Read(_), ItemRef::Value, Operation::MarkStale { cas, .. })
            | (M::BumpWithoutCompare, Doing::Bump(_), _, Operation::Store { cas, .. })
            | (M::ChangeWithoutCompare, Doing::Modify(_), ItemRef::Value, Operation::Store { cas, .. }) => {
                *cas = None
            }
            (
                M::ReleaseWithoutCompare,
                Doing::Plain,
                _,
                Operation::Delete { cas } | Operation::Store { cas, .. },
            ) if matches!(op.purpose, Purpose::Freeing) => {
                *cas = None;
            }
            (M::RenewalWithoutCompare, Doing::Plain, _, Operation::Store { cas, .. })
                if matches!(op.purpose, Purpose::Renewal(_)) =>
            {
                *cas = None;
            }
            (M::DeleteSparesStub, Doing::Delete(_), ItemRef::Value, what @ Operation::Delete { .. })
                if self.stands_a_stub(op.key) =>
            {
                *what = nothing;
            }
            (M::BumpByNow, Doing::Bump(_), _, Operation::Store { mode: StoreMode::Set, value, .. }) => {
                let now = self.moment(op.sidecar).wall;
                let old = number(&value.body).saturating_sub(1);
                *value = Stored::plain(Bytes::from(old.max(now).to_string()));
            }
            (M::DeleteMarkLost, Doing::Delete(_), ItemRef::Value, what @ Operation::MarkStale { .. })
            | (M::WinWithoutMark, Doing::Read(_), ItemRef::Value, what @ Operation::MarkStale { .. })
            | (M::DeleteKeepsLock, Doing::Delete(_), ItemRef::Lock, what @ Operation::Delete { .. })
            | (M::FillLeavesLock, Doing::Fill(_), ItemRef::Lock, what @ Operation::Delete { .. })
            | (M::ClaimLeavesLock, Doing::Read(_), ItemRef::Lock, what @ Operation::Delete { .. }) => {
                *what = nothing
            }
            (
                M::OnlyFirstCopyIsBumped,
                Doing::Bump(_),
                ItemRef::TagCopy(_),
                what @ Operation::Store { .. },
            ) => *what = nothing,
            (M::NamedTagIsUnmoved, Doing::Fill(_), ItemRef::Value, Operation::Store { value, .. }) => {
                self.seal_anew(value, |old| old == 0);
            }
            (M::LockBySet, Doing::Read(_), ItemRef::Lock, Operation::Store { mode, .. }) => {
                *mode = StoreMode::Set
            }
            (
                M::CasSealedNow,
                Doing::Modify(_),
                ItemRef::Value,
                Operation::Store { mode: StoreMode::Set, value, cas: Some(_), .. },
            ) => {
                self.seal_anew(value, |_| true);
            }
            _ => {}
        }
        ask
    }

    /// Seals it with the versions of this moment in place of those that are meant.
    fn seal_anew(&self, value: &mut Stored, which: impl Fn(u64) -> bool) {
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

    pub fn mutate_answers(&self, op: &Op, answers: &mut Replies) {
        use Mutant as M;
        let Some(mutant) = self.plan.mutant else { return };
        let stale_for = self.plan.keys[op.key].policy.stale_seconds();
        match (mutant, &op.doing) {
            (M::NoDoubleCheck, Doing::Read(_)) => {
                if let (true, [ServerReply::Stored(_), second, ..], Some(read)) =
                    (op.claims(), &mut answers[..], &op.read)
                {
                    *second = ServerReply::Item(read.clone());
                }
            }
            (M::LostTagIsUnmoved, Doing::Read(_)) => {
                let Some(ServerReply::Item(item)) = answers.first().cloned() else { return };
                let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return };
                for (ask, answer) in op.asks.iter().zip(answers) {
                    let (ItemRef::Tag(tag) | ItemRef::TagCopy(tag)) = ask.at else { continue };
                    let sealed = envelope.tags().find(|(name, _)| *name == &op.tags[usize::from(tag)][..]);
                    if let (ServerReply::Item(Item { size: 0, .. }), Some((_, version))) = (&answer, sealed) {
                        let (value, flags) = (version_millis(version).to_string(), incarnation_of(version));
                        let size = value.len();
                        *answer =
                            ServerReply::Item(Item { size, flags, value: value.into(), ..item.clone() });
                    }
                }
            }
            (M::DeleteSparesStub | M::DeleteMarkLost, Doing::Delete(_)) => {
                for (ask, answer) in op.asks.iter().zip(answers) {
                    if let (ItemRef::Value, ServerReply::Item(_)) = (ask.at, &answer) {
                        match &ask.what {
                            Operation::Delete { .. } => *answer = ServerReply::Absent,
                            Operation::MarkStale { .. } => *answer = ServerReply::Done,
                            _ => {}
                        }
                    }
                }
            }
            (M::WinWithoutMark, Doing::Read(_)) => {
                if let (true, [first, ServerReply::Item(item), ..]) = (op.marks(), &mut answers[..]) {
                    (*first, item.stale) = (ServerReply::Done, true);
                }
            }
            (M::OnlyFirstCopyIsBumped, Doing::Bump(_)) => {
                for (ask, answer) in op.asks.iter().zip(answers) {
                    if let (
                        ItemRef::TagCopy(_),
                        Operation::Store { .. },
                        ServerReply::Item(_) | ServerReply::Absent,
                    ) = (ask.at, &ask.what, &answer)
                    {
                        *answer = ServerReply::Stored(Cas::NONE);
                    }
                }
            }
            (M::SmallerCopyCounts, Doing::Read(_)) => {
                for at in 1..answers.len() {
                    let is_copy = matches!(
                        (&op.asks[at - 1], &op.asks[at]),
                        (
                            ServerCommand { at: ItemRef::Tag(_), what: Operation::Get(_) },
                            ServerCommand { at: ItemRef::TagCopy(_), what: Operation::Get(_) },
                        )
                    );
                    if let (true, [ServerReply::Item(first), ServerReply::Item(copy)]) =
                        (is_copy, &mut answers[at - 1..=at])
                    {
                        let smaller = number(&first.value).min(number(&copy.value)).to_string();
                        (first.value, copy.value) = (smaller.clone().into(), smaller.into());
                    }
                }
            }
            (M::AnyStubIsTheSame, Doing::Fill(_)) => {
                let seen = match &op.purpose {
                    Purpose::Put(put) => put.stub(),
                    _ => None,
                };
                if let (Some(stub), Some(ServerReply::Item(item @ Item { size: 0, .. }))) =
                    (seen, answers.first_mut())
                {
                    item.flags = stub.flags();
                }
            }
            (M::EveryStubIsWon, Doing::Read(_)) => {
                if let Some(ServerReply::Item(item)) = answers.first_mut() {
                    item.won |= item.size == 0;
                }
            }
            (M::StaleASecondLate, Doing::Read(_)) | (M::ChangesStale, Doing::Modify(_)) => {
                let seconds = if mutant == M::ChangesStale { stale_for + 1 } else { 1 };
                for (ask, answer) in op.asks.iter().zip(answers) {
                    if let (
                        ItemRef::Value,
                        Operation::Get(GetFlags { value: true, .. }),
                        ServerReply::Item(item),
                    ) = (ask.at, &ask.what, &answer)
                    {
                        *answer = younger(item, seconds);
                    }
                }
            }
            (M::NoClearing, Doing::Read(_)) => {
                if let (true, [_, ServerReply::Item(item), ..]) =
                    (op.claims() || op.marks(), &mut answers[..])
                {
                    item.ttl = item.ttl.map(|ttl| ttl + 60);
                }
            }
            _ => {}
        }
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Op {
    /// Whether it has asked for the lock.
    fn claims(&self) -> bool {
        let first = self.asks.first();
        matches!(
            first,
            Some(ServerCommand { at: ItemRef::Lock, what: Operation::Store { mode: StoreMode::Add, .. } })
        )
    }

    /// Whether it has marked what it won.
    fn marks(&self) -> bool {
        matches!(self.asks.first(), Some(ServerCommand { what: Operation::MarkStale { .. }, .. }))
    }
}
