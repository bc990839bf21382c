//! Stores a value that ends no rebuild.

use smallvec::smallvec;

use crate::error::Failure;

use super::command::{Cas, Commands, Item, ItemRef, ServerReply, StoreMode, delete, get_or_stub};
use super::envelope::TagName;
use super::freshness::is_newer_than;
use super::inputs::Inputs;
use super::machine::{Event, Machine, Step};
use super::new_value::NewValue;
use super::retry::MAX_RETRY_MS;
use super::stub::StubId;
use super::tag_version::{NEVER, Versions, known_version};
use super::tags::TagRead;

/// A `set` that ends no rebuild. It is stored over any item. A fill in progress is stored over it in turn.
///
/// It reads the item first and stores over exactly that, or over the stub that the read has left. A command
/// that was abandoned may still be carried out when its server returns. Without a condition it would then
/// overwrite a newer value, or restore one that has been deleted. The tags are read in the same round trip. The value is read
/// with it for its header: what is stored records what it follows, so that the fill of an earlier miss can tell a value that was
/// merely stored over another one from one that was stored after an invalidation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set {
    new_value: NewValue,
    tag_read: TagRead,
    /// The tags' versions at the first read.
    first: Option<Versions>,
    state: State,
    plain: bool,
    /// What the item that was found follows. The new value follows it too.
    origin: Option<StubId>,
    /// Start time on the monotonic clock, in ms.
    began: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// Reading the key and its tags.
    Reading,
    /// Some tags were missing and are being created.
    CreatingTags(Cas),
    /// The item was sealed with newer versions than those that were read with it.
    ReadingTagsAgain(Cas),
    Storing,
    /// Deleting its own stub.
    RemovingStub,
}

/// How a `set` without a miss ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetEnd {
    /// The value has been stored.
    Stored {
        /// CAS number of the stored item.
        cas: Cas,
        /// Without an envelope, because it would have been too large.
        plain: bool,
    },
    /// Another writer won the race and a tag has changed since. The value is dropped, and the reply is the
    /// same as if it had been stored: "stored, then invalidated" cannot be distinguished from this.
    Dropped,
    /// The server refuses values of this size.
    TooLarge,
    /// It is unknown whether the value is stored.
    Failed(Failure),
}

impl Set {
    /// Begins a `set`.
    pub fn start(new_value: NewValue, inputs: &Inputs<'_>) -> (Set, Commands) {
        let tag_read = TagRead::new(inputs.tags.len());
        let (first, state, began) = (None, State::Reading, inputs.now.mono);
        let mut set = Set { new_value, tag_read, first, state, plain: false, origin: None, began };
        let mut commands: Commands = smallvec![get_or_stub(inputs.policy)];
        set.tag_read.push_commands(&mut commands, inputs);
        (set, commands)
    }

    /// A value that was sent before a bump does not become newer by being repeated: it must not replace what
    /// has been stored since.
    fn read(&mut self, item: &Item, tags: &[ServerReply], inputs: &Inputs<'_>) -> Step<SetEnd> {
        self.origin = Some(StubId::of_item(item));
        let mut now = TagRead::new(inputs.tags.len());
        if let Err(failure) = now.absorb(tags, inputs) {
            return Step::Done(SetEnd::Failed(failure));
        }
        let now = now.known();
        let was_bumped = self.first.is_some() && self.first != now;
        if was_bumped && item.won && item.size == 0 {
            self.state = State::RemovingStub;
            return Step::Send(smallvec![delete(ItemRef::Value, Some(item.cas))]);
        }
        if was_bumped {
            return Step::Done(SetEnd::Dropped);
        }
        match now.filter(|now| is_newer_than(item, now, inputs)) {
            // Another one may have been sent after a bump, and this one before it.
            Some(now) => {
                (self.first, self.state) = (Some(now), State::ReadingTagsAgain(item.cas));
                let mut commands = Commands::new();
                TagRead::new(inputs.tags.len()).push_commands(&mut commands, inputs);
                Step::Send(commands)
            }
            None if self.first.is_some() => self.store(item.cas, inputs),
            None => self.absorb_tags(item.cas, tags, inputs),
        }
    }

