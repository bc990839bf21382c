//! Commands that read a guarded key before they write it: `add`, `replace`, `append`, `prepend`, `cas`, `incr`, `decr`,
//! `touch` and `gat`.
//!
//! Each behaves as memcached specifies, applied to the *logical* item: a stub or a stale item counts as absent. The write
//! is conditional on the CAS that was read and is repeated when the CAS has changed.

use bytes::Bytes;
use smallvec::smallvec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode,
    Stored, delete, get, get_or_stub, peek,
};
use super::envelope::{LockRecord, TagName, TagNames};
use super::expiry::Expiry;
use super::freshness::{Hit, ItemState, judge, unknown_tags};
use super::inputs::Inputs;
use super::leases::Observed;
use super::machine::{Event, Machine, Step};
use super::new_value::NewValue;
use super::retry::PATIENCE_MS;
use super::stub::Stub;
use super::tag_version::{NEVER, Versions, known_version};
use super::tags::TagRead;
use change::appended;
use store::{
    changed_exptime, count, initial_value, sealed_version, store_absent, store_changed, store_value, touch,
};

mod change;
mod store;

pub use change::{Change, Count, Counted, ModifyEnd};

/// A command that reads before it writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Modify {
    change: Change,
    /// What the client's miss saw, if it received one.
    observed: Option<Observed>,
    /// The read leaves a stub if the key is absent.
    leaves_stub: bool,
    state: State,
    /// The lock, possibly another sidecar's, if the command may fill a win.
    lock: Option<Item>,
    /// Start time on the monotonic clock, in ms.
    began: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Reading,
    /// The item has tags that its rule does not name. They are read first.
    AddingTags {
        item: Option<Item>,
    },
    ReadingTags {
        item: Option<Item>,
        tag_read: Box<TagRead>,
    },
    /// `old_ttl`: the TTL of the old item when it was read, in seconds, if the new item must expire with it.
    Writing {
        counted: Counted,
        old_ttl: Option<u32>,
    },
    /// The item was written in a later second than it was read and would expire too late: its TTL is being
    /// restored. `old_ttl` is `None` if the item was another client's, which gets its own TTL back.
    RestoringExpiry {
        counted: Counted,
        old_ttl: Option<u32>,
    },
    Touching {
        old: Hit,
    },
    UndoingTouch,
}

impl Modify {
    /// Whether the command creates a missing item and its reply shows whether it did.
    pub fn creates_value(&self) -> bool {
        matches!(
            self.change,
            Change::Count(Count { create: Some(_), .. })
                | Change::Append { create: Some(_), .. }
                | Change::Prepend { create: Some(_), .. }
        )
    }

    /// Begins a command.
    pub fn start(change: Change, inputs: &Inputs<'_>) -> (Modify, Commands) {
        Modify::bound(change, None, inputs)
    }

