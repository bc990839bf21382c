//! Commands that read a guarded key before they write it: `add`, `replace`, `append`, `prepend`, `cas`, `incr`, `decr`,
//! `touch` and `gat`.
//!
//! Each behaves as memcached specifies, applied to the *logical* item: a stub or a stale item counts as absent. The write
//! is conditional on the CAS that was read and is repeated when the CAS has changed.

use smallvec::smallvec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, get, get_or_stub,
};
use super::envelope::TagNames;
use super::freshness::{Hit, is_newer_than, unknown_tags};
use super::inputs::Inputs;
use super::leases::Observed;
use super::machine::{Event, Machine, Step};
use super::retry::MAX_RETRY_MS;
use super::stub::Stub;
use super::tags::TagRead;
use state::State;
use store::touch;

mod change;
mod store;
mod state;
mod write;

pub use change::{Change, Count, Counted, ModifyEnd};
pub use state::Modify;

impl Modify {
    /// Begins the command, and returns the first commands to send.
    pub fn start(change: Change, inputs: &Inputs<'_>) -> (Modify, Commands) {
        Modify::with_condition(change, None, inputs)
    }

    /// Begins a command that is stored only over what the miss observed. This applies to a `replace`, and to
    /// counts and appends that find no item.
    pub fn with_condition(
        change: Change,
        observed: Option<Observed>,
        inputs: &Inputs<'_>,
    ) -> (Modify, Commands) {
        let mut modify = Modify {
            change,
            observed,
            leaves_stub: false,
            state: State::Reading,
            lock: None,
            began: inputs.now.mono,
        };
        let commands = modify.read(inputs);
        (modify, commands)
    }

    fn read(&mut self, inputs: &Inputs<'_>) -> Commands {
        self.state = State::Reading;
        self.leaves_stub = self.may_create(inputs);
        let mut commands: Commands =
            smallvec![if self.leaves_stub { get_or_stub(inputs.policy) } else { get(ItemRef::Value) }];
        TagRead::new(inputs.tags.len()).push_commands(&mut commands, inputs);
        if self.sees_stale() {
            commands.push(get(ItemRef::Lock));
        }
        commands
    }

    /// `together`: the tags were read in one round trip with the item.
    fn tags_read(
        &mut self,
        item: Option<Item>,
        mut tag_read: Box<TagRead>,
        replies: &[ServerReply],
        together: bool,
        inputs: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        let unknown = item.as_ref().map_or_else(TagNames::new, |item| unknown_tags(item, inputs));
        if !unknown.is_empty() {
            self.state = State::AddingTags { item };
            return Step::AddTags(unknown);
        }
        let is_newer = |versions| item.as_ref().is_some_and(|item| is_newer_than(item, versions, inputs));
        match tag_read.absorb(replies, inputs) {
            Err(failure) => Step::Done(ModifyEnd::Failed(failure)),
            Ok(()) => match tag_read.versions() {
                Some(versions) if together && is_newer(&versions) => self.request_tags(item, None, inputs),
                Some(versions) => self.write(item, &versions, inputs),
                None => self.request_tags(item, Some(tag_read), inputs),
            },
        }
    }

    /// Continues a read of the tags, or begins another one.
    fn request_tags(
        &mut self,
        item: Option<Item>,
        tag_read: Option<Box<TagRead>>,
        inputs: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        let mut tag_read = tag_read.unwrap_or_else(|| Box::new(TagRead::new(inputs.tags.len())));
        let mut commands = Commands::new();
        tag_read.push_commands(&mut commands, inputs);
        self.state = State::ReadingTags { item, tag_read };
        Step::Send(commands)
    }

