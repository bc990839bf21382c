//! How a guarded key is invalidated.

use smallvec::smallvec;

use crate::error::Failure;

use super::command::{Commands, GetFlags, ItemRef, Operation, ServerCommand, ServerReply, delete, get, peek};
use super::freshness::{ItemState, judge};
use super::tags::{MAX_ROUNDS, TagRead};
use super::{Event, Inputs, Machine, OnInvalidate, Step};

/// A delete of one guarded key. Every one of them moves or removes the key's CAS, so that no fill whose rebuild began
/// before it can be stored after it; even when the key was absent, because then the stub stood there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delete {
    removal: Removal,
    state: State,
    rounds: u8,
}

/// What `md` says beyond `delete` (protocol.txt, "Meta Delete").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Removal {
    /// `C`: only the item with this CAS, stale or not.
    pub compare: Option<u64>,
    /// `I`: the value stays, as stale, whatever the rule says.
    pub stale: bool,
    /// `T`: for so many seconds; the rule's `stale_for` bounds it.
    pub seconds: Option<u32>,
    /// `E`: the CAS that what stays is to have.
    pub explicit: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// Everything in one round: a look for the reply, and the delete behind it.
    Deleting,
    /// What to do, or to leave, depends on what is there.
    Looking,
    Marking {
        present: bool,
    },
}

/// How a delete ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteEnd {
    /// The logical item was there, and is not any more.
    Deleted,
    /// There was none; a stub or stale value is gone all the same.
    NotFound,
    /// It has another CAS than [`Removal::compare`].
    Exists,
    /// Whether it is gone is not known; it must not be acknowledged.
    Failed(Failure),
}

impl Delete {
    /// Begins.
    pub fn start(scene: &Inputs<'_>) -> (Delete, Commands) {
        Delete::with_removal(Removal::default(), scene)
    }

    /// Begins a delete that is more particular.
    pub fn with_removal(removal: Removal, scene: &Inputs<'_>) -> (Delete, Commands) {
        // Whether a tag has moved can only be told from the envelope; without tags the TTL tells enough.
        let mut asks: Commands = smallvec![ServerCommand {
            at: ItemRef::Value,
            what: Operation::Get(GetFlags { value: !scene.tags.is_empty(), ..GetFlags::default() })
        }];
        let state = if removal.compare.is_some() || removal.leaves_stale(scene) {
            asks[0] = get(ItemRef::Value);
            if removal.compare.is_some() {
                asks.push(peek(ItemRef::Lock));
            }
            State::Looking
        } else {
            asks.extend([delete(ItemRef::Value, None), delete(ItemRef::Lock, None)]);
            State::Deleting
        };
        TagRead::new(scene.tags.len()).ask(&mut asks, scene);
        (Delete { removal, state, rounds: 0 }, asks)
    }
}

impl Removal {
    fn leaves_stale(&self, scene: &Inputs<'_>) -> bool {
        (self.stale || scene.policy.on_delete == OnInvalidate::Stale) && scene.policy.stale_seconds() > 0
    }
}

