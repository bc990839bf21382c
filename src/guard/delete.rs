//! Invalidates a guarded key.

use smallvec::smallvec;

use crate::error::Failure;

use super::command::{Commands, GetFlags, ItemRef, Operation, ServerCommand, ServerReply, delete, get, peek};
use super::freshness::{ItemState, judge};
use super::inputs::Inputs;
use super::machine::{Event, Machine, Step};
use super::policy::OnInvalidate;
use super::retry::MAX_ROUNDS;
use super::tags::TagRead;

/// A delete of one guarded key. It changes or removes the key's CAS, so that no fill whose rebuild began
/// earlier can be stored. This holds for an absent key too: its rebuild has left a stub.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delete {
    removal: Removal,
    state: State,
    rounds: u8,
}

/// What `md` requests beyond `delete` (protocol.txt, "Meta Delete").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Removal {
    /// `C`: only the item with this CAS, whether stale or not.
    pub compare: Option<u64>,
    /// `I`: keep the value as stale, whatever the rule configures.
    pub stale: bool,
    /// `T`: keep it for this many seconds, at most the rule's `stale_for`.
    pub seconds: Option<u32>,
    /// `E`: the CAS of the remaining item.
    pub explicit: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// One round: a read for the reply, then the delete.
    Deleting,
    /// The action depends on the item.
    Reading,
    Marking {
        present: bool,
    },
}

/// How a delete ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteEnd {
    /// The logical item existed and has been deleted.
    Deleted,
    /// There was none. A stub or stale value has been deleted all the same.
    NotFound,
    /// It has another CAS than [`Removal::compare`].
    Exists,
    /// It is unknown whether the item still exists. The delete must not be acknowledged.
    Failed(Failure),
}

impl Delete {
    /// Begins a delete, and returns the first commands to send.
    pub fn start(inputs: &Inputs<'_>) -> (Delete, Commands) {
        Delete::with_removal(Removal::default(), inputs)
    }

    /// Begins a delete with options.
    pub fn with_removal(removal: Removal, inputs: &Inputs<'_>) -> (Delete, Commands) {
        // Only the envelope shows whether a tag or the fence has changed, and when a value that ends with its exptime becomes stale.
        // Without these the TTL is sufficient.
        let mut commands: Commands = smallvec![ServerCommand {
            item: ItemRef::Value,
            operation: Operation::Get(GetFlags {
                value: !inputs.tags.is_empty() || inputs.fence != 0 || inputs.policy.stale_before_expiry,
                ..GetFlags::default()
            })
        }];
        let state = if removal.compare.is_some() || removal.leaves_stale(inputs) {
            commands[0] = get(ItemRef::Value);
            if removal.compare.is_some() {
                commands.push(peek(ItemRef::Lock));
            }
            State::Reading
        } else {
            commands.extend([delete(ItemRef::Value, None), delete(ItemRef::Lock, None)]);
            State::Deleting
        };
        TagRead::new(inputs.tags.len()).push_commands(&mut commands, inputs);
        (Delete { removal, state, rounds: 0 }, commands)
    }
}

impl Removal {
    fn leaves_stale(&self, inputs: &Inputs<'_>) -> bool {
        (self.stale || inputs.policy.on_delete == OnInvalidate::Stale) && inputs.policy.stale_seconds() > 0
    }
}

impl Machine for Delete {
    type End = DeleteEnd;

    fn failed(failure: Failure) -> Option<DeleteEnd> {
        Some(DeleteEnd::Failed(failure))
    }

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<DeleteEnd> {
        let replies = event.replies();
        match self.state {
            State::Deleting => match &replies[..] {
                [read, deleted, _lock, tags @ ..] => Step::Done(match deleted {
                    ServerReply::Done if is_present(read, tags, inputs) => DeleteEnd::Deleted,
                    ServerReply::Done | ServerReply::Absent => DeleteEnd::NotFound,
                    ServerReply::Failed(failure) => DeleteEnd::Failed(*failure),
                    _ => DeleteEnd::Failed(Failure::Refused),
                }),
                _ => Step::Done(DeleteEnd::Failed(Failure::Refused)),
            },
            State::Reading => match &replies[..] {
                [ServerReply::Failed(failure), ..] => Step::Done(DeleteEnd::Failed(*failure)),
                [read @ ServerReply::Item(item), rest @ ..] => {
                    let Removal { compare, seconds, explicit, .. } = self.removal;
                    // If the item has been replaced, the lock may belong to its next rebuild.
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
                    // A client that sends the CAS has seen the item, stale or not.
                    let present = compare.is_some() || is_present(read, tags, inputs);
                    self.state = State::Marking { present };
                    let operation = if item.size == 0 || !self.removal.leaves_stale(inputs) {
                        Operation::Delete { cas: Some(item.cas) }
                    } else {
                        // This takes the read before it: `T` of a marked value would lengthen its TTL with each delete, and
                        // of a stub it would make an item that keeps readers waiting for `stale_for`.
                        let longest = inputs.policy.stale_seconds();
                        let seconds = seconds.unwrap_or(longest).min(longest);
                        // Never longer than the item already has: setting the same TTL again would extend it
                        // by part of a second.
                        let is_later = item.ttl.is_none_or(|ttl| ttl > seconds);
                        let seconds = is_later.then_some(seconds.max(1));
                        Operation::MarkStale { seconds, cas: Some(item.cas), explicit }
                    };
                    // A winner that reads its mark and then its lock, and finds the lock, has thus not read this mark.
                    let remove = ServerCommand { item: ItemRef::Value, operation };
                    Step::Send(unlock.into_iter().chain([remove]).collect())
                }
                _ => Step::Done(DeleteEnd::NotFound),
            },
            State::Marking { present } => match &replies[..] {
                [.., ServerReply::Done] if present => Step::Done(DeleteEnd::Deleted),
                [.., ServerReply::Done | ServerReply::Absent] => Step::Done(DeleteEnd::NotFound),
                [.., ServerReply::Exists] if self.rounds < MAX_ROUNDS => {
                    let (delete, commands) = Delete::with_removal(self.removal, inputs);
                    *self = Delete { rounds: self.rounds + 1, ..delete };
                    Step::Send(commands)
                }
                [.., ServerReply::Failed(failure)] => Step::Done(DeleteEnd::Failed(*failure)),
                _ => Step::Done(DeleteEnd::Failed(Failure::Overloaded)),
            },
        }
    }
}

/// Whether there is a logical item: neither a stub nor stale.
fn is_present(read: &ServerReply, tags: &[ServerReply], inputs: &Inputs<'_>) -> bool {
    let ServerReply::Item(item) = read else { return false };
    if item.size == 0 {
        return false;
    }
    if item.value.is_empty() {
        return !item.stale && item.ttl.is_none_or(|ttl| ttl > inputs.policy.stale_seconds());
    }
    let mut tag_read = TagRead::new(inputs.tags.len());
    let versions = tag_read.absorb(tags, inputs).ok().and_then(|()| tag_read.known());
    matches!(judge(item, versions.as_ref(), inputs), ItemState::Fresh(_))
}

#[cfg(test)]
mod tests;
