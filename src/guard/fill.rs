//! Stores the value that ends a rebuild.

use smallvec::smallvec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, delete, get, peek,
};
use super::envelope::{Header, Opened, TagName, Tags};
use super::inputs::Inputs;
use super::leases::{MissToken, Observed};
use super::machine::{Event, Machine, Step};
use super::new_value::NewValue;
use super::retry::MAX_ROUNDS;
use super::tag_version::{NEVER, Versions, known_version, may_have_moved};
use super::tags::TagRead;

/// The value that ends a rebuild. It is stored only if the key has not been invalidated since the miss. Other clients may have
/// stored values meanwhile: the last `set` wins, as in memcached, but an `add` and a store with a CAS do not replace such a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fill {
    plain: bool,
    kind: FillKind,
    state: FillState,
    rounds: u8,
}

/// The command that ends a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FillKind {
    /// It replaces whatever was stored since the miss, unless the key has been invalidated.
    Set,
    /// The client learns whether the value was stored. It is then not stored if a tag has changed since the miss. Otherwise it
    /// may be stored as a value that is stale from the start.
    Add,
    /// The client names the CAS of its miss.
    Compare,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FillState {
    /// Tags must be read first: the value names tags that were not read at the miss, or it must not be stored
    /// if a tag has changed since.
    ReadingTags(Box<TagLookup>),
    Storing(Box<PendingStore>),
    /// The item has another CAS than the miss saw.
    Checking(Box<PendingStore>),
    /// Stored under this CAS. It replaced an item that another client is rebuilding, whose lock is deleted.
    Unlocking(Cas),
    Done,
}

/// The command that stores the value, and what the miss observed, whose CAS may have changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingStore {
    command: ServerCommand,
    observed: Option<Observed>,
    /// The lock for the rebuild of the item that is replaced: no reader needs to wait for it any more.
    lock: Option<Cas>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TagLookup {
    token: MissToken,
    new_value: NewValue,
    is_add: bool,
    tag_read: TagRead,
}

/// How a fill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillEnd {
    /// The value has been stored.
    Stored {
        /// CAS number of the stored item.
        cas: Cas,
        /// Without an envelope, because it would have been too large.
        plain: bool,
    },
    /// The key was deleted, overwritten or lost since the miss. The value is dropped, and the reply is the
    /// same as if it had been stored: "stored, then invalidated" cannot be distinguished from this.
    Dropped {
        /// There is another item.
        exists: bool,
    },
    /// An `add` after whose miss a tag has changed. Nothing is stored. The item that the miss saw may still
    /// exist.
    Outdated,
    /// The server refuses values of this size.
    TooLarge,
    /// It is unknown whether the value is stored.
    Failed(Failure),
}

impl Fill {
    /// Begins a fill, and returns the first commands to send.
    pub fn start(
        token: &MissToken,
        new_value: NewValue,
        kind: FillKind,
        inputs: &Inputs<'_>,
    ) -> (Fill, Step<FillEnd>) {
        let mut fill = Fill { plain: false, kind, state: FillState::Done, rounds: 0 };
        // Another fence: what the miss saw is in another place, or an invalidation since then was.
        if token.observed_cas.is_none() || !token.holds(inputs.fence, inputs.policy.plan) {
            return (fill, Step::Done(FillEnd::Dropped { exists: false }));
        }
        let is_add = kind == FillKind::Add;
        let must_check = |name: &TagName| is_add && inputs.rule_tags().contains(name);
        let is_known = |name: &TagName| token.version_of(name, inputs).is_some();
        if new_value.tags.iter().all(is_known) && !inputs.rule_tags().iter().any(must_check) {
            let tags = new_value.tags(inputs, |name| token.version_of(name, inputs).unwrap_or(NEVER));
            let step = fill.store(token, new_value, tags, inputs);
            return (fill, step);
        }
        let known =
            inputs.tags.iter().map(|name| token.version_of(name, inputs).filter(|_| !must_check(name)));
        let mut lookup =
            TagLookup { token: token.clone(), new_value, is_add, tag_read: TagRead::with_known(known) };
        let mut commands = Commands::new();
        lookup.tag_read.push_commands(&mut commands, inputs);
        fill.state = FillState::ReadingTags(Box::new(lookup));
        (fill, Step::Send(commands))
    }

    fn store(
        &mut self,
        token: &MissToken,
        new_value: NewValue,
        tags: Tags,
        inputs: &Inputs<'_>,
    ) -> Step<FillEnd> {
        let rebuild = inputs.now.mono.saturating_sub(token.at.mono);
        let built = (token.at, rebuild);
        let (command, plain) =
            new_value.store(StoreMode::Set, token.observed_cas, tags, built, token.origin(), inputs);
        self.plain = plain;
        let mut commands: Commands = smallvec![command.clone()];
        if let Some(lock) = token.lock {
            commands.push(delete(ItemRef::Lock, Some(lock)));
        }
        let may_follow = self.kind == FillKind::Set || token.stub.is_some() && !token.filled;
        let observed = may_follow.then(|| token.observed());
        self.state = FillState::Storing(Box::new(PendingStore { command, observed, lock: None }));
        Step::Send(commands)
    }

    /// Reads the item, what it follows, and if the rule has tags, whether it is out of date.
    fn check(&mut self, pending: Box<PendingStore>, inputs: &Inputs<'_>) -> Step<FillEnd> {
        let mut commands: Commands = smallvec![get(ItemRef::Value), peek(ItemRef::Lock)];
        TagRead::new(inputs.tags.len()).push_commands(&mut commands, inputs);
        self.rounds += 1;
        self.state = FillState::Checking(pending);
        Step::Send(commands)
    }