impl Machine for Delete {
    type End = DeleteEnd;

    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<DeleteEnd> {
        let answers = event.answers();
        match self.state {
            State::Deleting => match &answers[..] {
                [look, deleted, _lock, tags @ ..] => Step::Done(match deleted {
                    ServerReply::Done if is_present(look, tags, scene) => DeleteEnd::Deleted,
                    ServerReply::Done | ServerReply::Absent => DeleteEnd::NotFound,
                    ServerReply::Failed(failure) => DeleteEnd::Failed(*failure),
                    _ => DeleteEnd::Failed(Failure::Refused),
                }),
                _ => Step::Done(DeleteEnd::Failed(Failure::Refused)),
            },
            State::Looking => match &answers[..] {
                [ServerReply::Failed(failure), ..] => Step::Done(DeleteEnd::Failed(*failure)),
                [look @ ServerReply::Item(item), rest @ ..] => {
                    let Removal { compare, seconds, explicit, .. } = self.removal;
                    // Where the item may turn out to be another, the lock may be another's who builds that one.
                    let (unlock, tags) = match (compare, rest) {
                        (Some(_), [ServerReply::Item(lock), tags @ ..]) => {
                            (Some(delete(ItemRef::Lock, Some(lock.cas))), tags)
                        }
                        (Some(_), [_, tags @ ..]) => (None, tags),
                        (_, tags) => (Some(delete(ItemRef::Lock, None)), tags),
                    };
                    if compare.is_some_and(|compare| compare != item.cas.number) {
                        return Step::Done(match item.size {
                            0 => DeleteEnd::NotFound,
                            _ => DeleteEnd::Exists,
                        });
                    }
                    // Whoever names its CAS has seen it, stale or not.
                    let present = compare.is_some() || is_present(look, tags, scene);
                    self.state = State::Marking { present };
                    let what = if item.size == 0 || !self.removal.leaves_stale(scene) {
                        Operation::Delete { cas: Some(item.cas) }
                    } else {
                        let longest = scene.policy.stale_seconds();
                        let seconds = seconds.unwrap_or(longest).min(longest);
                        // Never beyond the end it has already: to say that end anew would put it off by part of a second.
                        let is_later = item.ttl.is_none_or(|ttl| ttl > seconds);
                        let seconds = is_later.then_some(seconds.max(1));
                        Operation::MarkStale { seconds, cas: Some(item.cas), explicit }
                    };
                    Step::Send(
                        std::iter::once(ServerCommand { at: ItemRef::Value, what }).chain(unlock).collect(),
                    )
                }
                _ => Step::Done(DeleteEnd::NotFound),
            },
            State::Marking { present } => match &answers[..] {
                [ServerReply::Done, ..] if present => Step::Done(DeleteEnd::Deleted),
                [ServerReply::Done | ServerReply::Absent, ..] => Step::Done(DeleteEnd::NotFound),
                [ServerReply::Exists, ..] if self.rounds < MAX_ROUNDS => {
                    let (delete, asks) = Delete::with_removal(self.removal, scene);
                    *self = Delete { rounds: self.rounds + 1, ..delete };
                    Step::Send(asks)
                }
                [ServerReply::Failed(failure), ..] => Step::Done(DeleteEnd::Failed(*failure)),
                _ => Step::Done(DeleteEnd::Failed(Failure::Overloaded)),
            },
        }
    }
}