    /// Begins a command that is stored only over what the miss observed. This applies to a `replace`, and to
    /// counts and appends that find no item.
    pub fn bound(change: Change, observed: Option<Observed>, inputs: &Inputs<'_>) -> (Modify, Commands) {
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

    /// Whether `current` is not the item that the command may be stored over.
    fn violates_condition(&self, current: Option<&Item>, versions: &Versions, inputs: &Inputs<'_>) -> bool {
        let may_store = |observed: &Observed| {
            current.is_some_and(|item| observed.is_same(item) || observed.may_replace(item, versions, inputs))
        };
        self.observed.as_ref().is_some_and(|observed| !may_store(observed))
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

    fn sees_stale(&self) -> bool {
        matches!(self.change, Change::Cas { sees_stale: true, .. })
    }

    /// Whether an absent item would be created. The read then leaves a stub to store over, for the same
    /// reason as in a [`Set`](super::Set). It leaves none for an item that expires at once or is too large
    /// with its header, or for a command that may be stored only over another item.
    fn may_create(&self, inputs: &Inputs<'_>) -> bool {
        let created = match &self.change {
            Change::Add(offer) => store_value(offer, StoreMode::Add, None, |_| NEVER, inputs),
            Change::Count(Count { create: Some((lifetime, initial)), explicit, .. })
                if self.observed.is_none() =>
            {
                store_value(
                    &initial_value(*lifetime, *initial, *explicit),
                    StoreMode::Add,
                    None,
                    |_| NEVER,
                    inputs,
                )
            }
            change => match change.create() {
                Some(offer) if self.observed.is_none() => {
                    store_value(offer, StoreMode::Add, None, |_| NEVER, inputs)
                }
                _ => return false,
            },
        };
        // The length of a header does not depend on the versions.
        matches!(created.what, Operation::Store { value, exptime: 0.., .. } if !inputs.refuses(value.len()))
    }

    fn tags_read(
        &mut self,
        item: Option<Item>,
        mut tag_read: Box<TagRead>,
        replies: &[ServerReply],
        inputs: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        let unknown = item.as_ref().map_or_else(TagNames::new, |item| unknown_tags(item, inputs));
        if !unknown.is_empty() {
            self.state = State::AddingTags { item };
            return Step::AddTags(unknown);
        }
        match tag_read.absorb(replies, inputs) {
            Err(failure) => Step::Done(ModifyEnd::Failed(failure)),
            Ok(()) => match tag_read.versions() {
                Some(versions) => self.write(item, &versions, inputs),
                None => {
                    let mut commands = Commands::new();
                    tag_read.push_commands(&mut commands, inputs);
                    self.state = State::ReadingTags { item, tag_read };
                    Step::Send(commands)
                }
            },
        }
    }

    fn write(&mut self, item: Option<Item>, versions: &Versions, inputs: &Inputs<'_>) -> Step<ModifyEnd> {
        // memcached checks the size before it checks the item.
        if inputs.refuses(self.change.sent()) {
            return Step::Done(ModifyEnd::TooLarge);
        }
        let item_state = item.as_ref().map(|item| judge(item, Some(versions), inputs));
        let present = match item_state {
            Some(ItemState::Fresh(hit)) => Some(hit),
            _ => None,
        };
        let current_cas = item.as_ref().map(|item| item.cas);
        // The exptime at which the old item expires: the new item must not outlive it.
        let exptime = match item.as_ref().and_then(|item| item.ttl) {
            Some(ttl) => Expiry::Seconds(u64::from(ttl)).exptime(0, inputs.now),
            None => 0,
        };
        let old_ttl = item.as_ref().and_then(|item| item.ttl);
        self.state = State::Writing { counted: Counted::NOTHING, old_ttl: None };
        let now = |name: &TagName| known_version(name, versions, inputs).unwrap_or(NEVER);
        let command = match (&self.change, present) {
            (Change::Add(_), Some(_)) => return Step::Done(ModifyEnd::NotStored),
            // An item that expires at once is not stored, and it does not replace the stub of a rebuild.
            (Change::Add(offer), None) if offer.lifetime == Expiry::Expired => {
                return Step::Done(ModifyEnd::Stored(Cas::NONE));
            }
            (Change::Add(offer), None) => store_absent(offer, item.as_ref(), now, inputs),
            (
                Change::Append { create: Some(offer), .. } | Change::Prepend { create: Some(offer), .. },
                None,
            ) => {
                let counted = appended(offer.body.len(), true);
                self.state = State::Writing { counted, old_ttl: None };
                if self.violates_condition(item.as_ref(), versions, inputs) {
                    return Step::Done(ModifyEnd::NotStored);
                }
                // An item that expires at once is not stored.
                if offer.lifetime == Expiry::Expired {
                    return Step::Done(self.done(counted));
                }
                store_absent(offer, item.as_ref(), now, inputs)
            }
            (Change::Replace(_) | Change::Append { .. } | Change::Prepend { .. }, None) => {
                return Step::Done(ModifyEnd::NotStored);
            }
            (Change::Cas { number, offer, sees_stale: true, invalidate }, None) => {
                match (&item, self.store_over_stale(*number, offer, *invalidate, item.as_ref(), inputs)) {
                    (_, Some(command)) => command,
                    (Some(item), None) if item.size > 0 => return Step::Done(ModifyEnd::Exists),
                    (_, None) => return Step::Done(ModifyEnd::NotFound),
                }
            }
            (Change::Count(Count { create: Some((lifetime, initial)), explicit, .. }), None) => {
                let (lifetime, explicit) = (*lifetime, *explicit);
                let counted = Counted { number: *initial, cas: Cas::NONE, ttl: None, created: true };
                self.state = State::Writing { counted, old_ttl: None };
                if self.violates_condition(item.as_ref(), versions, inputs) {
                    return Step::Done(ModifyEnd::NotStored);
                }
                let offer = initial_value(lifetime, *initial, explicit);
                match lifetime {
                    Expiry::Expired => store_value(&offer, StoreMode::Set, current_cas, now, inputs),
                    _ => store_absent(&offer, item.as_ref(), now, inputs),
                }
            }
            (Change::Cas { .. } | Change::Count(_) | Change::Touch(_) | Change::Empty { .. }, None) => {
                return Step::Done(ModifyEnd::NotFound);
            }
            // memcached checks for a number after the CAS, but for an empty value before it.
            (Change::Count(_), Some(hit)) if hit.payload.is_empty() => {
                return Step::Done(ModifyEnd::NotANumber);
            }
            (
                Change::Append { compare: Some(compare), .. }
                | Change::Prepend { compare: Some(compare), .. }
                | Change::Count(Count { compare: Some(compare), .. })
                | Change::Empty { compare: Some(compare), .. },
                Some(hit),
            ) if *compare != hit.cas.number => return Step::Done(ModifyEnd::Exists),
            (Change::Replace(_), Some(_)) if self.violates_condition(item.as_ref(), versions, inputs) => {
                return Step::Done(ModifyEnd::Dropped);
            }
            (Change::Replace(offer), Some(hit)) => {
                store_value(offer, StoreMode::Set, Some(hit.cas), now, inputs)
            }
            (Change::Cas { number, offer, invalidate: true, .. }, Some(hit)) if *number < hit.cas.number => {
                let sealed = |name: &TagName| sealed_version(name, &hit, Some(versions), inputs);
                store_value(&offer.stale(), StoreMode::Set, Some(hit.cas), sealed, inputs)
            }
            (Change::Cas { number, .. }, Some(hit)) if hit.cas.number != *number => {
                return Step::Done(ModifyEnd::Exists);
            }
            // The new value was derived from the one that `gets` returned and is no newer than that one's
            // tags: it is sealed with the same versions.
            (Change::Cas { offer, .. }, Some(hit)) if offer.lifetime != Expiry::Expired => {
                let sealed = |name: &TagName| sealed_version(name, &hit, Some(versions), inputs);
                store_value(offer, StoreMode::Set, Some(hit.cas), sealed, inputs)
            }
            (Change::Cas { .. }, Some(hit)) => delete(ItemRef::Value, Some(hit.cas)),
            // Without a header it would be a stub.
            (Change::Empty { lifetime, explicit, .. }, Some(hit)) if hit.header.is_empty() => {
                let (body, tags) = (Bytes::new(), TagNames::new());
                let offer = NewValue { body, flags: 0, lifetime: *lifetime, explicit: *explicit, tags };
                store_value(&offer, StoreMode::Set, Some(hit.cas), now, inputs)
            }
            (Change::Empty { lifetime, explicit, .. }, Some(hit)) => {
                let emptied = Hit { flags: 0, ..hit.clone() };
                store_changed(&emptied, Bytes::new(), changed_exptime(*lifetime, &hit, inputs), *explicit)
            }
            (Change::Append { more, explicit, .. }, Some(hit)) => {
                // The header precedes the payload, so memcached's own append is correct and transfers only
                // the new bytes.
                let (mode, value, cas) = (StoreMode::Append, Stored::plain(more.clone()), Some(hit.cas));
                let what = Operation::Store { mode, value, flags: 0, exptime: 0, cas, explicit: *explicit };
                let counted = appended(hit.payload.len() + more.len(), false);
                self.state = State::Writing { counted, old_ttl: None };
                ServerCommand { at: ItemRef::Value, what }
            }
            (Change::Prepend { more, explicit, .. }, Some(hit)) => {
                let body = Bytes::from([&more[..], &hit.payload[..]].concat());
                self.state = State::Writing { counted: appended(body.len(), false), old_ttl };
                store_changed(&hit, body, exptime, *explicit)
            }
            (Change::Count(Count { decr, delta, lifetime, explicit, .. }), Some(hit)) => {
                let Some((number, body)) = count(&hit.payload, *decr, *delta) else {
                    return Step::Done(ModifyEnd::NotANumber);
                };
                let counted = Counted { number, cas: Cas::NONE, ttl: hit.ttl, created: false };
                let command = match lifetime {
                    Some(Expiry::Expired) => delete(ItemRef::Value, Some(hit.cas)),
                    Some(lifetime) => {
                        store_changed(&hit, body, changed_exptime(*lifetime, &hit, inputs), *explicit)
                    }
                    None => store_changed(&hit, body, exptime, *explicit),
                };
                let old_ttl = old_ttl.filter(|_| lifetime.is_none());
                self.state = State::Writing { counted, old_ttl };
                command
            }
            (Change::Touch(Expiry::Expired), Some(hit)) => delete(ItemRef::Value, Some(hit.cas)),
            (Change::Touch(lifetime), Some(hit)) => {
                let touch = Some(changed_exptime(*lifetime, &hit, inputs));
                self.state = State::Touching { old: hit };
                ServerCommand {
                    at: ItemRef::Value,
                    what: Operation::Get(GetFlags { touch, ..GetFlags::default() }),
                }
            }
        };
        let creates = matches!(self.state, State::Writing { counted: Counted { created: true, .. }, .. });
        if let Operation::Store { value, .. } = &command.what {
            match &self.change {
                _ if creates && inputs.refuses(value.len()) => return Step::Done(ModifyEnd::TooLarge),
                _ if creates => {}
                Change::Append { .. } if inputs.refuses(item.map_or(0, |item| item.size) + value.len()) => {
                    return Step::Done(ModifyEnd::NotStored);
                }
                Change::Prepend { .. } if inputs.refuses(value.len()) => {
                    return Step::Done(ModifyEnd::NotStored);
                }
                _ if inputs.refuses(value.len()) => return Step::Done(ModifyEnd::TooLarge),
                _ => {}
            }
        }
        let mut commands: Commands = smallvec![command];
        if let Some(lock) = current_cas.and_then(|cas| self.lock_before(cas.number)) {
            commands.push(delete(ItemRef::Lock, Some(lock.cas)));
        }
        if matches!(self.state, State::Writing { old_ttl: Some(_), .. }) {
            commands.insert(0, peek(ItemRef::Value));
        }
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
                if inputs.now.mono < self.began.saturating_add(PATIENCE_MS) {
                    return Step::Send(self.read(inputs));
                }
                ModifyEnd::Failed(Failure::Overloaded)
            }
        })
    }

    fn done(&self, counted: Counted) -> ModifyEnd {
        match &self.change {
            Change::Count(_) => ModifyEnd::Counted(counted),
            Change::Touch(_) => ModifyEnd::Touched(Hit::nothing()),
            Change::Append { .. } | Change::Prepend { .. } => {
                let size = usize::try_from(counted.number).unwrap_or(usize::MAX);
                ModifyEnd::Extended { cas: counted.cas, size, created: counted.created }
            }
            _ => ModifyEnd::Stored(counted.cas),
        }
    }

    /// The lock of the winner that first received this CAS number. It is older than the number, because a win
    /// marks the value after it has taken the lock; a renewal makes it younger. The versions it records were
    /// read before any client received the number.
    fn lock_before(&self, number: u64) -> Option<&Item> {
        self.lock.as_ref().filter(|lock| lock.cas.number < number)
    }

    /// Stores over a stub or stale item whose CAS number a meta client has sent. A win through another
    /// sidecar ends here too. The versions at that win may be in its lock. Otherwise they were no older than
    /// those that the item was sealed with.
    fn store_over_stale(
        &self,
        number: u64,
        offer: &NewValue,
        invalidate: bool,
        item: Option<&Item>,
        inputs: &Inputs<'_>,
    ) -> Option<ServerCommand> {
        let item = item?;
        let offer = match () {
            () if number == item.cas.number => offer.clone(),
            () if invalidate && number < item.cas.number && item.size > 0 => offer.stale(),
            () => return None,
        };
        let current = match judge(item, None, inputs) {
            ItemState::Stale(hit) => Some(hit),
            _ => None,
        };
        let record = self.lock_before(item.cas.number).and_then(|lock| LockRecord::decode(&lock.value).ok());
        let locked = |name: &TagName| {
            let record = record.as_ref()?.tags.iter().find(|(locked, _)| locked == name);
            record.map(|(_, version)| *version)
        };
        let sealed = |name: &TagName| {
            let fallback = || current.as_ref().map_or(NEVER, |hit| sealed_version(name, hit, None, inputs));
            locked(name).unwrap_or_else(fallback)
        };
        Some(store_value(&offer, StoreMode::Set, Some(item.cas), sealed, inputs))
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
                    let what = Operation::MarkStale { seconds, cas: Some(item.cas), explicit: None };
                    ServerCommand { at: ItemRef::Value, what }
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

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<ModifyEnd> {
        let replies = event.replies();
        match std::mem::replace(&mut self.state, State::Reading) {
            State::Reading => {
                let mut replies = replies.into_iter();
                let item = match replies.next() {
                    Some(ServerReply::Item(item)) => Some(item),
                    Some(ServerReply::Failed(failure)) => return Step::Done(ModifyEnd::Failed(failure)),
                    // The server has no memory even for a stub.
                    _ if self.leaves_stub => return Step::Done(ModifyEnd::Failed(Failure::Refused)),
                    _ => None,
                };
                let mut tags: Replies = replies.collect();
                if self.sees_stale() {
                    self.lock = match tags.pop() {
                        Some(ServerReply::Item(lock)) => Some(lock),
                        _ => None,
                    };
                }
                self.tags_read(item, Box::new(TagRead::new(inputs.tags.len())), &tags, inputs)
            }
            State::AddingTags { item } => {
                let mut tag_read = Box::new(TagRead::new(inputs.tags.len()));
                let mut commands = Commands::new();
                tag_read.push_commands(&mut commands, inputs);
                self.state = State::ReadingTags { item, tag_read };
                Step::Send(commands)
            }
            State::ReadingTags { item, tag_read } => self.tags_read(item, tag_read, &replies, inputs),
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
