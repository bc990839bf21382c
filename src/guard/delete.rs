//! How a guarded key is invalidated.

use smallvec::smallvec;

use crate::error::Failure;

use super::ask::{Answer, Ask, Asks, At, Look, What, delete, get, peek};
use super::freshness::{Standing, judge};
use super::tags::{Gather, MAX_ROUNDS};
use super::{Event, Leaves, Machine, Scene, Step};

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
    pub fn start(scene: &Scene<'_>) -> (Delete, Asks) {
        Delete::removing(Removal::default(), scene)
    }

    /// Begins a delete that is more particular.
    pub fn removing(removal: Removal, scene: &Scene<'_>) -> (Delete, Asks) {
        // Whether a tag has moved can only be told from the envelope; without tags the TTL tells enough.
        let mut asks: Asks = smallvec![Ask {
            at: At::Item,
            what: What::Get(Look { value: !scene.tags.is_empty(), ..Look::default() })
        }];
        let state = if removal.compare.is_some() || removal.leaves_stale(scene) {
            asks[0] = get(At::Item);
            if removal.compare.is_some() {
                asks.push(peek(At::Lock));
            }
            State::Looking
        } else {
            asks.extend([delete(At::Item, None), delete(At::Lock, None)]);
            State::Deleting
        };
        Gather::new(scene.tags.len()).ask(&mut asks, scene);
        (Delete { removal, state, rounds: 0 }, asks)
    }
}

impl Removal {
    fn leaves_stale(&self, scene: &Scene<'_>) -> bool {
        (self.stale || scene.policy.on_delete == Leaves::Stale) && scene.policy.stale_seconds() > 0
    }
}

impl Machine for Delete {
    type End = DeleteEnd;

    fn resume(&mut self, event: Event, scene: &Scene<'_>) -> Step<DeleteEnd> {
        let answers = event.answers();
        match self.state {
            State::Deleting => match &answers[..] {
                [look, deleted, _lock, tags @ ..] => Step::Done(match deleted {
                    Answer::Done if is_present(look, tags, scene) => DeleteEnd::Deleted,
                    Answer::Done | Answer::Absent => DeleteEnd::NotFound,
                    Answer::Failed(failure) => DeleteEnd::Failed(*failure),
                    _ => DeleteEnd::Failed(Failure::Refused),
                }),
                _ => Step::Done(DeleteEnd::Failed(Failure::Refused)),
            },
            State::Looking => match &answers[..] {
                [Answer::Failed(failure), ..] => Step::Done(DeleteEnd::Failed(*failure)),
                [look @ Answer::Item(item), rest @ ..] => {
                    let Removal { compare, seconds, explicit, .. } = self.removal;
                    // Where the item may turn out to be another, the lock may be another's who builds that one.
                    let (unlock, tags) = match (compare, rest) {
                        (Some(_), [Answer::Item(lock), tags @ ..]) => {
                            (Some(delete(At::Lock, Some(lock.cas))), tags)
                        }
                        (Some(_), [_, tags @ ..]) => (None, tags),
                        (_, tags) => (Some(delete(At::Lock, None)), tags),
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
                        What::Delete { cas: Some(item.cas) }
                    } else {
                        let longest = scene.policy.stale_seconds();
                        let seconds = seconds.unwrap_or(longest).min(longest);
                        // Never beyond the end it has already: to say that end anew would put it off by part of a second.
                        let is_later = item.ttl.is_none_or(|ttl| ttl > seconds);
                        let seconds = is_later.then_some(seconds.max(1));
                        What::MarkStale { seconds, cas: Some(item.cas), explicit }
                    };
                    Step::Ask(std::iter::once(Ask { at: At::Item, what }).chain(unlock).collect())
                }
                _ => Step::Done(DeleteEnd::NotFound),
            },
            State::Marking { present } => match &answers[..] {
                [Answer::Done, ..] if present => Step::Done(DeleteEnd::Deleted),
                [Answer::Done | Answer::Absent, ..] => Step::Done(DeleteEnd::NotFound),
                [Answer::Exists, ..] if self.rounds < MAX_ROUNDS => {
                    let (delete, asks) = Delete::removing(self.removal, scene);
                    *self = Delete { rounds: self.rounds + 1, ..delete };
                    Step::Ask(asks)
                }
                [Answer::Failed(failure), ..] => Step::Done(DeleteEnd::Failed(*failure)),
                _ => Step::Done(DeleteEnd::Failed(Failure::Overloaded)),
            },
        }
    }
}