/// Whether there is a logical item: not a stub, and not stale.
fn is_present(look: &ServerReply, tags: &[ServerReply], scene: &Inputs<'_>) -> bool {
    let ServerReply::Item(item) = look else { return false };
    if item.size == 0 {
        return false;
    }
    if item.value.is_empty() {
        return !item.stale && item.ttl.is_none_or(|ttl| ttl > scene.policy.stale_seconds());
    }
    let mut gather = TagRead::new(scene.tags.len());
    let versions = gather.absorb(tags, scene).ok().and_then(|()| gather.known());
    matches!(judge(item, versions.as_ref(), scene), ItemState::Fresh(_))
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::*;
    use crate::guard::envelope::{Envelope, Tags};
    use crate::guard::{Cas, Item, Now, Policy, Usage};

    #[test]
    fn a_stale_value_that_a_delete_leaves_ends_no_later_than_it_would_have() {
        let policy = Policy { on_delete: OnInvalidate::Stale, ..Policy::default() };
        let now = Now { wall: 1_700_000_000_000, mono: 0 };
        let (tags, learnt, sidecar, room, copies, patient, chance) = (&[], 0, 1, 1 << 20, false, true, 1.0);
        let scene = Inputs { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance };
        let mut value = BytesMut::new();
        Envelope { stale_for: 60, built_at: 1, rebuild: 1, tags: Tags::new() }.seal(&mut value).unwrap();
        value.extend_from_slice(b"old");
        let value = value.freeze();
        for (ttl, seconds) in [(None, Some(60)), (Some(90), Some(60)), (Some(60), None), (Some(1), None)] {
            let (cas, size, usage) = (Cas { number: 7, epoch: 1 }, value.len(), Usage::default());
            let value: Bytes = value.clone();
            let item = Item { value, size, flags: 0, cas, ttl, won: false, stale: false, usage };
            let (mut delete, _) = Delete::start(&scene);
            let step = delete.resume(Event::Replies(smallvec![ServerReply::Item(item)]), &scene);
            let Step::Send(asks) = step else { panic!("{step:?}") };
            let mark = Operation::MarkStale { seconds, cas: Some(cas), explicit: None };
            assert_eq!(
                asks[0].what, mark,
                "{ttl:?}: said anew, the end would be put off by part of a second"
            );
        }
    }

    #[test]
    fn a_delete_of_one_item_deletes_the_lock_that_it_saw_and_no_other() {
        let policy = Policy::default();
        let now = Now { wall: 1_700_000_000_000, mono: 0 };
        let (tags, learnt, sidecar, room, copies, patient, chance) = (&[], 0, 1, 1 << 20, false, true, 1.0);
        let scene = Inputs { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance };
        let item = |number| {
            let (value, cas, usage) =
                (Bytes::from_static(b"old"), Cas { number, epoch: 1 }, Usage::default());
            ServerReply::Item(Item {
                value,
                size: 3,
                flags: 0,
                cas,
                ttl: None,
                won: false,
                stale: true,
                usage,
            })
        };
        for stale in [false, true] {
            for (lock, unlocks) in [(item(5), Some(5)), (ServerReply::Absent, None)] {
                let removal = Removal { compare: Some(7), stale, ..Removal::default() };
                let (mut delete, _) = Delete::with_removal(removal, &scene);
                let step = delete.resume(Event::Replies(smallvec![item(7), lock]), &scene);
                let Step::Send(asks) = step else { panic!("{step:?}") };
                let unlock =
                    unlocks.map(|number| super::delete(ItemRef::Lock, Some(Cas { number, epoch: 1 })));
                assert_eq!(asks.get(1), unlock.as_ref());
                // Somebody else's by now: it is looked at again, and is another.
                let answers = asks.iter().map(|_| ServerReply::Exists).collect();
                let Step::Send(_) = delete.resume(Event::Replies(answers), &scene) else {
                    panic!("it looks")
                };
                let end = delete.resume(Event::Replies(smallvec![item(9), item(6)]), &scene);
                assert_eq!(end, Step::Done(DeleteEnd::Exists));
            }
        }
    }

    #[test]
    fn a_delete_that_others_keep_overtaking_is_not_acknowledged() {
        let policy = Policy { on_delete: OnInvalidate::Stale, ..Policy::default() };
        let now = Now { wall: 1_700_000_000_000, mono: 0 };
        let (tags, learnt, sidecar, room, copies, patient, chance) = (&[], 0, 1, 1 << 20, false, true, 1.0);
        let scene = Inputs { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance };
        let item = |number| {
            let (value, cas, usage) =
                (Bytes::from_static(b"old"), Cas { number, epoch: 1 }, Usage::default());
            ServerReply::Item(Item {
                value,
                size: 3,
                flags: 0,
                cas,
                ttl: None,
                won: false,
                stale: false,
                usage,
            })
        };
        let (mut delete, _) = Delete::start(&scene);
        for round in 0..=u64::from(MAX_ROUNDS) {
            let marks = delete.resume(Event::Replies(smallvec![item(round)]), &scene);
            let Step::Send(asks) = marks else { panic!("round {round}: {marks:?}") };
            assert!(matches!(asks[0].what, Operation::MarkStale { .. }), "{asks:?}");
            let answers = asks.iter().map(|_| ServerReply::Exists).collect();
            let step = delete.resume(Event::Replies(answers), &scene);
            match round == u64::from(MAX_ROUNDS) {
                true => assert_eq!(step, Step::Done(DeleteEnd::Failed(Failure::Overloaded))),
                false => assert!(matches!(step, Step::Send(_)), "round {round}: {step:?}"),
            }
        }
    }
}