    fn tags_read_again(
        &mut self,
        observed_cas: Cas,
        tags: &[ServerReply],
        inputs: &Inputs<'_>,
    ) -> Step<SetEnd> {
        let mut now = TagRead::new(inputs.tags.len());
        match now.absorb(tags, inputs) {
            Err(failure) => Step::Done(SetEnd::Failed(failure)),
            Ok(()) if now.known() == self.first => self.store(observed_cas, inputs),
            Ok(()) => Step::Done(SetEnd::Dropped),
        }
    }

    fn absorb_tags(&mut self, observed_cas: Cas, tags: &[ServerReply], inputs: &Inputs<'_>) -> Step<SetEnd> {
        if let Err(failure) = self.tag_read.absorb(tags, inputs) {
            return Step::Done(SetEnd::Failed(failure));
        }
        self.first = self.tag_read.versions();
        self.store(observed_cas, inputs)
    }

    fn store(&mut self, observed_cas: Cas, inputs: &Inputs<'_>) -> Step<SetEnd> {
        let mut commands = Commands::new();
        match self.first.clone() {
            Some(versions) => {
                let built = (inputs.now, 0);
                let version = |name: &TagName| known_version(name, &versions, inputs).unwrap_or(NEVER);
                let tags = self.new_value.tags(inputs, version);
                let new_value = self.new_value.clone();
                let (command, plain) =
                    new_value.store(StoreMode::Set, Some(observed_cas), tags, built, self.origin, inputs);
                (self.state, self.plain) = (State::Storing, plain);
                commands.push(command);
            }
            None => {
                self.state = State::CreatingTags(observed_cas);
                self.tag_read.push_commands(&mut commands, inputs);
            }
        }
        Step::Send(commands)
    }
}

impl Machine for Set {
    type End = SetEnd;

    fn failed(failure: Failure) -> Option<SetEnd> {
        Some(SetEnd::Failed(failure))
    }

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<SetEnd> {
        let replies = event.replies();
        match (self.state, &replies[..]) {
            (State::Reading, [ServerReply::Item(item), tags @ ..]) => self.read(item, tags, inputs),
            // Not even a stub.
            (State::Reading, [ServerReply::Absent, ..]) => Step::Done(SetEnd::Failed(Failure::NoMemory)),
            (State::RemovingStub, _) => Step::Done(SetEnd::Dropped),
            (State::CreatingTags(observed_cas), tags) => self.absorb_tags(observed_cas, tags, inputs),
            (State::ReadingTagsAgain(observed_cas), tags) => self.tags_read_again(observed_cas, tags, inputs),
            (_, [ServerReply::Failed(failure), ..]) => Step::Done(SetEnd::Failed(*failure)),
            (State::Storing, [ServerReply::Stored(cas)]) => {
                Step::Done(SetEnd::Stored { cas: *cas, plain: self.plain })
            }
            (State::Storing, [ServerReply::TooLarge]) => Step::Done(SetEnd::TooLarge),
            // Another writer changed the item between the read and the store.
            (State::Storing, [ServerReply::Exists | ServerReply::Absent | ServerReply::NotStored]) => {
                if inputs.now.mono >= self.began.saturating_add(MAX_RETRY_MS) {
                    return Step::Done(SetEnd::Failed(Failure::Overloaded));
                }
                self.state = State::Reading;
                let mut commands: Commands = smallvec![get_or_stub(inputs.policy)];
                TagRead::new(inputs.tags.len()).push_commands(&mut commands, inputs);
                Step::Send(commands)
            }
            _ => Step::Done(SetEnd::Failed(Failure::Refused)),
        }
    }
}

#[cfg(test)]
mod tests;
