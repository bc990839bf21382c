//! Decides what a modifying command writes over the item that it has read.

use bytes::Bytes;
use smallvec::smallvec;

use crate::guard::command::{
    Cas, Commands, GetFlags, Item, ItemRef, Operation, ServerCommand, StoreMode, Stored, delete, peek,
};
use crate::guard::envelope::{Header, LockRecord, MAGIC, Opened, TagName, TagNames};
use crate::guard::expiry::Expiry;
use crate::guard::freshness::{Hit, ItemState, judge};
use crate::guard::inputs::Inputs;
use crate::guard::machine::Step;
use crate::guard::new_value::NewValue;
use crate::guard::tag_version::{NEVER, Versions, known_version};

use super::change::{Change, Count, Counted, ModifyEnd, appended};
use super::state::{Modify, State};
use super::store::{
    changed_exptime, count, initial_value, sealed_version, store_absent, store_changed, store_value,
};

impl Modify {
    /// The commands that apply the change to the item that was read, or the result if nothing is to be written.
    /// `versions`: those of the inputs' tags.
    pub(super) fn write(
        &mut self,
        item: Option<Item>,
        versions: &Versions,
        inputs: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        // memcached checks the size before it checks the item.
        let (sent, flags) = self.change.sent();
        if inputs.refuses(sent, flags) {
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
            (Change::Add(new_value), None) if new_value.expiry == Expiry::Expired => {
                return Step::Done(ModifyEnd::Stored(Cas::NONE));
            }
            (Change::Add(new_value), None) => store_absent(new_value, item.as_ref(), now, inputs),
            (
                Change::Append { create: Some(new_value), .. }
                | Change::Prepend { create: Some(new_value), .. },
                None,
            ) => {
                let counted = appended(new_value.body.len(), true);
                self.state = State::Writing { counted, old_ttl: None };
                if self.violates_condition(item.as_ref(), versions, inputs) {
                    return Step::Done(ModifyEnd::NotStored);
                }
                // An item that expires at once is not stored.
                if new_value.expiry == Expiry::Expired {
                    return Step::Done(self.done(counted));
                }
                store_absent(new_value, item.as_ref(), now, inputs)
            }
            (Change::Replace(_) | Change::Append { .. } | Change::Prepend { .. }, None) => {
                return Step::Done(ModifyEnd::NotStored);
            }
            (Change::Cas { number, new_value, sees_stale: true, invalidate }, None) => {
                match (&item, self.store_over_stale(*number, new_value, *invalidate, item.as_ref(), inputs)) {
                    (_, Some(command)) => command,
                    (Some(item), None) if item.size > 0 => return Step::Done(ModifyEnd::Exists),
                    (_, None) => return Step::Done(ModifyEnd::NotFound),
                }
            }
            (Change::Count(Count { create: Some((expiry, initial)), explicit, .. }), None) => {
                let (expiry, explicit) = (*expiry, *explicit);
                let counted = Counted { number: *initial, cas: Cas::NONE, ttl: None, created: true };
                self.state = State::Writing { counted, old_ttl: None };
                if self.violates_condition(item.as_ref(), versions, inputs) {
                    return Step::Done(ModifyEnd::NotStored);
                }
                let new_value = initial_value(expiry, *initial, explicit);
                match expiry {
                    Expiry::Expired => store_value(&new_value, StoreMode::Set, item.as_ref(), now, inputs),
                    _ => store_absent(&new_value, item.as_ref(), now, inputs),
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
            (Change::Replace(new_value), Some(_)) => {
                store_value(new_value, StoreMode::Set, item.as_ref(), now, inputs)
            }
            (Change::Cas { number, new_value, invalidate: true, .. }, Some(hit))
                if *number < hit.cas.number =>
            {
                let sealed = |name: &TagName| sealed_version(name, &hit, Some(versions), inputs);
                store_value(&new_value.stale(), StoreMode::Set, item.as_ref(), sealed, inputs)
            }
            (Change::Cas { number, .. }, Some(hit)) if hit.cas.number != *number => {
                return Step::Done(ModifyEnd::Exists);
            }
            // The new value was derived from the one that `gets` returned and is no newer than that one's
            // tags: it is sealed with the same versions.
            (Change::Cas { new_value, .. }, Some(hit)) if new_value.expiry != Expiry::Expired => {
                let sealed = |name: &TagName| sealed_version(name, &hit, Some(versions), inputs);
                store_value(new_value, StoreMode::Set, item.as_ref(), sealed, inputs)
            }
            (Change::Cas { .. }, Some(hit)) => delete(ItemRef::Value, Some(hit.cas)),
            // Without a header it would be a stub.
            (Change::Empty { expiry, explicit, .. }, Some(hit)) if hit.header.is_empty() => {
                let (body, tags) = (Bytes::new(), TagNames::new());
                let new_value = NewValue { body, flags: 0, expiry: *expiry, explicit: *explicit, tags };
                store_value(&new_value, StoreMode::Set, item.as_ref(), now, inputs)
            }
            (Change::Empty { expiry, explicit, .. }, Some(hit)) => {
                let emptied = Hit { flags: 0, ..hit.clone() };
                store_changed(
                    &emptied,
                    Bytes::new(),
                    changed_exptime(*expiry, &hit, inputs),
                    *explicit,
                    inputs.fence,
                )
            }
            // It may become the beginning of an envelope, which needs one in front.
            (Change::Append { more, explicit, .. }, Some(hit))
                if hit.header.is_empty() && hit.payload.len() < MAGIC.len() =>
            {
                let body = Bytes::from([&hit.payload[..], &more[..]].concat());
                self.state = State::Writing { counted: appended(body.len(), false), old_ttl };
                store_changed(&hit, body, exptime, *explicit, inputs.fence)
            }
            (Change::Append { more, explicit, .. }, Some(hit)) => {
                // The header precedes the payload, so memcached's own append is correct and transfers only
                // the new bytes.
                let (mode, value, cas) = (StoreMode::Append, Stored::plain(more.clone()), Some(hit.cas));
                let operation =
                    Operation::Store { mode, value, flags: 0, exptime: 0, cas, explicit: *explicit };
                let counted = appended(hit.payload.len() + more.len(), false);
                self.state = State::Writing { counted, old_ttl: None };
                ServerCommand { item: ItemRef::Value, operation }
            }
            (Change::Prepend { more, explicit, .. }, Some(hit)) => {
                let body = Bytes::from([&more[..], &hit.payload[..]].concat());
                self.state = State::Writing { counted: appended(body.len(), false), old_ttl };
                store_changed(&hit, body, exptime, *explicit, inputs.fence)
            }
            (Change::Count(Count { decr, delta, expiry, explicit, .. }), Some(hit)) => {
                let Some((number, body)) = count(&hit.payload, *decr, *delta) else {
                    return Step::Done(ModifyEnd::NotANumber);
                };
                let counted = Counted { number, cas: Cas::NONE, ttl: hit.ttl, created: false };
                let command = match expiry {
                    Some(Expiry::Expired) => delete(ItemRef::Value, Some(hit.cas)),
                    Some(expiry) => store_changed(
                        &hit,
                        body,
                        changed_exptime(*expiry, &hit, inputs),
                        *explicit,
                        inputs.fence,
                    ),
                    None => store_changed(&hit, body, exptime, *explicit, inputs.fence),
                };
                let old_ttl = old_ttl.filter(|_| expiry.is_none());
                self.state = State::Writing { counted, old_ttl };
                command
            }
            (Change::Touch(Expiry::Expired), Some(hit)) => delete(ItemRef::Value, Some(hit.cas)),
            (Change::Touch(expiry), Some(hit)) => {
                let touch = Some(changed_exptime(*expiry, &hit, inputs));
                self.state = State::Touching { old: hit };
                ServerCommand {
                    item: ItemRef::Value,
                    operation: Operation::Get(GetFlags { touch, ..GetFlags::default() }),
                }
            }
        };
        let creates = matches!(self.state, State::Writing { counted: Counted { created: true, .. }, .. });
        if let Operation::Store { mode, value, flags, .. } = &command.operation {
            // memcached's own append keeps the rest of the item, and its flags.
            let rest = item.as_ref().filter(|_| *mode == StoreMode::Append);
            let (rest, flags) = rest.map_or((0, *flags), |item| (item.size, item.flags));
            if inputs.refuses(rest + value.len(), flags) {
                let extends = matches!(self.change, Change::Append { .. } | Change::Prepend { .. });
                return Step::Done(match extends && !creates {
                    true => ModifyEnd::NotStored,
                    false => ModifyEnd::TooLarge,
                });
            }
        }
        let mut commands: Commands = smallvec![command];
        // What is stored as stale ends no rebuild.
        let is_stale = |cas: &Cas| matches!(self.change, Change::Cas { number, invalidate: true, .. } if number < cas.number);
        if let Some(lock) =
            current_cas.filter(|cas| !is_stale(cas)).and_then(|cas| self.lock_before(cas.number))
        {
            commands.push(delete(ItemRef::Lock, Some(lock.cas)));
        }
        if matches!(self.state, State::Writing { old_ttl: Some(_), .. }) {
            commands.insert(0, peek(ItemRef::Value));
        }
        Step::Send(commands)
    }

    /// Stores over a stub or stale item whose CAS number a meta client has sent. A win through another
    /// sidecar ends here too. The versions at that win may be in its lock. Otherwise they were no older than
    /// those that the item was sealed with. The same holds for the fence, except over a stub: the client was shown its CAS under
    /// this fence, or the number would be another one ([`crate::guard::named_cas`]), so the value was built after that.
    fn store_over_stale(
        &self,
        number: u64,
        new_value: &NewValue,
        invalidate: bool,
        item: Option<&Item>,
        inputs: &Inputs<'_>,
    ) -> Option<ServerCommand> {
        let item = item?;
        let new_value = match () {
            () if number == item.cas.number => new_value.clone(),
            () if invalidate && number < item.cas.number && item.size > 0 => new_value.stale(),
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
        let fence = match (&record, Header::open(&item.value)) {
            (Some(record), _) => record.fence,
            (None, Opened::Sealed { envelope, .. }) => envelope.fence,
            (None, _) if item.size == 0 => inputs.fence,
            (None, _) => 0,
        };
        Some(store_value(&new_value, StoreMode::Set, Some(item), sealed, &Inputs { fence, ..*inputs }))
    }
}