/// Whether there is a logical item: not a stub, and not stale.
fn is_present(look: &Answer, tags: &[Answer], scene: &Scene<'_>) -> bool {
    let Answer::Item(item) = look else { return false };
    if item.size == 0 {
        return false;
    }
    if item.value.is_empty() {
        return !item.stale && item.ttl.is_none_or(|ttl| ttl > scene.policy.stale_seconds());
    }
    let mut gather = Gather::new(scene.tags.len());
    let versions = gather.absorb(tags, scene).ok().and_then(|()| gather.known());
    matches!(judge(item, versions.as_ref(), scene), Standing::Fresh(_))
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::*;
    use crate::guard::envelope::{Envelope, Tags};
    use crate::guard::{Cas, Item, Now, Policy, Usage};

    #[test]
    fn a_stale_value_that_a_delete_leaves_ends_no_later_than_it_would_have() {
        let policy = Policy { on_delete: Leaves::Stale, ..Policy::default() };
        let now = Now { wall: 1_700_000_000_000, mono: 0 };
        let (tags, learnt, sidecar, room, copies, patient, chance) = (&[], 0, 1, 1 << 20, false, true, 1.0);
        let scene = Scene { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance };
        let mut value = BytesMut::new();
        Envelope { stale_for: 60, built_at: 1, rebuild: 1, tags: Tags::new() }.seal(&mut value).unwrap();
        value.extend_from_slice(b"old");
        let value = value.freeze();
        for (ttl, seconds) in [(None, Some(60)), (Some(90), Some(60)), (Some(60), None), (Some(1), None)] {
            let (cas, size, usage) = (Cas { number: 7, epoch: 1 }, value.len(), Usage::default());
            let value: Bytes = value.clone();
            let item = Item { value, size, flags: 0, cas, ttl, won: false, stale: false, usage };
            let (mut delete, _) = Delete::start(&scene);
            let step = delete.resume(Event::Answers(smallvec![Answer::Item(item)]), &scene);
            let Step::Ask(asks) = step else { panic!("{step:?}") };
            let mark = What::MarkStale { seconds, cas: Some(cas), explicit: None };
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
        let scene = Scene { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance };
        let item = |number| {
            let (value, cas, usage) =
                (Bytes::from_static(b"old"), Cas { number, epoch: 1 }, Usage::default());
            Answer::Item(Item { value, size: 3, flags: 0, cas, ttl: None, won: false, stale: true, usage })
        };
        for stale in [false, true] {
            for (lock, unlocks) in [(item(5), Some(5)), (Answer::Absent, None)] {
                let removal = Removal { compare: Some(7), stale, ..Removal::default() };
                let (mut delete, _) = Delete::removing(removal, &scene);
                let step = delete.resume(Event::Answers(smallvec![item(7), lock]), &scene);
                let Step::Ask(asks) = step else { panic!("{step:?}") };
                let unlock = unlocks.map(|number| super::delete(At::Lock, Some(Cas { number, epoch: 1 })));
                assert_eq!(asks.get(1), unlock.as_ref());
                // Somebody else's by now: it is looked at again, and is another.
                let answers = asks.iter().map(|_| Answer::Exists).collect();
                let Step::Ask(_) = delete.resume(Event::Answers(answers), &scene) else { panic!("it looks") };
                let end = delete.resume(Event::Answers(smallvec![item(9), item(6)]), &scene);
                assert_eq!(end, Step::Done(DeleteEnd::Exists));
            }
        }
    }

    #[test]
    fn a_delete_that_others_keep_overtaking_is_not_acknowledged() {
        let policy = Policy { on_delete: Leaves::Stale, ..Policy::default() };
        let now = Now { wall: 1_700_000_000_000, mono: 0 };
        let (tags, learnt, sidecar, room, copies, patient, chance) = (&[], 0, 1, 1 << 20, false, true, 1.0);
        let scene = Scene { policy: &policy, tags, learnt, sidecar, room, copies, now, patient, chance };
        let item = |number| {
            let (value, cas, usage) =
                (Bytes::from_static(b"old"), Cas { number, epoch: 1 }, Usage::default());
            Answer::Item(Item { value, size: 3, flags: 0, cas, ttl: None, won: false, stale: false, usage })
        };
        let (mut delete, _) = Delete::start(&scene);
        for round in 0..=u64::from(MAX_ROUNDS) {
            let marks = delete.resume(Event::Answers(smallvec![item(round)]), &scene);
            let Step::Ask(asks) = marks else { panic!("round {round}: {marks:?}") };
            assert!(matches!(asks[0].what, What::MarkStale { .. }), "{asks:?}");
            let answers = asks.iter().map(|_| Answer::Exists).collect();
            let step = delete.resume(Event::Answers(answers), &scene);
            match round == u64::from(MAX_ROUNDS) {
                true => assert_eq!(step, Step::Done(DeleteEnd::Failed(Failure::Overloaded))),
                false => assert!(matches!(step, Step::Ask(_)), "round {round}: {step:?}"),
            }
        }
    }
}