    /// The item has another CAS. If it is still the stub of the miss, nothing has been stored or deleted since. If it is a value
    /// that follows what the miss saw, nothing has been invalidated since.
    fn checked(
        &mut self,
        mut pending: Box<PendingStore>,
        replies: &[ServerReply],
        inputs: &Inputs<'_>,
    ) -> Step<FillEnd> {
        let (item, lock, tags) = match replies {
            [ServerReply::Item(item), lock, tags @ ..] => (item, lock, tags),
            [ServerReply::Failed(failure), ..] => return Step::Done(FillEnd::Failed(*failure)),
            _ => return Step::Done(FillEnd::Dropped { exists: false }),
        };
        pending.lock = match lock {
            ServerReply::Item(lock) => Some(lock.cas),
            _ => None,
        };
        let mut tag_read = TagRead::new(inputs.tags.len());
        let now = tag_read.absorb(tags, inputs).ok().and_then(|()| tag_read.known());
        // A value that is out of date before it is stored would only get in the way of the next rebuild.
        let is_current = now.as_ref().is_none_or(|now| pending.is_current(now, inputs));
        let may_replace =
            |observed: &Observed| now.as_ref().is_some_and(|now| observed.may_replace(item, now, inputs));
        let last_wins = |observed: &Observed| {
            let follows = |now: &Versions| observed.is_followed_by(item, now, inputs);
            self.kind == FillKind::Set && now.as_ref().is_some_and(follows)
        };
        let may_store = pending
            .observed
            .as_ref()
            .is_some_and(|observed| observed.is_same(item) || may_replace(observed) || last_wins(observed));
        if !may_store || !is_current {
            return Step::Done(FillEnd::Dropped { exists: true });
        }
        if self.rounds > MAX_ROUNDS {
            return Step::Done(match self.kind {
                FillKind::Set => FillEnd::Failed(Failure::Overloaded),
                FillKind::Add | FillKind::Compare => FillEnd::Dropped { exists: true },
            });
        }
        if let Operation::Store { cas, .. } = &mut pending.command.operation {
            *cas = Some(item.cas);
        }
        let command = pending.command.clone();
        self.state = FillState::Storing(pending);
        Step::Send(smallvec![command])
    }

    /// A tag that was not read at the miss may have changed during the rebuild, unless its version is old
    /// enough.
    fn tags_read(
        &mut self,
        mut lookup: Box<TagLookup>,
        replies: &[ServerReply],
        inputs: &Inputs<'_>,
    ) -> Step<FillEnd> {
        if let Err(failure) = lookup.tag_read.absorb(replies, inputs) {
            return Step::Done(FillEnd::Failed(failure));
        }
        let Some(versions) = lookup.tag_read.versions() else {
            let mut commands = Commands::new();
            lookup.tag_read.push_commands(&mut commands, inputs);
            self.state = FillState::ReadingTags(lookup);
            return Step::Send(commands);
        };
        let TagLookup { token, new_value, is_add, .. } = *lookup;
        let has_moved = |name| known_version(name, &versions, inputs) != token.version_of(name, inputs);
        if is_add && inputs.rule_tags().iter().any(has_moved) {
            return Step::Done(FillEnd::Outdated);
        }
        let tags = new_value.tags(inputs, |name| match token.version_of(name, inputs) {
            Some(version) => version,
            None => known_version(name, &versions, inputs)
                .filter(|version| !may_have_moved(*version, token.at.wall))
                .unwrap_or(NEVER),
        });
        self.store(&token, new_value, tags, inputs)
    }
}

impl PendingStore {
    /// Whether the value is sealed with these versions of the inputs' tags, or with none.
    fn is_current(&self, now: &Versions, inputs: &Inputs<'_>) -> bool {
        let Operation::Store { value, .. } = &self.command.operation else { return false };
        let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { return true };
        envelope
            .tags()
            .all(|(name, sealed)| known_version(&TagName::from_slice(name), now, inputs) == Some(sealed))
    }
}

impl Machine for Fill {
    type End = FillEnd;

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<FillEnd> {
        let replies = event.replies();
        let pending = match std::mem::replace(&mut self.state, FillState::Done) {
            FillState::ReadingTags(lookup) => return self.tags_read(lookup, &replies, inputs),
            FillState::Checking(pending) => return self.checked(pending, &replies, inputs),
            FillState::Storing(pending) => pending,
            FillState::Unlocking(cas) => return Step::Done(FillEnd::Stored { cas, plain: self.plain }),
            FillState::Done => return Step::Done(FillEnd::Failed(Failure::Refused)),
        };
        Step::Done(match replies.into_iter().next() {
            Some(ServerReply::Stored(cas)) => {
                if pending.lock.is_some() {
                    self.state = FillState::Unlocking(cas);
                    return Step::Send(smallvec![delete(ItemRef::Lock, pending.lock)]);
                }
                FillEnd::Stored { cas, plain: self.plain }
            }
            Some(ServerReply::Exists) if pending.observed.is_some() => return self.check(pending, inputs),
            Some(ServerReply::Exists) => FillEnd::Dropped { exists: true },
            Some(ServerReply::Absent | ServerReply::NotStored) => FillEnd::Dropped { exists: false },
            Some(ServerReply::TooLarge) => FillEnd::TooLarge,
            Some(ServerReply::Failed(failure)) => FillEnd::Failed(failure),
            _ => FillEnd::Failed(Failure::Refused),
        })
    }
}

#[cfg(test)]
mod tests;