    fn written(
        &mut self,
        counted: Counted,
        old_ttl: Option<u32>,
        replies: Replies,
        inputs: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        let mut replies = replies.into_iter();
        let left = old_ttl.and_then(|_| replies.next());
        Step::Done(match replies.next() {
            Some(stored @ (ServerReply::Stored(_) | ServerReply::Done)) => {
                let cas = if let ServerReply::Stored(cas) = stored { cas } else { Cas::NONE };
                let counted = Counted { cas, ..counted };
                // The server's clock counts whole seconds: one may have passed between the read and the
                // write.
                if let (Some(old_ttl), Some(ServerReply::Item(Item { ttl: Some(left), .. }))) =
                    (old_ttl, left)
                    && left < old_ttl
                {
                    self.state = State::RestoringExpiry { counted, old_ttl: Some(old_ttl) };
                    return Step::Send(smallvec![touch(left, inputs)]);
                }
                self.done(counted)
            }
            // Both together are too large, or the item no longer exists: memcached's reply is the same.
            Some(ServerReply::NotStored)
                if matches!(self.change, Change::Append { .. }) && !counted.created =>
            {
                ModifyEnd::NotStored
            }
            Some(ServerReply::TooLarge)
                if matches!(self.change, Change::Prepend { .. }) && !counted.created =>
            {
                ModifyEnd::NotStored
            }
            Some(ServerReply::TooLarge) => ModifyEnd::TooLarge,
            Some(ServerReply::Failed(failure)) => ModifyEnd::Failed(failure),
            None => ModifyEnd::Failed(Failure::Refused),
            Some(_) => {
                // In each round one of the concurrent writers succeeds, so the number of rounds depends on
                // how many there are.
                if inputs.now.mono < self.began.saturating_add(MAX_RETRY_MS) {
                    return Step::Send(self.read(inputs));
                }
                ModifyEnd::Failed(Failure::Overloaded)
            }
        })
    }

    /// The item whose TTL was restored was this command's, or derived from it with the same TTL. Any other
    /// item gets the TTL back that it had.
    fn expiry_restored(
        &mut self,
        counted: Counted,
        old_ttl: Option<u32>,
        replies: Replies,
        inputs: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        match (old_ttl, replies.into_iter().next()) {
            (Some(old_ttl), Some(ServerReply::Item(Item { ttl: Some(ttl), .. })))
                if ttl != old_ttl && ttl + 1 != old_ttl =>
            {
                self.state = State::RestoringExpiry { counted, old_ttl: None };
                Step::Send(smallvec![touch(ttl, inputs)])
            }
            _ => Step::Done(self.done(counted)),
        }
    }

    /// `mg T` cannot be made conditional. If the item had been replaced by one that must keep its TTL, that
    /// TTL is restored, unless that item has gone too.
    fn touched(&mut self, old: Hit, replies: Replies, inputs: &Inputs<'_>) -> Step<ModifyEnd> {
        let back = match replies.into_iter().next() {
            Some(ServerReply::Item(item)) => match Stub::of(&item) {
                Some(stub) => stub.store_command(Some(item.cas), inputs.policy.lock_seconds()),
                None if item.stale => {
                    let seconds = Some(item.ttl.unwrap_or(0).max(1));
                    let operation = Operation::MarkStale { seconds, cas: Some(item.cas), explicit: None };
                    ServerCommand { item: ItemRef::Value, operation }
                }
                None => return Step::Done(ModifyEnd::Touched(old)),
            },
            Some(ServerReply::Failed(failure)) => return Step::Done(ModifyEnd::Failed(failure)),
            _ => return Step::Done(ModifyEnd::NotFound),
        };
        self.state = State::UndoingTouch;
        Step::Send(smallvec![back])
    }
}

impl Machine for Modify {
    type End = ModifyEnd;

    fn failed(failure: Failure) -> Option<ModifyEnd> {
        Some(ModifyEnd::Failed(failure))
    }

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<ModifyEnd> {
        let replies = event.replies();
        match std::mem::replace(&mut self.state, State::Reading) {
            State::Reading => {
                let mut replies = replies.into_iter();
                let item = match replies.next() {
                    Some(ServerReply::Item(item)) => Some(item),
                    Some(ServerReply::Failed(failure)) => return Step::Done(ModifyEnd::Failed(failure)),
                    // Not even a stub.
                    _ if self.leaves_stub => return Step::Done(ModifyEnd::Failed(Failure::NoMemory)),
                    _ => None,
                };
                let mut tags: Replies = replies.collect();
                if self.sees_stale() {
                    self.lock = match tags.pop() {
                        Some(ServerReply::Item(lock)) => Some(lock),
                        _ => None,
                    };
                }
                self.tags_read(item, Box::new(TagRead::new(inputs.tags.len())), &tags, true, inputs)
            }
            State::AddingTags { item } => self.request_tags(item, None, inputs),
            State::ReadingTags { item, tag_read } => self.tags_read(item, tag_read, &replies, false, inputs),
            State::Writing { counted, old_ttl } => self.written(counted, old_ttl, replies, inputs),
            State::RestoringExpiry { counted, old_ttl } => {
                self.expiry_restored(counted, old_ttl, replies, inputs)
            }
            State::Touching { old } => self.touched(old, replies, inputs),
            State::UndoingTouch => Step::Done(match replies.into_iter().next() {
                Some(ServerReply::Failed(failure)) => ModifyEnd::Failed(failure),
                _ => ModifyEnd::NotFound,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
